//! Column generation: prices of pods and fillings of nodes that prove each other.
//!
//! The mix of known fillings prices pods; nodes are filled with what is worth most at these prices;
//! whatever is worth more than its node costs joins the mix. Prices are drawn halfway to the best
//! ones so far, because those of the mix alone jump. Every round gives a bound; the best counts.
//!
//! It runs twice: with pods that may be cut, which is quick and whose prices are nearly right, and
//! from there with whole pods, where so few share a node that it matters, or where the fillings are
//! wanted.

use std::collections::BTreeMap;

use super::blank::Blank;
use super::certificate::{FRACTION, UNIT, bound, grains, most_at, row_prices, scaled};
use super::cluster::Clusters;
use super::knapsack::{Found, search};
use super::master::{Filling, Master};
use super::number::{real, whole};
use super::relaxation::relax;
use super::{Market, Pattern, Single};

/// Classes up to which they are priced one by one; more are priced in clusters.
pub(super) const ROWS_MAX: usize = 64;

/// Weight of the best prices so far when new ones are drawn.
const CENTRE: f64 = 0.5;

/// Share of its price that a filling may cost beyond what its pods are worth, and be kept in mind.
const NEARLY_PAYS: f64 = 0.03;

/// Fillings of one kind beside the best that a round adds.
const OTHERS_MAX: usize = 2;

/// Fillings of one kind to begin with.
const SEEDS_MAX: usize = 32;

/// Rounds after which all kinds are filled again.
const ROUNDS_APART: usize = 8;

/// Share of the mix's price within which a bound is as good as it gets.
const CLOSE: f64 = 1e-4;

/// How much may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::solve) struct Effort {
    /// Rounds with pods that may be cut.
    pub cut_rounds: usize,
    /// Rounds with whole pods.
    pub rounds: usize,
    /// Steps of one search for a filling.
    pub steps: u64,
    /// Steps of all searches, after which no further round begins.
    pub steps_total: u64,
}

/// Prices of pods and what they prove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::solve) struct Claim {
    /// Bound in micro-USD per hour.
    pub bound: i64,
    /// What a pod of each class is worth, in 2^-20 micro-USD per hour.
    pub worth: Vec<i64>,
}

/// Pods and nodes, ready to be priced.
pub(in crate::solve) struct Pricing<'a> {
    pub(super) market: &'a Market,
    pub(super) wanted: &'a [u32],
    pub(super) kinds: Vec<Blank>,
    singles: Vec<(Blank, u32)>,
    /// Classes of which pods are wanted and some kind takes them.
    pub(super) rows: Vec<usize>,
    best: Claim,
    cut: Cut,
    steps: u64,
    effort: Effort,
}

/// The cheapest mix with pods that may be cut.
#[derive(Debug, Clone, Default)]
pub(in crate::solve) struct Cut {
    /// For each class, the shares of its pods that are on each kind.
    pub shares: Vec<Vec<(usize, f64)>>,
    /// Nodes of each kind.
    pub nodes: Vec<f64>,
}

/// How a node is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pods {
    MayBeCut,
    Whole,
}

impl<'a> Pricing<'a> {
    /// Prepares to price `wanted` pods by class of `market`.
    pub(in crate::solve) fn of(market: &'a Market, wanted: &'a [u32], effort: Effort) -> Self {
        let blank = |kind| Blank::of(market, kind, wanted);
        let kinds: Vec<Blank> = market.kinds.iter().map(blank).collect();
        let single = |single: &Single| (Blank::single(market, single, wanted), single.count);
        let singles = market.singles.iter().map(single).collect();
        let mut is_taken = vec![false; wanted.len()];
        kinds.iter().flat_map(|blank| &blank.items).for_each(|item| is_taken[item.class] = true);
        let rows = (0..wanted.len()).filter(|class| is_taken[*class]).collect();
        let best = Claim { bound: 0, worth: vec![0; wanted.len()] };
        let cut =
            Cut { shares: vec![Vec::new(); wanted.len()], nodes: vec![0.0; market.kinds.len()] };
        Self { market, wanted, kinds, singles, rows, best, cut, steps: 0, effort }
    }

