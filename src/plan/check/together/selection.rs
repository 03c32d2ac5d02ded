//! Whom a term or a constraint means: label selectors over pods, and the namespaces they look into.

use std::collections::{BTreeMap, BTreeSet};

use crate::demand::{PodShape, label_set};
use crate::ids::{LabelKey, LabelValue, Labels, Namespace};
use crate::plan::check::state::Crowd;
use crate::pod::{PodAffinityTerm, Selector, TopologySpread};
use crate::requirement::{LabelSet, Requirements, label};

/// The label by which every namespace carries its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Most values of a required label that are looked up one by one.
const LISTED_MAX: u64 = 16;

/// Pods of some namespaces whose labels meet requirements.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Selection {
    namespaces: BTreeSet<Namespace>,
    labels: Requirements,
}

/// Who is meant by each selection asked for so far.
pub(super) struct Census<'a> {
    crowds: &'a [Crowd],
    /// The namespaces that have pods, with their labels.
    namespaces: BTreeMap<&'a Namespace, Labels>,
    /// The crowds with a label.
    by_label: BTreeMap<(&'a LabelKey, &'a LabelValue), Vec<usize>>,
    index: BTreeMap<Selection, usize>,
    members: Vec<Vec<usize>>,
}

impl<'a> Census<'a> {
    /// Counts `crowds`; `declared` are the labels of namespaces.
    pub(super) fn of(crowds: &'a [Crowd], declared: &BTreeMap<Namespace, Labels>) -> Self {
        let mut namespaces = BTreeMap::new();
        let mut by_label: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, crowd) in crowds.iter().enumerate() {
            let PodShape { namespace, labels, .. } = &*crowd.shape;
            namespaces.entry(namespace).or_insert_with(|| {
                let mut labels = declared.get(namespace).cloned().unwrap_or_default();
                labels.extend([label(NAMESPACE_NAME, namespace.as_str())]);
                labels
            });
            for pair in labels {
                by_label.entry(pair).or_default().push(index);
            }
        }
        Self { crowds, namespaces, by_label, index: BTreeMap::new(), members: Vec::new() }
    }

    /// Returns the selection of a term of affinity or anti-affinity that pods of `shape` carry;
    /// `None` where it has no selector, which means nobody.
    ///
    /// Without namespaces and namespace selector a term looks into the pod's own namespace; an empty
    /// namespace selector means every namespace. A key of `matchLabelKeys` or `mismatchLabelKeys`
    /// that the pod does not have is passed over.
    pub(super) fn of_term(&mut self, term: &PodAffinityTerm, shape: &PodShape) -> Option<usize> {
        let mut labels = requirements(term.selector.as_ref()?);
        for (key, value) in held(&term.match_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value));
        }
        for (key, value) in held(&term.mismatch_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value).complement());
        }
        let by_labels = term.namespace_selector.as_ref().map(requirements);
        let namespaces = if term.namespaces.is_empty() && by_labels.is_none() {
            [shape.namespace.clone()].into()
        } else {
            let listed = |name: &Namespace| term.namespaces.iter().any(|n| n == name.as_str());
            let meant = |name: &Namespace, labels: &Labels| {
                listed(name) || by_labels.as_ref().is_some_and(|wanted| wanted.match_labels(labels))
            };
            let all = self.namespaces.iter().filter(|(name, labels)| meant(name, labels));
            all.map(|(name, _)| (*name).clone()).collect()
        };
        Some(self.intern(Selection { namespaces, labels }))
    }

    /// Returns the selection of a spread constraint that pods of `shape` carry; `None` where it has
    /// no selector, or an empty one: kube-scheduler counts no pod for either.
    pub(super) fn of_spread(&mut self, rule: &TopologySpread, shape: &PodShape) -> Option<usize> {
        let mut labels = requirements(rule.selector.as_ref()?);
        for (key, value) in held(&rule.match_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value));
        }
        if labels.is_unconstrained() {
            return None;
        }
        Some(self.intern(Selection { namespaces: [shape.namespace.clone()].into(), labels }))
    }

    /// Returns the crowds that `selection` means, ascending.
    pub(super) fn members(&self, selection: Option<usize>) -> &[usize] {
        selection.map_or(&[], |index| &self.members[index])
    }

    fn intern(&mut self, selection: Selection) -> usize {
        if let Some(index) = self.index.get(&selection) {
            return *index;
        }
        let members = self.look_up(&selection);
        self.members.push(members);
        self.index.insert(selection, self.members.len() - 1);
        self.members.len() - 1
    }

    fn look_up(&self, selection: &Selection) -> Vec<usize> {
        let meant = |index: &usize| {
            let shape = &self.crowds[*index].shape;
            selection.namespaces.contains(&shape.namespace)
                && selection.labels.match_labels(&shape.labels)
        };
        // A label that must have one of a few values leads to its few crowds.
        let listed = selection.labels.iter().find_map(|(key, set)| {
            let values = set.values().finite(LISTED_MAX).filter(|_| !set.allows_absence())?;
            let crowds = values.iter().filter_map(|value| self.by_label.get(&(key, value)));
            Some(crowds.flatten().copied().collect::<BTreeSet<usize>>())
        });
        match listed {
            Some(crowds) => crowds.into_iter().filter(meant).collect(),
            None => (0..self.crowds.len()).filter(meant).collect(),
        }
    }
}

fn requirements(selector: &Selector) -> Requirements {
    selector.0.iter().map(|expression| (expression.key.clone(), label_set(expression))).collect()
}

/// Returns those of `keys` that the pod has, with its values.
fn held<'a>(
    keys: &'a [LabelKey],
    shape: &'a PodShape,
) -> impl Iterator<Item = (&'a LabelKey, &'a LabelValue)> {
    keys.iter().filter_map(|key| Some((key, shape.labels.get(key)?)))
}
