//! The JSON lines of an apply.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::{ReceiptCounts, describe};
use crate::apply::{ApplyStatus, Event, Receipt, Step};
use crate::cli::error::CliError;
use crate::plan::Plan;
use crate::plan::wire::{DiagnosticSeverity, ResourceChange, WaveStep};
use crate::render::{
    StreamCounts, StreamDiagnostic, StreamHook, StreamLevel, StreamLine, StreamMessage,
    StreamOperation, StreamResource,
};

/// Returns the line of an event of an apply that began at `started`.
pub(super) fn line(event: &Event, started: Timestamp, plan: &Plan) -> StreamLine {
    let row = event
        .address
        .as_ref()
        .and_then(|address| plan.resource_changes.iter().find(|row| row.address == *address));
    let text = describe(&event.step);
    let text = event.address.as_ref().map_or(text.clone(), |address| format!("{address}: {text}"));
    let (level, message) = message(event, row, event.at.duration_since(started).as_secs());
    StreamLine::new(level, text, event.at, message)
}

fn message(
    event: &Event,
    row: Option<&ResourceChange>,
    elapsed_seconds: i64,
) -> (StreamLevel, StreamMessage) {
    let mut detail = detail(&event.step);
    let name = detail.remove("event").and_then(|name| Some(name.as_str()?.to_owned()));
    let hook = StreamHook {
        resource: row.map(StreamResource::from_row),
        action: half(&event.step).map(str::to_owned),
        event: name.unwrap_or_default(),
        detail,
        elapsed_seconds,
    };
    match &event.step {
        Step::Checked { dropped } => {
            (StreamLevel::Info, StreamMessage::Checked { dropped: *dropped })
        }
        Step::Wave { step, changes } => {
            let step = step.as_str().to_owned();
            (StreamLevel::Info, StreamMessage::Wave { step, changes: *changes })
        }
        Step::Launched { .. }
        | Step::Raised { .. }
        | Step::Joined { .. }
        | Step::Found { .. }
        | Step::Cordoned { .. } => (StreamLevel::Info, StreamMessage::ApplyStart { hook }),
        Step::InsufficientCapacity { .. }
        | Step::Withdrawn { .. }
        | Step::Retrying { .. }
        | Step::Unanswered
        | Step::Unreadable
        | Step::Blocked { .. }
        | Step::PodsDeleted { .. }
        | Step::NodeWriteFailed { .. }
        | Step::Uncordoned { .. } => (StreamLevel::Warn, StreamMessage::ApplyProgress { hook }),
        Step::InProgress { .. }
        | Step::Ready { .. }
        | Step::Nominated { .. }
        | Step::Waiting { .. }
        | Step::Evicted { .. }
        | Step::Terminating { .. } => (StreamLevel::Info, StreamMessage::ApplyProgress { hook }),
        Step::Finished { outcome, .. } if outcome.is_settled() => {
            (StreamLevel::Info, StreamMessage::ApplyComplete { hook })
        }
        Step::Finished { .. } => (StreamLevel::Error, StreamMessage::ApplyErrored { hook }),
    }
}

/// Returns the fields of a step, by name.
fn detail(step: &Step) -> BTreeMap<String, Value> {
    match serde_json::to_value(step) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        Ok(_) | Err(_) => BTreeMap::new(),
    }
}

/// Returns the Terraform action of a step.
fn half(step: &Step) -> Option<&'static str> {
    match step {
        Step::Launched { .. }
        | Step::InsufficientCapacity { .. }
        | Step::Withdrawn { .. }
        | Step::Unanswered
        | Step::Raised { .. }
        | Step::Joined { .. }
        | Step::Found { .. }
        | Step::Ready { .. }
        | Step::Finished { step: WaveStep::Launch, .. } => Some("create"),
        Step::Waiting { .. }
        | Step::Cordoned { .. }
        | Step::Evicted { .. }
        | Step::PodsDeleted { .. }
        | Step::Blocked { .. }
        | Step::Terminating { .. }
        | Step::Uncordoned { .. }
        | Step::Finished { step: WaveStep::Retire, .. } => Some("delete"),
        Step::Checked { .. }
        | Step::Wave { .. }
        | Step::Retrying { .. }
        | Step::Unreadable
        | Step::Nominated { .. }
        | Step::NodeWriteFailed { .. }
        | Step::InProgress { .. } => None,
    }
}

/// Returns the last line, with the counts of the apply.
pub(super) fn summary(receipt: &Receipt) -> StreamLine {
    let ReceiptCounts { launched, retired, left, dropped } = ReceiptCounts::from_receipt(receipt);
    let (level, verdict) = match receipt.verdict {
        ApplyStatus::Applied => (StreamLevel::Info, "applied"),
        ApplyStatus::Partly => (StreamLevel::Error, "partly"),
        ApplyStatus::Interrupted => (StreamLevel::Error, "interrupted"),
    };
    // The text follows Terraform for readers who know it; programs read the fields.
    let text = format!(
        "Apply {}! Resources: {launched} added, 0 changed, {retired} destroyed.",
        if receipt.verdict == ApplyStatus::Applied { "complete" } else { "incomplete" }
    );
    let message = StreamMessage::ChangeSummary {
        changes: StreamCounts {
            add: launched,
            remove: retired,
            left: Some(left),
            dropped: Some(dropped),
            operation: StreamOperation::Apply,
            ..StreamCounts::default()
        },
        digest: receipt.digest.clone(),
        applyable: None,
        errored: None,
        plan_id: Some(receipt.plan_id.clone()),
        verdict: Some(verdict.to_owned()),
    };
    StreamLine::new(level, text, receipt.finished_at, message)
}

