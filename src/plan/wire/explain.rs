//! Why each row is as it is, and which offerings may stand in for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;
use crate::ids::{Address, InstanceId, Shared, WorkloadKey};
use crate::solve::{Alternative, KeepReason, LaunchReason, Rejection, Relaxed, RetireReason};
use crate::units::MicroUsd;

/// Offerings that may stand in for one launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlternativesRow {
    /// The row of the launch.
    pub address: Address,
    /// The offerings, cheapest first.
    pub offerings: Vec<Alternative>,
}

/// How many pods of each workload: on most nodes of a large fleet nothing changes, and each would be told twice.
pub type PodCounts = Shared<WorkloadKey, u32>;

/// Why a row is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainRow {
    /// The row.
    pub address: Address,
    /// Name of the group of rows that replace each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The reason.
    pub reason: Reason,
    /// Why the rest of a replacement goes; present on rows that both create and delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_reason: Option<RetireReason>,
    /// In what a node that stays is not what its pool declares: as it was launched, so that it
    /// is to go once it may, or as somebody changed it since, which a report of drift tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<RetireReason>,
    /// Price per hour before; absent where nothing was, or where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_before: Option<MicroUsd>,
    /// Price per hour after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_after: Option<MicroUsd>,
    /// Whether the price after stands in for one that is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Planned pods on the node, DaemonSet pods excluded, by `namespace/kind/name`.
    pub pods: PodCounts,
    /// Pods that ran on the node, DaemonSet pods and pods without a place in the plan excluded.
    #[serde(default, skip_serializing_if = "PodCounts::is_empty")]
    pub pods_before: PodCounts,
    /// What DaemonSet pods take of the node.
    pub daemons: Amount,
    /// What was looked at and not taken.
    #[serde(default)]
    pub rejected: Vec<Rejection>,
    /// Names of the node overlays that changed its price or its capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// Demands for distinct values (`minValues`) that the launch and what may stand in for it do
    /// not meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxed: Vec<Relaxed>,
}

/// The reason of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Reason {
    /// Why it is launched.
    Launch {
        /// Reason.
        because: LaunchReason,
    },
    /// Why it goes.
    Retire {
        /// Reason.
        because: RetireReason,
    },
    /// Who comes to a group, and who goes.
    Resize {
        /// Members launched.
        launch: u32,
        /// Members that go, by id.
        terminate: Vec<InstanceId>,
    },
    /// Why it stays.
    Keep {
        /// Reason.
        because: KeepReason,
    },
}
