//! The instance that a launch of a plan becomes.

use jiff::Timestamp;

use super::wire::{NodeState, ResourceChange};
use crate::model::ids::InstanceId;
use crate::model::observed::{Instance, InstanceState, LaunchedWith, tag};

/// Returns the instance that the launch of `row` becomes, with the tags that later plans read.
/// `None` if the row lacks its instance type, zone or capacity type.
pub fn launched_instance(
    row: &ResourceChange,
    after: &NodeState,
    cluster: &str,
    launched_at: Timestamp,
) -> Option<Instance> {
    let tags = [
        (tag::CLUSTER, Some(cluster.to_owned())),
        (tag::POOL, after.pool.as_ref().map(ToString::to_string)),
        (tag::KEY, row.index.clone()),
        (tag::SPEC, after.spec_digest.clone()),
    ];
    let tags = tags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let open = after.open_labels.iter().filter_map(|key| {
        Some((format!("{}{key}", tag::LABEL_PREFIX), after.labels.get(key)?.to_string()))
    });
    Some(Instance {
        id: InstanceId::from(format!("approved-{}", row.address).as_str()),
        instance_type: after.instance_type.clone()?,
        zone: after.zone.clone()?,
        capacity_type: after.capacity_type?,
        state: InstanceState::Pending,
        launched_at,
        image: after.image.clone().unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: tags.chain(open).collect(),
        reservation: after.reservation.clone(),
        group: None,
    })
}
