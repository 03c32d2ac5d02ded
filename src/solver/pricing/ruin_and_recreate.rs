//! Ruin and recreate, for more classes than can be priced one by one.
//!
//! The most valuable remaining pod gets a node of each candidate offering, filled with the most
//! valuable pods beside it. The node with the best value for its price is bought as often as its
//! pods allow. The search then repeatedly removes the worst nodes and buys nodes for their pods
//! again. Dual prices follow the price paid, so that pods on bad nodes come earlier in the next
//! round. A cheaper result replaces the old one. Work is counted in examined pods.

use std::cmp::Reverse;

use super::dual_bound::FRACTION_BITS;
use super::empty_pattern::EmptyPattern;
use super::knapsack::extend_pattern;
use super::purchase::{Purchase, holds};
use super::{BinPackingProblem, Pattern};

/// Maximum steps of one search for pods beside the seed.
const KNAPSACK_STEPS: u64 = 600;

/// Maximum work, in classes and steps. It takes about a second.
const WORK_MAX: u64 = 12_000_000;

/// Maximum number of rounds.
const ROUNDS_MAX: usize = 64;

/// Shares of the total price that are removed in turn, in percent.
const RUIN_PERCENTS: [i64; 3] = [50, 30, 15];

/// Step of a dual price towards the price paid, in tenths.
const SMOOTHING_TENTHS: i128 = 3;

/// Returns a purchase of `offerings` for `wanted` pods by class, starting from approximate dual
/// prices. Pods that no offering admits remain.
pub(super) fn ruin_and_recreate(
    problem: &BinPackingProblem,
    wanted: &[u32],
    duals: &[i64],
    offerings: &[usize],
) -> Purchase {
    let mut work = 0;
    let mut first = Recreation::new(problem, wanted, duals, offerings);
    if !first.buy_all(&mut work) {
        return Purchase::empty(wanted);
    }
    let (mut duals, mut best) = first.finish();
    for round in 0..ROUNDS_MAX {
        let percent = RUIN_PERCENTS[round % RUIN_PERCENTS.len()];
        let (retained, left, saved) = ruin(problem, &best, &duals, percent);
        let mut recreation = Recreation::new(problem, &left, &duals, offerings);
        if !recreation.buy_all(&mut work) {
            break;
        }
        let (new_duals, rebuilt) = recreation.finish();
        if (rebuilt.left_over(), rebuilt.price(problem)) < (best.left_over(), saved) {
            best = retained;
            best.extend(rebuilt);
        }
        duals = new_duals;
    }
    best
}

/// Removes the nodes with the lowest value for their price, up to a share of the total price.
/// Returns the retained nodes, the remaining pods and the price of the removed nodes.
fn ruin(
    problem: &BinPackingProblem,
    purchase: &Purchase,
    duals: &[i64],
    percent: i64,
) -> (Purchase, Vec<u32>, i64) {
    let price = |node: &Pattern| problem.offerings[node.offering].price;
    let value_per_price =
        |node: &Pattern| value_of(duals, &node.pods) / i128::from(price(node).max(1));
    let mut order: Vec<usize> = (0..purchase.nodes.len()).collect();
    order.sort_by_cached_key(|index| (value_per_price(&purchase.nodes[*index].0), *index));
    let most = i128::from(purchase.price(problem)) * i128::from(percent) / 100;
    let (mut saved, mut retained) = (0_i64, Purchase::empty(&purchase.left));
    for (node, count) in order.into_iter().map(|index| &purchase.nodes[index]) {
        if i128::from(saved) > most {
            retained.nodes.push((node.clone(), *count));
            continue;
        }
        saved = saved.saturating_add(price(node).saturating_mul(i64::from(*count)));
        for (class, pods) in &node.pods {
            retained.left[*class] += pods * count;
        }
    }
    let left = retained.left.clone();
    (retained, left, saved)
}

fn value_of(duals: &[i64], pods: &[(usize, u32)]) -> i128 {
    pods.iter().map(|(class, n)| i128::from(duals[*class]) * i128::from(*n)).sum()
}

