//! Since when each node has kept the pods that it has: what `consolidateAfter` counts from.
//!
//! A world shows who is where, and not since when; the loop sees one look after the other. Invariants:
//! one entry for each node that is there; a node that is seen for the first time counts from then, so that
//! a process that begins consolidates nothing too early.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;

use crate::fleet::{Observed, Pod};
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
        let nodes = world.nodes.values();
        let now_there: BTreeMap<InstanceId, u64> = nodes
            .filter_map(|node| {
                let sum = pods.get(&node.name).copied().unwrap_or_default();
                Some((node.instance.clone()?, sum))
            })
            .collect();
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
