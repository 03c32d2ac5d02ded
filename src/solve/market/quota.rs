//! Many nodes of few kinds for very many pods: each kind gets its share of each class, and its
//! nodes share that evenly.
//!
//! How many nodes of which kind, and which share of a class is theirs, is what the cheapest mix
//! with pods that may be cut says. Pods are placed from the largest on, each where most is left of
//! the resource it needs most of. As the pods that come last are small, the nodes end up nearly
//! full; what finds no room is left over.

use std::collections::{BTreeMap, BTreeSet};

use super::blank::copies;
use super::bought::Bought;
use super::generate::Cut;
use super::number::{real, whole};
use super::{Market, Pattern};

/// Nodes on which a pod is tried, those with most left first.
const NODES_TRIED: usize = 32;

/// Returns as many nodes of each kind as `cut` has whole ones, filled evenly.
pub(super) fn shared_out(market: &Market, wanted: &[u32], cut: &Cut) -> Bought {
    let mut bought = Bought::nothing(wanted);
    let count = |nodes: &f64| usize::try_from(whole(nodes + 1e-6)).unwrap_or(0);
    let counts: Vec<usize> = cut.nodes.iter().map(count).collect();
    let quotas = quotas(market, wanted, cut, &counts);
    for (kind, quota) in quotas.iter().enumerate().filter(|(kind, _)| counts[*kind] > 0) {
        let mut fleet = Fleet::of(market, kind, counts[kind]);
        fleet.share_out(quota);
        for pods in fleet.pods {
            bought.buy(&Pattern { kind, pods: pods.into_iter().collect() }, 1);
        }
    }
    bought
}

/// Pods of each class for each kind.
fn quotas(market: &Market, wanted: &[u32], cut: &Cut, counts: &[usize]) -> Vec<Vec<u32>> {
    let mut quotas = vec![vec![0; wanted.len()]; market.kinds.len()];
    for (class, wanted) in wanted.iter().enumerate() {
        let usable =
            |(kind, _): &&(usize, f64)| counts[*kind] > 0 && market.kinds[*kind].takes[class];
        let shares: Vec<&(usize, f64)> = cut.shares[class].iter().filter(usable).collect();
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        let (mut given, mut passed) = (0, 0.0);
        for (kind, share) in shares {
            passed += share / all;
            let upto = whole(f64::from(*wanted) * passed + 0.5);
            let upto = u32::try_from(upto).unwrap_or(u32::MAX).min(*wanted);
            quotas[*kind][class] = upto - given;
            given = upto;
        }
    }
    quotas
}

/// Nodes of one kind.
struct Fleet<'a> {
    market: &'a Market,
    kind: usize,
    room: Vec<Vec<i64>>,
    pods: Vec<BTreeMap<usize, u32>>,
    /// For each resource, the nodes by what is left of it.
    ranks: Vec<BTreeSet<(i64, usize)>>,
}

impl<'a> Fleet<'a> {
    fn of(market: &'a Market, kind: usize, count: usize) -> Self {
        let room = &market.kinds[kind].room;
        let rank = |room: &i64| (0..count).map(|node| (*room, node)).collect();
        Self {
            market,
            kind,
            ranks: room.iter().map(rank).collect(),
            room: vec![room.clone(); count],
            pods: vec![BTreeMap::new(); count],
        }
    }

    fn share_out(&mut self, quota: &[u32]) {
        let sized = |class: usize| (self.dominant(class), class);
        let classes = (0..quota.len()).filter(|class| quota[*class] > 0).map(sized);
        let mut order: Vec<((f64, usize), usize)> = classes.collect();
        order.sort_by(|((a, _), x), ((b, _), y)| b.total_cmp(a).then(x.cmp(y)));
        for ((_, resource), class) in order {
            for _ in 0..quota[class] {
                if !self.put(class, resource) {
                    break;
                }
            }
        }
    }

    /// The largest share of a node that a pod takes, and of which resource.
    fn dominant(&self, class: usize) -> (f64, usize) {
        let (kind, ware) = (&self.market.kinds[self.kind], &self.market.wares[class]);
        let share = |(ask, room): (&i64, &i64)| real(*ask) / real((*room).max(1));
        let shares = ware.ask.iter().zip(&kind.room).map(share).zip(0..);
        shares.fold((0.0, 0), |best, this| if this.0 > best.0 { this } else { best })
    }

    /// Puts one pod where most is left of `resource`; returns whether it found room.
    fn put(&mut self, class: usize, resource: usize) -> bool {
        let ask = &self.market.wares[class].ask;
        let fits = |node: &usize| {
            copies(ask, &self.room[*node], 1) == 1 && self.is_within_caps(*node, class)
        };
        let most_left = self.ranks[resource].iter().rev().map(|(_, node)| *node);
        let Some(node) = most_left.take(NODES_TRIED).find(fits) else { return false };
        for (resource, ask) in ask.iter().enumerate().filter(|(_, ask)| **ask > 0) {
            let room = &mut self.room[node][resource];
            self.ranks[resource].remove(&(*room, node));
            *room -= ask;
            self.ranks[resource].insert((*room, node));
        }
        *self.pods[node].entry(class).or_insert(0) += 1;
        true
    }

    fn is_within_caps(&self, node: usize, class: usize) -> bool {
        self.market.caps_of[class].iter().all(|cap| {
            let cap = &self.market.caps[*cap];
            let here = cap.members.iter().filter_map(|member| self.pods[node].get(member));
            here.sum::<u32>() < cap.most
        })
    }
}
