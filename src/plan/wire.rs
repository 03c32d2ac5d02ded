//! The wire form of a plan, as design and JSON Schema document it.
//!
//! Readers ignore keys they do not know, so every struct here accepts more than it lists. Field
//! order is of no consequence: the canonical form sorts keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod base;
mod cost;
mod explain;
mod pods;
mod row;

pub use base::{
    Base, BaseWorld, ComparedWorkload, Comparison, Condition, Guard, JudgedBy, Precondition,
    RenderedRow, Wave, WaveStep,
};
pub use cost::{
    CommitmentRow, Committed, Cost, CostBreakdown, CostRange, CostRow, FargateBill, FargateCost,
};
pub use explain::{AlternativesRow, ExplainRow, PodCounts, Reason};
pub use pods::{
    DaemonRow, DemandRow, DisruptionBudgetRow, EvictionRow, FargateRow, ModeRow, Placement,
    PlacementRow, PodTotals, UnresolvedRow, UnschedulableRow,
};
pub use row::{Action, Amount, Change, GroupSize, NodeState, ResourceChange, ResourceKind};

// Views work on this form alone, so it hands on the types of other modules that it is made of.
pub use crate::demand::{Counts, Decider, DemandMode, Sizing};
pub use crate::fargate::{Rates as FargateRates, Size as FargateSize};
pub use crate::fleet::{ClusterIdentity, Completeness, KEY_LABEL};
pub use crate::ids::WorkloadKey;
pub use crate::pod::Taint;
pub use crate::solve::{
    Alternative, Beyond, BlockReason, DomainKind, KeepReason, KeptApart, LaunchReason, Rejection,
    Relaxed, RetireReason, Unsteered, workload_key,
};

use crate::ids::{Address, Digest, Origin, PlanId};

/// The version of the plan format that this program writes.
///
/// 1.1 added: `capacity.comparison`, `capacity.base.guard`, `capacity.cost.breakdown`,
/// `capacity.disruption_budgets`, `launched_at` of nodes, `group` of states, the reason `resize`, the condition `group-is`,
/// `capacity.explain[].pods_before`, and `severity`, `findings` and `exceptions` of checks.
///
/// 1.2 added `capacity.base.judged_by`. Its digest holds everything that `apply` reads of a row, and
/// its identity everything that says whether, when and where; plans of older formats are shown, and
/// no longer applied. Its file carries a checksum, and `capacity.placement.failure_domains` is new.
pub const FORMAT_VERSION: &str = "1.2";

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// `major.minor` of the format.
    pub format_version: String,
    /// Version of the program that made the plan.
    pub tool_version: String,
    /// The moment the plan is made for.
    pub timestamp: Timestamp,
    /// Whether the plan may be applied at all.
    pub applyable: bool,
    /// Whether the plan covers everything; false with `--target` or `--exclude`.
    pub complete: bool,
    /// Whether inputs had errors; such a plan removes nothing and is never applyable.
    pub errored: bool,
    /// One row for each node: what is there, what comes, what goes.
    pub resource_changes: Vec<ResourceChange>,
    /// What moved outside Git; shown, never applied.
    #[serde(default)]
    pub resource_drift: Vec<ResourceChange>,
    /// Findings of policies.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Of a file: `sha256:` and 64 hex digits over its canonical spelling without this line. Written
    /// with the file and held against it when it is read; nothing in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Totals.
    pub summary: Summary,
    /// Everything that is this program's own.
    pub capacity: Capacity,
}

/// A rule of a policy, and what it found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Package and rule, such as `budget.deny`.
    pub name: String,
    /// `pass`, `fail`, `warn`, `error` or `unknown`; `fail` and `error` keep a plan from being
    /// applied.
    pub status: String,
    /// What it found, as messages.
    #[serde(default)]
    pub problems: Vec<String>,
    /// `deny`, `violation` or `warn`, as the rule's name has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// What it found, with what each finding is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Exceptions that the policy makes from the rule, as messages; its findings do not count then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
}

/// One finding of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What is wrong.
    pub message: String,
    /// The row it is about, where the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The place in the repository it is about, where the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whatever else the policy says about it, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Totals over the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Rows that create, replacements included.
    pub add: u32,
    /// Rows that update.
    pub change: u32,
    /// Rows that delete, replacements included.
    pub destroy: u32,
    /// Rows that do both.
    pub replace: u32,
    /// Nodes that something forbids to touch.
    pub blocked: u32,
    /// Whether anything is deleted.
    pub destructive: bool,
    /// Nodes, members of groups included.
    pub nodes: NodeTotals,
}

/// Numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeTotals {
    /// Nodes before.
    pub before: u32,
    /// Nodes launched.
    pub launch: u32,
    /// Nodes terminated.
    pub terminate: u32,
    /// Nodes after.
    pub after: u32,
}

/// What is this program's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Hash over the decisions alone: what is approved.
    pub digest: Digest,
    /// Hash of digest, commit and world: what is applied at most once.
    pub plan_id: PlanId,
    /// What the plan was made from.
    pub base: Base,
    /// When the plan may no longer be applied.
    pub expires_at: Timestamp,
    /// The order of changes.
    pub waves: Vec<Wave>,
    /// Totals over pods.
    pub pods: PodTotals,
    /// How the placement was found and tried.
    pub placement: Placement,
    /// Where new and moved pods go.
    pub placements: Vec<PlacementRow>,
    /// Pods without a place.
    pub unschedulable: Vec<UnschedulableRow>,
    /// Workloads whose size is not known.
    #[serde(default)]
    pub unresolved: Vec<UnresolvedRow>,
    /// Every workload: its counts, who decided, and where it is declared.
    pub demand: Vec<DemandRow>,
    /// What the fleet would come to at the least, the present and the most that autoscalers may
    /// choose; empty where no workload's number is left open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<ModeRow>,
    /// Workloads that run on every node that admits them, with what each of their pods asks for.
    #[serde(default)]
    pub daemons: Vec<DaemonRow>,
    /// Money.
    pub cost: Cost,
    /// Offerings that may stand in for launches.
    pub alternatives: Vec<AlternativesRow>,
    /// Why each row is as it is.
    pub explain: Vec<ExplainRow>,
    /// Problems of the inputs, and what a reader should know.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
    /// Disruption budgets that the repository declares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<DisruptionBudgetRow>,
    /// What this revision changes against another one, apart from what was pending anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// What [`Rejection::reason`] says of pods that a Fargate profile takes and Fargate cannot run.
pub const FARGATE_REASON: &str = "fargate";

/// A problem of the inputs, or something a reader should know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// `error`, `warning` or `note`.
    pub severity: String,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
