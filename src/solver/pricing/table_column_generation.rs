//! Column generation with one row per class for many classes, with knapsack tables instead of
//! searches.
//!
//! Where whole pods decide the patterns, dual prices of fractional pods are misleading: the
//! seemingly cheapest nodes hold too few pods. The table of one offering yields a pattern with
//! every class at once, so few rounds suffice. Nodes that hold many pods also get patterns near the
//! relaxation, because their tables are too large to be exact. All offerings are scanned coarsely
//! from time to time, and the best ones are examined closely in between. Work is counted in rounds.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::num::NonZero;

use super::super::parallel::run_until_failure;
use super::column_generation::{ColumnGeneration, initial_master_problem, pattern};
use super::dual_bound::{pattern_value_bound, row_prices, to_fixed_point};
use super::empty_pattern::EmptyPattern;
use super::float_conversion::to_f64;
use super::knapsack::solve_knapsack;
use super::knapsack_table::{KnapsackTable, Rounding, TableResolution};
use super::master_problem::{MasterColumn, MasterProblem};
use super::purchase::holds;
use super::relaxation::relax_knapsack;
use super::{BinPackingProblem, Pattern};

/// Maximum number of rows. The work of each pivot grows with its square.
pub(super) const ROWS_MAX: usize = 768;

/// Rounds between two scans of all offerings.
const FULL_SCAN_INTERVAL: usize = 5;

/// Maximum scans of all offerings, for a purchase and for a bound.
const SCANS_TO_BUY: usize = 3;
const SCANS_TO_PROVE: usize = 16;

/// Offerings that are examined closely between scans.
const OFFERINGS_TO_BUY: usize = 10;
const OFFERINGS_TO_PROVE: usize = 6;

/// Maximum cells of an exact row in these tables.
const EXACT_CELLS_TO_BUY: i64 = 640;
const EXACT_CELLS_TO_PROVE: i64 = 5_000;

/// Cells of a row that is not exact.
const COARSE_CELLS: i64 = 240;

/// Maximum offerings bounded in parallel, whatever the number of cores. A table takes up to 150 MB.
const PARALLEL_BOUNDS_MAX: NonZero<usize> = NonZero::new(2).expect("it is not zero");

/// Maximum pattern value, in 2^-20 of the price, at which the bound is close enough.
const CLOSE_ENOUGH: i128 = (1 << 20) + (1 << 20) / 500;

/// Resolution of the scan of all offerings.
const SCAN_RESOLUTION: TableResolution =
    TableResolution { exact: 120, cells: 120, rounding: Rounding::Up };

/// Resolution of the tables that prove a bound.
const BOUND_RESOLUTION: TableResolution =
    TableResolution { exact: 5_000, cells: 1_000, rounding: Rounding::Down };

/// Initial dual prices of whole pods, in percent of those of fractional pods.
const INITIAL_DUAL_PERCENT: i64 = 110;

/// Minimum saving between two scans, as a share of the price of the master problem.
const SAVING_MIN: f64 = 1e-3;

/// Reduced cost, as a share of the price, above which a column is dropped.
const DROP_REDUCED_COST: f64 = 0.05;

/// Maximum patterns near the relaxation per offering and round, each with other classes.
const KNAPSACKS_MAX: usize = 12;

/// Percent of its dual price that a class retains after it occurs in such a pattern.
const REUSED_DUAL_PERCENT: i64 = 98;

/// Maximum steps of one knapsack search.
const KNAPSACK_STEPS: u64 = 500;

/// Maximum pivots of one round.
const PIVOTS: usize = 4_000;

/// Solution of the master problem.
#[derive(Debug, Clone, Default)]
pub(super) struct MasterSolution {
    /// Pairs of pattern and fractional number of nodes.
    pub nodes: Vec<(Pattern, f64)>,
    /// Dual price of one pod of each class, in 2^-20 micro-USD per hour.
    pub duals: Vec<i64>,
}

