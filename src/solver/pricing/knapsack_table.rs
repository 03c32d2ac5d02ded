//! The most valuable patterns of one node for every part of its two scarcest rows: the dynamic
//! program of the unbounded knapsack in two dimensions.
//!
//! Where few pods share a node, exhaustive search finds its best pattern. One table gives the best
//! complement of each pod, and so as many patterns as there are items. Rows are divided into cells.
//! With requests rounded up, every pattern of the table fits these rows. With requests rounded
//! down, no pattern exceeds the value of the table. Other rows are paid for at the row prices of
//! the relaxation. Values are integers in small parts of the node's price.

use super::dual_bound::{FRACTION_BITS, RowPrices, item_cost, room_cost, row_prices};
use super::empty_pattern::EmptyPattern;
use super::float_conversion::to_f64;
use super::relaxation::relax_knapsack;

/// Number of binary digits of the parts into which the price of a node is divided.
const PART_BITS: u32 = 20;

/// Maximum relaxed value of a node, as a multiple of its price, for which a table is built.
const RELAXED_VALUE_MAX: f64 = 64.0;

const NO_ITEM: u16 = u16::MAX;

/// Resolution of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableResolution {
    /// Maximum cells of a row that is represented exactly.
    pub exact: i64,
    /// Maximum cells of any other row.
    pub cells: i64,
    /// Rounding of requests that are not a whole number of cells.
    pub rounding: Rounding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    Down,
    Up,
}

impl Rounding {
    /// Returns `a / b` for non-negative numbers.
    fn divide(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Down => a / b,
            Self::Up => a / b + i64::from(a % b > 0),
        }
    }
}

/// An item in cells.
#[derive(Debug, Clone, Copy)]
struct TableItem {
    item: usize,
    cells: [usize; 2],
    /// Value minus the cost in other rows, in parts of the node's price.
    value: i32,
}

/// The best pattern for every part of a node.
pub(super) struct KnapsackTable<'a> {
    empty: &'a EmptyPattern,
    /// All items that fit on the node.
    items: Vec<TableItem>,
    /// The items that the table uses.
    useful: Vec<TableItem>,
    cells: [usize; 2],
    /// Best value, by cells of the first row, then of the second.
    values: Vec<i32>,
    /// Index into `useful` of the last item added.
    last: Vec<u16>,
    /// Total value of the items that take no cell.
    free_value: i64,
    other_row_prices: RowPrices,
}

impl<'a> KnapsackTable<'a> {
    /// Returns the table for dual prices in 2^-20 micro-USD per hour. Returns `None` if the relaxed
    /// value is below `least` of the node's price or above [`RELAXED_VALUE_MAX`].
    pub(super) fn new(
        empty: &'a EmptyPattern,
        duals: &[i64],
        least: f64,
        resolution: TableResolution,
    ) -> Option<Self> {
        let values: Vec<f64> = empty.items.iter().map(|item| to_f64(duals[item.class])).collect();
        let mut prices = relax_knapsack(empty, &values);
        let relaxed_value = prices.value / to_f64(empty.price.max(1) << FRACTION_BITS);
        if relaxed_value < least || relaxed_value > RELAXED_VALUE_MAX || empty.rows() == 0 {
            return None;
        }
        let rows = scarcest(&prices.prices);
        rows.iter().flatten().for_each(|row| prices.prices[*row] = 0.0);
        let other_row_prices = row_prices(empty, &prices.prices);
        let grid = rows.map(|row| RowGrid::new(empty, row, resolution));
        let cells = [grid[0].cells, grid[1].cells];
        let item = |item: usize| {
            let value = duals[empty.items[item].class] - item_cost(empty, &other_row_prices, item);
            TableItem {
                item,
                cells: grid.map(|grid| grid.cells_of_item(empty, item, resolution.rounding)),
                value: parts(value.max(0), empty.price),
            }
        };
        let fits = |item: &TableItem| item.cells.iter().zip(cells).all(|(own, all)| *own <= all);
        let (free_items, items): (Vec<TableItem>, Vec<TableItem>) =
            (0..empty.items.len()).map(item).filter(fits).partition(|item| item.cells == [0, 0]);
        let all =
            |item: &TableItem| i64::from(item.value) * i64::from(empty.items[item.item].max_count);
        let free_value = free_items.iter().map(all).sum();
        let useful = undominated(&items);
        if value_bound(&useful, cells) > i64::from(i32::MAX) {
            return None;
        }
        let size = (cells[0] + 1) * (cells[1] + 1);
        let mut table = Self {
            empty,
            items,
            useful,
            cells,
            values: vec![0; size],
            last: vec![NO_ITEM; size],
            free_value,
            other_row_prices,
        };
        (0..table.useful.len()).for_each(|index| table.add_item(index));
        Some(table)
    }

