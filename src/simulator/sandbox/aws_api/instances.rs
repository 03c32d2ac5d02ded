//! Instances: EC2 descriptions and launches.

use std::collections::BTreeMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{
    AwsApi, AwsFault, FormFields, LaunchTemplateData, field, invalid, list_values, poll_ready,
    port_fault,
};
use crate::apply::ports::{Cloud, LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance};
use crate::catalog::{InstanceType, NodeSettings};
use crate::model::desired::{Desired, Pool};
use crate::model::ids::{Labels, PoolName};
use crate::model::market::CapacityType;
use crate::model::observed::{Instance, InstanceState, LaunchedWith, tag};
use crate::model::pod::{Taint, TaintEffect};
use crate::simulator::sandbox::object::format_time;
use crate::simulator::sandbox::xml::Xml;

/// Tag with the image as the node class names it.
const IMAGE_TAG: &str = "fleetwright.dev/image";

impl AwsApi {
    pub(super) fn describe_instances(&self, form: &FormFields) -> Xml {
        let filters: Vec<(&str, Vec<&str>)> = (1..)
            .map_while(|n| {
                let name = form.get(&format!("Filter.{n}.Name"))?;
                Some((name.as_str(), list_values(form, &format!("Filter.{n}.Value"))))
            })
            .collect();
        let passes = |instance: &&Instance| {
            filters.iter().all(|(name, values)| match *name {
                "instance-id" => values.contains(&instance.id.as_str()),
                "instance-state-name" => values.contains(&state_code(instance.state).1),
                name => match name.strip_prefix("tag:") {
                    Some(key) => {
                        instance.tags.get(key).is_some_and(|v| values.contains(&v.as_str()))
                    }
                    None => false,
                },
            })
        };
        let observed = self.world.observed();
        let found = observed.instances.values().filter(passes).map(instance_xml);
        let reservation = Xml::default().list("instancesSet", "item", found);
        Xml::default().list("reservationSet", "item", [reservation])
    }

    pub(super) fn create_launch_template(&self, form: &FormFields) -> Result<Xml, AwsFault> {
        let name = field(form, "LaunchTemplateName");
        let data = decode_base64(field(form, "LaunchTemplateData.UserData"))?;
        let into = "LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget.\
                    CapacityReservationId";
        let template = LaunchTemplateData {
            user_data: String::from_utf8_lossy(&data).into_owned(),
            image: field(form, "LaunchTemplateData.ImageId").to_owned(),
            security_groups: list_values(form, "LaunchTemplateData.SecurityGroupId")
                .into_iter()
                .chain(list_values(form, "LaunchTemplateData.NetworkInterface.1.SecurityGroupId"))
                .map(str::to_owned)
                .collect(),
            reservation: form.get(into).cloned(),
        };
        let mut templates = self.templates.borrow_mut();
        if templates.contains_key(name) {
            let code = "InvalidLaunchTemplateName.AlreadyExistsException";
            return Err(AwsFault(400, code, format!("there is a launch template {name}")));
        }
        templates.insert(name.to_owned(), template);
        let made = Xml::default().text("launchTemplateName", name);
        Ok(Xml::default().element("launchTemplate", &made))
    }

    /// Launches one instance of the first offering with capacity.
    pub(super) fn create_fleet(&self, form: &FormFields) -> Result<Xml, AwsFault> {
        let templates = self.templates.borrow();
        let offerings = fleet_offerings(form);
        let mut requests = Vec::new();
        for FleetOffering { template: name, kind, subnet } in &offerings {
            let Some(template) = templates.get(*name) else {
                let code = "InvalidLaunchTemplateName.NotFoundException";
                return Err(AwsFault(400, code, format!("there is no launch template {name}")));
            };
            let Some(kind) = self.catalog.types.get(*kind) else {
                return Err(invalid(&format!("there is no instance type {kind}")));
            };
            requests.push(self.launch_request(form, template, kind, subnet));
        }
        let Some(request) = joined_request(requests) else {
            return Err(invalid("a fleet needs a launch template and an override"));
        };
        let outcome = poll_ready(self.world.launch(&request)).map_err(port_fault)?;
        let capacity = request.capacity_type.as_str();
        let error = |index: usize, reason: &str| {
            let (code, message) = reason.split_once(": ").unwrap_or(("", reason));
            let error = Xml::default().text("lifecycle", capacity).text("errorCode", code);
            error
                .text("errorMessage", message)
                .element("launchTemplateAndOverrides", &offerings[index].xml())
        };
        Ok(match outcome {
            LaunchOutcome::Launched(LaunchedInstance { id, offering, unavailable }) => {
                let offering = offering.unwrap_or_default();
                let FleetOffering { template, kind, subnet } = offerings[offering];
                let groups = &templates[template].security_groups;
                let launched_with = LaunchedWith {
                    image: Some(templates[template].image.as_str().into()),
                    subnet: Some(subnet.into()),
                    security_groups: Some(groups.iter().map(|id| id.as_str().into()).collect()),
                };
                self.world.set_launched_with(&id, launched_with);
                let ids = Xml::default().text("item", id.as_str());
                let one = Xml::default().text("instanceType", kind).text("lifecycle", capacity);
                let one = one
                    .element("instanceIds", &ids)
                    .element("launchTemplateAndOverrides", &offerings[offering].xml());
                let reason = "InsufficientInstanceCapacity: the offering has no capacity now";
                let errors = unavailable.into_iter().map(|index| error(index, reason));
                fleet_xml().list("errorSet", "item", errors).list("fleetInstanceSet", "item", [one])
            }
            LaunchOutcome::InsufficientCapacity { reason } => {
                let reasons = reason.split("; ").enumerate().take(offerings.len());
                let errors = reasons.map(|(index, reason)| error(index, reason));
                fleet_xml().list("errorSet", "item", errors).list("fleetInstanceSet", "item", [])
            }
        })
    }

