//! The object of a plan.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::condition::{Condition, Standing, State, needs_somebody, reason};
use super::{Object, ObjectKind, ROWS_MAX, short};
use crate::apply::{ChangeOutcome, Outcome, Verdict};
use crate::face::words;
use crate::ids::{Address, Digest};
use crate::plan::Plan;
use crate::plan::wire::{Action, ExplainRow, NodeTotals, PodTotals, ResourceChange, workload_key};
use crate::reconcile::{
    ApprovedBy, Decided, Held, HeldBy, Part, Past, PlanNow, Status, Superseded,
};
use crate::render::web::row_reason;

/// Digits of the digest that name the object.
const NAME_DIGITS: usize = 16;
/// Most workloads without a place that are listed.
const UNSCHEDULABLE_MAX: usize = 50;
/// Most addresses that one reason for holding back names.
const NAMED_MAX: usize = 5;

/// What a plan decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanSpec {
    /// SHA-256 over the decisions: what is approved.
    pub digest: String,
    /// The decisions in a line.
    pub summary: String,
    /// Commit that it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The repository, without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Whether it may be carried out at all.
    pub applyable: bool,
    /// Whether inputs had errors.
    pub errored: bool,
    /// Nodes.
    pub nodes: NodeCounts,
    /// Pods.
    pub pods: PodCounts,
    /// Money.
    pub cost: Money,
    /// What changes, the removals first.
    pub rows: Vec<RowSpec>,
    /// How many more change.
    pub rows_omitted: u32,
    /// Pods without a place.
    pub unschedulable: Vec<UnschedulableSpec>,
    /// How many more workloads have pods without a place.
    pub unschedulable_omitted: u32,
}

/// Numbers of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes before.
    pub before: u32,
    /// Nodes that are launched.
    pub launch: u32,
    /// Nodes that are terminated.
    pub terminate: u32,
    /// Nodes after.
    pub after: u32,
}

/// Numbers of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Pods planned.
    pub total: u32,
    /// Pods with a place.
    pub placed: u32,
    /// Pods without.
    pub unschedulable: u32,
    /// Workloads whose size is not known.
    pub unresolved: u32,
}

/// Money, in US dollars as decimal texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Money {
    /// Price per hour before.
    pub hourly_before: String,
    /// Price per hour after.
    pub hourly_after: String,
    /// The difference in a month of 730 hours.
    pub monthly_delta: String,
}

/// A row that changes something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RowSpec {
    /// Address within the plan.
    pub address: String,
    /// `create`, `delete`, `create, delete` or `update`.
    pub actions: String,
    /// Instance type after, or before where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Zone after, or before where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Node, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why, with numbers.
    pub reason: String,
}

/// Pods without a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableSpec {
    /// Workload, as `namespace/kind/name`.
    pub workload: String,
    /// How many pods.
    pub pods: u32,
    /// The change that would help, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

/// What came of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// The generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Synced` or `OutOfSync`.
    pub sync: String,
    /// `Healthy`, `Progressing`, `Suspended` or `Degraded`.
    pub health: String,
    /// Whether it is the plan that is pursued now.
    pub current: bool,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// What holds changes back, by reason.
    pub held: Vec<HeldStatus>,
    /// Outcomes of rows.
    pub outcomes: Vec<OutcomeStatus>,
    /// How many more rows have an outcome.
    pub outcomes_omitted: u32,
    /// How it came to be approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// When it was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// How that ended: `applied`, `partly`, `interrupted`, or `refused` where nothing was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
}

/// What holds changes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldStatus {
    /// Reason, as one word.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
    /// How many rows.
    pub rows: u32,
    /// The first of them.
    pub first: Vec<String>,
}

/// How one row ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeStatus {
    /// Address within the plan.
    pub address: String,
    /// `launch`, `retire` or the like.
    pub step: String,
    /// `done`, `already-done`, `dropped`, `skipped`, `given-up` or `failed`.
    pub outcome: String,
    /// Why, where it is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
}

impl PlanStatus {
    /// Returns how far a plan has come of which nothing else is known.
    fn of(standing: &Standing) -> Self {
        Self {
            observed_generation: None,
            sync: standing.state.sync().to_owned(),
            health: standing.state.health().to_owned(),
            current: false,
            conditions: standing.conditions(),
            held: Vec::new(),
            outcomes: Vec::new(),
            outcomes_omitted: 0,
            approved_by: None,
            started_at: None,
            finished_at: None,
            verdict: None,
        }
    }
}

