//! The cheapest nodes for a handful of pods, by looking at every way to part them.

use super::bought::{has_room, holds};
use super::{Kind, Market, Pattern, Single};

/// Ways to take some pods out of some others, over all of both, up to which they are looked at.
const PARTINGS_MAX: u64 = 400_000;

/// The cheapest answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::solve) struct Cheapest {
    /// Price per hour in micro-USD, of nodes of the kinds and of nodes that can be had once.
    pub price: i64,
    /// The nodes of the kinds.
    pub nodes: Vec<Pattern>,
}

/// Returns the cheapest nodes that hold `wanted` pods by class; `None` if there are too many ways to
/// look at, or no way at all.
pub(in crate::solve) fn cheapest(market: &Market, wanted: &[u32]) -> Option<Cheapest> {
    let table = Table::of(market, wanted)?;
    let whole = table.cheapest_kinds();
    let (mut price, mut first) = (vec![0; whole.len()], vec![0; whole.len()]);
    for set in 1..whole.len() {
        let mut best: Option<(i64, usize)> = None;
        table.each_part(set, true, |part| {
            let kind = whole[part].map(|kind| market.kinds[kind].price);
            let cost = kind.and_then(|kind| price_of(&price, set - part)?.checked_add(kind));
            if let Some(cost) = cost.filter(|cost| best.is_none_or(|(least, _)| *cost < least)) {
                best = Some((cost, part));
            }
        });
        (price[set], first[set]) = best.unwrap_or((i64::MAX, 0));
    }
    let (price, mut set) = table.with_singles(price, whole.len() - 1)?;
    let mut nodes = Vec::new();
    while set > 0 {
        let part = first[set];
        nodes.push(Pattern { kind: whole[part]?, pods: table.pods(part) });
        set -= part;
    }
    Some(Cheapest { price, nodes })
}

fn price_of(price: &[i64], set: usize) -> Option<i64> {
    (price[set] < i64::MAX).then_some(price[set])
}

/// All sets of pods, each with a number: counts by class, as digits.
struct Table<'a> {
    market: &'a Market,
    /// Classes of which pods are wanted.
    classes: Vec<usize>,
    /// For each of these, one more than how many.
    radix: Vec<usize>,
    /// For each of these, what one pod adds to the number of a set.
    stride: Vec<usize>,
    sets: usize,
}

impl<'a> Table<'a> {
    fn of(market: &'a Market, wanted: &[u32]) -> Option<Self> {
        let classes: Vec<usize> = (0..wanted.len()).filter(|class| wanted[*class] > 0).collect();
        let singles: u64 = market.singles.iter().map(|single| u64::from(single.count)).sum();
        let mut partings = singles + 1;
        let (mut radix, mut stride, mut sets) = (Vec::new(), Vec::new(), 1_usize);
        for class in &classes {
            let count = u64::from(wanted[*class]);
            partings = partings.checked_mul((count + 1).checked_mul(count + 2)? / 2)?;
            if partings > PARTINGS_MAX {
                return None;
            }
            radix.push(usize::try_from(count + 1).ok()?);
            stride.push(sets);
            sets *= usize::try_from(count + 1).ok()?;
        }
        Some(Self { market, classes, radix, stride, sets })
    }

    fn count(&self, set: usize, digit: usize) -> usize {
        set / self.stride[digit] % self.radix[digit]
    }

    fn pods(&self, set: usize) -> Vec<(usize, u32)> {
        let count = |(digit, class): (usize, &usize)| {
            let count = u32::try_from(self.count(set, digit)).unwrap_or(u32::MAX);
            (count > 0).then_some((*class, count))
        };
        self.classes.iter().enumerate().filter_map(count).collect()
    }

    /// For each set, the cheapest kind of which one node holds it.
    fn cheapest_kinds(&self) -> Vec<Option<usize>> {
        let mut by_price: Vec<usize> = (0..self.market.kinds.len()).collect();
        by_price.sort_by_key(|kind| (self.market.kinds[*kind].price, *kind));
        // What holds a set holds it without one pod as well: look on from there.
        let mut rank = vec![0_usize; self.sets];
        for set in 1..self.sets {
            let with = (0..self.classes.len()).filter(|digit| self.count(set, *digit) > 0);
            let least = with.map(|digit| rank[set - self.stride[digit]]).max().unwrap_or(0);
            let holds = |rank: &usize| {
                by_price.get(*rank).is_none_or(|kind| self.holds(&self.market.kinds[*kind], set))
            };
            rank[set] = (least..=by_price.len()).find(holds).unwrap_or(by_price.len());
        }
        rank.into_iter().map(|rank| by_price.get(rank).copied()).collect()
    }

    fn holds(&self, kind: &Kind, set: usize) -> bool {
        holds(self.market, kind, &self.pods(set))
    }

    /// Calls `look` with each part of `set`; with `first`, only with those that have a pod of the
    /// first class of the set, since some node has.
    fn each_part(&self, set: usize, first: bool, mut look: impl FnMut(usize)) {
        let most: Vec<usize> =
            (0..self.classes.len()).map(|digit| self.count(set, digit)).collect();
        let lead = most.iter().position(|count| *count > 0).filter(|_| first);
        let least = |digit: usize| usize::from(lead == Some(digit));
        let mut digits: Vec<usize> = (0..most.len()).map(least).collect();
        let mut part: usize = digits.iter().zip(&self.stride).map(|(n, stride)| n * stride).sum();
        loop {
            look(part);
            let Some(digit) = (0..most.len()).find(|digit| digits[*digit] < most[*digit]) else {
                return;
            };
            for (lower, count) in digits.iter_mut().enumerate().take(digit) {
                part -= (*count - least(lower)) * self.stride[lower];
                *count = least(lower);
            }
            digits[digit] += 1;
            part += self.stride[digit];
        }
    }

    /// Puts what pays on nodes that can be had once; returns the price of all, and the set that the
    /// kinds are left with.
    fn with_singles(&self, price: Vec<i64>, all: usize) -> Option<(i64, usize)> {
        let mut left: Vec<(i64, usize)> = price.into_iter().zip(0..).collect();
        let each = |single: &'a Single| (0..single.count).map(move |_| &single.kind);
        for single in self.market.singles.iter().flat_map(each) {
            let mut next = left.clone();
            for (set, next) in next.iter_mut().enumerate() {
                self.each_part(set, false, |part| {
                    let (price, rest) = left[set - part];
                    let cost = price.saturating_add(single.price);
                    if cost < next.0 && has_room(self.market, single, &self.pods(part)) {
                        *next = (cost, rest);
                    }
                });
            }
            left = next;
        }
        left.get(all).copied().filter(|(price, _)| *price < i64::MAX)
    }
}