    /// Converts one offering of a fleet request to a launch request.
    fn launch_request(
        &self,
        form: &FormFields,
        template: &LaunchTemplateData,
        kind: &InstanceType,
        subnet: &str,
    ) -> LaunchRequest {
        let tags = instance_tags(form);
        let desired = Rc::clone(&self.desired.borrow());
        let pool = tags.get(tag::POOL).map(|name| PoolName::from(name.as_str()));
        let pool = pool.and_then(|name| desired.pools.get(&name));
        let zone = subnet.strip_prefix("subnet-").unwrap_or(subnet);
        let spot = field(form, "TargetCapacitySpecification.DefaultTargetCapacityType") == "spot";
        let amounts = self.catalog.allocation(kind, &node_settings(&desired, pool));
        let (mut labels, mut taints) = kubelet_labels_and_taints(&template.user_data);
        let startup_taints = pool.map_or(Vec::new(), |pool| pool.startup_taints.clone());
        taints.retain(|taint| !startup_taints.contains(taint));
        let arch = kind.labels.get("kubernetes.io/arch").cloned().unwrap_or_else(|| "amd64".into());
        // Labels that the cloud controller and the kubelet set.
        for (key, value) in [
            ("kubernetes.io/os", "linux"),
            ("node.kubernetes.io/instance-type", kind.name.as_str()),
            ("topology.kubernetes.io/zone", zone),
            ("topology.kubernetes.io/region", self.catalog.region.as_str()),
            ("kubernetes.io/arch", arch.as_str()),
        ] {
            labels.insert(key.into(), value.into());
        }
        LaunchRequest {
            token: field(form, "ClientToken").to_owned(),
            offerings: vec![LaunchOffering {
                instance_type: kind.name.clone(),
                zone: zone.into(),
                labels,
                capacity: amounts.capacity,
                allocatable: amounts.allocatable,
            }],
            capacity_type: match &template.reservation {
                Some(_) => CapacityType::Reserved,
                None if spot => CapacityType::Spot,
                None => CapacityType::OnDemand,
            },
            reservation: template.reservation.as_deref().map(Into::into),
            image: tags.get(IMAGE_TAG).cloned().unwrap_or_default(),
            tags,
            taints,
            startup_taints,
        }
    }
}

/// An offering of a fleet request.
#[derive(Clone, Copy)]
struct FleetOffering<'f> {
    template: &'f str,
    kind: &'f str,
    subnet: &'f str,
}

impl FleetOffering<'_> {
    fn xml(&self) -> Xml {
        let template = Xml::default().text("launchTemplateName", self.template);
        let chosen = Xml::default().text("instanceType", self.kind).text("subnetId", self.subnet);
        Xml::default()
            .element("launchTemplateSpecification", &template)
            .element("overrides", &chosen)
    }
}

/// Returns the offerings of a fleet request, in its order.
fn fleet_offerings(form: &FormFields) -> Vec<FleetOffering<'_>> {
    let mut offerings = Vec::new();
    for n in 1.. {
        let config = format!("LaunchTemplateConfigs.{n}");
        let name = format!("{config}.LaunchTemplateSpecification.LaunchTemplateName");
        let Some(template) = form.get(&name) else { break };
        for m in 1.. {
            let kind = form.get(&format!("{config}.Overrides.{m}.InstanceType"));
            let Some(kind) = kind else { break };
            let subnet = field(form, &format!("{config}.Overrides.{m}.SubnetId"));
            offerings.push(FleetOffering { template, kind, subnet });
        }
    }
    offerings
}

/// Returns the first request with the offerings of all of them.
fn joined_request(requests: Vec<LaunchRequest>) -> Option<LaunchRequest> {
    let mut requests = requests.into_iter();
    let mut first = requests.next()?;
    first.offerings.extend(requests.flat_map(|request| request.offerings));
    Some(first)
}

fn node_settings(desired: &Desired, pool: Option<&Pool>) -> NodeSettings {
    let class = pool.and_then(|pool| desired.node_classes.get(pool.node_class.as_ref()?));
    let both = pool.zip(class);
    both.map_or_else(NodeSettings::default, |(pool, class)| NodeSettings::new(pool, class))
}

