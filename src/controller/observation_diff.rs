//! Comparison of two observations: whether they show the same world, and whether a plan over one is
//! still needed in the other.

use std::sync::Arc;

use super::persisted_state::READY_WITHIN;
use crate::model::ids::InstanceId;
use crate::model::observed::{Node, Observed, Pod};
use crate::model::saturating_time::later;

/// Returns whether two observations show the same world, whenever they were made.
pub(super) fn is_same_world(a: &Observed, b: &Observed) -> bool {
    is_same_observation(a, b) && a.exclusions == b.exclusions
}

/// Returns the same without exclusions: an observation does not show unavailable offerings.
///
/// An equal observation starts no plan before `REPLAN_INTERVAL`. A new field does not compile until it
/// is classified.
pub(super) fn is_same_observation(a: &Observed, b: &Observed) -> bool {
    let Observed {
        format_version: _,
        // A controller observes one cluster.
        cluster: _,
        // Time alone wakes the planner by `REPLAN_INTERVAL` and by the ends of blocked changes.
        taken_at: _,
        sources,
        instances,
        nodes,
        workloads,
        jobs,
        templates,
        pods,
        storage,
        exclusions: _,
        reservations,
        groups,
        fargate_profiles,
        // World files have it. A controller reads the market with the repository.
        market: _,
        resolved,
        scaling,
        unread,
        // The planner's own choice, which planning adds to the observation.
        planned_pods: _,
        // They are read with the repository.
        pools: _,
    } = a;
    let same_cluster = *sources == b.sources
        && *instances == b.instances
        && *nodes == b.nodes
        && *pods == b.pods
        && *workloads == b.workloads
        && *jobs == b.jobs
        && *groups == b.groups
        && *unread == b.unread;
    same_cluster
        && *templates == b.templates
        && *storage == b.storage
        && *reservations == b.reservations
        && *fargate_profiles == b.fargate_profiles
        && resolved.has_same_content(&b.resolved)
        && *scaling == b.scaling
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
    // labels and resources that its daemons report. One that was Ready before is not.
    let was_opened = || instance.is_some_and(|instance| was.was_opened(instance));
    let has_failed = !was.ready && (was.was_ready || was_opened());
    let is_booting = ours && !has_failed && before.taken_at <= later(was.created_at, READY_WITHIN);
    let has_grown = (is.ready && !was.ready)
        || was.taints.iter().any(|taint| !is.taints.contains(taint))
        || was.labels != is.labels
        || was.allocatable != is.allocatable;
    was.uid != is.uid || (was.unschedulable && !is.unschedulable) || (has_grown && !is_booting)
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::model::observed::UnreadObject;
    use crate::testing::apply::fleet;

    /// Changes an observation.
    type Edit<'e> = &'e dyn Fn(&mut Observed);

    #[test]
    fn every_change_of_the_world_wakes_the_planner() {
        let before = fleet().observed();
        let unread = |observed: &mut Observed| {
            let reason = "its requests are not known".to_owned();
            let object = "Pod web/api".to_owned();
            observed.unread.push(UnreadObject {
                object,
                reason,
                nodes: [].into(),
                hides_requests: false,
            });
        };
        let changes: [(&str, Edit<'_>); 8] = [
            ("sources", &|observed| observed.sources.clear()),
            ("instances", &|observed| drop(observed.instances.pop_last())),
            ("nodes", &|observed| {
                let node = observed.nodes.values_mut().next().expect("a node");
                node.ready = !node.ready;
            }),
            ("workloads", &|observed| drop(observed.workloads.pop().expect("a workload"))),
            ("templates", &|observed| drop(observed.templates.pop_last().expect("a template"))),
            ("pods", &|observed| drop(observed.pods.pop().expect("a pod"))),
            ("resolved", &|observed| {
                observed.resolved.images.insert("another".to_owned(), Vec::new());
            }),
            ("unread", &unread),
        ];
        for (name, change) in changes {
            let mut after = before.clone();
            change(&mut after);
            assert!(!is_same_world(&before, &after), "{name}");
            assert!(!is_same_world(&after, &before), "{name}");
        }
    }

    #[test]
    fn time_and_equal_objects_do_not_wake_the_planner() {
        let before = fleet().observed();
        let mut after = fleet().observed();
        after.taken_at = before.taken_at + SignedDuration::from_secs(5);
        after.resolved.resolved_at = Some(Timestamp::MAX);
        after.planned_pods.insert("i-1".into(), [].into());
        assert!(is_same_world(&before, &after));
    }
}
