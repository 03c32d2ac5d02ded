//! Nodes that count for the spread constraints of a pod.
//!
//! A node counts if it has the topology keys of all `DoNotSchedule` constraints of the pod, and
//! passes the inclusion policies. By default node affinity and selector limit the nodes, and taints
//! do not. Volumes limit the pod, but not the nodes that count.

use std::collections::{BTreeMap, BTreeSet};

use super::context::required_spread;
use super::topology::Topologies;
use crate::demand::{NodeChoice, PodShape};
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::pod::{NodeInclusion, Taint, Toleration, TopologySpread, untolerated};
use crate::plan::verify::end_state::{EndNode, EndState, PodSet};

/// Properties by which pods distinguish nodes: label values, taints, and the closed state.
type NodeTraits<'a> = (Vec<Option<&'a LabelValue>>, &'a [Taint], bool);

/// Nodes that no node selection and no toleration distinguishes.
struct EquivalentNodes<'a> {
    end_node: &'a EndNode<'a>,
    members: Vec<usize>,
}

/// Match of each node with one node selection and one set of tolerations.
type NodeMatches = Vec<NodeMatch>;

/// Match of a pod with a node: selection by node affinity, and toleration of the taints.
#[derive(Debug, Clone, Copy, Default)]
struct NodeMatch {
    selected: bool,
    tolerated: bool,
}

/// The properties of a constraint that determine the nodes that count.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EligibilityKey {
    matches: usize,
    honors_affinity: bool,
    honors_taints: bool,
    topologies: BTreeSet<usize>,
}

/// The nodes that count for a constraint.
pub(super) struct EligibleSet {
    pub(super) nodes: Vec<bool>,
    /// Number of domains of these nodes, by topology.
    pub(super) domains: BTreeMap<usize, usize>,
}

/// Cached results.
pub(super) struct EligibleNodes<'a> {
    state: &'a EndState<'a>,
    equivalent: Vec<EquivalentNodes<'a>>,
    match_index: BTreeMap<(&'a NodeChoice, &'a [Toleration]), usize>,
    match_lists: Vec<NodeMatches>,
    rules: BTreeMap<EligibilityKey, usize>,
    pub(super) sets: Vec<EligibleSet>,
}

impl<'a> EligibleNodes<'a> {
    pub(super) fn new(state: &'a EndState<'a>) -> Self {
        Self {
            state,
            equivalent: equivalent(state),
            match_index: BTreeMap::new(),
            match_lists: Vec::new(),
            rules: BTreeMap::new(),
            sets: Vec::new(),
        }
    }

    /// Returns the index in `sets` of the nodes that count for `constraint` of `pod_set`.
    pub(super) fn get(
        &mut self,
        pod_set: &'a PodSet,
        constraint: &TopologySpread,
        topologies: &mut Topologies<'a>,
    ) -> usize {
        let honors = |policy| policy == NodeInclusion::Honor;
        let key = EligibilityKey {
            matches: self.matches(&pod_set.shape),
            honors_affinity: honors(constraint.node_affinity_policy),
            honors_taints: honors(constraint.node_taints_policy),
            topologies: required_spread(pod_set)
                .map(|rule| topologies.get(&rule.topology_key))
                .collect(),
        };
        if let Some(index) = self.rules.get(&key) {
            return *index;
        }
        self.sets.push(eligible_set(&key, &self.match_lists[key.matches], topologies));
        self.rules.insert(key, self.sets.len() - 1);
        self.sets.len() - 1
    }

    fn matches(&mut self, shape: &'a PodShape) -> usize {
        let constraints = (&shape.nodes, shape.tolerations.as_slice());
        if let Some(index) = self.match_index.get(&constraints) {
            return *index;
        }
        let mut matches = vec![NodeMatch::default(); self.state.nodes.len()];
        for EquivalentNodes { end_node, members } in &self.equivalent {
            let node_match = match_node(shape, end_node);
            for member in members {
                matches[*member] = node_match;
            }
        }
        if let Some(name) = &shape.nodes.name {
            let named = |end_node: &EndNode<'_>| end_node.name.is_some_and(|n| n.as_str() == name);
            let end_nodes = matches.iter_mut().zip(&self.state.nodes);
            end_nodes.for_each(|(node_match, end_node)| node_match.selected &= named(end_node));
        }
        self.match_lists.push(matches);
        self.match_index.insert(constraints, self.match_lists.len() - 1);
        self.match_lists.len() - 1
    }
}

fn match_node(shape: &PodShape, end_node: &EndNode<'_>) -> NodeMatch {
    let labels = &end_node.after.labels;
    let taints = &end_node.after.taints;
    NodeMatch {
        selected: shape.nodes.stated().iter().any(|choice| choice.matches_labels(labels)),
        // A cordoned or unready node has a taint for it. Tolerations of this taint are not
        // evaluated.
        tolerated: !end_node.closed && untolerated(taints, &shape.tolerations).is_none(),
    }
}

fn eligible_set(
    key: &EligibilityKey,
    matches: &NodeMatches,
    topologies: &Topologies<'_>,
) -> EligibleSet {
    let has_keys =
        |end_node: usize| key.topologies.iter().all(|t| topologies.domain(*t, end_node).is_some());
    let counts = |(end_node, node_match): (usize, &NodeMatch)| {
        (node_match.selected || !key.honors_affinity)
            && (node_match.tolerated || !key.honors_taints)
            && has_keys(end_node)
    };
    let end_nodes: Vec<bool> = matches.iter().enumerate().map(counts).collect();
    let domains = key.topologies.iter().map(|topology| {
        let counted = (0..end_nodes.len()).filter(|end_node| end_nodes[*end_node]);
        let here: BTreeSet<usize> =
            counted.filter_map(|end_node| topologies.domain(*topology, end_node)).collect();
        (*topology, here.len())
    });
    let domains = domains.collect();
    EligibleSet { nodes: end_nodes, domains }
}

/// Groups nodes with equal taints and equal values of all labels by which pods with spread
/// constraints select nodes.
fn equivalent<'a>(state: &'a EndState<'a>) -> Vec<EquivalentNodes<'a>> {
    let spread = state.pod_sets.iter().filter(|pod_set| required_spread(pod_set).next().is_some());
    let choices = spread.flat_map(|pod_set| pod_set.shape.nodes.stated());
    let keys: BTreeSet<&LabelKey> =
        choices.flat_map(|choice| choice.iter().map(|(key, _)| key)).collect();
    let mut equivalent: BTreeMap<NodeTraits<'a>, EquivalentNodes<'a>> = BTreeMap::new();
    for (index, end_node) in state.nodes.iter().enumerate() {
        let values = keys.iter().map(|key| end_node.after.labels.get(*key)).collect();
        let taints = end_node.after.taints.as_slice();
        let entry = equivalent.entry((values, taints, end_node.closed));
        entry
            .or_insert_with(|| EquivalentNodes { end_node, members: Vec::new() })
            .members
            .push(index);
    }
    equivalent.into_values().collect()
}
