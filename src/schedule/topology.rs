//! Topology keys and their domains, and counts of pods by domain.

use std::collections::BTreeMap;

use crate::ids::{LabelKey, LabelValue, Labels};

/// Whether a pod comes to a node or leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Bind,
    Unbind,
}

impl Step {
    pub(super) fn count(self, count: &mut usize) {
        *count = match self {
            Self::Bind => *count + 1,
            Self::Unbind => count.checked_sub(1).expect("a pod leaves only where it was bound"),
        };
    }

    pub(super) fn weigh(self, sum: &mut i64, weight: i64) {
        match self {
            Self::Bind => *sum += weight,
            Self::Unbind => *sum -= weight,
        }
    }
}

/// A label key whose values divide the nodes into domains.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    pub(super) key: LabelKey,
    domains: BTreeMap<LabelValue, usize>,
    of_node: Vec<usize>,
}

impl Topology {
    /// Stands for a node without the label; no domain ever gets this number.
    const ABSENT: usize = usize::MAX;

    pub(super) fn new(key: LabelKey) -> Self {
        Self { key, domains: BTreeMap::new(), of_node: Vec::new() }
    }

    /// Adds the next node.
    pub(super) fn push(&mut self, labels: &Labels) {
        let next = self.domains.len();
        let domain = labels
            .get(&self.key)
            .map_or(Self::ABSENT, |value| *self.domains.entry(value.clone()).or_insert(next));
        self.of_node.push(domain);
    }

    pub(super) fn domain(&self, node: usize) -> Option<usize> {
        self.of_node.get(node).copied().filter(|domain| *domain != Self::ABSENT)
    }

    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }
}

/// How many pods of a set run in each domain of a topology.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) topology: usize,
    counts: Vec<usize>,
    /// Pods counted, in all domains together.
    pub(super) total: usize,
}

impl Tally {
    pub(super) fn new(topology: usize) -> Self {
        Self { topology, counts: Vec::new(), total: 0 }
    }

    pub(super) fn step(&mut self, domain: Option<usize>, step: Step) {
        let Some(domain) = domain else { return };
        step.count(slot(&mut self.counts, domain));
        step.count(&mut self.total);
    }

    pub(super) fn count(&self, domain: usize) -> usize {
        self.counts.get(domain).copied().unwrap_or(0)
    }
}

/// What the pods that carry an affinity term mean for the pods that the term selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Required anti-affinity: selected pods must stay out of the domain.
    Repel,
    /// A wish, or required affinity: selected pods score the domain by this weight.
    Pull(i64),
}

/// How the pods that carry a term are spread over the domains of its topology.
#[derive(Debug, Clone)]
pub(super) struct Carriers {
    pub(super) set: usize,
    pub(super) topology: usize,
    repel: Vec<usize>,
    pull: Vec<i64>,
    /// Pods with [`Role::Repel`].
    pub(super) repelling: usize,
    /// Pods with [`Role::Pull`].
    pub(super) pulling: usize,
}

impl Carriers {
    pub(super) fn new(set: usize, topology: usize) -> Self {
        Self { set, topology, repel: Vec::new(), pull: Vec::new(), repelling: 0, pulling: 0 }
    }

    pub(super) fn step(&mut self, domain: Option<usize>, role: Role, step: Step) {
        let Some(domain) = domain else { return };
        match role {
            Role::Repel => {
                step.count(slot(&mut self.repel, domain));
                step.count(&mut self.repelling);
            }
            Role::Pull(weight) => {
                step.weigh(slot(&mut self.pull, domain), weight);
                step.count(&mut self.pulling);
            }
        }
    }

    pub(super) fn repels(&self, domain: usize) -> bool {
        self.repel.get(domain).is_some_and(|pods| *pods > 0)
    }

    pub(super) fn pull(&self, domain: usize) -> i64 {
        self.pull.get(domain).copied().unwrap_or(0)
    }
}

/// Returns the slot of `domain`, growing the list where domains appeared since.
pub(super) fn slot<T: Default + Clone>(list: &mut Vec<T>, domain: usize) -> &mut T {
    if domain >= list.len() {
        list.resize(domain + 1, T::default());
    }
    &mut list[domain]
}
