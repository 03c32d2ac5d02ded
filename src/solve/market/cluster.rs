//! Alike classes as one, so that many classes can be priced quickly.
//!
//! For pods that may be cut only the proportions of what they ask for matter, where they may run,
//! and whether a cap keeps them apart. Classes that agree in these, roughly, become one. The prices
//! found for them are good prices for the classes they stand for, and only guide.

use std::collections::{BTreeMap, BTreeSet};

use super::generate::ROWS_MAX;
use super::number::{real, whole};
use super::{Cap, Kind, Market, Ware};

/// Steps of a proportion that are told apart, from the finest to the coarsest.
const STEPS: [u32; 4] = [48, 24, 12, 6];

/// A smaller market that stands for a larger one.
pub(super) struct Clusters {
    /// The market.
    pub market: Market,
    /// How many pods of each cluster are wanted.
    pub wanted: Vec<u32>,
    /// For each class of the larger market, its cluster.
    pub of: Vec<Option<usize>>,
}

/// What makes classes alike.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Likeness {
    /// Kinds that take them or are only too small.
    admitted: Vec<bool>,
    is_capped: bool,
    /// What they ask for, in steps of all they ask for.
    proportions: Vec<i64>,
}

impl Clusters {
    /// Returns at most [`ROWS_MAX`] clusters of the classes that are wanted; if even coarse
    /// proportions leave more, the rest is not priced.
    pub(super) fn of(market: &Market, wanted: &[u32]) -> Self {
        let mut groups = Vec::new();
        for steps in STEPS {
            groups = grouped(market, wanted, steps);
            if groups.len() <= ROWS_MAX {
                break;
            }
        }
        groups.truncate(ROWS_MAX);
        let mut of = vec![None; wanted.len()];
        for (cluster, members) in groups.iter().enumerate() {
            for class in members {
                of[*class] = Some(cluster);
            }
        }
        let count = |members: &Vec<usize>| {
            members.iter().map(|class| wanted[*class]).fold(0, u32::saturating_add)
        };
        let kind = |kind: &Kind| {
            let takes = groups.iter().map(|members| members.iter().any(|class| kind.takes[*class]));
            Kind { takes: takes.collect(), ..kind.clone() }
        };
        let wares = groups.iter().map(|members| mean(market, wanted, members)).collect();
        let caps = groups.iter().enumerate().filter_map(|(cluster, members)| {
            let caps: BTreeSet<usize> =
                members.iter().flat_map(|class| market.caps_of[*class].iter().copied()).collect();
            let most = caps.iter().map(|cap| market.caps[*cap].most).fold(0, u32::saturating_add);
            (!caps.is_empty()).then_some(Cap { members: vec![cluster], most })
        });
        let kinds = market.kinds.iter().map(kind).collect();
        let small = Market::new(wares, kinds, Vec::new(), caps.collect());
        Self { market: small, wanted: groups.iter().map(count).collect(), of }
    }
}

/// One pod that asks for the mean of all.
fn mean(market: &Market, wanted: &[u32], members: &[usize]) -> Ware {
    let weigh = |class: &usize| i128::from(wanted[*class]);
    let pods: i128 = members.iter().map(weigh).sum();
    let mean = |resource: usize| {
        let ask = |class: &usize| i128::from(market.wares[*class].ask[resource]) * weigh(class);
        let all: i128 = members.iter().map(ask).sum();
        i64::try_from(all / pods.max(1)).unwrap_or(i64::MAX)
    };
    Ware { ask: (0..market.resources()).map(mean).collect() }
}

/// Wanted classes, those that are alike together.
fn grouped(market: &Market, wanted: &[u32], steps: u32) -> Vec<Vec<usize>> {
    let size = |resource: usize| {
        let all: f64 = market.kinds.iter().map(|kind| real(kind.room[resource])).sum();
        all.max(1.0)
    };
    let sizes: Vec<f64> = (0..market.resources()).map(size).collect();
    let mut groups: BTreeMap<Likeness, Vec<usize>> = BTreeMap::new();
    for (class, ware) in market.wares.iter().enumerate().filter(|(class, _)| wanted[*class] > 0) {
        let shares: Vec<f64> =
            ware.ask.iter().zip(&sizes).map(|(ask, size)| real(*ask) / size).collect();
        let all = shares.iter().sum::<f64>().max(1e-300);
        let step = |share: &f64| whole(share / all * f64::from(steps) + 0.5);
        let likeness = Likeness {
            admitted: market.kinds.iter().map(|kind| is_admitted(ware, kind, class)).collect(),
            is_capped: !market.caps_of[class].is_empty(),
            proportions: shares.iter().map(step).collect(),
        };
        groups.entry(likeness).or_default().push(class);
    }
    groups.into_values().collect()
}

/// Returns whether nothing but its size keeps a kind from taking pods of a class.
pub(super) fn is_admitted(ware: &Ware, kind: &Kind, class: usize) -> bool {
    kind.takes[class] || ware.ask.iter().zip(&kind.room).any(|(ask, room)| ask > room)
}
