//! Removals that the removal budget does not count: no pod runs on their nodes.

use std::collections::BTreeSet;

use super::{GateContext, retire_reason};
use crate::controller::reconcile::{instance_of, retired_rows};
use crate::model::ids::{Address, InstanceId, NodeName};
use crate::model::observed::{Node, Observed};
use crate::plan::Plan;
use crate::plan::wire::RetireReason;

/// Returns the instances that the plan removes as empty, and whose nodes ran no pod but their own,
/// both when the plan was made and in the newest observation. A pod that still stops counts. A
/// budget of zero forbids these removals too.
pub(in super::super) fn removals_without_pods(
    plan: &Plan,
    context: &GateContext<'_>,
) -> BTreeSet<InstanceId> {
    if context.revision.controller.removals.limit_for(context.nodes) == 0 {
        return BTreeSet::new();
    }
    let explained = plan.capacity.explain.iter();
    let empty: BTreeSet<&Address> = explained
        .filter(|row| matches!(retire_reason(row), Some(RetireReason::Empty { .. })))
        .map(|row| &row.address)
        .collect();
    let removed = retired_rows(plan).filter(|row| empty.contains(&row.address));
    let mut removed: BTreeSet<InstanceId> = removed.filter_map(instance_of).collect();
    for observed in [context.planned, context.observed] {
        if removed.is_empty() {
            break;
        }
        let without_pods = instances_without_pods(observed);
        removed.retain(|instance| without_pods.contains(instance));
    }
    removed
}

/// Returns the instances with a node on which no pod runs but those of the node. Pods of an
/// instance without a node are unknown.
fn instances_without_pods(observed: &Observed) -> BTreeSet<&InstanceId> {
    let pods = observed.pods.iter().filter(|pod| pod.needs_eviction());
    let nodes_with_pods: BTreeSet<&NodeName> = pods.filter_map(|pod| pod.node.as_ref()).collect();
    let (occupied, free): (Vec<&Node>, Vec<&Node>) =
        observed.nodes.values().partition(|node| nodes_with_pods.contains(&node.name));
    let occupied: BTreeSet<&InstanceId> =
        occupied.into_iter().filter_map(|node| node.instance.as_ref()).collect();
    let free = free.into_iter().filter_map(|node| node.instance.as_ref());
    free.filter(|instance| !occupied.contains(instance)).collect()
}
