//! Workloads with partitions: the pod counts of the nodes can be assigned to the parts.
//!
//! A plan states the number of pods of a workload on a node, without their identities. If volumes
//! bind pods to nodes, an assignment of pods to parts must exist. Each pod of a part is on a node
//! that admits it, or on the node it runs on. No part has more pods than planned. This is a flow
//! from nodes to parts. If the maximum flow is less than the number of placed pods, some pod cannot
//! run on its node.

use std::collections::{BTreeMap, BTreeSet};

use super::Violations;
use super::admission::{AdmissionView, refusal};
use super::context::CheckContext;
use super::end_state::{EndNode, EndState, PodSet, PodSetKind};
use crate::demand::{PodGroup, ReplicaPartition};
use crate::model::ids::Address;

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    for pod_set in state.pod_sets.iter().filter(|pod_set| pod_set.kind == PodSetKind::Placed) {
        let Some(group) =
            context.groups.get(&pod_set.name).filter(|group| !group.partitions.is_empty())
        else {
            continue;
        };
        if let Some((end_node, pods)) = unassigned(state, pod_set, group, |part, end_node| {
            capacity(&group.partitions[part], &state.nodes[end_node])
        }) {
            let fault = format!(
                "{} has {pods} pods here and on equal nodes, and its parts do not allow that",
                pod_set.name
            );
            violations.report_row("fit/parts", end_node.row.address, fault);
        }
    }
}

/// Returns the first node with pods that cannot be assigned to a part, and the number of pods on it
/// and on equal nodes.
///
/// `capacity` returns the maximum number of pods of a part on a node.
fn unassigned<'a>(
    state: &'a EndState<'a>,
    pod_set: &PodSet,
    group: &PodGroup,
    capacity: impl Fn(usize, usize) -> u32,
) -> Option<(&'a EndNode<'a>, u32)> {
    let pods_by_node = pod_set.by_node.iter().map(|(end_node, pods)| {
        let capacities =
            (0..group.partitions.len()).map(|part| capacity(part, *end_node)).collect();
        (&state.nodes[*end_node], pods.all(), capacities)
    });
    PartAssignment::new(group, pods_by_node).unassigned()
}

/// Returns the address of a launch whose alternatives leave pods without a part, and the number of
/// its pods. `only` has the parts that every alternative of a launch admits, by node.
///
/// The part of a pod does not depend on the launched offering. One assignment must therefore be
/// valid for all combinations of alternatives.
pub(super) fn unassigned_pods<'a>(
    state: &'a EndState<'a>,
    pod_set: &PodSet,
    group: &PodGroup,
    only: &BTreeMap<usize, BTreeSet<usize>>,
) -> Option<(&'a Address, u32)> {
    let capacity = |part: usize, end_node: usize| match only.get(&end_node) {
        Some(parts) if parts.contains(&part) => u32::MAX,
        Some(_) => 0,
        None => capacity(&group.partitions[part], &state.nodes[end_node]),
    };
    unassigned(state, pod_set, group, capacity).map(|(end_node, pods)| (end_node.row.address, pods))
}

/// Assignment of the pods of a workload on nodes to its parts.
struct PartAssignment<'a> {
    /// Groups of nodes that no part distinguishes: the first node, the number of pods, and the
    /// capacity for each part.
    nodes: Vec<(&'a EndNode<'a>, u32, Vec<u32>)>,
    /// Number of unassigned pods of each part.
    spare: Vec<u32>,
    /// Number of assigned pods, by node and part.
    assigned: Vec<Vec<u32>>,
}

