//! Reasons of rows, and fallback offerings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;
use crate::model::ids::{Address, InstanceId, Shared, WorkloadKey};
use crate::model::reason::{
    Alternative, DriftedField, KeepReason, LaunchReason, Rejection, Relaxed, RetireReason,
};
use crate::model::units::MicroUsd;

/// Fallback offerings of one launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlternativesRow {
    /// The row of the launch.
    pub address: Address,
    /// The offerings, cheapest first.
    pub offerings: Vec<Alternative>,
}

/// Number of pods by workload. Most nodes of a large fleet do not change, so `pods` and
/// `pods_before` share one map.
pub type PodCounts = Shared<WorkloadKey, u32>;

/// Reason of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainRow {
    /// The row.
    pub address: Address,
    /// Name that the rows of one replacement share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The reason.
    pub reason: Reason,
    /// Reason of the retirement; present on rows that create and delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_reason: Option<RetireReason>,
    /// Change that is due on a retained row. It is the reason to replace or remove the node once
    /// this is allowed, or the changed bounds of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<RetireReason>,
    /// Every field in which the existing node differs from its pool and node class, manual changes
    /// included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<DriftedField>,
    /// Price per hour before the apply; absent if no instance ran or the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_before: Option<MicroUsd>,
    /// Price per hour after the apply; absent if no instance will run or the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_after: Option<MicroUsd>,
    /// True if the price after the apply is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Number of planned pods on the node by `namespace/kind/name`, without DaemonSet pods.
    pub pods: PodCounts,
    /// Number of pods that ran on the node, without DaemonSet pods and pods that are unschedulable
    /// in the plan.
    #[serde(default, skip_serializing_if = "PodCounts::is_empty")]
    pub pods_before: PodCounts,
    /// Requests of the DaemonSet pods on the node.
    pub daemons: Amount,
    /// Options that were considered and rejected.
    #[serde(default)]
    pub rejected: Vec<Rejection>,
    /// Names of the node overlays that changed the price or the capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// `minValues` requirements that the launch and its alternatives do not meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxed: Vec<Relaxed>,
}

impl ExplainRow {
    /// Returns the reason of a row without prices and pods.
    pub fn new(address: Address, reason: Reason) -> Self {
        Self {
            address,
            group: None,
            reason,
            retire_reason: None,
            drift: None,
            differences: Vec::new(),
            estimated: false,
            hourly_before: None,
            hourly_after: None,
            pods: PodCounts::default(),
            pods_before: PodCounts::default(),
            daemons: Amount::default(),
            rejected: Vec::new(),
            overlays: Vec::new(),
            relaxed: Vec::new(),
        }
    }
}

/// Reason of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Reason {
    /// Launch of a node.
    Launch {
        /// Reason.
        because: LaunchReason,
    },
    /// Removal of a node.
    Retire {
        /// Reason.
        because: RetireReason,
    },
    /// Resize of an Auto Scaling group.
    Resize {
        /// Number of launched members.
        launch: u32,
        /// Ids of the terminated members.
        terminate: Vec<InstanceId>,
    },
    /// No change of the node.
    Keep {
        /// Reason.
        because: KeepReason,
    },
}
