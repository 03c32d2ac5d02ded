//! The pods on one node that are worth most: branch and bound, in integers.
//!
//! Items are tried from the one worth most for what its room costs to the least, most copies first,
//! so that the first leaf is the greedy filling. What the rest can still add is bounded by one
//! constraint in place of all rows, their sum at the prices of the relaxation. Counted steps end
//! the search early; then the bound is that of the best part not looked at.

use super::blank::{Blank, copies};
use super::certificate::{RowPrices, cost, cost_of_room, most_at, row_prices};
use super::number::{real, whole};
use super::relaxation::relax;

/// What a search found.
#[derive(Debug, Clone, Default)]
pub(super) struct Found<N = u32> {
    /// Pods by item of the best filling worth more than was asked for; empty if there is none.
    pub counts: Vec<N>,
    /// What they are worth, or what was asked for.
    pub worth: i128,
    /// What no filling exceeds.
    pub most: i128,
    /// Steps taken.
    pub steps: u64,
}

/// Pods on one node up to which all fillings are searched, not only those near the relaxation.
const FEW_PODS: f64 = 24.0;

/// Returns whether so few pods share a node that all fillings are searched.
pub(super) fn is_few(counts: &[f64]) -> bool {
    counts.iter().sum::<f64>() <= FEW_PODS
}

/// Looks for pods on `blank` worth more than `floor` (worth is by class), in at most `steps` steps.
pub(super) fn search(blank: &Blank, worth: &[i64], floor: i128, steps: u64) -> Found {
    let guide: Vec<f64> = blank.items.iter().map(|item| real(worth[item.class])).collect();
    let relaxed = relax(blank, &guide);
    let prices = row_prices(blank, &relaxed.prices);
    let bound = most_at(blank, worth, &prices);
    let mut found = Found { worth: floor, most: bound, steps: 1, ..Found::default() };
    if bound <= floor {
        return found;
    }
    let few = is_few(&relaxed.counts);
    // Near the relaxation first: its counts rounded down, with some given back.
    let near = |count: &f64| {
        let count = u32::try_from(whole(count + 1e-9)).unwrap_or(u32::MAX);
        count - (1 + count / 8).min(count)
    };
    let base: Vec<u32> = relaxed.counts.iter().map(near).collect();
    let mut search = Search::of(blank, worth, &prices, &base);
    search.run(floor, steps / if few { 4 } else { 1 });
    found.take(&search);
    if few && base.iter().any(|count| *count > 0) {
        let mut search = Search::of(blank, worth, &prices, &vec![0; base.len()]);
        search.run(found.worth, steps);
        found.take(&search);
        found.most = found.most.min(search.best_worth.max(search.open));
    } else if base.iter().all(|count| *count == 0) {
        found.most = found.most.min(search.best_worth.max(search.open));
    }
    found
}

/// Looks for the most that can be worth beside the pods of `base` on `blank`, in at most `steps`
/// steps; what is found has these pods as well.
pub(super) fn fill_up(blank: &Blank, worth: &[i64], base: &[u32], steps: u64) -> Found {
    let guide: Vec<f64> = blank.items.iter().map(|item| real(worth[item.class])).collect();
    let prices = row_prices(blank, &relax(blank, &guide).prices);
    let most = most_at(blank, worth, &prices);
    let mut search = Search::of(blank, worth, &prices, base);
    search.run(0, steps);
    let mut found = Found { counts: base.to_vec(), worth: search.base_worth, most, steps: 0 };
    found.take(&search);
    found
}

impl Found {
    fn take(&mut self, search: &Search) {
        self.steps += search.taken;
        if search.best.is_empty() {
            return;
        }
        self.worth = search.best_worth;
        self.counts.clone_from(&search.base);
        for (candidate, count) in search.ranked.iter().zip(&search.best) {
            self.counts[candidate.item] += count;
        }
    }
}

/// An item in the order of the search.
struct Candidate {
    item: usize,
    worth: i64,
    /// What its room costs.
    cost: i64,
    most: u32,
}

struct Search<'a> {
    blank: &'a Blank,
    /// Pods by item that are there already.
    base: Vec<u32>,
    /// What they are worth.
    base_worth: i128,
    ranked: Vec<Candidate>,
    room: Vec<i64>,
    /// What the whole room costs.
    surrogate: i64,
    counts: Vec<u32>,
    best: Vec<u32>,
    best_worth: i128,
    /// Bound of the best part that was not looked at.
    open: i128,
    taken: u64,
    steps: u64,
}

