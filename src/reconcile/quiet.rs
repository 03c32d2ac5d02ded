//! Since when each node has kept the pods that it has: what `consolidateAfter` counts from.
//!
//! A world shows who is where, and not since when; the loop sees one look after the other. Invariants:
//! one entry for each node that is there; a node that is seen for the first time counts from then, so that
//! a process that begins consolidates nothing too early.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;

use crate::fleet::{Node, Observed, Pod};
use crate::ids::{InstanceId, NodeName};

/// Nodes, by machine, and since when no pod came or left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Quiet {
    seen: BTreeMap<InstanceId, u64>,
    since: BTreeMap<InstanceId, Timestamp>,
}

impl Quiet {
    /// Notes which pods are where.
    pub(super) fn look(&mut self, world: &Observed, now: Timestamp) {
        let mut pods: BTreeMap<&NodeName, u64> = BTreeMap::new();
        for pod in &world.pods {
            if let Some(node) = pod.node.as_ref().filter(|_| counts(pod)) {
                // Of a sum it does not matter in which order pods are listed.
                let sum = pods.entry(node).or_default();
                *sum = sum.wrapping_add(mark(pod));
            }
        }
        let nodes = world.nodes_by_instance().into_iter();
        let sum = |node: &Node| pods.get(&node.name).copied().unwrap_or_default();
        let now_there: BTreeMap<InstanceId, u64> =
            nodes.map(|(instance, node)| (instance.clone(), sum(node))).collect();
        self.since.retain(|id, _| now_there.contains_key(id));
        for (id, sum) in &now_there {
            if self.seen.get(id) != Some(sum) {
                self.since.insert(id.clone(), now);
            }
        }
        // A clock that was set back makes nothing quiet from a moment that is yet to come.
        self.since.values_mut().for_each(|since| *since = (*since).min(now));
        self.seen = now_there;
    }

    /// Returns since when each machine has been quiet.
    pub(super) fn since(&self) -> &BTreeMap<InstanceId, Timestamp> {
        &self.since
    }
}

/// Returns whether a pod that comes or goes is news of its node: pods that belong to it are not.
fn counts(pod: &Pod) -> bool {
    pod.is_active() && !pod.belongs_to_node()
}

fn mark(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    pod.uid.hash(&mut hasher);
    // No pod is no more than nothing.
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{ClusterIdentity, Node, PodPhase};
    use crate::ids::{WorkloadId, WorkloadKind};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    fn pod(uid: &str, kind: WorkloadKind, node: &str, phase: PodPhase) -> Pod {
        let owner = WorkloadId { namespace: "web".into(), kind, name: "api".into() };
        Pod {
            namespace: "web".into(),
            name: uid.into(),
            uid: uid.into(),
            owner: Some(owner),
            template: "t".to_owned(),
            node: Some(node.into()),
            phase,
            created_at: at(0),
            terminating: false,
            mirror: false,
            started_at: None,
            granted: [].into(),
        }
    }

    fn world(nodes: &[&str], pods: &[Pod]) -> Observed {
        let mut world = Observed::empty(ClusterIdentity::default(), at(0));
        for name in nodes {
            let node = Node {
                name: (*name).into(),
                uid: (*name).into(),
                instance: Some(format!("i-{name}").into()),
                labels: [].into(),
                annotations: [].into(),
                taints: Vec::new(),
                capacity: crate::units::Resources::default(),
                allocatable: crate::units::Resources::default(),
                ready: true,
                faults: [].into(),
                unschedulable: false,
                created_at: at(0),
            };
            world.nodes.insert(node.name.clone(), node);
        }
        world.pods = pods.iter().cloned().map(Into::into).collect();
        world
    }

    #[test]
    fn a_node_is_quiet_since_a_pod_that_counts_last_came_or_left() {
        let api =
            |uid: &str, node: &str| pod(uid, WorkloadKind::Deployment, node, PodPhase::Running);
        let agent = |uid: &str| pod(uid, WorkloadKind::DaemonSet, "a", PodPhase::Running);
        let done = |uid: &str| pod(uid, WorkloadKind::Job, "a", PodPhase::Succeeded);
        let mut quiet = Quiet::default();
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
            (80, &["a"], vec![api("1", "a")], Some(70), "what was done is cleared away"),
            (90, &[], vec![], None, "the node went"),
            (100, &["a"], vec![], Some(100), "one of its name came"),
        ] {
            quiet.look(&world(nodes, &pods), at(seconds));
            assert_eq!(quiet.since().get("i-a").copied(), since.map(at), "{what}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_node_quiet_from_a_moment_to_come() {
        let mut quiet = Quiet::default();
        quiet.look(&world(&["a"], &[]), at(500));
        quiet.look(&world(&["a"], &[]), at(100));
        assert_eq!(quiet.since().values().collect::<Vec<_>>(), [&at(100)]);
    }
}