/// Returns a cheap fractional solution for the problem of `pricing`.
pub(super) fn generate_columns_by_tables(pricing: &ColumnGeneration) -> MasterSolution {
    let mut generation = TableGeneration::new(pricing);
    for _ in 0..SCANS_TO_BUY {
        let before = generation.master.price();
        let promising = generation.best_offerings(OFFERINGS_TO_BUY);
        generation.reoptimize(&promising, EXACT_CELLS_TO_BUY);
        if generation.master.price() > before * (1.0 - SAVING_MIN) {
            break;
        }
    }
    let counts = generation.master.counts();
    let used = generation.master.columns.iter().zip(counts).filter(|(_, count)| *count > 0.0);
    let nodes = used.map(|(column, count)| (pattern(generation.rows, column), count)).collect();
    MasterSolution { nodes, duals: generation.duals }
}

impl ColumnGeneration<'_> {
    /// Proves bounds with whole pods, with several times the work of a purchase. Does nothing if
    /// there are too many classes.
    pub(in crate::solver) fn prove_with_tables(&mut self) {
        if self.rows.is_empty() || self.rows.len() > ROWS_MAX {
            return;
        }
        let mut proofs = Vec::new();
        let mut generation = TableGeneration::new(self);
        let mut promising = generation.best_offerings(OFFERINGS_TO_PROVE);
        for _ in 0..SCANS_TO_PROVE {
            generation.reoptimize(&promising, EXACT_CELLS_TO_PROVE);
            let most =
                |offering: usize| pattern_upper_bound(&self.offerings[offering], &generation.duals);
            let at_once = Some(PARALLEL_BOUNDS_MAX);
            let most = run_until_failure(
                self.offerings.len(),
                at_once,
                |offering, _| most(offering),
                |_| false,
            );
            let share = |offering: usize| {
                most[offering] / i128::from(self.offerings[offering].price.max(1))
            };
            let mut order: Vec<usize> = (0..most.len()).collect();
            order.sort_by_key(|offering| (Reverse(share(*offering)), *offering));
            let is_close = order.first().is_none_or(|offering| share(*offering) <= CLOSE_ENOUGH);
            promising = order.into_iter().take(OFFERINGS_TO_PROVE).collect();
            proofs.push((generation.duals.clone(), most));
            if is_close {
                break;
            }
        }
        for (duals, most) in &proofs {
            self.record_bound(duals, most);
        }
    }
}

/// Returns an upper bound on the value of every pattern of a node.
fn pattern_upper_bound(empty: &EmptyPattern, duals: &[i64]) -> i128 {
    let guide: Vec<f64> = empty.items.iter().map(|item| to_f64(duals[item.class])).collect();
    let relaxed = pattern_value_bound(
        empty,
        duals,
        &row_prices(empty, &relax_knapsack(empty, &guide).prices),
    );
    KnapsackTable::new(empty, duals, 1.0, BOUND_RESOLUTION)
        .map_or(relaxed, |table| relaxed.min(table.upper_bound()))
}

struct TableGeneration<'a> {
    problem: &'a BinPackingProblem,
    empty_patterns: &'a [EmptyPattern],
    /// Class of each row of the master problem.
    rows: &'a [usize],
    master: MasterProblem,
    /// Dual price of one pod of each class, in 2^-20 micro-USD per hour.
    duals: Vec<i64>,
}

impl<'a> TableGeneration<'a> {
    fn new(pricing: &'a ColumnGeneration) -> Self {
        let ColumnGeneration { problem, offerings, rows, wanted, .. } = pricing;
        let whole = |dual: &i64| dual / 100 * INITIAL_DUAL_PERCENT;
        let duals = pricing.best().duals.iter().map(whole).collect();
        Self {
            problem,
            empty_patterns: offerings,
            rows,
            master: initial_master_problem(offerings, wanted, rows),
            duals,
        }
    }

