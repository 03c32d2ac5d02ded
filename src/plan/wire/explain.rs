//! Reasons of rows, and fallback offerings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;
use crate::model::ids::{Address, InstanceId, Shared, WorkloadKey};
use crate::model::reason::{
    Alternative, KeepReason, LaunchReason, Rejection, Relaxed, RetireReason,
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

/// Number of pods by workload. On most nodes of a large fleet nothing changes, so `pods` and
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
    /// Difference between a retained node and its pool. Either its pool changed since the launch,
    /// so that it is replaced once that is allowed, or the node was changed by hand, which a drift
    /// report shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<RetireReason>,
    /// Price per hour before; absent where nothing ran or the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_before: Option<MicroUsd>,
    /// Price per hour after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_after: Option<MicroUsd>,
    /// Whether the price after is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Planned pods on the node, DaemonSet pods excluded, by `namespace/kind/name`.
    pub pods: PodCounts,
    /// Pods that ran on the node, without DaemonSet pods and pods that are unschedulable in the
    /// plan.
    #[serde(default, skip_serializing_if = "PodCounts::is_empty")]
    pub pods_before: PodCounts,
    /// Requests of the DaemonSet pods on the node.
    pub daemons: Amount,
    /// Options that were considered and rejected.
    #[serde(default)]
    pub rejected: Vec<Rejection>,
    /// Names of the node overlays that changed its price or its capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// `minValues` requirements that the launch and its alternatives do not meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxed: Vec<Relaxed>,
}

/// Reason of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Reason {
    /// The node is launched.
    Launch {
        /// Reason.
        because: LaunchReason,
    },
    /// The node is retired.
    Retire {
        /// Reason.
        because: RetireReason,
    },
    /// The group is resized.
    Resize {
        /// Members launched.
        launch: u32,
        /// Ids of the terminated members.
        terminate: Vec<InstanceId>,
    },
    /// The node is retained.
    Keep {
        /// Reason.
        because: KeepReason,
    },
}
