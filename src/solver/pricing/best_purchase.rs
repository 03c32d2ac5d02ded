//! Chooses the cheapest purchase that the strategies of this module find.
//!
//! A small problem is solved exactly. For all others the best result of several heuristics wins:
//! some suit few pods a node, others suit many.

use std::collections::BTreeSet;

use super::BinPackingProblem;
use super::ROWS_MAX;
use super::column_generation::{ColumnGeneration, Effort};
use super::diving::{buy_rounded_down, diving_heuristic};
use super::dual_price_greedy::dual_price_greedy;
use super::empty_pattern::copies;
use super::exact::exact_purchase;
use super::fractional_rounding::round_fractional_solution;
use super::growing_best_fit::growing_best_fit;
use super::purchase::Purchase;
use super::ruin_and_recreate::ruin_and_recreate;
use super::table_column_generation::{self, generate_columns_by_tables};

/// Work limits for the dual prices and the first master solution.
const EFFORT: Effort =
    Effort { fractional_rounds: 80, rounds: 60, steps: 500, steps_total: 500_000 };

/// Work limits for the pods that remain after most pods have nodes.
const REMAINING_EFFORT: Effort =
    Effort { fractional_rounds: 40, rounds: 20, steps: 500, steps_total: 200_000 };

/// Minimum number of mean-sized pods that a node must hold, for each attempt to round a fractional
/// solution of many classes.
const PODS_PER_NODE_MIN: [u32; 3] = [0, 8, 32];

/// Returns a purchase for `wanted` pods by class, from the offerings of `problem` only.
pub(in crate::solver) fn best_purchase(problem: &BinPackingProblem, wanted: &[u32]) -> Purchase {
    let mut purchase = Purchase::empty(wanted);
    if let Some(exact) = exact_purchase(problem, wanted) {
        exact.nodes.iter().for_each(|node| _ = purchase.buy(node, 1));
        return purchase;
    }
    // Column generation in clusters ignores the caps of single classes.
    if wanted.iter().filter(|count| **count > 0).count() > ROWS_MAX {
        return growing_best_fit(problem, wanted)
            .unwrap_or_else(|| best_by_offering_size(problem, wanted));
    }
    let mut pricing = ColumnGeneration::new(problem, wanted, EFFORT);
    pricing.price_fractional_pods();
    purchase = round_fractional_solution(problem, wanted, pricing.fractional());
    let rest = purchase_remaining(problem, &purchase.left);
    purchase.extend(rest);
    purchase.downsize(problem);
    let mut dived = diving_heuristic(problem, wanted, pricing);
    dived.downsize(problem);
    cheaper_of(problem, purchase, dived)
}

fn cheaper_of(problem: &BinPackingProblem, one: Purchase, other: Purchase) -> Purchase {
    let key = |purchase: &Purchase| (purchase.left_over(), purchase.price(problem));
    if key(&other) < key(&one) { other } else { one }
}

/// Returns the cheapest purchase over several minimum node sizes. Dual prices of fractional pods do
/// not show that small nodes waste room on whole pods.
fn best_by_offering_size(problem: &BinPackingProblem, wanted: &[u32]) -> Purchase {
    let mut best: Option<Purchase> = None;
    for pods in PODS_PER_NODE_MIN {
        let offerings = offerings_holding(problem, wanted, pods);
        let is_other = pods == 0 || offerings.len() < problem.offerings.len();
        if offerings.is_empty() || !is_other {
            continue;
        }
        let known = offerings.iter().map(|offering| problem.offerings[*offering].clone()).collect();
        let (classes, caps) = (problem.classes.clone(), problem.caps.clone());
        let part = BinPackingProblem::new(classes, known, caps);
        let mut pricing = ColumnGeneration::new(&part, wanted, EFFORT);
        pricing.price_fractional_pods();
        let mut purchase = round_fractional_solution(&part, wanted, pricing.fractional());
        for (node, _) in &mut purchase.nodes {
            node.offering = offerings[node.offering];
        }
        let rest = purchase_remaining(problem, &purchase.left);
        purchase.extend(rest);
        purchase.downsize(problem);
        best = Some(match best {
            Some(best) => cheaper_of(problem, best, purchase),
            None => purchase,
        });
    }
    best.unwrap_or_else(|| Purchase::empty(wanted))
}

