//! Counts of topology spread: pods of a set by domain, on the nodes that count.
//!
//! The nodes that count depend on the pod's node choice and on the keys of its constraints, which
//! most pods share: [`EligibleDomains`] holds the shared part, and a [`DomainCounter`] adds the
//! pods.
//!
//! Source: `pkg/scheduler/framework/plugins/podtopologyspread/{common,filtering}.go`.

use super::topology::{CountUpdate, slot_mut, to_index};
use crate::model::pod::NodeInclusion;

/// Policy that decides the nodes that count for a constraint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountingPolicy {
    /// Node views of the pod; `None` if neither node affinity nor tolerations are honored.
    pub(super) views: Option<usize>,
    /// Policy for node selector and required affinity.
    pub(super) affinity: NodeInclusion,
    /// Policy for taints.
    pub(super) taints: NodeInclusion,
    /// Topologies whose keys a node must have.
    pub(super) keys: Vec<usize>,
}

/// Nodes that count, and their domains in one topology.
#[derive(Debug, Clone)]
pub(super) struct EligibleDomains {
    pub(super) policy: usize,
    pub(super) topology: usize,
    /// Number of nodes that count, by domain.
    nodes: Vec<u32>,
    /// Number of domains with such a node.
    domains: u32,
}

impl EligibleDomains {
    pub(super) fn new(counting: usize, topology: usize) -> Self {
        Self { policy: counting, topology, nodes: Vec::new(), domains: 0 }
    }

    /// Adds or removes one node that counts.
    pub(super) fn update(&mut self, domain: u32, step: CountUpdate) {
        let nodes = slot_mut(&mut self.nodes, to_index(domain));
        let before = *nodes;
        step.apply(nodes);
        match (before, *nodes) {
            (0, _) => self.domains += 1,
            (_, 0) => self.domains -= 1,
            _ => {}
        }
    }
}

/// Number of pods of a set by eligible domain. A domain without eligible nodes is not counted.
#[derive(Debug, Clone)]
pub(super) struct DomainCounter {
    pods: Vec<u32>,
    /// Number of domains by number of pods, from one pod on.
    levels: Vec<u32>,
    /// Number of domains with a pod.
    occupied: u32,
    /// Lower bound on the pods of an occupied domain; exact if there is one.
    least: usize,
}

impl DomainCounter {
    pub(super) fn new() -> Self {
        Self { pods: Vec::new(), levels: Vec::new(), occupied: 0, least: 1 }
    }

    /// Adds or removes a pod of the set in `domain`.
    pub(super) fn update(&mut self, domain: u32, step: CountUpdate) {
        let pods = slot_mut(&mut self.pods, to_index(domain));
        let before = to_index(*pods);
        step.apply(pods);
        let after = to_index(*pods);
        if before == 0 {
            self.occupied += 1;
        } else {
            self.levels[before] -= 1;
        }
        if after == 0 {
            self.occupied -= 1;
        } else {
            *slot_mut(&mut self.levels, after) += 1;
            self.least = self.least.min(after);
        }
        while self.occupied > 0 && self.levels[self.least] == 0 {
            self.least += 1;
        }
    }

    /// Adds `pods` pods in `domain`.
    pub(super) fn add(&mut self, domain: u32, pods: u32) {
        (0..pods).for_each(|_| self.update(domain, CountUpdate::Add));
    }

    /// Returns the number of pods by domain; domains beyond the end have none.
    pub(super) fn pods(&self) -> &[u32] {
        &self.pods
    }

    /// Returns the minimum number of pods in an eligible domain; 0 if there are fewer than
    /// `min_domains` domains.
    fn least(&self, arena: &EligibleDomains, min_domains: u32) -> u32 {
        if arena.domains < min_domains || self.occupied < arena.domains {
            return 0;
        }
        u32::try_from(self.least).unwrap_or(u32::MAX)
    }
}

/// One spread constraint of one class of pods.
#[derive(Debug, Clone)]
pub(super) struct SpreadConstraint {
    /// Pods that it counts.
    pub(super) set: usize,
    pub(super) counter: usize,
    pub(super) eligible_domains: usize,
    pub(super) topology: usize,
    /// Maximum number of pods above the minimum.
    pub(super) max_skew: u32,
    /// Minimum number of domains for a minimum above 0.
    pub(super) min_domains: u32,
    /// True if the constraint counts the pod itself.
    pub(super) selects_itself: bool,
}

impl SpreadConstraint {
    /// Returns the maximum number of pods that a domain may have before the pod is added: the
    /// global minimum plus the skew, less the pod itself if it counts. `None` if no pod may be
    /// added.
    pub(super) fn limit(&self, counter: &DomainCounter, arena: &EligibleDomains) -> Option<u32> {
        let least = counter.least(arena, self.min_domains);
        least.saturating_add(self.max_skew).checked_sub(u32::from(self.selects_itself))
    }
}
