//! Nodes around the pods that are hardest to place, for more classes than can be priced one by one.
//!
//! The most valuable pod that is left gets a node of each kind that prices speak for, filled up with
//! what is worth most beside it; the kind that is used best is bought, as often as its pods last.
//! Then, again and again, the nodes that are used worst are given back, and their pods bought for
//! anew: prices follow what was paid, so that pods which came to lie badly come earlier the next
//! time. What is cheaper is kept. Work is counted in the pods looked at.

use std::cmp::Reverse;

use super::blank::Blank;
use super::bought::{Bought, holds};
use super::certificate::FRACTION;
use super::knapsack::fill_up;
use super::{Market, Pattern};

/// Steps of one search for what to put beside a pod.
const STEPS: u64 = 600;

/// Classes and steps after which nothing is bought anew: about a second.
const WORK_MAX: u64 = 12_000_000;

/// Times that nodes are given back.
const ROUNDS_MAX: usize = 64;

/// Shares of what all nodes cost that are given back in turn, in percent.
const GIVEN_BACK: [i64; 3] = [50, 30, 15];

/// Part of the way, in tenths, that a price goes towards what was paid.
const TENTHS: i128 = 3;

/// Returns nodes of `kinds` for `wanted` pods by class, which are worth about `worth`; pods that none
/// of these takes are left over.
pub(super) fn seeded(market: &Market, wanted: &[u32], worth: &[i64], kinds: &[usize]) -> Bought {
    let mut work = 0;
    let mut first = Fleet::of(market, wanted, (worth, kinds));
    if !first.buy_all(&mut work) {
        return Bought::nothing(wanted);
    }
    let (mut worth, mut best) = first.end();
    for round in 0..ROUNDS_MAX {
        let percent = GIVEN_BACK[round % GIVEN_BACK.len()];
        let (kept, left, saved) = without_worst(market, &best, (&worth, percent));
        let mut fleet = Fleet::of(market, &left, (&worth, kinds));
        if !fleet.buy_all(&mut work) {
            break;
        }
        let (paid, anew) = fleet.end();
        if (anew.left_over(), anew.price(market)) < (best.left_over(), saved) {
            best = kept;
            best.and_then(anew);
        }
        worth = paid;
    }
    best
}

/// Returns what is left of `bought` without the nodes that are used worst for their price, up to a
/// share of what all cost, the pods that then have no node, and what these nodes cost.
fn without_worst(
    market: &Market,
    bought: &Bought,
    (worth, percent): (&[i64], i64),
) -> (Bought, Vec<u32>, i64) {
    let price = |node: &Pattern| market.kinds[node.kind].price;
    let used = |node: &Pattern| worth_of(worth, &node.pods) / i128::from(price(node).max(1));
    let mut order: Vec<usize> = (0..bought.nodes.len()).collect();
    order.sort_by_cached_key(|index| (used(&bought.nodes[*index].0), *index));
    let most = i128::from(bought.price(market)) * i128::from(percent) / 100;
    let (mut saved, mut kept) = (0_i64, Bought::nothing(&bought.left));
    for (node, count) in order.into_iter().map(|index| &bought.nodes[index]) {
        if i128::from(saved) > most {
            kept.nodes.push((node.clone(), *count));
            continue;
        }
        saved = saved.saturating_add(price(node).saturating_mul(i64::from(*count)));
        for (class, pods) in &node.pods {
            kept.left[*class] += pods * count;
        }
    }
    let left = kept.left.clone();
    (kept, left, saved)
}

fn worth_of(worth: &[i64], pods: &[(usize, u32)]) -> i128 {
    pods.iter().map(|(class, n)| i128::from(worth[*class]) * i128::from(*n)).sum()
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
    fn of(market: &'a Market, wanted: &[u32], (worth, kinds): (&'a [i64], &'a [usize])) -> Self {
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
            let worth = worth_of(self.worth, &pods);
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

    fn buy(&mut self, node: &Pattern) {
        let last = |(class, n): &(usize, u32)| self.bought.left[*class] / (*n).max(1);
        let count = i128::from(node.pods.iter().map(last).min().unwrap_or(0));
        let (worth, price) =
            (worth_of(self.worth, &node.pods).max(1), self.market.kinds[node.kind].price);
        let price = i128::from(price) << FRACTION;
        for (class, n) in &node.pods {
            let part = i128::from(self.worth[*class]) * i128::from(*n) * count;
            let (was_worth, was_paid) = &mut self.paid[*class];
            *was_worth += part;
            *was_paid += part * price / worth;
        }
        self.bought.buy(node, u32::MAX);
    }

    /// Returns what pods are worth now, and the nodes.
    fn end(mut self) -> (Vec<i64>, Bought) {
        self.bought.shrink(self.market);
        (self.paid(), self.bought)
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
