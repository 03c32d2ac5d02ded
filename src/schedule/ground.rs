//! What pods that come and go leave as it is: nodes, their domains, and how pods with different
//! wishes see them.

use std::collections::BTreeMap;

use super::ScheduleNode;
use super::place::View;
use super::spread::{Arena, Counting};
use super::topology::{Step, Topology};
use crate::demand::NodeChoice;
use crate::ids::{LabelKey, NodeName};
use crate::pod::{NodeInclusion, Toleration};

/// The nodes, and everything worked out from them alone.
#[derive(Debug, Clone, Default)]
pub(super) struct Ground {
    pub(super) nodes: Vec<ScheduleNode>,
    /// Whether a node is still there; its index is never given to another.
    pub(super) present: Vec<bool>,
    pub(super) by_name: BTreeMap<NodeName, usize>,
    pub(super) topologies: Vec<Topology>,
    pub(super) views: Vec<View>,
    pub(super) arenas: Vec<Arena>,
    view_index: BTreeMap<(NodeChoice, Vec<Toleration>), usize>,
    countings: Vec<(Counting, Vec<bool>)>,
    counting_index: BTreeMap<Counting, usize>,
    arena_index: BTreeMap<(usize, usize), usize>,
}

impl Ground {
    /// Adds a node whose name is new.
    pub(super) fn add(&mut self, node: ScheduleNode) -> usize {
        let index = self.nodes.len();
        self.by_name.insert(node.name.clone(), index);
        self.topologies.iter_mut().for_each(|topology| topology.push(&node.labels));
        self.views.iter_mut().for_each(|view| view.judge(index, &node));
        self.countings.iter_mut().for_each(|(_, counts)| counts.push(false));
        self.nodes.push(node);
        self.present.push(true);
        self.recount(index);
        index
    }

    /// Takes a node out; its index stays taken.
    pub(super) fn remove(&mut self, node: usize) {
        self.by_name.remove(&self.nodes[node].name);
        self.present[node] = false;
    }

    /// Cordons a node, or lifts the cordon.
    pub(super) fn set_unschedulable(&mut self, node: usize, unschedulable: bool) {
        self.nodes[node].unschedulable = unschedulable;
        for view in &mut self.views {
            view.judge(node, &self.nodes[node]);
        }
    }

    /// Judges anew for which constraints `node` counts; returns what changed and how.
    pub(super) fn recount(&mut self, node: usize) -> Vec<(usize, Step)> {
        let mut turned = Vec::new();
        for index in 0..self.countings.len() {
            let counts = self.counts(&self.countings[index].0, node);
            if std::mem::replace(&mut self.countings[index].1[node], counts) != counts {
                turned.push((index, if counts { Step::Bind } else { Step::Unbind }));
            }
        }
        for (counting, step) in &turned {
            for arena in self.arenas.iter_mut().filter(|arena| arena.counting == *counting) {
                if let Some(domain) = self.topologies[arena.topology].domain(node) {
                    arena.step(domain, *step);
                }
            }
        }
        turned
    }

    /// Returns the domain in which `node` counts for the constraints of `arena`.
    pub(super) fn counted_domain(&self, arena: usize, node: usize) -> Option<u32> {
        let Arena { counting, topology, .. } = self.arenas[arena];
        let counts = self.countings[counting].1[node];
        self.topologies[topology].domain(node).filter(|_| counts)
    }

    pub(super) fn topology(&mut self, key: &LabelKey) -> usize {
        let known = self.topologies.iter().position(|topology| topology.key == *key);
        known.unwrap_or_else(|| {
            let mut topology = Topology::new(key.clone());
            self.nodes.iter().for_each(|node| topology.push(&node.labels));
            self.topologies.push(topology);
            self.topologies.len() - 1
        })
    }

    pub(super) fn view(&mut self, choice: &NodeChoice, tolerations: &[Toleration]) -> usize {
        let seen_by = (choice.clone(), tolerations.to_vec());
        if let Some(index) = self.view_index.get(&seen_by) {
            return *index;
        }
        let mut view = View::new(choice, tolerations);
        self.nodes.iter().enumerate().for_each(|(index, node)| view.judge(index, node));
        self.views.push(view);
        self.view_index.insert(seen_by, self.views.len() - 1);
        self.views.len() - 1
    }

    /// Makes the nodes known that count as `counting` says, with their domains in `topology`.
    pub(super) fn arena(&mut self, counting: Counting, topology: usize) -> usize {
        let counting = self.counting(counting);
        if let Some(index) = self.arena_index.get(&(counting, topology)) {
            return *index;
        }
        let mut arena = Arena::new(counting, topology);
        let counts = self.countings[counting].1.iter().enumerate().filter(|(_, counts)| **counts);
        for domain in counts.filter_map(|(node, _)| self.topologies[topology].domain(node)) {
            arena.step(domain, Step::Bind);
        }
        self.arenas.push(arena);
        self.arena_index.insert((counting, topology), self.arenas.len() - 1);
        self.arenas.len() - 1
    }

    fn counting(&mut self, counting: Counting) -> usize {
        if let Some(index) = self.counting_index.get(&counting) {
            return *index;
        }
        let counts = (0..self.nodes.len()).map(|node| self.counts(&counting, node)).collect();
        self.countings.push((counting.clone(), counts));
        self.counting_index.insert(counting, self.countings.len() - 1);
        self.countings.len() - 1
    }

    fn counts(&self, counting: &Counting, node: usize) -> bool {
        let honors = |policy, passes| policy == NodeInclusion::Ignore || passes;
        let included = counting.view.is_none_or(|view| {
            let view = self.views[view].node(node);
            honors(counting.affinity, view.chosen) && honors(counting.taints, view.tolerated)
        });
        let has_key = |topology: &usize| self.topologies[*topology].domain(node).is_some();
        self.present[node] && included && counting.keys.iter().all(has_key)
    }
}
