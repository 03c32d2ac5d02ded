//! Offerings that may stand in for a planned one, and the nodes that they make.

use crate::catalog::{CapacityType, Catalog, InstanceType};
use crate::ids::{InstanceTypeName, Labels, ZoneName};
use crate::plan::wire::{Amount, NodeState};
use crate::requirement::{key, label};

/// One way to buy a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offering {
    pub(super) instance_type: InstanceTypeName,
    pub(super) zone: ZoneName,
    pub(super) capacity_type: CapacityType,
}

/// Returns the node that `offering` makes in the place of `planned`; `None` where the catalogue
/// does not know one of both.
///
/// The plan does not say what a stand-in offers, and apply computes nothing: the amounts are those
/// of the planned node, in proportion where the type has less. A kubelet reports its own.
pub(super) fn stand_in(
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
        capacity: at_most(&planned.capacity, old, new),
        allocatable: at_most(&planned.allocatable, old, new),
        ..planned.clone()
    })
}

fn at_most(planned: &Amount, old: &InstanceType, new: &InstanceType) -> Amount {
    let share = |amount: i64, old: i64, new: i64| {
        if new >= old || old <= 0 { amount } else { amount.saturating_mul(new) / old }
    };
    Amount {
        cpu_milli: share(planned.cpu_milli, old.vcpus, new.vcpus),
        memory_bytes: share(planned.memory_bytes, old.memory_mib, new.memory_mib),
        ..planned.clone()
    }
}
