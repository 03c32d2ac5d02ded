//! A lower bound on the hourly price of every fleet that holds the given pods.
//!
//! The result is the best of several bounds, each proven in integers. For a handful of pods it is
//! the price of the cheapest fleet. Otherwise it is the separation bound for pods that exclude each
//! other, or the dual bound (`pricing`).
//!
//! Rules that only restrict the nodes of a pod may be omitted: the bound is then lower but valid.

use super::packing_model::PackingModel;
use super::pricing::BinPackingProblem;
use super::pricing::column_generation::{ColumnGeneration, Effort};
use super::pricing::dual_bound::dual_bound;
use super::pricing::exact::exact_purchase;
use super::pricing_input::PricingInput;
use crate::model::units::MicroUsd;

/// Work limits of a bound: some tens of milliseconds for hundreds of classes and offerings.
const EFFORT: Effort =
    Effort { fractional_rounds: 80, rounds: 60, steps: 2_000, steps_total: 400_000 };

/// Effort spent on a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Takes a small part of the planning time.
    Quick,
    /// Also uses whole pods of hundreds of classes, which may take seconds.
    Thorough,
}

/// Returns a lower bound on the price of `placed` pods by class on new nodes.
pub(super) fn lower_bound(model: &PackingModel, mut placed: Vec<u32>, proof: Proof) -> MicroUsd {
    for (class, pods) in placed.iter_mut().enumerate() {
        if !model.offer_classes.iter().any(|offers| offers.admits[class]) {
            *pods = 0;
        }
    }
    let input = PricingInput::new(model, &placed, &model.undominated);
    MicroUsd(bound_micro_usd(&input.problem, &input.wanted, proof))
}

/// Dual prices of the planned pods of a problem. They bound the price of new nodes for any part of
/// these pods.
#[derive(Debug)]
pub(super) struct DualPrices {
    /// Dual price of one pod of each class, in 2^-20 micro-USD per hour.
    by_class: Vec<i64>,
}

impl DualPrices {
    /// Returns the dual prices of fractional pods, which take tens of milliseconds at most.
    pub(super) fn new(model: &PackingModel) -> Self {
        let planned: Vec<u32> = model.classes.iter().map(|class| class.planned).collect();
        let input = PricingInput::new(model, &planned, &model.undominated);
        let mut by_class = vec![0; planned.len()];
        let duals = fractional_duals(&input.problem, &input.wanted);
        for (members, dual) in input.members.iter().zip(&duals) {
            for class in members {
                by_class[*class] = *dual;
            }
        }
        Self { by_class }
    }

    /// Returns prices that bound nothing.
    #[cfg(test)]
    pub(super) fn zero(model: &PackingModel) -> Self {
        Self { by_class: vec![0; model.classes.len()] }
    }

    /// Returns a lower bound on the price of new nodes for `pods` by class.
    pub(super) fn bound(&self, pods: &[u32]) -> MicroUsd {
        MicroUsd(dual_bound(&self.by_class, pods))
    }
}

/// Returns the dual price of one pod of each class.
fn fractional_duals(problem: &BinPackingProblem, wanted: &[u32]) -> Vec<i64> {
    let mut pricing = ColumnGeneration::new(problem, wanted, EFFORT);
    pricing.price_fractional_pods();
    pricing.best().duals.clone()
}

/// Returns the bound in micro-USD per hour.
fn bound_micro_usd(problem: &BinPackingProblem, wanted: &[u32], proof: Proof) -> i64 {
    if let Some(cheapest) = exact_purchase(problem, wanted) {
        return cheapest.price;
    }
    let mut pricing = ColumnGeneration::new(problem, wanted, EFFORT);
    pricing.price_fractional_pods();
    if pricing.whole_pods_can_tighten_bound() {
        pricing.price_whole_pods(&[]);
    } else if proof == Proof::Thorough {
        pricing.prove_with_tables();
    }
    pricing.best().bound.max(separation_bound(problem, wanted))
}

/// Returns the price of the nodes for pods that exclude each other: of each class alone, and of the
/// classes under one cap.
///
/// A node with at most `max_pods` of them costs at least as much as its most expensive pod needs.
/// The total is minimal if the most expensive pods share nodes.
fn separation_bound(problem: &BinPackingProblem, wanted: &[u32]) -> i64 {
    let needs: Vec<i64> =
        (0..wanted.len()).map(|class| cheapest_offering_price(problem, class)).collect();
    let alone = (0..wanted.len()).filter(|class| wanted[*class] > 0).map(|class| needs[class]);
    let under_cap = problem.caps.iter().filter(|cap| cap.max_pods > 0).map(|cap| {
        let mut members: Vec<(i64, u32)> =
            cap.members.iter().map(|class| (needs[*class], wanted[*class])).collect();
        members.sort_unstable_by(|a, b| b.cmp(a));
        // Room on nodes bought for more expensive pods.
        let (mut free, mut price) = (0_u64, 0_i64);
        for (need, count) in members {
            let beyond = u64::from(count).saturating_sub(free);
            let nodes = beyond.div_ceil(cap.max_pods.into());
            free = (free + nodes * u64::from(cap.max_pods)).saturating_sub(count.into());
            let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
            price = price.saturating_add(need.saturating_mul(nodes));
        }
        price
    });
    alone.chain(under_cap).max().unwrap_or(0)
}

/// Returns the price of the cheapest offering that admits pods of `class`.
fn cheapest_offering_price(problem: &BinPackingProblem, class: usize) -> i64 {
    let taking = problem.offerings.iter().filter(|offering| offering.admits[class]);
    taking.map(|offering| offering.price).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
