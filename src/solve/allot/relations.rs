//! Which groups a group's terms and constraints speak of.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::is_placeable;
use crate::demand::PodGroup;
use crate::ids::{LabelKey, LabelValue, Labels, Namespace};
use crate::pod::{NodeInclusion, WhenUnsatisfiable};
use crate::schedule::{NamespaceLabels, Selection};

/// A required term of one group.
#[derive(Debug, Clone)]
pub(in super::super) struct Relation {
    /// The group whose term it is.
    pub carrier: usize,
    /// The label that makes the domains.
    pub key: LabelKey,
    /// The groups that it selects, in order.
    pub members: Rc<[usize]>,
    /// The number of this set of groups: terms that select the same share it.
    pub set: usize,
    /// What it requires.
    pub kind: Kind,
}

/// What a term requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    /// A selected pod in the same domain.
    Near,
    /// No selected pod in the same domain.
    Apart,
    /// Selected pods spread evenly over domains.
    Spread {
        /// Most pods above the least.
        max_skew: u32,
        /// Fewest domains before the least counts.
        min_domains: u32,
        /// Whether only domains count that the pod's node affinity allows.
        honors_affinity: bool,
        /// Whether only domains count whose taints the pod tolerates.
        honors_taints: bool,
    },
}

/// Returns what the pods to place require of each other.
pub(super) fn relations(
    groups: &[PodGroup],
    namespaces: &BTreeMap<Namespace, Labels>,
) -> Vec<Relation> {
    let carriers: Vec<usize> = (0..groups.len()).filter(|g| has_rules(&groups[*g])).collect();
    if carriers.is_empty() {
        return Vec::new();
    }
    let mut selector = Selector::of(groups, namespaces);
    carriers.into_iter().flat_map(|carrier| selector.relations_of(carrier)).collect()
}

fn has_rules(group: &PodGroup) -> bool {
    let shape = &group.shape;
    let hard = |rule: &crate::pod::TopologySpread| {
        rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
    };
    let terms = !shape.affinity.required.is_empty() || !shape.anti_affinity.required.is_empty();
    is_placeable(group) && (terms || shape.spread.iter().any(hard))
}

/// Finds the groups that selections match.
struct Selector<'a> {
    groups: &'a [PodGroup],
    namespaces: NamespaceLabels,
    /// Groups by each of their labels, so that few have to be looked at.
    by_label: BTreeMap<(&'a LabelKey, &'a LabelValue), Vec<usize>>,
    known: BTreeMap<Vec<Selection>, (Rc<[usize]>, usize)>,
}

impl<'a> Selector<'a> {
    fn of(groups: &'a [PodGroup], namespaces: &BTreeMap<Namespace, Labels>) -> Self {
        let mut by_label: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, group) in groups.iter().enumerate() {
            for pair in &group.shape.labels {
                by_label.entry(pair).or_default().push(index);
            }
        }
        let namespaces = NamespaceLabels::new(namespaces);
        Self { groups, namespaces, by_label, known: BTreeMap::new() }
    }

    fn relations_of(&mut self, carrier: usize) -> Vec<Relation> {
        let shape = std::sync::Arc::clone(&self.groups[carrier].shape);
        let mut relations = Vec::new();
        let mut relate = |key: &LabelKey, (members, set), kind| {
            relations.push(Relation { carrier, key: key.clone(), members, set, kind });
        };
        let near = &shape.affinity.required;
        // A pod counts only if every term selects it; one term that selects nothing leaves none.
        let all: Option<Vec<Selection>> =
            near.iter().map(|term| Selection::of_term(term, &shape)).collect();
        let mut keys: Vec<&LabelKey> = near.iter().map(|term| &term.topology_key).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            relate(key, self.members(all.clone().unwrap_or_default()), Kind::Near);
        }
        for term in &shape.anti_affinity.required {
            let members = self.members(Selection::of_term(term, &shape).into_iter().collect());
            relate(&term.topology_key, members, Kind::Apart);
        }
        for rule in &shape.spread {
            if rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule {
                let selection = Selection::of_spread(rule, &shape);
                let members = self.members(selection.into_iter().collect());
                let whole = |n: i32| u32::try_from(n).unwrap_or(0).max(1);
                let kind = Kind::Spread {
                    max_skew: whole(rule.max_skew),
                    min_domains: whole(rule.min_domains.unwrap_or(1)),
                    honors_affinity: rule.node_affinity_policy == NodeInclusion::Honor,
                    honors_taints: rule.node_taints_policy == NodeInclusion::Honor,
                };
                relate(&rule.topology_key, members, kind);
            }
        }
        relations
    }

    /// Returns the groups that every one of these matches, with the number of the set; none of
    /// them matches nothing.
    fn members(&mut self, selections: Vec<Selection>) -> (Rc<[usize]>, usize) {
        if let Some((members, set)) = self.known.get(&selections) {
            return (Rc::clone(members), *set);
        }
        let matches = |group: &usize| {
            let shape = &self.groups[*group].shape;
            selections.iter().all(|selection| selection.matches(shape, &self.namespaces))
        };
        let label = selections.iter().find_map(Selection::one_label);
        let members: Vec<usize> = match (&label, selections.is_empty()) {
            (_, true) => Vec::new(),
            (Some((key, value)), false) => {
                let named = self.by_label.get(&(key, value)).into_iter().flatten().copied();
                named.filter(matches).collect()
            }
            (None, false) => (0..self.groups.len()).filter(matches).collect(),
        };
        let members: Rc<[usize]> = members.into();
        let set = self.known.len();
        self.known.insert(selections, (Rc::clone(&members), set));
        (members, set)
    }
}