    /// Returns how many classes are priced.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the best claim so far.
    pub(in crate::solve) fn best(&self) -> &Claim {
        &self.best
    }

    /// Prices pods as if they could be cut.
    pub(in crate::solve) fn price_cut(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let first = if self.rows.len() > ROWS_MAX {
            let clusters = Clusters::of(self.market, self.wanted);
            let mut coarse = Pricing::of(&clusters.market, &clusters.wanted, self.effort);
            coarse.price_cut();
            self.cut.nodes.clone_from(&coarse.cut.nodes);
            for (class, cluster) in clusters.of.iter().enumerate() {
                if let Some(cluster) = cluster {
                    self.cut.shares[class].clone_from(&coarse.cut.shares[*cluster]);
                }
            }
            self.worth_at_prices_of(&clusters, &coarse)
        } else {
            self.dominant_shares()
        };
        self.try_claim(&first);
        if self.rows.len() <= ROWS_MAX {
            let mut mix = each_alone(&self.kinds, self.wanted, &self.rows);
            self.seed(&mut mix);
            self.run(&mut mix, Pods::MayBeCut, self.effort.cut_rounds);
            self.keep_cut(&mix);
        }
    }

    fn keep_cut(&mut self, mix: &Master) {
        let mut pods = vec![BTreeMap::new(); self.wanted.len()];
        for (filling, count) in mix.fillings.iter().zip(mix.counts()).filter(|(_, n)| *n > 1e-9) {
            self.cut.nodes[filling.kind] += count;
            for (row, n) in &filling.pods {
                *pods[self.rows[*row]].entry(filling.kind).or_insert(0.0) += n * count;
            }
        }
        for (shares, pods) in self.cut.shares.iter_mut().zip(pods) {
            let all: f64 = pods.values().sum();
            *shares = pods.into_iter().map(|(kind, n)| (kind, n / all)).collect();
        }
    }

    /// Returns the cheapest mix with pods that may be cut.
    pub(in crate::solve) fn cut(&self) -> &Cut {
        &self.cut
    }

    /// Returns whether whole pods could prove more: not where many share the nodes that the best
    /// prices are for, because such nodes are not searched through.
    pub(in crate::solve) fn whole_pods_may_prove_more(&self) -> bool {
        self.rows.len() <= ROWS_MAX
            && self.kinds.iter().all(|blank| {
                let worth = by_item(blank, &self.best.worth);
                let relaxed = relax(blank, &worth);
                let pays = relaxed.value / UNIT > real(blank.price) * (1.0 - 1e-3);
                !pays || super::knapsack::is_few(&relaxed.counts)
            })
    }

    /// Takes worth that was good for other numbers of the same pods.
    pub(in crate::solve) fn price_as(&mut self, worth: &[i64]) {
        let most: Vec<i128> = self.kinds.iter().map(|blank| cut(blank, worth).most).collect();
        self.claim(worth, &most);
    }

