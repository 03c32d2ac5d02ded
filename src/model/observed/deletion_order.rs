//! The order in which the controllers of Kubernetes delete surplus pods.
//!
//! Follows `getPodsToDelete` (`pkg/controller/replicaset/replica_set.go`) and `ActivePodsWithRanks`
//! (`pkg/controller/controller_utils.go`), for Jobs `ActivePods`. The number of sibling pods on a
//! node is counted once for all pods of a batch, not after each deletion.
//!
//! Two differences: restarts are not observed, and pods that became ready in the same second are
//! ordered by UID. Kubernetes orders equal pods at random.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Pod, PodPhase};
use crate::model::ids::{NodeName, Uid, WorkloadKind};

/// Pods that a controller deletes before it counts siblings the next time (`BurstReplicas`).
const BATCH_PODS: usize = 500;

/// A pod that the controller of its workload deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurplusPod<'p> {
    /// The pod.
    pub pod: &'p Pod,
    /// True if ages or UIDs alone decide between it and a pod on another node. They say little of a
    /// later time: ages are compared by their logarithm.
    pub may_stay: bool,
}

/// Facts that decide regardless of the time: bound, phase, ready, deletion cost, siblings on the
/// node. The smallest is deleted first.
type StableKey = (bool, PodPhase, bool, i32, Reverse<usize>);

/// Facts that decide between pods of equal [`StableKey`].
type AgeKey<'p> = (i64, i64, &'p Uid);

/// Returns the pods that the controller of a workload deletes, in its order. `active` are the
/// active pods of the workload. Pods of a `StatefulSet` are deleted by their ordinals instead.
pub fn surplus_pods<'p>(
    kind: WorkloadKind,
    active: impl IntoIterator<Item = &'p Pod>,
    surplus: usize,
    now: Timestamp,
) -> Vec<SurplusPod<'p>> {
    let mut left: Vec<&Pod> = active.into_iter().collect();
    let mut deleted = Vec::new();
    while deleted.len() < surplus && !left.is_empty() {
        let siblings = siblings_by_node(&left);
        let stable = |pod: &Pod| stable_key(kind, pod, &siblings);
        left.sort_by_cached_key(|pod| (stable(pod), age_key(kind, pod, now)));
        let count = (surplus - deleted.len()).min(BATCH_PODS).min(left.len());
        let last = stable(left[count - 1]);
        let tied: BTreeSet<Option<&NodeName>> =
            left.iter().filter(|pod| stable(pod) == last).map(|pod| pod.node.as_ref()).collect();
        let is_open = left.get(count).is_some_and(|next| stable(next) == last) && tied.len() > 1;
        let batch = left.iter().take(count);
        let batch = batch.map(|pod| SurplusPod {
            pod,
            may_stay: !has_known_order(kind) || is_open && stable(pod) == last,
        });
        deleted.extend(batch.collect::<Vec<_>>());
        left.drain(..count);
    }
    deleted
}

/// Returns true if the controller deletes pods in the order of a `ReplicaSet` or of a Job.
fn has_known_order(kind: WorkloadKind) -> bool {
    match kind {
        WorkloadKind::Deployment
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Rollout
        | WorkloadKind::Job => true,
        WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet
        | WorkloadKind::CronJob
        | WorkloadKind::ScaledJob
        | WorkloadKind::CapacityBuffer
        | WorkloadKind::Pod => false,
    }
}

fn siblings_by_node<'p>(pods: &[&'p Pod]) -> BTreeMap<&'p NodeName, usize> {
    let mut siblings = BTreeMap::new();
    for node in pods.iter().filter_map(|pod| pod.node.as_ref()) {
        *siblings.entry(node).or_insert(0) += 1;
    }
    siblings
}

fn stable_key(kind: WorkloadKind, pod: &Pod, siblings: &BTreeMap<&NodeName, usize>) -> StableKey {
    let here = pod.node.as_ref().and_then(|node| siblings.get(node)).copied().unwrap_or(0);
    // The Job controller compares neither costs nor siblings.
    let (cost, here) = if kind == WorkloadKind::Job { (0, 0) } else { (pod.deletion_cost, here) };
    (pod.node.is_some(), pod.phase, pod.ready_at.is_some(), cost, Reverse(here))
}