    /// Improves the master problem with patterns of a few offerings.
    fn reoptimize(&mut self, offerings: &[usize], exact: i64) {
        self.master.drop_columns(DROP_REDUCED_COST);
        for _ in 0..FULL_SCAN_INTERVAL {
            let scan = |at: usize| self.columns(offerings[at], exact);
            let found = run_until_failure(offerings.len(), None, |at, _| scan(at), |_| false);
            found.into_iter().flatten().for_each(|column| self.master.add(column));
            self.master.optimize_with_candidate_list(PIVOTS);
            self.duals = self.master_duals();
        }
    }

    /// Returns the dual prices of the master problem by class.
    fn master_duals(&self) -> Vec<i64> {
        let mut duals = vec![0.0; self.problem.classes.len()];
        for (row, class) in self.rows.iter().enumerate() {
            duals[*class] = self.master.duals[row].max(0.0);
        }
        to_fixed_point(&duals)
    }

    /// Returns the offerings with the best value for their price, at the coarse resolution.
    fn best_offerings(&self, count: usize) -> Vec<usize> {
        let scan = |offering: usize| {
            let table = KnapsackTable::new(
                &self.empty_patterns[offering],
                &self.duals,
                1.0,
                SCAN_RESOLUTION,
            );
            table.map(|table| (table.best_value(), offering))
        };
        let found = run_until_failure(
            self.empty_patterns.len(),
            None,
            |offering, _| scan(offering),
            |_| false,
        );
        let mut best: Vec<(i64, usize)> = found.into_iter().flatten().collect();
        best.sort_by_key(|(share, offering)| (Reverse(*share), *offering));
        best.into_iter().take(count).map(|(_, offering)| offering).collect()
    }

    /// Returns columns of an offering that improve the master problem.
    fn columns(&self, offering: usize, exact: i64) -> Vec<MasterColumn> {
        let empty = &self.empty_patterns[offering];
        let resolution = TableResolution { exact, cells: COARSE_CELLS, rounding: Rounding::Up };
        let Some(table) = KnapsackTable::new(empty, &self.duals, 1.0, resolution) else {
            return Vec::new();
        };
        let mut found: BTreeSet<Vec<(usize, u32)>> = table.patterns(1.0).into_iter().collect();
        found.extend(patterns_near_relaxation(empty, &self.duals));
        let price = to_f64(empty.price);
        let row = |(item, n): (usize, u32)| {
            let row = self.rows.binary_search(&empty.items[item].class).ok()?;
            Some((row, f64::from(n)))
        };
        found
            .into_iter()
            .map(|pods| MasterColumn {
                offering,
                price,
                pods: pods.into_iter().filter_map(row).collect(),
            })
            .filter(|column| self.master.reduced_cost(column) < -1e-7 * price)
            .filter(|column| self.is_feasible(column))
            .collect()
    }

    /// Tables cover only two rows, and not every cap.
    fn is_feasible(&self, column: &MasterColumn) -> bool {
        let offering = &self.problem.offerings[column.offering];
        holds(self.problem, offering, &pattern(self.rows, column).pods)
    }
}

