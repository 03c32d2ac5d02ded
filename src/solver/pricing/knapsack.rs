//! The most valuable pattern of one node: branch and bound, in integers.
//!
//! Items are tried in descending order of value per cost of room, and the largest counts first. The
//! first leaf is therefore the greedy pattern. The remaining value is bounded by a surrogate
//! constraint: the sum of all rows at the prices of the relaxation. A step limit ends the search
//! early. The bound is then that of the best open branch.

use super::dual_bound::{RowPrices, item_cost, pattern_value_bound, room_cost, row_prices};
use super::empty_pattern::{EmptyPattern, copies};
use super::float_conversion::{floor_to_i64, to_f64};
use super::relaxation::relax_knapsack;

/// Result of a knapsack search.
#[derive(Debug, Clone, Default)]
pub(super) struct KnapsackSolution<N = u32> {
    /// Pods by item of the best pattern above the floor, or empty if there is none.
    pub counts: Vec<N>,
    /// Value of the pattern, or the floor.
    pub value: i128,
    /// Upper bound on the value of every pattern.
    pub upper_bound: i128,
    pub steps: u64,
}

/// Maximum pods on one node for a search of all patterns. Beyond it only patterns near the
/// relaxation are searched.
const FEW_PODS_MAX: f64 = 24.0;

pub(super) fn has_few_pods(counts: &[f64]) -> bool {
    counts.iter().sum::<f64>() <= FEW_PODS_MAX
}

/// Searches for a pattern worth more than `floor` at the dual prices, in at most `steps` steps.
pub(super) fn solve_knapsack(
    empty: &EmptyPattern,
    duals: &[i64],
    floor: i128,
    steps: u64,
) -> KnapsackSolution {
    let values: Vec<f64> = empty.items.iter().map(|item| to_f64(duals[item.class])).collect();
    let relaxed = relax_knapsack(empty, &values);
    let prices = row_prices(empty, &relaxed.prices);
    let bound = pattern_value_bound(empty, duals, &prices);
    let mut found = KnapsackSolution {
        value: floor,
        upper_bound: bound,
        steps: 1,
        ..KnapsackSolution::default()
    };
    if bound <= floor {
        return found;
    }
    let is_few = has_few_pods(&relaxed.counts);
    // Search near the relaxation first: its counts rounded down, with some pods removed.
    let near = |count: &f64| {
        let count = u32::try_from(floor_to_i64(count + 1e-9)).unwrap_or(u32::MAX);
        count - (1 + count / 8).min(count)
    };
    let base: Vec<u32> = relaxed.counts.iter().map(near).collect();
    let mut search = BranchAndBound::new(empty, duals, &prices, &base);
    search.run(floor, steps / if is_few { 4 } else { 1 });
    found.adopt(&search);
    if is_few && base.iter().any(|count| *count > 0) {
        let mut search = BranchAndBound::new(empty, duals, &prices, &vec![0; base.len()]);
        search.run(found.value, steps);
        found.adopt(&search);
        found.upper_bound = found.upper_bound.min(search.best_value.max(search.open_bound));
    } else if base.iter().all(|count| *count == 0) {
        found.upper_bound = found.upper_bound.min(search.best_value.max(search.open_bound));
    }
    found
}

/// Searches for the most valuable pods beside those of `base`, in at most `steps` steps. The result
/// includes `base`.
pub(super) fn extend_pattern(
    empty: &EmptyPattern,
    duals: &[i64],
    base: &[u32],
    steps: u64,
) -> KnapsackSolution {
    let values: Vec<f64> = empty.items.iter().map(|item| to_f64(duals[item.class])).collect();
    let prices = row_prices(empty, &relax_knapsack(empty, &values).prices);
    let most = pattern_value_bound(empty, duals, &prices);
    let mut search = BranchAndBound::new(empty, duals, &prices, base);
    search.run(0, steps);
    let mut found = KnapsackSolution {
        counts: base.to_vec(),
        value: search.base_value,
        upper_bound: most,
        steps: 0,
    };
    found.adopt(&search);
    found
}

impl KnapsackSolution {
    fn adopt(&mut self, search: &BranchAndBound) {
        self.steps += search.steps_taken;
        if search.best.is_empty() {
            return;
        }
        self.value = search.best_value;
        self.counts.clone_from(&search.base);
        for (candidate, count) in search.ranked.iter().zip(&search.best) {
            self.counts[candidate.item] += count;
        }
    }
}

/// An item in search order.
struct Candidate {
    item: usize,
    value: i64,
    /// Cost of the room of one pod.
    cost: i64,
    max_count: u32,
}

