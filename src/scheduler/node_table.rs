//! Nodes and all data derived from them alone: topology domains, and node views of pods.

use std::collections::BTreeMap;

use super::ScheduleNode;
use super::node_view::NodeViews;
use super::topology::{CountUpdate, Topology};
use super::topology_spread::{CountingPolicy, EligibleDomains};
use crate::demand::NodeChoice;
use crate::model::ids::{LabelKey, NodeName};
use crate::model::pod::{NodeInclusion, Toleration};

/// Nodes and all data derived from them alone.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeTable {
    pub(super) nodes: Vec<ScheduleNode>,
    /// True while a node exists; its index is never reused.
    pub(super) present: Vec<bool>,
    pub(super) by_name: BTreeMap<NodeName, usize>,
    pub(super) topologies: Vec<Topology>,
    pub(super) views: Vec<NodeViews>,
    pub(super) eligible_domains: Vec<EligibleDomains>,
    view_index: BTreeMap<(NodeChoice, Vec<Toleration>), usize>,
    policies: Vec<(CountingPolicy, Vec<bool>)>,
    policy_index: BTreeMap<CountingPolicy, usize>,
    eligible_domains_index: BTreeMap<(usize, usize), usize>,
}

impl NodeTable {
    /// Adds a node whose name is new.
    pub(super) fn add(&mut self, node: ScheduleNode) -> usize {
        let index = self.nodes.len();
        self.by_name.insert(node.name.clone(), index);
        self.topologies.iter_mut().for_each(|topology| topology.push(&node.labels));
        self.views.iter_mut().for_each(|view| view.update(index, &node));
        self.policies.iter_mut().for_each(|(_, counts)| counts.push(false));
        self.nodes.push(node);
        self.present.push(true);
        self.update_counting(index);
        index
    }

    /// Removes a node; its index stays reserved.
    pub(super) fn remove(&mut self, node: usize) {
        self.by_name.remove(&self.nodes[node].name);
        self.present[node] = false;
    }

    /// Cordons or uncordons a node.
    pub(super) fn set_unschedulable(&mut self, node: usize, unschedulable: bool) {
        self.nodes[node].unschedulable = unschedulable;
        for view in &mut self.views {
            view.update(node, &self.nodes[node]);
        }
    }

    /// Updates the policies that count `node`, and returns the changes.
    pub(super) fn update_counting(&mut self, node: usize) -> Vec<(usize, CountUpdate)> {
        let mut changed = Vec::new();
        for index in 0..self.policies.len() {
            let counts = self.counts(&self.policies[index].0, node);
            if std::mem::replace(&mut self.policies[index].1[node], counts) != counts {
                changed.push((index, if counts { CountUpdate::Add } else { CountUpdate::Remove }));
            }
        }
        for (counting, step) in &changed {
            for arena in self.eligible_domains.iter_mut().filter(|arena| arena.policy == *counting)
            {
                if let Some(domain) = self.topologies[arena.topology].domain(node) {
                    arena.update(domain, *step);
                }
            }
        }
        changed
    }

    /// Returns the domain in which `node` counts for spread constraints, if it counts.
    pub(super) fn counted_domain(&self, arena: usize, node: usize) -> Option<u32> {
        let EligibleDomains { policy: counting, topology, .. } = self.eligible_domains[arena];
        let counts = self.policies[counting].1[node];
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
        let key = (choice.clone(), tolerations.to_vec());
        if let Some(index) = self.view_index.get(&key) {
            return *index;
        }
        let mut view = NodeViews::new(choice, tolerations);
        self.nodes.iter().enumerate().for_each(|(index, node)| view.update(index, node));
        self.views.push(view);
        self.view_index.insert(key, self.views.len() - 1);
        self.views.len() - 1
    }

    /// Adds the domains of `topology` with nodes that count under a policy.
    pub(super) fn eligible_domains(&mut self, counting: CountingPolicy, topology: usize) -> usize {
        let counting = self.policy(counting);
        if let Some(index) = self.eligible_domains_index.get(&(counting, topology)) {
            return *index;
        }
        let mut arena = EligibleDomains::new(counting, topology);
        let counts = self.policies[counting].1.iter().enumerate().filter(|(_, counts)| **counts);
        for domain in counts.filter_map(|(node, _)| self.topologies[topology].domain(node)) {
            arena.update(domain, CountUpdate::Add);
        }
        self.eligible_domains.push(arena);
        self.eligible_domains_index.insert((counting, topology), self.eligible_domains.len() - 1);
        self.eligible_domains.len() - 1
    }

    fn policy(&mut self, counting: CountingPolicy) -> usize {
        if let Some(index) = self.policy_index.get(&counting) {
            return *index;
        }
        let counts = (0..self.nodes.len()).map(|node| self.counts(&counting, node)).collect();
        self.policies.push((counting.clone(), counts));
        self.policy_index.insert(counting, self.policies.len() - 1);
        self.policies.len() - 1
    }

    fn counts(&self, counting: &CountingPolicy, node: usize) -> bool {
        let honors = |policy, passes| policy == NodeInclusion::Ignore || passes;
        let included = counting.views.is_none_or(|view| {
            let view = self.views[view].node(node);
            honors(counting.affinity, view.affinity_matches)
                && honors(counting.taints, view.tolerated)
        });
        let has_key = |topology: &usize| self.topologies[*topology].domain(node).is_some();
        self.present[node] && included && counting.keys.iter().all(has_key)
    }
}
