//! The fields that `apply` reads and the digest leaves out.
//!
//! Invariant: a field that changes what `apply` does is in the digest or here, except for the prices
//! and the order of alternatives, which the identity covers itself. Each struct is
//! destructured without `..`, except for the states of nodes, so a new field does not compile until
//! it is classified. A test edits each field of a plan, and compares what `apply` makes of it.

use jiff::Timestamp;
use serde::Serialize;

use crate::model::desired::UnresolvedPolicy;
use crate::model::ids::{Address, GroupName, InstanceId, NodeName, WorkloadId};
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, Base, BaseWorld, Capacity, Change, Decider, DemandMode, DemandRow, ExplainRow,
    JudgedBy, NodeState, Placement, Plan, PodCounts, PodTotals, Reason, RenderedRow,
    ResourceChange, ResourceKind, RetireReason, TrustedRevision,
};

/// The fields of a plan that `apply` reads besides the digest.
#[derive(Serialize)]
pub(super) struct AppliedInputs<'a> {
    timestamp: Timestamp,
    applyable: bool,
    errored: bool,
    expires_at: Timestamp,
    checks: Vec<(&'a str, &'a str)>,
    source: AppliedSource<'a>,
    pods: &'a PodTotals,
    placement: &'a Placement,
    rows: Vec<AppliedRow<'a>>,
    explained: Vec<AppliedReason<'a>>,
    /// Workloads that a compared revision declares and the planned one does not.
    removed: Vec<&'a WorkloadId>,
}

/// The repository and the observation.
#[derive(Serialize)]
struct AppliedSource<'a> {
    path: &'a str,
    directory: Option<&'a str>,
    repository: Option<&'a str>,
    commit: Option<&'a str>,
    tree: &'a str,
    dirty: bool,
    rendered: &'a [RenderedRow],
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_pools: Option<&'a str>,
    world: &'a BaseWorld,
    demand: DemandMode,
    /// Absent in plans of complete inputs, and in plans of earlier releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    unresolved: Option<UnresolvedPolicy>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignores_runs: bool,
    guard: Option<&'a TrustedRevision>,
    judged_by: &'a [JudgedBy],
}

/// A row, with those that change nothing.
#[derive(Serialize)]
struct AppliedRow<'a> {
    address: &'a Address,
    #[serde(rename = "type")]
    kind: ResourceKind,
    name: &'a str,
    actions: &'a [Action],
    instance: Option<&'a InstanceId>,
    node: Option<&'a NodeName>,
    group: Option<&'a GroupName>,
}

/// What `explain` says about a row.
#[derive(Serialize)]
struct AppliedReason<'a> {
    address: &'a Address,
    group: Option<&'a str>,
    reason: &'a Reason,
    retire_reason: Option<&'a RetireReason>,
    hourly_before: Option<MicroUsd>,
    hourly_after: Option<MicroUsd>,
    pods: &'a PodCounts,
    pods_before: &'a PodCounts,
}

impl<'a> AppliedInputs<'a> {
    pub(super) fn from_plan(plan: &'a Plan) -> Self {
        let Plan {
            format_version: _,
            tool_version: _,
            timestamp,
            applyable,
            errored,
            // In the digest.
            complete: _,
            resource_changes,
            resource_drift: _,
            // Absent in memory: readers restore the rows.
            unchanged: _,
            planned_values: _,
            prior_state: _,
            checks,
            checksum: _,
            // Recomputed when a plan is read.
            summary: _,
            capacity,
        } = plan;
        let Capacity {
            digest: _,
            plan_id: _,
            base,
            expires_at,
            // In the digest.
            waves: _,
            pods,
            placement,
            // Views of the rows.
            placements: _,
            unschedulable: _,
            cluster_autoscaler: _,
            unresolved: _,
            demand,
            modes: _,
            daemons: _,
            cost: _,
            // In the digest. The identity has their prices and their order beside these inputs.
            alternatives: _,
            node_annotations: _,
            explain,
            diagnostics: _,
            disruption_budgets: _,
            comparison: _,
        } = capacity;
        let removed = demand.iter().filter_map(removed_workload);
        Self {
            timestamp: *timestamp,
            applyable: *applyable,
            errored: *errored,
            expires_at: *expires_at,
            checks: checks.iter().map(|c| (c.name.as_str(), c.status.as_str())).collect(),
            source: AppliedSource::from_base(base),
            pods,
            placement,
            rows: resource_changes.iter().map(AppliedRow::from_row).collect(),
            explained: explain.iter().map(AppliedReason::from_row).collect(),
            removed: removed.collect(),
        }
    }
}

impl<'a> AppliedSource<'a> {
    fn from_base(base: &'a Base) -> Self {
        let Base {
            path,
            directory,
            repository,
            commit,
            tree,
            dirty,
            rendered,
            cluster_pools,
            world,
            demand,
            unresolved,
            ignores_runs,
            // It decides how files are named.
            whole_repository: _,
            // In the digest.
            preconditions: _,
            guard,
            judged_by,
        } = base;
        Self {
            path,
            directory: directory.as_deref(),
            repository: repository.as_deref(),
            commit: commit.as_deref(),
            tree,
            dirty: *dirty,
            rendered,
            cluster_pools: cluster_pools.as_deref(),
            world,
            demand: *demand,
            unresolved: *unresolved,
            ignores_runs: *ignores_runs,
            guard: guard.as_ref(),
            judged_by,
        }
    }
}

impl<'a> AppliedRow<'a> {
    fn from_row(row: &'a ResourceChange) -> Self {
        let ResourceChange {
            address,
            kind,
            name,
            index: _,
            mode: _,
            provider_name: _,
            change,
            action_reason: _,
        } = row;
        // The grace period is in the digest.
        let Change { actions, before, after: _, after_unknown: _, termination_grace_seconds: _ } =
            change;
        let before = before.as_ref();
        let instance = before.and_then(|NodeState { instance_id, .. }| instance_id.as_ref());
        let group = before.and_then(|NodeState { group, .. }| group.as_ref()?.name.as_ref());
        let node = before.and_then(|NodeState { node, .. }| node.as_ref());
        Self { address, kind: *kind, name, actions, instance, node, group }
    }
}

impl<'a> AppliedReason<'a> {
    fn from_row(row: &'a ExplainRow) -> Self {
        let ExplainRow {
            address,
            group,
            reason,
            retire_reason,
            drift: _,
            differences: _,
            hourly_before,
            hourly_after,
            estimated: _,
            pods,
            pods_before,
            daemons: _,
            rejected: _,
            overlays: _,
            relaxed: _,
        } = row;
        Self {
            address,
            group: group.as_deref(),
            reason,
            retire_reason: retire_reason.as_ref(),
            hourly_before: *hourly_before,
            hourly_after: *hourly_after,
            pods,
            pods_before,
        }
    }
}

/// Returns the workload of a row that counts as removed.
fn removed_workload(row: &DemandRow) -> Option<&WorkloadId> {
    let DemandRow {
        workload,
        origin: _,
        counts: _,
        decided_by,
        requests: _,
        fargate: _,
        sized_by: _,
        rules: _,
        elsewhere: _,
    } = row;
    (*decided_by == Decider::Removed).then_some(workload)
}
