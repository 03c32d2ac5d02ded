//! Auto Scaling groups: listed by the tags of the cluster, scaled up by desired capacity, scaled
//! down by terminating a named member.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use aws_sdk_autoscaling::error::ProvideErrorMetadata as _;
use aws_sdk_autoscaling::primitives::DateTime;
use aws_sdk_autoscaling::types::{
    AutoScalingGroup, Filter, LaunchTemplateSpecification, LifecycleState,
    ScheduledUpdateGroupAction,
};
use jiff::Timestamp;
use tokio::time::Instant;

use super::client::{Aws, ScheduledActions};
use super::errors::{port_error, refused};
use super::group_templates::{NODE_GROUP_TAG, launch_template};
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::{GroupName, InstanceId, InstanceTypeName};
use crate::model::market::CapacityMix;
use crate::model::observed::{Group, InstanceState, Membership, ScheduledSize};

/// Lifetime of cached scheduled actions.
const SCHEDULES_TTL: Duration = Duration::from_mins(5);

/// Membership of each instance in its group.
pub(super) type GroupMembers = BTreeMap<InstanceId, Membership>;

#[derive(Debug, Default)]
pub(super) struct ClusterGroups {
    pub(super) groups: Vec<Group>,
    pub(super) members: GroupMembers,
    /// Launch templates of groups whose types are not known.
    launch_templates: BTreeMap<GroupName, LaunchTemplateSpecification>,
}

impl Aws {
    /// Reads the groups that carry a cluster tag: the tag of this cluster, of EKS or of eksctl.
    pub(super) async fn list_groups(&self) -> Result<ClusterGroups, PortError> {
        const VERB: &str = "list groups";
        let keys = self.group_tags().map(|(key, _)| key.to_owned());
        let by_key = Filter::builder().name("tag-key").set_values(Some(keys.into())).build();
        let request = self.scaling.describe_auto_scaling_groups().filters(by_key);
        let (mut pages, mut groups) = (request.into_paginator().send(), ClusterGroups::default());
        loop {
            self.limiter.acquire(ApiBucket::Scaling).await;
            let Some(page) = pages.next().await else { break };
            let page = page.map_err(|error| port_error(VERB, &error))?;
            for found in page.auto_scaling_groups.unwrap_or_default() {
                if self.is_of_cluster(&found) {
                    groups.add(found).map_err(|reason| refused(VERB, reason))?;
                }
            }
        }
        if groups.groups.is_empty() {
            return Ok(groups);
        }
        let ClusterGroups { groups: found, launch_templates, .. } = &mut groups;
        for group in found {
            let launch_template = launch_templates.get(&group.name);
            if launch_template.is_some() || group.tags.contains_key(NODE_GROUP_TAG) {
                self.add_template(group, launch_template).await;
            }
        }
        // Scheduled actions only affect forecasts. If they cannot be read, only the forecasts are
        // reduced.
        let schedules = self.schedules().await.map_err(|error| error.to_string());
        for group in &mut groups.groups {
            match &schedules {
                Ok(all) => group.schedules = all.get(&group.name).cloned().unwrap_or_default(),
                Err(why) => group.schedules_unread = Some(why.clone()),
            }
        }
        Ok(groups)
    }

