//! A plan as a stream: one JSON object a line, in the message types that Terraform's `-json` has, so
//! that what reads those reads these.
//!
//! This module knows the wire form alone; it adds no moment of its own: every line carries the
//! plan's. The lines of an apply have the same form.

mod message;

pub use message::{
    Counts, Hook, Level, Line, Message, Operation, Planned, Problem, Resource, STREAM_VERSION,
    stream_schema,
};

use super::reason::rejection;
use super::row::{Row, Symbol, rows};
use super::{comparison, last_line, table};
use crate::plan::Plan;
use crate::plan::wire::{
    Check, Comparison, Diagnostic, ResourceChange, Summary, UnschedulableRow, workload_key,
};

/// What a line says, before it has a moment.
type Said = (Level, String, Message);

/// Returns the plan as one JSON object a line.
#[must_use]
pub fn stream(plan: &Plan) -> String {
    let mut said = vec![version(plan)];
    said.extend(plan.capacity.diagnostics.iter().map(diagnostic));
    said.extend(plan.capacity.comparison.as_ref().map(compared));
    said.extend(rows(plan).iter().filter(|row| row.symbol.is_change()).map(planned_change));
    said.extend(plan.resource_drift.iter().map(drift));
    said.extend(plan.capacity.unschedulable.iter().map(unschedulable));
    said.extend(plan.checks.iter().filter(|check| check.status != "pass").map(finding));
    said.push(summary(plan));
    let line = |(level, text, message)| Line::new(level, text, plan.timestamp, message).written();
    said.into_iter().map(line).collect()
}

fn version(plan: &Plan) -> Said {
    let message = Message::Version {
        fleetwright: plan.tool_version.clone(),
        format_version: plan.format_version.clone(),
        ui: STREAM_VERSION.to_owned(),
    };
    (Level::Info, format!("Fleetwright {}", plan.tool_version), message)
}

fn diagnostic(diagnostic: &Diagnostic) -> Said {
    let Diagnostic { severity, origin, object, message, hint } = diagnostic;
    let level = match severity.as_str() {
        "error" => Level::Error,
        "warning" => Level::Warn,
        _ => Level::Info,
    };
    let summary = if object.is_empty() { message.clone() } else { format!("{object}: {message}") };
    let diagnostic = Problem {
        severity: severity.clone(),
        summary: summary.clone(),
        detail: hint.clone(),
        range: origin.clone(),
        exit_code: None,
    };
    (level, summary, Message::Diagnostic { diagnostic })
}

fn compared(found: &Comparison) -> Said {
    let (against, caused) = (comparison::against(found), comparison::caused(found));
    let text = format!("Caused by this change (against {against}): {caused}");
    (Level::Info, text, Message::Comparison { comparison: Box::new(found.clone()) })
}

fn drift(row: &ResourceChange) -> Said {
    let resource = Resource { resource_key: None, ..Resource::of(row) };
    let change = Planned { resource, action: "update".to_owned(), reason: None, why: None };
    let text = format!("{}: changed outside of Git", row.address);
    (Level::Info, text, Message::ResourceDrift { change })
}

fn planned_change(row: &Row<'_>) -> Said {
    let action = match row.symbol {
        Symbol::Terminate => "delete",
        Symbol::TerminateFirst | Symbol::LaunchFirst => "replace",
        Symbol::Update => "update",
        Symbol::Launch => "create",
        Symbol::Blocked | Symbol::Keep => "noop",
    };
    let change = Planned {
        resource: Resource::of(row.resource),
        action: action.to_owned(),
        reason: row.resource.action_reason.clone(),
        why: Some(table::why(row)),
    };
    let text = format!("{}: Plan to {action}", row.resource.address);
    (Level::Info, text, Message::PlannedChange { change })
}

fn unschedulable(row: &UnschedulableRow) -> Said {
    let workload = workload_key(&row.workload);
    let text = format!("{workload}: {} pods without a place", row.pods);
    let message = Message::Unschedulable {
        workload,
        pods: row.pods,
        origin: row.origin.clone(),
        reasons: row.reasons.iter().map(rejection).collect(),
        nearest: row.nearest.clone(),
    };
    (Level::Warn, text, message)
}

fn finding(check: &Check) -> Said {
    let level = if check.status == "warn" { Level::Warn } else { Level::Error };
    let text = format!("{}: {}", check.name, check.problems.join("; "));
    (level, text, Message::Check { check: check.clone() })
}

fn summary(plan: &Plan) -> Said {
    let Summary { add, change, destroy, replace, blocked, .. } = plan.summary;
    let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let message = Message::ChangeSummary {
        changes: Counts {
            add: count(add),
            change: count(change),
            remove: count(destroy),
            replace: Some(count(replace)),
            blocked: Some(count(blocked)),
            ..Counts::default()
        },
        digest: plan.capacity.digest.clone(),
        applyable: Some(plan.applyable),
        errored: Some(plan.errored),
        plan_id: None,
        verdict: None,
    };
    (Level::Info, last_line(plan), message)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::render::fixture::{hostile, plan};

    fn lines(plan: &Plan) -> Vec<Value> {
        let one = |line: &str| serde_json::from_str(line).expect("one object a line");
        stream(plan).lines().map(one).collect()
    }

    #[test]
    fn the_stream_has_the_types_that_readers_of_terraforms_know() {
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
        assert_eq!(end["@message"], "Plan: 4 to add, 1 to change, 4 to destroy.");
    }

    #[test]
    fn a_line_is_one_object_whatever_names_hold() {
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
