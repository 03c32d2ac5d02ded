//! Diving heuristic: turns fractional master solutions into whole nodes.
//!
//! The heuristic buys the whole part of each pattern, or else the patterns that are nearly whole.
//! It then solves the master problem again for the remaining pods, starting from the known
//! patterns. Once few pods remain, they are solved exactly.

use super::column_generation::{ColumnGeneration, Effort};
use super::exact::exact_purchase;
use super::float_conversion::floor_to_i64;
use super::purchase::Purchase;
use super::{BinPackingProblem, Pattern};

/// Minimum fraction of a node that is rounded up.
const ROUND_UP_FROM: f64 = 0.9;

/// Maximum number of master problems.
const DIVES_MAX: usize = 200;

/// Work limits for each master problem after the first.
const EFFORT: Effort = Effort { fractional_rounds: 0, rounds: 5, steps: 500, steps_total: 100_000 };

/// Returns a purchase for `wanted` pods by class. `pricing` must have finished its fractional run.
pub(super) fn diving_heuristic(
    problem: &BinPackingProblem,
    wanted: &[u32],
    mut pricing: ColumnGeneration,
) -> Purchase {
    let mut purchase = Purchase::empty(wanted);
    let mut solution = pricing.price_whole_pods(&[]);
    let mut duals = pricing.best().duals.clone();
    for _ in 0..DIVES_MAX {
        if !buy_rounded_down(&mut purchase, &solution) && !buy_rounded_up(&mut purchase, &solution)
        {
            break;
        }
        let left = purchase.left.clone();
        if let Some(exact) = exact_purchase(problem, &left) {
            exact.nodes.iter().for_each(|node| _ = purchase.buy(node, 1));
            break;
        }
        let known: Vec<Pattern> = solution.into_iter().map(|(node, _)| node).collect();
        let mut pricing = ColumnGeneration::new(problem, &left, EFFORT);
        pricing.start_from_duals(&duals);
        solution = pricing.price_whole_pods(&known);
        duals.clone_from(&pricing.best().duals);
    }
    purchase
}

pub(super) fn buy_rounded_down(purchase: &mut Purchase, solution: &[(Pattern, f64)]) -> bool {
    let mut any = false;
    for (node, count) in solution {
        let count = u32::try_from(floor_to_i64(count + 1e-6)).unwrap_or(u32::MAX);
        any |= count > 0 && purchase.buy(node, count);
    }
    any
}

/// Rounds nearly whole patterns up, and at least the largest fraction.
fn buy_rounded_up(purchase: &mut Purchase, solution: &[(Pattern, f64)]) -> bool {
    let mut parts: Vec<&(Pattern, f64)> =
        solution.iter().filter(|(_, count)| *count > 1e-6).collect();
    parts.sort_by(|(x, a), (y, b)| b.total_cmp(a).then(x.cmp(y)));
    let mut any = false;
    for (node, count) in parts {
        if !any || *count >= ROUND_UP_FROM {
            any |= purchase.buy(node, 1);
        }
    }
    any
}