    /// Returns the scheduled actions of all groups, cached for [`SCHEDULES_TTL`]. Apart from
    /// paging, this is one call for all groups.
    async fn schedules(&self) -> Result<ScheduledActions, PortError> {
        const VERB: &str = "list scheduled actions";
        let known = self.cached_schedules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, schedules)) = known.filter(|(read, _)| read.elapsed() < SCHEDULES_TTL) {
            return Ok(schedules);
        }
        let started = Instant::now();
        let mut schedules = ScheduledActions::new();
        let mut pages = self.scaling.describe_scheduled_actions().into_paginator().send();
        loop {
            self.limiter.acquire(ApiBucket::Scaling).await;
            let Some(page) = pages.next().await else { break };
            let page = page.map_err(|error| port_error(VERB, &error))?;
            for action in page.scheduled_update_group_actions.unwrap_or_default() {
                let of = action.auto_scaling_group_name.clone().unwrap_or_default();
                let action =
                    parse_scheduled_action(action).map_err(|reason| refused(VERB, reason))?;
                schedules.entry(of.into()).or_default().push(action);
            }
        }
        for actions in schedules.values_mut() {
            actions.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let mut cached = self.cached_schedules.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Some((started, schedules.clone()));
        Ok(schedules)
    }

    /// Returns the tags that mark a group of the cluster, each with its required value.
    fn group_tags(&self) -> [(&str, Option<&str>); 3] {
        [
            (&self.owned_tag, None),
            ("eks:cluster-name", Some(&self.cluster)),
            ("alpha.eksctl.io/cluster-name", Some(&self.cluster)),
        ]
    }

    fn is_of_cluster(&self, group: &AutoScalingGroup) -> bool {
        group.tags().iter().any(|tag| {
            let is = |(key, value): (&str, Option<&str>)| {
                tag.key() == Some(key) && value.is_none_or(|value| tag.value() == Some(value))
            };
            self.group_tags().into_iter().any(is)
        })
    }

    pub(super) async fn raise_desired_capacity(
        &self,
        name: &GroupName,
        desired: u32,
    ) -> Result<(), PortError> {
        const VERB: &str = "raise group";
        self.limiter.acquire(ApiBucket::Scaling).await;
        let request = self.scaling.describe_auto_scaling_groups();
        let found = request.auto_scaling_group_names(name.as_str()).send().await;
        let found = found.map_err(|error| port_error(VERB, &error))?;
        let mut found = found.auto_scaling_groups.unwrap_or_default().into_iter();
        let Some(live) = found.find(|group| self.is_of_cluster(group)) else {
            let reason = format!("cluster {} has no group {name}", self.cluster);
            return Err(refused(VERB, reason));
        };
        let (live, _) = parse_group(live).map_err(|reason| refused(VERB, reason))?;
        // If the desired capacity is lowered, Auto Scaling chooses which member to terminate.
        if desired < live.desired {
            let reason = format!(
                "{name} has a desired capacity of {} and is never scaled down by number",
                live.desired
            );
            return Err(refused(VERB, reason));
        }
        if desired > live.max {
            let reason = format!("{name} may have at most {} members, not {desired}", live.max);
            return Err(refused(VERB, reason));
        }
        if desired == live.desired {
            return Ok(());
        }
        self.limiter.acquire(ApiBucket::Scaling).await;
        self.check_write_permit(VERB)?;
        self.scaling
            .set_desired_capacity()
            .auto_scaling_group_name(name.as_str())
            .set_desired_capacity(i32::try_from(desired).ok())
            .honor_cooldown(false)
            .send()
            .await
            .map(|_| ())
            .map_err(|error| port_error(VERB, &error))
    }

    /// Terminates a member and lowers the desired capacity of its group by one. A member that is
    /// already terminating is left alone, because each call lowers the capacity once more.
    pub(super) async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        self.limiter.acquire(ApiBucket::Scaling).await;
        let request = self.scaling.describe_auto_scaling_instances();
        let found = request.instance_ids(id.as_str()).send().await;
        let found = found.map_err(|error| port_error(VERB, &error))?;
        let member = found.auto_scaling_instances.unwrap_or_default().into_iter().next();
        let Some(member) = member else {
            return self
                .is_terminating(id)
                .await?
                .then_some(())
                .ok_or_else(|| refused(VERB, format!("{id} runs and is a member of no group")));
        };
        if is_terminating_lifecycle(member.lifecycle_state().unwrap_or_default()) {
            return Ok(());
        }
        self.limiter.acquire(ApiBucket::Scaling).await;
        self.check_write_permit(VERB)?;
        let started = self
            .scaling
            .terminate_instance_in_auto_scaling_group()
            .instance_id(id.as_str())
            .should_decrement_desired_capacity(true)
            .send()
            .await;
        match started {
            Ok(_) => Ok(()),
            Err(error) if error.message().is_some_and(|text| text.contains("not found")) => Ok(()),
            Err(error) => Err(port_error(VERB, &error)),
        }
    }

    async fn is_terminating(&self, id: &InstanceId) -> Result<bool, PortError> {
        let found = self.describe_instance(id).await?;
        Ok(found.is_none_or(|instance| instance.state == InstanceState::ShuttingDown))
    }
}

impl ClusterGroups {
    fn add(&mut self, found: AutoScalingGroup) -> Result<(), String> {
        let launch_template = launch_template(&found);
        let (group, members) = parse_group(found)?;
        let launch_template = launch_template.filter(|_| group.types.is_empty());
        self.launch_templates.extend(launch_template.map(|it| (group.name.clone(), it)));
        self.groups.push(group);
        self.members.extend(members);
        Ok(())
    }
}

