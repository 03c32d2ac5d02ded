//! Admission of pods to nodes by name, labels and taints, as kube-scheduler and the DaemonSet
//! controller decide it.

use std::collections::BTreeSet;

use crate::demand::{PodGroup, PodShape};
use crate::model::ids::{LabelKey, Labels};
use crate::model::pod::{Taint, TaintEffect, untolerated};
use crate::model::units::Resources;

/// Taints that all DaemonSet pods tolerate: the DaemonSet controller adds these tolerations.
const DAEMON_SET_TOLERATIONS: [(&str, TaintEffect); 6] = [
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
    /// Node name; `None` before the node joins.
    pub(super) name: Option<&'a str>,
}

/// Returns the rule by which a node admits no pod of `group`, and the reason. A node must refuse
/// all parts of a group with partitions.
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

/// Returns the rule by which a node refuses a pod of `shape`, and the reason.
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
            choices.iter().filter_map(|choice| choice.unmatched(view.labels).next()).collect();
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

/// Returns whether a DaemonSet with pods of `shape` runs a pod on the node. A pod that requests more
/// than the allocatable resources of the node stays Pending.
pub(super) fn runs_daemon(
    shape: &PodShape,
    view: &AdmissionView<'_>,
    allocatable: &Resources,
) -> bool {
    if !shape.requests.exceeding(allocatable).is_empty() {
        return false;
    }
    let is_tolerated =
        |taint: &Taint| DAEMON_SET_TOLERATIONS.contains(&(taint.key.as_str(), taint.effect));
    if !view.taints.iter().any(is_tolerated) {
        return refusal(shape, view).is_none();
    }
    let taints: Vec<Taint> =
        view.taints.iter().filter(|taint| !is_tolerated(taint)).cloned().collect();
    refusal(shape, &AdmissionView { taints: &taints, ..*view }).is_none()
}
