//! A plan as a stream of JSON objects, one per line, in the message types of Terraform's `-json`,
//! so that existing readers work.
//!
//! This module knows the wire form alone. Every line has the time of the plan. The lines of an
//! apply have the same form.

mod message;

pub use message::{
    STREAM_VERSION, StreamChange, StreamCounts, StreamDiagnostic, StreamHook, StreamLevel,
    StreamLine, StreamMessage, StreamOperation, StreamResource, stream_schema,
};

use super::reason::rejection;
use super::row::{PlanRow, Symbol, rows};
use super::{comparison, findings, last_line, overlay_prices, table};
use crate::plan::Plan;
use crate::plan::wire::{
    AutoscalerGrowthRow, Check, CheckStatus, Comparison, Diagnostic, DiagnosticSeverity,
    ResourceChange, Summary, UnschedulableRow, workload_key,
};

/// A line without its time.
type LineParts = (StreamLevel, String, StreamMessage);

/// Returns the plan as one JSON object per line.
pub fn stream(plan: &Plan) -> String {
    let mut lines = vec![version(plan)];
    lines.extend(plan.capacity.diagnostics.iter().map(diagnostic));
    lines.extend(plan.capacity.comparison.as_ref().map(compared));
    lines.extend(rows(plan).iter().filter(|row| row.symbol.is_change()).map(planned_change));
    lines.extend(plan.resource_drift.iter().map(drift));
    lines.extend(plan.capacity.unschedulable.iter().map(unschedulable));
    lines.extend(plan.capacity.cluster_autoscaler.iter().map(growth));
    lines.extend(plan.checks.iter().filter(|check| check.status != CheckStatus::Pass).map(finding));
    lines.push(summary(plan));
    let line = |(level, text, message)| {
        StreamLine::new(level, text, plan.timestamp, message).to_json_line()
    };
    lines.into_iter().map(line).collect()
}

fn version(plan: &Plan) -> LineParts {
    let message = StreamMessage::Version {
        fleetwright: plan.tool_version.clone(),
        format_version: plan.format_version.clone(),
        ui: STREAM_VERSION.to_owned(),
    };
    (StreamLevel::Info, format!("Fleetwright {}", plan.tool_version), message)
}

fn diagnostic(diagnostic: &Diagnostic) -> LineParts {
    let Diagnostic { severity, origin, object, message, hint, code } = diagnostic;
    let level = match severity {
        DiagnosticSeverity::Error => StreamLevel::Error,
        DiagnosticSeverity::Warning => StreamLevel::Warn,
        DiagnosticSeverity::Behind | DiagnosticSeverity::Note | DiagnosticSeverity::Other(_) => {
            StreamLevel::Info
        }
    };
    let summary = if object.is_empty() { message.clone() } else { format!("{object}: {message}") };
    let diagnostic = StreamDiagnostic {
        severity: severity.clone(),
        summary: summary.clone(),
        detail: hint.clone(),
        range: origin.clone(),
        code: code.clone(),
        exit_code: None,
    };
    (level, summary, StreamMessage::Diagnostic { diagnostic })
}

fn compared(found: &Comparison) -> LineParts {
    let (against, caused) = (comparison::compared_with(found), comparison::caused_text(found));
    let overlays = overlay_prices::comparison_text(found);
    let overlays = overlays.map_or_else(String::new, |text| format!(". {text}"));
    let text = format!("Caused by this change (against {against}): {caused}{overlays}");
    (StreamLevel::Info, text, StreamMessage::Comparison { comparison: Box::new(found.clone()) })
}

fn drift(row: &ResourceChange) -> LineParts {
    let resource = StreamResource { resource_key: None, ..StreamResource::from_row(row) };
    let change = StreamChange { resource, action: "update".to_owned(), reason: None, why: None };
    let text = format!("{}: changed outside of Git", row.address);
    (StreamLevel::Info, text, StreamMessage::ResourceDrift { change })
}

