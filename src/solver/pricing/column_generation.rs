//! Column generation (Gilmore and Gomory): dual prices of pods and patterns that improve each
//! other.
//!
//! The master problem prices pods by its known patterns. A knapsack for each offering finds the
//! pattern with the highest value at these prices. A pattern whose value exceeds the price of its
//! node enters the master problem.
//!
//! The dual prices of the master problem oscillate. Each round therefore prices at the midpoint
//! between them and the best dual prices so far (dual price smoothing, after Wentges). Every full
//! round yields a bound, and the best bound counts.
//!
//! It runs twice. The first run allows fractional pods: it is quick, and its prices are nearly
//! right. The second run uses whole pods. It follows where so few pods share a node that this
//! matters, or where patterns are needed.

use std::collections::BTreeMap;

use super::class_clusters::ClassClusters;
use super::dual_bound::{
    FIXED_POINT_ONE, FRACTION_BITS, dual_bound, farley_scaled, pattern_value_bound, row_prices,
    to_fixed_point,
};
use super::empty_pattern::EmptyPattern;
use super::float_conversion::{floor_to_i64, to_f64};
use super::knapsack::{KnapsackSolution, solve_knapsack};
use super::master_problem::{MasterColumn, MasterProblem};
use super::relaxation::relax_knapsack;
use super::{BinPackingProblem, Pattern, ROWS_MAX};

/// Weight of the best dual prices so far in the smoothed dual prices.
const STABILIZATION_WEIGHT: f64 = 0.5;

/// Maximum reduced cost, as a share of the price, of a pattern that is returned although no node
/// uses it.
const RETAINED_REDUCED_COST: f64 = 0.03;

/// Further patterns per offering that a round adds beside the best.
const EXTRA_PATTERNS_MAX: usize = 2;

/// Maximum number of initial patterns per offering.
const INITIAL_PATTERNS_MAX: usize = 32;

/// Rounds after which all offerings are priced again.
const FULL_SCAN_INTERVAL: usize = 8;

/// Relative gap between bound and master problem at which the search stops.
const GAP_CLOSED: f64 = 1e-4;

/// Work limits of column generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::solver) struct Effort {
    /// Maximum rounds with fractional pods.
    pub fractional_rounds: usize,
    /// Maximum rounds with whole pods.
    pub rounds: usize,
    /// Maximum steps of one knapsack search.
    pub steps: u64,
    /// Steps of all knapsack searches after which no further round starts.
    pub steps_total: u64,
}

/// Dual prices and the bound that they prove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::solver) struct DualSolution {
    /// Bound in micro-USD per hour.
    pub bound: i64,
    /// Dual price of one pod of each class, in 2^-20 micro-USD per hour.
    pub duals: Vec<i64>,
}

/// State of column generation for one problem.
pub(in crate::solver) struct ColumnGeneration<'a> {
    pub(super) problem: &'a BinPackingProblem,
    pub(super) wanted: &'a [u32],
    pub(super) offerings: Vec<EmptyPattern>,
    /// Classes with wanted pods that some offering admits. Each is a row of the master problem.
    pub(super) rows: Vec<usize>,
    best: DualSolution,
    fractional: FractionalSolution,
    steps: u64,
    effort: Effort,
}

/// The cheapest solution of the master problem with fractional pods.
#[derive(Debug, Clone, Default)]
pub(in crate::solver) struct FractionalSolution {
    /// For each class, pairs of offering and share of the pods.
    pub shares: Vec<Vec<(usize, f64)>>,
    /// Number of nodes of each offering.
    pub nodes: Vec<f64>,
}

/// Selects fractional or whole pods in the patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternKind {
    FractionalPods,
    WholePods,
}