/// Returns the objects of plans, the current one first.
pub(super) fn objects(status: &Status) -> Vec<Object> {
    let mut objects = Vec::new();
    if let Some(current) = &status.plan {
        let (spec, status) = (spec(&current.plan), of_current(status, current));
        objects.push(Object::new(
            ObjectKind::CapacityPlan,
            plan_name(&spec.digest),
            Some(&spec),
            &status,
        ));
    }
    for part in &status.parts {
        let spec = spec(&part.plan);
        let name = plan_name(&spec.digest);
        objects.push(Object::new(ObjectKind::CapacityPlan, name, Some(&spec), &of_part(part)));
    }
    for past in &status.history {
        let name = plan_name(past.digest.as_str());
        if objects.iter().any(|object| object.name == name) {
            continue;
        }
        let none: Option<&PlanSpec> = None;
        let object = Object::new(ObjectKind::CapacityPlan, name, none, &of_past(past));
        objects.push(object.made_with(brief(past).as_ref()));
    }
    objects
}

/// Returns the objects of plans that others took the place of: those that are there are told so.
pub(super) fn superseded(status: &Status) -> Vec<Object> {
    let current = status.plan.iter().map(PlanNow::digest);
    let known: Vec<&Digest> =
        current.chain(status.history.iter().map(|past| &past.digest)).collect();
    let former = status.superseded.iter().filter(|former| !known.contains(&&former.digest));
    let object = |former: &Superseded| {
        let (name, none) = (plan_name(former.digest.as_str()), None::<&PlanSpec>);
        Object::new(ObjectKind::CapacityPlan, name, none, &of_superseded(former))
    };
    former.map(object).collect()
}

fn of_superseded(former: &Superseded) -> PlanStatus {
    let message = "another plan took its place before anything of it was carried out".to_owned();
    let (state, reason) = (State::Superseded, SUPERSEDED.to_owned());
    let standing = Standing { state, reason, message, since: former.at };
    PlanStatus::of(&standing)
}

/// Returns the name of a plan's object: the same decisions have the same.
#[must_use]
pub fn plan_name(digest: &str) -> String {
    let digits = digest.trim_start_matches("sha256:").chars().filter(char::is_ascii_hexdigit);
    let digits: String = digits.take(NAME_DIGITS).map(|c| c.to_ascii_lowercase()).collect();
    format!("plan-{digits}")
}

fn spec(plan: &Plan) -> PlanSpec {
    let capacity = &plan.capacity;
    let explain: BTreeMap<&Address, &ExplainRow> =
        capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let mut rows: Vec<&ResourceChange> =
        plan.resource_changes.iter().filter(|r| changes(r)).collect();
    rows.sort_by_key(|row| (!row.change.actions.contains(&Action::Delete), &row.address));
    let row = |row: &&ResourceChange| of_row(row, explain.get(&row.address).copied());
    let listed: Vec<RowSpec> = rows.iter().take(ROWS_MAX).map(row).collect();
    let without = &capacity.unschedulable;
    PlanSpec {
        digest: capacity.digest.to_string(),
        summary: crate::render::web::summary(plan),
        commit: capacity.base.commit.clone(),
        repository: capacity.base.repository.as_deref().map(short),
        applyable: plan.applyable,
        errored: plan.errored,
        nodes: of_nodes(plan.summary.nodes),
        pods: of_pods(capacity.pods),
        cost: Money {
            hourly_before: capacity.cost.hourly_before.to_string(),
            hourly_after: capacity.cost.hourly_after.to_string(),
            monthly_delta: capacity.cost.monthly_delta.to_string(),
        },
        rows_omitted: beyond(rows.len(), listed.len()),
        rows: listed,
        unschedulable: without.iter().take(UNSCHEDULABLE_MAX).map(of_unschedulable).collect(),
        unschedulable_omitted: beyond(without.len(), UNSCHEDULABLE_MAX.min(without.len())),
    }
}

/// Returns what a plan decided as far as the history tells, for one that was never the current one: that of a
/// part of what is planned.
fn brief(past: &Past) -> Option<PlanSpec> {
    let Decided { repository, summary, changes, pods, unschedulable, monthly_delta } =
        past.decided.as_ref()?;
    Some(PlanSpec {
        digest: past.digest.to_string(),
        summary: crate::render::web::summary_of(summary, *monthly_delta),
        commit: Some(past.commit.clone()),
        repository: repository.as_deref().map(short),
        // It was carried out.
        applyable: true,
        errored: false,
        nodes: of_nodes(summary.nodes),
        pods: of_pods(*pods),
        cost: Money {
            hourly_before: past.hourly_before.to_string(),
            hourly_after: past.hourly_after.to_string(),
            monthly_delta: monthly_delta.to_string(),
        },
        rows: Vec::new(),
        rows_omitted: *changes,
        unschedulable: Vec::new(),
        unschedulable_omitted: *unschedulable,
    })
}

fn of_nodes(nodes: NodeTotals) -> NodeCounts {
    let NodeTotals { before, launch, terminate, after } = nodes;
    NodeCounts { before, launch, terminate, after }
}

