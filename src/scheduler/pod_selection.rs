//! Pod selectors of rules: label selectors and namespaces, compiled once.

use std::collections::{BTreeMap, BTreeSet};

use super::EvictionBudget;
use crate::demand::PodShape;
use crate::model::ids::{LabelKey, LabelValue, Labels, Namespace, WorkloadId};
use crate::model::pod::{PodAffinityTerm, Selector, TopologySpread};
use crate::model::requirement::{LabelSet, Operator, Requirements, label};

/// The label with which the API server marks every namespace: its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Labels of namespaces, as namespace selectors see them.
#[derive(Debug, Clone)]
pub struct NamespaceLabels(BTreeMap<Namespace, Labels>);

impl NamespaceLabels {
    /// Returns the labels with the labels that the API server adds.
    pub fn new(namespaces: &BTreeMap<Namespace, Labels>) -> Self {
        let named = |(namespace, labels): (&Namespace, &Labels)| {
            let mut labels = labels.clone();
            labels.extend([label(NAMESPACE_NAME, namespace.as_str())]);
            (namespace.clone(), labels)
        };
        Self(namespaces.iter().map(named).collect())
    }

    /// An unknown namespace has its name as its only label.
    fn matches(&self, namespace: &Namespace, selector: &Requirements) -> bool {
        let nameless = || [label(NAMESPACE_NAME, namespace.as_str())].into();
        self.0.get(namespace).map_or_else(
            || selector.matches_labels(&nameless()),
            |labels| selector.matches_labels(labels),
        )
    }
}

/// A label selector with its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSelector {
    namespaces: BTreeSet<Namespace>,
    by_namespace: Option<Requirements>,
    labels: Requirements,
}

impl PodSelector {
    /// Compiles a term of pod (anti-)affinity of a pod of `shape`; `None` if it selects nothing.
    ///
    /// The API server merges `matchLabelKeys` into the selector when a pod is created. Merging them
    /// again changes nothing, so templates and running pods are treated equally. Source:
    /// `pkg/registry/core/pod/strategy.go`, `pkg/scheduler/framework/types.go`.
    pub fn from_term(term: &PodAffinityTerm, shape: &PodShape) -> Option<Self> {
        let mut labels = requirements(term.selector.as_ref()?);
        apply_label_keys(&mut labels, &term.match_label_keys, shape, LabelSet::one);
        apply_label_keys(&mut labels, &term.mismatch_label_keys, shape, |v| {
            LabelSet::one(v).complement()
        });
        let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
        let namespaces = if own {
            [shape.namespace.clone()].into()
        } else {
            term.namespaces.iter().map(|name| Namespace::from(name.as_str())).collect()
        };
        let by_namespace = term.namespace_selector.as_ref().map(requirements);
        Some(Self { namespaces, by_namespace, labels })
    }

    /// Compiles the selector of a spread constraint of a pod of `shape`.
    ///
    /// An empty selector counts no pod, although it would match every pod. Source:
    /// `pkg/scheduler/framework/plugins/podtopologyspread/common.go`.
    pub fn from_spread(constraint: &TopologySpread, shape: &PodShape) -> Option<Self> {
        let mut labels = requirements(constraint.selector.as_ref()?);
        apply_label_keys(&mut labels, &constraint.match_label_keys, shape, LabelSet::one);
        if labels.is_unconstrained() {
            return None;
        }
        Some(Self { namespaces: [shape.namespace.clone()].into(), by_namespace: None, labels })
    }

    /// Compiles the selector of a disruption budget; `None` without expressions.
    pub fn from_budget(budget: &EvictionBudget) -> Option<Self> {
        let labels = requirements(&budget.selector);
        let namespaces = [budget.namespace.clone()].into();
        let any = !labels.is_unconstrained();
        any.then_some(Self { namespaces, by_namespace: None, labels })
    }

    fn lookup_key(&self) -> LookupKey {
        let only = |(key, set): (&LabelKey, &LabelSet)| {
            let [value] = set.values().finite(1)?.try_into().ok()?;
            (!set.allows_absence()).then(|| LookupKey::Label(key.clone(), value))
        };
        let home = || {
            let only = self.by_namespace.is_none() && self.namespaces.len() == 1;
            self.namespaces.first().filter(|_| only).cloned().map(LookupKey::Namespace)
        };
        self.labels.iter().find_map(only).or_else(home).unwrap_or(LookupKey::Any)
    }

