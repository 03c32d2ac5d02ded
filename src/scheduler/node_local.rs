//! Node-local filters and scores: labels, taints, ports, free resources, and the resource score of
//! CPU and memory. Scores are cached for each requirement until the node changes.

use std::collections::VecDeque;

use super::node_usage::{HostPortKey, NodeUsage, PodRequest};
use super::node_view::{NodeMatch, NodeViews};
use super::resource_score::{BalanceScoring, resource_score};
use super::topology::slot_mut;

/// Maximum number of cached scores, of 8 bytes each: enough for 2,000 requirements on 2,000 nodes.
const CACHED_SCORES_MAX: usize = 4_000_000;

/// Score of a node that fails the node-local filters.
pub(super) const UNFIT: i32 = -1;

/// Score of a node that fails a filter on other pods or on volumes; it may fail node-local filters
/// as well.
pub(super) const EXCLUDED: i32 = -2;

/// Node-local requirements of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeLocalFilter {
    /// Index of its [`NodeViews`]: labels, taints and cordons.
    pub(super) views: usize,
    pub(super) request: PodRequest,
    pub(super) ports: Vec<HostPortKey>,
}

impl NodeLocalFilter {
    /// Returns true if the pod passes all node-local filters.
    #[inline]
    pub(super) fn passes(&self, node: usize, view: &NodeViews, load: &NodeUsage) -> bool {
        let node_view = view.node(node);
        node_view.node_match == NodeMatch::Fits
            && node_view.volumes_reachable
            && load.has_room(&self.request)
            && load.has_free_ports(&self.ports)
    }

    /// Returns the resource score of a node, or [`UNFIT`].
    #[inline]
    pub(super) fn score(
        &self,
        node: usize,
        view: &NodeViews,
        load: &NodeUsage,
        balance: BalanceScoring,
    ) -> i32 {
        let open = self.passes(node, view, load);
        if open { resource_score(&self.request, load, balance) } else { UNFIT }
    }
}

/// A score with the version of the node; version 0 belongs to no node.
#[derive(Debug, Clone, Copy, Default)]
struct CachedScore {
    version: u32,
    score: i32,
}

/// Scores of one requirement, by node.
#[derive(Debug, Clone, Default)]
pub(super) struct ScoreRow(Vec<CachedScore>);

impl ScoreRow {
    /// Returns the score of `node` in this `version`, computed by `score` if it is not cached.
    #[inline]
    pub(super) fn score(&mut self, node: usize, version: u32, score: impl FnOnce() -> i32) -> i32 {
        let cached = &mut self.0[node];
        if cached.version != version {
            *cached = CachedScore { version, score: score() };
        }
        cached.score
    }
}

/// Cached rows by requirement. They can be recomputed: the oldest rows are dropped to make room,
/// and a clone starts empty.
#[derive(Debug, Default)]
pub(super) struct ScoreCache {
    rows: Vec<ScoreRow>,
    oldest_first: VecDeque<usize>,
}

impl Clone for ScoreCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ScoreCache {
    /// Takes out the row of a requirement, for this number of nodes.
    pub(super) fn take(&mut self, local: usize, nodes: usize) -> ScoreRow {
        let mut row = std::mem::take(slot_mut(&mut self.rows, local));
        if row.0.is_empty() {
            while !self.oldest_first.is_empty()
                && (self.oldest_first.len() + 1) * nodes > CACHED_SCORES_MAX
            {
                let oldest = self.oldest_first.pop_front().expect("it is not empty");
                row = std::mem::take(&mut self.rows[oldest]);
                row.0.clear();
            }
            self.oldest_first.push_back(local);
        }
        row.0.resize(nodes, CachedScore::default());
        row
    }

    /// Returns a row to the cache.
    pub(super) fn put_back(&mut self, local: usize, row: ScoreRow) {
        self.rows[local] = row;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
