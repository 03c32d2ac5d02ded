//! What a node by itself says of a pod: whether its labels, taints, ports and room let the pod in,
//! and how well its cpu and memory suit it. Kept for each wish until the node changes.

use std::collections::VecDeque;

use super::load::{Load, Port, Request};
use super::place::{Verdict, View};
use super::score::{Balance, resource_score};
use super::topology::slot;

/// Scores kept at most, of 8 bytes each: enough for 2,000 wishes on 2,000 nodes.
const KEPT_MAX: usize = 4_000_000;

/// The score of a node that does not let the pod in.
pub(super) const CLOSED: i32 = -1;

/// What a pod asks of a node itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Local {
    /// How it sees labels, taints and cordons.
    pub(super) view: usize,
    pub(super) request: Request,
    pub(super) ports: Vec<Port>,
}

impl Local {
    /// Returns whether the node itself has nothing against the pod.
    pub(super) fn lets_in(&self, node: usize, view: &View, load: &Load) -> bool {
        let seen = view.node(node);
        seen.verdict == Verdict::Fits
            && seen.reachable
            && load.has_room(&self.request)
            && load.has_ports(&self.ports)
    }

    /// Returns the resource score of a node, or [`CLOSED`].
    pub(super) fn score(&self, node: usize, view: &View, load: &Load, balance: Balance) -> i32 {
        let open = self.lets_in(node, view, load);
        if open { resource_score(&self.request, load, balance) } else { CLOSED }
    }
}

/// A score, and the node's version that it is of; version 0 is of no node.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    version: u32,
    score: i32,
}

/// Scores of one wish, by node.
#[derive(Debug, Clone, Default)]
pub(super) struct Row(Vec<Kept>);

impl Row {
    /// Returns the score of `node` in this `version`, worked out by `score` if it is not known.
    #[inline]
    pub(super) fn score(&mut self, node: usize, version: u32, score: impl FnOnce() -> i32) -> i32 {
        let kept = &mut self.0[node];
        if kept.version != version {
            *kept = Kept { version, score: score() };
        }
        kept.score
    }
}

/// Rows by wish. They are copies of what can be worked out again: the ones made first make room
/// where there are too many, and a clone begins without any.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    made: VecDeque<usize>,
}

impl Clone for Rows {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Rows {
    /// Takes the row of a wish out, for so many nodes.
    pub(super) fn take(&mut self, local: usize, nodes: usize) -> Row {
        let mut row = std::mem::take(slot(&mut self.rows, local));
        if row.0.is_empty() {
            while !self.made.is_empty() && (self.made.len() + 1) * nodes > KEPT_MAX {
                let oldest = self.made.pop_front().expect("it is not empty");
                row = std::mem::take(&mut self.rows[oldest]);
                row.0.clear();
            }
            self.made.push_back(local);
        }
        row.0.resize(nodes, Kept::default());
        row
    }

    /// Puts a row back that was taken out.
    pub(super) fn put_back(&mut self, local: usize, row: Row) {
        self.rows[local] = row;
    }

    /// Forgets every score.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
