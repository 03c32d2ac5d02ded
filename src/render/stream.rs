//! A plan as a stream: one JSON object a line, in the message types that Terraform's `-json` has, so
//! that what reads those reads these.
//!
//! This module knows the wire form alone; it adds no moment of its own: every line carries the
//! plan's. Readers show `@message` for types that they do not know.

use serde_json::{Value, json};

use super::reason::rejection;
use super::row::{Row, Symbol, rows};
use super::{last_line, table};
use crate::plan::wire::{Check, Diagnostic, Summary, UnschedulableRow, workload_key};
use crate::plan::{Plan, canonical};

/// The version of the stream's messages.
pub const STREAM_VERSION: &str = "1.0";

/// Returns the plan as one JSON object a line.
#[must_use]
pub fn stream(plan: &Plan) -> String {
    let mut lines = vec![version(plan)];
    lines.extend(plan.capacity.diagnostics.iter().map(diagnostic));
    lines.extend(rows(plan).iter().filter(|row| row.symbol.is_change()).map(planned_change));
    lines.extend(plan.resource_drift.iter().map(|row| {
        let message = format!("{}: changed outside of Git", row.address);
        json!({ "@level": "info", "@message": message, "type": "resource_drift",
                "change": { "resource": resource(row.address.as_str(), &row.name, row.kind.as_str()),
                            "action": "update" } })
    }));
    lines.extend(plan.capacity.unschedulable.iter().map(unschedulable));
    lines.extend(plan.checks.iter().filter(|check| check.status != "pass").map(finding));
    lines.push(summary(plan));
    let mut text = String::new();
    for mut line in lines {
        line["@module"] = "fleetwright.ui".into();
        line["@timestamp"] = plan.timestamp.to_string().into();
        // A line feed never stands in a line, and nothing in it is obeyed by a terminal.
        text.push_str(&canonical::shown(&line.to_string()));
        text.push('\n');
    }
    text
}

fn version(plan: &Plan) -> Value {
    let message = format!("Fleetwright {}", plan.tool_version);
    json!({ "@level": "info", "@message": message, "type": "version",
            "fleetwright": plan.tool_version, "format_version": plan.format_version,
            "ui": STREAM_VERSION })
}

fn diagnostic(diagnostic: &Diagnostic) -> Value {
    let Diagnostic { severity, origin, object, message, hint } = diagnostic;
    let level = match severity.as_str() {
        "error" => "error",
        "warning" => "warn",
        _ => "info",
    };
    let summary = if object.is_empty() { message.clone() } else { format!("{object}: {message}") };
    json!({ "@level": level, "@message": summary, "type": "diagnostic",
            "diagnostic": { "severity": severity, "summary": summary, "detail": hint,
                            "range": origin } })
}

fn resource(address: &str, name: &str, kind: &str) -> Value {
    json!({ "addr": address, "resource": address, "resource_name": name, "resource_type": kind })
}

fn planned_change(row: &Row<'_>) -> Value {
    let action = match row.symbol {
        Symbol::Terminate => "delete",
        Symbol::TerminateFirst | Symbol::LaunchFirst => "replace",
        Symbol::Update => "update",
        Symbol::Launch => "create",
        Symbol::Blocked | Symbol::Keep => "noop",
    };
    let change = row.resource;
    let message = format!("{}: Plan to {action}", change.address);
    let mut resource = resource(change.address.as_str(), &change.name, change.kind.as_str());
    resource["resource_key"] = change.index.clone().into();
    json!({ "@level": "info", "@message": message, "type": "planned_change",
            "change": { "resource": resource, "action": action, "reason": change.action_reason,
                        "why": table::why(row) } })
}

fn unschedulable(row: &UnschedulableRow) -> Value {
    let workload = workload_key(&row.workload);
    let reasons: Vec<String> = row.reasons.iter().map(rejection).collect();
    let message = format!("{workload}: {} pods without a place", row.pods);
    json!({ "@level": "warn", "@message": message, "type": "unschedulable",
            "workload": workload, "pods": row.pods, "origin": row.origin, "reasons": reasons,
            "nearest": row.nearest })
}

fn finding(check: &Check) -> Value {
    let level = if check.status == "warn" { "warn" } else { "error" };
    let message = format!("{}: {}", check.name, check.problems.join("; "));
    json!({ "@level": level, "@message": message, "type": "check", "check": check })
}

fn summary(plan: &Plan) -> Value {
    let Summary { add, change, destroy, replace, blocked, .. } = plan.summary;
    json!({ "@level": "info", "@message": last_line(plan), "type": "change_summary",
            "changes": { "add": add, "change": change, "import": 0, "remove": destroy,
                         "replace": replace, "blocked": blocked, "operation": "plan" },
            "digest": plan.capacity.digest, "applyable": plan.applyable, "errored": plan.errored })
}

#[cfg(test)]
mod tests {
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
