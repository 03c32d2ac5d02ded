//! Wire form of a plan, as the documentation and the JSON Schema describe it.
//!
//! Readers ignore unknown keys, so every struct here accepts more than it lists. Field order has no
//! effect, because the canonical form sorts keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod base;
mod cost;
mod explain;
mod open_enums;
mod pods;
mod rows;
mod unchanged;
mod values;

pub use base::{
    Base, BaseWorld, ComparedWorkload, Comparison, Condition, JudgedBy, Precondition, RenderedRow,
    TrustedRevision, Wave, WaveStep,
};
pub use cost::{
    CommitmentRow, Committed, ConsolidationPotential, Cost, CostBreakdown, CostRange, CostRow,
    FargateBill, FargateCost, ListCost,
};
pub use explain::{AlternativesRow, ExplainRow, PodCounts, Reason};
pub use open_enums::{CheckSeverity, CheckStatus, DiagnosticSeverity, PlacementMode};
pub use pods::{
    AutoscalerGrowthRow, DaemonRow, DemandRow, DisruptionBudgetRow, EvictionRow, FargateRow,
    ModeRow, Placement, PlacementRow, PodTotals, UnresolvedRow, UnschedulableRow,
};
pub use rows::{Action, Amount, Change, GroupSize, NodeState, ResourceChange, ResourceKind};
pub use unchanged::{UnchangedGroup, UnchangedReason, UnchangedRow};
pub use values::{
    ModuleValues, PriorState, ProviderName, ResourceMode, ResourceValue, ResourceValues,
    STATE_FORMAT_VERSION,
};

// Views read only this form, so it re-exports the types of other modules that it contains.
pub use crate::demand::{Counts, Decider, DemandMode, Sizing};
pub use crate::model::fargate::{FargateSize, Rates as FargateRates};
pub use crate::model::ids::{WorkloadKey, workload_key};
pub use crate::model::observed::{ClusterIdentity, Completeness, KEY_LABEL};
pub use crate::model::pod::Taint;
pub use crate::model::reason::{
    Alternative, BlockReason, Contingency, DomainKind, DriftedField, ExceededLimit,
    FailureDomainReport, KeepReason, LaunchReason, PoolContingency, Rejection, Relaxed,
    RetireReason, Unsteered,
};

use values::drop_derived;

use crate::model::code::Code;
use crate::model::ids::{Address, Digest, Origin, PlanId, PoolName};
use crate::model::node_annotations::NodeAnnotations;

/// Plan format version that this program writes.
///
/// 1.1 added: `capacity.comparison`, `capacity.base.guard`, `capacity.cost.breakdown`,
/// `capacity.disruption_budgets`, `launched_at` of nodes, `group` of states, the reason `resize`,
/// the condition `group-is`, `capacity.explain[].pods_before`, and `severity`, `findings` and
/// `exceptions` of checks.
///
/// 1.2 added `capacity.base.judged_by` and `capacity.placement.failure_domains`. Its digest covers
/// all fields of a row that `apply` reads. Its identity covers the flags, the expiry and the
/// location. Plans of older formats can be rendered, but not applied. Files carry a checksum.
///
/// 1.3 added to outputs: `planned_values`, `prior_state`, and `mode` and `provider_name` of rows.
///
/// 1.4 added `capacity.placement.contingency`.
///
/// 1.5 added `capacity.explain[].differences` and `capacity.cost.list`. Its identity covers everything
/// that `apply` reads, with the repository and the inputs of the second planning.
///
/// 1.6 added `capacity.node_annotations` and the block `job-might-fail`. Its identity also covers
/// the prices and the order of alternatives. Plans of older formats can be rendered, but not
/// applied.
pub const FORMAT_VERSION: &str = "1.6";

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Format version, `major.minor`.
    pub format_version: String,
    /// Version of the program that wrote the plan.
    pub tool_version: String,
    /// Time that the plan is made for.
    pub timestamp: Timestamp,
    /// True if the plan may be applied.
    pub applyable: bool,
    /// True if the plan covers all rows; false with `--target` or `--exclude`.
    pub complete: bool,
    /// True if inputs have errors. Such a plan removes no nodes and is never applyable.
    pub errored: bool,
    /// One row for each retained, launched or removed node, and for each Auto Scaling group.
    pub resource_changes: Vec<ResourceChange>,
    /// Unchanged rows by their common properties. Only files with `--changes-only` have it, and
    /// readers restore the rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<UnchangedGroup>,
    /// Rows that changed outside Git; rendered, never applied.
    #[serde(default)]
    pub resource_drift: Vec<ResourceChange>,
    /// Resources after the apply, derived from the rows. Only outputs have it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "drop_derived")]
    pub planned_values: Option<ResourceValues>,
    /// Resources before the apply, derived from the rows. Only outputs have it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "drop_derived")]
    pub prior_state: Option<PriorState>,
    /// Findings of policies.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Checksum of the file: `sha256:` and 64 hex digits over its canonical spelling without this
    /// line. Set when the file is written, checked when it is read, absent in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Totals.
    pub summary: Summary,
    /// Data specific to fleetwright.
    pub capacity: Capacity,
}