/// Returns the tags of the launched instances.
fn instance_tags(form: &FormFields) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for n in (1..).take_while(|n| form.contains_key(&format!("TagSpecification.{n}.ResourceType")))
    {
        let specification = format!("TagSpecification.{n}");
        if field(form, &format!("{specification}.ResourceType")) != "instance" {
            continue;
        }
        for m in (1..).take_while(|m| form.contains_key(&format!("{specification}.Tag.{m}.Key"))) {
            let of =
                |part: &str| field(form, &format!("{specification}.Tag.{m}.{part}")).to_owned();
            tags.insert(of("Key"), of("Value"));
        }
    }
    tags
}

/// Returns the labels and taints in the kubelet flags of user data.
fn kubelet_labels_and_taints(user_data: &str) -> (Labels, Vec<Taint>) {
    let flag = |name: &str| {
        let (_, rest) = user_data.split_once(name)?;
        let ends = |c: char| c.is_whitespace() || ['"', '\'', '\\'].contains(&c);
        rest.split(ends).next()
    };
    let labels = flag("--node-labels=").unwrap_or_default().split(',');
    let labels = labels.filter_map(|label| label.split_once('='));
    let taints = flag("--register-with-taints=").unwrap_or_default().split(',');
    let taints = taints.filter_map(|taint| {
        let (key, rest) = taint.split_once('=')?;
        let (value, effect) = rest.rsplit_once(':')?;
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            "NoExecute" => TaintEffect::NoExecute,
            _ => return None,
        };
        Some(Taint { key: key.into(), value: value.into(), effect })
    });
    (labels.map(|(key, value)| (key.into(), value.into())).collect(), taints.collect())
}

fn state_code(state: InstanceState) -> (&'static str, &'static str) {
    match state {
        InstanceState::Pending => ("0", "pending"),
        InstanceState::Running => ("16", "running"),
        InstanceState::ShuttingDown => ("32", "shutting-down"),
        InstanceState::Terminated => ("48", "terminated"),
        InstanceState::Stopping => ("64", "stopping"),
        InstanceState::Stopped => ("80", "stopped"),
    }
}

fn instance_xml(instance: &Instance) -> Xml {
    let (code, name) = state_code(instance.state);
    // For instances launched elsewhere only the selector is known. It must not be taken for an
    // image ID.
    let words = Some((IMAGE_TAG, instance.image.as_str()));
    let words = words.filter(|(key, of)| !of.is_empty() && !instance.tags.contains_key(*key));
    let tags = instance.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let tags = tags.chain(words);
    let tags = tags.map(|(key, value)| Xml::default().text("key", key).text("value", value));
    let placement = Xml::default().text("availabilityZone", instance.zone.as_str());
    let xml = Xml::default()
        .text("instanceId", instance.id.as_str())
        .element("instanceState", &Xml::default().text("code", code).text("name", name))
        .text("instanceType", instance.instance_type.as_str())
        .text("launchTime", &format_time(instance.launched_at))
        .element("placement", &placement)
        .list("tagSet", "item", tags);
    let xml = launch_details_xml(xml, &instance.launched_with);
    match (instance.capacity_type, &instance.reservation) {
        (CapacityType::Spot, _) => xml.text("instanceLifecycle", "spot"),
        (_, Some(reservation)) => xml.text("capacityReservationId", reservation.as_str()),
        (_, None) => xml,
    }
}

/// Adds the launch details of an instance that this account launched.
fn launch_details_xml(xml: Xml, found: &LaunchedWith) -> Xml {
    let LaunchedWith { image: Some(image), subnet: Some(subnet), security_groups } = found else {
        return xml;
    };
    let groups = security_groups.iter().flatten();
    xml.text("imageId", image.as_str()).text("subnetId", subnet.as_str()).list(
        "groupSet",
        "item",
        groups.map(|id| Xml::default().text("groupId", id.as_str())),
    )
}

fn fleet_xml() -> Xml {
    Xml::default().text("fleetId", "fleet-embedded")
}

/// Decodes base64, which may be broken into lines.
fn decode_base64(text: &str) -> Result<Vec<u8>, AwsFault> {
    let one_line: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(one_line).map_err(|error| invalid(&format!("user data: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, expected) in [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj\nZA==", "abcd")] {
            let decoded = decode_base64(text).expect("base64");
            assert_eq!(decoded, expected.as_bytes(), "{text}");
        }
        assert!(decode_base64("YW*=").is_err());
    }

    #[test]
    fn labels_and_taints_come_from_user_data() {
        let (labels, taints) = kubelet_labels_and_taints(
            r#"{"flags":["--node-labels=team=web,a/b=c","--register-with-taints=cheap=yes:NoSchedule"]}"#,
        );
        assert_eq!(labels.len(), 2);
        assert_eq!(labels["a/b"].as_str(), "c");
        assert_eq!((taints.len(), taints[0].effect), (1, TaintEffect::NoSchedule));
        assert_eq!(kubelet_labels_and_taints("#!/bin/sh\n"), (Labels::new(), Vec::new()));
    }
}
