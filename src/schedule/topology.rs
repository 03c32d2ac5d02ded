//! Topology keys and their domains, and counts of pods by domain.

use std::collections::BTreeMap;

use crate::ids::{LabelKey, LabelValue, Labels};
use crate::requirement::key;

/// Stands for the domain of a node without the label; no domain ever gets this number.
pub(super) const ABSENT: u32 = u32::MAX;

/// Whether a pod comes to a node or leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Bind,
    Unbind,
}

impl Step {
    pub(super) fn count(self, count: &mut u32) {
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
    /// Whether the key is that of host names, by which scores count in a way of their own.
    pub(super) is_hostname: bool,
    domains: BTreeMap<LabelValue, u32>,
    of_node: Vec<u32>,
}

impl Topology {
    pub(super) fn new(key: LabelKey) -> Self {
        let is_hostname = key.as_str() == key::HOSTNAME;
        Self { key, is_hostname, domains: BTreeMap::new(), of_node: Vec::new() }
    }

    /// Adds the next node.
    pub(super) fn push(&mut self, labels: &Labels) {
        let next = u32::try_from(self.domains.len()).unwrap_or(ABSENT);
        let domain = labels.get(&self.key).map_or(ABSENT, |value| {
            self.domains.get(value).copied().unwrap_or_else(|| {
                self.domains.insert(value.clone(), next);
                next
            })
        });
        self.of_node.push(domain);
    }

    pub(super) fn domain(&self, node: usize) -> Option<u32> {
        self.of_node.get(node).copied().filter(|domain| *domain != ABSENT)
    }

    /// Returns the domain of each node, or [`ABSENT`].
    pub(super) fn of_nodes(&self) -> &[u32] {
        &self.of_node
    }

    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }
}

/// How many pods of a set run in each domain of a topology.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) topology: usize,
    counts: Vec<u32>,
    /// Pods counted, in all domains together.
    pub(super) total: u32,
}

impl Tally {
    pub(super) fn new(topology: usize) -> Self {
        Self { topology, counts: Vec::new(), total: 0 }
    }

    pub(super) fn step(&mut self, domain: Option<u32>, step: Step) {
        let Some(domain) = domain else { return };
        step.count(slot(&mut self.counts, at(domain)));
        step.count(&mut self.total);
    }

    /// Returns the pods by domain; domains beyond the end have none.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
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
    pub(super) topology: usize,
    repel: Vec<u32>,
    pull: Vec<i64>,
    /// Pods with [`Role::Repel`].
    pub(super) repelling: u32,
    /// Pods with [`Role::Pull`].
    pub(super) pulling: u32,
}

impl Carriers {
    pub(super) fn new(topology: usize) -> Self {
        Self { topology, repel: Vec::new(), pull: Vec::new(), repelling: 0, pulling: 0 }
    }

    pub(super) fn step(&mut self, domain: Option<u32>, role: Role, step: Step) {
        let Some(domain) = domain.map(at) else { return };
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

    /// Returns the repelling pods by domain; domains beyond the end have none.
    pub(super) fn repels(&self) -> &[u32] {
        &self.repel
    }

    /// Returns the weights by domain; domains beyond the end have none.
    pub(super) fn pulls(&self) -> &[i64] {
        &self.pull
    }
}

/// Returns the slot at `index`, growing the list where it ends before.
pub(super) fn slot<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if index >= list.len() {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// Returns a domain as an index.
#[inline]
pub(super) fn at(domain: u32) -> usize {
    usize::try_from(domain).expect("an index has 32 bits at least")
}
