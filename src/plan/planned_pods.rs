//! Pods that a plan places on existing instances.

use std::collections::BTreeMap;

use super::Plan;
use crate::model::ids::{Address, InstanceId, workload_key};
use crate::model::observed::PlannedPods;

/// Returns the new pods of each existing instance of a plan.
#[must_use]
pub fn planned_pods(plan: &Plan) -> PlannedPods {
    let rows = plan.resource_changes.iter();
    let instances: BTreeMap<&Address, &InstanceId> = rows
        .filter_map(|row| Some((&row.address, row.change.before.as_ref()?.instance_id.as_ref()?)))
        .collect();
    let mut planned = PlannedPods::new();
    for row in &plan.capacity.placements {
        if let Some(instance) = instances.get(&row.address) {
            let pods = planned.entry((*instance).clone()).or_default();
            *pods.entry(workload_key(&row.workload)).or_insert(0) += row.pods;
        }
    }
    planned
}

/// Returns the new pods that a plan places on the node at an address, by workload.
#[must_use]
pub fn planned_pods_at(plan: &Plan, address: &Address) -> BTreeMap<String, u32> {
    let rows = plan.capacity.placements.iter().filter(|row| row.address == *address);
    let mut pods = BTreeMap::new();
    for row in rows {
        *pods.entry(workload_key(&row.workload)).or_insert(0) += row.pods;
    }
    pods
}
