//! Fallback offerings, and the nodes that they provide.

use crate::catalog::{Catalog, InstanceType};
use crate::model::ids::{InstanceTypeName, Labels, ZoneName};
use crate::model::market::CapacityType;
use crate::model::requirement::{key, label};
use crate::plan::wire::{Amount, NodeState};

/// Instance type, zone and capacity type of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offering {
    pub(super) instance_type: InstanceTypeName,
    pub(super) zone: ZoneName,
    pub(super) capacity_type: CapacityType,
}

/// Returns the node of the fallback `offering`; `None` if the catalog lacks a type or the zone.
///
/// The plan has no capacity for fallbacks. The amounts are those of the planned node, scaled down
/// for a smaller type. The kubelet reports the actual amounts.
pub(super) fn fallback_node(
    planned: &NodeState,
    offering: &Offering,
    catalog: &Catalog,
) -> Option<NodeState> {
    let kind = |name: &InstanceTypeName| catalog.types.get(name);
    let (old, new) = (kind(planned.instance_type.as_ref()?)?, kind(&offering.instance_type)?);
    let Offering { instance_type, zone, capacity_type } = offering;
    let zone_id = catalog.zones.iter().find(|known| known.name == *zone)?.id.clone();
    let mut labels: Labels = planned
        .labels
        .iter()
        .filter(|(key, _)| !old.labels.contains_key(*key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.extend(new.labels.clone());
    labels.extend([
        label(key::INSTANCE_TYPE, instance_type.as_str()),
        label(key::ZONE, zone.as_str()),
        label(key::ZONE_ID, zone_id.as_str()),
        label(key::CAPACITY_TYPE, capacity_type.as_str()),
    ]);
    Some(NodeState {
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        zone_id: Some(zone_id),
        capacity_type: Some(*capacity_type),
        labels,
        capacity: scaled_down(&planned.capacity, old, new),
        allocatable: scaled_down(&planned.allocatable, old, new),
        ..planned.clone()
    })
}

fn scaled_down(planned: &Amount, old: &InstanceType, new: &InstanceType) -> Amount {
    let share = |amount: i64, old: i64, new: i64| {
        if new >= old || old <= 0 { amount } else { amount.saturating_mul(new) / old }
    };
    Amount {
        cpu_milli: share(planned.cpu_milli, old.vcpus, new.vcpus),
        memory_bytes: share(planned.memory_bytes, old.memory_mib, new.memory_mib),
        ..planned.clone()
    }
}
