//! The order in which nodes are tried, and the number of nodes to find.
//!
//! Source: `pkg/scheduler/backend/cache/node_tree.go`, `pkg/scheduler/schedule_one.go`.

use std::ops::Range;

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::topology::slot_mut;
use crate::model::ids::{LabelValue, Labels};
use crate::model::requirement::key;

/// Smaller clusters are searched completely, and no search stops with fewer nodes found.
const NODES_MIN: usize = 100;
/// Percentage of nodes to find in a small cluster; it decreases with size.
const PERCENT_MAX: usize = 50;
/// Minimum percentage.
const PERCENT_MIN: usize = 5;
/// Number of nodes that reduce the percentage by one.
const NODES_PER_PERCENT: usize = 125;

/// Returns the number of feasible nodes that ends the search among `nodes`.
pub(super) fn nodes_to_find(nodes: usize) -> usize {
    if nodes < NODES_MIN {
        return nodes;
    }
    let percent = PERCENT_MAX.saturating_sub(nodes / NODES_PER_PERCENT).max(PERCENT_MIN);
    (nodes * percent / 100).max(NODES_MIN)
}

/// Region and zone of a node; both may be missing.
type RegionZone = (Option<LabelValue>, Option<LabelValue>);

/// Nodes in zone-interleaved order: one of each zone in turn.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeOrder {
    zones: Vec<(RegionZone, Vec<usize>)>,
    list: Vec<usize>,
    /// Position of each node in the list.
    positions: Vec<Option<usize>>,
    /// Increases whenever the list is rebuilt.
    version: u64,
}

impl NodeOrder {
    pub(super) fn add(&mut self, node: usize, labels: &Labels) {
        let place = (labels.get(key::REGION).cloned(), labels.get(key::ZONE).cloned());
        match self.zones.iter_mut().find(|(known, _)| *known == place) {
            Some((_, nodes)) => nodes.push(node),
            None => self.zones.push((place, vec![node])),
        }
    }

    pub(super) fn remove(&mut self, node: usize) {
        self.zones.iter_mut().for_each(|(_, nodes)| nodes.retain(|other| *other != node));
        self.zones.retain(|(_, nodes)| !nodes.is_empty());
        self.interleave();
    }

    /// Shuffles the zones, and the nodes of each.
    pub(super) fn shuffle(&mut self, rng: &mut Pcg64) {
        self.zones.shuffle(rng);
        self.zones.iter_mut().for_each(|(_, nodes)| nodes.shuffle(rng));
        self.interleave();
    }

    /// Rebuilds the order after nodes were added or removed.
    pub(super) fn interleave(&mut self) {
        let longest = self.zones.iter().map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
        let zones = &self.zones;
        let take_turn = |turn| zones.iter().filter_map(move |(_, nodes)| nodes.get(turn).copied());
        self.list = (0..longest).flat_map(take_turn).collect();
        self.positions.clear();
        for (position, node) in self.list.iter().enumerate() {
            *slot_mut(&mut self.positions, *node) = Some(position);
        }
        self.version += 1;
    }

    pub(super) fn nodes(&self) -> &[usize] {
        &self.list
    }

    /// Returns the position of a node in [`NodeOrder::nodes`].
    pub(super) fn position(&self, node: usize) -> Option<usize> {
        self.positions.get(node).copied().flatten()
    }

    /// Returns a number that differs for each list of this order.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns all positions once, starting with `start`, in two parts.
    pub(super) fn rotated(&self, start: usize) -> [Range<usize>; 2] {
        let start = start.checked_rem(self.list.len()).unwrap_or(0);
        [start..self.list.len(), 0..start]
    }

    /// Returns the start of the search after one from `start` that tried this number of nodes.
    pub(super) fn advanced(&self, start: usize, tried: usize) -> usize {
        (start + tried).checked_rem(self.list.len()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::requirement::label;
    use rand::SeedableRng;

    #[test]
    fn shuffled_nodes_still_alternate_between_zones() {
        let zone = |node: usize| if node < 3 { "a" } else { "b" };
        let mut order = NodeOrder::default();
        (0..6).for_each(|node| order.add(node, &[label(key::ZONE, zone(node))].into()));
        order.interleave();
        assert_eq!(order.nodes(), [0, 3, 1, 4, 2, 5]);
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..1_000 {
            order.shuffle(&mut Pcg64::seed_from_u64(seed));
            let zones: Vec<&str> = order.nodes().iter().map(|node| zone(*node)).collect();
            assert!(zones.chunks(2).all(|pair| pair[0] != pair[1] && pair == &zones[..2]));
            orders.insert(order.nodes().to_vec());
        }
        // 3! orders of each zone, and 2 of the zones.
        assert_eq!(orders.len(), 72);
    }
}
