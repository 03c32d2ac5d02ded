//! Room that is held for pods nominated to a node, so that pods of lower priority do not take it.
//!
//! Source: `pkg/scheduler/framework/runtime/framework.go`, `RunFilterPluginsWithNominatedPods`:
//! a pod fits only if it fits with and without the nominated pods of at least its priority.

use std::collections::BTreeMap;

use super::load::Bound;
use super::{ClassIndex, NodeIndex, Scheduler};

impl Scheduler {
    /// Holds room on `node` for a pod of this class: pods of lower or equal priority go there only
    /// if it would still fit. [`Scheduler::schedule`] with the same class and node ends that.
    pub fn nominate(&mut self, class: ClassIndex, node: NodeIndex) {
        self.nominations.push((class.0, node.0));
    }

    /// Ends a nomination; returns whether there was one.
    pub fn withdraw(&mut self, class: ClassIndex, node: NodeIndex) -> bool {
        let held = self.nominations.iter().position(|held| *held == (class.0, node.0));
        if let Some(at) = held {
            self.nominations.remove(at);
            self.eased += 1;
        }
        held.is_some()
    }

    /// Returns whether a pod may run on `node`, room that is held left alone.
    pub(super) fn admits(&mut self, class: usize, node: usize) -> bool {
        self.gate(class).passes(node) && !self.reserved(class).contains(&node)
    }

    /// Returns the nodes that would not fit once the pods nominated there had come.
    pub(super) fn reserved(&mut self, class: usize) -> Vec<usize> {
        let mut coming: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (other, node) in &self.nominations {
            if self.priority(*other) >= self.priority(class) && self.ground.present[*node] {
                coming.entry(*node).or_default().push(*other);
            }
        }
        let fits_not = |(node, pods): (usize, Vec<usize>)| {
            let pods = pods.into_iter().zip(self.bound..);
            let pods: Vec<Bound> = pods.map(|(class, since)| Bound { class, since }).collect();
            for bound in &pods {
                self.place(node, *bound);
            }
            let passes = self.gate(class).passes(node);
            for bound in &pods {
                self.lift(node, *bound);
            }
            (!passes).then_some(node)
        };
        coming.into_iter().filter_map(fits_not).collect()
    }
}
