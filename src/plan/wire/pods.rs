//! What the pods come to: how many there are, where they go, and which find no place.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;
use crate::demand::{Counts, Decider, DemandMode, Sizing};
use crate::fargate::Size as FargateSize;
use crate::ids::{Address, Origin, WorkloadId};
use crate::solve::{KeptApart, Rejection, Unsteered};
use crate::units::MicroUsd;

/// A disruption budget of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionBudgetRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Pods that must stay, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<String>,
    /// Pods that may go, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
}

/// Totals over pods; `total = placed + unschedulable + fargate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PodTotals {
    /// Pods planned, DaemonSet pods excluded.
    pub total: u32,
    /// Pods with a place.
    pub placed: u32,
    /// Pods without.
    pub unschedulable: u32,
    /// Pods that need no node.
    pub fargate: u32,
    /// Workloads whose size is not known.
    pub unresolved: u32,
    /// Running pods that a retirement moves.
    pub moved: u32,
}

/// How the placement was found and tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// `unsteered` or `steered`.
    pub mode: String,
    /// Orders in which the placement was rehearsed.
    pub orders: Vec<String>,
    /// Price per hour of the tightest packing found.
    pub packed_hourly: MicroUsd,
    /// Of a steered plan: what would be missing if no nomination were honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsteered: Option<Unsteered>,
    /// Where `spec.failureDomains` limits what one node or zone may hold: what that comes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domains: Option<KeptApart>,
}

/// Pods of a workload that go to a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PlacementRow {
    /// Workload.
    pub workload: WorkloadId,
    /// The row of the node.
    pub address: Address,
    /// How many pods.
    pub pods: u32,
}

/// Pods without a place, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnschedulableRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How many pods.
    pub pods: u32,
    /// How many offerings were looked at.
    pub offerings: u32,
    /// How many of them each reason ruled out.
    pub reasons: Vec<Rejection>,
    /// The change that would help, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// What kube-scheduler evicts for some of them, which it then lets in all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionRow>,
    /// Placed pods that wait in their stead where they come first, by workload: the most in any
    /// order that was rehearsed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub displaces: BTreeMap<String, u32>,
}

/// What is evicted for pods that have no place otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvictionRow {
    /// How many of the pods are let in.
    pub lets_in: u32,
    /// The pods of lower priority that are evicted for them, by workload.
    pub evicts: BTreeMap<String, u32>,
}

/// A source whose size is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnresolvedRow {
    /// The object or source.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Why its size is not known.
    pub reason: String,
}

/// A workload's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DemandRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Who decides.
    pub decided_by: Decider,
    /// What each pod asks for.
    pub requests: Amount,
    /// What of it Fargate runs; absent where it runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateRow>,
    /// The vertical autoscaler that decides what its pods ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sized_by: Option<Sizing>,
    /// The rules of its pods that decide where they may run, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// What keeps one more of its pods off the planned nodes that hold none of them, and off how
    /// many of these; absent where the fleet is too large to ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Rejection>,
}

/// The pods of a workload that need no node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateRow {
    /// The profile that takes them; absent where only the world tells that Fargate runs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How many of the planned ones it takes.
    pub pods: u32,
    /// What each of them gets; absent where Fargate cannot run them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<FargateSize>,
}

/// The fleet that one count of every autoscaled workload needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeRow {
    /// Which count.
    pub mode: DemandMode,
    /// Nodes.
    pub nodes: u32,
    /// Their CPU, in thousandths of a core.
    pub cpu_milli: i64,
    /// Their memory, in bytes.
    pub memory_bytes: i64,
    /// Pods planned, DaemonSet pods excluded.
    pub pods: u32,
    /// Pods without a place.
    pub unschedulable: u32,
    /// Price per hour.
    pub hourly: MicroUsd,
}

/// A workload that runs on every node that admits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What each pod asks for.
    pub requests: Amount,
}
