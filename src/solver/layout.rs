//! Places pods for a given set of retained nodes: first where they run, then on free resources,
//! then on new nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::consolidate::price_or_minimum;
use super::greedy_packing::{LookAhead, Packing, pack_greedily, pack_most_pods};
use super::limits::RemainingLimits;
use super::node_packing::NodePacking;
pub(super) use super::node_packing::PodsByClass;
use super::pod_ranks::PodRanks;
use super::priced_packing::{pack_by_prices, pack_by_prices_thoroughly};
use super::problem::Problem;
use crate::model::units::MicroUsd;

/// Classes times columns up to which greedy packing is tried as well.
const GREEDY_MAX: usize = 50_000;

/// Complete placement for one set of retained nodes.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// For each existing node: true if it is retained.
    pub retained: Vec<bool>,
    /// For each existing node: its pods.
    pub pods_on: Vec<PodsByClass>,
    /// For each existing node: the pods that run there and stay.
    pub staying: Vec<PodsByClass>,
    /// New nodes and leftover pods.
    pub packing: Packing,
    /// Price per hour of retained and new nodes.
    pub price: MicroUsd,
}

/// Pods on retained nodes, and those that remain.
pub(super) struct PlacedOnRetained {
    /// For each existing node: its pods.
    pods_on: Vec<PodsByClass>,
    /// For each existing node: the pods that run there and stay.
    staying: Vec<PodsByClass>,
    /// Pods by class to pack on new nodes.
    pub left: Vec<u32>,
    /// Pods that could run on one existing node only, which has no room for them.
    set_aside: PodsByClass,
}

impl Layout {
    /// Returns, for each existing node, true if it is retained and not in `removed`.
    pub(super) fn without(&self, removed: &[usize]) -> Vec<bool> {
        let mut retained = self.retained.clone();
        for index in removed {
            retained[*index] = false;
        }
        retained
    }

    /// Returns the number of pods that stay on an existing node.
    pub(super) fn staying_pods_on(&self, node: usize) -> u32 {
        self.staying[node].values().sum()
    }

    /// Returns the number of pods on new nodes, by class.
    pub(super) fn pods_on_new_nodes(&self) -> Vec<u32> {
        let mut pods = vec![0; self.packing.left.len()];
        for (class, count) in self.packing.new_nodes.iter().flat_map(|node| &node.pods) {
            pods[*class] += count;
        }
        pods
    }
}

