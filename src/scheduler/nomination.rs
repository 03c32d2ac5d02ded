//! Reserves room for pods nominated to a node, so that pods of lower priority do not take it.
//!
//! Source: `pkg/scheduler/framework/runtime/framework.go`, `RunFilterPluginsWithNominatedPods`: a
//! pod fits only if it fits with and without the nominated pods of at least its priority.

use std::collections::BTreeMap;

use super::node_usage::BoundPod;
use super::{ClassIndex, NodeIndex, Scheduler};

impl Scheduler {
    /// Reserves room on `node` for a pod of this class. Pods of lower or equal priority are placed
    /// there only if it would still fit. [`Scheduler::schedule`] with the same class and node ends
    /// the nomination.
    pub fn nominate(&mut self, class: ClassIndex, node: NodeIndex) {
        self.nominations.push((class.0, node.0));
    }

    /// Ends a nomination. Returns false if there is none.
    pub fn withdraw_nomination(&mut self, class: ClassIndex, node: NodeIndex) -> bool {
        let nominated =
            self.nominations.iter().position(|nominated| *nominated == (class.0, node.0));
        if let Some(at) = nominated {
            self.nominations.remove(at);
            self.room_version += 1;
        }
        nominated.is_some()
    }

    /// Returns true if a pod may run on `node` without using reserved room.
    pub(super) fn admits(&mut self, class: usize, node: usize) -> bool {
        self.pod_filter(class).passes(node) && !self.is_reserved(class, node)
    }

    /// Returns true if a pod would not fit on `node` once the nominated pods of the node are bound.
    fn is_reserved(&mut self, class: usize, node: usize) -> bool {
        let on_node = self.nominations.iter().filter(|(_, nominated)| *nominated == node);
        let others = on_node.map(|(other, _)| *other);
        let others = others.filter(|other| self.priority(*other) >= self.priority(class)).collect();
        !self.fits_with(class, node, others)
    }

    /// Returns the nodes that would not fit once their nominated pods are bound.
    pub(super) fn reserved(&mut self, class: usize) -> Vec<usize> {
        if self.nominations.is_empty() {
            return Vec::new();
        }
        let mut nominated_pods: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (other, node) in &self.nominations {
            if self.priority(*other) >= self.priority(class) && self.nodes.present[*node] {
                nominated_pods.entry(*node).or_default().push(*other);
            }
        }
        nominated_pods.retain(|node, pods| !self.fits_with(class, *node, std::mem::take(pods)));
        nominated_pods.into_keys().collect()
    }

    /// Returns true if a pod fits on `node` beside further pods of these classes.
    fn fits_with(&mut self, class: usize, node: usize, others: Vec<usize>) -> bool {
        if others.is_empty() {
            return true;
        }
        let pods = others.into_iter().zip(self.bind_count..);
        let pods: Vec<BoundPod> =
            pods.map(|(class, since)| BoundPod { class, sequence: since }).collect();
        for bound in &pods {
            self.add_pod(node, *bound);
        }
        let passes = self.pod_filter(class).passes(node);
        for bound in &pods {
            self.remove_pod(node, *bound);
        }
        passes
    }
}
