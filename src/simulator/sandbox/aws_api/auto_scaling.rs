//! Auto Scaling responses.

use super::AwsApi;
use crate::model::observed::{Group, Instance, ScheduledSize};
use crate::simulator::sandbox::xml::Xml;

impl AwsApi {
    pub(super) fn groups(&self, names: &[&str]) -> Xml {
        let observed = self.world.observed();
        let requested = |group: &&Group| names.is_empty() || names.contains(&group.name.as_str());
        let groups = observed.groups.values().filter(requested).map(|group| {
            let of_group = |i: &&Instance| i.group.as_ref().is_some_and(|m| m.name == group.name);
            let members = observed.instances.values().filter(of_group).filter(|i| i.is_active());
            self::group(group, members.map(member))
        });
        Xml::default().list("AutoScalingGroups", "member", groups)
    }

    pub(super) fn schedules(&self) -> Xml {
        let observed = self.world.observed();
        let actions = observed.groups.values().flat_map(|group| {
            group.schedules.iter().map(|action| scheduled(group.name.as_str(), action))
        });
        Xml::default().list("ScheduledUpdateGroupActions", "member", actions)
    }

    pub(super) fn members(&self, ids: &[&str]) -> Xml {
        let observed = self.world.observed();
        let requested =
            |i: &&Instance| i.group.is_some() && i.is_active() && ids.contains(&i.id.as_str());
        let members = observed.instances.values().filter(requested).map(member);
        Xml::default().list("AutoScalingInstances", "member", members)
    }
}

fn member(instance: &Instance) -> Xml {
    let group = instance.group.as_ref();
    let lifecycle = group.map_or("InService", |group| group.lifecycle.as_str());
    let protected = group.is_some_and(|group| group.protected);
    Xml::default()
        .text("InstanceId", instance.id.as_str())
        .text("AutoScalingGroupName", group.map_or("", |group| group.name.as_str()))
        .text("InstanceType", instance.instance_type.as_str())
        .text("AvailabilityZone", instance.zone.as_str())
        .text("LifecycleState", lifecycle)
        .text("HealthStatus", "Healthy")
        .text("ProtectedFromScaleIn", if protected { "true" } else { "false" })
}

fn group(group: &Group, members: impl IntoIterator<Item = Xml>) -> Xml {
    let Group { name, min, max, desired, types, zones, tags, suspended, mix, .. } = group;
    let overrides = types.iter().map(|kind| Xml::default().text("InstanceType", kind.as_str()));
    let template = Xml::default().list("Overrides", "member", overrides);
    let mut policy = Xml::default().element("LaunchTemplate", &template);
    if let Some(mix) = mix {
        let split = Xml::default()
            .text("OnDemandBaseCapacity", &mix.on_demand_base.to_string())
            .text("OnDemandPercentageAboveBaseCapacity", &mix.on_demand_percent.to_string());
        policy = policy.element("InstancesDistribution", &split);
    }
    let zones = zones.iter().fold(Xml::default(), |all, zone| all.text("member", zone.as_str()));
    let tags = tags.iter().map(|(key, value)| {
        Xml::default().text("Key", key).text("Value", value).text("PropagateAtLaunch", "true")
    });
    let suspended = suspended.iter().map(|name| Xml::default().text("ProcessName", name));
    Xml::default()
        .text("AutoScalingGroupName", name.as_str())
        .text("MinSize", &min.to_string())
        .text("MaxSize", &max.to_string())
        .text("DesiredCapacity", &desired.to_string())
        .text("DefaultCooldown", "300")
        .text("HealthCheckType", "EC2")
        .text("CreatedTime", "2026-01-01T00:00:00Z")
        .element("MixedInstancesPolicy", &policy)
        .element("AvailabilityZones", &zones)
        .list("Instances", "member", members)
        .list("Tags", "member", tags)
        .list("SuspendedProcesses", "member", suspended)
}

fn scheduled(group: &str, action: &ScheduledSize) -> Xml {
    let ScheduledSize { name, recurrence, time_zone, starts_at, ends_at, min, max, desired } =
        action;
    let texts = [
        ("Recurrence", recurrence.clone()),
        ("TimeZone", time_zone.clone()),
        ("StartTime", starts_at.map(|at| at.to_string())),
        ("EndTime", ends_at.map(|at| at.to_string())),
        ("MinSize", min.map(|size| size.to_string())),
        ("MaxSize", max.map(|size| size.to_string())),
        ("DesiredCapacity", desired.map(|size| size.to_string())),
    ];
    let named =
        Xml::default().text("AutoScalingGroupName", group).text("ScheduledActionName", name);
    let texts = texts.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    texts.fold(named, |xml, (key, value)| xml.text(key, value))
}
