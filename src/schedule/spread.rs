//! Counts for topology spread: pods of a set by domain, on the nodes that count.
//!
//! Which nodes count depends on the pod's own choice of nodes and on the keys of its constraints,
//! and most pods agree on it: an [`Arena`] is what they share, a [`Counter`] adds the pods.
//!
//! Source: `pkg/scheduler/framework/plugins/podtopologyspread/{common,filtering}.go`.

use super::topology::{Step, at, slot};
use crate::pod::NodeInclusion;

/// What decides which nodes count for a constraint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counting {
    /// Whose node affinity and tolerations; `None` where neither is honoured.
    pub(super) view: Option<usize>,
    /// Whether node selector and required affinity limit the nodes.
    pub(super) affinity: NodeInclusion,
    /// Whether taints do.
    pub(super) taints: NodeInclusion,
    /// Topologies whose keys a node needs.
    pub(super) keys: Vec<usize>,
}

/// The nodes that count, and the domains they open in one topology.
#[derive(Debug, Clone)]
pub(super) struct Arena {
    pub(super) counting: usize,
    pub(super) topology: usize,
    /// Nodes that count, by domain.
    nodes: Vec<u32>,
    /// Domains with such a node.
    domains: u32,
}

impl Arena {
    pub(super) fn new(counting: usize, topology: usize) -> Self {
        Self { counting, topology, nodes: Vec::new(), domains: 0 }
    }

    /// Lets one node more or less count.
    pub(super) fn step(&mut self, domain: u32, step: Step) {
        let nodes = slot(&mut self.nodes, at(domain));
        let before = *nodes;
        step.count(nodes);
        match (before, *nodes) {
            (0, _) => self.domains += 1,
            (_, 0) => self.domains -= 1,
            _ => {}
        }
    }
}

/// Pods of a set by domain, on the nodes of an arena. No domain is counted that is not open.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    pods: Vec<u32>,
    /// How many domains have so many pods, from one pod on.
    levels: Vec<u32>,
    /// Domains with a pod.
    occupied: u32,
    /// No domain with a pod has fewer; exact where there is one.
    least: usize,
}

impl Counter {
    pub(super) fn new() -> Self {
        Self { pods: Vec::new(), levels: Vec::new(), occupied: 0, least: 1 }
    }

    /// Counts a pod of the set that comes to a node of `domain` or leaves it.
    pub(super) fn step(&mut self, domain: u32, step: Step) {
        let pods = slot(&mut self.pods, at(domain));
        let before = at(*pods);
        step.count(pods);
        let after = at(*pods);
        if before == 0 {
            self.occupied += 1;
        } else {
            self.levels[before] -= 1;
        }
        if after == 0 {
            self.occupied -= 1;
        } else {
            *slot(&mut self.levels, after) += 1;
            self.least = self.least.min(after);
        }
        while self.occupied > 0 && self.levels[self.least] == 0 {
            self.least += 1;
        }
    }

    /// Counts `pods` more in `domain`.
    pub(super) fn add(&mut self, domain: u32, pods: u32) {
        (0..pods).for_each(|_| self.step(domain, Step::Bind));
    }

    /// Returns the pods by domain; domains beyond the end have none.
    pub(super) fn pods(&self) -> &[u32] {
        &self.pods
    }

    /// Returns the fewest pods in an open domain; 0 while there are fewer than `min_domains`.
    fn least(&self, arena: &Arena, min_domains: u32) -> u32 {
        if arena.domains < min_domains || self.occupied < arena.domains {
            return 0;
        }
        u32::try_from(self.least).unwrap_or(u32::MAX)
    }
}

/// One constraint of one class of pods.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    /// The pods counted.
    pub(super) set: usize,
    pub(super) counter: usize,
    pub(super) arena: usize,
    pub(super) topology: usize,
    /// Most pods above the least.
    pub(super) max_skew: u32,
    /// Fewest domains before the least is more than 0.
    pub(super) min_domains: u32,
    /// Whether the constraint counts the pod itself.
    pub(super) counts_itself: bool,
}

impl Spread {
    /// Returns the most pods that a domain may have before the pod is added: the global minimum
    /// plus the skew, less the pod itself if it counts. `None` if nothing may be added at all.
    pub(super) fn limit(&self, counter: &Counter, arena: &Arena) -> Option<u32> {
        let least = counter.least(arena, self.min_domains);
        least.saturating_add(self.max_skew).checked_sub(u32::from(self.counts_itself))
    }
}
