//! Nodes bought so far, and the pods that none of them holds.

use super::blank::copies;
use super::{Kind, Market, Pattern};

/// Nodes, and what is left over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::solve) struct Bought {
    /// Nodes, with how many there are of each.
    pub nodes: Vec<(Pattern, u32)>,
    /// Pods by class that none of them holds.
    pub left: Vec<u32>,
}

impl Bought {
    /// Returns no nodes for `wanted` pods by class.
    pub(super) fn nothing(wanted: &[u32]) -> Self {
        Self { nodes: Vec::new(), left: wanted.to_vec() }
    }

    /// Returns the price per hour, in micro-USD.
    pub(super) fn price(&self, market: &Market) -> i64 {
        self.nodes
            .iter()
            .map(|(node, count)| market.kinds[node.kind].price.saturating_mul(i64::from(*count)))
            .fold(0, i64::saturating_add)
    }

    /// Returns how many pods are left over.
    pub(super) fn left_over(&self) -> u64 {
        self.left.iter().map(|count| u64::from(*count)).sum()
    }

    /// Buys up to `most` nodes for what is left, as long as all their pods are; the first also for
    /// some of them. Returns whether any was bought.
    pub(super) fn buy(&mut self, node: &Pattern, most: u32) -> bool {
        let fits = |(class, count): &(usize, u32)| self.left[*class] / (*count).max(1);
        let whole = node.pods.iter().map(fits).min().unwrap_or(0).min(most);
        let (node, count) = if whole > 0 {
            (node.clone(), whole)
        } else {
            let some = node.pods.iter().map(|(class, n)| (*class, (*n).min(self.left[*class])));
            let pods: Vec<(usize, u32)> = some.filter(|(_, count)| *count > 0).collect();
            (Pattern { kind: node.kind, pods }, most.min(1))
        };
        if node.pods.is_empty() || count == 0 {
            return false;
        }
        for (class, pods) in &node.pods {
            self.left[*class] -= pods * count;
        }
        self.nodes.push((node, count));
        true
    }

    /// Adds what was bought for what is left here.
    pub(super) fn and_then(&mut self, rest: Self) {
        self.nodes.extend(rest.nodes);
        self.left = rest.left;
    }

    /// Gives each node the cheapest kind that holds its pods.
    pub(super) fn shrink(&mut self, market: &Market) {
        let mut by_price: Vec<usize> = (0..market.kinds.len()).collect();
        by_price.sort_by_key(|kind| (market.kinds[*kind].price, *kind));
        for (node, _) in &mut self.nodes {
            let holds = |kind: &&usize| holds(market, &market.kinds[**kind], &node.pods);
            node.kind = by_price.iter().find(holds).copied().unwrap_or(node.kind);
        }
    }
}

/// Returns whether one node of a kind may hold these pods.
pub(super) fn holds(market: &Market, kind: &Kind, pods: &[(usize, u32)]) -> bool {
    let mut under = vec![0_u32; market.caps.len()];
    let is_within = |(class, count): &(usize, u32)| {
        market.caps_of[*class].iter().all(|cap| {
            under[*cap] = under[*cap].saturating_add(*count);
            under[*cap] <= market.caps[*cap].most
        })
    };
    has_room(market, kind, pods) && pods.iter().all(is_within)
}

/// Returns whether one node of a kind has room for these pods.
pub(super) fn has_room(market: &Market, kind: &Kind, pods: &[(usize, u32)]) -> bool {
    let mut room = kind.room.clone();
    pods.iter().all(|(class, count)| {
        let ask = &market.wares[*class].ask;
        let fits = kind.takes[*class] && copies(ask, &room, *count) == *count;
        for (room, ask) in room.iter_mut().zip(ask) {
            *room = room.saturating_sub(ask.saturating_mul(i64::from(*count)));
        }
        fits
    })
}