/// Returns the offerings that hold at least `pods` pods of the mean size.
fn offerings_holding(problem: &BinPackingProblem, wanted: &[u32], pods: u32) -> Vec<usize> {
    let count: i128 = wanted.iter().map(|count| i128::from(*count)).sum();
    let mean = |resource: usize| {
        let requests = problem.classes.iter().zip(wanted);
        let all: i128 = requests
            .map(|(demand, count)| i128::from(demand.requests[resource]) * i128::from(*count))
            .sum();
        i64::try_from(all / count.max(1)).unwrap_or(i64::MAX)
    };
    let mean: Vec<i64> = (0..problem.resources()).map(mean).collect();
    let holds = |offering: &usize| copies(&mean, &problem.offerings[*offering].room, pods) >= pods;
    (0..problem.offerings.len()).filter(holds).collect()
}

/// Minimum number of fractional nodes that makes an offering part of the solution.
const USED_NODES_MIN: f64 = 0.01;

/// Mean pods per class from which each class gets a row of its own. Nodes are then bought in large
/// numbers, and rounding costs little.
const MANY_ALIKE_PODS: u64 = 32;

/// Gap to the bound, in percent, at which the search stops.
const CLOSE_PERCENT: i64 = 2;

/// Returns a purchase for more classes than [`ROWS_MAX`], found with more work than one trial
/// deserves. Returns `None` if caps decide the number of nodes or if the problem has fewer classes.
pub(in crate::solver) fn thorough_purchase(
    problem: &BinPackingProblem,
    wanted: &[u32],
) -> Option<Purchase> {
    let classes = wanted.iter().filter(|count| **count > 0).count();
    if classes <= ROWS_MAX || growing_best_fit(problem, wanted).is_some() {
        return None;
    }
    let mut pricing = ColumnGeneration::new(problem, wanted, EFFORT);
    pricing.price_fractional_pods();
    let pods: u64 = wanted.iter().map(|count| u64::from(*count)).sum();
    let is_large = pods / u64::try_from(classes).unwrap_or(u64::MAX) >= MANY_ALIKE_PODS;
    if is_large && pricing.rows() <= table_column_generation::ROWS_MAX {
        return Some(purchase_many_alike(problem, wanted, &pricing));
    }
    let nodes = &pricing.fractional().nodes;
    let offerings: Vec<usize> =
        (0..nodes.len()).filter(|offering| nodes[*offering] > USED_NODES_MIN).collect();
    Some(with_remaining(problem, Purchase::empty(wanted), &pricing.best().duals, &offerings))
}

/// Returns a purchase for many pods per class: the rounded fractional solution if it is close to
/// the bound, else the rounded master solution.
fn purchase_many_alike(
    problem: &BinPackingProblem,
    wanted: &[u32],
    pricing: &ColumnGeneration,
) -> Purchase {
    let shared = best_by_offering_size(problem, wanted);
    if shared.price(problem) / 100 * (100 - CLOSE_PERCENT) <= pricing.best().bound {
        return shared;
    }
    let solution = generate_columns_by_tables(pricing);
    let mut purchase = Purchase::empty(wanted);
    buy_rounded_down(&mut purchase, &solution.nodes);
    let offerings: BTreeSet<usize> = solution.nodes.iter().map(|(node, _)| node.offering).collect();
    let offerings: Vec<usize> = offerings.into_iter().collect();
    cheaper_of(problem, shared, with_remaining(problem, purchase, &solution.duals, &offerings))
}

/// Completes `purchase` for the remaining pods, the hardest pods first.
fn with_remaining(
    problem: &BinPackingProblem,
    mut purchase: Purchase,
    duals: &[i64],
    offerings: &[usize],
) -> Purchase {
    let around = ruin_and_recreate(problem, &purchase.left, duals, offerings);
    purchase.extend(around);
    let rest = purchase_remaining(problem, &purchase.left);
    purchase.extend(rest);
    purchase
}

fn purchase_remaining(problem: &BinPackingProblem, left: &[u32]) -> Purchase {
    let mut pricing = ColumnGeneration::new(problem, left, REMAINING_EFFORT);
    pricing.price_fractional_pods();
    let greedy = dual_price_greedy(problem, left, &pricing.best().duals);
    if pricing.rows() > ROWS_MAX {
        return greedy;
    }
    let dived = diving_heuristic(problem, left, pricing);
    cheaper_of(problem, greedy, dived)
}