fn of_pods(pods: PodTotals) -> PodCounts {
    let PodTotals { total, placed, unschedulable, unresolved, fargate: _, moved: _ } = pods;
    PodCounts { total, placed, unschedulable, unresolved }
}

fn beyond(all: usize, listed: usize) -> u32 {
    u32::try_from(all.saturating_sub(listed)).unwrap_or(u32::MAX)
}

fn changes(row: &ResourceChange) -> bool {
    row.change.actions.iter().any(|action| *action != Action::NoOp)
}

fn of_row(row: &ResourceChange, explain: Option<&ExplainRow>) -> RowSpec {
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
        address: short(row.address.as_str()),
        actions: change.actions.iter().map(word).collect::<Vec<_>>().join(", "),
        instance_type: state.and_then(|s| s.instance_type.as_ref()).map(ToString::to_string),
        zone: state.and_then(|s| s.zone.as_ref()).map(ToString::to_string),
        node: node.map(ToString::to_string),
        reason: explain.map(|explain| short(&row_reason(explain))).unwrap_or_default(),
    }
}

fn of_unschedulable(row: &crate::plan::wire::UnschedulableRow) -> UnschedulableSpec {
    UnschedulableSpec {
        workload: short(&workload_key(&row.workload)),
        pods: row.pods,
        nearest: row.nearest.as_deref().map(short),
    }
}

fn of_current(status: &Status, current: &PlanNow) -> PlanStatus {
    let standing = standing(status, current);
    let digest = current.digest();
    let past = status.history.iter().find(|past| past.digest == *digest);
    let (outcomes, omitted) = past.map(|past| outcomes(past)).unwrap_or_default();
    let applying = status.applying.get(&current.plan.capacity.plan_id);
    let ended = past.filter(|_| applying.is_none());
    PlanStatus {
        current: true,
        held: held(&current.held),
        outcomes,
        outcomes_omitted: omitted,
        approved_by: past.map(|past| approved(&past.approved)),
        started_at: applying.map(|(_, since)| *since).or(past.map(|past| past.started_at)),
        finished_at: ended.map(|past| past.ended_at),
        verdict: ended.map(|past| verdict_of(past)),
        ..PlanStatus::of(&standing)
    }
}

fn of_part(part: &Part) -> PlanStatus {
    let rows = part.plan.resource_changes.iter().filter(|row| changes(row)).count();
    let (state, reason) = (State::Progressing, APPLYING.to_owned());
    let message = format!("{rows} changes are under way");
    let standing = Standing { state, reason, message, since: part.since };
    PlanStatus {
        approved_by: Some(approved(&part.approved)),
        started_at: Some(part.since),
        ..PlanStatus::of(&standing)
    }
}

/// Returns how far the current plan has come.
fn standing(status: &Status, current: &PlanNow) -> Standing {
    let plan = &*current.plan;
    let since = current.since;
    let of = |state, reason: &str, message: String| Standing {
        state,
        reason: reason.to_owned(),
        message,
        since,
    };
    if plan.errored {
        let message =
            "the inputs have errors, so that the plan shows what could be read".to_owned();
        return of(State::Degraded, "InputsHaveErrors", message);
    }
    let rows: Vec<&Address> =
        plan.resource_changes.iter().filter(|r| changes(r)).map(|row| &row.address).collect();
    if rows.is_empty() {
        return match plan.capacity.pods.unschedulable {
            0 => of(State::Synced, "NothingToDo", "what runs is what is asked for".to_owned()),
            pods => of(State::Degraded, "Unschedulable", format!("{pods} pods have no place")),
        };
    }
    if let Some(since) = status.applying.values().map(|(_, since)| *since).min() {
        let busy: usize = status.applying.values().map(|(rows, _)| rows.len()).sum();
        let message = format!("{busy} of {} changes are under way", rows.len());
        return Standing { since, ..of(State::Progressing, APPLYING, message) };
    }
    let open = rows.iter().filter(|address| !current.held.contains_key(**address)).count();
    if open > 0 {
        let message = format!("{open} of {} changes are next", rows.len());
        return of(State::Progressing, "Pending", message);
    }
    let first = rows.iter().find_map(|address| current.held.get(*address));
    let by_hand = rows.iter().filter_map(|address| current.held.get(*address));
    let by_hand = by_hand.clone().find(|by| needs_somebody(&by.why));
    match (by_hand, first) {
        (Some(by), _) => of(State::Suspended, &reason(&by.why), by.says.clone()),
        (None, Some(by)) => of(State::Waiting, &reason(&by.why), by.says.clone()),
        (None, None) => of(State::Progressing, "Pending", "changes are next".to_owned()),
    }
}