struct BranchAndBound<'a> {
    empty: &'a EmptyPattern,
    /// Pods by item that are already on the node.
    base: Vec<u32>,
    base_value: i128,
    ranked: Vec<Candidate>,
    room: Vec<i64>,
    /// Remaining capacity of the surrogate constraint.
    surrogate: i64,
    counts: Vec<u32>,
    best: Vec<u32>,
    best_value: i128,
    /// Bound of the best open branch.
    open_bound: i128,
    steps_taken: u64,
    steps: u64,
}

impl<'a> BranchAndBound<'a> {
    fn new(empty: &'a EmptyPattern, duals: &[i64], prices: &RowPrices, base: &[u32]) -> Self {
        let candidate = |(item, item_of_class): (usize, &super::empty_pattern::Item)| Candidate {
            item,
            value: duals[item_of_class.class],
            cost: item_cost(empty, prices, item),
            max_count: item_of_class.max_count - base[item],
        };
        let items = empty.items.iter().enumerate().map(candidate);
        let mut ranked: Vec<Candidate> =
            items.filter(|candidate| candidate.value > 0 && candidate.max_count > 0).collect();
        ranked.sort_by(|a, b| {
            let this = i128::from(b.value) * i128::from(a.cost);
            let that = i128::from(a.value) * i128::from(b.cost);
            this.cmp(&that).then(b.value.cmp(&a.value)).then(a.item.cmp(&b.item))
        });
        let mut room = empty.room.clone();
        let (mut base_value, mut base_cost) = (0, 0);
        for (item, count) in base.iter().enumerate().filter(|(_, count)| **count > 0) {
            for (room, request) in room.iter_mut().zip(empty.requests(item)) {
                *room -= request * i64::from(*count);
            }
            base_value += i128::from(duals[empty.items[item].class]) * i128::from(*count);
            base_cost += i128::from(item_cost(empty, prices, item)) * i128::from(*count);
        }
        let surrogate = room_cost(empty, prices) - base_cost;
        Self {
            room,
            surrogate: i64::try_from(surrogate).unwrap_or(i64::MAX),
            counts: vec![0; ranked.len()],
            best: Vec::new(),
            best_value: 0,
            open_bound: 0,
            steps_taken: 0,
            steps: 0,
            base: base.to_vec(),
            base_value,
            empty,
            ranked,
        }
    }

    fn run(&mut self, floor: i128, steps: u64) {
        (self.best_value, self.steps) = (floor, steps);
        self.branch(0, self.surrogate, self.base_value);
    }

    /// Tries all counts of the candidates from `at` on. `left` is the remaining surrogate capacity,
    /// and `value` is the value so far.
    fn branch(&mut self, at: usize, left: i64, value: i128) {
        self.steps_taken += 1;
        if value > self.best_value {
            self.best_value = value;
            self.best.clone_from(&self.counts);
        }
        let mut at = at;
        let (next, most) = loop {
            let Some(candidate) = self.ranked.get(at) else { return };
            let request = self.empty.requests(candidate.item);
            // Most candidates do not fit, and comparing is quicker than dividing.
            if request.iter().zip(&self.room).all(|(request, room)| request <= room) {
                break (candidate, copies(request, &self.room, candidate.max_count));
            }
            at += 1;
        };
        let (item, each, cost) = (next.item, next.value, next.cost);
        for count in (0..=most).rev() {
            let here = value + i128::from(each) * i128::from(count);
            let rest = left.saturating_sub(cost.saturating_mul(i64::from(count)));
            let bound = here + self.surrogate_bound(at + 1, rest);
            if bound <= self.best_value {
                return;
            }
            if self.steps_taken >= self.steps {
                self.open_bound = self.open_bound.max(bound);
                return;
            }
            self.counts[at] = count;
            self.change_room(item, -i64::from(count));
            self.branch(at + 1, rest, here);
            self.change_room(item, i64::from(count));
            self.counts[at] = 0;
        }
    }

    fn change_room(&mut self, item: usize, count: i64) {
        for (room, request) in self.room.iter_mut().zip(self.empty.requests(item)) {
            *room += request * count;
        }
    }

    /// Returns the maximum value of the candidates from `at` on with fractional pods.
    fn surrogate_bound(&self, at: usize, left: i64) -> i128 {
        let mut left = i128::from(left.max(0));
        let mut all = 0;
        for candidate in &self.ranked[at.min(self.ranked.len())..] {
            let (value, cost) = (i128::from(candidate.value), i128::from(candidate.cost));
            let whole = cost * i128::from(candidate.max_count);
            if whole > left {
                // Rounding up keeps the bound decreasing in the count of an earlier candidate.
                return all + (value * left + cost - 1) / cost;
            }
            left -= whole;
            all += value * i128::from(candidate.max_count);
        }
        all
    }
}
