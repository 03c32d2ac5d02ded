//! Nodes that are known to fail the node-local filters of a pod, so that a search skips them.
//!
//! A bound pod uses resources and ports of its node, and never adds any, because no request is
//! negative. A node that fails these filters therefore fails until it changes in another way.

use super::node_order::NodeOrder;
use super::topology::{slot_mut, to_index};

const WORD_BITS: usize = 64;

/// Maximum number of words of all sets: 16 MB, enough for 12,000 requirements on 10,000 nodes.
const WORDS_MAX: usize = 2_000_000;

/// Maximum number of listed changes. A set that was not used since an earlier change starts empty.
const CHANGES_MAX: usize = 4_096;

/// Positions in the search order whose nodes fail one requirement.
#[derive(Debug, Clone, Default)]
pub(super) struct UnfitSet {
    /// One bit for each position; positions beyond the end are not in the set.
    words: Vec<u64>,
    /// Version of the order that the positions belong to.
    order_version: u64,
    /// Number of changes that the set includes.
    seen: usize,
}

impl UnfitSet {
    #[inline]
    pub(super) fn insert(&mut self, position: usize) {
        *slot_mut(&mut self.words, position / WORD_BITS) |= 1_u64 << (position % WORD_BITS);
    }

    fn remove(&mut self, position: usize) {
        if let Some(word) = self.words.get_mut(position / WORD_BITS) {
            *word &= !(1_u64 << (position % WORD_BITS));
        }
    }

    /// Returns the first position from `from` on, and before `end`, that is not in the set.
    #[inline]
    pub(super) fn next_absent(&self, from: usize, end: usize) -> Option<usize> {
        let mut index = from / WORD_BITS;
        let mut absent = self.absent(index) & (u64::MAX << (from % WORD_BITS));
        while absent == 0 {
            index += 1;
            absent = self.absent(index);
        }
        let position = index * WORD_BITS + to_index(absent.trailing_zeros());
        (position < end).then_some(position)
    }

    #[inline]
    fn absent(&self, index: usize) -> u64 {
        self.words.get(index).map_or(u64::MAX, |word| !*word)
    }
}

/// Sets by requirement. They can be recomputed, so a clone starts empty.
#[derive(Debug, Default)]
pub(super) struct UnfitNodes {
    sets: Vec<UnfitSet>,
    /// Number of words in `sets`.
    words: usize,
    /// Nodes that changed other than by a bound pod, in the order of the changes.
    changed: Vec<usize>,
    /// Number of changes before the listed ones.
    forgotten: usize,
}

impl Clone for UnfitNodes {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl UnfitNodes {
    /// Records a change after which `node` may pass filters that it failed before.
    pub(super) fn note_change(&mut self, node: usize) {
        if self.changed.len() >= CHANGES_MAX {
            self.forgotten += self.changed.len();
            self.changed.clear();
        }
        self.changed.push(node);
    }

    /// Takes out the set of a requirement, without the nodes that changed since its last use.
    pub(super) fn take(&mut self, local: usize, order: &NodeOrder) -> UnfitSet {
        let mut set = std::mem::take(slot_mut(&mut self.sets, local));
        self.words -= set.words.len();
        let listed = set.seen.checked_sub(self.forgotten);
        let changed = listed.and_then(|seen| self.changed.get(seen..));
        if let Some(changed) = changed.filter(|_| set.order_version == order.version()) {
            let positions = changed.iter().filter_map(|node| order.position(*node));
            positions.for_each(|position| set.remove(position));
        } else {
            set.words = Vec::new();
        }
        set.order_version = order.version();
        set.seen = self.forgotten + self.changed.len();
        set
    }

