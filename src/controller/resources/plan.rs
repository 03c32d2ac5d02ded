//! `CapacityPlan` objects.

mod schema;

pub use schema::{PlanSpec, PlanStatus};

use std::collections::BTreeMap;

use schema::{
    BlockedStatus, CostSpec, NodeTotalsSpec, OutcomeStatus, PodTotalsSpec, RowSpec,
    UnschedulableSpec,
};

use super::condition::{ConditionReason, Progress, ProgressState, condition_reason, waiting_state};
use super::{LISTED_ROWS_MAX, ObjectKind, StatusObject, truncate_text};
use crate::apply::{ApplyStatus, ChangeOutcome, LaunchedOffering};
use crate::controller::{
    ApprovedBy, Blocked, BlockedReason, CompletedApply, PartialApply, PlanTotals, PublishedPlan,
    Status, SupersededPlan, labels,
};
use crate::model::code::Code;
use crate::model::ids::{Address, Digest};
use crate::model::plural::count;
use crate::plan::Plan;
use crate::plan::wire::{
    Action, NodeTotals, PodTotals, ResourceChange, UnschedulableRow, workload_key,
};
use crate::render::html_fragments::row_reasons;

/// Digits of the digest in the object name.
const NAME_DIGITS: usize = 16;
/// Maximum number of listed unschedulable workloads.
const UNSCHEDULABLE_MAX: usize = 50;
/// Maximum number of addresses per blocking reason.
const NAMED_MAX: usize = 5;

impl PlanStatus {
    /// Returns a status with this progress alone.
    fn from_progress(progress: &Progress) -> Self {
        Self {
            observed_generation: None,
            sync: progress.state.argo_sync().to_owned(),
            health: progress.state.argo_health().to_owned(),
            current: false,
            conditions: progress.conditions(),
            blocked: Vec::new(),
            outcomes: Vec::new(),
            outcomes_omitted: 0,
            approved_by: None,
            started_at: None,
            finished_at: None,
            verdict: None,
        }
    }
}

/// Returns the plan objects, the current plan first.
pub(super) fn plan_objects(status: &Status) -> Vec<StatusObject> {
    let mut objects = Vec::new();
    if let Some(current) = &status.plan {
        let (spec, status) = (plan_spec(&current.plan), current_status(status, current));
        objects.push(StatusObject::new(
            ObjectKind::CapacityPlan,
            plan_name(&spec.digest),
            Some(&spec),
            &status,
        ));
    }
    for partial in &status.partial_applies {
        let spec = plan_spec(&partial.plan);
        let name = plan_name(&spec.digest);
        objects.push(StatusObject::new(
            ObjectKind::CapacityPlan,
            name,
            Some(&spec),
            &partial_status(partial),
        ));
    }
    for apply in &status.history {
        let name = plan_name(apply.digest.as_str());
        if objects.iter().any(|object| object.name == name) {
            continue;
        }
        let none: Option<&PlanSpec> = None;
        let object =
            StatusObject::new(ObjectKind::CapacityPlan, name, none, &completed_status(apply));
        objects.push(object.with_fallback_spec(completed_plan_spec(apply).as_ref()));
    }
    objects
}

/// Returns the objects of superseded plans, so that existing objects are marked.
pub(super) fn superseded_objects(status: &Status) -> Vec<StatusObject> {
    let current = status.plan.iter().map(PublishedPlan::digest);
    let known: Vec<&Digest> =
        current.chain(status.history.iter().map(|apply| &apply.digest)).collect();
    let superseded =
        status.superseded.iter().filter(|superseded| !known.contains(&&superseded.digest));
    let object = |superseded: &SupersededPlan| {
        let (name, none) = (plan_name(superseded.digest.as_str()), None::<&PlanSpec>);
        StatusObject::new(ObjectKind::CapacityPlan, name, none, &superseded_status(superseded))
    };
    superseded.map(object).collect()
}