impl<'a> ColumnGeneration<'a> {
    /// Prepares column generation for `wanted` pods by class of `problem`.
    pub(in crate::solver) fn new(
        problem: &'a BinPackingProblem,
        wanted: &'a [u32],
        effort: Effort,
    ) -> Self {
        let empty = |offering| EmptyPattern::new(problem, offering, wanted);
        let offerings: Vec<EmptyPattern> = problem.offerings.iter().map(empty).collect();
        let mut is_taken = vec![false; wanted.len()];
        offerings
            .iter()
            .flat_map(|empty| &empty.items)
            .for_each(|item| is_taken[item.class] = true);
        let rows = (0..wanted.len()).filter(|class| is_taken[*class]).collect();
        let best = DualSolution { bound: 0, duals: vec![0; wanted.len()] };
        let fractional = FractionalSolution {
            shares: vec![Vec::new(); wanted.len()],
            nodes: vec![0.0; problem.offerings.len()],
        };
        Self { problem, wanted, offerings, rows, best, fractional, steps: 0, effort }
    }

    /// Returns the number of rows of the master problem.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the dual prices with the best bound so far.
    pub(in crate::solver) fn best(&self) -> &DualSolution {
        &self.best
    }

    /// Runs column generation with fractional pods.
    pub(in crate::solver) fn price_fractional_pods(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let first = if self.rows.len() > ROWS_MAX {
            let clusters = ClassClusters::new(self.problem, self.wanted);
            let mut coarse =
                ColumnGeneration::new(&clusters.problem, &clusters.wanted, self.effort);
            coarse.price_fractional_pods();
            self.fractional.nodes.clone_from(&coarse.fractional.nodes);
            for (class, cluster) in clusters.cluster_of.iter().enumerate() {
                if let Some(cluster) = cluster {
                    self.fractional.shares[class].clone_from(&coarse.fractional.shares[*cluster]);
                }
            }
            self.duals_from_clusters(&clusters, &coarse)
        } else {
            self.dominant_share_duals()
        };
        self.prove_from(&first);
        if self.rows.len() <= ROWS_MAX {
            let mut master = initial_master_problem(&self.offerings, self.wanted, &self.rows);
            self.add_initial_columns(&mut master);
            self.run(&mut master, PatternKind::FractionalPods, self.effort.fractional_rounds);
            self.record_fractional(&master);
        }
    }

    fn record_fractional(&mut self, master: &MasterProblem) {
        let mut pods = vec![BTreeMap::new(); self.wanted.len()];
        for (column, count) in master.columns.iter().zip(master.counts()).filter(|(_, n)| *n > 1e-9)
        {
            self.fractional.nodes[column.offering] += count;
            for (row, n) in &column.pods {
                *pods[self.rows[*row]].entry(column.offering).or_insert(0.0) += n * count;
            }
        }
        for (shares, pods) in self.fractional.shares.iter_mut().zip(pods) {
            let all: f64 = pods.values().sum();
            *shares = pods.into_iter().map(|(offering, n)| (offering, n / all)).collect();
        }
    }

    /// Returns the cheapest solution with fractional pods.
    pub(in crate::solver) fn fractional(&self) -> &FractionalSolution {
        &self.fractional
    }

    /// Returns true if whole pods can prove a higher bound. They cannot where many pods share a
    /// node of a paying offering, because such knapsacks are not searched completely.
    pub(in crate::solver) fn whole_pods_can_tighten_bound(&self) -> bool {
        self.rows.len() <= ROWS_MAX
            && self.offerings.iter().all(|empty| {
                let values = item_values(empty, &self.best.duals);
                let relaxed = relax_knapsack(empty, &values);
                let pays = relaxed.value / FIXED_POINT_ONE > to_f64(empty.price) * (1.0 - 1e-3);
                !pays || super::knapsack::has_few_pods(&relaxed.counts)
            })
    }

    /// Starts from dual prices of a problem with the same classes and other pod counts.
    pub(in crate::solver) fn start_from_duals(&mut self, duals: &[i64]) {
        let most: Vec<i128> = self
            .offerings
            .iter()
            .map(|empty| fractional_pattern(empty, duals).upper_bound)
            .collect();
        self.record_bound(duals, &most);
    }

