//! The verdict of the controller, its totals and its facts.

use std::collections::BTreeMap;

use super::{PageKind, StatusPage, commit_of, moment};
use crate::controller::{BlockedReason, PublishedPlan, Status, labels};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::render::html_fragments::{
    PageVerdict, VerdictTone, changes_text, fact_list, has_changes, monthly, monthly_delta,
    no_changes, origin_facts, plan_facts, plan_verdict, problem_verdict, span, text, total_list,
    totals,
};

const NAME: usize = 120;

/// Returns the state of the controller in one sentence.
pub(super) fn verdict(page: &StatusPage<'_>) -> PageVerdict {
    let status = page.status;
    let plan = status.plan.as_ref();
    if page.kind == PageKind::Preview {
        return preview_failing(status)
            .or_else(|| failing(status))
            .or_else(|| plan.map(|current| plan_verdict(&current.plan)))
            .unwrap_or_else(planning);
    }
    stopped(status)
        .or_else(|| plan.and_then(|current| errored(&current.plan)))
        .or_else(|| failing(status))
        .or_else(|| applying(status))
        .or_else(|| unstarted(status))
        .or_else(|| plan.and_then(waiting))
        .or_else(|| plan.and_then(|current| problem(&current.plan)))
        .or_else(|| plan.and_then(blocked))
        .unwrap_or_else(|| plan.map_or_else(planning, |current| in_sync(&current.plan)))
}

fn planning() -> PageVerdict {
    PageVerdict::new(VerdictTone::Working, "Planning: no plan was made yet", "")
}

/// Returns what stops the whole controller until an operator acts.
fn stopped(status: &Status) -> Option<PageVerdict> {
    if let Some(breaker) = status.breakers.first() {
        let more = match status.breakers.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let title = format!("Blocked: breaker {} latched{more}", breaker.name);
        return Some(PageVerdict::new(VerdictTone::Blocked, title, format!("{}.", breaker.why)));
    }
    if let Some(suspension) = &status.suspended {
        let title = format!("Blocked: suspended by {}", suspension.by);
        let until = suspension.until.map(|at| format!(" Until {}.", moment(at)));
        let detail = format!("{}.{}", suspension.reason, until.unwrap_or_default());
        return Some(PageVerdict::new(VerdictTone::Blocked, title, detail));
    }
    let competing = status.competing_autoscaler.as_ref()?;
    let title = "Blocked: a competing autoscaler runs";
    Some(PageVerdict::new(VerdictTone::Blocked, title, format!("{competing}.")))
}

/// Returns the verdict of a plan that errors or policies forbid.
fn errored(plan: &Plan) -> Option<PageVerdict> {
    problem(plan).filter(|verdict| verdict.tone == VerdictTone::Blocked)
}

fn problem(plan: &Plan) -> Option<PageVerdict> {
    problem_verdict(plan, &changes_text(plan))
}

/// Returns the verdict of a preview that still shows a previous plan.
fn preview_failing(status: &Status) -> Option<PageVerdict> {
    let (error, since) = status.repository.reads.error.as_ref()?;
    let age = span(status.now.duration_since(*since));
    let title = format!("Degraded: no new plan for {age}, this page shows the previous plan");
    Some(PageVerdict::new(VerdictTone::Degraded, title, error))
}

/// Returns what fails now.
fn failing(status: &Status) -> Option<PageVerdict> {
    let degraded = |title: String, detail: &str| {
        Some(PageVerdict::new(VerdictTone::Degraded, format!("Degraded: {title}"), detail))
    };
    let lasts = |since| span(status.now.duration_since(since));
    if let Some((error, since)) = &status.repository.reads.error {
        return degraded(format!("repository not readable for {}", lasts(*since)), error);
    }
    if let Some((error, since)) = status.world.as_ref().and_then(|world| world.reads.error.as_ref())
    {
        return degraded(format!("cluster not readable for {}", lasts(*since)), error);
    }
    if let Some((action, failure)) = status.failing_actions.iter().next() {
        let action = labels::failing_action(*action, failure);
        return degraded(format!("{action} fails for {}", lasts(failure.since)), &failure.error);
    }
    let (pool, (why, until)) = status.quarantined.iter().next()?;
    degraded(format!("pool {pool} launches nothing until {}", moment(*until)), why)
}

