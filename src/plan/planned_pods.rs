//! Pods that a plan places on instances.

use std::collections::BTreeMap;

use super::Plan;
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::PlannedPods;

/// Returns the pods of each existing instance after a plan, those that run there included.
pub fn planned_pods(plan: &Plan) -> PlannedPods {
    planned_pods_on(plan, |_| true)
}

/// Returns the same for the wanted instances alone.
pub fn planned_pods_on(plan: &Plan, is_wanted: impl Fn(&InstanceId) -> bool) -> PlannedPods {
    let rows = plan.resource_changes.iter();
    let instances: BTreeMap<&Address, &InstanceId> = rows
        .filter_map(|row| Some((&row.address, row.change.before.as_ref()?.instance_id.as_ref()?)))
        .filter(|(_, instance)| is_wanted(instance))
        .collect();
    if instances.is_empty() {
        return PlannedPods::new();
    }
    let explained = plan.capacity.explain.iter();
    let planned = explained.filter_map(|row| {
        let instance = instances.get(&row.address)?;
        let pods = row.pods.iter().map(|(workload, pods)| (workload.to_string(), *pods));
        Some(((*instance).clone(), pods.collect()))
    });
    planned.collect()
}

/// Returns the pods that a plan places on the node at an address, by workload.
pub fn planned_pods_at(plan: &Plan, address: &Address) -> BTreeMap<String, u32> {
    let rows = plan.capacity.explain.iter().filter(|row| row.address == *address);
    let pods = rows.flat_map(|row| &row.pods);
    pods.map(|(workload, pods)| (workload.to_string(), *pods)).collect()
}
