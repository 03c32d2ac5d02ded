//! One topology spread constraint of one class of pods, counted as pods come and go.
//!
//! Source: `pkg/scheduler/framework/plugins/podtopologyspread/{common,filtering}.go`.

use super::topology::{Step, slot};
use crate::pod::{NodeInclusion, TopologySpread};

/// A constraint with its counts. Only nodes that count for the constraint (they have every key of
/// the pod's constraints of the same kind, and pass the inclusion policies) contribute.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    /// The pods counted.
    pub(super) set: usize,
    /// The topology.
    pub(super) topology: usize,
    /// Most pods above the least.
    pub(super) max_skew: usize,
    /// Whether the constraint counts the pod itself.
    pub(super) counts_itself: bool,
    pub(super) affinity_policy: NodeInclusion,
    pub(super) taints_policy: NodeInclusion,
    min_domains: usize,
    eligible: Vec<bool>,
    /// Eligible nodes, by domain.
    nodes: Vec<usize>,
    /// Pods on eligible nodes, by domain.
    pods: Vec<usize>,
    /// Domains with an eligible node.
    domains: usize,
    /// How many domains have so many pods, by that number of pods.
    levels: Vec<usize>,
    /// The least level that a domain is on; meaningless without domains.
    least: usize,
}

impl Spread {
    pub(super) fn new(rule: &TopologySpread, set: usize, topology: usize) -> Self {
        let whole = |n: i32| usize::try_from(n).unwrap_or(0);
        Self {
            set,
            topology,
            max_skew: whole(rule.max_skew),
            counts_itself: false,
            affinity_policy: rule.node_affinity_policy,
            taints_policy: rule.node_taints_policy,
            min_domains: whole(rule.min_domains.unwrap_or(1)).max(1),
            eligible: Vec::new(),
            nodes: Vec::new(),
            pods: Vec::new(),
            domains: 0,
            levels: Vec::new(),
            least: 0,
        }
    }

    /// Makes `node`, on which `pods` of the set run, count or not.
    pub(super) fn set_eligible(
        &mut self,
        node: usize,
        domain: Option<usize>,
        eligible: bool,
        pods: usize,
    ) {
        let held = slot(&mut self.eligible, node);
        let was = std::mem::replace(held, eligible);
        let Some(domain) = domain.filter(|_| was != eligible) else { return };
        if eligible {
            let nodes = slot(&mut self.nodes, domain);
            *nodes += 1;
            if *nodes == 1 {
                self.open(domain);
            }
            (0..pods).for_each(|_| self.shift(domain, Step::Bind));
        } else {
            (0..pods).for_each(|_| self.shift(domain, Step::Unbind));
            let nodes = slot(&mut self.nodes, domain);
            *nodes -= 1;
            if *nodes == 0 {
                self.close(domain);
            }
        }
    }

    /// Counts a pod of the set that comes to `node` or leaves it.
    pub(super) fn step(&mut self, node: usize, domain: Option<usize>, step: Step) {
        let counts = self.eligible.get(node).copied().unwrap_or(false);
        if let Some(domain) = domain.filter(|_| counts) {
            self.shift(domain, step);
        }
    }

    /// Returns the pods counted in `domain`.
    pub(super) fn pods(&self, domain: usize) -> usize {
        self.pods.get(domain).copied().unwrap_or(0)
    }

    /// Returns the most pods that `domain` may have before another is added: the global minimum
    /// plus the skew, less the pod itself if it counts. `None` if nothing may be added at all.
    ///
    /// The minimum is 0 while there are fewer domains than `minDomains`.
    pub(super) fn limit(&self) -> Option<usize> {
        let least = if self.domains < self.min_domains { 0 } else { self.least };
        (least + self.max_skew).checked_sub(usize::from(self.counts_itself))
    }

    fn open(&mut self, domain: usize) {
        let level = *slot(&mut self.pods, domain);
        *slot(&mut self.levels, level) += 1;
        self.least = if self.domains == 0 { level } else { self.least.min(level) };
        self.domains += 1;
    }

    fn close(&mut self, domain: usize) {
        let level = *slot(&mut self.pods, domain);
        *slot(&mut self.levels, level) -= 1;
        self.domains -= 1;
        self.settle();
    }

    fn shift(&mut self, domain: usize, step: Step) {
        let pods = slot(&mut self.pods, domain);
        let before = *pods;
        step.count(pods);
        let after = *pods;
        *slot(&mut self.levels, before) -= 1;
        *slot(&mut self.levels, after) += 1;
        self.least = self.least.min(after);
        self.settle();
    }

    /// Raises the least level to the first that a domain is on.
    fn settle(&mut self) {
        while self.domains > 0 && self.levels.get(self.least).is_some_and(|n| *n == 0) {
            self.least += 1;
        }
    }
}