    /// Runs column generation with whole pods, starting from the `known` patterns. Returns pairs of
    /// pattern and number of nodes, including unused patterns with a low reduced cost.
    pub(in crate::solver) fn price_whole_pods(&mut self, known: &[Pattern]) -> Vec<(Pattern, f64)> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let mut master = initial_master_problem(&self.offerings, self.wanted, &self.rows);
        for pattern in known {
            self.add_known_pattern(&mut master, pattern);
        }
        let duals = self.best.duals.clone();
        if known.is_empty() {
            for offering in 0..self.offerings.len() {
                let found = self.solve(offering, &duals, 0);
                self.add_column(&mut master, offering, &found);
            }
        }
        self.run(&mut master, PatternKind::WholePods, self.effort.rounds);
        let counts = master.counts();
        let useful = |(column, count): &(&MasterColumn, f64)| {
            *count > 0.0 || master.reduced_cost(column) < column.price * RETAINED_REDUCED_COST
        };
        let pattern = |(column, count): (&MasterColumn, f64)| (pattern(&self.rows, column), count);
        master.columns.iter().zip(counts).filter(useful).map(pattern).collect()
    }

    /// Adds a known pattern, reduced to the wanted pods, to the master problem.
    fn add_known_pattern(&self, master: &mut MasterProblem, pattern: &Pattern) {
        let pods: Vec<(usize, f64)> = pattern
            .pods
            .iter()
            .filter_map(|(class, n)| {
                let row = self.rows.binary_search(class).ok()?;
                Some((row, f64::from((*n).min(self.wanted[*class]))))
            })
            .collect();
        if !pods.is_empty() {
            let price = to_f64(self.offerings[pattern.offering].price);
            master.add(MasterColumn { offering: pattern.offering, price, pods });
        }
    }

    /// Alternates between the master problem and the pricing of offerings.
    ///
    /// All offerings are priced every few rounds, and whenever the promising ones yield no
    /// improvement. Only such a full round proves a bound.
    fn run(&mut self, master: &mut MasterProblem, pattern_kind: PatternKind, rounds: usize) {
        let all: Vec<usize> = (0..self.offerings.len()).collect();
        let mut promising = Vec::new();
        let (mut weight, mut rounds_since_scan) = (STABILIZATION_WEIGHT, FULL_SCAN_INTERVAL);
        for _ in 0..rounds {
            master.optimize(4 * self.rows.len() + 100);
            let smoothed_duals = self.smoothed_duals(master, weight);
            let is_full = rounds_since_scan >= FULL_SCAN_INTERVAL;
            let (bounds, is_improved) = self.price_offerings(
                master,
                pattern_kind,
                if is_full { &all } else { &promising },
                &smoothed_duals,
            );
            rounds_since_scan += 1;
            if is_full {
                self.record_bound(&smoothed_duals, &bounds);
                promising = self.promising_offerings(&bounds);
                rounds_since_scan = 0;
            }
            let is_close = to_f64(self.best.bound) >= master.price() * (1.0 - GAP_CLOSED);
            if is_close || self.steps > self.effort.steps_total {
                break;
            }
            match (is_improved, is_full, weight > 0.0) {
                (true, _, _) => weight = STABILIZATION_WEIGHT,
                (false, false, _) => rounds_since_scan = FULL_SCAN_INTERVAL,
                (false, true, true) => (weight, rounds_since_scan) = (0.0, FULL_SCAN_INTERVAL),
                // No pattern improves the exact dual prices, so the master problem is optimal.
                (false, true, false) => break,
            }
        }
        master.optimize(4 * self.rows.len() + 100);
    }

    /// Adds patterns that together cover all classes, for each promising offering.
    fn add_initial_columns(&self, master: &mut MasterProblem) {
        let bounds: Vec<i128> = self
            .offerings
            .iter()
            .map(|empty| fractional_pattern(empty, &self.best.duals).upper_bound)
            .collect();
        for offering in self.promising_offerings(&bounds) {
            let empty = &self.offerings[offering];
            let mut values = item_values(empty, &self.best.duals);
            for _ in 0..INITIAL_PATTERNS_MAX {
                let counts = relax_knapsack(empty, &values).counts;
                let used = counts.iter().zip(&mut values).filter(|(count, _)| **count > 1e-9);
                if used.map(|(_, value)| *value = 0.0).count() == 0 {
                    break;
                }
                self.add_column(
                    master,
                    offering,
                    &KnapsackSolution { counts, value: 0, upper_bound: 0, steps: 0 },
                );
            }
        }
    }

    /// Returns the offerings whose best pattern is worth nearly as much as their price.
    fn promising_offerings(&self, bounds: &[i128]) -> Vec<usize> {
        let ratio = |offering: usize| {
            bounds[offering] * 1000
                / (i128::from(self.offerings[offering].price.max(1)) << FRACTION_BITS)
        };
        let best = (0..bounds.len()).map(ratio).max().unwrap_or(0);
        (0..bounds.len()).filter(|offering| ratio(*offering) >= best * 95 / 100).collect()
    }

    /// Mixes the best dual prices, with this `weight`, and the dual prices of the master problem.
    fn smoothed_duals(&self, master: &MasterProblem, weight: f64) -> Vec<i64> {
        let mut smoothed_duals = self.best.duals.clone();
        for (row, class) in self.rows.iter().enumerate() {
            let (best, target) =
                (to_f64(self.best.duals[*class]), master.duals[row].max(0.0) * FIXED_POINT_ONE);
            smoothed_duals[*class] = floor_to_i64(weight * best + (1.0 - weight) * target);
        }
        smoothed_duals
    }

    /// Prices a pattern for each offering. Returns the upper bound of each, and true if a new
    /// column improves the master problem.
    fn price_offerings(
        &mut self,
        master: &mut MasterProblem,
        pattern_kind: PatternKind,
        offerings: &[usize],
        duals: &[i64],
    ) -> (Vec<i128>, bool) {
        let (mut bounds, mut is_improved) = (Vec::with_capacity(offerings.len()), false);
        for offering in offerings.iter().copied() {
            let found = self.best_pattern(offering, pattern_kind, duals, 100);
            bounds.push(found.upper_bound);
            is_improved |= self.add_column(master, offering, &found);
            for found in self.extra_patterns(offering, pattern_kind, duals, found) {
                self.add_column(master, offering, &found);
            }
        }
        (bounds, is_improved)
    }

    /// Returns the best pattern of an offering whose value exceeds `percent` of its price.
    fn best_pattern(
        &mut self,
        offering: usize,
        pattern_kind: PatternKind,
        duals: &[i64],
        percent: i128,
    ) -> KnapsackSolution<f64> {
        match pattern_kind {
            PatternKind::FractionalPods => fractional_pattern(&self.offerings[offering], duals),
            PatternKind::WholePods => {
                let price = i128::from(self.offerings[offering].price) << FRACTION_BITS;
                self.solve(offering, duals, price * percent / 100)
            }
        }
    }

    /// Returns nearly optimal patterns with other classes, because the master problem needs many
    /// columns.
    fn extra_patterns(
        &mut self,
        offering: usize,
        pattern_kind: PatternKind,
        duals: &[i64],
        found: KnapsackSolution<f64>,
    ) -> Vec<KnapsackSolution<f64>> {
        let (mut extra_patterns, mut duals, mut last) = (Vec::new(), duals.to_vec(), found);
        while !last.counts.is_empty() && extra_patterns.len() < EXTRA_PATTERNS_MAX {
            for (item, count) in self.offerings[offering].items.iter().zip(&last.counts) {
                if *count > 1e-9 {
                    duals[item.class] = duals[item.class] / 100 * 98;
                }
            }
            last = self.best_pattern(offering, pattern_kind, &duals, 97);
            extra_patterns.push(last.clone());
        }
        extra_patterns
    }

    fn solve(&mut self, offering: usize, duals: &[i64], floor: i128) -> KnapsackSolution<f64> {
        let found = solve_knapsack(&self.offerings[offering], duals, floor, self.effort.steps);
        self.steps += found.steps;
        let counts = found.counts.into_iter().map(f64::from).collect();
        KnapsackSolution {
            counts,
            value: found.value,
            upper_bound: found.upper_bound,
            steps: found.steps,
        }
    }

    /// Adds a column to the master problem. Returns true if it improves the solution.
    fn add_column(
        &self,
        master: &mut MasterProblem,
        offering: usize,
        found: &KnapsackSolution<f64>,
    ) -> bool {
        let empty = &self.offerings[offering];
        let row = |item: &super::empty_pattern::Item| self.rows.binary_search(&item.class).ok();
        let pods: Vec<(usize, f64)> = empty
            .items
            .iter()
            .zip(&found.counts)
            .filter(|(_, count)| **count > 1e-9)
            .filter_map(|(item, count)| Some((row(item)?, *count)))
            .collect();
        if pods.is_empty() {
            return false;
        }
        let column = MasterColumn { offering, price: to_f64(empty.price), pods };
        let is_improved = master.reduced_cost(&column) < -1e-6 * column.price;
        master.add(column);
        is_improved
    }

    pub(super) fn record_bound(&mut self, duals: &[i64], most: &[i128]) {
        let duals = farley_scaled(duals, most, &self.offerings);
        let bound = dual_bound(&duals, self.wanted);
        if bound > self.best.bound || self.best.duals.iter().all(|dual| *dual == 0) {
            self.best = DualSolution { bound, duals };
        }
    }

    fn prove_from(&mut self, duals: &[f64]) {
        let duals = to_fixed_point(duals);
        let most: Vec<i128> = self
            .offerings
            .iter()
            .map(|empty| fractional_pattern(empty, &duals).upper_bound)
            .collect();
        self.record_bound(&duals, &most);
    }

    /// Initial dual prices. Each offering divides its price evenly among its resources. A class
    /// gets the minimum cost over all offerings.
    fn dominant_share_duals(&self) -> Vec<f64> {
        let split = |empty: &EmptyPattern| {
            let rows = to_f64(i64::try_from(empty.rows()).unwrap_or(i64::MAX)).max(1.0);
            vec![to_f64(empty.price) / rows; empty.rows()]
        };
        let prices: Vec<Vec<f64>> = self.offerings.iter().map(split).collect();
        let mut duals = vec![f64::INFINITY; self.wanted.len()];
        for (empty, prices) in self.offerings.iter().zip(&prices) {
            for (index, item) in empty.items.iter().enumerate() {
                let cost = super::relaxation::dot(prices, empty.shares(index));
                duals[item.class] = duals[item.class].min(cost);
            }
        }
        duals.into_iter().map(|dual| if dual.is_finite() { dual } else { 0.0 }).collect()
    }

    /// Dual prices from the clusters: the minimum cost at the resource prices of `coarse`. Where a
    /// cap limits the class, the surplus of its cluster is added.
    fn duals_from_clusters(&self, clusters: &ClassClusters, coarse: &ColumnGeneration) -> Vec<f64> {
        let cost = |request: &[i64], prices: &[f64]| -> f64 {
            request.iter().zip(prices).map(|(request, price)| to_f64(*request) * price).sum()
        };
        let mut duals = vec![f64::INFINITY; self.wanted.len()];
        let mut cluster_duals = vec![f64::INFINITY; coarse.wanted.len()];
        for (empty, coarse_empty) in self.offerings.iter().zip(&coarse.offerings) {
            let prices = self.resource_unit_prices(coarse_empty, &coarse.best.duals);
            for item in &empty.items {
                let cost = cost(&self.problem.classes[item.class].requests, &prices);
                duals[item.class] = duals[item.class].min(cost);
            }
            for item in &coarse_empty.items {
                let cost = cost(&clusters.problem.classes[item.class].requests, &prices);
                cluster_duals[item.class] = cluster_duals[item.class].min(cost);
            }
        }
        let beyond = |(dual, cluster): (f64, &Option<usize>)| match cluster {
            Some(cluster) if dual.is_finite() => {
                let cluster_dual = to_f64(coarse.best.duals[*cluster]) / FIXED_POINT_ONE;
                dual + (cluster_dual - cluster_duals[*cluster]).max(0.0)
            }
            Some(_) | None => 0.0,
        };
        duals.into_iter().zip(&clusters.cluster_of).map(beyond).collect()
    }

    /// Returns the unit price of each resource of an offering, scaled up to the price of the node.
    fn resource_unit_prices(&self, empty: &EmptyPattern, duals: &[i64]) -> Vec<f64> {
        let relaxed = relax_knapsack(empty, &item_values(empty, duals));
        let spare = (to_f64(empty.price) * FIXED_POINT_ONE / relaxed.value.max(1.0)).max(1.0);
        let price = |resource: usize| {
            let row = empty.resources.iter().position(|of_row| *of_row == resource);
            row.map_or(0.0, |row| {
                relaxed.prices[row] * spare / to_f64(empty.room[row]) / FIXED_POINT_ONE
            })
        };
        (0..self.problem.resources()).map(price).collect()
    }
}