    /// Returns a set for the next search. Sets beyond the maximum are dropped, and start empty.
    pub(super) fn put_back(&mut self, local: usize, set: UnfitSet) {
        if self.words + set.words.len() <= WORDS_MAX {
            self.words += set.words.len();
            self.sets[local] = set;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Labels;

    /// An order of this number of nodes without zones: positions equal node indexes.
    fn order(nodes: usize) -> NodeOrder {
        let mut order = NodeOrder::default();
        (0..nodes).for_each(|node| order.add(node, &Labels::new()));
        order.interleave();
        order
    }

    /// Returns the positions that are not in the set of requirement 0.
    fn absent(nodes: &mut UnfitNodes, order: &NodeOrder) -> Vec<usize> {
        let set = nodes.take(0, order);
        let end = order.nodes().len();
        let next = |from: usize| set.next_absent(from, end);
        let found = std::iter::successors(next(0), |last| next(last + 1)).collect();
        nodes.put_back(0, set);
        found
    }

    /// Returns the sets of an order in which these nodes fail requirement 0.
    fn failing(order: &NodeOrder, failing: impl IntoIterator<Item = usize>) -> UnfitNodes {
        let mut nodes = UnfitNodes::default();
        let mut set = nodes.take(0, order);
        failing.into_iter().for_each(|node| set.insert(node));
        nodes.put_back(0, set);
        nodes
    }

    #[test]
    fn search_jumps_over_words_of_failing_nodes() {
        let order = order(200);
        for (first, end) in [(0, 0), (0, 200), (1, 199), (0, 63), (0, 64), (64, 200), (65, 192)] {
            let mut nodes = failing(&order, first..end);
            let expected: Vec<usize> = (0..first).chain(end..200).collect();
            assert_eq!(absent(&mut nodes, &order), expected, "{first} to {end}");
        }
        let set = failing(&order, 3..150).take(0, &order);
        assert_eq!(set.next_absent(3, 150), None, "the end is not part of the search");
        assert_eq!(set.next_absent(149, 151), Some(150));
        assert_eq!(set.next_absent(200, 200), None);
    }

    #[test]
    fn changed_nodes_are_tried_once_more() {
        let order = order(100);
        let mut nodes = failing(&order, 0..100);
        nodes.note_change(70);
        nodes.note_change(3);
        assert_eq!(absent(&mut nodes, &order), [3, 70]);
        // The set already includes these changes, and records what the search found.
        let mut set = nodes.take(0, &order);
        set.insert(70);
        nodes.put_back(0, set);
        assert_eq!(absent(&mut nodes, &order), [3]);
        nodes.note_change(70);
        nodes.note_change(1_000);
        assert_eq!(absent(&mut nodes, &order), [3, 70], "an unknown node has no position");
    }

    #[test]
    fn set_that_missed_changes_starts_empty() {
        let order = order(100);
        let all: Vec<usize> = (0..100).collect();
        let mut nodes = failing(&order, 0..100);
        (0..CHANGES_MAX).for_each(|_| nodes.note_change(3));
        assert_eq!(absent(&mut nodes, &order), [3], "every change is listed");
        nodes.note_change(4);
        assert_eq!(absent(&mut nodes, &order), [3, 4], "only included changes are forgotten");
        let mut nodes = failing(&order, 0..100);
        (0..=CHANGES_MAX).for_each(|_| nodes.note_change(3));
        assert_eq!(absent(&mut nodes, &order), all);
    }

    #[test]
    fn set_of_another_order_starts_empty() {
        let mut order = order(100);
        let mut nodes = failing(&order, 0..50);
        order.remove(0);
        assert_eq!(absent(&mut nodes, &order), (0..99).collect::<Vec<usize>>());
    }

    #[test]
    fn clone_and_sets_beyond_the_maximum_start_empty() {
        let order = order(100);
        let mut nodes = failing(&order, 0..99);
        assert_eq!(absent(&mut nodes, &order), [99]);
        assert_eq!(absent(&mut nodes.clone(), &order).len(), 100);
        let mut large = nodes.take(1, &order);
        large.insert(WORDS_MAX * WORD_BITS - 1);
        nodes.put_back(1, large);
        assert_eq!(nodes.words, 2, "the words of the first set alone");
        assert_eq!(nodes.take(1, &order).next_absent(0, 1), Some(0));
        assert_eq!(absent(&mut nodes, &order), [99]);
    }
}