/// A policy rule and its findings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Package and rule, such as `budget.deny`.
    pub name: String,
    /// `pass`, `fail`, `warn`, `error` or `unknown`; `fail` and `error` prevent an apply.
    pub status: CheckStatus,
    /// Messages of the findings.
    #[serde(default)]
    pub problems: Vec<String>,
    /// `deny`, `violation` or `warn`, from the name of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<CheckSeverity>,
    /// Findings with the objects they are about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Messages of the exceptions that the policy grants. Findings of an excepted rule do not
    /// count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
}

/// One finding of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Description of the problem.
    pub message: String,
    /// Row that the finding is about, if the policy states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Place in the repository that the finding is about, if the policy states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Further data from the policy, as text.
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
    /// Rows that create and delete.
    pub replace: u32,
    /// Nodes whose change is blocked.
    pub blocked: u32,
    /// True if the plan deletes any node.
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

/// Data specific to fleetwright.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Hash of the decisions alone; approvals refer to it.
    pub digest: Digest,
    /// Hash of the digest and of everything else that `apply` reads, such as repository, commit,
    /// observation, policies and expiry. A repeated apply of this id finishes the rest, and launches
    /// nothing twice.
    pub plan_id: PlanId,
    /// Sources of the plan.
    pub base: Base,
    /// Expiry time. From this time on, the plan cannot be applied.
    pub expires_at: Timestamp,
    /// Order of the changes.
    pub waves: Vec<Wave>,
    /// Totals over pods.
    pub pods: PodTotals,
    /// Method and simulation of the placement.
    pub placement: Placement,
    /// Nodes of new and moved pods.
    pub placements: Vec<PlacementRow>,
    /// Unschedulable pods.
    pub unschedulable: Vec<UnschedulableRow>,
    /// Node groups that Cluster Autoscaler scales up for pods without a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_autoscaler: Vec<AutoscalerGrowthRow>,
    /// Workloads of unknown size.
    #[serde(default)]
    pub unresolved: Vec<UnresolvedRow>,
    /// All workloads: their counts, the source of each count, and where they are declared.
    pub demand: Vec<DemandRow>,
    /// Fleet at the minimum, current and maximum pod counts of the autoscalers; empty if all counts
    /// are fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<ModeRow>,
    /// DaemonSets, with the requests of each of their pods.
    #[serde(default)]
    pub daemons: Vec<DaemonRow>,
    /// Cost.
    pub cost: Cost,
    /// Fallback offerings of launches.
    pub alternatives: Vec<AlternativesRow>,
    /// Annotations that new nodes get when they are opened, by pool. Pools without any are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_annotations: BTreeMap<PoolName, NodeAnnotations>,
    /// Reason of each row.
    pub explain: Vec<ExplainRow>,
    /// Problems of the inputs and notes to the reader.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
    /// Disruption budgets that the repository declares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<DisruptionBudgetRow>,
    /// Comparison with another revision: the changes that this revision causes, and the changes
    /// that are pending in both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// [`Rejection::reason`] of pods that a Fargate profile selects and Fargate cannot run.
pub const FARGATE_REASON: &str = "fargate";

/// A problem of the inputs or a note to the reader.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// `error`, `warning`, `note`, or `behind` in drift reports.
    pub severity: DiagnosticSeverity,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Object that the message is about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// Description of the problem.
    pub message: String,
    /// Suggested fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Stable code of its class, if it has one: see the reference of codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl Diagnostic {
    /// Returns a diagnostic without origin, hint and code.
    pub fn new(
        severity: DiagnosticSeverity,
        object: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let (object, message) = (object.into(), message.into());
        Self { severity, origin: None, object, message, hint: None, code: None }
    }

    /// Returns an error.
    pub fn error(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(DiagnosticSeverity::Error, object, message)
    }

    /// Returns a warning.
    pub fn warning(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(DiagnosticSeverity::Warning, object, message)
    }

    /// Returns a note.
    pub fn note(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(DiagnosticSeverity::Note, object, message)
    }

    /// Sets file and line.
    #[must_use]
    pub fn origin(self, origin: impl Into<Option<Origin>>) -> Self {
        Self { origin: origin.into(), ..self }
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        self.maybe_hint(Some(hint.into()))
    }

    /// Sets the suggested fix, if it is known.
    #[must_use]
    pub fn maybe_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    /// Sets the class.
    #[must_use]
    pub fn code(self, code: impl Into<Option<Code>>) -> Self {
        Self { code: code.into().map(|code| code.to_string()), ..self }
    }
}
