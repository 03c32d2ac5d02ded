//! The most that pods on one node are worth, for every part of the two rows that run out first: a
//! table (the dynamic program of the unbounded knapsack, in two dimensions).
//!
//! Where few pods share a node, its best filling is found by trying all; one table says for each pod
//! what is best put beside it, and so gives as many fillings as there are pods to begin with. Rows are
//! cut into cells. With asks rounded up, what fits the table fits these rows; with asks rounded down, no
//! filling is worth more than the table says. Rows beyond the two are paid for at the prices of the
//! relaxation. Worth is counted in small parts of the node's price, in integers.

use super::blank::Blank;
use super::certificate::{FRACTION, RowPrices, cost, cost_of_room, row_prices};
use super::number::real;
use super::relaxation::relax;

/// Binary digits of the parts into which the price of a node is divided.
const PARTS: u32 = 20;

/// What pods on a node may seem worth, in its price, beyond which nobody asks how they are put.
const SEEMING_MAX: f64 = 64.0;

/// No piece.
const NONE: u16 = u16::MAX;

/// How a node is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Most cells of a row where that many are exact.
    pub exact: i64,
    /// Most cells of a row otherwise.
    pub cells: i64,
    /// Which way asks that are no whole number of cells are taken.
    pub asks: Rounding,
}

/// Which way a number is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    Down,
    Up,
}

impl Rounding {
    /// Returns `a / b` of what is not negative.
    fn divide(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Down => a / b,
            Self::Up => a / b + i64::from(a % b > 0),
        }
    }
}

/// An item in cells.
#[derive(Debug, Clone, Copy)]
struct Piece {
    item: usize,
    cells: [usize; 2],
    /// What it is worth less what it takes of other rows, in parts of the node's price.
    worth: i32,
}

/// What is best put into every part of a node.
pub(super) struct Table<'a> {
    blank: &'a Blank,
    /// What may be put on the node, each item once.
    pieces: Vec<Piece>,
    /// Those of them that the table is made of.
    used: Vec<Piece>,
    cells: [usize; 2],
    /// By cells of the first row, then of the second.
    worth: Vec<i32>,
    /// Index into `used` of the piece that came last.
    last: Vec<u16>,
    /// What is worth something and takes no cell, however many there are.
    free: i64,
    /// Prices of the rows beyond the two.
    elsewhere: RowPrices,
}

impl<'a> Table<'a> {
    /// Returns the table of `blank`, given what a pod of each class is worth, in 2^-20 micro-USD per
    /// hour; `None` where pods that may be cut are worth less than `least` of its price, or absurdly
    /// much for what they take.
    pub(super) fn of(blank: &'a Blank, worth: &[i64], least: f64, view: View) -> Option<Self> {
        let guide: Vec<f64> = blank.items.iter().map(|item| real(worth[item.class])).collect();
        let mut prices = relax(blank, &guide);
        let seeming = prices.value / real(blank.price.max(1) << FRACTION);
        if seeming < least || seeming > SEEMING_MAX || blank.rows() == 0 {
            return None;
        }
        let rows = scarcest(&prices.prices);
        rows.iter().flatten().for_each(|row| prices.prices[*row] = 0.0);
        let elsewhere = row_prices(blank, &prices.prices);
        let grid = rows.map(|row| Grid::of(blank, row, view));
        let cells = [grid[0].cells, grid[1].cells];
        let piece = |item: usize| {
            let worth = worth[blank.items[item].class] - cost(blank, &elsewhere, item);
            Piece {
                item,
                cells: grid.map(|grid| grid.of_item(blank, item, view.asks)),
                worth: parts(worth.max(0), blank.price),
            }
        };
        let fits = |piece: &Piece| piece.cells.iter().zip(cells).all(|(own, all)| *own <= all);
        let (free, pieces): (Vec<Piece>, Vec<Piece>) =
            (0..blank.items.len()).map(piece).filter(fits).partition(|piece| piece.cells == [0, 0]);
        let all = |piece: &Piece| i64::from(piece.worth) * i64::from(blank.items[piece.item].most);
        let free = free.iter().map(all).sum();
        let used = undominated(&pieces);
        if most_parts(&used, cells) > i64::from(i32::MAX) {
            return None;
        }
        let size = (cells[0] + 1) * (cells[1] + 1);
        let mut table = Self {
            blank,
            pieces,
            used,
            cells,
            worth: vec![0; size],
            last: vec![NONE; size],
            free,
            elsewhere,
        };
        (0..table.used.len()).for_each(|index| table.enter(index));
        Some(table)
    }