fn superseded_status(superseded: &SupersededPlan) -> PlanStatus {
    let message = "superseded by another plan before any of its changes was applied".to_owned();
    let (state, reason) = (ProgressState::Superseded, ConditionReason::Superseded.into());
    let progress = Progress { state, reason, message, since: superseded.at };
    PlanStatus::from_progress(&progress)
}

/// Returns the object name of a plan. Equal decisions have equal names.
pub fn plan_name(digest: &str) -> String {
    let digits = digest.trim_start_matches("sha256:").chars().filter(char::is_ascii_hexdigit);
    let digits: String = digits.take(NAME_DIGITS).map(|c| c.to_ascii_lowercase()).collect();
    format!("plan-{digits}")
}

fn plan_spec(plan: &Plan) -> PlanSpec {
    let capacity = &plan.capacity;
    let reasons = row_reasons(plan);
    let mut rows: Vec<&ResourceChange> =
        plan.resource_changes.iter().filter(|r| is_change(r)).collect();
    rows.sort_by_key(|row| (!row.change.actions.contains(&Action::Delete), &row.address));
    let row = |row: &&ResourceChange| row_spec(row, reasons.get(&row.address));
    let listed: Vec<RowSpec> = rows.iter().take(LISTED_ROWS_MAX).map(row).collect();
    let without = &capacity.unschedulable;
    PlanSpec {
        digest: capacity.digest.to_string(),
        summary: crate::render::html_fragments::summary(plan),
        commit: capacity.base.commit.clone(),
        repository: capacity.base.repository.as_deref().map(truncate_text),
        applyable: plan.applyable,
        errored: plan.errored,
        nodes: node_totals(plan.summary.nodes),
        pods: pod_totals(capacity.pods),
        cost: CostSpec {
            hourly_before: capacity.cost.hourly_before.to_string(),
            hourly_after: capacity.cost.hourly_after.to_string(),
            monthly_delta: capacity.cost.monthly_delta.to_string(),
        },
        rows_omitted: omitted_count(rows.len(), listed.len()),
        rows: listed,
        unschedulable: without.iter().take(UNSCHEDULABLE_MAX).map(unschedulable_spec).collect(),
        unschedulable_omitted: omitted_count(without.len(), UNSCHEDULABLE_MAX.min(without.len())),
    }
}

/// Returns the spec of a completed plan without its rows, for an apply that was never the current
/// plan.
fn completed_plan_spec(apply: &CompletedApply) -> Option<PlanSpec> {
    let PlanTotals { repository, summary, changes, pods, unschedulable, monthly_delta } =
        apply.decided.as_ref()?;
    Some(PlanSpec {
        digest: apply.digest.to_string(),
        summary: crate::render::html_fragments::summary_of(summary, *monthly_delta),
        commit: Some(apply.commit.clone()),
        repository: repository.as_deref().map(truncate_text),
        // The plan was applied.
        applyable: true,
        errored: false,
        nodes: node_totals(summary.nodes),
        pods: pod_totals(*pods),
        cost: CostSpec {
            hourly_before: apply.hourly_before.to_string(),
            hourly_after: apply.hourly_after.to_string(),
            monthly_delta: monthly_delta.to_string(),
        },
        rows: Vec::new(),
        rows_omitted: *changes,
        unschedulable: Vec::new(),
        unschedulable_omitted: *unschedulable,
    })
}

fn node_totals(nodes: NodeTotals) -> NodeTotalsSpec {
    let NodeTotals { before, launch, terminate, after } = nodes;
    NodeTotalsSpec { before, launch, terminate, after }
}

fn pod_totals(pods: PodTotals) -> PodTotalsSpec {
    let PodTotals {
        total,
        placed,
        unschedulable,
        served_by_cluster_autoscaler,
        unresolved,
        fargate: _,
        moved: _,
    } = pods;
    PodTotalsSpec { total, placed, unschedulable, served_by_cluster_autoscaler, unresolved }
}