impl Problem<'_> {
    /// Returns the pool limits that remain after the launches of the layout.
    pub(super) fn limits_after(&self, layout: &Layout) -> RemainingLimits {
        let mut limits = self.limits_beside(&layout.retained);
        for node in &layout.packing.new_nodes {
            limits.add_node(node.offer_class);
        }
        limits
    }

    /// Returns true if the launches of the layout stay within the pool limits.
    pub(super) fn is_within_limits(&self, layout: &Layout) -> bool {
        let mut limits = self.limits_beside(&layout.retained);
        layout.packing.new_nodes.iter().all(|node| {
            let allowed = limits.allows(node.offer_class);
            limits.add_node(node.offer_class);
            allowed
        })
    }

    /// Returns the pool limits for launches beside the retained nodes. A planned node that is not
    /// retained is never launched. A running node counts until it is removed, after the launches.
    pub(super) fn limits_beside(&self, retained: &[bool]) -> RemainingLimits {
        let mut limits = self.limits.clone();
        let nodes = self.existing.iter().zip(retained);
        for (node, _) in nodes.filter(|(node, retained)| node.is_planned && !**retained) {
            limits.remove_planned(node);
        }
        limits
    }

    /// Returns the layout that retains exactly these nodes.
    pub(super) fn layout(&self, retained: Vec<bool>) -> Layout {
        self.layout_ahead(retained, LookAhead::DEEP)
    }

    /// Returns the layout with less look-ahead, for one of many candidates.
    pub(super) fn trial_layout(&self, retained: Vec<bool>) -> Layout {
        self.layout_ahead(retained, LookAhead::SHALLOW)
    }

    fn layout_ahead(&self, retained: Vec<bool>, ahead: LookAhead) -> Layout {
        let placed = self.place_on_retained(&retained);
        self.layout_beside(retained, placed, ahead)
    }

    /// Returns the layout of [`Problem::trial_layout`] for pods that are placed already.
    pub(super) fn trial_layout_beside(
        &self,
        retained: Vec<bool>,
        placed: PlacedOnRetained,
    ) -> Layout {
        self.layout_beside(retained, placed, LookAhead::SHALLOW)
    }

    /// Returns the layout of [`Problem::trial_layout`], whose packing is known.
    pub(super) fn layout_packed(&self, retained: Vec<bool>, packing: Packing) -> Layout {
        let PlacedOnRetained { pods_on, staying, .. } = self.place_on_retained(&retained);
        let price = self.price_of(&retained) + packing.price(self.model);
        Layout { retained, pods_on, staying, packing, price }
    }

    /// Places pods on the retained nodes: first where they run, then on free resources.
    pub(super) fn place_on_retained(&self, retained: &[bool]) -> PlacedOnRetained {
        let mut left: Vec<u32> = self.model.classes.iter().map(|class| class.planned).collect();
        let mut node_packings: Vec<NodePacking> =
            self.model.bins.iter().map(|bin| NodePacking::new(&bin.room)).collect();
        let mut staying = vec![PodsByClass::new(); retained.len()];
        let stays = || self.fill_order.iter().copied().filter(|bin| retained[*bin]);
        for bin in stays() {
            for (class, running) in self.model.bins[bin].running.iter().enumerate() {
                if *running > 0 && self.model.bins[bin].admits[class] {
                    let wanted = (*running).min(left[class]);
                    let count = self.model.copies(class, &node_packings[bin].room, wanted);
                    node_packings[bin].add(self.model, class, count);
                    left[class] -= count;
                    if count > 0 {
                        staying[bin].insert(class, count);
                    }
                }
            }
        }
        self.fill_as_planned(stays(), &mut node_packings, &mut left);
        for class in self.model.by_value.iter().copied() {
            for bin in stays() {
                if left[class] == 0 {
                    break;
                }
                if self.model.bins[bin].schedulable && self.model.bins[bin].admits[class] {
                    self.fill(class, bin, &mut node_packings[bin], &mut left);
                }
            }
        }
        let set_aside = self.set_aside_single_node_classes(&staying, &mut left);
        let pods_on = node_packings.into_iter().map(|packing| packing.pods).collect();
        PlacedOnRetained { pods_on, staying, left, set_aside }
    }

    /// Packs the pods that remain on new nodes.
    fn layout_beside(
        &self,
        retained: Vec<bool>,
        placed: PlacedOnRetained,
        ahead: LookAhead,
    ) -> Layout {
        let packing = self.pack_new_nodes(&placed.left, &self.limits_beside(&retained), ahead);
        self.layout_with(retained, placed, packing)
    }

    /// Returns the layout with this packing of the pods that remain.
    pub(super) fn layout_with(
        &self,
        retained: Vec<bool>,
        placed: PlacedOnRetained,
        mut packing: Packing,
    ) -> Layout {
        let PlacedOnRetained { pods_on, staying, set_aside, left: _ } = placed;
        for (class, count) in &set_aside {
            packing.left[*class] += count;
        }
        let price = self.price_of(&retained) + packing.price(self.model);
        Layout { retained, pods_on, staying, packing, price }
    }

    /// Returns the price per hour of the retained nodes.
    pub(super) fn price_of(&self, retained: &[bool]) -> MicroUsd {
        let nodes = self.existing.iter().zip(retained).filter(|(_, retained)| **retained);
        nodes.map(|(node, _)| price_or_minimum(node)).sum()
    }

    /// Places pods where the last plan places them. A second round serves pods that need others on
    /// their node.
    fn fill_as_planned(
        &self,
        bins: impl Iterator<Item = usize> + Clone,
        node_packings: &mut [NodePacking],
        left: &mut [u32],
    ) {
        let schedulable = bins.filter(|bin| self.model.bins[*bin].schedulable);
        for bin in schedulable.clone().chain(schedulable) {
            let before = node_packings[bin].pods.clone();
            for (class, planned) in &self.model.bins[bin].planned {
                let placed = before.get(class).copied().unwrap_or(0);
                let running = self.model.bins[bin].running[*class];
                let wanted =
                    planned.saturating_sub(placed.saturating_sub(running)).min(left[*class]);
                if wanted > 0 && self.model.bins[bin].admits[*class] {
                    let count = node_packings[bin].max_more(self.model, *class, wanted);
                    node_packings[bin].add(self.model, *class, count);
                    left[*class] -= count;
                }
            }
        }
    }

    /// Packs pods on new nodes: greedily, or by column generation where that is less work.
    pub(super) fn pack_new_nodes(
        &self,
        left: &[u32],
        limits: &RemainingLimits,
        ahead: LookAhead,
    ) -> Packing {
        if self.is_large_packing(left)
            && let Some(packing) = pack_by_prices(self.model, left, limits)
        {
            return packing;
        }
        let packing = pack_greedily(self.model, left, limits, ahead);
        if !limits.has_limits() || !self.leaves_admitted_pods(&packing) {
            return packing;
        }
        // A limit ends the packing. Costly pods may take the room of many small ones.
        let ranks = PodRanks::new(self.model, self.groups);
        let most_pods = pack_most_pods(self.model, left, limits, ahead, &ranks);
        let is_better = ranks.left_by_priority(&most_pods) < ranks.left_by_priority(&packing);
        if is_better { most_pods } else { packing }
    }

    /// Returns true if a packing leaves pods that fit on some new node.
    fn leaves_admitted_pods(&self, packing: &Packing) -> bool {
        let is_admitted =
            |class: usize| self.model.offer_classes.iter().any(|offer| offer.admits[class]);
        packing.left.iter().enumerate().any(|(class, left)| *left > 0 && is_admitted(class))
    }

    /// Returns true if greedy packing would take long.
    fn is_large_packing(&self, wanted: &[u32]) -> bool {
        let classes = wanted.iter().filter(|count| **count > 0).count();
        classes.saturating_mul(self.model.undominated.len()) > GREEDY_MAX
    }

    /// Returns `layout` with its new nodes packed by column generation, if that costs less.
    pub(super) fn repack(&self, mut layout: Layout) -> Layout {
        let wanted = layout.pods_on_new_nodes();
        let solved =
            if self.is_large_packing(&wanted) { pack_by_prices_thoroughly } else { pack_by_prices };
        let limits = self.limits_beside(&layout.retained);
        let Some(better) = solved(self.model, &wanted, &limits) else { return layout };
        let (old, new) = (layout.packing.price(self.model), better.price(self.model));
        if better.left_over() == 0 && new < old {
            layout.packing.new_nodes = better.new_nodes;
            layout.price = layout.price - old + new;
        }
        layout
    }

    /// Places as many pods of a class as fit on an existing node.
    fn fill(&self, class: usize, bin: usize, packing: &mut NodePacking, left: &mut [u32]) {
        if self.model.classes[class].is_independent() {
            let count = packing.max_more(self.model, class, left[class]);
            packing.add(self.model, class, count);
            left[class] -= count;
            return;
        }
        if self.model.classes[class].is_colocated && packing.pods.contains_key(&class) {
            // The other pods of the class can only run on the same node.
            let count = packing.max_more(self.model, class, left[class]);
            packing.add(self.model, class, count);
            left[class] -= count;
            return;
        }
        let before = packing.pods.clone();
        packing.add_with_companions(self.model, class, left, &self.model.bins[bin].admits);
        for (class, count) in &packing.pods {
            left[*class] -= count - before.get(class).copied().unwrap_or(0);
        }
    }

    /// Removes classes that must share one node, and already run on an existing node, from the pods
    /// to pack: they could not run on another node.
    fn set_aside_single_node_classes(
        &self,
        staying: &[PodsByClass],
        left: &mut [u32],
    ) -> PodsByClass {
        let whole = |class: &usize| self.model.classes[*class].is_colocated;
        let here: BTreeSet<usize> =
            staying.iter().flat_map(BTreeMap::keys).copied().filter(whole).collect();
        here.into_iter().map(|class| (class, std::mem::take(&mut left[class]))).collect()
    }
}
