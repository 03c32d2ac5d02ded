//! Required inter-pod terms: affinity, anti-affinity and topology spread, with the groups they
//! select.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::is_placeable;
use crate::demand::{PodGroup, PodShape};
use crate::model::ids::{LabelKey, LabelValue, Labels, Namespace};
use crate::model::pod::{NodeInclusion, WhenUnsatisfiable};
use crate::scheduler::{NamespaceLabels, PodSelector};

/// A required term of one group.
#[derive(Debug, Clone)]
pub(in super::super) struct InterPodTerm {
    /// The group with this term.
    pub owner: usize,
    /// The topology key.
    pub key: LabelKey,
    /// The selected groups, in ascending order.
    pub members: Rc<[usize]>,
    /// Number of this set of groups. Terms that select the same groups share it.
    pub member_set: usize,
    pub kind: TermKind,
}

/// The kind of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum TermKind {
    /// Requires a selected pod in the same domain.
    Affinity,
    /// Excludes selected pods in the same domain.
    AntiAffinity,
    /// Requires an even spread of selected pods over domains.
    Spread {
        /// Maximum difference to the domain with the fewest pods.
        max_skew: u32,
        /// Minimum number of domains before that minimum applies.
        min_domains: u32,
        /// Counts only the domains that the node affinity of the pod allows.
        honors_affinity: bool,
        /// Counts only the domains whose taints the pod tolerates.
        honors_taints: bool,
    },
}

/// Returns the required terms of all groups with pods to place.
pub(super) fn inter_pod_terms_of(
    groups: &[PodGroup],
    namespaces: &BTreeMap<Namespace, Labels>,
) -> Vec<InterPodTerm> {
    let owners: Vec<usize> = (0..groups.len()).filter(|g| has_rules(&groups[*g])).collect();
    if owners.is_empty() {
        return Vec::new();
    }
    let mut resolver = TermResolver::from_groups(groups, namespaces);
    owners.into_iter().flat_map(|owner| resolver.terms_of(owner)).collect()
}

/// Returns the topology keys of the required anti-affinity terms of `shapes`, each with the groups that
/// the term selects.
pub(super) fn excluded_groups<'a>(
    shapes: impl Iterator<Item = &'a Arc<PodShape>>,
    groups: &[PodGroup],
    namespaces: &BTreeMap<Namespace, Labels>,
) -> Vec<(LabelKey, Rc<[usize]>)> {
    let mut excluding: Vec<&PodShape> = shapes.map(Arc::as_ref).collect();
    excluding.retain(|shape| !shape.anti_affinity.required.is_empty());
    excluding.dedup_by(|a, b| std::ptr::eq(*a, *b));
    if excluding.is_empty() {
        return Vec::new();
    }
    let mut resolver = TermResolver::from_groups(groups, namespaces);
    let mut excluded = Vec::new();
    for shape in excluding {
        for term in &shape.anti_affinity.required {
            let selectors = PodSelector::from_term(term, shape).into_iter().collect();
            excluded.push((term.topology_key.clone(), resolver.members(selectors).0));
        }
    }
    excluded
}

fn has_rules(group: &PodGroup) -> bool {
    let shape = &group.shape;
    let is_hard = |rule: &crate::model::pod::TopologySpread| {
        rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
    };
    let terms = !shape.affinity.required.is_empty() || !shape.anti_affinity.required.is_empty();
    is_placeable(group) && (terms || shape.spread.iter().any(is_hard))
}

/// Resolves selectors to groups.
struct TermResolver<'a> {
    groups: &'a [PodGroup],
    namespaces: NamespaceLabels,
    /// Groups by label, so that a selector examines few groups.
    by_label: BTreeMap<(&'a LabelKey, &'a LabelValue), Vec<usize>>,
    member_sets: BTreeMap<Vec<PodSelector>, (Rc<[usize]>, usize)>,
}

impl<'a> TermResolver<'a> {
    fn from_groups(groups: &'a [PodGroup], namespaces: &BTreeMap<Namespace, Labels>) -> Self {
        let mut by_label: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, group) in groups.iter().enumerate() {
            for pair in &group.shape.labels {
                by_label.entry(pair).or_default().push(index);
            }
        }
        let namespaces = NamespaceLabels::new(namespaces);
        Self { groups, namespaces, by_label, member_sets: BTreeMap::new() }
    }

    fn terms_of(&mut self, owner: usize) -> Vec<InterPodTerm> {
        let shape = std::sync::Arc::clone(&self.groups[owner].shape);
        let mut terms = Vec::new();
        let mut relate = |key: &LabelKey, (members, set), kind| {
            terms.push(InterPodTerm { owner, key: key.clone(), members, member_set: set, kind });
        };
        let affinity = &shape.affinity.required;
        // A pod counts only if every term selects it. A term that selects nothing leaves none.
        let all: Option<Vec<PodSelector>> =
            affinity.iter().map(|term| PodSelector::from_term(term, &shape)).collect();
        let mut keys: Vec<&LabelKey> = affinity.iter().map(|term| &term.topology_key).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            relate(key, self.members(all.clone().unwrap_or_default()), TermKind::Affinity);
        }
        for term in &shape.anti_affinity.required {
            let members = self.members(PodSelector::from_term(term, &shape).into_iter().collect());
            relate(&term.topology_key, members, TermKind::AntiAffinity);
        }
        for rule in &shape.spread {
            if rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule {
                let selection = PodSelector::from_spread(rule, &shape);
                let members = self.members(selection.into_iter().collect());
                let whole = |n: i32| u32::try_from(n).unwrap_or(0).max(1);
                let kind = TermKind::Spread {
                    max_skew: whole(rule.max_skew),
                    min_domains: whole(rule.min_domains.unwrap_or(1)),
                    honors_affinity: rule.node_affinity_policy == NodeInclusion::Honor,
                    honors_taints: rule.node_taints_policy == NodeInclusion::Honor,
                };
                relate(&rule.topology_key, members, kind);
            }
        }
        terms
    }

    /// Returns the groups that all selectors match, and the number of this set. No selector matches
    /// nothing.
    fn members(&mut self, selections: Vec<PodSelector>) -> (Rc<[usize]>, usize) {
        if let Some((members, set)) = self.member_sets.get(&selections) {
            return (Rc::clone(members), *set);
        }
        let matches = |group: &usize| {
            let shape = &self.groups[*group].shape;
            selections.iter().all(|selection| selection.matches(shape, &self.namespaces))
        };
        let label = selections.iter().find_map(PodSelector::one_label);
        let members: Vec<usize> = match (&label, selections.is_empty()) {
            (_, true) => Vec::new(),
            (Some((key, value)), false) => {
                let named = self.by_label.get(&(key, value)).into_iter().flatten().copied();
                named.filter(matches).collect()
            }
            (None, false) => (0..self.groups.len()).filter(matches).collect(),
        };
        let members: Rc<[usize]> = members.into();
        let set = self.member_sets.len();
        self.member_sets.insert(selections, (Rc::clone(&members), set));
        (members, set)
    }
}
