//! The cheapest mix of known fillings that holds all pods if nodes may be cut: a linear program with
//! one row for each class, solved by the revised simplex method.

/// Reduced costs above minus this share of the largest price are none.
const EPSILON: f64 = 1e-9;

/// Fillings that are listed at a time.
const LISTED: usize = 64;

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

    /// Forgets the fillings that no node has and that cost more than what their pods are worth by this
    /// share of their price.
    pub(super) fn forget(&mut self, share: f64) {
        let is_kept = |(filling, is_basic): (&Filling, &bool)| {
            *is_basic || self.reduced(filling) <= filling.price * share
        };
        let kept: Vec<bool> = self.fillings.iter().zip(&self.is_basic).map(is_kept).collect();
        let mut next = 0;
        let moved: Vec<usize> = kept
            .iter()
            .map(|kept| {
                next += usize::from(*kept);
                next.saturating_sub(1)
            })
            .collect();
        for basic in &mut self.basis {
            if let Basic::Filling(index) = basic {
                *index = moved[*index];
            }
        }
        let mut kept_again = kept.iter().copied();
        self.fillings.retain(|_| kept_again.next().unwrap_or(true));
        let mut kept = kept.into_iter();
        self.is_basic.retain(|_| kept.next().unwrap_or(true));
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
        self.improve_by(pivots, |mix, least| mix.saving_most(mix.all(), least));
    }

    /// The same for many fillings: those that would save most are listed rarely, and taken as long as
    /// they save something.
    pub(super) fn improve_in_lists(&mut self, pivots: usize) {
        let mut listed = Vec::new();
        self.improve_by(pivots, |mix, least| {
            let of_list = mix.saving_most(listed.iter().copied(), least);
            of_list.or_else(|| {
                listed = mix.list(least);
                mix.saving_most(listed.iter().copied(), least)
            })
        });
    }

    /// `choose` returns what enters the basis and its reduced cost, which is below what it is given.
    fn improve_by(
        &mut self,
        pivots: usize,
        mut choose: impl FnMut(&Self, f64) -> Option<(Basic, f64)>,
    ) {
        let largest = self.fillings.iter().map(|filling| filling.price).fold(0.0, f64::max);
        for _ in 0..pivots {
            let Some((entering, reduced)) = choose(self, -largest * EPSILON) else { break };
            if !self.pivot(entering, reduced) {
                break;
            }
        }
    }

    /// Everything that could be in the basis.
    fn all(&self) -> impl Iterator<Item = Basic> {
        let fillings = (0..self.fillings.len()).map(Basic::Filling);
        fillings.chain((0..self.worth.len()).map(Basic::Spare))
    }

    /// What costs least beyond what it is worth, the first of several, and how much.
    fn saving_most(&self, among: impl Iterator<Item = Basic>, least: f64) -> Option<(Basic, f64)> {
        let reduced = among.map(|basic| (basic, self.reduced_of(basic)));
        let saving = reduced.filter(|(_, reduced)| *reduced < least);
        saving.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// What saves most.
    fn list(&self, least: f64) -> Vec<Basic> {
        let reduced = self.all().map(|basic| (self.reduced_of(basic), basic));
        let mut saving: Vec<(f64, Basic)> = reduced.filter(|(r, _)| *r < least).collect();
        saving.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        saving.truncate(LISTED);
        saving.into_iter().map(|(_, basic)| basic).collect()
    }

    fn reduced_of(&self, basic: Basic) -> f64 {
        match basic {
            Basic::Filling(index) if self.is_basic[index] => 0.0,
            Basic::Filling(index) => self.reduced(&self.fillings[index]),
            Basic::Spare(row) => self.worth[row],
        }
    }

    /// Returns what a node so filled costs beyond what its pods are worth.
    pub(super) fn reduced(&self, filling: &Filling) -> f64 {
        filling.price - filling.pods.iter().map(|(row, n)| self.worth[*row] * n).sum::<f64>()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `row + 3` pods each; fillings of one to three rows, in an order that looks random.
    fn mix() -> Master {
        let rows: usize = 24;
        let wanted: Vec<f64> = (0..24_u8).map(|row| f64::from(row) + 3.0).collect();
        let alone = |row| Filling { kind: 0, price: 1.0, pods: vec![(row, 1.0)] };
        let mut mix = Master::of(&wanted, (0..rows).map(alone).collect());
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
            mix.add(Filling { kind: 1, price: 0.6 + f64::from(next(100)) / 100.0, pods });
        }
        mix
    }

    fn holds_all(mix: &Master) -> bool {
        let counts = mix.counts();
        (0..24_usize).zip(0..24_u8).all(|(row, number)| {
            let held: f64 = mix
                .fillings
                .iter()
                .zip(&counts)
                .flat_map(|(filling, count)| filling.pods.iter().map(move |(r, n)| (r, n * count)))
                .filter(|(r, _)| **r == row)
                .map(|(_, n)| n)
                .sum();
            held > f64::from(number) + 3.0 - 1e-6
        })
    }

    #[test]
    fn lists_find_the_same_price_and_forgetting_changes_none() {
        let (mut one, mut other) = (mix(), mix());
        one.improve(10_000);
        other.improve_in_lists(10_000);
        assert!((one.price() - other.price()).abs() < 1e-6, "{} {}", one.price(), other.price());
        assert!(holds_all(&one) && holds_all(&other));
        let known = other.fillings.len();
        let (before, used) = (other.price(), other.counts().iter().filter(|n| **n > 0.0).count());
        other.forget(0.05);
        assert!(other.fillings.len() < known, "nothing is forgotten");
        assert!((other.price() - before).abs() < 1e-9 && holds_all(&other));
        assert_eq!(other.counts().iter().filter(|n| **n > 0.0).count(), used);
        other.improve(10_000);
        assert!((other.price() - before).abs() < 1e-6);
    }
}