    /// Updates every cell with any number of copies of an item.
    fn add_item(&mut self, index: usize) {
        let TableItem { cells: [down, right], value, .. } = self.useful[index];
        let index = u16::try_from(index).unwrap_or(NO_ITEM);
        let width = self.cells[1] + 1;
        for row in down..=self.cells[0] {
            let last = &mut self.last[row * width..(row + 1) * width];
            if down == 0 {
                add_item_to_row(
                    &mut self.values[row * width..(row + 1) * width],
                    last,
                    right,
                    value,
                    index,
                );
                continue;
            }
            let (above, here) = self.values.split_at_mut(row * width);
            let from = &above[(row - down) * width..(row - down + 1) * width - right];
            // The loop has no branch, so that the compiler can vectorize it.
            for ((here, last), from) in
                here[right..width].iter_mut().zip(&mut last[right..]).zip(from)
            {
                let better = from + value;
                let is_better = better > *here;
                *here = if is_better { better } else { *here };
                *last = if is_better { index } else { *last };
            }
        }
    }

    /// Returns the value of the best pattern, in parts of the node's price.
    pub(super) fn best_value(&self) -> i64 {
        self.values.last().copied().map_or(0, i64::from) + self.free_value
    }

    /// Returns an upper bound on the value of every pattern, in 2^-20 micro-USD per hour. It is
    /// valid only if requests are rounded down.
    pub(super) fn upper_bound(&self) -> i128 {
        let parts = i128::from(self.best_value()) * i128::from(self.empty.price);
        parts + room_cost(self.empty, &self.other_row_prices)
    }

    /// Returns the best pattern with each item, as pods by item, if its value is at least `least`
    /// of the node's price.
    pub(super) fn patterns(&self, least: f64) -> Vec<Vec<(usize, u32)>> {
        let width = self.cells[1] + 1;
        let beside = |item: &TableItem| {
            (self.cells[0] - item.cells[0]) * width + self.cells[1] - item.cells[1]
        };
        let least = least * to_f64(1 << PART_BITS);
        let pays = |item: &&TableItem| f64::from(item.value + self.values[beside(item)]) >= least;
        self.items.iter().filter(pays).map(|item| self.pattern(item, beside(item))).collect()
    }

    fn pattern(&self, first: &TableItem, mut at: usize) -> Vec<(usize, u32)> {
        let width = self.cells[1] + 1;
        let mut items = vec![first.item];
        while let Some(item) = self.useful.get(usize::from(self.last[at])) {
            items.push(item.item);
            at -= item.cells[0] * width + item.cells[1];
        }
        items.sort_unstable();
        let alike = items.chunk_by(|a, b| a == b);
        alike
            .map(|items| {
                let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
                (items[0], count.min(self.empty.items[items[0]].max_count))
            })
            .collect()
    }
}

/// Updates a row of cells with an item that takes nothing of the first row.
fn add_item_to_row(values: &mut [i32], last: &mut [u16], right: usize, own: i32, index: u16) {
    for at in right..values.len() {
        let with = values[at - right] + own;
        if with > values[at] {
            (values[at], last[at]) = (with, index);
        }
    }
}

