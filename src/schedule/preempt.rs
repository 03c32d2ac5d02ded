//! Which pods a pod that fits nowhere would evict.
//!
//! Source: `pkg/scheduler/framework/preemption/preemption.go`,
//! `pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go`. Pod disruption
//! budgets, which upstream prefers not to break, are not known here; nor is a pod's own
//! `preemptionPolicy: Never`, which callers have to respect.

use std::cmp::Reverse;

use rand::RngExt;

use super::load::Bound;
use super::{ClassIndex, NodeIndex, Scheduler};

/// Candidates are looked for among at least so many nodes …
const CANDIDATES_MIN: usize = 100;
/// … and at least so many percent of those where it might help.
const CANDIDATES_PERCENT: usize = 10;

/// What makes room for a pod: the node, and the pods that have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The node that the pod would then be nominated to.
    pub node: NodeIndex,
    /// The pods to evict, the most important first.
    pub victims: Vec<ClassIndex>,
}

/// What decides between nodes, the least first: the highest priority among the victims, the sum
/// of priorities, the number of victims, and, the other way round, how long the longest running of
/// the victims of that highest priority has run.
type Cost = (i32, i64, usize, Reverse<u64>);

impl Scheduler {
    /// Returns the eviction of pods of lower priority that would let a pod of this class in, as
    /// few and as unimportant as possible. Leaves everything as it was, but for the seed.
    pub fn preempt(&mut self, class: ClassIndex) -> Option<Preemption> {
        let ClassIndex(class) = class;
        let promising = self.promising(class);
        let wanted = (promising.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES_MIN);
        let start = match promising.len() {
            0 => return None,
            nodes => self.rng.random_range(0..nodes),
        };
        let mut best: Option<(Cost, usize, Vec<Bound>)> = None;
        let mut found = 0;
        for node in promising[start..].iter().chain(&promising[..start]).copied() {
            let Some(victims) = self.victims(class, node) else { continue };
            let cost = self.cost(&victims);
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, node, victims));
            }
            found += 1;
            if found == wanted {
                break;
            }
        }
        let (_, node, victims) = best?;
        let victims = victims.into_iter().map(|bound| ClassIndex(bound.class)).collect();
        Some(Preemption { node: NodeIndex(node), victims })
    }

    /// Returns the nodes that do not fit only for reasons that evictions from them might remove.
    fn promising(&self, class: usize) -> Vec<usize> {
        let gate = self.gate(class);
        let might_help = |node: &usize| {
            let obstacles = gate.obstacles(*node);
            !obstacles.is_empty() && obstacles.iter().all(|obstacle| obstacle.movable)
        };
        self.order.nodes().iter().copied().filter(might_help).collect()
    }

    /// Returns the pods that would have to leave `node`: all of lower priority go, and come back
    /// one by one, the most important first, as long as the new pod still fits.
    fn victims(&mut self, class: usize, node: usize) -> Option<Vec<Bound>> {
        let below = self.priority(class);
        let lower = |bound: &Bound| self.priority(bound.class) < below;
        let mut lower: Vec<Bound> = self.loads[node].pods().iter().copied().filter(lower).collect();
        lower.sort_by_key(|bound| (Reverse(self.priority(bound.class)), bound.since));
        for bound in &lower {
            self.lift(node, *bound);
        }
        let helps = self.gate(class).passes(node);
        let mut victims = Vec::new();
        for bound in lower {
            self.place(node, bound);
            if helps && !self.gate(class).passes(node) {
                self.lift(node, bound);
                victims.push(bound);
            }
        }
        for bound in &victims {
            self.place(node, *bound);
        }
        helps.then_some(victims)
    }

    fn cost(&self, victims: &[Bound]) -> Cost {
        let priority = |bound: &Bound| self.priority(bound.class);
        let highest = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        // Shifted above zero, so that a pod more never makes a sum smaller.
        let sum = victims.iter().map(|bound| i64::from(priority(bound)) + (1 << 31)).sum();
        let top = victims.iter().filter(|bound| priority(bound) == highest);
        let longest = top.map(|bound| bound.since).min().unwrap_or(0);
        (highest, sum, victims.len(), Reverse(longest))
    }

    fn priority(&self, class: usize) -> i32 {
        self.classes[class].shape.priority
    }
}