fn held(all: &BTreeMap<Address, HeldBy>) -> Vec<HeldStatus> {
    let mut reasons: BTreeMap<String, HeldStatus> = BTreeMap::new();
    for (address, HeldBy { why, says }) in all {
        // What is under way is no obstacle.
        if *why == Held::UnderWay {
            continue;
        }
        let reason = words::held(why);
        let row = reasons.entry(reason.clone()).or_insert_with(|| HeldStatus {
            reason,
            message: short(says),
            rows: 0,
            first: Vec::new(),
        });
        row.rows += 1;
        if row.first.len() < NAMED_MAX {
            row.first.push(short(address.as_str()));
        }
    }
    reasons.into_values().collect()
}

/// Reason of a plan that is carried out.
const APPLYING: &str = "Applying";
/// Reason of a plan that another one took the place of.
pub(super) const SUPERSEDED: &str = "Superseded";
/// How what approved a plan is told, before who it was.
pub(super) const BY_DIGEST: &str = "digest, by ";
pub(super) const BROKEN: &str = "nobody: the glass was broken by ";
const UNKNOWN: &str = "not known any more";
/// How an apply ended that was refused before its first change.
const REFUSED: &str = "refused";
/// Under which name outcomes are counted that an object does not list.
pub(super) const NOT_LISTED: &str = "not listed";

fn approved(by: &ApprovedBy) -> String {
    match by {
        ApprovedBy::Merge => "merge".to_owned(),
        ApprovedBy::Digest { who } => format!("{BY_DIGEST}{}", short(who)),
        ApprovedBy::Policy => "policy".to_owned(),
        ApprovedBy::BreakGlass { who, reason } => {
            format!("{BROKEN}{}: {}", short(who), short(reason))
        }
        ApprovedBy::Unknown => UNKNOWN.to_owned(),
    }
}

fn outcomes(past: &Past) -> (Vec<OutcomeStatus>, u32) {
    let all = past.receipt.as_ref().map(|receipt| &receipt.outcomes[..]).unwrap_or_default();
    let mut rows: Vec<&ChangeOutcome> = all.iter().collect();
    // What went wrong is what somebody looks for.
    rows.sort_by_key(|row| row.outcome.is_settled());
    let listed = rows.into_iter().take(ROWS_MAX).map(of_outcome).collect();
    // Whoever reads an object that does not list them all knows no more than how many there are.
    let before = past.outcomes.get(NOT_LISTED).copied().unwrap_or(0);
    (listed, beyond(all.len(), ROWS_MAX.min(all.len())).saturating_add(before))
}

fn of_outcome(row: &ChangeOutcome) -> OutcomeStatus {
    let why = match &row.outcome {
        Outcome::Done | Outcome::AlreadyDone => None,
        Outcome::Dropped { why }
        | Outcome::Skipped { why }
        | Outcome::GivenUp { why }
        | Outcome::Failed { why } => Some(why),
    };
    let step = serde_json::to_value(row.step).unwrap_or_default();
    OutcomeStatus {
        address: short(row.address.as_str()),
        step: step.as_str().unwrap_or_default().to_owned(),
        outcome: row.outcome.as_str().to_owned(),
        why: why.map(|why| short(why)),
        instance_id: row.instance_id.as_ref().map(ToString::to_string),
    }
}

fn of_past(past: &Past) -> PlanStatus {
    let verdict = past.receipt.as_ref().map(|receipt| receipt.verdict);
    let (state, reason, message) = match (verdict, &past.refused) {
        (Some(Verdict::Applied), _) => {
            (State::Synced, "Applied", "everything that was decided is done".to_owned())
        }
        (Some(Verdict::Partly), _) => (State::Degraded, "PartlyApplied", counts(past)),
        (Some(Verdict::Interrupted), _) => (State::Degraded, "Interrupted", counts(past)),
        (None, why) => (State::Degraded, "Refused", why.clone().unwrap_or_default()),
    };
    let standing = Standing { state, reason: reason.to_owned(), message, since: past.ended_at };
    let (outcomes, outcomes_omitted) = outcomes(past);
    PlanStatus {
        outcomes,
        outcomes_omitted,
        approved_by: Some(approved(&past.approved)),
        started_at: Some(past.started_at),
        finished_at: Some(past.ended_at),
        verdict: Some(verdict_of(past)),
        ..PlanStatus::of(&standing)
    }
}

/// Returns how the carrying out of a plan ended, as one word.
fn verdict_of(past: &Past) -> String {
    let verdict = past.receipt.as_ref().map(|receipt| receipt.verdict);
    verdict.map_or(REFUSED, Verdict::as_str).to_owned()
}

fn counts(past: &Past) -> String {
    let parts = past.outcomes.iter().map(|(name, n)| format!("{n} {name}"));
    parts.collect::<Vec<_>>().join(", ")
}