/// Returns the line of an error that ends the command.
pub(super) fn failure(error: &CliError, now: Timestamp) -> StreamLine {
    let summary = error.to_string();
    let diagnostic = StreamDiagnostic {
        severity: DiagnosticSeverity::Error,
        summary: summary.clone(),
        detail: error.hint_text(),
        range: None,
        code: None,
        exit_code: Some(error.kind.code()),
    };
    StreamLine::new(StreamLevel::Error, summary, now, StreamMessage::Diagnostic { diagnostic })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apply::{ChangeOutcome, LaunchedOffering, Outcome};
    use crate::cli::error::CliError;
    use crate::render::stream_schema;
    use crate::testing::sample_plan;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn read(line: &StreamLine) -> Value {
        let schema: Value = serde_json::from_str(&stream_schema()).expect("JSON");
        let line: Value = serde_json::from_str(&line.to_json_line()).expect("one object");
        assert!(jsonschema::draft202012::is_valid(&schema, &line), "{line:#}");
        line
    }

    /// Steps of each kind, with the type of their line.
    fn steps() -> Vec<(Step, &'static str)> {
        let instance_id = || "i-1".into();
        let why = || "a\n\u{1b}[31m".to_owned();
        let offering = LaunchedOffering {
            instance_type: "m5.large".into(),
            zone: "us-east-1a".into(),
            capacity_type: crate::model::market::CapacityType::Spot,
            instead_of: None,
        };
        let ended = |outcome| Step::Finished { step: WaveStep::Retire, outcome };
        vec![
            (Step::Checked { dropped: 2 }, "checked"),
            (Step::Wave { step: WaveStep::Launch, changes: 3 }, "wave"),
            (
                Step::Launched { instance_id: instance_id(), offering: Some(offering) },
                "apply_start",
            ),
            (Step::Launched { instance_id: instance_id(), offering: None }, "apply_start"),
            (Step::Raised { group: "g".into(), from: 1, to: 2 }, "apply_start"),
            (Step::Cordoned { node: "n".into() }, "apply_start"),
            (Step::InProgress { left: 2 }, "apply_progress"),
            (Step::Blocked { why: why() }, "apply_progress"),
            (Step::NodeWriteFailed { why: why() }, "apply_progress"),
            (Step::Terminating { instance_id: instance_id() }, "apply_progress"),
            (ended(Outcome::Done), "apply_complete"),
            (ended(Outcome::Dropped { why: why() }), "apply_complete"),
            (ended(Outcome::Abandoned { why: why() }), "apply_errored"),
        ]
    }

    #[test]
    fn event_lines_match_the_schema() {
        let plan = sample_plan::plan().with_identity();
        let address = plan.resource_changes[0].address.clone();
        for (step, kind) in steps() {
            let event = Event { at: at(65), address: Some(address.clone()), step };
            let line = line(&event, at(0), &plan);
            let found = read(&line);
            assert_eq!(found["type"], kind);
            if kind.starts_with("apply_") {
                assert_eq!(found["hook"]["elapsed_seconds"], 65);
                assert_eq!(found["hook"]["resource"]["addr"], address.as_str());
            }
            assert!(!line.to_json_line().contains('\u{1b}'));
            assert_eq!(line.to_json_line().lines().count(), 1);
        }
    }

    #[test]
    fn event_fields_are_in_the_details() {
        let plan = sample_plan::plan().with_identity();
        let outcome = Outcome::Failed { why: "no capacity".into() };
        let step = Step::Finished { step: WaveStep::Launch, outcome };
        let found = read(&line(&Event { at: at(1), address: None, step }, at(0), &plan));
        assert_eq!(found["hook"]["event"], "finished");
        assert_eq!(found["hook"]["action"], "create");
        let detail = json!({ "step": "launch", "outcome": "failed", "why": "no capacity" });
        assert_eq!(found["hook"]["detail"], detail);
    }

    #[test]
    fn summary_line_has_counts_and_error_line_has_exit_code() {
        let left = |outcome| ChangeOutcome {
            address: "a".into(),
            step: WaveStep::Launch,
            instance_id: None,
            launched: None,
            outcome,
        };
        let why = || "w".to_owned();
        let outcomes = vec![
            left(Outcome::Done),
            left(Outcome::Dropped { why: why() }),
            left(Outcome::Failed { why: why() }),
        ];
        let (plan_id, digest, verdict) = ("p".into(), "d".into(), ApplyStatus::Partly);
        let (started_at, finished_at) = (at(0), at(9));
        let receipt = Receipt { plan_id, digest, outcomes, started_at, finished_at, verdict };
        let found = read(&summary(&receipt));
        let changes = json!({ "add": 1, "change": 0, "import": 0, "remove": 0, "left": 1,
            "dropped": 1, "operation": "apply" });
        assert_eq!((&found["changes"], &found["verdict"]), (&changes, &json!("partly")));
        let error = CliError::text("held").kind(crate::cli::Exit::Locked).hint("wait");
        let found = read(&failure(&error, at(0)));
        assert_eq!(found["diagnostic"]["exit_code"], 4);
        assert_eq!(found["diagnostic"]["detail"], "wait");
    }
}
