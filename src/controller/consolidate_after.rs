//! Time of the last pod event of each node: the start of `consolidateAfter`.
//!
//! One observation shows where pods run but not since when, so successive observations are
//! compared. Invariants: each existing node has one entry. A new node counts from its first
//! observation, so a restarted process consolidates nothing too early.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;

use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{Node, Observed, Pod};

/// Hash of the pods on each node, and the time of the last pod event, by instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PodEventTimes {
    pod_hashes: BTreeMap<InstanceId, u64>,
    since: BTreeMap<InstanceId, Timestamp>,
}

impl PodEventTimes {
    /// Records the pods on each node.
    pub(super) fn observe(&mut self, world: &Observed, now: Timestamp) {
        let mut pods: BTreeMap<&NodeName, u64> = BTreeMap::new();
        for pod in &world.pods {
            if let Some(node) = pod.node.as_ref().filter(|_| is_pod_event(pod)) {
                // A sum does not depend on the order of the pods.
                let sum = pods.entry(node).or_default();
                *sum = sum.wrapping_add(pod_hash(pod));
            }
        }
        let nodes = world.nodes_by_instance().into_iter();
        let sum = |node: &Node| pods.get(&node.name).copied().unwrap_or_default();
        let hashes: BTreeMap<InstanceId, u64> =
            nodes.map(|(instance, node)| (instance.clone(), sum(node))).collect();
        self.since.retain(|id, _| hashes.contains_key(id));
        for (id, sum) in &hashes {
            if self.pod_hashes.get(id) != Some(sum) {
                self.since.insert(id.clone(), now);
            }
        }
        // After a clock is set back, no pod event lies in the future.
        self.since.values_mut().for_each(|since| *since = (*since).min(now));
        self.pod_hashes = hashes;
    }

    /// Returns the time of the last pod event, by instance.
    pub(super) fn last_pod_event(&self) -> &BTreeMap<InstanceId, Timestamp> {
        &self.since
    }
}

/// Returns whether the arrival or departure of a pod is a pod event: pods that belong to the node
/// are not.
fn is_pod_event(pod: &Pod) -> bool {
    pod.is_active() && !pod.is_node_bound()
}

fn pod_hash(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    pod.uid.hash(&mut hasher);
    // A pod never hashes to zero, the sum of no pods.
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::{WorkloadId, WorkloadKind};
    use crate::model::observed::{Node, PodPhase};
    use crate::testing::controller::at;
    use crate::testing::pods::deployment;
    use crate::testing::world;

    fn pod(uid: &str, kind: WorkloadKind, node: &str, phase: PodPhase) -> Pod {
        let owner = WorkloadId { kind, ..deployment("web", "api") };
        Pod { phase, ..world::pod(uid).owned_by(&owner).on(node) }
    }

    fn world(nodes: &[&str], pods: &[Pod]) -> Observed {
        let world = Observed::of_cluster("", at(0)).with_pods(pods.iter().cloned());
        nodes.iter().fold(world, |world, name| {
            let instance = Some(format!("i-{name}").into());
            world.with_node(Node { instance, ..world::node(name) })
        })
    }

    #[test]
    fn last_pod_event_ignores_pods_of_the_node() {
        let api =
            |uid: &str, node: &str| pod(uid, WorkloadKind::Deployment, node, PodPhase::Running);
        let agent = |uid: &str| pod(uid, WorkloadKind::DaemonSet, "a", PodPhase::Running);
        let done = |uid: &str| pod(uid, WorkloadKind::Job, "a", PodPhase::Succeeded);
        let mut times = PodEventTimes::default();
        for (seconds, nodes, pods, since, what) in [
            (0, &["a"][..], vec![], Some(0), "it is seen for the first time"),
            (10, &["a"], vec![api("1", "a")], Some(10), "a pod came"),
            (20, &["a"], vec![api("1", "a"), agent("2")], Some(10), "a pod of the node came"),
            (
                30,
                &["a", "b"],
                vec![agent("2"), api("1", "a"), api("3", "b")],
                Some(10),
                "elsewhere",
            ),
            (40, &["a"], vec![api("3", "a"), api("1", "a")], Some(40), "another came"),
            (50, &["a"], vec![api("1", "a"), api("3", "a")], Some(40), "in another order"),
            (60, &["a"], vec![api("1", "a"), api("4", "a")], Some(60), "one for another"),
            (70, &["a"], vec![api("1", "a"), done("4")], Some(70), "one is done"),
            (80, &["a"], vec![api("1", "a")], Some(70), "the completed pod is deleted"),
            (90, &[], vec![], None, "the node went"),
            (100, &["a"], vec![], Some(100), "one of its name came"),
        ] {
            times.observe(&world(nodes, &pods), at(seconds));
            assert_eq!(times.last_pod_event().get("i-a").copied(), since.map(at), "{what}");
        }
    }

    #[test]
    fn clock_set_back_leaves_no_pod_event_in_the_future() {
        let mut times = PodEventTimes::default();
        times.observe(&world(&["a"], &[]), at(500));
        times.observe(&world(&["a"], &[]), at(100));
        assert_eq!(times.last_pod_event().values().collect::<Vec<_>>(), [&at(100)]);
    }
}