/// Returns the two rows whose room has the highest price.
fn scarcest(prices: &[f64]) -> [Option<usize>; 2] {
    let mut rows: Vec<usize> = (0..prices.len()).collect();
    rows.sort_by(|a, b| prices[*b].total_cmp(&prices[*a]).then(a.cmp(b)));
    [rows.first().copied(), rows.get(1).copied()]
}

/// Returns an upper bound on the values of a table. Each item takes cells of the first row, or else
/// of the second.
fn value_bound(items: &[TableItem], cells: [usize; 2]) -> i64 {
    let copies = |item: &TableItem| match item.cells {
        [0, right] => cells[1] / right.max(1),
        [down, _] => cells[0] / down,
    };
    let of_row = |is_first: bool| {
        let items = items.iter().filter(|item| (item.cells[0] > 0) == is_first);
        let all = |item: &TableItem| {
            // One more than fits, for the remainder of the row.
            let copies = i64::try_from(copies(item)).unwrap_or(i64::MAX).saturating_add(1);
            i64::from(item.value).saturating_mul(copies)
        };
        items.map(all).max().unwrap_or(0)
    };
    of_row(true).saturating_add(of_row(false))
}

/// Division of a row into cells.
#[derive(Debug, Clone, Copy)]
struct RowGrid {
    row: Option<usize>,
    /// Amount per cell.
    unit: i64,
    cells: usize,
}

impl RowGrid {
    /// Uses the greatest common divisor of the requests as the cell, or a multiple of it that keeps
    /// the number of cells small.
    fn new(empty: &EmptyPattern, row: Option<usize>, resolution: TableResolution) -> Self {
        let Some(at) = row else { return Self { row, unit: 1, cells: 0 } };
        let requests = (0..empty.items.len()).map(|item| empty.requests(item)[at]);
        let common = requests.fold(0, common_divisor).max(1);
        let room = empty.room[at].max(0) / common;
        let most = if room <= resolution.exact { resolution.exact } else { resolution.cells };
        let unit = common * Rounding::Up.divide(room, most).max(1);
        Self { row, unit, cells: cells(room * common / unit) }
    }

    fn cells_of_item(self, empty: &EmptyPattern, item: usize, rounding: Rounding) -> usize {
        self.row.map_or(0, |row| cells(rounding.divide(empty.requests(item)[row], self.unit)))
    }
}