    /// Prices whole pods, and returns the fillings of the mix with how many nodes of each there are
    /// in the cheapest; the mix knows `known` fillings from the start.
    pub(in crate::solve) fn price_whole(&mut self, known: &[Pattern]) -> Vec<(Pattern, f64)> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let mut mix = each_alone(&self.kinds, self.wanted, &self.rows);
        for pattern in known {
            self.recall(&mut mix, pattern);
        }
        let worth = self.best.worth.clone();
        if known.is_empty() {
            for kind in 0..self.kinds.len() {
                let found = self.search(kind, &worth, 0);
                self.learn(&mut mix, kind, &found);
            }
        }
        self.run(&mut mix, Pods::Whole, self.effort.rounds);
        let counts = mix.counts();
        let useful = |(filling, count): &(&Filling, f64)| {
            *count > 0.0 || mix.reduced(filling) < filling.price * NEARLY_PAYS
        };
        let pattern = |(filling, count): (&Filling, f64)| (pattern(&self.rows, filling), count);
        mix.fillings.iter().zip(counts).filter(useful).map(pattern).collect()
    }

    /// Makes a filling known to the mix, as far as its pods are wanted.
    fn recall(&self, mix: &mut Master, pattern: &Pattern) {
        let pods: Vec<(usize, f64)> = pattern
            .pods
            .iter()
            .filter_map(|(class, n)| {
                let row = self.rows.binary_search(class).ok()?;
                Some((row, f64::from((*n).min(self.wanted[*class]))))
            })
            .collect();
        if !pods.is_empty() {
            let price = real(self.kinds[pattern.kind].price);
            mix.add(Filling { kind: pattern.kind, price, pods });
        }
    }

    /// Improves mix and claim in turn.
    ///
    /// All kinds are filled every few rounds, and whenever those that nearly paid the last time
    /// teach nothing; only then can something be claimed.
    fn run(&mut self, mix: &mut Master, pods: Pods, rounds: usize) {
        let all: Vec<usize> = (0..self.kinds.len()).collect();
        let mut near = Vec::new();
        let (mut weight, mut since) = (CENTRE, ROUNDS_APART);
        for _ in 0..rounds {
            mix.improve(4 * self.rows.len() + 100);
            let drawn = self.drawn(mix, weight);
            let is_full = since >= ROUNDS_APART;
            let (bounds, fresh) = self.fill(mix, pods, if is_full { &all } else { &near }, &drawn);
            since += 1;
            if is_full {
                self.claim(&drawn, &bounds);
                near = self.nearly_paying(&bounds);
                since = 0;
            }
            let is_close = real(self.best.bound) >= mix.price() * (1.0 - CLOSE);
            if is_close || self.steps > self.effort.steps_total {
                break;
            }
            match (fresh, is_full, weight > 0.0) {
                (true, _, _) => weight = CENTRE,
                (false, false, _) => since = ROUNDS_APART,
                (false, true, true) => (weight, since) = (0.0, ROUNDS_APART),
                // Nothing new at the prices of the mix itself: it is the cheapest there is.
                (false, true, false) => break,
            }
        }
        mix.improve(4 * self.rows.len() + 100);
    }

    /// Adds fillings that together hold all classes to the mix, for the kinds that nearly pay.
    fn seed(&self, mix: &mut Master) {
        let bounds: Vec<i128> =
            self.kinds.iter().map(|blank| cut(blank, &self.best.worth).most).collect();
        for kind in self.nearly_paying(&bounds) {
            let blank = &self.kinds[kind];
            let mut worth = by_item(blank, &self.best.worth);
            for _ in 0..SEEDS_MAX {
                let counts = relax(blank, &worth).counts;
                let used = counts.iter().zip(&mut worth).filter(|(count, _)| **count > 1e-9);
                if used.map(|(_, worth)| *worth = 0.0).count() == 0 {
                    break;
                }
                self.learn(mix, kind, &Found { counts, worth: 0, most: 0, steps: 0 });
            }
        }
    }

    /// Kinds that hold nearly what they cost.
    fn nearly_paying(&self, bounds: &[i128]) -> Vec<usize> {
        let ratio = |kind: usize| {
            bounds[kind] * 1000 / (i128::from(self.kinds[kind].price.max(1)) << FRACTION)
        };
        let best = (0..bounds.len()).map(ratio).max().unwrap_or(0);
        (0..bounds.len()).filter(|kind| ratio(*kind) >= best * 95 / 100).collect()
    }

    /// Prices between the best ones, by their `weight`, and those of the mix.
    fn drawn(&self, mix: &Master, weight: f64) -> Vec<i64> {
        let mut drawn = self.best.worth.clone();
        for (row, class) in self.rows.iter().enumerate() {
            let (best, target) = (real(self.best.worth[*class]), mix.worth[row].max(0.0) * UNIT);
            drawn[*class] = whole(weight * best + (1.0 - weight) * target);
        }
        drawn
    }

    /// Fills a node of each kind; returns what each can hold at most, and whether the mix learnt of
    /// a filling that makes it cheaper.
    fn fill(
        &mut self,
        mix: &mut Master,
        pods: Pods,
        kinds: &[usize],
        worth: &[i64],
    ) -> (Vec<i128>, bool) {
        let (mut bounds, mut fresh) = (Vec::with_capacity(kinds.len()), false);
        for kind in kinds.iter().copied() {
            let found = self.filled(kind, pods, worth, 100);
            bounds.push(found.most);
            fresh |= self.learn(mix, kind, &found);
            for found in self.others(kind, pods, worth, found) {
                self.learn(mix, kind, &found);
            }
        }
        (bounds, fresh)
    }

    /// Fills a node of a kind with pods worth more than so many percent of its price.
    fn filled(&mut self, kind: usize, pods: Pods, worth: &[i64], percent: i128) -> Found<f64> {
        match pods {
            Pods::MayBeCut => cut(&self.kinds[kind], worth),
            Pods::Whole => {
                let price = i128::from(self.kinds[kind].price) << FRACTION;
                self.search(kind, worth, price * percent / 100)
            }
        }
    }

    /// Returns fillings that are as good as `found` but for other classes: the mix needs many.
    fn others(
        &mut self,
        kind: usize,
        pods: Pods,
        worth: &[i64],
        found: Found<f64>,
    ) -> Vec<Found<f64>> {
        let (mut others, mut worth, mut last) = (Vec::new(), worth.to_vec(), found);
        while !last.counts.is_empty() && others.len() < OTHERS_MAX {
            for (item, count) in self.kinds[kind].items.iter().zip(&last.counts) {
                if *count > 1e-9 {
                    worth[item.class] = worth[item.class] / 100 * 98;
                }
            }
            last = self.filled(kind, pods, &worth, 97);
            others.push(last.clone());
        }
        others
    }

    fn search(&mut self, kind: usize, worth: &[i64], floor: i128) -> Found<f64> {
        let found = search(&self.kinds[kind], worth, floor, self.effort.steps);
        self.steps += found.steps;
        let counts = found.counts.into_iter().map(f64::from).collect();
        Found { counts, worth: found.worth, most: found.most, steps: found.steps }
    }

    /// Adds what was found to the mix; returns whether that makes it cheaper.
    fn learn(&self, mix: &mut Master, kind: usize, found: &Found<f64>) -> bool {
        let blank = &self.kinds[kind];
        let row = |item: &super::blank::Item| self.rows.binary_search(&item.class).ok();
        let pods: Vec<(usize, f64)> = blank
            .items
            .iter()
            .zip(&found.counts)
            .filter(|(_, count)| **count > 1e-9)
            .filter_map(|(item, count)| Some((row(item)?, *count)))
            .collect();
        if pods.is_empty() {
            return false;
        }
        let filling = Filling { kind, price: real(blank.price), pods };
        let fresh = mix.reduced(&filling) < -1e-6 * filling.price;
        mix.add(filling);
        fresh
    }

    pub(super) fn claim(&mut self, worth: &[i64], most: &[i128]) {
        let worth = scaled(worth, most, &self.kinds);
        let bound = bound(&worth, self.wanted, &self.singles);
        if bound > self.best.bound || self.best.worth.iter().all(|worth| *worth == 0) {
            self.best = Claim { bound, worth };
        }
    }

    fn try_claim(&mut self, worth: &[f64]) {
        let worth = grains(worth);
        let most: Vec<i128> = self.kinds.iter().map(|blank| cut(blank, &worth).most).collect();
        self.claim(&worth, &most);
    }

    /// The least that an even split of any kind's price over its resources makes of each class.
    fn dominant_shares(&self) -> Vec<f64> {
        let split = |blank: &Blank| {
            let rows = real(i64::try_from(blank.rows()).unwrap_or(i64::MAX)).max(1.0);
            vec![real(blank.price) / rows; blank.rows()]
        };
        let prices: Vec<Vec<f64>> = self.kinds.iter().map(split).collect();
        let mut worth = vec![f64::INFINITY; self.wanted.len()];
        for (blank, prices) in self.kinds.iter().zip(&prices) {
            for (item, held) in blank.items.iter().enumerate() {
                let cost = super::relaxation::dot(prices, blank.shares(item));
                worth[held.class] = worth[held.class].min(cost);
            }
        }
        worth.into_iter().map(|worth| if worth.is_finite() { worth } else { 0.0 }).collect()
    }

    /// The least that each class costs at the resource prices that `coarse` arrived at, and what
    /// its cluster is worth beyond that, because a cap keeps its pods apart.
    fn worth_at_prices_of(&self, clusters: &Clusters, coarse: &Pricing) -> Vec<f64> {
        let cost = |ask: &[i64], prices: &[f64]| -> f64 {
            ask.iter().zip(prices).map(|(ask, price)| real(*ask) * price).sum()
        };
        let mut worth = vec![f64::INFINITY; self.wanted.len()];
        let mut rough = vec![f64::INFINITY; coarse.wanted.len()];
        for (blank, coarse_blank) in self.kinds.iter().zip(&coarse.kinds) {
            let prices = self.resource_prices(coarse_blank, &coarse.best.worth);
            for item in &blank.items {
                let cost = cost(&self.market.wares[item.class].ask, &prices);
                worth[item.class] = worth[item.class].min(cost);
            }
            for item in &coarse_blank.items {
                let cost = cost(&clusters.market.wares[item.class].ask, &prices);
                rough[item.class] = rough[item.class].min(cost);
            }
        }
        let beyond = |(worth, cluster): (f64, &Option<usize>)| match cluster {
            Some(cluster) if worth.is_finite() => {
                let of_cluster = real(coarse.best.worth[*cluster]) / UNIT;
                worth + (of_cluster - rough[*cluster]).max(0.0)
            }
            Some(_) | None => 0.0,
        };
        worth.into_iter().zip(&clusters.of).map(beyond).collect()
    }

    /// What a unit of each resource of a node is worth; what the price of the node leaves is spread
    /// over them.
    fn resource_prices(&self, blank: &Blank, worth: &[i64]) -> Vec<f64> {
        let relaxed = relax(blank, &by_item(blank, worth));
        let spare = (real(blank.price) * UNIT / relaxed.value.max(1.0)).max(1.0);
        let price = |resource: usize| {
            let row = blank.resources.iter().position(|of_row| *of_row == resource);
            row.map_or(0.0, |row| relaxed.prices[row] * spare / real(blank.room[row]) / UNIT)
        };
        (0..self.market.resources()).map(price).collect()
    }
}