fn omitted_count(all: usize, listed: usize) -> u32 {
    u32::try_from(all.saturating_sub(listed)).unwrap_or(u32::MAX)
}

fn is_change(row: &ResourceChange) -> bool {
    row.change.actions.iter().any(|action| *action != Action::NoOp)
}

fn row_spec(row: &ResourceChange, reason: Option<&String>) -> RowSpec {
    let change = &row.change;
    let state = change.after.as_ref().or(change.before.as_ref());
    let word = |action: &Action| match action {
        Action::NoOp => "no-op",
        Action::Create => "create",
        Action::Update => "update",
        Action::Delete => "delete",
    };
    let node = change.before.as_ref().and_then(|before| before.node.as_ref());
    RowSpec {
        address: truncate_text(row.address.as_str()),
        actions: change.actions.iter().map(word).collect::<Vec<_>>().join(", "),
        instance_type: state.and_then(|s| s.instance_type.as_ref()).map(ToString::to_string),
        zone: state.and_then(|s| s.zone.as_ref()).map(ToString::to_string),
        node: node.map(ToString::to_string),
        reason: reason.map(|reason| truncate_text(reason)).unwrap_or_default(),
    }
}

fn unschedulable_spec(row: &crate::plan::wire::UnschedulableRow) -> UnschedulableSpec {
    UnschedulableSpec {
        workload: truncate_text(&workload_key(&row.workload)),
        pods: row.pods,
        nearest: row.nearest.as_deref().map(truncate_text),
    }
}

fn current_status(status: &Status, current: &PublishedPlan) -> PlanStatus {
    let progress = current_progress(status, current);
    let digest = current.digest();
    let apply = status.history.iter().find(|apply| apply.digest == *digest);
    let (outcomes, omitted) = apply.map(|apply| outcome_statuses(apply)).unwrap_or_default();
    let applying = status.in_progress.get(&current.plan.capacity.plan_id);
    let ended = apply.filter(|_| applying.is_none());
    let earlier = apply.map(|apply| &apply.approved);
    PlanStatus {
        current: true,
        blocked: blocked_statuses(&current.blocked),
        outcomes,
        outcomes_omitted: omitted,
        approved_by: status.current_approval.as_ref().or(earlier).map(approval_text),
        started_at: applying.map(|(_, since)| *since).or(apply.map(|apply| apply.started_at)),
        finished_at: ended.map(|apply| apply.ended_at),
        verdict: ended.map(|apply| verdict_text(apply)),
        ..PlanStatus::from_progress(&progress)
    }
}

fn partial_status(partial: &PartialApply) -> PlanStatus {
    let rows = partial.plan.resource_changes.iter().filter(|row| is_change(row)).count();
    let (state, reason) = (ProgressState::Progressing, ConditionReason::Applying.into());
    let message = format!("{} in progress", count(rows, "change"));
    let progress = Progress { state, reason, message, since: partial.since };
    PlanStatus {
        approved_by: Some(approval_text(&partial.approved)),
        started_at: Some(partial.since),
        ..PlanStatus::from_progress(&progress)
    }
}