impl<'a> Search<'a> {
    fn of(blank: &'a Blank, worth: &[i64], prices: &RowPrices, base: &[u32]) -> Self {
        let candidate = |(item, held): (usize, &super::blank::Item)| Candidate {
            item,
            worth: worth[held.class],
            cost: cost(blank, prices, item),
            most: held.most - base[item],
        };
        let items = blank.items.iter().enumerate().map(candidate);
        let mut ranked: Vec<Candidate> =
            items.filter(|candidate| candidate.worth > 0 && candidate.most > 0).collect();
        ranked.sort_by(|a, b| {
            let this = i128::from(b.worth) * i128::from(a.cost);
            let that = i128::from(a.worth) * i128::from(b.cost);
            this.cmp(&that).then(b.worth.cmp(&a.worth)).then(a.item.cmp(&b.item))
        });
        let mut room = blank.room.clone();
        let (mut base_worth, mut base_cost) = (0, 0);
        for (item, count) in base.iter().enumerate().filter(|(_, count)| **count > 0) {
            for (room, ask) in room.iter_mut().zip(blank.ask(item)) {
                *room -= ask * i64::from(*count);
            }
            base_worth += i128::from(worth[blank.items[item].class]) * i128::from(*count);
            base_cost += i128::from(cost(blank, prices, item)) * i128::from(*count);
        }
        let surrogate = cost_of_room(blank, prices) - base_cost;
        Self {
            room,
            surrogate: i64::try_from(surrogate).unwrap_or(i64::MAX),
            counts: vec![0; ranked.len()],
            best: Vec::new(),
            best_worth: 0,
            open: 0,
            taken: 0,
            steps: 0,
            base: base.to_vec(),
            base_worth,
            blank,
            ranked,
        }
    }

    fn run(&mut self, floor: i128, steps: u64) {
        (self.best_worth, self.steps) = (floor, steps);
        self.descend(0, self.surrogate, self.base_worth);
    }

    /// Tries all counts of the candidates from `at` on, with `left` of the surrogate, on top of
    /// pods worth `worth`.
    fn descend(&mut self, at: usize, left: i64, worth: i128) {
        self.taken += 1;
        if worth > self.best_worth {
            self.best_worth = worth;
            self.best.clone_from(&self.counts);
        }
        let mut at = at;
        let (next, most) = loop {
            let Some(candidate) = self.ranked.get(at) else { return };
            let ask = self.blank.ask(candidate.item);
            // Most of them do not fit: comparing is quicker than dividing.
            if ask.iter().zip(&self.room).all(|(ask, room)| ask <= room) {
                break (candidate, copies(ask, &self.room, candidate.most));
            }
            at += 1;
        };
        let (item, each, cost) = (next.item, next.worth, next.cost);
        for count in (0..=most).rev() {
            let here = worth + i128::from(each) * i128::from(count);
            let rest = left.saturating_sub(cost.saturating_mul(i64::from(count)));
            let bound = here + self.most_of_rest(at + 1, rest);
            if bound <= self.best_worth {
                return;
            }
            if self.taken >= self.steps {
                self.open = self.open.max(bound);
                return;
            }
            self.counts[at] = count;
            self.take(item, -i64::from(count));
            self.descend(at + 1, rest, here);
            self.take(item, i64::from(count));
            self.counts[at] = 0;
        }
    }

    fn take(&mut self, item: usize, count: i64) {
        for (room, ask) in self.room.iter_mut().zip(self.blank.ask(item)) {
            *room += ask * count;
        }
    }

    /// The most that the candidates from `at` on can be worth if they may be cut.
    fn most_of_rest(&self, at: usize, left: i64) -> i128 {
        let mut left = i128::from(left.max(0));
        let mut all = 0;
        for candidate in &self.ranked[at.min(self.ranked.len())..] {
            let (worth, cost) = (i128::from(candidate.worth), i128::from(candidate.cost));
            let whole = cost * i128::from(candidate.most);
            if whole > left {
                // Rounded up, and so it falls with the count of an earlier candidate.
                return all + (worth * left + cost - 1) / cost;
            }
            left -= whole;
            all += worth * i128::from(candidate.most);
        }
        all
    }
}