fn is_terminating_lifecycle(lifecycle: &str) -> bool {
    lifecycle.starts_with("Terminat")
}

/// Returns a number of a mixed instances policy, or the default of Auto Scaling.
fn share(number: Option<i32>, default: u32) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
}

/// Parses a group and its members. The error names the missing attribute.
fn parse_group(found: AutoScalingGroup) -> Result<(Group, GroupMembers), String> {
    let name = found.auto_scaling_group_name;
    let name: GroupName = name.ok_or("Auto Scaling lists a group without a name")?.into();
    let size = |size: Option<i32>, what: &str| {
        let size = size.and_then(|size| u32::try_from(size).ok());
        size.ok_or_else(|| format!("Auto Scaling lists group `{name}` without {what}"))
    };
    let policy = found.mixed_instances_policy;
    let mix = policy.as_ref().and_then(|policy| policy.instances_distribution.as_ref());
    let mix = mix.map(|split| CapacityMix {
        on_demand_base: share(split.on_demand_base_capacity, 0),
        on_demand_percent: share(split.on_demand_percentage_above_base_capacity, 100),
    });
    let template = policy.and_then(|policy| policy.launch_template);
    let overrides = template.and_then(|template| template.overrides).unwrap_or_default();
    let mut types: Vec<InstanceTypeName> =
        overrides.into_iter().filter_map(|one| Some(one.instance_type?.into())).collect();
    let mut members = GroupMembers::new();
    for member in found.instances.unwrap_or_default() {
        let lifecycle = member.lifecycle_state.unwrap_or(LifecycleState::Pending);
        // Warm-pool members are not nodes, and terminated members no longer exist.
        let counts = lifecycle != LifecycleState::Terminated
            && lifecycle != LifecycleState::Detached
            && !lifecycle.as_str().starts_with("Warmed");
        if let Some(id) = member.instance_id.filter(|_| counts) {
            let membership = Membership {
                name: name.clone(),
                lifecycle: lifecycle.as_str().to_owned(),
                protected: member.protected_from_scale_in.unwrap_or(false),
            };
            members.insert(id.into(), membership);
        }
        // Without overrides, the launch template determines the types. Its members reveal them.
        let kind = member.instance_type.map(InstanceTypeName::from);
        types.extend(kind.filter(|kind| !types.contains(kind)));
    }
    let tags = found.tags.unwrap_or_default().into_iter();
    let suspended = found.suspended_processes.unwrap_or_default().into_iter();
    let mut suspended: Vec<String> = suspended.filter_map(|one| one.process_name).collect();
    suspended.sort();
    let group = Group {
        min: size(found.min_size, "its minimum size")?,
        max: size(found.max_size, "its maximum size")?,
        desired: size(found.desired_capacity, "its desired size")?,
        types,
        zones: found.availability_zones.unwrap_or_default().into_iter().map(Into::into).collect(),
        tags: tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect(),
        mix,
        suspended,
        schedules: Vec::new(),
        schedules_unread: None,
        node_group: None,
        template_unread: None,
        name,
    };
    Ok((group, members))
}

/// Parses a scheduled action. The error names the missing or invalid attribute.
fn parse_scheduled_action(found: ScheduledUpdateGroupAction) -> Result<ScheduledSize, String> {
    let name = found.scheduled_action_name;
    let name = name.ok_or("Auto Scaling lists a scheduled action without a name")?;
    let odd = |what: &str| format!("Auto Scaling lists scheduled action `{name}` with {what}");
    let size = |size: Option<i32>, what: &str| match size {
        // The API accepts -1 for "unchanged".
        None | Some(-1) => Ok(None),
        Some(size) => u32::try_from(size).map(Some).map_err(|_| odd(what)),
    };
    let moment = |at: Option<DateTime>, what: &str| {
        let at = at.map(|at| Timestamp::from_second(at.secs()));
        at.transpose().map_err(|_| odd(what))
    };
    Ok(ScheduledSize {
        min: size(found.min_size, "an invalid minimum size")?,
        max: size(found.max_size, "an invalid maximum size")?,
        desired: size(found.desired_capacity, "an invalid desired size")?,
        starts_at: moment(found.start_time, "an invalid start time")?,
        ends_at: moment(found.end_time, "an invalid end time")?,
        recurrence: found.recurrence,
        time_zone: found.time_zone,
        name,
    })
}

