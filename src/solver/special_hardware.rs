//! Fleets that serve pods that need special hardware first, where limits leave pods over.
//!
//! A packing buys accelerators and bare metal only for pods that fit on nothing else, and does not
//! count the room beside these pods. Where a limit allows few further nodes, the other pods may
//! therefore fill it with plain nodes, although one special node has room for all.

use std::collections::BTreeMap;

use super::greedy_packing::{LookAhead, PackedNode, Packing};
use super::layout::Layout;
use super::limits::RemainingLimits;
use super::node_packing::NodePacking;
use super::pod_ranks::PodRanks;
use super::problem::{Problem, VerifiedFleet};
use super::repair::repair_trial;
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::work_budget::WorkBudget;

/// Maximum nodes that are tried as the first one.
const FIRST_NODES_MAX: usize = 16;

/// Serves pods that need special hardware first, if that leaves fewer pods unschedulable.
pub(super) struct SpecialHardwareFirst;

impl Strategy for SpecialHardwareFirst {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let problem = simulation.problem;
        let Some(layout) = problem.special_hardware_first(&current.fleet) else { return current };
        let trial = repair_trial(simulation, &layout, &mut WorkBudget::unlimited());
        let unplaced = |fleet: &VerifiedFleet| fleet.unplaced_by_priority(problem.groups);
        let is_better = unplaced(&trial) < unplaced(&current.fleet);
        if is_better && !problem.leaves_running_pods_over(&trial, &current.fleet) {
            SolvedFleet { fleet: trial, ..current }
        } else {
            current
        }
    }
}

impl Problem<'_> {
    /// Returns the layout that retains the same nodes as `fleet`, and serves pods that need special
    /// hardware first. Returns `None` if no limit matters, or if no fewer pods are left over.
    fn special_hardware_first(&self, fleet: &VerifiedFleet) -> Option<Layout> {
        if fleet.unplaced.is_empty() || !self.has_reached_limits(&fleet.layout) {
            return None;
        }
        let retained = &fleet.layout.retained;
        let placed = self.place_on_retained(retained);
        let is_special = self.classes_with_special_hardware();
        let mut pending = placed.left.iter().zip(&is_special);
        if !pending.any(|(pods, is_special)| *is_special && *pods > 0) {
            return None;
        }
        let ranks = PodRanks::new(self.model, self.groups).with_first(&is_special);
        let search = SpecialPacking { problem: self, ranks, is_special };
        let packing = search.best(&placed.left, &self.limits_beside(retained));
        let layout = self.layout_with(retained.clone(), placed, packing);
        let left = |layout: &Layout| search.ranks.left_by_priority(&layout.packing);
        (left(&layout) < left(&fleet.layout)).then_some(layout)
    }

    /// Returns true if `trial` removes a node with pods of a group, and leaves more of the group
    /// over than `fleet`. The pods of removed nodes must have a place.
    fn leaves_running_pods_over(&self, trial: &VerifiedFleet, fleet: &VerifiedFleet) -> bool {
        let nodes = self.existing.iter().zip(&trial.layout.retained);
        let removed: Vec<_> = nodes.filter(|(_, retained)| !**retained).collect();
        let left = |fleet: &VerifiedFleet, group| fleet.unplaced.get(&group).copied().unwrap_or(0);
        self.groups.iter().enumerate().any(|(index, group)| {
            left(trial, index) > left(fleet, index)
                && removed.iter().any(|(node, _)| group.running.contains_key(&node.name))
        })
    }

    /// Returns true if a limit forbids some node that would hold a pod which is left over.
    fn has_reached_limits(&self, layout: &Layout) -> bool {
        let limits = self.limits_after(layout);
        let mut offer_classes = self.model.offer_classes.iter().enumerate();
        offer_classes
            .any(|(index, offers)| !limits.allows(index) && offers.admits_any(&layout.packing.left))
    }

    /// Returns true if nodes of the offer class have special hardware.
    fn has_special_hardware(&self, offer_class: usize) -> bool {
        self.offers[self.model.offer_classes[offer_class].offers[0]].has_special_hardware
    }

    /// Returns, for each pod class, whether only nodes with special hardware admit its pods.
    fn classes_with_special_hardware(&self) -> Vec<bool> {
        let mut is_special = vec![false; self.model.classes.len()];
        for (index, offer_class) in self.model.offer_classes.iter().enumerate() {
            if self.has_special_hardware(index) {
                for (is_special, admits) in is_special.iter_mut().zip(&offer_class.admits) {
                    *is_special |= *admits;
                }
            }
        }
        is_special
    }
}