fn planned_change(row: &PlanRow<'_>) -> LineParts {
    let action = match row.symbol {
        Symbol::Terminate => "delete",
        Symbol::TerminateFirst | Symbol::LaunchFirst => "replace",
        Symbol::Update => "update",
        Symbol::Launch => "create",
        Symbol::Blocked | Symbol::Keep => "noop",
    };
    let change = StreamChange {
        resource: StreamResource::from_row(row.resource),
        action: action.to_owned(),
        reason: row.resource.action_reason.clone(),
        why: Some(table::why(row)),
    };
    let text = format!("{}: Plan to {action}", row.resource.address);
    (StreamLevel::Info, text, StreamMessage::PlannedChange { change })
}

fn unschedulable(row: &UnschedulableRow) -> LineParts {
    let workload = workload_key(&row.workload);
    let text = format!("{workload}: {} unschedulable pods", row.pods);
    let message = StreamMessage::Unschedulable {
        workload,
        pods: row.pods,
        origin: row.origin.clone(),
        reasons: row.reasons.iter().map(rejection).collect(),
        nearest: row.nearest.clone(),
    };
    (StreamLevel::Warn, text, message)
}

fn growth(row: &AutoscalerGrowthRow) -> LineParts {
    let text = format!("{}: {}", row.address, findings::growth(row));
    (StreamLevel::Info, text, StreamMessage::ClusterAutoscaler { growth: row.clone() })
}

fn finding(check: &Check) -> LineParts {
    let level =
        if check.status == CheckStatus::Warn { StreamLevel::Warn } else { StreamLevel::Error };
    let text = format!("{}: {}", check.name, check.problems.join("; "));
    (level, text, StreamMessage::Check { check: check.clone() })
}

fn summary(plan: &Plan) -> LineParts {
    let Summary { add, change, destroy, replace, blocked, .. } = plan.summary;
    let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let message = StreamMessage::ChangeSummary {
        changes: StreamCounts {
            add: count(add),
            change: count(change),
            remove: count(destroy),
            replace: Some(count(replace)),
            blocked: Some(count(blocked)),
            ..StreamCounts::default()
        },
        digest: plan.capacity.digest.clone(),
        applyable: Some(plan.applyable),
        errored: Some(plan.errored),
        plan_id: None,
        verdict: None,
    };
    (StreamLevel::Info, last_line(plan), message)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::sample_plan::{hostile, plan};

    fn lines(plan: &Plan) -> Vec<Value> {
        let one = |line: &str| serde_json::from_str(line).expect("one object a line");
        stream(plan).lines().map(one).collect()
    }

    #[test]
    fn stream_uses_terraform_message_types() {
        let lines = lines(&plan());
        let types: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
        assert_eq!(types.first(), Some(&"version"));
        assert_eq!(types.last(), Some(&"change_summary"));
        assert_eq!(types.iter().filter(|kind| **kind == "planned_change").count(), 8);
        let actions: Vec<&str> =
            lines.iter().filter_map(|line| line["change"]["action"].as_str()).collect();
        assert_eq!(actions[..4], ["delete", "delete", "delete", "replace"], "what is lost first");
        let end = &lines[lines.len() - 1];
        assert_eq!(end["changes"]["remove"], 4);
        assert_eq!(
            end["@message"],
            "Plan (incomplete): 4 to add, 1 to change, 4 to destroy. 1 source not read, 3 pods \
             unschedulable."
        );
    }

    #[test]
    fn hostile_names_cannot_split_stream_lines() {
        let calm = lines(&plan()).len();
        for name in
            ["\n{\"type\":\"x\"}", "\u{2028}", "a\"b", "\u{1b}[2J", "\u{202e}x\u{9b}y\u{2066}"]
        {
            assert_eq!(lines(&hostile(name)).len(), calm, "{name:?}");
            let obeyed = ['\u{1b}', '\u{202e}', '\u{9b}', '\u{2066}'];
            assert!(!stream(&hostile(name)).contains(obeyed), "{name:?}");
        }
    }
}
