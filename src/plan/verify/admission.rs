//! Whether a node admits a pod by name, labels and taints, as kube-scheduler and the DaemonSet
//! controller decide.

use std::collections::BTreeSet;

use crate::demand::{PodGroup, PodShape};
use crate::model::ids::{LabelKey, Labels};
use crate::model::pod::{Taint, TaintEffect, untolerated};

/// Taints that the DaemonSet controller makes its pods tolerate.
const DAEMONS_TOLERATE: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
];

/// Properties of a node after the plan that decide admission. Startup taints are removed by then.
#[derive(Clone, Copy)]
pub(super) struct AdmissionView<'a> {
    pub(super) labels: &'a Labels,
    pub(super) taints: &'a [Taint],
    /// Its name, if it has one already.
    pub(super) name: Option<&'a str>,
}

/// Returns the rule by which a node admits no pod of `group`, and the reason. If its pods differ,
/// the node must refuse all parts.
pub(super) fn refusal_of(
    group: &PodGroup,
    view: &AdmissionView<'_>,
) -> Option<(&'static str, String)> {
    let mut parts = group.partitions.iter().map(|part| refusal(&part.shape, view));
    match parts.next() {
        None => refusal(&group.shape, view),
        Some(first) => first.filter(|_| parts.all(|refused| refused.is_some())),
    }
}

/// Returns the rule by which a node does not admit such a pod, and the reason.
pub(super) fn refusal(
    shape: &PodShape,
    view: &AdmissionView<'_>,
) -> Option<(&'static str, String)> {
    if let Some(name) = shape.nodes.name.as_deref()
        && view.name != Some(name)
    {
        return Some(("fit/node-name", format!("it requires node {name}")));
    }
    let choices = &shape.nodes.any_of;
    if !choices.iter().any(|choice| choice.matches_labels(view.labels)) {
        let keys: BTreeSet<_> =
            choices.iter().filter_map(|choice| choice.unmatched(view.labels)).collect();
        let keys: Vec<_> = keys.into_iter().map(LabelKey::as_str).collect();
        let why = match keys.as_slice() {
            [] => "its node affinity matches no node".to_owned(),
            keys => format!("label {} of the node does not match", keys.join(", ")),
        };
        return Some(("fit/labels", why));
    }
    let Taint { key, value, effect } = untolerated(view.taints, &shape.tolerations)?;
    Some(("fit/taints", format!("it does not tolerate the taint {key}={value}:{effect:?}")))
}

/// Returns whether a DaemonSet with pods of `shape` runs one on the node.
pub(super) fn runs_daemon(shape: &PodShape, view: &AdmissionView<'_>) -> bool {
    let stood = |taint: &Taint| DAEMONS_TOLERATE.contains(&(taint.key.as_str(), taint.effect));
    if !view.taints.iter().any(stood) {
        return refusal(shape, view).is_none();
    }
    let taints: Vec<Taint> = view.taints.iter().filter(|taint| !stood(taint)).cloned().collect();
    refusal(shape, &AdmissionView { taints: &taints, ..*view }).is_none()
}
