//! The cheapest mix for more classes than are priced in clusters: column generation with a row for
//! every class, and tables instead of searches.
//!
//! Where whole pods decide what a node holds, prices of pods that may be cut say little: the nodes that
//! seem cheapest hold too few. A table of one kind gives a filling around every class at once, so that
//! few rounds are needed; nodes that many pods share are filled near the relaxation as well, for their
//! tables are too large to be exact. All kinds are looked at coarsely now and then, and those that do
//! best closely in between. Work is counted in rounds.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::num::NonZero;

use super::super::abreast::until_failure;
use super::blank::Blank;
use super::bought::holds;
use super::certificate::{grains, most_at, row_prices};
use super::generate::{Pricing, each_alone, pattern};
use super::knapsack::search;
use super::master::{Filling, Master};
use super::number::real;
use super::relaxation::relax;
use super::table::{Rounding, Table, View};
use super::{Market, Pattern};

/// Classes up to which each has a row: work for each step of the mix grows with their square.
pub(super) const ROWS_MAX: usize = 768;

/// Rounds after which all kinds are looked at again.
const ROUNDS_APART: usize = 5;

/// Times that all kinds are looked at, to buy by the mix and to prove by it.
const LOOKS_TO_BUY: usize = 3;
const LOOKS_TO_PROVE: usize = 16;

/// Kinds that are looked at closely in between.
const KINDS_TO_BUY: usize = 10;
const KINDS_TO_PROVE: usize = 6;

/// Cells up to which the tables of these are exact.
const EXACT_TO_BUY: i64 = 640;
const EXACT_TO_PROVE: i64 = 5_000;

/// Cells of a row whose table is not exact.
const CELLS: i64 = 240;

/// Kinds that are bounded at once, whatever the machine: a table takes up to 150 MB.
const PROVEN_AT_ONCE: NonZero<usize> = NonZero::new(2).expect("it is not zero");

/// What a node may hold at most, in 2^-20 of its price, when nothing more is to be proven.
const PROVEN: i128 = (1 << 20) + (1 << 20) / 500;

/// How all kinds are looked at.
const COARSE: View = View { exact: 120, cells: 120, asks: Rounding::Up };

/// How a bound looks at a kind.
const BOUNDING: View = View { exact: 5_000, cells: 1_000, asks: Rounding::Down };

/// Percent of what pods that may be cut are worth that whole pods are taken to be worth at first.
const WHOLE_PERCENT: i64 = 110;

/// Share of the price of the mix that the rounds between two looks at all kinds save at least.
const SAVED_LEAST: f64 = 1e-3;

/// Share of its price by which a filling costs more than its pods are worth when it is forgotten.
const FORGOTTEN: f64 = 0.05;

/// Fillings of a kind near the relaxation in a round, each for other classes.
const SEARCHES: usize = 12;

/// Percent of its worth that a class keeps once it is in such a filling.
const FADED_PERCENT: i64 = 98;

/// Steps of one search for such a filling.
const STEPS: u64 = 500;

/// Pivots of one round.
const PIVOTS: usize = 4_000;

/// A mix.
#[derive(Debug, Clone, Default)]
pub(super) struct Mix {
    /// Fillings, with how many nodes there are of each.
    pub nodes: Vec<(Pattern, f64)>,
    /// What a pod of each class is worth, in 2^-20 micro-USD per hour.
    pub worth: Vec<i64>,
}

/// Returns a cheap mix for what `pricing` has priced, if nodes may be cut.
pub(super) fn tabled(pricing: &Pricing) -> Mix {
    let mut search = Search::of(pricing);
    for _ in 0..LOOKS_TO_BUY {
        let before = search.mix.price();
        let near = search.best_kinds(KINDS_TO_BUY);
        search.approach(&near, EXACT_TO_BUY);
        if search.mix.price() > before * (1.0 - SAVED_LEAST) {
            break;
        }
    }
    let counts = search.mix.counts();
    let used = search.mix.fillings.iter().zip(counts).filter(|(_, count)| *count > 0.0);
    let nodes = used.map(|(filling, count)| (pattern(search.rows, filling), count)).collect();
    Mix { nodes, worth: search.worth }
}

