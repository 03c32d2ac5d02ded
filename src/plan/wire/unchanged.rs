//! Unchanged rows, grouped by the properties that they share.
//!
//! Files with `--changes-only` contain them in place of rows. Readers restore the rows, so a plan
//! in memory never has groups.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, NodeState, PodCounts, Reason, ResourceKind};
use crate::model::ids::{Address, InstanceId, Labels, NodeName, Uid};
use crate::model::reason::{DriftedField, RetireReason};
use crate::model::units::MicroUsd;

/// Unchanged rows with equal properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnchangedGroup {
    /// `ec2_instance`, `kubernetes_node` or `autoscaling_group`.
    #[serde(rename = "type")]
    pub kind: ResourceKind,
    /// Pool, node or group name.
    pub name: String,
    /// Short reason from an open set of words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_reason: Option<String>,
    /// State before and after the apply, without the properties of single rows.
    pub state: NodeState,
    /// Reason of the rows.
    pub explain: UnchangedReason,
    /// The rows.
    pub rows: Vec<UnchangedRow>,
}

/// What `explain` says about the rows of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnchangedReason {
    /// The reason.
    pub reason: Reason,
    /// Change that is due on the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<RetireReason>,
    /// Every field in which the nodes differ from their pool and node class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<DriftedField>,
    /// Price per hour before the apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_before: Option<MicroUsd>,
    /// Price per hour after the apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_after: Option<MicroUsd>,
    /// True if the price after the apply is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Requests of the DaemonSet pods on each node.
    pub daemons: Amount,
    /// Names of the node overlays that changed the price or the capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
}

/// Properties of one unchanged row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnchangedRow {
    /// Address, unique within the plan.
    pub address: Address,
    /// Key within the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Instance id, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// Node name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Node UID, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<Uid>,
    /// Launch time of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_at: Option<Timestamp>,
    /// Labels that name the node or its instance. The other labels are those of the group.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Number of planned pods on the node by `namespace/kind/name`, without DaemonSet pods.
    #[serde(default, skip_serializing_if = "PodCounts::is_empty")]
    pub pods: PodCounts,
    /// Number of pods that ran on the node; absent if equal to `pods`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_before: Option<PodCounts>,
}
