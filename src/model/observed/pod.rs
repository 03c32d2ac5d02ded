//! Observed pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{Namespace, NodeName, Uid, WorkloadId, WorkloadKind};
use crate::model::pod::ResourceList;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Uid,
    /// Workload at the top of the chain of owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<WorkloadId>,
    /// Key of the pod template in [`Observed::templates`](super::Observed::templates).
    pub template: Arc<str>,
    /// Node to which the pod is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Node that kube-scheduler tries first for the pod (`status.nominatedNodeName`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominated: Option<NodeName>,
    /// Phase.
    pub phase: PodPhase,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time at which the kubelet accepted the pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which the pod became ready; `None` if it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost`: surplus pods of a lower cost are
    /// deleted first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deletion_cost: i32,
    /// True if the pod is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// True for a mirror pod, which the kubelet creates from a file on the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Requests by container after an in-place resize: the larger of `allocatedResources` and
    /// `resources` in the status. Empty if they equal the requests of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub granted: BTreeMap<String, ResourceList>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(cost: &i32) -> bool {
    *cost == 0
}

impl Pod {
    /// Returns the owner of the pod, or the pod itself if it has no owner.
    pub fn workload(&self) -> WorkloadId {
        let itself = || WorkloadId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            kind: WorkloadKind::Pod,
        };
        self.owner.clone().unwrap_or_else(itself)
    }

    /// Returns true if the pod needs capacity: it is pending or running, and not terminating.
    pub fn is_active(&self) -> bool {
        !self.terminating && matches!(self.phase, PodPhase::Pending | PodPhase::Running)
    }
}

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodPhase {
    /// The pod is not bound yet, or its containers have not started.
    Pending,
    /// At least one container has started.
    Running,
    /// The pod finished successfully.
    Succeeded,
    /// The pod finished with a failure.
    Failed,
}
