//! The nodes that pending pods need in one group, and how an expander rates them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::demand::{PodGroup, PodShape, Sharing};
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::key;
use crate::model::units::Resources;
use crate::scheduler::{NamespaceLabels, PodSelector};
use crate::solver::Input;
use crate::solver::offer::{Offer, admits};

/// Parts per million, the unit of scores.
const MILLION: i128 = 1_000_000;

/// Budget of steps, because the numbers of groups, pods and nodes have no bound.
pub(super) struct WorkBudget {
    left: u64,
    is_exhausted: bool,
}

impl WorkBudget {
    pub(super) fn new(steps: u64) -> Self {
        Self { left: steps, is_exhausted: false }
    }

    /// Spends steps; `None` if the budget has fewer. Later steps fail too.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        let left = u64::try_from(steps).ok().and_then(|steps| self.left.checked_sub(steps));
        self.is_exhausted |= left.is_none();
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }
}

/// Rules about other pods that decide whether a new node is certain to take a pod.
pub(super) struct Rules {
    priority_cutoff: i32,
    namespaces: NamespaceLabels,
    /// Selectors of required anti-affinity that excludes pods from whole zones.
    excluded: Vec<PodSelector>,
}

impl Rules {
    pub(super) fn new(input: &Input, groups: &[PodGroup], priority_cutoff: i32) -> Self {
        let mut excluded = Vec::new();
        for group in groups.iter().filter(|group| group.counts.planned > 0) {
            let terms = group.shape.anti_affinity.required.iter();
            let wide = terms.filter(|term| term.topology_key.as_str() != key::HOSTNAME);
            excluded.extend(wide.filter_map(|term| PodSelector::from_term(term, &group.shape)));
        }
        excluded.sort();
        excluded.dedup();
        let namespaces = NamespaceLabels::new(&input.desired.namespaces);
        Self { priority_cutoff, namespaces, excluded }
    }

    /// Returns true if Cluster Autoscaler scales up for pods of `shape`, and an empty node with room
    /// is certain to take one.
    pub(super) fn is_expected(&self, shape: &PodShape) -> bool {
        shape.unsupported.is_empty()
            && shape.nodes.name.is_none()
            && shape.priority >= self.priority_cutoff
            && shape.affinity.required.is_empty()
            && shape.anti_affinity.required.iter().all(|t| t.topology_key.as_str() == key::HOSTNAME)
            && shape.spread.iter().all(|rule| !is_hard(rule) || is_by_host(rule))
            && shape.volumes.iter().all(|v| v.sharing == Sharing::Own && v.problem.is_none())
            && !self.excluded.iter().any(|selector| selector.matches(shape, &self.namespaces))
    }
}

fn is_hard(rule: &TopologySpread) -> bool {
    rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
}

fn is_by_host(rule: &TopologySpread) -> bool {
    rule.topology_key.as_str() == key::HOSTNAME
}

/// Returns true if pods of `shape` are counted as alone on their node, because a rule or a port may
/// keep other pods away.
fn needs_own_node(shape: &PodShape) -> bool {
    !shape.host_ports.is_empty()
        || !shape.anti_affinity.required.is_empty()
        || shape.spread.iter().any(is_hard)
}

/// The nodes that pending pods need in one group.
pub(super) struct Packing {
    /// Pods of each node, by group of pods.
    pub(super) nodes: Vec<BTreeMap<usize, u32>>,
    pods: u32,
    /// Share of the capacity of all nodes that the pods request, CPU and memory added.
    used: i128,
}

impl Packing {
    /// Returns the groups of its pods; a group may be repeated.
    pub(super) fn pod_groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().flat_map(|node| node.keys().copied())
    }

    /// Returns the score of an expander; greater is better. `None` if the choice of the expander
    /// cannot be predicted.
    pub(super) fn score(&self, expander: &str) -> Option<i128> {
        match expander {
            "least-waste" => Some(self.used),
            "most-pods" => Some(i128::from(self.pods)),
            "least-nodes" => Some(-i128::try_from(self.nodes.len()).unwrap_or(i128::MAX)),
            _ => None,
        }
    }
}

/// An open node.
struct OpenNode {
    room: Resources,
    is_exclusive: bool,
    pods: BTreeMap<usize, u32>,
}

/// Packs pending pods on at most `nodes_max` new nodes of a group, the largest pods first.
/// Returns `None` if the budget is exhausted.
pub(super) fn pack(
    offer: &Offer,
    nodes_max: u32,
    pending: &BTreeMap<usize, u32>,
    groups: &[PodGroup],
    budget: &mut WorkBudget,
) -> Option<Packing> {
    budget.spend(pending.len())?;
    let (node, limit) = (&offer.node, usize::try_from(nodes_max).unwrap_or(usize::MAX));
    let shape = |group: usize| &*groups[group].shape;
    let mut queue: Vec<(usize, u32)> = pending
        .iter()
        .filter(|(group, _)| admits(shape(**group), &node.labels, &node.taints))
        .map(|(group, count)| (*group, *count))
        .collect();
    queue.sort_by_key(|(group, _)| (Reverse(share(&shape(*group).requests, &offer.room)), *group));
    let mut open: Vec<OpenNode> = Vec::new();
    for (group, mut left) in queue {
        let (requests, alone) = (&shape(group).requests, needs_own_node(shape(group)));
        let fits = |room: &Resources, left: u32| {
            let most = if alone { left.min(1) } else { left };
            u32::try_from(requests.copies_in(room, i64::from(most))).unwrap_or(0)
        };
        // Every open node has pods, so that pods that need an own node get a new one.
        let mut next = if alone { open.len() } else { 0 };
        while left > 0 {
            budget.spend(1)?;
            if next == open.len() {
                if open.len() >= limit || fits(&offer.room, left) == 0 {
                    break;
                }
                let (room, pods) = (offer.room.clone(), BTreeMap::new());
                open.push(OpenNode { room, is_exclusive: alone, pods });
            }
            let node = &mut open[next];
            next += 1;
            if !node.pods.is_empty() && node.is_exclusive {
                continue;
            }
            let count = fits(&node.room, left);
            if count > 0 {
                node.room = node.room.minus(&requests.times(i64::from(count)));
                *node.pods.entry(group).or_insert(0) += count;
                left -= count;
            }
        }
    }
    Some(summarize(open, offer, &shape))
}

fn summarize<'g>(
    open: Vec<OpenNode>,
    offer: &Offer,
    shape: &impl Fn(usize) -> &'g PodShape,
) -> Packing {
    let (mut pods, mut used) = (0_u32, 0_i128);
    for (group, count) in open.iter().flat_map(|node| &node.pods) {
        pods = pods.saturating_add(*count);
        used += share(&shape(*group).requests, &offer.node.capacity) * i128::from(*count);
    }
    let nodes: Vec<_> = open.into_iter().map(|node| node.pods).collect();
    let count = i128::try_from(nodes.len().max(1)).unwrap_or(i128::MAX);
    Packing { nodes, pods, used: used / count }
}

/// Returns the shares of CPU and memory that requests take of a node, added.
fn share(requests: &Resources, node: &Resources) -> i128 {
    let part = |asked: i64, all: i64| i128::from(asked) * MILLION / i128::from(all.max(1));
    part(requests.cpu.0, node.cpu.0) + part(requests.memory.0, node.memory.0)
}
