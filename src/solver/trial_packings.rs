//! Packings of a fleet without some of its nodes, each computed at most once.
//!
//! A search for a cheaper fleet tries hundreds of sets of nodes, many of them more than once. Most
//! sets cost too much. Dual prices show that before the new nodes are packed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::greedy_packing::Packing;
use super::layout::Layout;
use super::lower_bound::DualPrices;
use super::problem::Problem;
use crate::model::units::MicroUsd;

/// New nodes and leftover pods beside the retained nodes.
#[derive(Debug, Clone)]
pub(super) struct TrialPacking {
    pub packing: Packing,
    /// Price per hour of retained and new nodes.
    pub price: MicroUsd,
}

/// What is known of the fleet without some nodes.
enum KnownPacking {
    Packed(TrialPacking),
    /// Any packing costs at least this much.
    CostsAtLeast(MicroUsd),
}

/// The packings that a search has tried.
pub(super) struct TrialPackings<'a> {
    problem: &'a Problem<'a>,
    /// Computed for the first packing.
    prices: Option<DualPrices>,
    /// By the nodes that are not retained.
    known: BTreeMap<Vec<usize>, KnownPacking>,
}

impl<'a> TrialPackings<'a> {
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        Self { problem, prices: None, known: BTreeMap::new() }
    }

    /// Returns the packing beside the retained nodes, or `None` if every packing that leaves no more
    /// pods over than `before` costs more than `price_max`.
    pub(super) fn packing(
        &mut self,
        retained: &[bool],
        before: &Packing,
        price_max: MicroUsd,
    ) -> Option<&TrialPacking> {
        let removed: Vec<usize> = (0..retained.len()).filter(|index| !retained[*index]).collect();
        let problem = self.problem;
        let known = match self.known.entry(removed) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(KnownPacking::CostsAtLeast(MicroUsd::ZERO)),
        };
        if matches!(known, KnownPacking::CostsAtLeast(least) if *least <= price_max) {
            let prices = self.prices.get_or_insert_with(|| DualPrices::new(problem.model));
            let placed = problem.place_on_retained(retained);
            let to_pack = placed.left.iter().zip(&before.left).map(|(n, b)| n.saturating_sub(*b));
            let to_pack: Vec<u32> = to_pack.collect();
            let least = problem.price_of(retained) + prices.bound(&to_pack);
            *known = if least > price_max {
                KnownPacking::CostsAtLeast(least)
            } else {
                let Layout { packing, price, .. } =
                    problem.trial_layout_beside(retained.to_vec(), placed);
                KnownPacking::Packed(TrialPacking { packing, price })
            };
        }
        match known {
            KnownPacking::Packed(trial) => Some(trial),
            KnownPacking::CostsAtLeast(_) => None,
        }
    }
}

#[cfg(test)]
impl<'a> TrialPackings<'a> {
    /// Returns packings whose bound excludes no set of nodes.
    pub(super) fn without_bound(problem: &'a Problem<'a>) -> Self {
        Self { prices: Some(DualPrices::zero(problem.model)), ..Self::new(problem) }
    }

    /// Returns the number of sets that are known to cost too much, and were never packed.
    pub(super) fn unpacked(&self) -> usize {
        let known = self.known.values();
        known.filter(|known| matches!(known, KnownPacking::CostsAtLeast(_))).count()
    }
}