fn applying(status: &Status) -> Option<PageVerdict> {
    let rows: usize = status.in_progress.values().map(|(rows, _)| rows.len()).sum();
    if rows == 0 {
        return None;
    }
    let plan = status.plan.as_ref();
    let finished = status.finished_changes.len();
    let noun = if rows == 1 { "change" } else { "changes" };
    let blocked = plan.map_or(0, |current| gates(current).values().sum());
    let detail = match blocked {
        0 => String::new(),
        1 => "1 change is blocked.".to_owned(),
        n => format!("{n} changes are blocked."),
    };
    Some(PageVerdict::new(
        VerdictTone::Working,
        format!("Applying: {finished} of {rows} {noun} finished"),
        detail,
    ))
}

fn unstarted(status: &Status) -> Option<PageVerdict> {
    let title = match (&status.repository.commit, &status.world, &status.plan) {
        (None, _, _) => "Planning: the repository was not read yet",
        (_, None, _) => "Planning: the cluster was not observed yet",
        (_, _, None) => "Planning: no plan was made yet",
        _ => return None,
    };
    Some(PageVerdict::new(VerdictTone::Working, title, ""))
}

/// Returns the verdict of a plan that an operator has to approve or confirm.
fn waiting(current: &PublishedPlan) -> Option<PageVerdict> {
    let count = |is: fn(&BlockedReason) -> bool| {
        current.blocked.values().filter(|blocked| is(&blocked.reason)).count()
    };
    let detail = format!("The plan {}.", changes_text(&current.plan));
    if count(|reason| matches!(reason, BlockedReason::NotApproved { .. })) > 0 {
        return Some(PageVerdict::new(VerdictTone::Waiting, "Waiting for approval", detail));
    }
    let title = match count(|reason| matches!(reason, BlockedReason::NotConfirmed { .. })) {
        0 => return None,
        1 => "Waiting for confirmation of 1 removal".to_owned(),
        n => format!("Waiting for confirmation of {n} removals"),
    };
    Some(PageVerdict::new(VerdictTone::Waiting, title, detail))
}

/// Returns the number of blocked changes by gate. Changes in progress are not blocked.
fn gates(current: &PublishedPlan) -> BTreeMap<&'static str, usize> {
    let mut gates: BTreeMap<&str, usize> = BTreeMap::new();
    for blocked in current.blocked.values() {
        if blocked.reason != BlockedReason::InProgress {
            *gates.entry(gate(&blocked.reason)).or_default() += 1;
        }
    }
    gates
}

/// Returns the verdict of a plan whose changes are all blocked for a time.
fn blocked(current: &PublishedPlan) -> Option<PageVerdict> {
    let gates = gates(current);
    let (gate, most) = gates.iter().max_by_key(|(_, n)| **n)?;
    let all: usize = gates.values().sum();
    let more = match all - most {
        0 => String::new(),
        more => format!(", {more} more for other reasons"),
    };
    let noun = if *most == 1 { "change" } else { "changes" };
    let title = format!("Blocked by {gate}: {most} {noun}{more}");
    let detail = format!("The plan {}.", changes_text(&current.plan));
    Some(PageVerdict::new(VerdictTone::Waiting, title, detail))
}

fn in_sync(plan: &Plan) -> PageVerdict {
    if has_changes(plan) {
        let title = format!("Planned: {}", changes_text(plan));
        return PageVerdict::new(VerdictTone::Working, title, "");
    }
    no_changes(plan, "In sync", "The fleet matches the repository.")
}

