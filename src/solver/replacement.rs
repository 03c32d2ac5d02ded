//! Groups launches with the nodes whose pods they take over: batches that belong together.

use std::collections::BTreeMap;

use super::existing_node::ExistingNode;
use super::node_disposition::NodeDisposition;
use super::problem::Placements;
use super::target_fleet::{Launch, NodeRef};
use crate::demand::PodGroup;
use crate::model::ids::NodeName;
use crate::model::reason::{LaunchReason, RetireReason};
use crate::model::units::MicroUsd;

/// Nodes to remove and the nodes launched in their place.
#[derive(Debug, Clone)]
pub(super) struct ReplacementBatch {
    /// Hourly saving. It is negative if the batch also makes room for more pods.
    pub saves: MicroUsd,
    /// Number of running pods that move.
    pub moves: u32,
    /// A node that is removed regardless of the saving, and its reason.
    pub mandatory: Option<(NodeName, RetireReason)>,
}

/// All batches of a target.
#[derive(Debug, Default)]
pub(super) struct ReplacementBatches {
    /// The batches, in the order of their first removed node.
    pub batches: Vec<ReplacementBatch>,
    /// Batch of each removed node, if it belongs to one.
    pub by_node: BTreeMap<usize, usize>,
    /// Batch of each launch, if it belongs to one.
    pub by_launch: BTreeMap<usize, usize>,
}

pub(super) struct ReplacementInput<'a> {
    pub existing: &'a [ExistingNode],
    pub retained: &'a [bool],
    pub groups: &'a [PodGroup],
    pub placements: &'a Placements,
    pub launches: &'a [Launch],
}

impl ReplacementBatches {
    /// Returns the removed nodes of each batch.
    pub(super) fn nodes(&self) -> Vec<Vec<usize>> {
        let mut nodes = vec![Vec::new(); self.batches.len()];
        for (node, batch) in &self.by_node {
            nodes[*batch].push(*node);
        }
        nodes
    }
}

impl ReplacementInput<'_> {
    /// Joins every removed node with the launches that receive pods of its workloads.
    pub(super) fn batches(&self) -> ReplacementBatches {
        let nodes = self.existing.len();
        let mut sets: Vec<usize> = (0..nodes + self.launches.len()).collect();
        for (index, node) in self.removed_nodes() {
            for group in self.moved_groups(&node.name) {
                for launch in self.launches_for(group) {
                    join(&mut sets, index, nodes + launch);
                }
            }
            for (launch, _) in self.replacements_of(node) {
                join(&mut sets, index, nodes + launch);
            }
        }
        let mut batches = ReplacementBatches::default();
        let mut batch_of_root: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, node) in self.removed_nodes() {
            let root = find(&sets, index);
            let launches: Vec<usize> =
                (0..self.launches.len()).filter(|l| find(&sets, nodes + l) == root).collect();
            if launches.is_empty() {
                continue;
            }
            let batch = *batch_of_root.entry(root).or_insert_with(|| {
                let at = batches.batches.len();
                let price: MicroUsd = launches.iter().map(|l| self.launches[*l].node.price).sum();
                batches.by_launch.extend(launches.iter().map(|launch| (*launch, at)));
                batches.batches.push(ReplacementBatch { saves: -price, moves: 0, mandatory: None });
                at
            });
            batches.by_node.insert(index, batch);
            let batch = &mut batches.batches[batch];
            batch.saves += node.price.unwrap_or_default();
            if let (NodeDisposition::Retire(reason), None) = (&node.disposition, &batch.mandatory) {
                batch.mandatory = Some((node.name.clone(), reason.clone()));
            }
        }
        let nodes = batches.nodes();
        for (batch, nodes) in batches.batches.iter_mut().zip(nodes) {
            batch.moves = self.moved_pods(&nodes);
        }
        batches
    }

    /// Returns how many running pods move if these nodes are removed.
    pub(super) fn moved_pods(&self, nodes: &[usize]) -> u32 {
        self.moved_by_group(nodes).values().sum()
    }

    /// Returns how many running pods of each group move if these nodes are removed: pods that are
    /// still planned and do not stay on retained nodes, or that their controller may not delete.
    pub(super) fn moved_by_group(&self, nodes: &[usize]) -> BTreeMap<usize, u32> {
        let names: Vec<&NodeName> = nodes.iter().map(|node| &self.existing[*node].name).collect();
        let of_group = |(index, group): (usize, &PodGroup)| -> (usize, u32) {
            let here: u32 = names.iter().filter_map(|name| group.running.get(*name)).sum();
            let nodes = self.placements.get(&index).into_iter().flatten();
            let stays = nodes.map(|(node_ref, count)| match node_ref {
                NodeRef::Existing(name) => {
                    group.running.get(name).copied().unwrap_or(0).min(*count)
                }
                NodeRef::Launch(_) => 0,
            });
            let moved = here.min(group.counts.planned.saturating_sub(stays.sum()));
            let may_stay: u32 = names.iter().map(|name| group.may_stay_on(name)).sum();
            (index, (moved + may_stay).min(group.counts.planned))
        };
        self.groups.iter().enumerate().map(of_group).collect()
    }

    fn removed_nodes(&self) -> impl Iterator<Item = (usize, &ExistingNode)> {
        self.existing.iter().enumerate().filter(|(index, _)| !self.retained[*index])
    }

    /// Returns the groups that run on the node and are still planned.
    fn moved_groups(&self, name: &NodeName) -> impl Iterator<Item = usize> {
        let here = |group: &PodGroup| group.counts.planned > 0 && group.running.contains_key(name);
        self.groups.iter().enumerate().filter(move |(_, group)| here(group)).map(|(index, _)| index)
    }

    fn launches_for(&self, group: usize) -> impl Iterator<Item = usize> {
        let nodes = self.placements.get(&group).into_iter().flat_map(BTreeMap::keys);
        // Pools with a static size launch nodes regardless of pods, so their launches replace
        // nothing.
        nodes.filter_map(|node_ref| match node_ref {
            NodeRef::Launch(index) => Some(*index).filter(|i| !self.launches[*i].is_fixed()),
            NodeRef::Existing(_) => None,
        })
    }

    /// Returns the launches whose reason is the replacement of this node.
    fn replacements_of(&self, node: &ExistingNode) -> impl Iterator<Item = (usize, &Launch)> {
        let launches = self.launches.iter().enumerate();
        launches.filter(|(_, launch)| match &launch.reason {
            LaunchReason::Replacement { of, .. } => of.as_str() == node.name.as_str(),
            LaunchReason::Demand { .. }
            | LaunchReason::Consolidation { .. }
            | LaunchReason::Static { .. } => false,
        })
    }
}

fn find(sets: &[usize], mut element: usize) -> usize {
    while sets[element] != element {
        element = sets[element];
    }
    element
}

fn join(sets: &mut [usize], a: usize, b: usize) {
    let (a, b) = (find(sets, a), find(sets, b));
    sets[a.max(b)] = a.min(b);
}
