//! Pods of a plan: their counts, their placements, and the unschedulable ones.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, PlacementMode};
use crate::demand::{Counts, Decider, DemandMode, Sizing};
use crate::model::fargate::FargateSize;
use crate::model::ids::{Address, Origin, WorkloadId};
use crate::model::reason::{Contingency, FailureDomainReport, Rejection, Unsteered};
use crate::model::units::MicroUsd;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A disruption budget of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionBudgetRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Pods that must stay available, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<String>,
    /// Pods that may be unavailable, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
}

/// Totals over pods; `total = placed + unschedulable + served_by_cluster_autoscaler + fargate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PodTotals {
    /// Number of planned pods, without DaemonSet pods.
    pub total: u32,
    /// Number of schedulable pods.
    pub placed: u32,
    /// Number of unschedulable pods.
    pub unschedulable: u32,
    /// Number of pods for which Cluster Autoscaler scales up a node group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub served_by_cluster_autoscaler: u32,
    /// Number of pods that run on Fargate.
    pub fargate: u32,
    /// Number of workloads of unknown size.
    pub unresolved: u32,
    /// Number of running pods that removals of nodes move.
    pub moved: u32,
}

impl PodTotals {
    /// Returns the number of pods that no node of the plan has room for.
    pub fn without_node(&self) -> u32 {
        self.unschedulable.saturating_add(self.served_by_cluster_autoscaler)
    }
}

/// Method and simulation of the placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// `unsteered` or `steered`.
    pub mode: PlacementMode,
    /// Scheduling orders in which the placement was simulated.
    pub orders: Vec<String>,
    /// Price per hour of the tightest packing found.
    pub packed_hourly: MicroUsd,
    /// For a steered plan: the shortage without nominations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsteered: Option<Unsteered>,
    /// Further nodes for pods that stay pending once the planned nodes are open. The digest covers
    /// them, so an approval of the plan approves them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contingency: Option<Contingency>,
    /// Effect of the limits of `spec.failureDomains` on nodes and zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domains: Option<FailureDomainReport>,
}

/// Pods of a workload that are placed on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PlacementRow {
    /// Workload.
    pub workload: WorkloadId,
    /// The row of the node.
    pub address: Address,
    /// Number of pods.
    pub pods: u32,
}

/// Unschedulable pods of a workload, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnschedulableRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Number of pods.
    pub pods: u32,
    /// Number of offerings that were considered.
    pub offerings: u32,
    /// Number of offerings that each reason ruled out.
    pub reasons: Vec<Rejection>,
    /// Suggested change, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Pods of lower priority that kube-scheduler evicts to schedule some of these pods after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionRow>,
    /// Placed pods that stay pending if these pods are scheduled first, by workload: the maximum
    /// over all simulated orders.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub displaces: BTreeMap<String, u32>,
}

/// A node group that Cluster Autoscaler scales up for pods without a node. Fleetwright does not
/// change the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AutoscalerGrowthRow {
    /// The row of the group.
    pub address: Address,
    /// Deployment of Cluster Autoscaler, as `namespace/name`.
    pub autoscaler: String,
    /// Number of nodes that the pods need.
    pub nodes: u32,
    /// Maximum number of nodes of the group.
    pub maximum: u32,
    /// Price per hour of the nodes, if it is known. The cost of the plan does not include it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<MicroUsd>,
    /// Number of pods, by workload.
    pub pods: BTreeMap<String, u32>,
    /// Rows of groups that the expander may choose instead.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub instead: BTreeSet<Address>,
}

/// Pods that are evicted for otherwise unschedulable pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvictionRow {
    /// Number of pods that are scheduled after the evictions.
    pub lets_in: u32,
    /// Evicted pods of lower priority, by workload.
    pub evicts: BTreeMap<String, u32>,
}

/// A workload or source of unknown size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnresolvedRow {
    /// The object or source.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Reason why its size is unknown.
    pub reason: String,
    /// Number of running pods that carry the marks of the source. They keep their capacity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub running: u32,
}

/// Demand of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DemandRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Numbers of pods.
    #[serde(flatten)]
    pub counts: Counts,
    /// Source of the planned count.
    pub decided_by: Decider,
    /// Requests of each pod.
    pub requests: Amount,
    /// Pods that run on Fargate; absent if none do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateRow>,
    /// Vertical autoscaler that sets the requests of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sized_by: Option<Sizing>,
    /// Scheduling rules of the pods, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Reasons why planned nodes without a pod of this workload cannot run one, with the number of
    /// such nodes. Absent for fleets that are too large to evaluate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Rejection>,
}

/// Pods of a workload that run on Fargate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateRow {
    /// Profile that selects the pods; absent if only the observation shows that they run on
    /// Fargate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Number of planned pods that the profile selects.
    pub pods: u32,
    /// Size of each pod; absent if Fargate cannot run the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<FargateSize>,
}

/// Required fleet for one demand mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeRow {
    /// Demand mode.
    pub mode: DemandMode,
    /// Number of nodes.
    pub nodes: u32,
    /// CPU of the nodes, in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory of the nodes, in bytes.
    pub memory_bytes: i64,
    /// Number of planned pods, without DaemonSet pods.
    pub pods: u32,
    /// Number of unschedulable pods.
    pub unschedulable: u32,
    /// Price per hour.
    pub hourly: MicroUsd,
}

/// A DaemonSet, or another workload that runs on every node that admits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Requests of each pod.
    pub requests: Amount,
}
