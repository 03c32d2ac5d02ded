//! Which pods a rule is about: selectors and namespaces, compiled once.

use std::collections::{BTreeMap, BTreeSet};

use super::Budget;
use crate::demand::PodShape;
use crate::ids::{LabelKey, LabelValue, Labels, Namespace, WorkloadId};
use crate::pod::{PodAffinityTerm, Selector, TopologySpread};
use crate::requirement::{LabelSet, Operator, Requirements, label};

/// The label that the API server gives every namespace: its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Labels of the namespaces, as namespace selectors see them.
#[derive(Debug, Clone)]
pub struct NamespaceLabels(BTreeMap<Namespace, Labels>);

impl NamespaceLabels {
    /// Returns the labels with what the API server adds to them.
    #[must_use]
    pub fn new(namespaces: &BTreeMap<Namespace, Labels>) -> Self {
        let named = |(namespace, labels): (&Namespace, &Labels)| {
            let mut labels = labels.clone();
            labels.extend([label(NAMESPACE_NAME, namespace.as_str())]);
            (namespace.clone(), labels)
        };
        Self(namespaces.iter().map(named).collect())
    }

    /// A namespace that nobody described has its name as its only label.
    fn satisfy(&self, namespace: &Namespace, selector: &Requirements) -> bool {
        let nameless = || [label(NAMESPACE_NAME, namespace.as_str())].into();
        self.0.get(namespace).map_or_else(
            || selector.match_labels(&nameless()),
            |labels| selector.match_labels(labels),
        )
    }
}

/// One selector with the namespaces it looks into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selection {
    namespaces: BTreeSet<Namespace>,
    by_namespace: Option<Requirements>,
    labels: Requirements,
}

impl Selection {
    /// Compiles a term of pod (anti-)affinity of a pod of `shape`; `None` where it selects nothing.
    ///
    /// The API server writes `matchLabelKeys` into the selector when a pod is created; narrowing
    /// it once more changes nothing, so templates and live pods can be treated alike.
    /// Source: `pkg/registry/core/pod/strategy.go`, `pkg/scheduler/framework/types.go`.
    #[must_use]
    pub fn of_term(term: &PodAffinityTerm, shape: &PodShape) -> Option<Self> {
        let mut labels = requirements(term.selector.as_ref()?);
        adopt(&mut labels, &term.match_label_keys, shape, LabelSet::one);
        adopt(&mut labels, &term.mismatch_label_keys, shape, |v| LabelSet::one(v).complement());
        let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
        let namespaces = if own {
            [shape.namespace.clone()].into()
        } else {
            term.namespaces.iter().map(|name| Namespace::from(name.as_str())).collect()
        };
        let by_namespace = term.namespace_selector.as_ref().map(requirements);
        Some(Self { namespaces, by_namespace, labels })
    }

    /// Compiles the pods that a spread constraint of a pod of `shape` counts.
    ///
    /// An empty selector counts no pod, although it would match every pod.
    /// Source: `pkg/scheduler/framework/plugins/podtopologyspread/common.go`.
    #[must_use]
    pub fn of_spread(constraint: &TopologySpread, shape: &PodShape) -> Option<Self> {
        let mut labels = requirements(constraint.selector.as_ref()?);
        adopt(&mut labels, &constraint.match_label_keys, shape, LabelSet::one);
        if labels.is_unconstrained() {
            return None;
        }
        Some(Self { namespaces: [shape.namespace.clone()].into(), by_namespace: None, labels })
    }

    /// Compiles the pods of a disruption budget; one without expressions has none.
    #[must_use]
    pub fn of_budget(budget: &Budget) -> Option<Self> {
        let labels = requirements(&budget.selector);
        let namespaces = [budget.namespace.clone()].into();
        let any = !labels.is_unconstrained();
        any.then_some(Self { namespaces, by_namespace: None, labels })
    }

    fn anchor(&self) -> Anchor {
        let only = |(key, set): (&LabelKey, &LabelSet)| {
            let [value] = set.values().finite(1)?.try_into().ok()?;
            (!set.allows_absence()).then(|| Anchor::Label(key.clone(), value))
        };
        let home = || {
            let only = self.by_namespace.is_none() && self.namespaces.len() == 1;
            self.namespaces.first().filter(|_| only).cloned().map(Anchor::Home)
        };
        self.labels.iter().find_map(only).or_else(home).unwrap_or(Anchor::Pod)
    }

    /// Returns a label that every selected pod has, where one is plain to see.
    #[must_use]
    pub fn one_label(&self) -> Option<(LabelKey, LabelValue)> {
        match self.anchor() {
            Anchor::Label(key, value) => Some((key, value)),
            Anchor::Owner(_) | Anchor::Home(_) | Anchor::Pod => None,
        }
    }

    /// Returns whether the selection is of pods such as these.
    #[must_use]
    pub fn matches(&self, shape: &PodShape, namespaces: &NamespaceLabels) -> bool {
        let inside = self.namespaces.contains(&shape.namespace)
            || self.by_namespace.as_ref().is_some_and(|s| namespaces.satisfy(&shape.namespace, s));
        inside && self.labels.match_labels(&shape.labels)
    }
}

/// The pods that a rule counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodSet {
    /// Pods that every selection matches; without selections, no pod.
    Selected(Vec<Selection>),
    /// Pods of one workload with the same labels: what the selector of their ReplicaSet or
    /// StatefulSet matches.
    Siblings(WorkloadId, Labels),
}

impl PodSet {
    pub(super) fn one(selection: Option<Selection>) -> Self {
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

    /// Returns what all pods in the set have in common, as narrow as is easily known.
    pub(super) fn anchor(&self) -> Anchor {
        match self {
            Self::Selected(selections) => {
                let anchors = selections.iter().map(Selection::anchor);
                anchors.min().unwrap_or(Anchor::Pod)
            }
            Self::Siblings(workload, _) => Anchor::Owner(workload.clone()),
        }
    }
}

/// What pods of a set have in common: sets and pods find each other by it, so that not every pod
/// has to be held against every set. The narrowest come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Anchor {
    /// Their workload.
    Owner(WorkloadId),
    /// A label with its value.
    Label(LabelKey, LabelValue),
    /// Their namespace.
    Home(Namespace),
    /// Nothing.
    Pod,
}

impl Anchor {
    /// Returns the anchors of every set that a pod may be in.
    pub(super) fn of_pod(shape: &PodShape, owner: Option<&WorkloadId>) -> Vec<Self> {
        let labels =
            shape.labels.iter().map(|(key, value)| Self::Label(key.clone(), value.clone()));
        let owner = owner.cloned().map(Self::Owner);
        let rest = [Self::Home(shape.namespace.clone()), Self::Pod];
        labels.chain(owner).chain(rest).collect()
    }
}

/// Compiles a label selector. An expression that is not valid, which the API server never lets
/// through, matches no pod rather than every pod.
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

/// Narrows `labels` for each of `keys` that the pod has, by what `set` makes of its value.
fn adopt(
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