    /// Lets a piece come into every part, any number of times.
    fn enter(&mut self, index: usize) {
        let Piece { cells: [down, right], worth, .. } = self.used[index];
        let index = u16::try_from(index).unwrap_or(NONE);
        let width = self.cells[1] + 1;
        for row in down..=self.cells[0] {
            let last = &mut self.last[row * width..(row + 1) * width];
            if down == 0 {
                enter_one(
                    &mut self.worth[row * width..(row + 1) * width],
                    last,
                    (right, worth, index),
                );
                continue;
            }
            let (above, here) = self.worth.split_at_mut(row * width);
            let from = &above[(row - down) * width..(row - down + 1) * width - right];
            // Written without a branch, so that several cells are worked out at once.
            for ((here, last), from) in
                here[right..width].iter_mut().zip(&mut last[right..]).zip(from)
            {
                let better = from + worth;
                let is_better = better > *here;
                *here = if is_better { better } else { *here };
                *last = if is_better { index } else { *last };
            }
        }
    }

    /// Returns what the best filling is worth, in parts of the node's price.
    pub(super) fn share(&self) -> i64 {
        self.worth.last().copied().map_or(0, i64::from) + self.free
    }

    /// Returns what no filling exceeds, in 2^-20 micro-USD per hour, if asks were rounded down.
    pub(super) fn most(&self) -> i128 {
        let parts = i128::from(self.share()) * i128::from(self.blank.price);
        parts + cost_of_room(self.blank, &self.elsewhere)
    }

    /// Returns for each item the best filling with a pod of it, as pods by item, where these are worth
    /// `least` of the node's price.
    pub(super) fn fillings(&self, least: f64) -> Vec<Vec<(usize, u32)>> {
        let width = self.cells[1] + 1;
        let beside = |piece: &Piece| {
            (self.cells[0] - piece.cells[0]) * width + self.cells[1] - piece.cells[1]
        };
        let least = least * real(1 << PARTS);
        let pays = |piece: &&Piece| f64::from(piece.worth + self.worth[beside(piece)]) >= least;
        self.pieces.iter().filter(pays).map(|piece| self.filling(piece, beside(piece))).collect()
    }

    fn filling(&self, first: &Piece, mut at: usize) -> Vec<(usize, u32)> {
        let width = self.cells[1] + 1;
        let mut items = vec![first.item];
        while let Some(piece) = self.used.get(usize::from(self.last[at])) {
            items.push(piece.item);
            at -= piece.cells[0] * width + piece.cells[1];
        }
        items.sort_unstable();
        let alike = items.chunk_by(|a, b| a == b);
        alike
            .map(|items| {
                let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
                (items[0], count.min(self.blank.items[items[0]].most))
            })
            .collect()
    }
}

/// Lets a piece that takes nothing of the first row come into every part of a row.
fn enter_one(worth: &mut [i32], last: &mut [u16], (right, own, index): (usize, i32, u16)) {
    for at in right..worth.len() {
        let with = worth[at - right] + own;
        if with > worth[at] {
            (worth[at], last[at]) = (with, index);
        }
    }
}

/// The two rows whose room is worth most.
fn scarcest(prices: &[f64]) -> [Option<usize>; 2] {
    let mut rows: Vec<usize> = (0..prices.len()).collect();
    rows.sort_by(|a, b| prices[*b].total_cmp(&prices[*a]).then(a.cmp(b)));
    [rows.first().copied(), rows.get(1).copied()]
}

/// Returns what no part of a table exceeds: each piece takes cells of the first row, or else of the second.
fn most_parts(pieces: &[Piece], cells: [usize; 2]) -> i64 {
    let copies = |piece: &Piece| match piece.cells {
        [0, right] => cells[1] / right.max(1),
        [down, _] => cells[0] / down,
    };
    let of_row = |is_first: bool| {
        let pieces = pieces.iter().filter(|piece| (piece.cells[0] > 0) == is_first);
        let all = |piece: &Piece| {
            // One more than fits, for what is left of the row.
            let copies = i64::try_from(copies(piece)).unwrap_or(i64::MAX).saturating_add(1);
            i64::from(piece.worth).saturating_mul(copies)
        };
        pieces.map(all).max().unwrap_or(0)
    };
    of_row(true).saturating_add(of_row(false))
}

/// How a row is cut.
#[derive(Debug, Clone, Copy)]
struct Grid {
    row: Option<usize>,
    /// What a cell holds.
    unit: i64,
    cells: usize,
}

impl Grid {
    /// Returns cells of what all asks are multiples of, or of as many of these as keep the cells few.
    fn of(blank: &Blank, row: Option<usize>, view: View) -> Self {
        let Some(at) = row else { return Self { row, unit: 1, cells: 0 } };
        let asks = (0..blank.items.len()).map(|item| blank.ask(item)[at]);
        let common = asks.fold(0, common_divisor).max(1);
        let room = blank.room[at].max(0) / common;
        let most = if room <= view.exact { view.exact } else { view.cells };
        let unit = common * Rounding::Up.divide(room, most).max(1);
        Self { row, unit, cells: cells(room * common / unit) }
    }

    fn of_item(self, blank: &Blank, item: usize, asks: Rounding) -> usize {
        self.row.map_or(0, |row| cells(asks.divide(blank.ask(item)[row], self.unit)))
    }
}