/// Converts a column to a pattern, with classes instead of rows.
pub(super) fn pattern(rows: &[usize], column: &MasterColumn) -> Pattern {
    let count = |n: f64| u32::try_from(floor_to_i64(n + 0.5)).unwrap_or(u32::MAX);
    let pods = column.pods.iter().map(|(row, n)| (rows[*row], count(*n))).collect();
    Pattern { offering: column.offering, pods }
}

/// Returns the initial master problem: one column per class, on its cheapest offering. `rows` are
/// the classes that some offering admits.
pub(super) fn initial_master_problem(
    offerings: &[EmptyPattern],
    wanted: &[u32],
    rows: &[usize],
) -> MasterProblem {
    let mut best: Vec<Option<(f64, f64, usize)>> = vec![None; wanted.len()];
    for (offering, empty) in offerings.iter().enumerate() {
        for item in &empty.items {
            let (price, most) = (to_f64(empty.price), f64::from(item.max_count));
            let best = &mut best[item.class];
            if best.is_none_or(|(p, m, _)| price * m < p * most) {
                *best = Some((price, most, offering));
            }
        }
    }
    let first = rows.iter().filter_map(|class| best[*class]).enumerate();
    let first = first.map(|(row, (price, most, offering))| MasterColumn {
        offering,
        price,
        pods: vec![(row, most)],
    });
    let wanted: Vec<f64> = rows.iter().map(|class| f64::from(wanted[*class])).collect();
    MasterProblem::new(&wanted, first.collect())
}

fn item_values(empty: &EmptyPattern, duals: &[i64]) -> Vec<f64> {
    empty.items.iter().map(|item| to_f64(duals[item.class])).collect()
}

/// Returns the best pattern with fractional pods.
fn fractional_pattern(empty: &EmptyPattern, duals: &[i64]) -> KnapsackSolution<f64> {
    let relaxed = relax_knapsack(empty, &item_values(empty, duals));
    let most = pattern_value_bound(empty, duals, &row_prices(empty, &relaxed.prices));
    let pays = relaxed.value > to_f64(empty.price) * FIXED_POINT_ONE;
    let counts = if pays { relaxed.counts } else { Vec::new() };
    KnapsackSolution { counts, value: 0, upper_bound: most, steps: 1 }
}
