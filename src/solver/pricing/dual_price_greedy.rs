//! Greedy purchase: node after node, each with the highest pattern value for its price.
//!
//! The method is quick. Its result is nearly as good as the dual prices while pods of most classes
//! remain.

use super::empty_pattern::EmptyPattern;
use super::knapsack::solve_knapsack;
use super::purchase::Purchase;
use super::{BinPackingProblem, Pattern};

/// Number of offerings that each step tries: the best of the last full scan.
const OFFERINGS_TRIED: usize = 6;

/// Steps after which all offerings are tried again.
const FULL_SCAN_INTERVAL: usize = 16;

/// Maximum steps of one knapsack search.
const KNAPSACK_STEPS: u64 = 200;

/// Returns a purchase for `wanted` pods by class, guided by `duals`.
pub(super) fn dual_price_greedy(
    problem: &BinPackingProblem,
    wanted: &[u32],
    duals: &[i64],
) -> Purchase {
    let mut purchase = Purchase::empty(wanted);
    let mut tried = Vec::new();
    while purchase.left_over() > 0 {
        for step in 0..FULL_SCAN_INTERVAL {
            if step == 0 {
                tried = (0..problem.offerings.len()).collect();
            }
            let best = candidates(problem, &purchase.left, duals, &tried);
            let Some((_, node)) = best.first() else {
                if step == 0 {
                    return purchase;
                }
                break;
            };
            purchase.buy(node, u32::MAX);
            tried = best.iter().take(OFFERINGS_TRIED).map(|(_, node)| node.offering).collect();
        }
    }
    purchase
}

/// Returns the best pattern of each offering, the highest value for its price first.
fn candidates(
    problem: &BinPackingProblem,
    left: &[u32],
    duals: &[i64],
    offerings: &[usize],
) -> Vec<(i128, Pattern)> {
    let fill = |offering: usize| {
        let empty = EmptyPattern::new(problem, &problem.offerings[offering], left);
        let found = solve_knapsack(&empty, duals, 0, KNAPSACK_STEPS);
        let pods = empty.pods(&found.counts);
        (!pods.is_empty()).then_some((found.value, Pattern { offering, pods }))
    };
    let mut candidates: Vec<(i128, Pattern)> = offerings.iter().copied().filter_map(fill).collect();
    let price = |node: &Pattern| i128::from(problem.offerings[node.offering].price);
    candidates.sort_by(|(a, x), (b, y)| (b * price(x)).cmp(&(a * price(y))).then(x.cmp(y)));
    candidates
}
