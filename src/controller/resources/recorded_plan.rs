//! Parses plan objects that other processes wrote.
//!
//! Invariant: an unreadable object is an error, and never a plan without an apply.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use super::condition::ConditionReason;
use super::plan::{BY_BREAK_GLASS, BY_CONTINGENCY, BY_DIGEST, OMITTED};
use crate::apply::{ApplyStatus, ChangeOutcome, Outcome, Receipt};
use crate::controller::{ApprovedBy, CompletedApply, SupersededPlan};
use crate::model::ids::PlanId;
use crate::model::units::MicroUsd;
use crate::plan::wire::WaveStep;

/// Contents of a plan object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedPlan {
    /// The apply of the plan, if it was started.
    pub completed: Option<CompletedApply>,
    /// The replacement of the plan, if it was superseded.
    pub superseded: Option<SupersededPlan>,
    /// True if the object marks its plan as current.
    pub is_current: bool,
    /// True if the apply has no recorded end: it is in progress, or its process died.
    pub is_open: bool,
}

#[derive(Deserialize)]
struct WireSpec {
    digest: String,
    #[serde(default)]
    commit: Option<String>,
    cost: WireCost,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCost {
    hourly_before: String,
    hourly_after: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    current: bool,
    conditions: Vec<WireCondition>,
    #[serde(default)]
    outcomes: Vec<WireOutcome>,
    #[serde(default)]
    outcomes_omitted: u32,
    #[serde(default)]
    approved_by: Option<String>,
    #[serde(default)]
    started_at: Option<Timestamp>,
    #[serde(default)]
    finished_at: Option<Timestamp>,
    /// Absent before the end. Unknown values, of a later version, count as absent.
    #[serde(default, deserialize_with = "known_verdict")]
    verdict: Option<WireVerdict>,
}

fn known_verdict<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<WireVerdict>, D::Error> {
    let found = Json::deserialize(deserializer)?;
    Ok(WireVerdict::deserialize(found).ok())
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum WireVerdict {
    Refused,
    #[serde(untagged)]
    Finished(ApplyStatus),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCondition {
    reason: String,
    message: String,
    last_transition_time: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireOutcome {
    address: String,
    step: WaveStep,
    outcome: String,
    #[serde(default)]
    why: Option<String>,
    #[serde(default)]
    instance_id: Option<String>,
}

/// Parses a plan object.
///
/// # Errors
/// The reason, if this program has not written the object.
pub fn parse_recorded_plan(spec: Option<&Json>, status: &Json) -> Result<RecordedPlan, String> {
    let read = |error: serde_json::Error| error.to_string();
    if status.is_null() {
        return Err("it has no status".to_owned());
    }
    let status: WireStatus = Deserialize::deserialize(status).map_err(read)?;
    let is_current = status.current;
    let superseded = status
        .conditions
        .iter()
        .find(|condition| condition.reason == ConditionReason::Superseded.as_str());
    let superseded = superseded.map(|condition| condition.last_transition_time);
    if (status.started_at, superseded) == (None, None) {
        return Ok(RecordedPlan { completed: None, superseded: None, is_current, is_open: false });
    }
    let spec = spec.ok_or("it has no spec")?;
    let WireSpec { digest, commit, cost } = Deserialize::deserialize(spec).map_err(read)?;
    let Some(started_at) = status.started_at else {
        let superseded = superseded.map(|at| SupersededPlan { digest: digest.into(), at });
        return Ok(RecordedPlan { completed: None, superseded, is_current, is_open: false });
    };
    let is_open = status.finished_at.is_none();
    let price = |text: &str| text.parse::<MicroUsd>().map_err(|error| error.to_string());
    let ended_at = status.finished_at.unwrap_or(started_at);
    let mut apply = CompletedApply {
        // An object is named after its decisions, so the plan id is unknown.
        plan_id: PlanId::from(""),
        digest: digest.into(),
        commit: commit.unwrap_or_default(),
        approved: parse_approval(status.approved_by.as_deref()),
        started_at,
        ended_at,
        receipt: None,
        refused: None,
        outcomes: BTreeMap::new(),
        hourly_before: price(&cost.hourly_before)?,
        hourly_after: price(&cost.hourly_after)?,
        decided: None,
    };
    set_outcome(&mut apply, status)?;
    Ok(RecordedPlan { completed: Some(apply), superseded: None, is_current, is_open })
}

/// Sets the outcome of the apply.
fn set_outcome(apply: &mut CompletedApply, status: WireStatus) -> Result<(), String> {
    let WireStatus { conditions, outcomes, outcomes_omitted, finished_at, verdict, .. } = status;
    // The process ended before the apply.
    if finished_at.is_none() {
        apply.receipt = Some(receipt(apply, Vec::new(), ApplyStatus::Interrupted));
        return Ok(());
    }
    let found = |word: &str| conditions.iter().find(|condition| condition.reason == word);
    let nothing = outcomes.is_empty() && outcomes_omitted == 0;
    if matches!(verdict, Some(WireVerdict::Refused)) || (verdict.is_none() && nothing) {
        let why = found("Refused").map(|condition| condition.message.clone());
        apply.refused = Some(why.unwrap_or_else(|| "the reason is unknown".to_owned()));
        return Ok(());
    }
    let outcomes: Vec<ChangeOutcome> =
        outcomes.into_iter().map(change_outcome).collect::<Result<_, _>>()?;
    let settled = outcomes.iter().all(|row| row.outcome.is_settled());
    let verdict = match (verdict, found("Interrupted"), settled) {
        (Some(WireVerdict::Finished(verdict)), _, _) => verdict,
        (_, Some(_), _) => ApplyStatus::Interrupted,
        (_, None, true) => ApplyStatus::Applied,
        (_, None, false) => ApplyStatus::Partly,
    };
    for row in &outcomes {
        *apply.outcomes.entry(row.outcome.as_str().to_owned()).or_default() += 1;
    }
    if outcomes_omitted > 0 {
        apply.outcomes.insert(OMITTED.to_owned(), outcomes_omitted);
    }
    apply.receipt = Some(receipt(apply, outcomes, verdict));
    Ok(())
}

fn receipt(apply: &CompletedApply, outcomes: Vec<ChangeOutcome>, verdict: ApplyStatus) -> Receipt {
    Receipt {
        plan_id: apply.plan_id.clone(),
        digest: apply.digest.clone(),
        outcomes,
        started_at: apply.started_at,
        finished_at: apply.ended_at,
        verdict,
    }
}

fn change_outcome(row: WireOutcome) -> Result<ChangeOutcome, String> {
    let why = row.why.unwrap_or_default();
    let outcome = match row.outcome.as_str() {
        "done" => Outcome::Done,
        "already-done" => Outcome::AlreadyDone,
        "dropped" => Outcome::Dropped { why },
        "skipped" => Outcome::Skipped { why },
        "abandoned" => Outcome::Abandoned { why },
        "continues" => Outcome::Continues { why },
        "failed" => Outcome::Failed { why },
        other => return Err(format!("the outcome `{}` is unknown", other.escape_debug())),
    };
    let instance_id = row.instance_id.map(Into::into);
    let (address, step) = (row.address.into(), row.step);
    Ok(ChangeOutcome { address, step, instance_id, launched: None, outcome })
}

fn parse_approval(text: Option<&str>) -> ApprovedBy {
    let text = text.unwrap_or_default();
    if let Some(who) = text.strip_prefix(BY_DIGEST) {
        return ApprovedBy::Digest { who: who.to_owned() };
    }
    let contingency = text.strip_prefix(BY_CONTINGENCY).and_then(|of| of.split_once(": "));
    if let Some((digest, who)) = contingency {
        return ApprovedBy::Contingency { digest: digest.into(), who: who.to_owned() };
    }
    let break_glass = text.strip_prefix(BY_BREAK_GLASS).and_then(|rest| rest.split_once(": "));
    if let Some((who, reason)) = break_glass {
        return ApprovedBy::BreakGlass { who: who.to_owned(), reason: reason.to_owned() };
    }
    match text {
        "merge" => ApprovedBy::Merge,
        "policy" => ApprovedBy::Policy,
        _ => ApprovedBy::Unknown,
    }
}
