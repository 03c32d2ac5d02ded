//! Comparison of two observations: whether they show the same world, and whether a plan over one is
//! still needed in the other.

use std::sync::Arc;

use super::persisted_state::{READY_WITHIN, later};
use crate::model::ids::InstanceId;
use crate::model::observed::{Node, Observed, Pod};

/// Returns whether two observations show the same world, whenever they were made.
pub(super) fn is_same_world(a: &Observed, b: &Observed) -> bool {
    is_same_observation(a, b) && a.exclusions == b.exclusions
}

/// Returns the same without exclusions: an observation does not show sold-out offerings.
pub(super) fn is_same_observation(a: &Observed, b: &Observed) -> bool {
    let same = |a: &Observed, b: &Observed| {
        a.sources == b.sources
            && a.instances == b.instances
            && a.nodes == b.nodes
            && a.pods == b.pods
            && a.workloads == b.workloads
            && a.groups == b.groups
            && a.unread == b.unread
    };
    same(a, b)
        && a.templates == b.templates
        && a.storage == b.storage
        && a.reservations == b.reservations
        && a.fargate_profiles == b.fargate_profiles
        && a.resolved.has_same_content(&b.resolved)
        && a.scaling == b.scaling
}

/// Returns whether a launch planned over `before` is still needed. The requested capacity is the
/// same, every pending pod still waits, no pod has left its node, no unplanned instance appeared,
/// and no node has more room. New pods make no launch needless, nor do planned nodes that became
/// Ready.
pub(super) fn is_demand_unchanged(before: &Observed, now: &Observed) -> bool {
    let asked_for = before.sources == now.sources
        && before.workloads == now.workloads
        && before.groups == now.groups
        && before.storage == now.storage
        && before.reservations == now.reservations
        && before.fargate_profiles == now.fargate_profiles
        && before.scaling == now.scaling;
    let known = |id: &InstanceId| before.instances.contains_key(id);
    // A node that joined since was planned as its instance.
    let more = |node: &Node| match before.nodes.get(&node.name) {
        Some(was) => offers_more(before, was, node),
        None => !node.instance.as_ref().is_some_and(known),
    };
    if !asked_for || !now.instances.keys().all(known) || now.nodes.values().any(more) {
        return false;
    }
    // Pods are sorted by name, and most of them are unchanged.
    let mut pods = now.pods.iter().peekable();
    let stays = |pod: &Arc<Pod>| {
        let comes_first =
            |found: &Pod| (&found.namespace, &found.name) < (&pod.namespace, &pod.name);
        while pods.next_if(|found| !Arc::ptr_eq(found, pod) && comes_first(found)).is_some() {}
        let found = pods.next().filter(|found| found.uid == pod.uid && found.is_active());
        found.is_some_and(|found| found.node == pod.node && found.template == pod.template)
    };
    before.pods.iter().filter(|pod| pod.is_active()).all(stays)
}

/// Returns whether a node may now take pods for which a plan over `before` had no room on it.
fn offers_more(before: &Observed, was: &Node, is: &Node) -> bool {
    let instance = was.instance.as_ref().and_then(|id| before.instances.get(id));
    let ours = instance.is_some_and(|instance| instance.is_managed_by(&before.cluster.name));
    // A booting node of ours is planned as it will be: Ready, without startup taints, and with the
    // labels and resources that its daemons report.
    let is_booting = ours && before.taken_at <= later(was.created_at, READY_WITHIN);
    let has_grown = (is.ready && !was.ready)
        || was.taints.iter().any(|taint| !is.taints.contains(taint))
        || was.labels != is.labels
        || was.allocatable != is.allocatable;
    was.uid != is.uid || (was.unschedulable && !is.unschedulable) || (has_grown && !is_booting)
}
