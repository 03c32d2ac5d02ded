//! Preemption: the pods that an unschedulable pod would evict.
//!
//! Source: `pkg/scheduler/framework/preemption/preemption.go`,
//! `pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go`. Callers must respect
//! a pod's own `preemptionPolicy: Never`, which is unknown here.

use std::cmp::Reverse;

use rand::RngExt;

use super::node_usage::BoundPod;
use super::pod_selection::PodSelector;
use super::{ClassIndex, NodeIndex, Scheduler};
use crate::model::ids::Namespace;
use crate::model::pod::Selector;

/// Minimum number of candidates.
const CANDIDATES_MIN: usize = 100;
/// Minimum percentage of the promising nodes that become candidates.
const CANDIDATES_PERCENT: usize = 10;

/// A disruption budget that limits evictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionBudget {
    /// Namespace of the pods.
    pub namespace: Namespace,
    /// Selected pods; an empty selector selects none, as upstream.
    pub selector: Selector,
    /// Number of allowed evictions (`status.disruptionsAllowed`).
    pub allowed: u32,
}

/// A preemption: the node, and the pods to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// Node to which the pod would be nominated.
    pub node: NodeIndex,
    /// Pods to evict, most important first.
    pub victims: Vec<ClassIndex>,
}

/// Sort key of candidate nodes, smallest first: violated budgets, highest priority of the victims,
/// sum of priorities, number of victims, and how long the longest running victim of the highest
/// priority has run (longer is worse).
type Cost = (usize, i32, i64, usize, Reverse<u64>);

impl Scheduler {
    /// Returns the preemption for a pod of this class, with as few and as unimportant victims as
    /// possible. It changes no state except the random generator.
    pub fn preempt(&mut self, class: ClassIndex) -> Option<Preemption> {
        let ClassIndex(class) = class;
        let promising = self.preemption_candidates(class);
        let wanted = (promising.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES_MIN);
        let start = match promising.len() {
            0 => return None,
            nodes => self.rng.random_range(0..nodes),
        };
        let mut best: Option<(Cost, usize, Vec<BoundPod>)> = None;
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

    /// Returns the nodes that fail only for reasons that evictions from them might remove.
    fn preemption_candidates(&self, class: usize) -> Vec<usize> {
        let filter = self.pod_filter(class);
        let might_help = |node: &usize| {
            let obstacles = filter.failures(*node);
            !obstacles.is_empty() && obstacles.iter().all(|obstacle| obstacle.evictable)
        };
        self.order.nodes().iter().copied().filter(might_help).collect()
    }

    /// Returns the victims on `node`, and how many of them violate a budget. All pods of lower
    /// priority are removed and then restored one by one while the new pod fits: pods of exhausted
    /// budgets first, then the most important ones.
    fn victims(&mut self, class: usize, node: usize) -> Option<(usize, Vec<BoundPod>)> {
        let below = self.priority(class);
        let lower = |bound: &BoundPod| self.priority(bound.class) < below;
        let mut lower: Vec<BoundPod> =
            self.usage[node].pods().iter().copied().filter(lower).collect();
        lower.sort_by_key(|bound| self.importance(*bound));
        for bound in &lower {
            self.remove_pod(node, *bound);
        }
        let helps = self.admits(class, node);
        let (breaking, harmless) = self.partition_by_budget(&lower);
        let (mut victims, mut broken) = (Vec::new(), 0);
        for (index, bound) in breaking.iter().chain(&harmless).enumerate() {
            self.add_pod(node, *bound);
            if helps && !self.admits(class, node) {
                self.remove_pod(node, *bound);
                victims.push(*bound);
                broken += usize::from(index < breaking.len());
            }
        }
        for bound in &victims {
            self.add_pod(node, *bound);
        }
        victims.sort_by_key(|bound| self.importance(*bound));
        helps.then_some((broken, victims))
    }

    /// Returns the sort key of importance: by priority, then by running time.
    fn importance(&self, bound: BoundPod) -> (Reverse<i32>, u64) {
        (Reverse(self.priority(bound.class)), bound.sequence)
    }

    /// Partitions pods into those whose eviction, after the pods before them, a budget does not
    /// allow, and the others.
    fn partition_by_budget(&self, pods: &[BoundPod]) -> (Vec<BoundPod>, Vec<BoundPod>) {
        let mut left: Vec<(Option<PodSelector>, u32)> = self
            .budgets
            .iter()
            .map(|budget| (PodSelector::from_budget(budget), budget.allowed))
            .collect();
        pods.iter().copied().partition(|bound| {
            let shape = self.shape(ClassIndex(bound.class));
            let mut spent = false;
            for (selection, left) in &mut left {
                let holds = |s: &PodSelector| s.matches(shape, &self.registry.namespaces);
                if selection.as_ref().is_some_and(holds) {
                    spent |= *left == 0;
                    *left = left.saturating_sub(1);
                }
            }
            spent
        })
    }

    fn cost(&self, broken: usize, victims: &[BoundPod]) -> Cost {
        let priority = |bound: &BoundPod| self.priority(bound.class);
        let highest = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        // Priorities are shifted above zero, so that one more pod never reduces the sum.
        let sum = victims.iter().map(|bound| i64::from(priority(bound)) + (1 << 31)).sum();
        let top = victims.iter().filter(|bound| priority(bound) == highest);
        let longest = top.map(|bound| bound.sequence).min().unwrap_or(0);
        (broken, highest, sum, victims.len(), Reverse(longest))
    }

    pub(super) fn priority(&self, class: usize) -> i32 {
        self.registry.classes[class].shape.priority
    }
}
