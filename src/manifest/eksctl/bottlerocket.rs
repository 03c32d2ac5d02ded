//! Settings of Bottlerocket in a node group of eksctl, as far as they change what a node leaves for
//! pods.

use super::super::decode::{Field, FieldMap};
use super::super::karpenter::{bottlerocket_kubelet, canonical};
use crate::model::desired::{GroupKind, KubeletSettings};

/// Settings that eksctl refuses, and the fields of the group that it reads instead.
/// Sources: eksctl, `checkBottlerocketSettings` and `validateBottlerocketSettings`.
const REFUSED: [(&str, &str); 2] = [("node-labels", "labels"), ("node-taints", "taints")];

/// The same setting in a group that EKS does not manage.
const REFUSED_UNMANAGED: (&str, &str) = ("max-pods", "maxPodsPerNode");

/// Settings of a group that were read.
#[derive(Default)]
pub(super) struct BottlerocketSettings {
    pub(super) kubelet: KubeletSettings,
    /// Canonical text of all settings; empty without any.
    pub(super) text: String,
}

/// Reads `bottlerocket`.
pub(super) fn settings(field: &Field<'_>, kind: &GroupKind) -> BottlerocketSettings {
    let Some(map) = field.map() else { return BottlerocketSettings::default() };
    let Some(stated) = map.get("settings") else { return BottlerocketSettings::default() };
    let text = canonical(stated.node, stated.scope.vars, &[]);
    let of_kubernetes = stated.map().and_then(|stated| {
        let kubernetes = stated.get("kubernetes")?;
        Some(kubelet(&kubernetes.map()?, kind))
    });
    BottlerocketSettings { kubelet: of_kubernetes.unwrap_or_default(), text }
}

fn kubelet(map: &FieldMap<'_>, kind: &GroupKind) -> KubeletSettings {
    let unmanaged = (*kind != GroupKind::Managed).then_some(REFUSED_UNMANAGED);
    for (key, instead) in REFUSED.into_iter().chain(unmanaged) {
        if let Some(found) = map.get(key) {
            found.error("is refused by eksctl", format!("write it in `{instead}` of the group"));
        }
    }
    if let Some(found) = map.get("static-pods") {
        found.warn(
            "is not read: its pods take room that this plan counts as free",
            "state their requests in `kube-reserved`".to_owned(),
        );
    }
    bottlerocket_kubelet(map)
}
