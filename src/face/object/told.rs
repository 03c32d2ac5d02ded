//! What the object of a plan tells of how it was carried out: for whoever did not do that itself.
//!
//! Invariant: what cannot be read is an error, and never a plan that was not carried out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use super::plan::{BROKEN, BY_DIGEST, NOT_LISTED, SUPERSEDED};
use crate::apply::{ChangeOutcome, Outcome, Receipt, Verdict};
use crate::ids::PlanId;
use crate::plan::wire::WaveStep;
use crate::reconcile::{ApprovedBy, Past, Superseded};
use crate::units::MicroUsd;

/// What an object tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// How the plan was carried out, where it was begun.
    pub past: Option<Past>,
    /// That another plan took the place of this one before, where that is so.
    pub superseded: Option<Superseded>,
    /// Whether it says that its plan is the current one.
    pub is_current: bool,
    /// Whether it does not say how that ended: somebody carries it out, or was gone before.
    pub is_open: bool,
}

#[derive(Deserialize)]
struct Spec {
    digest: String,
    #[serde(default)]
    commit: Option<String>,
    cost: Cost,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cost {
    hourly_before: String,
    hourly_after: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    current: bool,
    conditions: Vec<Said>,
    #[serde(default)]
    outcomes: Vec<Row>,
    #[serde(default)]
    outcomes_omitted: u32,
    #[serde(default)]
    approved_by: Option<String>,
    #[serde(default)]
    started_at: Option<Timestamp>,
    #[serde(default)]
    finished_at: Option<Timestamp>,
    /// Of objects that an earlier version wrote the conditions alone tell, and of words that only a later one knows.
    #[serde(default, deserialize_with = "known")]
    verdict: Option<Ended>,
}

fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ended>, D::Error> {
    let said = Json::deserialize(deserializer)?;
    Ok(Ended::deserialize(said).ok())
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    Refused,
    #[serde(untagged)]
    With(Verdict),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    reason: String,
    message: String,
    last_transition_time: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    address: String,
    step: WaveStep,
    outcome: String,
    #[serde(default)]
    why: Option<String>,
    #[serde(default)]
    instance_id: Option<String>,
}

/// Returns what the object of a plan tells.
///
/// # Errors
/// With the reason, when it is none that this program writes.
pub fn told(spec: Option<&Json>, status: &Json) -> Result<Told, String> {
    let read = |error: serde_json::Error| error.to_string();
    if status.is_null() {
        return Err("it has no status".to_owned());
    }
    let status: Status = Deserialize::deserialize(status).map_err(read)?;
    let is_current = status.current;
    let superseded = status.conditions.iter().find(|condition| condition.reason == SUPERSEDED);
    let superseded = superseded.map(|condition| condition.last_transition_time);
    if (status.started_at, superseded) == (None, None) {
        return Ok(Told { past: None, superseded: None, is_current, is_open: false });
    }
    let spec = spec.ok_or("it has no spec")?;
    let Spec { digest, commit, cost } = Deserialize::deserialize(spec).map_err(read)?;
    let Some(started_at) = status.started_at else {
        let superseded = superseded.map(|at| Superseded { digest: digest.into(), at });
        return Ok(Told { past: None, superseded, is_current, is_open: false });
    };
    let is_open = status.finished_at.is_none();
    let price = |text: &str| text.parse::<MicroUsd>().map_err(|error| error.to_string());
    let ended_at = status.finished_at.unwrap_or(started_at);
    let mut past = Past {
        // An object is of its decisions, however often they were taken.
        plan_id: PlanId::from(""),
        digest: digest.into(),
        commit: commit.unwrap_or_default(),
        approved: approved(status.approved_by.as_deref()),
        started_at,
        ended_at,
        receipt: None,
        refused: None,
        outcomes: BTreeMap::new(),
        hourly_before: price(&cost.hourly_before)?,
        hourly_after: price(&cost.hourly_after)?,
        decided: None,
    };
    ends(&mut past, status)?;
    Ok(Told { past: Some(past), superseded: None, is_current, is_open })
}

/// Adds how it ended.
fn ends(past: &mut Past, status: Status) -> Result<(), String> {
    let Status { conditions, outcomes, outcomes_omitted, finished_at, verdict, .. } = status;
    if finished_at.is_none() {
        let why =
            "whoever carried it out was gone before it ended; what it left, later plans took up";
        past.refused = Some(why.to_owned());
        return Ok(());
    }
    let said = |word: &str| conditions.iter().find(|condition| condition.reason == word);
    let nothing = outcomes.is_empty() && outcomes_omitted == 0;
    if matches!(verdict, Some(Ended::Refused)) || (verdict.is_none() && nothing) {
        let why = said("Refused").map(|condition| condition.message.clone());
        past.refused = Some(why.unwrap_or_else(|| "it is not known any more why".to_owned()));
        return Ok(());
    }
    let outcomes: Vec<ChangeOutcome> = outcomes.into_iter().map(row).collect::<Result<_, _>>()?;
    let settled = outcomes.iter().all(|row| row.outcome.is_settled());
    let verdict = match (verdict, said("Interrupted"), settled) {
        (Some(Ended::With(verdict)), _, _) => verdict,
        (_, Some(_), _) => Verdict::Interrupted,
        (_, None, true) => Verdict::Applied,
        (_, None, false) => Verdict::Partly,
    };
    for row in &outcomes {
        *past.outcomes.entry(row.outcome.as_str().to_owned()).or_default() += 1;
    }
    if outcomes_omitted > 0 {
        past.outcomes.insert(NOT_LISTED.to_owned(), outcomes_omitted);
    }
    past.receipt = Some(Receipt {
        plan_id: past.plan_id.clone(),
        digest: past.digest.clone(),
        outcomes,
        started_at: past.started_at,
        finished_at: past.ended_at,
        verdict,
    });
    Ok(())
}

fn row(row: Row) -> Result<ChangeOutcome, String> {
    let why = row.why.unwrap_or_default();
    let outcome = match row.outcome.as_str() {
        "done" => Outcome::Done,
        "already-done" => Outcome::AlreadyDone,
        "dropped" => Outcome::Dropped { why },
        "skipped" => Outcome::Skipped { why },
        "given-up" => Outcome::GivenUp { why },
        "failed" => Outcome::Failed { why },
        other => return Err(format!("the outcome `{}` is none", other.escape_debug())),
    };
    let instance_id = row.instance_id.map(Into::into);
    Ok(ChangeOutcome { address: row.address.into(), step: row.step, instance_id, outcome })
}

fn approved(text: Option<&str>) -> ApprovedBy {
    let text = text.unwrap_or_default();
    if let Some(who) = text.strip_prefix(BY_DIGEST) {
        return ApprovedBy::Digest { who: who.to_owned() };
    }
    if let Some((who, reason)) = text.strip_prefix(BROKEN).and_then(|rest| rest.split_once(": ")) {
        return ApprovedBy::BreakGlass { who: who.to_owned(), reason: reason.to_owned() };
    }
    match text {
        "merge" => ApprovedBy::Merge,
        "policy" => ApprovedBy::Policy,
        _ => ApprovedBy::Unknown,
    }
}