/// Returns the gate that blocks a change, as a noun.
pub(super) fn gate(reason: &BlockedReason) -> &'static str {
    match reason {
        BlockedReason::NotLeader => "standby (another replica is the leader)",
        BlockedReason::Mode { .. } => "the mode of the controller",
        BlockedReason::Suspended { .. } => "suspension",
        BlockedReason::NotApplyable { .. } => "an error of the plan",
        BlockedReason::OutsideWindow { .. } => "apply window",
        BlockedReason::NotApproved { .. } => "missing approval",
        BlockedReason::NotConfirmed { .. } => "missing confirmation",
        BlockedReason::LaunchBudget { .. } => "launch budget",
        BlockedReason::RemovalBudget { .. } => "removal budget",
        BlockedReason::MassRemoval { .. } | BlockedReason::UnexplainedRemoval { .. } => {
            "mass removal"
        }
        BlockedReason::PodsMissing => "pods that do not exist",
        BlockedReason::Settling { .. } => "settle time",
        BlockedReason::ConsolidateAfter { .. } => "consolidateAfter",
        BlockedReason::PodsArriving { .. } => "pods on their way to launched nodes",
        BlockedReason::MassUnready { .. } => "unready nodes",
        BlockedReason::Breaker { .. } => "breaker",
        BlockedReason::Quarantined { .. } => "quarantine",
        BlockedReason::GroupBlocked { .. } => "a blocked change of the same group",
        BlockedReason::BackingOff { .. } => "retry backoff",
        BlockedReason::LaunchInDoubt { .. } => "launches with an unknown result",
        BlockedReason::InProgress => "a change in progress",
    }
}

/// Renders the totals of the fleet.
pub(super) fn status_totals(status: &Status) -> String {
    let (Some(world), plan) = (&status.world, &status.plan) else {
        return status.plan.as_ref().map_or_else(String::new, |current| totals(&current.plan));
    };
    let oldest = world.pending_for.filter(|_| world.pending > 0);
    let oldest = oldest.map_or_else(String::new, |oldest| format!(", oldest {}", span(oldest)));
    let pending = format!("pending pods{oldest}");
    let mut items = vec![
        ("nodes Ready", format!("{} of {}", world.ready, world.nodes)),
        ("pods", world.pods.to_string()),
        (pending.as_str(), world.pending.to_string()),
    ];
    if let Some(current) = plan {
        let (nodes, cost) = (&current.plan.summary.nodes, &current.plan.capacity.cost);
        items.push(("now", monthly(cost.hourly_before)));
        let planned: Vec<String> = [("+", nodes.launch), ("−", nodes.terminate)]
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(sign, n)| format!("{sign}{n}"))
            .collect();
        if !planned.is_empty() {
            items.push(("nodes planned", planned.join(" ")));
            if cost.hourly_delta != MicroUsd::ZERO {
                items.push(("planned", monthly_delta(cost.hourly_delta)));
            }
        }
    }
    total_list(&items)
}

/// Renders mode, role, commit, plan and observation.
pub(super) fn status_facts(status: &Status, kind: PageKind) -> String {
    let mut facts: Vec<(&str, String)> = Vec::new();
    if kind == PageKind::Preview {
        facts.push(("Mode", "preview: nothing is applied".to_owned()));
    } else {
        facts.push(("Mode", text(status.mode.as_str(), NAME)));
        let role = match (&status.lease_holder, status.is_leader) {
            (_, true) => "leader".to_owned(),
            (Some(other), false) => format!("standby of {}", text(other, NAME)),
            (None, false) => "waits for the lease".to_owned(),
        };
        facts.push(("Replica", role));
    }
    let plan = status.plan.as_ref();
    if let Some(commit) = &status.repository.commit {
        facts.push(("Commit", commit_of(status, commit)));
    }
    let repository = plan.and_then(|current| current.plan.capacity.base.repository.as_deref());
    facts.extend(origin_facts(repository, status.repository.origin.as_ref()));
    if let Some(current) = plan {
        let known = |name: &str| facts.iter().any(|(other, _)| *other == name);
        let more: Vec<_> = plan_facts(&current.plan, Some(status.now))
            .into_iter()
            .filter(|(name, _)| !known(name))
            // The controller has observed the cluster again since the plan.
            .filter(|(name, _)| *name != "Observed" || status.world.is_none())
            .collect();
        facts.extend(more);
    }
    if let Some(world) = &status.world {
        let age = if world.age.as_secs() < 1 {
            "now".to_owned()
        } else {
            format!("{} ago", span(world.age))
        };
        facts.push(("Observed", age));
    }
    fact_list(&facts)
}
