//! A bound below the hourly price of every fleet that holds given pods.
//!
//! The best of several, each proven in integers: for a handful of pods the cheapest fleet itself;
//! the price of nodes for pods that keep apart from each other; and what pods are worth at prices
//! at which no node holds more than it costs (`market`). Nodes that stay whatever they cost are paid
//! for elsewhere and may hold as much as they have room for. Rules that only narrow where pods may
//! go can be left out: a bound without them is lower and stays true.

use super::market::exact::cheapest;
use super::market::generate::{Effort, Pricing};
use super::market::{Cap, Market};
use super::model::{Model, copies};
use super::survey::{Single, Survey};
use crate::units::MicroUsd;

/// How much is done for a bound: some tens of milliseconds for hundreds of classes and kinds.
const EFFORT: Effort = Effort { cut_rounds: 80, rounds: 60, steps: 2_000, steps_total: 400_000 };

/// How hard a bound is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// In a small part of the time that planning takes.
    Quick,
    /// With whole pods of hundreds of classes as well, which may take seconds.
    Thorough,
}

/// Returns a bound on the price of holding `placed` pods (by class) on new nodes and on `singles`.
pub(super) fn lower_bound(
    model: &Model,
    placed: &[u32],
    (singles, proof): (&[Single], Proof),
) -> MicroUsd {
    let survey = Survey::of(model, placed, &model.undominated, singles);
    MicroUsd(bound(&survey.market, &survey.wanted, proof))
}

/// Returns the bound in micro-USD per hour.
fn bound(market: &Market, wanted: &[u32], proof: Proof) -> i64 {
    if let Some(cheapest) = cheapest(market, wanted) {
        return cheapest.price;
    }
    let mut pricing = Pricing::of(market, wanted, EFFORT);
    pricing.price_cut();
    if pricing.whole_pods_may_prove_more() {
        pricing.price_whole(&[]);
    } else if proof == Proof::Thorough {
        pricing.price_tabled();
    }
    pricing.best().bound.max(apart(market, wanted))
}

/// The price of nodes for pods that keep apart: of each class alone, and of those under one cap.
///
/// Nodes that hold at most so many of them each cost at least what the dearest of their pods needs;
/// that is least if the dearest share nodes, and those first that cost nothing here.
fn apart(market: &Market, wanted: &[u32]) -> i64 {
    let needs: Vec<i64> = (0..wanted.len()).map(|class| cheapest_kind(market, class)).collect();
    let alone = (0..wanted.len())
        .filter(|class| wanted[*class] > 0)
        .filter(|class| !market.singles.iter().any(|single| single.kind.takes[*class]))
        .map(|class| needs[class]);
    let under_cap = market.caps.iter().filter(|cap| cap.most > 0).map(|cap| {
        let mut members: Vec<(i64, u32)> =
            cap.members.iter().map(|class| (needs[*class], wanted[*class])).collect();
        members.sort_unstable_by(|a, b| b.cmp(a));
        // `free` is the room on nodes that are there or were opened for dearer pods.
        let mut free: u64 = market.singles.iter().map(|single| hosted(market, single, cap)).sum();
        let mut price = 0_i64;
        for (need, count) in members {
            let beyond = u64::from(count).saturating_sub(free);
            let nodes = beyond.div_ceil(cap.most.into());
            free = (free + nodes * u64::from(cap.most)).saturating_sub(count.into());
            let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
            price = price.saturating_add(need.saturating_mul(nodes));
        }
        price
    });
    alone.chain(under_cap).max().unwrap_or(0)
}

/// The most pods under a cap that nodes which are there could hold.
fn hosted(market: &Market, single: &super::market::Single, cap: &Cap) -> u64 {
    let taken = cap.members.iter().filter(|class| single.kind.takes[**class]);
    let each = |class: &usize| copies(&market.wares[*class].ask, &single.kind.room, u32::MAX);
    taken.map(|class| u64::from(each(class)) * u64::from(single.count)).sum()
}

/// The price of the cheapest node that a pod of `class` may run on.
fn cheapest_kind(market: &Market, class: usize) -> i64 {
    let taking = market.kinds.iter().filter(|kind| kind.takes[class]);
    taking.map(|kind| kind.price).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
