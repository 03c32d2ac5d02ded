//! Which pods a pod that fits nowhere would evict.
//!
//! Source: `pkg/scheduler/framework/preemption/preemption.go`,
//! `pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go`. A pod's own
//! `preemptionPolicy: Never` is not known here; callers have to respect it.

use std::cmp::Reverse;

use rand::RngExt;

use super::load::Bound;
use super::pods::Selection;
use super::{ClassIndex, NodeIndex, Scheduler};
use crate::ids::Namespace;
use crate::pod::Selector;

/// Candidates are looked for among at least so many nodes …
const CANDIDATES_MIN: usize = 100;
/// … and at least so many percent of those where it might help.
const CANDIDATES_PERCENT: usize = 10;

/// Pods of which only some may be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Namespace of the pods.
    pub namespace: Namespace,
    /// The pods; an empty selector selects none here, as upstream has it.
    pub selector: Selector,
    /// How many of them may go (`status.disruptionsAllowed`).
    pub allowed: u32,
}

/// What makes room for a pod: the node, and the pods that have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The node that the pod would then be nominated to.
    pub node: NodeIndex,
    /// The pods to evict, the most important first.
    pub victims: Vec<ClassIndex>,
}

/// What decides between nodes, the least first: the budgets broken, the highest priority among the victims, the sum
/// of priorities, the number of victims, and, the other way round, how long the longest running of
/// the victims of that highest priority has run.
type Cost = (usize, i32, i64, usize, Reverse<u64>);

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
            let Some((broken, victims)) = self.victims(class, node) else { continue };
            let cost = self.cost(broken, &victims);
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

    /// Returns the pods that would have to leave `node`, and how many of them against a budget:
    /// all of lower priority go, and come back one by one, those under a spent budget first, then
    /// the most important first, as long as the new pod still fits.
    fn victims(&mut self, class: usize, node: usize) -> Option<(usize, Vec<Bound>)> {
        let below = self.priority(class);
        let lower = |bound: &Bound| self.priority(bound.class) < below;
        let mut lower: Vec<Bound> = self.loads[node].pods().iter().copied().filter(lower).collect();
        lower.sort_by_key(|bound| self.importance(*bound));
        for bound in &lower {
            self.lift(node, *bound);
        }
        let helps = self.admits(class, node);
        let (breaking, harmless) = self.by_budget(&lower);
        let (mut victims, mut broken) = (Vec::new(), 0);
        for (index, bound) in breaking.iter().chain(&harmless).enumerate() {
            self.place(node, *bound);
            if helps && !self.admits(class, node) {
                self.lift(node, *bound);
                victims.push(*bound);
                broken += usize::from(index < breaking.len());
            }
        }
        for bound in &victims {
            self.place(node, *bound);
        }
        victims.sort_by_key(|bound| self.importance(*bound));
        helps.then_some((broken, victims))
    }

    /// Sorts the most important first: by priority, then by how long it runs.
    fn importance(&self, bound: Bound) -> (Reverse<i32>, u64) {
        (Reverse(self.priority(bound.class)), bound.since)
    }

    /// Parts pods into those whose eviction, after that of the ones before them, some budget does
    /// not allow, and the others.
    fn by_budget(&self, pods: &[Bound]) -> (Vec<Bound>, Vec<Bound>) {
        let mut left: Vec<(Option<Selection>, u32)> = self
            .budgets
            .iter()
            .map(|budget| (Selection::of_budget(budget), budget.allowed))
            .collect();
        pods.iter().copied().partition(|bound| {
            let shape = self.shape(ClassIndex(bound.class));
            let mut spent = false;
            for (selection, left) in &mut left {
                let holds = |s: &Selection| s.matches(shape, &self.rules.namespaces);
                if selection.as_ref().is_some_and(holds) {
                    spent |= *left == 0;
                    *left = left.saturating_sub(1);
                }
            }
            spent
        })
    }

    fn cost(&self, broken: usize, victims: &[Bound]) -> Cost {
        let priority = |bound: &Bound| self.priority(bound.class);
        let highest = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        // Shifted above zero, so that a pod more never makes a sum smaller.
        let sum = victims.iter().map(|bound| i64::from(priority(bound)) + (1 << 31)).sum();
        let top = victims.iter().filter(|bound| priority(bound) == highest);
        let longest = top.map(|bound| bound.since).min().unwrap_or(0);
        (broken, highest, sum, victims.len(), Reverse(longest))
    }

    pub(super) fn priority(&self, class: usize) -> i32 {
        self.rules.classes[class].shape.priority
    }
}