fn current_progress(status: &Status, current: &PublishedPlan) -> Progress {
    let plan = &*current.plan;
    let since = current.since;
    let blocked_as =
        |state, reason: String, message: String| Progress { state, reason, message, since };
    let of = |state, reason: ConditionReason, message| blocked_as(state, reason.into(), message);
    if plan.errored {
        let message = "the inputs have errors; the plan covers only the readable inputs".to_owned();
        return of(ProgressState::Degraded, ConditionReason::InputsHaveErrors, message);
    }
    let rows: Vec<&Address> =
        plan.resource_changes.iter().filter(|r| is_change(r)).map(|row| &row.address).collect();
    if rows.is_empty() {
        let gated = gated_pods(plan);
        return match plan.capacity.pods.unschedulable.saturating_sub(gated) {
            0 if gated > 0 => of(
                ProgressState::Synced,
                ConditionReason::NothingToDo,
                format!("nothing to change; scheduling gates hold {}", count(gated, "pod")),
            ),
            0 => of(
                ProgressState::Synced,
                ConditionReason::NothingToDo,
                match plan.capacity.pods.served_by_cluster_autoscaler {
                    0 => "the cluster matches the repository".to_owned(),
                    pods => {
                        let pods = count(pods, "pod");
                        format!("nothing to change; cluster-autoscaler serves {pods}")
                    }
                },
            ),
            pods => of(
                ProgressState::Degraded,
                ConditionReason::Unschedulable,
                format!("{} unschedulable", count(pods, "pod")),
            ),
        };
    }
    if let Some(since) = status.in_progress.values().map(|(_, since)| *since).min() {
        let busy: usize = status.in_progress.values().map(|(rows, _)| rows.len()).sum();
        let message = format!("{busy} of {} in progress", count(rows.len(), "change"));
        return Progress {
            since,
            ..of(ProgressState::Progressing, ConditionReason::Applying, message)
        };
    }
    let open = rows.iter().filter(|address| !current.blocked.contains_key(**address)).count();
    if open > 0 {
        let message = format!("{open} of {} pending", count(rows.len(), "change"));
        return of(ProgressState::Progressing, ConditionReason::Pending, message);
    }
    let first = rows.iter().find_map(|address| current.blocked.get(*address));
    let by_hand = rows.iter().filter_map(|address| current.blocked.get(*address));
    let by_hand = by_hand.clone().find(|by| by.reason.needs_operator());
    match (by_hand, first) {
        (Some(by), _) => {
            blocked_as(ProgressState::Suspended, condition_reason(&by.reason), by.message.clone())
        }
        (None, Some(by)) => {
            blocked_as(waiting_state(&by.reason), condition_reason(&by.reason), by.message.clone())
        }
        (None, None) => {
            of(ProgressState::Progressing, ConditionReason::Pending, "changes are next".to_owned())
        }
    }
}

/// Returns the number of pods that wait for their scheduling gates. They need no node yet.
fn gated_pods(plan: &Plan) -> u32 {
    let is_gated = |row: &&UnschedulableRow| {
        !row.reasons.is_empty()
            && row.reasons.iter().all(|found| found.reason == Code::Gated.as_str())
    };
    plan.capacity.unschedulable.iter().filter(is_gated).map(|row| row.pods).sum()
}

fn blocked_statuses(all: &BTreeMap<Address, Blocked>) -> Vec<BlockedStatus> {
    let mut reasons: BTreeMap<String, BlockedStatus> = BTreeMap::new();
    for (address, Blocked { reason: why, message: says }) in all {
        // A change in progress is not blocked.
        if *why == BlockedReason::InProgress {
            continue;
        }
        let reason = labels::blocked_reason(why);
        let row = reasons.entry(reason.clone()).or_insert_with(|| BlockedStatus {
            reason,
            message: truncate_text(says),
            rows: 0,
            first: Vec::new(),
        });
        row.rows += 1;
        if row.first.len() < NAMED_MAX {
            row.first.push(truncate_text(address.as_str()));
        }
    }
    reasons.into_values().collect()
}

/// Prefixes of the approval text, before the operator.
pub(super) const BY_DIGEST: &str = "digest, by ";
pub(super) const BY_BREAK_GLASS: &str = "break-glass, by ";
pub(super) const BY_CONTINGENCY: &str = "contingency of ";
const UNKNOWN: &str = "unknown";
/// Verdict of an apply that was refused before its first change.
const REFUSED: &str = "refused";
/// Message of an apply whose process ended first. What it did is unknown.
const PROCESS_ENDED: &str =
    "the applying process ended before the apply; later plans cover its remaining changes";
/// Key of the outcomes that an object does not list.
pub(super) const OMITTED: &str = "not listed";

