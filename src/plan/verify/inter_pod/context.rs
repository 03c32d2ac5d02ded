//! Shared data of the rules between pods.

use std::collections::BTreeMap;

use super::pod_index::PodIndex;
use super::topology::Topologies;
use crate::model::ids::LabelKey;
use crate::model::pod::{PodAffinityTerm, TopologySpread, WhenUnsatisfiable};
use crate::plan::verify::end_state::{EndState, PodSet, Presence};

/// Numbers of pods by domain of one topology.
pub(super) type DomainCounts = BTreeMap<usize, Presence>;

/// Shared data of the rules: the pods of each selector, and the domain of each node.
pub(super) struct InterPodContext<'a> {
    pub(super) state: &'a EndState<'a>,
    pub(super) pod_index: PodIndex<'a>,
    pub(super) topologies: Topologies<'a>,
}

/// Returns the topology keys of all rules that the pod set carries.
pub(super) fn required_keys(pod_set: &PodSet) -> impl Iterator<Item = &LabelKey> {
    let terms = pod_set.shape.affinity.required.iter().chain(&pod_set.shape.anti_affinity.required);
    terms
        .map(|term| &term.topology_key)
        .chain(required_spread(pod_set).map(|rule| &rule.topology_key))
}

/// Returns the `DoNotSchedule` spread constraints of the pod set.
pub(super) fn required_spread(pod_set: &PodSet) -> impl Iterator<Item = &TopologySpread> {
    let is_required =
        |rule: &&TopologySpread| rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
    pod_set.shape.spread.iter().filter(is_required)
}

impl InterPodContext<'_> {
    /// Counts the pods of `members` in each domain of `topology`.
    pub(super) fn count_by_domain(&self, members: &[usize], topology: usize) -> DomainCounts {
        let mut counts = DomainCounts::new();
        for member in members {
            for (end_node, presence) in &self.state.pod_sets[*member].by_node {
                if let Some(domain) = self.topologies.domain(topology, *end_node) {
                    counts.entry(domain).or_default().add(*presence);
                }
            }
        }
        counts
    }

    /// Returns the first node in `domain` with arriving pods of one of the sets, with that set.
    pub(super) fn first_arrival(
        &self,
        pod_sets: &[usize],
        topology: usize,
        domain: usize,
    ) -> Option<(usize, usize)> {
        let here = |end_node: usize| self.topologies.domain(topology, end_node) == Some(domain);
        pod_sets.iter().find_map(|pod_set| {
            let by_node = &self.state.pod_sets[*pod_set].by_node;
            let mut arriving =
                by_node.iter().filter(|(end_node, pods)| pods.arriving > 0 && here(**end_node));
            arriving.next().map(|(end_node, _)| (*end_node, *pod_set))
        })
    }

    /// Returns pod set and node of all pods whose presence matches `predicate`.
    pub(super) fn pod_sets_where(&self, predicate: fn(&Presence) -> bool) -> Vec<(usize, usize)> {
        let pod_sets = self.state.pod_sets.iter().enumerate();
        pod_sets
            .flat_map(|(index, pod_set)| {
                let by_node = pod_set.by_node.iter().filter(move |(_, pods)| predicate(pods));
                by_node.map(move |(end_node, _)| (index, *end_node))
            })
            .collect()
    }

    /// Returns the pod sets that a required term of a pod selects.
    pub(super) fn selected_by(&mut self, pod_set: usize, term: &PodAffinityTerm) -> Vec<usize> {
        let shape = &self.state.pod_sets[pod_set].shape;
        let selection = self.pod_index.select_term(term, shape);
        self.pod_index.members(selection).to_vec()
    }

    pub(super) fn name(&self, pod_set: usize) -> &str {
        &self.state.pod_sets[pod_set].name
    }
}