    /// Returns a label that every selected pod has, if one is explicit.
    pub fn one_label(&self) -> Option<(LabelKey, LabelValue)> {
        match self.lookup_key() {
            LookupKey::Label(key, value) => Some((key, value)),
            LookupKey::Owner(_) | LookupKey::Namespace(_) | LookupKey::Any => None,
        }
    }

    /// Returns true if the selector matches pods of `shape`.
    pub fn matches(&self, shape: &PodShape, namespaces: &NamespaceLabels) -> bool {
        let inside = self.namespaces.contains(&shape.namespace)
            || self.by_namespace.as_ref().is_some_and(|s| namespaces.matches(&shape.namespace, s));
        inside && self.labels.matches_labels(&shape.labels)
    }
}

/// Pods that a rule counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodSet {
    /// Pods that every selector matches; without selectors, no pod.
    Selected(Vec<PodSelector>),
    /// Pods of one workload with equal labels, as the selector of their ReplicaSet or StatefulSet
    /// matches them.
    Siblings(WorkloadId, Labels),
}

impl PodSet {
    pub(super) fn one(selection: Option<PodSelector>) -> Self {
        Self::Selected(selection.into_iter().collect())
    }

    pub(super) fn matches(
        &self,
        shape: &PodShape,
        owner: Option<&WorkloadId>,
        namespaces: &NamespaceLabels,
    ) -> bool {
        match self {
            Self::Selected(selections) => {
                !selections.is_empty() && selections.iter().all(|s| s.matches(shape, namespaces))
            }
            Self::Siblings(workload, labels) => {
                owner == Some(workload)
                    && workload.namespace == shape.namespace
                    && *labels == shape.labels
            }
        }
    }

    /// Returns the narrowest known property that all pods of the set share.
    pub(super) fn lookup_key(&self) -> LookupKey {
        match self {
            Self::Selected(selections) => {
                let anchors = selections.iter().map(PodSelector::lookup_key);
                anchors.min().unwrap_or(LookupKey::Any)
            }
            Self::Siblings(workload, _) => LookupKey::Owner(workload.clone()),
        }
    }
}

/// Key by which sets and pods find each other: a property that all pods of a set share. It avoids
/// checking every pod against every set. The narrowest keys come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LookupKey {
    /// Workload.
    Owner(WorkloadId),
    /// Label with its value.
    Label(LabelKey, LabelValue),
    /// Namespace.
    Namespace(Namespace),
    /// Any pod.
    Any,
}

impl LookupKey {
    /// Returns the keys of every set that a pod may be in.
    pub(super) fn all_of_pod(shape: &PodShape, owner: Option<&WorkloadId>) -> Vec<Self> {
        let labels =
            shape.labels.iter().map(|(key, value)| Self::Label(key.clone(), value.clone()));
        let owner = owner.cloned().map(Self::Owner);
        let rest = [Self::Namespace(shape.namespace.clone()), Self::Any];
        labels.chain(owner).chain(rest).collect()
    }
}

/// Compiles a label selector. An invalid expression, which the API server rejects, matches no pod
/// instead of every pod.
fn requirements(selector: &Selector) -> Requirements {
    let compile = |operator: Operator, values: &[&str]| {
        LabelSet::from_operator(operator, values).unwrap_or_else(|_| LabelSet::all().complement())
    };
    let expressions = selector.0.iter().map(|expression| {
        let values: Vec<&str> = expression.values.iter().map(LabelValue::as_str).collect();
        (expression.key.clone(), compile(expression.operator, &values))
    });
    expressions.collect()
}

/// Narrows `labels` for each of `keys` on the pod, by the set that `set` returns for its value.
fn apply_label_keys(
    labels: &mut Requirements,
    keys: &[LabelKey],
    shape: &PodShape,
    set: impl Fn(&LabelValue) -> LabelSet,
) {
    for key in keys {
        if let Some(value) = shape.labels.get(key) {
            labels.add(key.clone(), &set(value));
        }
    }
}
