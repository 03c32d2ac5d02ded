//! Instances as EC2 lists them.

use aws_sdk_ec2::types::{Instance as Ec2Instance, InstanceLifecycleType, InstanceStateName};
use jiff::Timestamp;

use crate::catalog::CapacityType;
use crate::fleet::{Instance, InstanceState};

/// Tag that keeps the image as the node class names it: EC2 knows only its id.
pub(super) const IMAGE_TAG: &str = "fleetwright.dev/image";

/// Reads an instance; the error says what of it EC2 left out.
pub(super) fn instance(found: Ec2Instance) -> Result<Instance, String> {
    let id = found.instance_id.ok_or("EC2 lists an instance without an id")?;
    let without = |what: &str| format!("EC2 lists instance `{id}` without {what}");
    let state = found.state.and_then(|state| state.name).ok_or_else(|| without("a state"))?;
    let state = match state {
        InstanceStateName::Pending => InstanceState::Pending,
        InstanceStateName::Running => InstanceState::Running,
        InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        InstanceStateName::Stopped => InstanceState::Stopped,
        InstanceStateName::Stopping => InstanceState::Stopping,
        InstanceStateName::Terminated => InstanceState::Terminated,
        other => return Err(format!("EC2 lists instance `{id}` in the unknown state `{other}`")),
    };
    let capacity_type = match (&found.capacity_reservation_id, found.instance_lifecycle) {
        (_, Some(InstanceLifecycleType::Spot)) => CapacityType::Spot,
        (Some(_), _) => CapacityType::Reserved,
        (None, _) => CapacityType::OnDemand,
    };
    let tags = found.tags.unwrap_or_default().into_iter();
    let tags: std::collections::BTreeMap<String, String> =
        tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect();
    let zone = found.placement.and_then(|placement| placement.availability_zone);
    let launched = found.launch_time.ok_or_else(|| without("a time of launch"))?;
    let kind = found.instance_type.ok_or_else(|| without("a type"))?;
    Ok(Instance {
        instance_type: kind.as_str().into(),
        zone: zone.ok_or_else(|| without("a zone"))?.into(),
        capacity_type,
        state,
        launched_at: Timestamp::from_second(launched.secs())
            .map_err(|_| without("a time of launch that can be"))?,
        image: tags.get(IMAGE_TAG).cloned().or(found.image_id).unwrap_or_default(),
        tags,
        reservation: found.capacity_reservation_id.map(Into::into),
        id: id.into(),
    })
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;
    use aws_sdk_ec2::types::{InstanceType, Placement, Tag};

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
    fn an_instance_is_read_and_its_image_is_what_the_class_names() {
        let read = instance(found()).expect("an instance");
        assert_eq!(read.image, "al2023@latest");
        assert_eq!(read.instance_type, "m5.large".into());
        assert_eq!((read.capacity_type, read.state), (CapacityType::OnDemand, InstanceState::Running));
        let spot = Ec2Instance { instance_lifecycle: Some(InstanceLifecycleType::Spot), ..found() };
        assert_eq!(instance(spot).expect("spot").capacity_type, CapacityType::Spot);
    }

    #[test]
    fn what_ec2_leaves_out_is_an_error_and_no_default() {
        for (broken, what) in [
            (Ec2Instance { state: None, ..found() }, "a state"),
            (Ec2Instance { placement: None, ..found() }, "a zone"),
            (Ec2Instance { launch_time: None, ..found() }, "a time of launch"),
            (Ec2Instance { instance_type: None, ..found() }, "a type"),
        ] {
            assert_eq!(
                instance(broken).expect_err(what),
                format!("EC2 lists instance `i-1` without {what}")
            );
        }
    }
}