impl Pricing<'_> {
    /// Claims what whole pods prove, with several times the work that buying takes; nothing where
    /// there are too many classes.
    pub(in crate::solve) fn price_tabled(&mut self) {
        if self.rows.is_empty() || self.rows.len() > ROWS_MAX {
            return;
        }
        let mut claims = Vec::new();
        let mut search = Search::of(self);
        let mut near = search.best_kinds(KINDS_TO_PROVE);
        for _ in 0..LOOKS_TO_PROVE {
            search.approach(&near, EXACT_TO_PROVE);
            let most = |kind: usize| most_on(&self.kinds[kind], &search.worth);
            let at_once = Some(PROVEN_AT_ONCE);
            let most = until_failure((self.kinds.len(), at_once), |kind, _| most(kind), |_| false);
            let share = |kind: usize| most[kind] / i128::from(self.kinds[kind].price.max(1));
            let mut order: Vec<usize> = (0..most.len()).collect();
            order.sort_by_key(|kind| (Reverse(share(*kind)), *kind));
            let is_close = order.first().is_none_or(|kind| share(*kind) <= PROVEN);
            near = order.into_iter().take(KINDS_TO_PROVE).collect();
            claims.push((search.worth.clone(), most));
            if is_close {
                break;
            }
        }
        for (worth, most) in &claims {
            self.claim(worth, most);
        }
    }
}

/// What no filling of a node exceeds.
fn most_on(blank: &Blank, worth: &[i64]) -> i128 {
    let guide: Vec<f64> = blank.items.iter().map(|item| real(worth[item.class])).collect();
    let relaxed = most_at(blank, worth, &row_prices(blank, &relax(blank, &guide).prices));
    Table::of(blank, worth, 1.0, BOUNDING).map_or(relaxed, |table| relaxed.min(table.most()))
}

struct Search<'a> {
    market: &'a Market,
    blanks: &'a [Blank],
    /// Class of each row of the mix.
    rows: &'a [usize],
    mix: Master,
    /// What a pod of each class is worth, in 2^-20 micro-USD per hour.
    worth: Vec<i64>,
}

impl<'a> Search<'a> {
    fn of(pricing: &'a Pricing) -> Self {
        let Pricing { market, kinds, rows, wanted, .. } = pricing;
        let whole = |worth: &i64| worth / 100 * WHOLE_PERCENT;
        let worth = pricing.best().worth.iter().map(whole).collect();
        Self { market, blanks: kinds, rows, mix: each_alone(kinds, wanted, rows), worth }
    }

    /// Makes the mix cheaper, with fillings of a few kinds.
    fn approach(&mut self, kinds: &[usize], exact: i64) {
        self.mix.forget(FORGOTTEN);
        for _ in 0..ROUNDS_APART {
            let look = |at: usize| self.fillings(kinds[at], exact);
            let found = until_failure((kinds.len(), None), |at, _| look(at), |_| false);
            found.into_iter().flatten().for_each(|filling| self.mix.add(filling));
            self.mix.improve_in_lists(PIVOTS);
            self.worth = self.worth_in_mix();
        }
    }

    /// What a pod of each class is worth in the mix.
    fn worth_in_mix(&self) -> Vec<i64> {
        let mut worth = vec![0.0; self.market.wares.len()];
        for (row, class) in self.rows.iter().enumerate() {
            worth[*class] = self.mix.worth[row].max(0.0);
        }
        grains(&worth)
    }

    /// The kinds that hold most for their price, at a coarse look.
    fn best_kinds(&self, count: usize) -> Vec<usize> {
        let look = |kind: usize| {
            let table = Table::of(&self.blanks[kind], &self.worth, 1.0, COARSE);
            table.map(|table| (table.share(), kind))
        };
        let found = until_failure((self.blanks.len(), None), |kind, _| look(kind), |_| false);
        let mut best: Vec<(i64, usize)> = found.into_iter().flatten().collect();
        best.sort_by_key(|(share, kind)| (Reverse(*share), *kind));
        best.into_iter().take(count).map(|(_, kind)| kind).collect()
    }

    /// Returns fillings of a kind that make the mix cheaper.
    fn fillings(&self, kind: usize, exact: i64) -> Vec<Filling> {
        let blank = &self.blanks[kind];
        let view = View { exact, cells: CELLS, asks: Rounding::Up };
        let Some(table) = Table::of(blank, &self.worth, 1.0, view) else { return Vec::new() };
        let mut found: BTreeSet<Vec<(usize, u32)>> = table.fillings(1.0).into_iter().collect();
        found.extend(near_relaxation(blank, &self.worth));
        let price = real(blank.price);
        let row = |(item, n): (usize, u32)| {
            let row = self.rows.binary_search(&blank.items[item].class).ok()?;
            Some((row, f64::from(n)))
        };
        found
            .into_iter()
            .map(|pods| Filling { kind, price, pods: pods.into_iter().filter_map(row).collect() })
            .filter(|filling| self.mix.reduced(filling) < -1e-7 * price)
            .filter(|filling| self.is_possible(filling))
            .collect()
    }