#[cfg(test)]
mod tests {
    use aws_sdk_autoscaling::types::{
        Instance, InstancesDistribution, MixedInstancesPolicy, SuspendedProcess, TagDescription,
    };

    use super::*;

    fn member(id: &str, lifecycle: LifecycleState) -> Instance {
        Instance::builder()
            .instance_id(id)
            .instance_type("m5.large")
            .lifecycle_state(lifecycle)
            .availability_zone("us-east-1a")
            .health_status("Healthy")
            .protected_from_scale_in(id == "i-2")
            .build()
    }

    fn found() -> AutoScalingGroup {
        AutoScalingGroup::builder()
            .auto_scaling_group_name("workers")
            .min_size(1)
            .max_size(5)
            .desired_capacity(3)
            .default_cooldown(300)
            .availability_zones("us-east-1a")
            .health_check_type("EC2")
            .created_time(aws_sdk_autoscaling::primitives::DateTime::from_secs(0))
            .instances(member("i-1", LifecycleState::InService))
            .instances(member("i-2", LifecycleState::PendingWait))
            .instances(member("i-3", LifecycleState::WarmedStopped))
            .instances(member("i-4", LifecycleState::Terminated))
            .tags(TagDescription::builder().key("eks:cluster-name").value("prod").build())
            .suspended_processes(SuspendedProcess::builder().process_name("AZRebalance").build())
            .build()
    }

    #[test]
    fn only_active_group_members_are_parsed() {
        let (group, members) = parse_group(found()).expect("a group");
        assert_eq!((group.min, group.max, group.desired), (1, 5, 3));
        assert_eq!((group.types.len(), group.suspended.len()), (1, 1));
        let ids: Vec<&str> = members.keys().map(InstanceId::as_str).collect();
        assert_eq!(ids, ["i-1", "i-2"]);
        assert!(members["i-2"].protected && members["i-2"].lifecycle == "Pending:Wait");
    }

    #[test]
    fn mixed_instances_policy_gives_the_mix() {
        let mix = |base: Option<i32>, percent: Option<i32>| {
            let split = InstancesDistribution::builder()
                .set_on_demand_base_capacity(base)
                .set_on_demand_percentage_above_base_capacity(percent)
                .build();
            let policy = MixedInstancesPolicy::builder().instances_distribution(split).build();
            let mut group = found();
            group.mixed_instances_policy = Some(policy);
            let mix = parse_group(group).expect("a group").0.mix.expect("a mix");
            (mix.on_demand_base, mix.on_demand_percent)
        };
        assert_eq!(mix(Some(2), Some(25)), (2, 25));
        assert_eq!(mix(None, None), (0, 100), "the defaults of Auto Scaling");
        assert_eq!(parse_group(found()).expect("a group").0.mix, None);
    }

    #[test]
    fn scheduled_action_keeps_unset_sizes() {
        let action = || {
            ScheduledUpdateGroupAction::builder()
                .scheduled_action_name("office")
                .recurrence("0 8 * * MON-FRI")
                .time_zone("Europe/Berlin")
                .start_time(DateTime::from_secs(60))
                .min_size(3)
                .max_size(-1)
        };
        let read = parse_scheduled_action(action().build()).expect("an action");
        assert_eq!((read.min, read.max, read.desired), (Some(3), None, None));
        assert_eq!(read.starts_at, Timestamp::from_second(60).ok());
        assert_eq!(read.time_zone.as_deref(), Some("Europe/Berlin"));
        let error =
            parse_scheduled_action(action().desired_capacity(-2).build()).expect_err("no size");
        assert!(error.contains("`office` with an invalid desired size"), "{error}");
    }

    #[test]
    fn missing_group_attribute_is_an_error() {
        let without = |remove: fn(&mut AutoScalingGroup)| {
            let mut broken = found();
            remove(&mut broken);
            broken
        };
        for (broken, what) in [
            (without(|g| g.min_size = None), "its minimum size"),
            (without(|g| g.max_size = None), "its maximum size"),
            (without(|g| g.desired_capacity = Some(-1)), "its desired size"),
        ] {
            let error = parse_group(broken).expect_err(what);
            assert_eq!(error, format!("Auto Scaling lists group `workers` without {what}"));
        }
    }
}
