//! Index of pods by label selector and namespace, for affinity terms and spread constraints.

use std::collections::{BTreeMap, BTreeSet};

use crate::demand::{PodShape, label_set};
use crate::model::ids::{LabelKey, LabelValue, Labels, Namespace};
use crate::model::pod::{PodAffinityTerm, Selector, TopologySpread};
use crate::model::requirement::{LabelSet, Requirements, label};
use crate::plan::verify::end_state::PodSet;

/// Label with the name of a namespace, which every namespace has.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Maximum number of values of a required label that are looked up in the index.
const LISTED_MAX: u64 = 16;

/// Pods of some namespaces whose labels meet requirements.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PodSelection {
    namespaces: BTreeSet<Namespace>,
    labels: Requirements,
}

/// Pod sets, with cached selections.
pub(super) struct PodIndex<'a> {
    pod_sets: &'a [PodSet],
    /// Namespaces with pods, and the labels of these namespaces.
    namespaces: BTreeMap<&'a Namespace, Labels>,
    /// Pod sets by label.
    by_label: BTreeMap<(&'a LabelKey, &'a LabelValue), Vec<usize>>,
    index: BTreeMap<PodSelection, usize>,
    members: Vec<Vec<usize>>,
}

impl<'a> PodIndex<'a> {
    /// Indexes `pod_sets`; `declared` has the labels of namespaces.
    pub(super) fn new(pod_sets: &'a [PodSet], declared: &BTreeMap<Namespace, Labels>) -> Self {
        let mut namespaces = BTreeMap::new();
        let mut by_label: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, pod_set) in pod_sets.iter().enumerate() {
            let PodShape { namespace, labels, .. } = &*pod_set.shape;
            namespaces.entry(namespace).or_insert_with(|| {
                let mut labels = declared.get(namespace).cloned().unwrap_or_default();
                labels.extend([label(NAMESPACE_NAME, namespace.as_str())]);
                labels
            });
            for pair in labels {
                by_label.entry(pair).or_default().push(index);
            }
        }
        Self { pod_sets, namespaces, by_label, index: BTreeMap::new(), members: Vec::new() }
    }

    /// Returns the selection of an affinity or anti-affinity term of pods of `shape`; `None`
    /// without a selector, which matches no pod.
    ///
    /// Without namespaces and namespace selector, a term applies to the namespace of the pod. An
    /// empty namespace selector matches every namespace. A key of `matchLabelKeys` or
    /// `mismatchLabelKeys` that the pod does not have is ignored.
    pub(super) fn select_term(
        &mut self,
        term: &PodAffinityTerm,
        shape: &PodShape,
    ) -> Option<usize> {
        let mut labels = requirements(term.selector.as_ref()?);
        for (key, value) in present_keys(&term.match_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value));
        }
        for (key, value) in present_keys(&term.mismatch_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value).complement());
        }
        let by_labels = term.namespace_selector.as_ref().map(requirements);
        let namespaces = if term.namespaces.is_empty() && by_labels.is_none() {
            [shape.namespace.clone()].into()
        } else {
            let listed = |name: &Namespace| term.namespaces.iter().any(|n| n == name.as_str());
            let is_selected = |name: &Namespace, labels: &Labels| {
                listed(name)
                    || by_labels.as_ref().is_some_and(|wanted| wanted.matches_labels(labels))
            };
            let all = self.namespaces.iter().filter(|(name, labels)| is_selected(name, labels));
            all.map(|(name, _)| (*name).clone()).collect()
        };
        Some(self.intern(PodSelection { namespaces, labels }))
    }

    /// Returns the selection of a spread constraint of pods of `shape`; `None` without a selector
    /// or with an empty one, for which kube-scheduler counts no pod.
    pub(super) fn select_spread(
        &mut self,
        rule: &TopologySpread,
        shape: &PodShape,
    ) -> Option<usize> {
        let mut labels = requirements(rule.selector.as_ref()?);
        for (key, value) in present_keys(&rule.match_label_keys, shape) {
            labels.add(key.clone(), &LabelSet::one(value));
        }
        if labels.is_unconstrained() {
            return None;
        }
        Some(self.intern(PodSelection { namespaces: [shape.namespace.clone()].into(), labels }))
    }

    /// Returns the pod sets that `selection` matches, ascending.
    pub(super) fn members(&self, selection: Option<usize>) -> &[usize] {
        selection.map_or(&[], |index| &self.members[index])
    }

    fn intern(&mut self, selection: PodSelection) -> usize {
        if let Some(index) = self.index.get(&selection) {
            return *index;
        }
        let members = self.look_up(&selection);
        self.members.push(members);
        self.index.insert(selection, self.members.len() - 1);
        self.members.len() - 1
    }

    fn look_up(&self, selection: &PodSelection) -> Vec<usize> {
        let is_selected = |index: &usize| {
            let shape = &self.pod_sets[*index].shape;
            selection.namespaces.contains(&shape.namespace)
                && selection.labels.matches_labels(&shape.labels)
        };
        // A label with few allowed values narrows the candidates.
        let listed = selection.labels.iter().find_map(|(key, set)| {
            let values = set.values().finite(LISTED_MAX).filter(|_| !set.allows_absence())?;
            let pod_sets = values.iter().filter_map(|value| self.by_label.get(&(key, value)));
            Some(pod_sets.flatten().copied().collect::<BTreeSet<usize>>())
        });
        match listed {
            Some(pod_sets) => pod_sets.into_iter().filter(is_selected).collect(),
            None => (0..self.pod_sets.len()).filter(is_selected).collect(),
        }
    }
}

fn requirements(selector: &Selector) -> Requirements {
    selector.0.iter().map(|expression| (expression.key.clone(), label_set(expression))).collect()
}

/// Returns those of `keys` that the pod has, with their values.
fn present_keys<'a>(
    keys: &'a [LabelKey],
    shape: &'a PodShape,
) -> impl Iterator<Item = (&'a LabelKey, &'a LabelValue)> {
    keys.iter().filter_map(|key| Some((key, shape.labels.get(key)?)))
}
