//! Exact solution for a handful of pods: dynamic programming over all subsets.

use super::purchase::holds;
use super::{BinPackingProblem, NodeOffering, Pattern};

/// Maximum number of pairs of a set and its subset.
const PARTITIONS_MAX: u64 = 400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::solver) struct ExactPurchase {
    /// Price per hour in micro-USD.
    pub price: i64,
    /// The nodes that are bought.
    pub nodes: Vec<Pattern>,
}

/// Returns the cheapest nodes for `wanted` pods by class. Returns `None` if the problem is too
/// large or infeasible.
pub(in crate::solver) fn exact_purchase(
    problem: &BinPackingProblem,
    wanted: &[u32],
) -> Option<ExactPurchase> {
    let table = SubsetTable::new(problem, wanted)?;
    let whole = table.cheapest_offerings();
    let (mut price, mut first) = (vec![0; whole.len()], vec![0; whole.len()]);
    for set in 1..whole.len() {
        let mut best: Option<(i64, usize)> = None;
        table.each_subset(set, true, |subset| {
            let offering = whole[subset].map(|offering| problem.offerings[offering].price);
            let cost =
                offering.and_then(|offering| price_of(&price, set - subset)?.checked_add(offering));
            if let Some(cost) = cost.filter(|cost| best.is_none_or(|(least, _)| *cost < least)) {
                best = Some((cost, subset));
            }
        });
        (price[set], first[set]) = best.unwrap_or((i64::MAX, 0));
    }
    let mut set = whole.len() - 1;
    let price = price_of(&price, set)?;
    let mut nodes = Vec::new();
    while set > 0 {
        let subset = first[set];
        nodes.push(Pattern { offering: whole[subset]?, pods: table.pods(subset) });
        set -= subset;
    }
    Some(ExactPurchase { price, nodes })
}

fn price_of(price: &[i64], set: usize) -> Option<i64> {
    (price[set] < i64::MAX).then_some(price[set])
}

/// All sets of pods. The number of a set is written in mixed radix, one digit per class.
struct SubsetTable<'a> {
    problem: &'a BinPackingProblem,
    /// Classes with wanted pods.
    classes: Vec<usize>,
    /// For each class, its pod count plus one.
    radix: Vec<usize>,
    /// For each class, the value of one pod in the number of a set.
    stride: Vec<usize>,
    sets: usize,
}

impl<'a> SubsetTable<'a> {
    fn new(problem: &'a BinPackingProblem, wanted: &[u32]) -> Option<Self> {
        let classes: Vec<usize> = (0..wanted.len()).filter(|class| wanted[*class] > 0).collect();
        let mut partitions = 1_u64;
        let (mut radix, mut stride, mut sets) = (Vec::new(), Vec::new(), 1_usize);
        for class in &classes {
            let count = u64::from(wanted[*class]);
            partitions = partitions.checked_mul((count + 1).checked_mul(count + 2)? / 2)?;
            if partitions > PARTITIONS_MAX {
                return None;
            }
            radix.push(usize::try_from(count + 1).ok()?);
            stride.push(sets);
            sets *= usize::try_from(count + 1).ok()?;
        }
        Some(Self { problem, classes, radix, stride, sets })
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

    /// For each set, the cheapest offering that holds it on one node.
    fn cheapest_offerings(&self) -> Vec<Option<usize>> {
        let mut by_price: Vec<usize> = (0..self.problem.offerings.len()).collect();
        by_price.sort_by_key(|offering| (self.problem.offerings[*offering].price, *offering));
        // A node that holds a set also holds each subset. The search starts from the rank of the
        // subsets.
        let mut rank = vec![0_usize; self.sets];
        for set in 1..self.sets {
            let with = (0..self.classes.len()).filter(|digit| self.count(set, *digit) > 0);
            let least = with.map(|digit| rank[set - self.stride[digit]]).max().unwrap_or(0);
            let holds = |rank: &usize| {
                by_price
                    .get(*rank)
                    .is_none_or(|offering| self.holds(&self.problem.offerings[*offering], set))
            };
            rank[set] = (least..=by_price.len()).find(holds).unwrap_or(by_price.len());
        }
        rank.into_iter().map(|rank| by_price.get(rank).copied()).collect()
    }

    fn holds(&self, offering: &NodeOffering, set: usize) -> bool {
        holds(self.problem, offering, &self.pods(set))
    }

    /// Calls `visit` for each subset of `set`. With `first`, only subsets with a pod of the first
    /// class are visited, because some node must hold that pod.
    fn each_subset(&self, set: usize, first: bool, mut visit: impl FnMut(usize)) {
        let most: Vec<usize> =
            (0..self.classes.len()).map(|digit| self.count(set, digit)).collect();
        let lead = most.iter().position(|count| *count > 0).filter(|_| first);
        let least = |digit: usize| usize::from(lead == Some(digit));
        let mut digits: Vec<usize> = (0..most.len()).map(least).collect();
        let mut subset: usize = digits.iter().zip(&self.stride).map(|(n, stride)| n * stride).sum();
        loop {
            visit(subset);
            let Some(digit) = (0..most.len()).find(|digit| digits[*digit] < most[*digit]) else {
                return;
            };
            for (lower, count) in digits.iter_mut().enumerate().take(digit) {
                subset -= (*count - least(lower)) * self.stride[lower];
                *count = least(lower);
            }
            digits[digit] += 1;
            subset += self.stride[digit];
        }
    }
}
