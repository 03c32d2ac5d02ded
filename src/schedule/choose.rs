//! From the nodes that fit to the one that is taken.
//!
//! Source: `pkg/scheduler/schedule_one.go`.

use rand::RngExt;

use super::local::CLOSED;
use super::score::Finds;
use super::{Scheduler, order};

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
        self.start = self.ground.order.advanced(self.start, tried);
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
            let wanted = order::nodes_to_find(self.ground.order.nodes().len());
            let [first, second] = self.ground.order.rotated(self.start);
            let _ = try_all(first, wanted) || try_all(second, wanted);
        }
        self.rows.put_back(local, row);
        tried
    }

    /// Returns the node with the highest total; one of several at random, each as likely.
    fn best(&mut self, finds: &Finds) -> usize {
        let highest = finds.totals.iter().copied().fold(i32::MIN, i32::max);
        let ties = finds.totals.iter().filter(|total| **total == highest).count();
        let pick = if ties > 1 { self.rng.random_range(0..ties) } else { 0 };
        let mut best =
            finds.totals.iter().zip(&finds.nodes).filter(|(total, _)| **total == highest);
        let (_, node) = best.nth(pick).expect("the highest is one of them");
        *node
    }
}