/// Returns good patterns as pods by item, each with other classes.
fn patterns_near_relaxation(empty: &EmptyPattern, duals: &[i64]) -> Vec<Vec<(usize, u32)>> {
    let (mut duals, mut all) = (duals.to_vec(), Vec::new());
    for _ in 0..KNAPSACKS_MAX {
        let counts = solve_knapsack(empty, &duals, 0, KNAPSACK_STEPS).counts;
        let pods: Vec<(usize, u32)> =
            counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        if pods.is_empty() {
            break;
        }
        for (item, _) in &pods {
            let dual = &mut duals[empty.items[*item].class];
            *dual = *dual / 100 * REUSED_DUAL_PERCENT;
        }
        all.push(pods);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::best_purchase::{best_purchase, thorough_purchase};
    use super::super::column_generation::Effort;
    use super::super::purchase::Purchase;
    use super::super::{DemandClass, NodeOffering, PodCap};
    use super::*;

    /// A hundred classes, of which one node holds two to four, with small nodes that seem cheapest.
    /// Groups of three of the first thirty exclude each other, by more caps than one knapsack
    /// covers.
    fn problem() -> (BinPackingProblem, Vec<u32>) {
        let request = |n: i64| vec![300 + 37 * (n * 53 % 71), 400 + 61 * (n * 29 % 83), 1];
        let classes: Vec<DemandClass> =
            (0..100).map(|n| DemandClass { requests: request(n) }).collect();
        let offering = |(cpu, memory, price): (i64, i64, i64)| {
            let room = vec![cpu, memory, 20];
            let fits = |demand: &DemandClass| {
                demand.requests.iter().zip(&room).all(|(request, room)| request <= room)
            };
            NodeOffering { price, admits: classes.iter().map(fits).collect(), room }
        };
        let offerings = [(4_000, 7_500, 40_000), (4_000, 15_000, 52_000), (8_000, 15_000, 88_000)];
        let offerings =
            offerings.into_iter().chain([(16_000, 30_000, 190_000)]).map(offering).collect();
        let wanted = (0..100).map(|n| 40 + n * 7 % 90).collect();
        let apart = |n: usize| PodCap { members: (3 * n..3 * n + 3).collect(), max_pods: 1 };
        let caps = (0..10).map(apart).collect();
        (BinPackingProblem::new(classes, offerings, caps), wanted)
    }

    const EFFORT: Effort =
        Effort { fractional_rounds: 80, rounds: 0, steps: 500, steps_total: 100_000 };

    #[test]
    fn thorough_purchase_is_close_to_the_table_bound() {
        let (problem, wanted) = problem();
        let mut pricing = ColumnGeneration::new(&problem, &wanted, EFFORT);
        pricing.price_fractional_pods();
        let fractional = pricing.best().bound;
        pricing.prove_with_tables();
        let proven = pricing.best().bound;
        let price = |purchase: &Purchase| {
            assert_eq!(purchase.left_over(), 0);
            for (node, _) in &purchase.nodes {
                assert!(holds(&problem, &problem.offerings[node.offering], &node.pods), "{node:?}");
            }
            purchase.price(&problem)
        };
        let shared = price(&best_purchase(&problem, &wanted));
        let tight = price(&thorough_purchase(&problem, &wanted).expect("many classes"));
        assert!(fractional < proven && proven <= tight, "{fractional} {proven} {tight}");
        assert!(tight * 100 <= proven * 102, "{tight} of {proven}");
        assert!(shared * 100 > proven * 104, "{shared} of {proven}: not what this test is about");
    }

    #[test]
    fn master_solution_covers_all_pods_above_the_bound() {
        let (problem, wanted) = problem();
        let mut pricing = ColumnGeneration::new(&problem, &wanted, EFFORT);
        pricing.price_fractional_pods();
        let solution = generate_columns_by_tables(&pricing);
        let mut covered = vec![0.0; wanted.len()];
        for (node, count) in &solution.nodes {
            assert!(holds(&problem, &problem.offerings[node.offering], &node.pods), "{node:?}");
            node.pods.iter().for_each(|(class, n)| covered[*class] += f64::from(*n) * count);
        }
        for (covered, wanted) in covered.iter().zip(&wanted) {
            assert!(*covered > f64::from(*wanted) - 1e-6, "{covered} of {wanted}");
        }
        pricing.prove_with_tables();
        let price =
            |(node, count): &(Pattern, f64)| to_f64(problem.offerings[node.offering].price) * count;
        let price: f64 = solution.nodes.iter().map(price).sum();
        assert!(price >= to_f64(pricing.best().bound), "{price} of {}", pricing.best().bound);
    }
}
