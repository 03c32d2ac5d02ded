//! The restricted master problem: the cheapest fractional nodes of known patterns that cover all
//! pods. It is a linear program with one row per class, solved by the revised simplex method.

/// Relative tolerance of reduced costs, as a share of the largest price.
const EPSILON: f64 = 1e-9;

/// Maximum columns on the candidate list.
const CANDIDATES_MAX: usize = 64;

/// A pattern of the master problem: its price, and pairs of row and pod count.
#[derive(Debug, Clone)]
pub(super) struct MasterColumn {
    pub offering: usize,
    pub price: f64,
    pub pods: Vec<(usize, f64)>,
}

/// A basic variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BasicVariable {
    Column(usize),
    /// Surplus coverage of a row.
    Surplus(usize),
}

/// The linear program and its current basis.
#[derive(Debug, Clone)]
pub(super) struct MasterProblem {
    pub columns: Vec<MasterColumn>,
    is_basic: Vec<bool>,
    basis: Vec<BasicVariable>,
    /// Amount of each basic variable.
    level: Vec<f64>,
    /// Inverse of the basis, row by row.
    inverse: Vec<f64>,
    /// Dual price of each row.
    pub duals: Vec<f64>,
}

impl MasterProblem {
    /// Starts from one column per row that covers this row only.
    pub(super) fn new(wanted: &[f64], first: Vec<MasterColumn>) -> Self {
        let rows = wanted.len();
        let mut inverse = vec![0.0; rows * rows];
        let copies: Vec<f64> = first.iter().map(|column| column.pods[0].1).collect();
        for (row, copies) in copies.iter().enumerate() {
            inverse[row * rows + row] = 1.0 / copies;
        }
        Self {
            is_basic: vec![true; rows],
            basis: (0..rows).map(BasicVariable::Column).collect(),
            level: wanted.iter().zip(&copies).map(|(wanted, copies)| wanted / copies).collect(),
            duals: first.iter().zip(&copies).map(|(f, copies)| f.price / copies).collect(),
            columns: first,
            inverse,
        }
    }

    /// Adds a nonbasic column.
    pub(super) fn add(&mut self, column: MasterColumn) {
        self.columns.push(column);
        self.is_basic.push(false);
    }

    /// Removes nonbasic columns whose reduced cost exceeds this share of their price.
    pub(super) fn drop_columns(&mut self, share: f64) {
        let is_retained = |(column, is_basic): (&MasterColumn, &bool)| {
            *is_basic || self.reduced_cost(column) <= column.price * share
        };
        let retained: Vec<bool> =
            self.columns.iter().zip(&self.is_basic).map(is_retained).collect();
        let mut next = 0;
        let moved: Vec<usize> = retained
            .iter()
            .map(|retained| {
                next += usize::from(*retained);
                next.saturating_sub(1)
            })
            .collect();
        for basic in &mut self.basis {
            if let BasicVariable::Column(index) = basic {
                *index = moved[*index];
            }
        }
        let mut retained_again = retained.iter().copied();
        self.columns.retain(|_| retained_again.next().unwrap_or(true));
        let mut retained = retained.into_iter();
        self.is_basic.retain(|_| retained.next().unwrap_or(true));
    }

    /// Returns the objective: the price of the current solution.
    pub(super) fn price(&self) -> f64 {
        let price = |(basic, level): (&BasicVariable, &f64)| match basic {
            BasicVariable::Column(column) => self.columns[*column].price * level,
            BasicVariable::Surplus(_) => 0.0,
        };
        self.basis.iter().zip(&self.level).map(price).sum()
    }

