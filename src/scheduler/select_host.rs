//! Selects the node of a pod from the feasible nodes.
//!
//! Source: `pkg/scheduler/schedule_one.go`.

use std::ops::Range;

use rand::RngExt;

use super::node_local::{EXCLUDED, UNFIT};
use super::score::FeasibleNodes;
use super::{Scheduler, node_order};

/// Tie-breaking between the best nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TieBreaking {
    /// Uniformly at random (Kubernetes up to 1.35, and all schedulers with extenders).
    #[default]
    Random,
    /// By position in the heap of scores: 1.36 takes its root without a random choice
    /// (kubernetes#135231). Nodes that are tried first win most ties.
    HeapOrder,
}

/// Returns the position, in heap order from the root, of the node found at `index`. Parents precede
/// children, and left children precede right ones: of equal scores the first is the root.
fn heap_position(index: usize) -> (u64, u64) {
    let path = u64::try_from(index).map_or(u64::MAX, |index| index.saturating_add(1));
    (path << path.leading_zeros(), path)
}

impl Scheduler {
    /// Returns the node for a pod of this class: the nominated node if it fits, otherwise the best
    /// one.
    pub(super) fn select_host(&mut self, class: usize, nominated: Option<usize>) -> Option<usize> {
        if let Some(node) = nominated.filter(|node| self.admits(class, *node)) {
            return Some(node);
        }
        if self.unschedulable_at[class] == Some(self.room_version) {
            return None;
        }
        let mut feasible = std::mem::take(&mut self.feasible);
        let tried = self.find_feasible(class, &mut feasible);
        self.search_start = self.order.advanced(self.search_start, tried);
        self.tries += u64::try_from(tried).unwrap_or(u64::MAX);
        let chosen = match feasible.nodes.as_slice() {
            [] => {
                self.mark_unschedulable(class);
                None
            }
            [only] => Some(*only),
            _ => {
                self.add_scores(class, &mut feasible);
                Some(self.highest_scored(&feasible))
            }
        };
        self.feasible = feasible;
        chosen
    }

    /// Records that no node fits, if only more room can change that. Pods that name their node are
    /// excluded: each of their tries moves the start of the next search.
    fn mark_unschedulable(&mut self, class: usize) {
        let known = &self.registry.classes[class];
        if known.only_loses() && known.shape.nodes.name.is_none() {
            self.unschedulable_at[class] = Some(self.room_version);
        }
    }

    /// Finds the nodes to score, and returns the number of nodes tried.
    ///
    /// Upstream tries nodes in parallel and may try a few more. Here they are tried in order. Nodes
    /// that are known to fail are skipped, and count as tried.
    pub(super) fn find_feasible(&mut self, class: usize, feasible: &mut FeasibleNodes) -> usize {
        feasible.clear();
        let reserved = self.reserved(class);
        let node_local = self.registry.classes[class].node_local;
        let mut row = self.score_cache.take(node_local, self.usage.len());
        let mut unfit = self.unfit_nodes.take(node_local, &self.order);
        let filter = self.pod_filter(class);
        let nodes = self.order.nodes();
        let mut tried = 0;
        let mut try_all = |positions: Range<usize>, wanted: usize| {
            let mut next = positions.start;
            while let Some(position) = unfit.next_absent(next, positions.end) {
                next = position + 1;
                let node = nodes[position];
                let score = filter.score(&mut row, node);
                if score == UNFIT {
                    unfit.insert(position);
                } else if score != EXCLUDED && !reserved.contains(&node) {
                    feasible.push(node, score);
                    if feasible.len() == wanted {
                        tried += next - positions.start;
                        return true;
                    }
                }
            }
            tried += positions.len();
            false
        };
        if let Some(name) = &self.registry.classes[class].shape.nodes.name {
            let named = self.nodes.by_name.get(name.as_str());
            if let Some(position) = named.and_then(|node| self.order.position(*node)) {
                let end = position + 1;
                try_all(position..end, 1);
            }
        } else {
            let wanted = node_order::nodes_to_find(nodes.len());
            let [first, second] = self.order.rotated(self.search_start);
            let _ = try_all(first, wanted) || try_all(second, wanted);
        }
        self.score_cache.put_back(node_local, row);
        self.unfit_nodes.put_back(node_local, unfit);
        tried
    }

    /// Returns the node with the highest total.
    fn highest_scored(&mut self, feasible: &FeasibleNodes) -> usize {
        let highest = feasible.totals.iter().copied().fold(i32::MIN, i32::max);
        let mut best = (0..feasible.len()).filter(|index| feasible.totals[*index] == highest);
        let taken = match self.ties {
            TieBreaking::HeapOrder => best.min_by_key(|index| heap_position(*index)),
            TieBreaking::Random => {
                let ties = best.clone().count();
                best.nth(if ties > 1 { self.rng.random_range(0..ties) } else { 0 })
            }
        };
        feasible.nodes[taken.expect("the highest is one of them")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the index of the root of a heap built by sifting down each parent, last one first.
    fn root(scores: &[i32]) -> usize {
        let mut heap: Vec<(i32, usize)> = scores.iter().copied().zip(0..).collect();
        for start in (0..heap.len() / 2).rev() {
            let mut at = start;
            while 2 * at + 1 < heap.len() {
                let (left, right) = (2 * at + 1, 2 * at + 2);
                let is_right = right < heap.len() && heap[right].0 > heap[left].0;
                let child = if is_right { right } else { left };
                if heap[child].0 <= heap[at].0 {
                    break;
                }
                heap.swap(at, child);
                at = child;
            }
        }
        heap[0].1
    }

    #[test]
    fn heap_root_is_the_best_node_with_the_first_heap_position() {
        let mut rng = rand_pcg::Pcg64::new(1, 1);
        for _ in 0..20_000 {
            let scores: Vec<i32> =
                (0..rng.random_range(1..40)).map(|_| rng.random_range(0..4)).collect();
            let highest = scores.iter().max().expect("one");
            let best = (0..scores.len()).filter(|index| scores[*index] == *highest);
            assert_eq!(best.min_by_key(|index| heap_position(*index)), Some(root(&scores)));
        }
    }
}
