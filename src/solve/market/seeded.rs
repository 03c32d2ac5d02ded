//! Nodes around the pods that are hardest to place, for more classes than can be priced one by one.
//!
//! The most valuable pod that is left gets a node of each kind that prices speak for, filled up with
//! what is worth most beside it; the kind that is used best is bought, as often as its pods last.
//! What small pods are worth shows in the end: those that came to lie on nodes which were used badly
//! cost more than their prices said, so that prices follow what was paid, and all begins anew. The
//! cheapest of these fleets counts. Work is counted in the pods looked at.

use std::cmp::Reverse;

use super::blank::Blank;
use super::bought::{Bought, holds};
use super::knapsack::fill_up;
use super::{Market, Pattern};

/// Steps of one search for what to put beside a pod.
const STEPS: u64 = 300;

/// Classes and steps after which no further fleet is begun or ended: below half a second.
const WORK_MAX: u64 = 12_000_000;

/// Fleets of which the cheapest is taken.
const FLEETS_MAX: usize = 6;

/// Part of the way, in tenths, that a price goes towards what was paid.
const TENTHS: i128 = 3;

/// Returns nodes of `kinds` for `wanted` pods by class, which are worth about `worth`; pods that none
/// of these takes are left over.
pub(super) fn seeded(market: &Market, wanted: &[u32], worth: &[i64], kinds: &[usize]) -> Bought {
    let mut work = 0;
    let mut worth = worth.to_vec();
    let mut best: Option<Bought> = None;
    for _ in 0..FLEETS_MAX {
        let mut fleet = Fleet::of(market, wanted, &worth, kinds);
        if !fleet.buy_all(&mut work) {
            break;
        }
        let (paid, mut bought) = (fleet.paid(), fleet.bought);
        worth = paid;
        bought.shrink(market);
        let key = |bought: &Bought| (bought.left_over(), bought.price(market));
        if best.as_ref().is_none_or(|best| key(&bought) < key(best)) {
            best = Some(bought);
        }
    }
    best.unwrap_or_else(|| Bought::nothing(wanted))
}

struct Fleet<'a> {
    market: &'a Market,
    worth: &'a [i64],
    kinds: &'a [usize],
    bought: Bought,
    /// For each class, what its pods were worth, and what was paid for them.
    paid: Vec<(i128, i128)>,
}

impl<'a> Fleet<'a> {
    fn of(market: &'a Market, wanted: &[u32], worth: &'a [i64], kinds: &'a [usize]) -> Self {
        let paid = vec![(0, 0); wanted.len()];
        Self { market, worth, kinds, bought: Bought::nothing(wanted), paid }
    }

    /// Buys nodes until no pod is left that some kind takes; returns whether that was within bounds.
    fn buy_all(&mut self, work: &mut u64) -> bool {
        let mut order: Vec<usize> = (0..self.worth.len()).collect();
        order.sort_by_key(|class| (Reverse(self.worth[*class]), *class));
        for class in order {
            while self.bought.left[class] > 0 {
                let Some(node) = self.best_with(class, work) else { break };
                if *work > WORK_MAX {
                    return false;
                }
                self.buy(&node);
            }
        }
        true
    }

    /// Returns the node with a pod of `class` that is used best for its price.
    fn best_with(&self, class: usize, work: &mut u64) -> Option<Pattern> {
        let mut best: Option<(i128, Pattern)> = None;
        for kind in self.kinds.iter().copied() {
            let of = &self.market.kinds[kind];
            if !of.takes[class] {
                continue;
            }
            let blank = Blank::of(self.market, of, &self.bought.left);
            *work += u64::try_from(blank.items.len()).unwrap_or(u64::MAX) + STEPS;
            let Some(item) = blank.items.iter().position(|item| item.class == class) else {
                continue;
            };
            let mut seed = vec![0; blank.items.len()];
            seed[item] = 1;
            let pods = blank.pods(&fill_up(&blank, self.worth, &seed, STEPS).counts);
            if !holds(self.market, of, &pods) {
                continue;
            }
            let worth = self.worth_of(&pods);
            let node = Pattern { kind, pods };
            let price = |node: &Pattern| i128::from(self.market.kinds[node.kind].price);
            let is_better =
                |(other, of): &(i128, Pattern)| worth * price(of) > other * price(&node);
            if best.as_ref().is_none_or(is_better) {
                best = Some((worth, node));
            }
        }
        best.map(|(_, node)| node)
    }

    fn worth_of(&self, pods: &[(usize, u32)]) -> i128 {
        pods.iter().map(|(class, n)| i128::from(self.worth[*class]) * i128::from(*n)).sum()
    }

    fn buy(&mut self, node: &Pattern) {
        let last = |(class, n): &(usize, u32)| self.bought.left[*class] / (*n).max(1);
        let count = i128::from(node.pods.iter().map(last).min().unwrap_or(0));
        let (worth, price) = (self.worth_of(&node.pods).max(1), self.market.kinds[node.kind].price);
        let price = i128::from(price) << super::certificate::FRACTION;
        for (class, n) in &node.pods {
            let part = i128::from(self.worth[*class]) * i128::from(*n) * count;
            let (was_worth, was_paid) = &mut self.paid[*class];
            *was_worth += part;
            *was_paid += part * price / worth;
        }
        self.bought.buy(node, u32::MAX);
    }

    /// Returns what pods are worth once prices follow what was paid.
    fn paid(&self) -> Vec<i64> {
        let follow = |(worth, (was_worth, was_paid)): (&i64, &(i128, i128))| {
            if *was_worth == 0 {
                return *worth;
            }
            let mixed = was_worth * (10 - TENTHS) + was_paid * TENTHS;
            i64::try_from(i128::from(*worth) * (mixed >> 20) / ((was_worth * 10) >> 20).max(1))
                .unwrap_or(i64::MAX)
        };
        self.worth.iter().zip(&self.paid).map(follow).collect()
    }
}
