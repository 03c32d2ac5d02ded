//! Removals that the removal budget does not count: no pod runs on their nodes.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{GateContext, retire_reason};
use crate::controller::mass_removal::removals_at_once;
use crate::controller::reconcile::{instance_of, retired_rows};
use crate::model::ids::{Address, InstanceId, NodeName};
use crate::model::observed::{Node, Observed};
use crate::model::saturating_time::later;
use crate::plan::Plan;
use crate::plan::wire::RetireReason;

/// Minimum age of nodes that the removal budget does not count.
const AGE_MIN: SignedDuration = SignedDuration::from_mins(10);

/// Returns the instances that the plan removes as empty, and whose nodes ran no pod but their own,
/// both when the plan was made and in the newest observation. A pod that still stops counts. A
/// budget of zero forbids these removals too. Younger nodes count: their launches failed their
/// purpose, and fast removals would lead to fast launches.
///
/// The budget counts every removal while more nodes run no pod than may be removed at once: the API
/// server may list too few pods. All nodes count, and not only those of the plan. Otherwise, plans
/// around blocked changes would never count.
pub(in super::super) fn removals_without_pods(
    plan: &Plan,
    context: &GateContext<'_>,
) -> BTreeSet<InstanceId> {
    let mut removed = removed_as_empty(plan);
    let is_forbidden = context.revision.controller.removals.limit_for(context.nodes) == 0;
    if removed.is_empty() || is_forbidden {
        return BTreeSet::new();
    }
    let without_pods = instances_without_pods(context.observed);
    let most = usize::try_from(removals_at_once(context)).unwrap_or(usize::MAX);
    if without_pods.len() > most {
        return BTreeSet::new();
    }
    let planned_without_pods = instances_without_pods(context.planned);
    let young = young_instances(context.observed);
    removed.retain(|id| {
        without_pods.contains(id) && planned_without_pods.contains(id) && !young.contains(id)
    });
    removed
}

/// Returns the instances whose node has existed for a short time.
fn young_instances(observed: &Observed) -> BTreeSet<&InstanceId> {
    let nodes = observed.nodes.values();
    let young = nodes.filter(|node| observed.taken_at < later(node.created_at, AGE_MIN));
    young.filter_map(|node| node.instance.as_ref()).collect()
}

fn removed_as_empty(plan: &Plan) -> BTreeSet<InstanceId> {
    let explained = plan.capacity.explain.iter();
    let empty: BTreeSet<&Address> = explained
        .filter(|row| matches!(retire_reason(row), Some(RetireReason::Empty { .. })))
        .map(|row| &row.address)
        .collect();
    let removed = retired_rows(plan).filter(|row| empty.contains(&row.address));
    removed.filter_map(instance_of).collect()
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
