//! Two looks at the world: whether they show the same, and whether what was planned over one is needed by the other.

use std::sync::Arc;

use super::kept::{READY_WITHIN, later};
use crate::fleet::{Node, Observed, Pod};
use crate::ids::InstanceId;

/// Returns whether two looks show the same world, whenever they were taken.
pub(super) fn is_same(a: &Observed, b: &Observed) -> bool {
    shows_the_same(a, b) && a.exclusions == b.exclusions
}

/// Returns the same, of what looks show: what is sold out no look does.
pub(super) fn shows_the_same(a: &Observed, b: &Observed) -> bool {
    let same = |a: &Observed, b: &Observed| {
        a.sources == b.sources
            && a.instances == b.instances
            && a.nodes == b.nodes
            && a.pods == b.pods
            && a.workloads == b.workloads
            && a.groups == b.groups
    };
    same(a, b)
        && a.templates == b.templates
        && a.storage == b.storage
        && a.reservations == b.reservations
        && a.fargate_profiles == b.fargate_profiles
        && a.resolved.says_the_same(&b.resolved)
        && a.scaling == b.scaling
}

/// Returns whether nothing has come about since `before` by which a launch that was planned over it could be needed no
/// more: what is asked for is the same, whoever waited waits, nobody has left a node, no machine came that was not
/// counted with, and no node takes more than it did. Pods that came since make no launch needless, nor do nodes that
/// became Ready which were counted on.
pub(super) fn needs_as_before(before: &Observed, now: &Observed) -> bool {
    let asked_for = before.sources == now.sources
        && before.workloads == now.workloads
        && before.groups == now.groups
        && before.storage == now.storage
        && before.reservations == now.reservations
        && before.fargate_profiles == now.fargate_profiles
        && before.scaling == now.scaling;
    let known = |id: &InstanceId| before.instances.contains_key(id);
    // One that joined since was counted with as the machine that it is.
    let more = |node: &Node| match before.nodes.get(&node.name) {
        Some(was) => takes_more(before, was, node),
        None => !node.instance.as_ref().is_some_and(known),
    };
    if !asked_for || !now.instances.keys().all(known) || now.nodes.values().any(more) {
        return false;
    }
    // Pods lie in the order of their names, and most of them are the same ones.
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

/// Returns whether a node may take pods by now that a plan over `before` had no room for on it.
fn takes_more(before: &Observed, was: &Node, is: &Node) -> bool {
    let instance = was.instance.as_ref().and_then(|id| before.instances.get(id));
    let ours = instance.is_some_and(|instance| instance.is_ours(&before.cluster.name));
    // One of ours that still boots is counted on as what it will be: Ready, without its startup taints, and with the
    // labels and amounts that its daemons tell of.
    let boots = ours && before.taken_at <= later(was.created_at, READY_WITHIN);
    let grew = (is.ready && !was.ready)
        || was.taints.iter().any(|taint| !is.taints.contains(taint))
        || was.labels != is.labels
        || was.allocatable != is.allocatable;
    was.uid != is.uid || (was.unschedulable && !is.unschedulable) || (grew && !boots)
}
