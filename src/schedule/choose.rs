//! From the nodes that fit to the one that is taken.
//!
//! Source: `pkg/scheduler/schedule_one.go`.

use rand::RngExt;

use super::{NodeIndex, Scheduler, Unfit, order};

impl Scheduler {
    /// Returns the node for a pod of this class: the nominated one if it fits, else the best.
    pub(super) fn choose(
        &mut self,
        class: usize,
        nominated: Option<NodeIndex>,
    ) -> Result<usize, Unfit> {
        let nominated = nominated.map(|NodeIndex(node)| node);
        if let Some(node) = nominated.filter(|node| self.gate(class).passes(*node)) {
            return Ok(node);
        }
        let (feasible, tried) = self.search(class);
        self.order.advance(tried);
        match feasible.as_slice() {
            [] => Err(self.explain(class)),
            [only] => Ok(*only),
            several => {
                let totals = self.totals(class, several);
                Ok(several[self.best(&totals)])
            }
        }
    }

    /// Returns the nodes to score, and how many nodes were tried to find them.
    ///
    /// Upstream tries nodes in parallel and may try a few more; here they are tried in order.
    pub(super) fn search(&self, class: usize) -> (Vec<usize>, usize) {
        let gate = self.gate(class);
        if let Some(name) = &self.classes[class].shape.nodes.name {
            let named = self.by_name.get(name.as_str()).copied();
            let feasible = named.filter(|node| gate.passes(*node)).into_iter().collect();
            return (feasible, usize::from(named.is_some()));
        }
        let wanted = order::nodes_to_find(self.order.nodes().len());
        let (mut feasible, mut tried) = (Vec::with_capacity(wanted), 0);
        for node in self.order.rotated() {
            tried += 1;
            if gate.passes(node) {
                feasible.push(node);
                if feasible.len() == wanted {
                    break;
                }
            }
        }
        (feasible, tried)
    }

    /// Returns the index of the highest total; one of several at random, each as likely.
    fn best(&mut self, totals: &[i64]) -> usize {
        let (mut best, mut ties) = (0, 1_u32);
        for (index, total) in totals.iter().enumerate().skip(1) {
            if *total > totals[best] {
                (best, ties) = (index, 1);
            } else if *total == totals[best] {
                ties += 1;
                if self.rng.random_range(0..ties) == 0 {
                    best = index;
                }
            }
        }
        best
    }
}