fn approval_text(by: &ApprovedBy) -> String {
    match by {
        ApprovedBy::Merge => "merge".to_owned(),
        ApprovedBy::Digest { who } => format!("{BY_DIGEST}{}", truncate_text(who)),
        ApprovedBy::Policy => "policy".to_owned(),
        ApprovedBy::Contingency { digest, who } => {
            format!("{BY_CONTINGENCY}{digest}: {}", truncate_text(who))
        }
        ApprovedBy::BreakGlass { who, reason } => {
            format!("{BY_BREAK_GLASS}{}: {}", truncate_text(who), truncate_text(reason))
        }
        ApprovedBy::Unknown => UNKNOWN.to_owned(),
    }
}

fn outcome_statuses(apply: &CompletedApply) -> (Vec<OutcomeStatus>, u32) {
    let all = apply.receipt.as_ref().map(|receipt| &receipt.outcomes[..]).unwrap_or_default();
    let mut rows: Vec<&ChangeOutcome> = all.iter().collect();
    // Failures first.
    rows.sort_by_key(|row| row.outcome.is_settled());
    let listed = rows.into_iter().take(LISTED_ROWS_MAX).map(outcome_status).collect();
    // An object read back does not list all outcomes, only their number.
    let before = apply.outcomes.get(OMITTED).copied().unwrap_or(0);
    (listed, omitted_count(all.len(), LISTED_ROWS_MAX.min(all.len())).saturating_add(before))
}

fn outcome_status(row: &ChangeOutcome) -> OutcomeStatus {
    OutcomeStatus {
        address: truncate_text(row.address.as_str()),
        step: row.step.as_str().to_owned(),
        outcome: row.outcome.as_str().to_owned(),
        why: row.outcome.why().map(truncate_text),
        instance_id: row.instance_id.as_ref().map(ToString::to_string),
        offering: row.launched.as_ref().map(|launched| {
            let LaunchedOffering { instance_type, zone, capacity_type, .. } = launched;
            format!("{instance_type} {zone} {capacity_type}")
        }),
    }
}

fn completed_status(apply: &CompletedApply) -> PlanStatus {
    let verdict = apply.receipt.as_ref().map(|receipt| receipt.verdict);
    let (state, reason, message) = match (verdict, &apply.refused) {
        (Some(ApplyStatus::Applied), _) => (
            ProgressState::Synced,
            ConditionReason::Applied,
            "all changes of the plan are applied".to_owned(),
        ),
        (Some(ApplyStatus::Partly), _) => {
            (ProgressState::Degraded, ConditionReason::PartlyApplied, outcome_summary(apply))
        }
        (Some(ApplyStatus::Interrupted), _) => {
            let message = match outcome_summary(apply) {
                nothing if nothing.is_empty() => PROCESS_ENDED.to_owned(),
                outcomes => outcomes,
            };
            (ProgressState::Degraded, ConditionReason::Interrupted, message)
        }
        (None, why) => {
            (ProgressState::Degraded, ConditionReason::Refused, why.clone().unwrap_or_default())
        }
    };
    let progress = Progress { state, reason: reason.into(), message, since: apply.ended_at };
    let (outcomes, outcomes_omitted) = outcome_statuses(apply);
    PlanStatus {
        outcomes,
        outcomes_omitted,
        approved_by: Some(approval_text(&apply.approved)),
        started_at: Some(apply.started_at),
        finished_at: Some(apply.ended_at),
        verdict: Some(verdict_text(apply)),
        ..PlanStatus::from_progress(&progress)
    }
}

fn verdict_text(apply: &CompletedApply) -> String {
    let verdict = apply.receipt.as_ref().map(|receipt| receipt.verdict);
    verdict.map_or(REFUSED, ApplyStatus::as_str).to_owned()
}

fn outcome_summary(apply: &CompletedApply) -> String {
    let parts = apply.outcomes.iter().map(|(name, n)| format!("{n} {name}"));
    parts.collect::<Vec<_>>().join(", ")
}