/// Returns a filling with classes instead of rows.
pub(super) fn pattern(rows: &[usize], filling: &Filling) -> Pattern {
    let count = |n: f64| u32::try_from(whole(n + 0.5)).unwrap_or(u32::MAX);
    let pods = filling.pods.iter().map(|(row, n)| (rows[*row], count(*n))).collect();
    Pattern { kind: filling.kind, pods }
}

/// Returns the mix that has each class alone, on the kind where it is cheapest; `rows` are the classes
/// that some kind takes.
pub(super) fn each_alone(kinds: &[Blank], wanted: &[u32], rows: &[usize]) -> Master {
    let mut best: Vec<Option<(f64, f64, usize)>> = vec![None; wanted.len()];
    for (kind, blank) in kinds.iter().enumerate() {
        for item in &blank.items {
            let (price, most) = (real(blank.price), f64::from(item.most));
            let best = &mut best[item.class];
            if best.is_none_or(|(p, m, _)| price * m < p * most) {
                *best = Some((price, most, kind));
            }
        }
    }
    let first = rows.iter().filter_map(|class| best[*class]).enumerate();
    let first =
        first.map(|(row, (price, most, kind))| Filling { kind, price, pods: vec![(row, most)] });
    let wanted: Vec<f64> = rows.iter().map(|class| f64::from(wanted[*class])).collect();
    Master::of(&wanted, first.collect())
}

fn by_item(blank: &Blank, worth: &[i64]) -> Vec<f64> {
    blank.items.iter().map(|item| real(worth[item.class])).collect()
}

/// Fills a node with pods that may be cut.
fn cut(blank: &Blank, worth: &[i64]) -> Found<f64> {
    let relaxed = relax(blank, &by_item(blank, worth));
    let most = most_at(blank, worth, &row_prices(blank, &relaxed.prices));
    let pays = relaxed.value > real(blank.price) * UNIT;
    let counts = if pays { relaxed.counts } else { Vec::new() };
    Found { counts, worth: 0, most, steps: 1 }
}
