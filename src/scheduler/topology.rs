//! Topology keys, their domains, and pod counts by domain.

use std::collections::BTreeMap;

use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::requirement::key;

/// Domain of a node without the label; no real domain has this number.
pub(super) const ABSENT: u32 = u32::MAX;

/// Addition to or removal from a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountUpdate {
    Add,
    Remove,
}

impl CountUpdate {
    pub(super) fn apply(self, count: &mut u32) {
        *count = match self {
            Self::Add => *count + 1,
            Self::Remove => count.checked_sub(1).expect("a pod leaves only where it was bound"),
        };
    }

    pub(super) fn apply_weight(self, sum: &mut i64, weight: i64) {
        match self {
            Self::Add => *sum += weight,
            Self::Remove => *sum -= weight,
        }
    }
}

/// A topology key, whose values divide the nodes into domains.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    pub(super) key: LabelKey,
    /// True for the host name key, which scores count differently.
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

    #[inline]
    pub(super) fn domain(&self, node: usize) -> Option<u32> {
        self.of_node.get(node).copied().filter(|domain| *domain != ABSENT)
    }

    /// Returns the domain of each node, or [`ABSENT`].
    pub(super) fn domain_of_nodes(&self) -> &[u32] {
        &self.of_node
    }

    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }
}

/// Number of pods of a set in each domain of a topology.
#[derive(Debug, Clone)]
pub(super) struct DomainPodCounts {
    pub(super) topology: usize,
    counts: Vec<u32>,
    /// Number of pods in all domains.
    pub(super) total: u32,
}

impl DomainPodCounts {
    pub(super) fn new(topology: usize) -> Self {
        Self { topology, counts: Vec::new(), total: 0 }
    }

    pub(super) fn update(&mut self, domain: Option<u32>, step: CountUpdate) {
        let Some(domain) = domain else { return };
        step.apply(slot_mut(&mut self.counts, to_index(domain)));
        step.apply(&mut self.total);
    }

    /// Returns the number of pods by domain; domains beyond the end have none.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }
}

/// Effect of an affinity term on the pods that it selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermRole {
    /// Required anti-affinity: selected pods must avoid the domain.
    Repel,
    /// Preference, or required affinity: selected pods score the domain with this weight.
    Pull(i64),
}

/// Pods that carry an affinity term, counted by domain of its topology.
#[derive(Debug, Clone)]
pub(super) struct TermCarriers {
    pub(super) topology: usize,
    repel: Vec<u32>,
    pull: Vec<i64>,
    /// Pods with [`Role::Repel`].
    pub(super) repelling: u32,
    /// Pods with [`Role::Pull`].
    pub(super) pulling: u32,
}

impl TermCarriers {
    pub(super) fn new(topology: usize) -> Self {
        Self { topology, repel: Vec::new(), pull: Vec::new(), repelling: 0, pulling: 0 }
    }

    pub(super) fn update(&mut self, domain: Option<u32>, role: TermRole, step: CountUpdate) {
        let Some(domain) = domain.map(to_index) else { return };
        match role {
            TermRole::Repel => {
                step.apply(slot_mut(&mut self.repel, domain));
                step.apply(&mut self.repelling);
            }
            TermRole::Pull(weight) => {
                step.apply_weight(slot_mut(&mut self.pull, domain), weight);
                step.apply(&mut self.pulling);
            }
        }
    }

    /// Returns the number of repelling pods by domain; domains beyond the end have none.
    pub(super) fn repels(&self) -> &[u32] {
        &self.repel
    }

    /// Returns the weights by domain; domains beyond the end have none.
    pub(super) fn pulls(&self) -> &[i64] {
        &self.pull
    }
}

/// Returns the slot at `index`, and extends the list if it is too short.
pub(super) fn slot_mut<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if index >= list.len() {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// Returns a domain, or another number of 32 bits, as an index.
#[inline]
pub(super) fn to_index(domain: u32) -> usize {
    usize::try_from(domain).expect("an index has 32 bits at least")
}
