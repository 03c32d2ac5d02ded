//! The most that pods on one node are worth if they could be cut: a linear program with one row
//! for each resource, solved by the bounded simplex method.
//!
//! Its answer guides. What it says of prices is claimed by `certificate` only.

use super::blank::Blank;

/// Differences below this share of the largest worth are none.
const EPSILON: f64 = 1e-9;

/// Pivots after which the answer is good enough, per row.
const PIVOTS_PER_ROW: usize = 24;

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Relaxed {
    /// What the pods are worth.
    pub value: f64,
    /// What the whole room is worth, by resource.
    pub prices: Vec<f64>,
    /// Pods by item.
    pub counts: Vec<f64>,
}

/// Returns the pods, cut as needed, that are worth most on `blank`.
pub(super) fn relax(blank: &Blank, worth: &[f64]) -> Relaxed {
    let mut program = Program::of(blank, worth);
    for _ in 0..PIVOTS_PER_ROW * (blank.rows() + 1) {
        if !program.step() {
            break;
        }
    }
    program.answer()
}

/// Variables are the items and, after them, what is left of each row.
struct Program<'a> {
    blank: &'a Blank,
    worth: &'a [f64],
    epsilon: f64,
    /// Variable of each row.
    basis: Vec<usize>,
    /// Its amount.
    level: Vec<f64>,
    /// The inverse of the basis, row by row.
    inverse: Vec<f64>,
    is_basic: Vec<bool>,
    /// For each item that is not basic, whether there are as many as may be.
    is_full: Vec<bool>,
}

impl<'a> Program<'a> {
    fn of(blank: &'a Blank, worth: &'a [f64]) -> Self {
        let (rows, items) = (blank.rows(), blank.items.len());
        let mut inverse = vec![0.0; rows * rows];
        (0..rows).for_each(|row| inverse[row * rows + row] = 1.0);
        let mut is_basic = vec![false; items + rows];
        is_basic[items..].fill(true);
        Self {
            blank,
            worth,
            epsilon: worth.iter().copied().fold(1e-30, f64::max) * EPSILON,
            basis: (items..items + rows).collect(),
            level: vec![1.0; rows],
            inverse,
            is_basic,
            is_full: vec![false; items],
        }
    }

    /// What a whole room of each resource is worth in this basis.
    fn prices(&self) -> Vec<f64> {
        let rows = self.basis.len();
        let mut prices = vec![0.0; rows];
        for (row, variable) in self.basis.iter().enumerate() {
            let Some(worth) = self.worth.get(*variable) else { continue };
            for (price, part) in prices.iter_mut().zip(&self.inverse[row * rows..]) {
                *price += worth * part;
            }
        }
        prices
    }

    /// Moves to a better basis; returns whether there was one.
    fn step(&mut self) -> bool {
        let prices = self.prices();
        let Some((entering, up)) = self.entering(&prices) else { return false };
        let rows = self.basis.len();
        let column: Vec<f64> = (0..rows)
            .map(|row| {
                let inverse = &self.inverse[row * rows..(row + 1) * rows];
                match entering.checked_sub(self.worth.len()) {
                    Some(slack) => inverse[slack],
                    None => dot(inverse, self.blank.shares(entering)),
                }
            })
            .collect();
        let sign = if up { 1.0 } else { -1.0 };
        let mut step = self.most(entering);
        let mut leaving = None;
        for (row, part) in column.iter().enumerate() {
            let rate = -sign * part;
            let room = if rate < -EPSILON {
                self.level[row] / -rate
            } else if rate > EPSILON {
                (self.most(self.basis[row]) - self.level[row]) / rate
            } else {
                continue;
            };
            if room < step {
                (step, leaving) = (room.max(0.0), Some(row));
            }
        }
        if step.is_infinite() {
            return false;
        }
        for (level, part) in self.level.iter_mut().zip(&column) {
            *level -= sign * part * step;
        }
        match leaving {
            None => self.is_full[entering] = up,
            Some(row) => self.pivot(
                row,
                entering,
                (&column, if up { step } else { self.most(entering) - step }, sign),
            ),
        }
        true
    }

    fn most(&self, variable: usize) -> f64 {
        self.blank.items.get(variable).map_or(f64::INFINITY, |item| f64::from(item.most))
    }

    /// The variable that gains most if it goes to its other end, and whether it grows.
    fn entering(&self, prices: &[f64]) -> Option<(usize, bool)> {
        let mut best: Option<(f64, usize, bool)> = None;
        let mut offer = |gain: f64, variable: usize, up: bool| {
            if gain > self.epsilon && best.is_none_or(|(most, _, _)| gain > most) {
                best = Some((gain, variable, up));
            }
        };
        for (item, worth) in self.worth.iter().enumerate() {
            if self.is_basic[item] {
                continue;
            }
            let gain = worth - dot(prices, self.blank.shares(item));
            let most = f64::from(self.blank.items[item].most);
            if self.is_full[item] {
                offer(-gain * most, item, false);
            } else {
                offer(gain * most, item, true);
            }
        }
        for (row, price) in prices.iter().enumerate() {
            if !self.is_basic[self.worth.len() + row] {
                offer(-price, self.worth.len() + row, true);
            }
        }
        best.map(|(_, variable, up)| (variable, up))
    }

    fn pivot(&mut self, row: usize, entering: usize, (column, level, sign): (&[f64], f64, f64)) {
        let rows = self.basis.len();
        let out = self.basis[row];
        self.is_basic[out] = false;
        if out < self.worth.len() {
            self.is_full[out] = -sign * column[row] > 0.0;
        }
        self.is_basic[entering] = true;
        self.basis[row] = entering;
        self.level[row] = level;
        let pivot: Vec<f64> = self.inverse[row * rows..(row + 1) * rows]
            .iter()
            .map(|part| part / column[row])
            .collect();
        for (other, part) in column.iter().enumerate().filter(|(other, _)| *other != row) {
            for (cell, unit) in
                self.inverse[other * rows..(other + 1) * rows].iter_mut().zip(&pivot)
            {
                *cell -= part * unit;
            }
        }
        self.inverse[row * rows..(row + 1) * rows].copy_from_slice(&pivot);
    }

    fn answer(self) -> Relaxed {
        let prices: Vec<f64> = self.prices().into_iter().map(|price| price.max(0.0)).collect();
        let full = |(item, is_full): (&super::blank::Item, &bool)| {
            if *is_full { f64::from(item.most) } else { 0.0 }
        };
        let mut counts: Vec<f64> = self.blank.items.iter().zip(&self.is_full).map(full).collect();
        for (variable, level) in self.basis.iter().zip(&self.level) {
            if let Some(count) = counts.get_mut(*variable) {
                *count = *level;
            }
        }
        let value = counts.iter().zip(self.worth).map(|(count, worth)| count * worth).sum();
        Relaxed { value, prices, counts }
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
