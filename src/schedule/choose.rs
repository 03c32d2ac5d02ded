//! From the nodes that fit to the one that is taken.
//!
//! Source: `pkg/scheduler/schedule_one.go`.

use rand::RngExt;

use super::local::CLOSED;
use super::score::Finds;
use super::{Scheduler, order};

/// How ties between the best nodes are broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ties {
    /// At random, each as likely (Kubernetes up to 1.35, and wherever a scheduler has extenders).
    #[default]
    Drawn,
    /// By the place that each has in the heap of scores, of which 1.36 takes the root without a draw
    /// (kubernetes#135231): nodes that are tried first win most of them.
    Heaped,
}

/// Returns where the node that was found at `index` comes in the heap read from its root, each parent
/// before its children, the left child before the right: of equal scores the first is the root.
fn place_in_heap(index: usize) -> (u64, u64) {
    let path = u64::try_from(index).map_or(u64::MAX, |index| index.saturating_add(1));
    (path << path.leading_zeros(), path)
}

impl Scheduler {
    /// Returns the node for a pod of this class: the nominated one if it fits, else the best.
    pub(super) fn choose(&mut self, class: usize, nominated: Option<usize>) -> Option<usize> {
        if let Some(node) = nominated.filter(|node| self.admits(class, *node)) {
            return Some(node);
        }
        if self.hopeless[class] == Some(self.eased) {
            return None;
        }
        let mut finds = std::mem::take(&mut self.finds);
        let tried = self.search(class, &mut finds);
        self.start = self.order.advanced(self.start, tried);
        self.tries += u64::try_from(tried).unwrap_or(u64::MAX);
        let chosen = match finds.nodes.as_slice() {
            [] => {
                self.give_up(class);
                None
            }
            [only] => Some(*only),
            _ => {
                self.add_scores(class, &mut finds);
                Some(self.best(&finds))
            }
        };
        self.finds = finds;
        chosen
    }

    /// Remembers that no node fits, where nothing but more room can change that. A pod that names
    /// its node is left out: each try moves the start of the next search.
    fn give_up(&mut self, class: usize) {
        let known = &self.rules.classes[class];
        if known.only_loses() && known.shape.nodes.name.is_none() {
            self.hopeless[class] = Some(self.eased);
        }
    }

    /// Finds the nodes to score, and returns how many nodes were tried to find them.
    ///
    /// Upstream tries nodes in parallel and may try a few more; here they are tried in order.
    pub(super) fn search(&mut self, class: usize, finds: &mut Finds) -> usize {
        finds.clear();
        let reserved = self.reserved(class);
        let local = self.rules.classes[class].local;
        let mut row = self.rows.take(local, self.loads.len());
        let gate = self.gate(class);
        let mut tried = 0;
        let mut try_all = |nodes: &[usize], wanted: usize| {
            for (index, node) in nodes.iter().enumerate() {
                let score = gate.score(&mut row, *node);
                if score != CLOSED && !reserved.contains(node) {
                    finds.push(*node, score);
                    if finds.len() == wanted {
                        tried += index + 1;
                        return true;
                    }
                }
            }
            tried += nodes.len();
            false
        };
        if let Some(name) = &self.rules.classes[class].shape.nodes.name {
            let named = self.ground.by_name.get(name.as_str());
            try_all(named.map_or(&[], std::slice::from_ref), 1);
        } else {
            let wanted = order::nodes_to_find(self.order.nodes().len());
            let [first, second] = self.order.rotated(self.start);
            let _ = try_all(first, wanted) || try_all(second, wanted);
        }
        self.rows.put_back(local, row);
        tried
    }

    /// Returns the node with the highest total.
    fn best(&mut self, finds: &Finds) -> usize {
        let highest = finds.totals.iter().copied().fold(i32::MIN, i32::max);
        let ties = finds.totals.iter().filter(|total| **total == highest).count();
        let scored = finds.totals.iter().zip(&finds.nodes).enumerate();
        let mut best = scored.filter(|(_, (total, _))| **total == highest);
        let taken = match self.ties {
            Ties::Heaped => best.min_by_key(|(index, _)| place_in_heap(*index)),
            Ties::Drawn => best.nth(if ties > 1 { self.rng.random_range(0..ties) } else { 0 }),
        };
        let (_, (_, node)) = taken.expect("the highest is one of them");
        *node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns which of `scores` is the root of the heap that is built by sifting each parent down,
    /// the last first.
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
    fn the_root_of_a_heap_is_the_first_of_the_best_from_the_root_down() {
        let mut rng = rand_pcg::Pcg64::new(1, 1);
        for _ in 0..20_000 {
            let scores: Vec<i32> =
                (0..rng.random_range(1..40)).map(|_| rng.random_range(0..4)).collect();
            let highest = scores.iter().max().expect("one");
            let best = (0..scores.len()).filter(|index| scores[*index] == *highest);
            assert_eq!(best.min_by_key(|index| place_in_heap(*index)), Some(root(&scores)));
        }
    }
}