fn cells(count: i64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Returns worth in parts of a price, rounded up.
fn parts(worth: i64, price: i64) -> i32 {
    let parts = (i128::from(worth) << (PARTS - FRACTION)) / i128::from(price.max(1)) + 1;
    i32::try_from(if worth > 0 { parts } else { 0 }).unwrap_or(i32::MAX)
}

/// Pieces that are worth something, and more than every other one that takes no more.
fn undominated(pieces: &[Piece]) -> Vec<Piece> {
    let mut order: Vec<&Piece> = pieces.iter().filter(|piece| piece.worth > 0).collect();
    order.sort_by_key(|piece| (std::cmp::Reverse(piece.worth), piece.cells, piece.item));
    let mut kept: Vec<Piece> = Vec::new();
    for piece in order {
        let takes_no_more =
            |other: &Piece| other.cells.iter().zip(&piece.cells).all(|(other, own)| other <= own);
        if !kept.iter().any(takes_no_more) {
            kept.push(*piece);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Cap, Kind, Market, Ware};
    use super::*;

    fn market(room: Vec<i64>, asks: Vec<Vec<i64>>, cap: u32) -> Market {
        let fits = |ask: &Vec<i64>| ask.iter().zip(&room).all(|(ask, room)| ask <= room);
        let takes = asks.iter().map(fits).collect();
        let cap = Cap { members: (0..asks.len()).collect(), most: cap };
        let wares = asks.into_iter().map(|ask| Ware { ask }).collect();
        Market::new(wares, vec![Kind { price: 1_000, room, takes }], Vec::new(), vec![cap])
    }

    /// The most that pods on the node can be worth, by trying all.
    fn most(blank: &Blank, worth: &[i64], item: usize, room: &[i64]) -> i128 {
        let Some(held) = blank.items.get(item) else { return 0 };
        let mut room = room.to_vec();
        let mut best = 0;
        for count in 0..=held.most {
            let own = i128::from(worth[held.class]) * i128::from(count);
            best = best.max(own + most(blank, worth, item + 1, &room));
            for (room, ask) in room.iter_mut().zip(blank.ask(item)) {
                *room -= ask;
            }
            if room.iter().any(|room| *room < 0) {
                break;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_filling_is_worth_more_than_is_said_and_those_returned_fit(
            room in prop::collection::vec(5_i64..60, 3),
            asks in prop::collection::vec(prop::collection::vec(1_i64..20, 3), 1..5),
            worths in prop::collection::vec(50_i64..700, 5),
            (cap, wanted, cells) in (1_u32..9, 1_u32..9, 3_i64..80),
        ) {
            let classes = asks.len();
            let market = market(room, asks, cap);
            let blank = Blank::of(&market, &market.kinds[0], &vec![wanted; classes]);
            let worth: Vec<i64> = worths[..classes].iter().map(|worth| worth << FRACTION).collect();
            let view = |asks| View { exact: cells, cells, asks };
            let most = most(&blank, &worth, 0, &blank.room);
            if let Some(table) = Table::of(&blank, &worth, 0.0, view(Rounding::Down)) {
                prop_assert!(table.most() >= most, "{} of {most}", table.most());
            }
            let Some(table) = Table::of(&blank, &worth, 0.0, view(Rounding::Up)) else {
                return Ok(());
            };
            let rows: Vec<usize> = {
                let guide: Vec<f64> = worth.iter().map(|worth| real(*worth)).collect();
                let guide: Vec<f64> = blank.items.iter().map(|item| guide[item.class]).collect();
                scarcest(&relax(&blank, &guide).prices).into_iter().flatten().collect()
            };
            for pods in table.fillings(0.0) {
                for row in &rows {
                    let asked: i64 = pods.iter().map(|(i, n)| blank.ask(*i)[*row] * i64::from(*n)).sum();
                    prop_assert!(asked <= blank.room[*row], "{pods:?} in row {row}");
                }
            }
        }
    }

    #[test]
    fn the_best_filling_of_an_exact_table_is_the_best_there_is() {
        let asks = vec![vec![50, 300], vec![70, 110], vec![110, 90], vec![30, 40]];
        let market = market(vec![390, 790], asks, 100);
        let blank = Blank::of(&market, &market.kinds[0], &[9; 4]);
        let worth: Vec<i64> = [260, 190, 240, 85].iter().map(|worth| worth << FRACTION).collect();
        let view = View { exact: 1_000, cells: 10, asks: Rounding::Up };
        let table = Table::of(&blank, &worth, 0.0, view).expect("pods pay");
        let worth_of = |pods: &Vec<(usize, u32)>| -> i128 {
            let worth = |(item, n): &(usize, u32)| worth[blank.items[*item].class] * i64::from(*n);
            i128::from(pods.iter().map(worth).sum::<i64>())
        };
        let best = table.fillings(0.0).iter().map(worth_of).max();
        assert_eq!(best, Some(most(&blank, &worth, 0, &blank.room)));
    }
}