    /// Returns the number of nodes of each column.
    pub(super) fn counts(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.columns.len()];
        for (basic, level) in self.basis.iter().zip(&self.level) {
            if let BasicVariable::Column(column) = basic {
                counts[*column] = *level;
            }
        }
        counts
    }

    /// Pivots until no known column improves the solution, in at most `pivots` steps.
    pub(super) fn optimize(&mut self, pivots: usize) {
        self.optimize_by(pivots, |master, least| master.most_negative(master.all(), least));
    }

    /// Partial pricing for many columns. The columns with the lowest reduced costs form a candidate
    /// list, which is used until none of them improves the solution.
    pub(super) fn optimize_with_candidate_list(&mut self, pivots: usize) {
        let mut candidates = Vec::new();
        self.optimize_by(pivots, |master, least| {
            let best_candidate = master.most_negative(candidates.iter().copied(), least);
            best_candidate.or_else(|| {
                candidates = master.candidate_list(least);
                master.most_negative(candidates.iter().copied(), least)
            })
        });
    }

    /// Pivots on the variables that `choose` returns with their reduced cost, which must be below
    /// its argument.
    fn optimize_by(
        &mut self,
        pivots: usize,
        mut choose: impl FnMut(&Self, f64) -> Option<(BasicVariable, f64)>,
    ) {
        let largest = self.columns.iter().map(|column| column.price).fold(0.0, f64::max);
        for _ in 0..pivots {
            let Some((entering, reduced_cost)) = choose(self, -largest * EPSILON) else { break };
            if !self.pivot(entering, reduced_cost) {
                break;
            }
        }
    }

    /// Returns all variables.
    fn all(&self) -> impl Iterator<Item = BasicVariable> {
        let columns = (0..self.columns.len()).map(BasicVariable::Column);
        columns.chain((0..self.duals.len()).map(BasicVariable::Surplus))
    }

    /// Returns the variable with the lowest reduced cost below `least`, the first among equals.
    fn most_negative(
        &self,
        among: impl Iterator<Item = BasicVariable>,
        least: f64,
    ) -> Option<(BasicVariable, f64)> {
        let reduced_cost = among.map(|basic| (basic, self.reduced_cost_of(basic)));
        let saving = reduced_cost.filter(|(_, reduced_cost)| *reduced_cost < least);
        saving.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Returns the variables with the lowest reduced costs.
    fn candidate_list(&self, least: f64) -> Vec<BasicVariable> {
        let reduced_cost = self.all().map(|basic| (self.reduced_cost_of(basic), basic));
        let mut saving: Vec<(f64, BasicVariable)> =
            reduced_cost.filter(|(r, _)| *r < least).collect();
        saving.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        saving.truncate(CANDIDATES_MAX);
        saving.into_iter().map(|(_, basic)| basic).collect()
    }

    fn reduced_cost_of(&self, basic: BasicVariable) -> f64 {
        match basic {
            BasicVariable::Column(index) if self.is_basic[index] => 0.0,
            BasicVariable::Column(index) => self.reduced_cost(&self.columns[index]),
            BasicVariable::Surplus(row) => self.duals[row],
        }
    }

    /// Returns the reduced cost of a column: its price minus the value of its pods.
    pub(super) fn reduced_cost(&self, column: &MasterColumn) -> f64 {
        column.price - column.pods.iter().map(|(row, n)| self.duals[*row] * n).sum::<f64>()
    }

    fn pivot(&mut self, entering: BasicVariable, reduced_cost: f64) -> bool {
        let rows = self.basis.len();
        let column: Vec<f64> = (0..rows)
            .map(|row| {
                let inverse = &self.inverse[row * rows..(row + 1) * rows];
                match entering {
                    BasicVariable::Column(index) => {
                        let pods = &self.columns[index].pods;
                        pods.iter().map(|(row, n)| inverse[*row] * n).sum()
                    }
                    BasicVariable::Surplus(row) => -inverse[row],
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
        for (dual, unit) in self.duals.iter_mut().zip(&pivot) {
            *dual += reduced_cost * unit;
        }
        for (other, part) in column.iter().enumerate() {
            if other == row || *part == 0.0 {
                continue;
            }
            let cells = &mut self.inverse[other * rows..(other + 1) * rows];
            cells.iter_mut().zip(&pivot).for_each(|(cell, unit)| *cell -= part * unit);
        }
        self.inverse[row * rows..(row + 1) * rows].copy_from_slice(&pivot);
        if let BasicVariable::Column(out) = self.basis[row] {
            self.is_basic[out] = false;
        }
        if let BasicVariable::Column(index) = entering {
            self.is_basic[index] = true;
        }
        self.basis[row] = entering;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `row + 3` pods each, and columns of one to three rows in pseudo-random order.
    fn master() -> MasterProblem {
        let rows: usize = 24;
        let wanted: Vec<f64> = (0..24_u8).map(|row| f64::from(row) + 3.0).collect();
        let alone = |row| MasterColumn { offering: 0, price: 1.0, pods: vec![(row, 1.0)] };
        let mut master = MasterProblem::new(&wanted, (0..rows).map(alone).collect());
        let mut state = 7_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..600 {
            let mut pods: Vec<(usize, f64)> = (0..=next(3))
                .map(|_| (usize::try_from(next(24)).expect("small"), f64::from(1 + next(3))))
                .collect();
            pods.sort_by_key(|(row, _)| *row);
            pods.dedup_by_key(|(row, _)| *row);
            master.add(MasterColumn {
                offering: 1,
                price: 0.6 + f64::from(next(100)) / 100.0,
                pods,
            });
        }
        master
    }

    fn covers_all_pods(master: &MasterProblem) -> bool {
        let counts = master.counts();
        (0..24_usize).zip(0..24_u8).all(|(row, number)| {
            let covered: f64 = master
                .columns
                .iter()
                .zip(&counts)
                .flat_map(|(column, count)| column.pods.iter().map(move |(r, n)| (r, n * count)))
                .filter(|(r, _)| **r == row)
                .map(|(_, n)| n)
                .sum();
            covered > f64::from(number) + 3.0 - 1e-6
        })
    }

    #[test]
    fn candidate_list_and_dropped_columns_keep_the_optimum() {
        let (mut one, mut other) = (master(), master());
        one.optimize(10_000);
        other.optimize_with_candidate_list(10_000);
        assert!((one.price() - other.price()).abs() < 1e-6, "{} {}", one.price(), other.price());
        assert!(covers_all_pods(&one) && covers_all_pods(&other));
        let known = other.columns.len();
        let (before, used) = (other.price(), other.counts().iter().filter(|n| **n > 0.0).count());
        other.drop_columns(0.05);
        assert!(other.columns.len() < known, "no column is dropped");
        assert!((other.price() - before).abs() < 1e-9 && covers_all_pods(&other));
        assert_eq!(other.counts().iter().filter(|n| **n > 0.0).count(), used);
        other.optimize(10_000);
        assert!((other.price() - before).abs() < 1e-6);
    }
}
