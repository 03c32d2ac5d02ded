//! Schema of `CapacityPlan` objects.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::controller::resources::condition::Condition;

/// Decisions of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanSpec {
    /// SHA-256 of the decisions; the value to approve.
    pub digest: String,
    /// Summary of the decisions in one line.
    pub summary: String,
    /// Commit of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Repository, without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// True if the plan may be applied.
    pub applyable: bool,
    /// True if the inputs had errors.
    pub errored: bool,
    /// Number of nodes.
    pub nodes: NodeTotalsSpec,
    /// Number of pods.
    pub pods: PodTotalsSpec,
    /// Cost.
    pub cost: CostSpec,
    /// Changed rows, removals first.
    pub rows: Vec<RowSpec>,
    /// Number of changed rows that are not listed.
    pub rows_omitted: u32,
    /// Unschedulable pods.
    pub unschedulable: Vec<UnschedulableSpec>,
    /// Number of workloads with unschedulable pods that are not listed.
    pub unschedulable_omitted: u32,
}

/// Numbers of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTotalsSpec {
    /// Nodes before the plan.
    pub before: u32,
    /// Nodes to launch.
    pub launch: u32,
    /// Nodes to terminate.
    pub terminate: u32,
    /// Nodes after the plan.
    pub after: u32,
}

/// Numbers of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTotalsSpec {
    /// All planned pods.
    pub total: u32,
    /// Pods with a node.
    pub placed: u32,
    /// Unschedulable pods.
    pub unschedulable: u32,
    /// Pods for which Cluster Autoscaler scales up a node group.
    pub served_by_cluster_autoscaler: u32,
    /// Workloads with an unknown number of pods.
    pub unresolved: u32,
}

/// Cost in US dollars, as decimal strings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostSpec {
    /// Price per hour before the plan.
    pub hourly_before: String,
    /// Price per hour after the plan.
    pub hourly_after: String,
    /// Difference per month of 730 hours.
    pub monthly_delta: String,
}

/// A changed row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RowSpec {
    /// Address in the plan.
    pub address: String,
    /// `create`, `delete`, `create, delete` or `update`.
    pub actions: String,
    /// Instance type after the change, or before a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Zone after the change, or before a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Name of the node, if it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Reason of the change, with numbers.
    pub reason: String,
}

/// Unschedulable pods of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableSpec {
    /// Workload, as `namespace/kind/name`.
    pub workload: String,
    /// Number of pods.
    pub pods: u32,
    /// Nearest change that would make them schedulable, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

/// Progress of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// Generation of the object that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Synced` or `OutOfSync`.
    pub sync: String,
    /// `Healthy`, `Progressing`, `Suspended` or `Degraded`.
    pub health: String,
    /// True for the plan that the controller pursues now.
    pub current: bool,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Blocked changes, by reason.
    pub blocked: Vec<BlockedStatus>,
    /// Outcomes of rows.
    pub outcomes: Vec<OutcomeStatus>,
    /// Number of rows with an outcome that are not listed.
    pub outcomes_omitted: u32,
    /// Approval of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// Start of the apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// End of the apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// `applied`, `partly`, `interrupted`, or `refused` if nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
}

/// Blocked changes of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedStatus {
    /// Reason, such as `not-approved`.
    pub reason: String,
    /// Message for operators.
    pub message: String,
    /// Number of blocked rows.
    pub rows: u32,
    /// Addresses of the first blocked rows.
    pub first: Vec<String>,
}

/// Outcome of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeStatus {
    /// Address in the plan.
    pub address: String,
    /// Step of the row, such as `launch` or `retire`.
    pub step: String,
    /// `done`, `already-done`, `dropped`, `skipped`, `abandoned`, `continues` or `failed`.
    pub outcome: String,
    /// Reason, unless the row is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Instance of the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Launched offering, such as `m7i.large us-east-1b spot`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
}