impl<'a> PartAssignment<'a> {
    fn new(
        group: &PodGroup,
        pods_by_node: impl Iterator<Item = (&'a EndNode<'a>, u32, Vec<u32>)>,
    ) -> Self {
        let mut alike: BTreeMap<Vec<u32>, (&EndNode<'_>, u32)> = BTreeMap::new();
        let mut nodes = Vec::new();
        for (end_node, pods, capacity) in pods_by_node {
            // A limit applies to one node, so only unlimited nodes may be merged.
            if capacity.iter().all(|most| *most == 0 || *most == u32::MAX) {
                let entry = alike.entry(capacity).or_insert((end_node, 0));
                entry.1 = entry.1.saturating_add(pods);
            } else {
                nodes.push((end_node, pods, capacity));
            }
        }
        nodes.extend(
            alike.into_iter().map(|(capacity, (end_node, pods))| (end_node, pods, capacity)),
        );
        let spare: Vec<u32> = group.partitions.iter().map(|part| part.planned).collect();
        let assigned = vec![vec![0; spare.len()]; nodes.len()];
        Self { nodes, spare, assigned }
    }

    /// Assigns as many pods as possible. Returns the first nodes with unassigned pods, and the
    /// total number of pods on these nodes.
    fn unassigned(&mut self) -> Option<(&'a EndNode<'a>, u32)> {
        for node in 0..self.nodes.len() {
            let (end_node, pods, _) = self.nodes[node];
            let mut left = pods;
            while left > 0 {
                match self.augment(node, left) {
                    0 => return Some((end_node, pods)),
                    assigned => left -= assigned,
                }
            }
        }
        None
    }

    /// Finds an augmenting path from node `start` to a part with spare pods, and assigns at most
    /// `wanted` pods along it. Returns their number.
    fn augment(&mut self, start: usize, wanted: u32) -> u32 {
        // Predecessors in the search: the node before each part, and the part before each node.
        let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut nodes: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = vec![start];
        let mut next = 0;
        while let Some(node) = queue.get(next).copied() {
            next += 1;
            for part in 0..self.spare.len() {
                let free = self.nodes[node].2[part] > self.assigned[node][part];
                if !free || parts.contains_key(&part) {
                    continue;
                }
                parts.insert(part, node);
                if self.spare[part] > 0 {
                    return self.shift(start, part, wanted, &parts, &nodes);
                }
                for other in 0..self.nodes.len() {
                    let is_assigned = self.assigned[other][part] > 0;
                    if is_assigned && other != start && !nodes.contains_key(&other) {
                        nodes.insert(other, part);
                        queue.push(other);
                    }
                }
            }
        }
        0
    }

    /// Moves the maximum number of pods along the path.
    fn shift(
        &mut self,
        start: usize,
        end: usize,
        wanted: u32,
        parts: &BTreeMap<usize, usize>,
        nodes: &BTreeMap<usize, usize>,
    ) -> u32 {
        let mut steps = Vec::new();
        let (mut part, mut amount) = (end, wanted.min(self.spare[end]));
        loop {
            let node = parts[&part];
            amount = amount.min(self.nodes[node].2[part] - self.assigned[node][part]);
            steps.push((node, part, nodes.get(&node).copied()));
            if node == start {
                break;
            }
            let from = nodes[&node];
            amount = amount.min(self.assigned[node][from]);
            part = from;
        }
        self.spare[end] -= amount;
        for (node, part, from) in steps {
            self.assigned[node][part] += amount;
            if let Some(from) = from.filter(|_| node != start) {
                self.assigned[node][from] -= amount;
            }
        }
        amount
    }
}

/// Returns the maximum number of pods of `part` on a node: unlimited if the node admits it, else
/// the number of its running pods.
fn capacity(part: &ReplicaPartition, end_node: &EndNode<'_>) -> u32 {
    if refusal(&part.shape, &end_node.admission_view()).is_none() {
        return u32::MAX;
    }
    end_node.name.and_then(|name| part.running.get(name)).copied().unwrap_or(0)
}

/// Returns the indices of the parts of `group` that a node admits.
pub(super) fn admitting_parts(group: &PodGroup, view: &AdmissionView<'_>) -> BTreeSet<usize> {
    let parts = group.partitions.iter().enumerate();
    parts.filter(|(_, part)| refusal(&part.shape, view).is_none()).map(|(index, _)| index).collect()
}