fn cells(count: i64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Converts a value to parts of a price, rounded up.
fn parts(value: i64, price: i64) -> i32 {
    let parts = (i128::from(value) << (PART_BITS - FRACTION_BITS)) / i128::from(price.max(1)) + 1;
    i32::try_from(if value > 0 { parts } else { 0 }).unwrap_or(i32::MAX)
}

/// Returns the items with a positive value that no other item dominates.
fn undominated(items: &[TableItem]) -> Vec<TableItem> {
    let mut order: Vec<&TableItem> = items.iter().filter(|item| item.value > 0).collect();
    order.sort_by_key(|item| (std::cmp::Reverse(item.value), item.cells, item.item));
    let mut undominated: Vec<TableItem> = Vec::new();
    for item in order {
        let takes_no_more = |other: &TableItem| {
            other.cells.iter().zip(&item.cells).all(|(other, own)| other <= own)
        };
        if !undominated.iter().any(takes_no_more) {
            undominated.push(*item);
        }
    }
    undominated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{BinPackingProblem, DemandClass, NodeOffering, PodCap};
    use super::*;

    fn problem(room: Vec<i64>, requests: Vec<Vec<i64>>, cap: u32) -> BinPackingProblem {
        let fits =
            |request: &Vec<i64>| request.iter().zip(&room).all(|(request, room)| request <= room);
        let admits = requests.iter().map(fits).collect();
        let cap = PodCap { members: (0..requests.len()).collect(), max_pods: cap };
        let classes = requests.into_iter().map(|requests| DemandClass { requests }).collect();
        BinPackingProblem::new(
            classes,
            vec![NodeOffering { price: 1_000, room, admits }],
            vec![cap],
        )
    }

    /// Returns the maximum value of a pattern by exhaustive search.
    fn most(empty: &EmptyPattern, duals: &[i64], item: usize, room: &[i64]) -> i128 {
        let Some(current) = empty.items.get(item) else { return 0 };
        let mut room = room.to_vec();
        let mut best = 0;
        for count in 0..=current.max_count {
            let own = i128::from(duals[current.class]) * i128::from(count);
            best = best.max(own + most(empty, duals, item + 1, &room));
            for (room, request) in room.iter_mut().zip(empty.requests(item)) {
                *room -= request;
            }
            if room.iter().any(|room| *room < 0) {
                break;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn table_bounds_all_patterns_and_returns_feasible_ones(
            room in prop::collection::vec(5_i64..60, 3),
            requests in prop::collection::vec(prop::collection::vec(1_i64..20, 3), 1..5),
            values in prop::collection::vec(50_i64..700, 5),
            (cap, wanted, cells) in (1_u32..9, 1_u32..9, 3_i64..80),
        ) {
            let classes = requests.len();
            let problem = problem(room, requests, cap);
            let empty = EmptyPattern::new(&problem, &problem.offerings[0], &vec![wanted; classes]);
            let duals: Vec<i64> =
                values[..classes].iter().map(|value| value << FRACTION_BITS).collect();
            let resolution = |rounding| TableResolution { exact: cells, cells, rounding };
            let most = most(&empty, &duals, 0, &empty.room);
            let rounded_down = KnapsackTable::new(&empty, &duals, 0.0, resolution(Rounding::Down));
            if let Some(table) = rounded_down {
                prop_assert!(table.upper_bound() >= most, "{} of {most}", table.upper_bound());
            }
            let rounded_up = KnapsackTable::new(&empty, &duals, 0.0, resolution(Rounding::Up));
            let Some(table) = rounded_up else {
                return Ok(());
            };
            let rows: Vec<usize> = {
                let values: Vec<f64> = duals.iter().map(|dual| to_f64(*dual)).collect();
                let values: Vec<f64> = empty.items.iter().map(|item| values[item.class]).collect();
                scarcest(&relax_knapsack(&empty, &values).prices).into_iter().flatten().collect()
            };
            for pods in table.patterns(0.0) {
                for row in &rows {
                    let request = |(item, n): &(usize, u32)| {
                        empty.requests(*item)[*row] * i64::from(*n)
                    };
                    let asked: i64 = pods.iter().map(request).sum();
                    prop_assert!(asked <= empty.room[*row], "{pods:?} in row {row}");
                }
            }
        }
    }

    #[test]
    fn exact_table_finds_the_optimal_pattern() {
        let requests = vec![vec![50, 300], vec![70, 110], vec![110, 90], vec![30, 40]];
        let problem = problem(vec![390, 790], requests, 100);
        let empty = EmptyPattern::new(&problem, &problem.offerings[0], &[9; 4]);
        let duals: Vec<i64> =
            [260, 190, 240, 85].iter().map(|value| value << FRACTION_BITS).collect();
        let resolution = TableResolution { exact: 1_000, cells: 10, rounding: Rounding::Up };
        let table = KnapsackTable::new(&empty, &duals, 0.0, resolution).expect("pods pay");
        let worth_of = |pods: &Vec<(usize, u32)>| -> i128 {
            let value = |(item, n): &(usize, u32)| duals[empty.items[*item].class] * i64::from(*n);
            i128::from(pods.iter().map(value).sum::<i64>())
        };
        let best = table.patterns(0.0).iter().map(worth_of).max();
        assert_eq!(best, Some(most(&empty, &duals, 0, &empty.room)));
    }
}