    /// Tables know two rows only, and not every cap.
    fn is_possible(&self, filling: &Filling) -> bool {
        let kind = &self.market.kinds[filling.kind];
        holds(self.market, kind, &pattern(self.rows, filling).pods)
    }
}

/// Returns good fillings of a node as pods by item, each for other classes.
fn near_relaxation(blank: &Blank, worth: &[i64]) -> Vec<Vec<(usize, u32)>> {
    let (mut worth, mut all) = (worth.to_vec(), Vec::new());
    for _ in 0..SEARCHES {
        let counts = search(blank, &worth, 0, STEPS).counts;
        let pods: Vec<(usize, u32)> =
            counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        if pods.is_empty() {
            break;
        }
        for (item, _) in &pods {
            let worth = &mut worth[blank.items[*item].class];
            *worth = *worth / 100 * FADED_PERCENT;
        }
        all.push(pods);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::bought::Bought;
    use super::super::generate::Effort;
    use super::super::purchase::{purchase, tightest};
    use super::super::{Cap, Kind, Ware};
    use super::*;

    /// A hundred classes of which one node holds two to four, with small nodes that seem cheapest; three in a row of the
    /// first thirty keep apart, by more caps than a node is searched with.
    fn market() -> (Market, Vec<u32>) {
        let ask = |n: i64| vec![300 + 37 * (n * 53 % 71), 400 + 61 * (n * 29 % 83), 1];
        let wares: Vec<Ware> = (0..100).map(|n| Ware { ask: ask(n) }).collect();
        let kind = |(cpu, memory, price): (i64, i64, i64)| {
            let room = vec![cpu, memory, 20];
            let fits = |ware: &Ware| ware.ask.iter().zip(&room).all(|(ask, room)| ask <= room);
            Kind { price, takes: wares.iter().map(fits).collect(), room }
        };
        let kinds = [(4_000, 7_500, 40_000), (4_000, 15_000, 52_000), (8_000, 15_000, 88_000)];
        let kinds = kinds.into_iter().chain([(16_000, 30_000, 190_000)]).map(kind).collect();
        let wanted = (0..100).map(|n| 40 + n * 7 % 90).collect();
        let apart = |n: usize| Cap { members: (3 * n..3 * n + 3).collect(), most: 1 };
        let caps = (0..10).map(apart).collect();
        (Market::new(wares, kinds, Vec::new(), caps), wanted)
    }

    const EFFORT: Effort = Effort { cut_rounds: 80, rounds: 0, steps: 500, steps_total: 100_000 };

    #[test]
    fn what_is_bought_is_close_to_what_is_proven_where_shares_of_pods_are_not() {
        let (market, wanted) = market();
        let mut pricing = Pricing::of(&market, &wanted, EFFORT);
        pricing.price_cut();
        let cut = pricing.best().bound;
        pricing.price_tabled();
        let proven = pricing.best().bound;
        let price = |bought: &Bought| {
            assert_eq!(bought.left_over(), 0);
            for (node, _) in &bought.nodes {
                assert!(holds(&market, &market.kinds[node.kind], &node.pods), "{node:?}");
            }
            bought.price(&market)
        };
        let shared = price(&purchase(&market, &wanted));
        let tight = price(&tightest(&market, &wanted).expect("many classes"));
        assert!(cut < proven && proven <= tight, "{cut} {proven} {tight}");
        assert!(tight * 100 <= proven * 102, "{tight} of {proven}");
        assert!(shared * 100 > proven * 104, "{shared} of {proven}: not what this test is about");
    }

    #[test]
    fn a_mix_holds_all_pods_and_costs_no_less_than_is_proven() {
        let (market, wanted) = market();
        let mut pricing = Pricing::of(&market, &wanted, EFFORT);
        pricing.price_cut();
        let mix = tabled(&pricing);
        let mut held = vec![0.0; wanted.len()];
        for (node, count) in &mix.nodes {
            assert!(holds(&market, &market.kinds[node.kind], &node.pods), "{node:?}");
            node.pods.iter().for_each(|(class, n)| held[*class] += f64::from(*n) * count);
        }
        for (held, wanted) in held.iter().zip(&wanted) {
            assert!(*held > f64::from(*wanted) - 1e-6, "{held} of {wanted}");
        }
        pricing.price_tabled();
        let price = |(node, count): &(Pattern, f64)| real(market.kinds[node.kind].price) * count;
        let price: f64 = mix.nodes.iter().map(price).sum();
        assert!(price >= real(pricing.best().bound), "{price} of {}", pricing.best().bound);
    }
}
