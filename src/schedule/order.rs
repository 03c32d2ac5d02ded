//! The order in which nodes are tried, and how many of them.
//!
//! Source: `pkg/scheduler/backend/cache/node_tree.go`, `pkg/scheduler/schedule_one.go`.

use crate::ids::{LabelValue, Labels};
use crate::requirement::key;

/// Clusters with fewer nodes are searched whole, and a search never stops with fewer found.
const NODES_MIN: usize = 100;
/// The percentage of nodes to find in a small cluster; large ones find fewer.
const PERCENT_MAX: usize = 50;
/// The least percentage.
const PERCENT_MIN: usize = 5;
/// So many nodes take one percent off.
const NODES_PER_PERCENT: usize = 125;

/// Returns how many feasible nodes end the search among `nodes`.
#[must_use]
pub(super) fn nodes_to_find(nodes: usize) -> usize {
    if nodes < NODES_MIN {
        return nodes;
    }
    let percent = PERCENT_MAX.saturating_sub(nodes / NODES_PER_PERCENT).max(PERCENT_MIN);
    (nodes * percent / 100).max(NODES_MIN)
}

/// Region and zone of a node; both may be missing.
type Place = (Option<LabelValue>, Option<LabelValue>);

/// Nodes, one of each zone in turn.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeOrder {
    zones: Vec<(Place, Vec<usize>)>,
    list: Vec<usize>,
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
        self.zones.iter_mut().for_each(|(_, nodes)| nodes.retain(|held| *held != node));
        self.zones.retain(|(_, nodes)| !nodes.is_empty());
    }

    /// Deals the nodes out anew, after some were added or removed.
    pub(super) fn interleave(&mut self) {
        let longest = self.zones.iter().map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
        let zones = &self.zones;
        let deal = |turn| zones.iter().filter_map(move |(_, nodes)| nodes.get(turn).copied());
        self.list = (0..longest).flat_map(deal).collect();
    }

    pub(super) fn nodes(&self) -> &[usize] {
        &self.list
    }

    /// Returns the nodes from the one at `start` on, once around, in two parts.
    pub(super) fn rotated(&self, start: usize) -> [&[usize]; 2] {
        let start = start.checked_rem(self.list.len()).unwrap_or(0);
        let (before, after) = self.list.split_at(start);
        [after, before]
    }

    /// Returns where the search after one from `start` that tried so many nodes begins.
    pub(super) fn advanced(&self, start: usize, tried: usize) -> usize {
        (start + tried).checked_rem(self.list.len()).unwrap_or(0)
    }
}
