//! The cheapest mix of known fillings that holds all pods if nodes may be cut: a linear program with
//! one row for each class, solved by the revised simplex method.

/// Reduced costs above minus this share of the largest price are none.
const EPSILON: f64 = 1e-9;

/// A filling: its price, and how many pods of which rows it holds.
#[derive(Debug, Clone)]
pub(super) struct Filling {
    pub kind: usize,
    pub price: f64,
    pub pods: Vec<(usize, f64)>,
}

/// What a row of the basis stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Basic {
    Filling(usize),
    /// Room beyond what the pods of a row need.
    Spare(usize),
}

/// The program, with a basis that can be improved.
#[derive(Debug, Clone)]
pub(super) struct Master {
    pub fillings: Vec<Filling>,
    is_basic: Vec<bool>,
    basis: Vec<Basic>,
    /// Amount of each basic variable.
    level: Vec<f64>,
    /// Inverse of the basis, row by row.
    inverse: Vec<f64>,
    /// What a pod of each row is worth.
    pub worth: Vec<f64>,
}

impl Master {
    /// Begins with one filling for each row that holds pods of it alone.
    pub(super) fn of(wanted: &[f64], first: Vec<Filling>) -> Self {
        let rows = wanted.len();
        let mut inverse = vec![0.0; rows * rows];
        let copies: Vec<f64> = first.iter().map(|filling| filling.pods[0].1).collect();
        for (row, copies) in copies.iter().enumerate() {
            inverse[row * rows + row] = 1.0 / copies;
        }
        Self {
            is_basic: vec![true; rows],
            basis: (0..rows).map(Basic::Filling).collect(),
            level: wanted.iter().zip(&copies).map(|(wanted, copies)| wanted / copies).collect(),
            worth: first.iter().zip(&copies).map(|(f, copies)| f.price / copies).collect(),
            fillings: first,
            inverse,
        }
    }

    /// Makes one more filling known.
    pub(super) fn add(&mut self, filling: Filling) {
        self.fillings.push(filling);
        self.is_basic.push(false);
    }

    /// Returns what all is worth, which is the price of the mix.
    pub(super) fn price(&self) -> f64 {
        let price = |(basic, level): (&Basic, &f64)| match basic {
            Basic::Filling(filling) => self.fillings[*filling].price * level,
            Basic::Spare(_) => 0.0,
        };
        self.basis.iter().zip(&self.level).map(price).sum()
    }

    /// Returns how many nodes of each filling there are.
    pub(super) fn counts(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.fillings.len()];
        for (basic, level) in self.basis.iter().zip(&self.level) {
            if let Basic::Filling(filling) = basic {
                counts[*filling] = *level;
            }
        }
        counts
    }

    /// Improves the mix until none of the known fillings does, in at most `pivots` steps.
    pub(super) fn improve(&mut self, pivots: usize) {
        let largest = self.fillings.iter().map(|filling| filling.price).fold(0.0, f64::max);
        for _ in 0..pivots {
            let Some((entering, reduced)) = self.entering(largest * EPSILON) else { break };
            if !self.pivot(entering, reduced) {
                break;
            }
        }
    }

    /// Returns what a node so filled costs beyond what its pods are worth.
    pub(super) fn reduced(&self, filling: &Filling) -> f64 {
        filling.price - filling.pods.iter().map(|(row, n)| self.worth[*row] * n).sum::<f64>()
    }

    fn entering(&self, epsilon: f64) -> Option<(Basic, f64)> {
        let mut best: Option<(Basic, f64)> = None;
        let mut offer = |basic: Basic, reduced: f64| {
            if reduced < -epsilon && best.is_none_or(|(_, least)| reduced < least) {
                best = Some((basic, reduced));
            }
        };
        for (index, filling) in self.fillings.iter().enumerate() {
            if !self.is_basic[index] {
                offer(Basic::Filling(index), self.reduced(filling));
            }
        }
        for (row, worth) in self.worth.iter().enumerate() {
            offer(Basic::Spare(row), *worth);
        }
        best
    }

    fn pivot(&mut self, entering: Basic, reduced: f64) -> bool {
        let rows = self.basis.len();
        let column: Vec<f64> = (0..rows)
            .map(|row| {
                let inverse = &self.inverse[row * rows..(row + 1) * rows];
                match entering {
                    Basic::Filling(index) => {
                        let pods = &self.fillings[index].pods;
                        pods.iter().map(|(row, n)| inverse[*row] * n).sum()
                    }
                    Basic::Spare(row) => -inverse[row],
                }
            })
            .collect();
        let mut leaving: Option<(usize, f64)> = None;
        for (row, part) in column.iter().enumerate().filter(|(_, part)| **part > EPSILON) {
            let step = self.level[row].max(0.0) / part;
            if leaving.is_none_or(|(best, least)| {
                step < least - 1e-12 || (step <= least + 1e-12 && *part > column[best])
            }) {
                leaving = Some((row, step));
            }
        }
        let Some((row, step)) = leaving else { return false };
        for (level, part) in self.level.iter_mut().zip(&column) {
            *level -= part * step;
        }
        self.level[row] = step;
        let pivot: Vec<f64> = self.inverse[row * rows..(row + 1) * rows]
            .iter()
            .map(|cell| cell / column[row])
            .collect();
        for (worth, unit) in self.worth.iter_mut().zip(&pivot) {
            *worth += reduced * unit;
        }
        for (other, part) in column.iter().enumerate() {
            if other == row || *part == 0.0 {
                continue;
            }
            let cells = &mut self.inverse[other * rows..(other + 1) * rows];
            cells.iter_mut().zip(&pivot).for_each(|(cell, unit)| *cell -= part * unit);
        }
        self.inverse[row * rows..(row + 1) * rows].copy_from_slice(&pivot);
        if let Basic::Filling(out) = self.basis[row] {
            self.is_basic[out] = false;
        }
        if let Basic::Filling(index) = entering {
            self.is_basic[index] = true;
        }
        self.basis[row] = entering;
        true
    }
}