/// Packings with the pods that need special hardware first.
struct SpecialPacking<'a> {
    problem: &'a Problem<'a>,
    /// Ranks with the special classes first.
    ranks: PodRanks,
    /// For each pod class, whether its pods need special hardware.
    is_special: Vec<bool>,
}

impl SpecialPacking<'_> {
    /// Returns the packing that leaves the fewest pods over, and the cheapest of those. Pools of a
    /// higher weight come before a lower price.
    fn best(&self, wanted: &[u32], limits: &RemainingLimits) -> Packing {
        let model = self.problem.model;
        let weight = |class: usize| model.offer_classes[class].weight;
        let heaviest = (0..model.offer_classes.len()).map(weight).max().unwrap_or(0);
        let rank = |packing: &Packing| {
            let nodes = packing.new_nodes.iter();
            let lighter = nodes.filter(|node| weight(node.offer_class) < heaviest).count();
            (self.ranks.left_by_priority(packing), lighter, packing.price(model))
        };
        let mut best_first = None;
        let mut best = self.packing(wanted, limits, None, LookAhead::SHALLOW);
        for first in self.first_nodes(wanted, limits) {
            let next = self.packing(wanted, limits, Some(first.clone()), LookAhead::SHALLOW);
            if rank(&next) < rank(&best) {
                (best, best_first) = (next, Some(first));
            }
        }
        let deep = self.packing(wanted, limits, best_first, LookAhead::DEEP);
        if rank(&deep) < rank(&best) { deep } else { best }
    }

    /// Packs the special pods beside `first`, other pods into the room beside them, and the rest on
    /// further nodes.
    fn packing(
        &self,
        wanted: &[u32],
        limits: &RemainingLimits,
        first: Option<PackedNode>,
        ahead: LookAhead,
    ) -> Packing {
        let mut limits = limits.clone();
        let mut packing = Packing { new_nodes: Vec::new(), left: wanted.to_vec() };
        open(first, &mut packing, &mut limits);
        let special = packing.left.iter().zip(&self.is_special);
        let special: Vec<u32> =
            special.map(|(pods, is_special)| if *is_special { *pods } else { 0 }).collect();
        let nodes = self.problem.pack_new_nodes(&special, &limits, ahead).new_nodes;
        open(nodes, &mut packing, &mut limits);
        for node in &mut packing.new_nodes {
            self.fill(node, &mut packing.left);
        }
        let rest = self.problem.pack_new_nodes(&packing.left, &limits, ahead).new_nodes;
        open(rest, &mut packing, &mut limits);
        packing
    }

    /// Returns filled nodes to try as the first one. Each holds more pods than every cheaper one of
    /// the same weight.
    fn first_nodes(&self, wanted: &[u32], limits: &RemainingLimits) -> Vec<PackedNode> {
        let mut nodes: Vec<PackedNode> = Vec::new();
        let mut most: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        // The offer classes are sorted by price.
        for (index, offers) in self.problem.model.offer_classes.iter().enumerate() {
            if !self.problem.has_special_hardware(index) || !limits.allows(index) {
                continue;
            }
            let mut node = PackedNode { offer_class: index, pods: [].into(), offer: None };
            self.fill(&mut node, &mut wanted.to_vec());
            let held = node.pods.iter().map(|(class, count)| (*class, *count));
            let held = self.ranks.by_priority(held);
            let most = most.entry(offers.weight).or_default();
            if node.pods.keys().any(|class| self.is_special[*class]) && held > *most {
                *most = held;
                nodes.push(node);
            }
        }
        // The node that holds the most pods is always among those that are tried.
        let step = nodes.len().div_ceil(FIRST_NODES_MAX).max(1);
        nodes.into_iter().rev().step_by(step).collect()
    }

    /// Adds as many of the remaining pods to a node as fit, special ones first among equals.
    fn fill(&self, node: &mut PackedNode, left: &mut [u32]) {
        let model = self.problem.model;
        let offer_class = &model.offer_classes[node.offer_class];
        let mut filled = NodePacking::new(&offer_class.room);
        for (class, count) in &node.pods {
            filled.add(model, *class, *count);
        }
        for class in self.ranks.order.iter().copied().filter(|class| offer_class.fits(*class)) {
            if left[class] > 0 && model.classes[class].is_independent() {
                let count = filled.max_more(model, class, left[class]);
                filled.add(model, class, count);
                left[class] -= count;
            }
        }
        node.pods = filled.pods;
    }
}

/// Adds nodes to a packing, and to the usage of the limits.
fn open(
    nodes: impl IntoIterator<Item = PackedNode>,
    packing: &mut Packing,
    limits: &mut RemainingLimits,
) {
    for node in nodes {
        limits.add_node(node.offer_class);
        for (class, count) in &node.pods {
            packing.left[*class] -= count;
        }
        packing.new_nodes.push(node);
    }
}
