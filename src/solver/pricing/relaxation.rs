//! The relaxed knapsack: the most valuable fractional pods of one node. It is a linear program with
//! one row per resource, solved by the bounded simplex method.
//!
//! Its result only guides the search. `dual_bound` proves bounds from its row prices.

use super::empty_pattern::EmptyPattern;

/// Relative tolerance of gains, as a share of the largest value.
const EPSILON: f64 = 1e-9;

/// Maximum pivots per row. The result is then accurate enough.
const PIVOTS_PER_ROW: usize = 24;

#[derive(Debug, Clone)]
pub(super) struct RelaxedKnapsack {
    /// Total value of the pods.
    pub value: f64,
    /// Price of the whole room of each row.
    pub prices: Vec<f64>,
    /// Fractional pods by item.
    pub counts: Vec<f64>,
}

/// Returns the most valuable fractional pods of a node.
pub(super) fn relax_knapsack(empty: &EmptyPattern, values: &[f64]) -> RelaxedKnapsack {
    let mut program = LinearProgram::new(empty, values);
    for _ in 0..PIVOTS_PER_ROW * (empty.rows() + 1) {
        if !program.improve_basis() {
            break;
        }
    }
    program.into_solution()
}

/// The variables are the items, followed by the slack of each row.
struct LinearProgram<'a> {
    empty: &'a EmptyPattern,
    values: &'a [f64],
    epsilon: f64,
    /// Variable of each row.
    basis: Vec<usize>,
    /// Amount of each basic variable.
    level: Vec<f64>,
    /// The inverse of the basis, row by row.
    inverse: Vec<f64>,
    is_basic: Vec<bool>,
    /// For each nonbasic item, true if it is at its upper bound.
    is_full: Vec<bool>,
}

impl<'a> LinearProgram<'a> {
    fn new(empty: &'a EmptyPattern, values: &'a [f64]) -> Self {
        let (rows, items) = (empty.rows(), empty.items.len());
        let mut inverse = vec![0.0; rows * rows];
        (0..rows).for_each(|row| inverse[row * rows + row] = 1.0);
        let mut is_basic = vec![false; items + rows];
        is_basic[items..].fill(true);
        Self {
            empty,
            values,
            epsilon: values.iter().copied().fold(1e-30, f64::max) * EPSILON,
            basis: (items..items + rows).collect(),
            level: vec![1.0; rows],
            inverse,
            is_basic,
            is_full: vec![false; items],
        }
    }

    /// Returns the price of the whole room of each row in this basis.
    fn prices(&self) -> Vec<f64> {
        let rows = self.basis.len();
        let mut prices = vec![0.0; rows];
        for (row, variable) in self.basis.iter().enumerate() {
            let Some(value) = self.values.get(*variable) else { continue };
            for (price, part) in prices.iter_mut().zip(&self.inverse[row * rows..]) {
                *price += value * part;
            }
        }
        prices
    }

    /// Pivots to a better basis. Returns false if the basis is optimal.
    fn improve_basis(&mut self) -> bool {
        let prices = self.prices();
        let Some((entering, up)) = self.entering(&prices) else { return false };
        let rows = self.basis.len();
        let column: Vec<f64> = (0..rows)
            .map(|row| {
                let inverse = &self.inverse[row * rows..(row + 1) * rows];
                match entering.checked_sub(self.values.len()) {
                    Some(slack) => inverse[slack],
                    None => dot(inverse, self.empty.shares(entering)),
                }
            })
            .collect();
        let sign = if up { 1.0 } else { -1.0 };
        let mut step = self.upper_bound(entering);
        let mut leaving = None;
        for (row, part) in column.iter().enumerate() {
            let rate = -sign * part;
            let room = if rate < -EPSILON {
                self.level[row] / -rate
            } else if rate > EPSILON {
                (self.upper_bound(self.basis[row]) - self.level[row]) / rate
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
                &column,
                if up { step } else { self.upper_bound(entering) - step },
                sign,
            ),
        }
        true
    }

    fn upper_bound(&self, variable: usize) -> f64 {
        self.empty.items.get(variable).map_or(f64::INFINITY, |item| f64::from(item.max_count))
    }

    /// Returns the variable with the largest gain from a move to its other bound, and true if it
    /// increases.
    fn entering(&self, prices: &[f64]) -> Option<(usize, bool)> {
        let mut best: Option<(f64, usize, bool)> = None;
        let mut offer = |gain: f64, variable: usize, up: bool| {
            if gain > self.epsilon && best.is_none_or(|(most, _, _)| gain > most) {
                best = Some((gain, variable, up));
            }
        };
        for (item, value) in self.values.iter().enumerate() {
            if self.is_basic[item] {
                continue;
            }
            let gain = value - dot(prices, self.empty.shares(item));
            let most = f64::from(self.empty.items[item].max_count);
            if self.is_full[item] {
                offer(-gain * most, item, false);
            } else {
                offer(gain * most, item, true);
            }
        }
        for (row, price) in prices.iter().enumerate() {
            if !self.is_basic[self.values.len() + row] {
                offer(-price, self.values.len() + row, true);
            }
        }
        best.map(|(_, variable, up)| (variable, up))
    }

    fn pivot(&mut self, row: usize, entering: usize, column: &[f64], level: f64, sign: f64) {
        let rows = self.basis.len();
        let out = self.basis[row];
        self.is_basic[out] = false;
        if out < self.values.len() {
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

    fn into_solution(self) -> RelaxedKnapsack {
        let prices: Vec<f64> = self.prices().into_iter().map(|price| price.max(0.0)).collect();
        let full = |(item, is_full): (&super::empty_pattern::Item, &bool)| {
            if *is_full { f64::from(item.max_count) } else { 0.0 }
        };
        let mut counts: Vec<f64> = self.empty.items.iter().zip(&self.is_full).map(full).collect();
        for (variable, level) in self.basis.iter().zip(&self.level) {
            if let Some(count) = counts.get_mut(*variable) {
                *count = *level;
            }
        }
        let value = counts.iter().zip(self.values).map(|(count, value)| count * value).sum();
        RelaxedKnapsack { value, prices, counts }
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
