//! Parses EC2 instances.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{Instance as Ec2Instance, InstanceLifecycleType};
use jiff::Timestamp;

use crate::model::ids::Tags;
use crate::model::market::CapacityType;
use crate::model::observed::{Instance, InstanceState, LaunchedWith};

/// Tag with the image as the node class names it. EC2 itself only reports the image ID.
pub(super) const IMAGE_TAG: &str = "fleetwright.dev/image";

/// Parses an instance. The error names the missing attribute.
pub(super) fn parse_instance(found: Ec2Instance) -> Result<Instance, String> {
    let id = found.instance_id.ok_or("EC2 lists an instance without an id")?;
    let without = |what: &str| format!("EC2 lists instance `{id}` without {what}");
    let state = found.state.and_then(|state| state.name).ok_or_else(|| without("a state"))?;
    let state = match state.as_str() {
        "pending" => InstanceState::Pending,
        "running" => InstanceState::Running,
        "shutting-down" => InstanceState::ShuttingDown,
        "stopped" => InstanceState::Stopped,
        "stopping" => InstanceState::Stopping,
        "terminated" => InstanceState::Terminated,
        other => return Err(format!("EC2 lists instance `{id}` in the unknown state `{other}`")),
    };
    let capacity_type = match (&found.capacity_reservation_id, found.instance_lifecycle) {
        (_, Some(InstanceLifecycleType::Spot)) => CapacityType::Spot,
        (Some(_), _) => CapacityType::Reserved,
        (None, _) => CapacityType::OnDemand,
    };
    let groups = found.security_groups.unwrap_or_default().into_iter();
    let groups: BTreeSet<_> = groups.filter_map(|group| Some(group.group_id?.into())).collect();
    let made_with = LaunchedWith {
        image: found.image_id.as_deref().map(Into::into),
        subnet: found.subnet_id.map(Into::into),
        // Every instance has a security group: an empty list carries no information.
        security_groups: Some(groups).filter(|groups| !groups.is_empty()),
    };
    let tags = found.tags.unwrap_or_default().into_iter();
    let tags: Tags =
        tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect();
    let zone = found.placement.and_then(|placement| placement.availability_zone);
    let launched = found.launch_time.ok_or_else(|| without("a launch time"))?;
    let kind = found.instance_type.ok_or_else(|| without("a type"))?;
    Ok(Instance {
        instance_type: kind.as_str().into(),
        zone: zone.ok_or_else(|| without("a zone"))?.into(),
        capacity_type,
        state,
        launched_at: Timestamp::from_second(launched.secs())
            .map_err(|_| without("a valid launch time"))?,
        image: tags.get(IMAGE_TAG).cloned().or(found.image_id).unwrap_or_default(),
        launched_with: made_with,
        tags,
        reservation: found.capacity_reservation_id.map(Into::into),
        group: None,
        id: id.into(),
    })
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;
    use aws_sdk_ec2::types::{InstanceStateName, InstanceType, Placement, Tag};

    use super::*;

    fn found() -> Ec2Instance {
        let state = aws_sdk_ec2::types::InstanceState::builder().name(InstanceStateName::Running);
        Ec2Instance::builder()
            .instance_id("i-1")
            .instance_type(InstanceType::M5Large)
            .image_id("ami-1")
            .state(state.build())
            .placement(Placement::builder().availability_zone("us-east-1a").build())
            .launch_time(DateTime::from_secs(1_800_000_000))
            .tags(Tag::builder().key(IMAGE_TAG).value("al2023@latest").build())
            .build()
    }

    #[test]
    fn instance_image_comes_from_its_tag() {
        let read = parse_instance(found()).expect("an instance");
        assert_eq!(read.image, "al2023@latest");
        assert_eq!(
            read.launched_with,
            LaunchedWith { image: Some("ami-1".into()), ..LaunchedWith::default() }
        );
        assert_eq!(read.instance_type, "m5.large".into());
        assert_eq!(
            (read.capacity_type, read.state),
            (CapacityType::OnDemand, InstanceState::Running)
        );
        let mut spot = found();
        spot.instance_lifecycle = Some(InstanceLifecycleType::Spot);
        assert_eq!(parse_instance(spot).expect("spot").capacity_type, CapacityType::Spot);
    }

    #[test]
    fn missing_ec2_attribute_is_an_error() {
        let without = |remove: fn(&mut Ec2Instance)| {
            let mut broken = found();
            remove(&mut broken);
            broken
        };
        for (broken, what) in [
            (without(|i| i.state = None), "a state"),
            (without(|i| i.placement = None), "a zone"),
            (without(|i| i.launch_time = None), "a launch time"),
            (without(|i| i.instance_type = None), "a type"),
        ] {
            assert_eq!(
                parse_instance(broken).expect_err(what),
                format!("EC2 lists instance `i-1` without {what}")
            );
        }
    }
}
