//! The cheapest nodes found for all pods of a market: every way to part them if they are few, else
//! the better of the ways that pay for few and for many pods a node.

use std::collections::BTreeSet;

use super::Market;
use super::blank::copies;
use super::bought::Bought;
use super::dive::{buy_whole, dive};
use super::exact::cheapest;
use super::generate::{Effort, Pricing, ROWS_MAX};
use super::grown::grown;
use super::guided::guided;
use super::quota::shared_out;
use super::seeded::seeded;
use super::tabled::{self, tabled};

/// How much is done for prices and the first mix.
const EFFORT: Effort = Effort { cut_rounds: 80, rounds: 60, steps: 500, steps_total: 500_000 };

/// The same for what is left over when most pods have their nodes.
const REST: Effort = Effort { cut_rounds: 40, rounds: 20, steps: 500, steps_total: 200_000 };

/// Pods of the mean size that the kinds hold at least with which many classes are shared out.
const SIZES: [u32; 3] = [0, 8, 32];

/// Returns nodes for `wanted` pods by class, of the kinds of `market` alone.
pub(in crate::solve) fn purchase(market: &Market, wanted: &[u32]) -> Bought {
    let mut bought = Bought::nothing(wanted);
    if let Some(end) = cheapest(market, wanted) {
        end.nodes.iter().for_each(|node| _ = bought.buy(node, 1));
        return bought;
    }
    // Too many classes to be priced one by one lose their caps on the way.
    if wanted.iter().filter(|count| **count > 0).count() > ROWS_MAX {
        return grown(market, wanted).unwrap_or_else(|| of_any_size(market, wanted));
    }
    let mut pricing = Pricing::of(market, wanted, EFFORT);
    pricing.price_cut();
    bought = shared_out(market, wanted, pricing.cut());
    let rest = for_rest(market, &bought.left);
    bought.and_then(rest);
    bought.shrink(market);
    let mut dived = dive(market, wanted, pricing);
    dived.shrink(market);
    cheaper(market, bought, dived)
}

fn cheaper(market: &Market, one: Bought, other: Bought) -> Bought {
    let key = |bought: &Bought| (bought.left_over(), bought.price(market));
    if key(&other) < key(&one) { other } else { one }
}

/// Returns the cheapest nodes of those found with kinds of any size, and with larger ones alone:
/// prices with pods that may be cut do not see what small nodes lose to whole pods.
fn of_any_size(market: &Market, wanted: &[u32]) -> Bought {
    let mut best: Option<Bought> = None;
    for pods in SIZES {
        let kinds = of_size(market, wanted, pods);
        let is_other = pods == 0 || kinds.len() < market.kinds.len();
        if kinds.is_empty() || !is_other {
            continue;
        }
        let known = kinds.iter().map(|kind| market.kinds[*kind].clone()).collect();
        let (wares, caps) = (market.wares.clone(), market.caps.clone());
        let part = Market::new(wares, known, Vec::new(), caps);
        let mut pricing = Pricing::of(&part, wanted, EFFORT);
        pricing.price_cut();
        let mut bought = shared_out(&part, wanted, pricing.cut());
        for (node, _) in &mut bought.nodes {
            node.kind = kinds[node.kind];
        }
        let rest = for_rest(market, &bought.left);
        bought.and_then(rest);
        bought.shrink(market);
        best = Some(match best {
            Some(best) => cheaper(market, best, bought),
            None => bought,
        });
    }
    best.unwrap_or_else(|| Bought::nothing(wanted))
}

/// The kinds on which so many pods of the mean size have room.
fn of_size(market: &Market, wanted: &[u32], pods: u32) -> Vec<usize> {
    let count: i128 = wanted.iter().map(|count| i128::from(*count)).sum();
    let mean = |resource: usize| {
        let asks = market.wares.iter().zip(wanted);
        let all: i128 =
            asks.map(|(ware, count)| i128::from(ware.ask[resource]) * i128::from(*count)).sum();
        i64::try_from(all / count.max(1)).unwrap_or(i64::MAX)
    };
    let mean: Vec<i64> = (0..market.resources()).map(mean).collect();
    let holds = |kind: &usize| copies(&mean, &market.kinds[*kind].room, pods) >= pods;
    (0..market.kinds.len()).filter(holds).collect()
}

/// Nodes of a kind, or parts of them, that prices have to speak for.
const SPOKEN_FOR: f64 = 0.01;

/// Pods of a class on average from which each class is priced by itself: nodes are bought by the
/// number then, and little is lost to fractions.
const MANY_ALIKE: u64 = 32;

/// Share of a bound, in percent, within which nothing more is looked for.
const CLOSE_PERCENT: i64 = 2;

/// Returns nodes for more classes than can be priced one by one, found with more work than a trial
/// is worth; `None` where caps decide, or prices speak for fewer classes.
pub(in crate::solve) fn tightest(market: &Market, wanted: &[u32]) -> Option<Bought> {
    let classes = wanted.iter().filter(|count| **count > 0).count();
    if classes <= ROWS_MAX || grown(market, wanted).is_some() {
        return None;
    }
    let mut pricing = Pricing::of(market, wanted, EFFORT);
    pricing.price_cut();
    let pods: u64 = wanted.iter().map(|count| u64::from(*count)).sum();
    let is_large = pods / u64::try_from(classes).unwrap_or(u64::MAX) >= MANY_ALIKE;
    if is_large && pricing.rows() <= tabled::ROWS_MAX {
        return Some(of_many_alike(market, wanted, &pricing));
    }
    let nodes = &pricing.cut().nodes;
    let kinds: Vec<usize> = (0..nodes.len()).filter(|kind| nodes[*kind] > SPOKEN_FOR).collect();
    Some(with_rest(market, Bought::nothing(wanted), (&pricing.best().worth, &kinds)))
}

/// Returns nodes for many pods of each class: shared out where that is close to the bound, else whole
/// ones of the cheapest mix.
fn of_many_alike(market: &Market, wanted: &[u32], pricing: &Pricing) -> Bought {
    let shared = of_any_size(market, wanted);
    if shared.price(market) / 100 * (100 - CLOSE_PERCENT) <= pricing.best().bound {
        return shared;
    }
    let mix = tabled(pricing);
    let mut bought = Bought::nothing(wanted);
    buy_whole(&mut bought, &mix.nodes);
    let kinds: BTreeSet<usize> = mix.nodes.iter().map(|(node, _)| node.kind).collect();
    let kinds: Vec<usize> = kinds.into_iter().collect();
    cheaper(market, shared, with_rest(market, bought, (&mix.worth, &kinds)))
}

/// Returns `bought` with nodes for what is left: around the pods that are hardest to place first.
fn with_rest(market: &Market, mut bought: Bought, (worth, kinds): (&[i64], &[usize])) -> Bought {
    let around = seeded(market, &bought.left, worth, kinds);
    bought.and_then(around);
    let rest = for_rest(market, &bought.left);
    bought.and_then(rest);
    bought
}

fn for_rest(market: &Market, left: &[u32]) -> Bought {
    let mut pricing = Pricing::of(market, left, REST);
    pricing.price_cut();
    let guided = guided(market, left, &pricing.best().worth);
    if pricing.rows() > ROWS_MAX {
        return guided;
    }
    let dived = dive(market, left, pricing);
    cheaper(market, guided, dived)
}