struct Recreation<'a> {
    problem: &'a BinPackingProblem,
    duals: &'a [i64],
    offerings: &'a [usize],
    purchase: Purchase,
    /// For each class, the dual value of its bought pods and the price paid for them.
    paid: Vec<(i128, i128)>,
}

impl<'a> Recreation<'a> {
    fn new(
        problem: &'a BinPackingProblem,
        wanted: &[u32],
        duals: &'a [i64],
        offerings: &'a [usize],
    ) -> Self {
        let paid = vec![(0, 0); wanted.len()];
        Self { problem, duals, offerings, purchase: Purchase::empty(wanted), paid }
    }

    /// Buys nodes until no admissible pod remains. Returns false if the work limit is reached.
    fn buy_all(&mut self, work: &mut u64) -> bool {
        let mut order: Vec<usize> = (0..self.duals.len()).collect();
        order.sort_by_key(|class| (Reverse(self.duals[*class]), *class));
        for class in order {
            while self.purchase.left[class] > 0 {
                let Some(node) = self.best_node_with(class, work) else { break };
                if *work > WORK_MAX {
                    return false;
                }
                self.buy(&node);
            }
        }
        true
    }

    /// Returns the node with a pod of `class` that has the best value for its price.
    fn best_node_with(&self, class: usize, work: &mut u64) -> Option<Pattern> {
        let mut best: Option<(i128, Pattern)> = None;
        for offering in self.offerings.iter().copied() {
            let node_offering = &self.problem.offerings[offering];
            if !node_offering.admits[class] {
                continue;
            }
            let empty = EmptyPattern::new(self.problem, node_offering, &self.purchase.left);
            *work += u64::try_from(empty.items.len()).unwrap_or(u64::MAX) + KNAPSACK_STEPS;
            let Some(item) = empty.items.iter().position(|item| item.class == class) else {
                continue;
            };
            let mut seed = vec![0; empty.items.len()];
            seed[item] = 1;
            let pods =
                empty.pods(&extend_pattern(&empty, self.duals, &seed, KNAPSACK_STEPS).counts);
            if !holds(self.problem, node_offering, &pods) {
                continue;
            }
            let value = value_of(self.duals, &pods);
            let node = Pattern { offering, pods };
            let price = |node: &Pattern| i128::from(self.problem.offerings[node.offering].price);
            let is_better =
                |(other, of): &(i128, Pattern)| value * price(of) > other * price(&node);
            if best.as_ref().is_none_or(is_better) {
                best = Some((value, node));
            }
        }
        best.map(|(_, node)| node)
    }

    fn buy(&mut self, node: &Pattern) {
        let last = |(class, n): &(usize, u32)| self.purchase.left[*class] / (*n).max(1);
        let count = i128::from(node.pods.iter().map(last).min().unwrap_or(0));
        let (value, price) =
            (value_of(self.duals, &node.pods).max(1), self.problem.offerings[node.offering].price);
        let price = i128::from(price) << FRACTION_BITS;
        for (class, n) in &node.pods {
            let part = i128::from(self.duals[*class]) * i128::from(*n) * count;
            let (value_bought, price_paid) = &mut self.paid[*class];
            *value_bought += part;
            *price_paid += part * price / value;
        }
        self.purchase.buy(node, u32::MAX);
    }

    /// Returns the updated dual prices and the purchase.
    fn finish(mut self) -> (Vec<i64>, Purchase) {
        self.purchase.downsize(self.problem);
        (self.updated_duals(), self.purchase)
    }

    /// Moves each dual price towards the price paid.
    fn updated_duals(&self) -> Vec<i64> {
        let follow = |(dual, (value_bought, price_paid)): (&i64, &(i128, i128))| {
            if *value_bought == 0 {
                return *dual;
            }
            let mixed = value_bought * (10 - SMOOTHING_TENTHS) + price_paid * SMOOTHING_TENTHS;
            i64::try_from(i128::from(*dual) * (mixed >> 20) / ((value_bought * 10) >> 20).max(1))
                .unwrap_or(i64::MAX)
        };
        self.duals.iter().zip(&self.paid).map(follow).collect()
    }
}