fn age_key(kind: WorkloadKind, pod: &Pod, now: Timestamp) -> AgeKey<'_> {
    if kind == WorkloadKind::Job {
        let newest_first = |at: Timestamp| -at.as_second();
        let ready = pod.ready_at.map_or(0, newest_first);
        return (ready, newest_first(pod.created_at), &pod.uid);
    }
    match pod.ready_at {
        Some(at) => (logarithmic_age(at, now), 0, &pod.uid),
        None => (0, logarithmic_age(pod.created_at, now), &pod.uid),
    }
}

/// Returns the binary logarithm of an age in nanoseconds; -1 for an age that is not positive.
fn logarithmic_age(at: Timestamp, now: Timestamp) -> i64 {
    let age = now.duration_since(at).as_nanos();
    if age > 0 { i64::from(age.ilog2()) } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world::pod;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds_ago: i64) -> Timestamp {
        Timestamp::from_second(NOW - seconds_ago).expect("a time")
    }

    /// Returns a ready pod that is as old as it is ready.
    fn ready(name: &str, node: &str, seconds: i64) -> Pod {
        Pod {
            node: Some(node.into()),
            phase: PodPhase::Running,
            uid: name.into(),
            created_at: at(seconds),
            ready_at: Some(at(seconds)),
            ..pod(name)
        }
    }

    /// Returns the names of the deleted pods, with `?` if they may stay.
    fn deleted(kind: WorkloadKind, pods: &[Pod], surplus: usize) -> Vec<String> {
        let surplus = surplus_pods(kind, pods, surplus, at(0)).into_iter();
        surplus
            .map(|one| format!("{}{}", one.pod.name, if one.may_stay { "?" } else { "" }))
            .collect()
    }

    #[test]
    fn pods_are_deleted_in_the_order_of_kubernetes() {
        let base = || ready("x", "n1", 9_000);
        let named = |name: &str, pod: Pod| Pod { name: name.into(), uid: name.into(), ..pod };
        let pods = [
            named("h", ready("h", "n2", 9_000)),
            named("g", Pod { deletion_cost: 5, ..ready("g", "n3", 1) }),
            named("f", base()),
            named("e", ready("e", "n1", 1_000)),
            named("d", Pod { deletion_cost: -5, ..base() }),
            named("c", Pod { ready_at: None, ..base() }),
            named("b", Pod { phase: PodPhase::Pending, ready_at: None, ..base() }),
            named("a", Pod { node: None, phase: PodPhase::Pending, ready_at: None, ..base() }),
        ];
        let all = ["a", "b", "c", "d", "e", "f", "h", "g"];
        for surplus in 0..=all.len() {
            assert_eq!(deleted(WorkloadKind::Deployment, &pods, surplus), all[..surplus]);
        }
    }

    #[test]
    fn siblings_are_counted_once_for_all_deletions() {
        let pods: Vec<Pod> = [("a", "n1"), ("b", "n1"), ("c", "n1"), ("d", "n2"), ("e", "n2")]
            .map(|(name, node)| ready(name, node, 50))
            .into();
        // After one deletion, both nodes have two pods. The first node loses all of its pods.
        assert_eq!(deleted(WorkloadKind::ReplicaSet, &pods, 3), ["a", "b", "c"]);
    }

    #[test]
    fn pod_that_ages_alone_decide_on_may_stay() {
        let pods = [ready("b", "n1", 1_000), ready("a", "n2", 1_010), ready("c", "n3", 3_000)];
        // Ages in one power of two are compared by UID, other ages by their logarithm.
        assert_eq!(deleted(WorkloadKind::Deployment, &pods, 2), ["a?", "b?"]);
        assert_eq!(deleted(WorkloadKind::Deployment, &pods, 3), ["a", "b", "c"]);
        let one_node = [ready("b", "n1", 50), ready("a", "n1", 50)];
        assert_eq!(deleted(WorkloadKind::Deployment, &one_node, 1), ["a"]);
        assert_eq!(deleted(WorkloadKind::ScaledJob, &one_node, 1), ["a?"]);
    }

    #[test]
    fn jobs_delete_the_pod_that_became_ready_last() {
        let pods = [ready("a", "n1", 50), ready("b", "n1", 40), ready("c", "n2", 20)];
        assert_eq!(deleted(WorkloadKind::Job, &pods, 2), ["c?", "b?"]);
    }
}
