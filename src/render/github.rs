//! A plan as annotations of a GitHub workflow: each points to the line of the manifest that caused a
//! change, so that it stands in the diff of the pull request.
//!
//! This module knows the wire form and the form of workflow commands. Invariants: no text from
//! outside ends a command or begins another; at most ten annotations of a kind are written, the
//! gravest first, because GitHub drops the rest without a word; the rest is counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::amount::{count, signed_dollars};
use super::comparison;
use super::page::{escape, shorten};
use super::reason::{rejection, retire};
use crate::ids::Origin;
use crate::plan::Plan;
use crate::plan::wire::{
    Comparison, Condition, ExplainRow, LaunchReason, Reason, RetireReason, workload_key,
};
use crate::units::MicroUsd;

/// Most columns of the path of a file; the longest that systems take is 4,096 bytes.
const PATH_WIDTH: usize = 4_096;

/// Annotations of one kind that a step of a workflow may show.
const KIND_MAX: usize = 10;
/// Longest message, in columns.
const MESSAGE_WIDTH: usize = 500;
const TITLE_WIDTH: usize = 100;

/// How grave an annotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Error,
    Warning,
    Notice,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Error, Self::Warning, Self::Notice];

    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// One annotation; `weight` is what it concerns, the most first.
struct Annotation {
    kind: Kind,
    weight: u64,
    origin: Option<Origin>,
    title: String,
    message: String,
}

/// Returns the plan as workflow commands, one a line, and its last line.
#[must_use]
pub fn github(plan: &Plan) -> String {
    let mut all = causes(plan);
    all.extend(unschedulable(plan));
    all.extend(diagnostics(plan));
    all.extend(findings(plan));
    let mut text = String::new();
    for kind in Kind::ALL {
        let mut of_kind: Vec<&Annotation> = all.iter().filter(|a| a.kind == kind).collect();
        of_kind.sort_by_key(|a| (std::cmp::Reverse(a.weight), a.origin.clone(), a.title.clone()));
        let room = if of_kind.len() > KIND_MAX { KIND_MAX - 1 } else { KIND_MAX };
        for annotation in of_kind.iter().take(room) {
            text.push_str(&command(plan, annotation));
        }
        if let Some(rest) = of_kind.len().checked_sub(room).filter(|rest| *rest > 0) {
            let n = u32::try_from(rest).unwrap_or(u32::MAX);
            let _ = writeln!(text, "::{}::{} more are in the plan", kind.as_str(), n);
        }
    }
    if let Some(found) = &plan.capacity.comparison {
        let against = escape(&comparison::against(found)).into_owned();
        let caused = comparison::caused(found);
        // A line that began with two colons would be a command.
        let _ = writeln!(text, "Caused by this change (against {against}): {caused}");
        let _ = writeln!(text, "Pending without it: {}", comparison::pending(found));
    }
    let _ = writeln!(text, "{}", super::last_line(plan));
    text
}

fn command(plan: &Plan, annotation: &Annotation) -> String {
    let Annotation { kind, origin, title, message, .. } = annotation;
    let mut properties = Vec::new();
    if let Some(origin) = origin {
        properties
            .push(format!("file={}", property(&shorten(&path(plan, &origin.file), PATH_WIDTH))));
        if origin.line > 0 {
            properties.push(format!("line={}", origin.line));
        }
    }
    properties.push(format!("title={}", property(&shorten(title, TITLE_WIDTH))));
    let message = data(&shorten(message, MESSAGE_WIDTH));
    format!("::{} {}::{message}\n", kind.as_str(), properties.join(","))
}

/// Returns a file below the planned directory as the repository names it, wherever it was planned
/// from.
fn path(plan: &Plan, file: &str) -> String {
    let base = &plan.capacity.base;
    let root = base.directory.as_ref().unwrap_or(&base.path);
    let root = root.trim_start_matches("./").trim_end_matches('/');
    // An absolute path says where this machine keeps the repository, not where the file is in it.
    if root.is_empty() || root == "." || root.starts_with('/') {
        return file.to_owned();
    }
    format!("{root}/{file}")
}

/// Escapes the message of a command.
fn data(text: &str) -> String {
    escape(text).replace('%', "%25")
}

/// Escapes the value of a property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// What one workload causes.
#[derive(Default)]
struct Cause {
    launches: u32,
    removals: u32,
    hourly: MicroUsd,
    first: String,
}

fn causes(plan: &Plan) -> Vec<Annotation> {
    let mut causes: BTreeMap<String, Cause> = BTreeMap::new();
    let compared = plan.capacity.comparison.as_ref();
    // What was pending without this change does not stand in its diff.
    let is_caused = |row: &&ExplainRow| compared.is_none_or(|c| c.caused.contains(&row.address));
    let rows: Vec<&ExplainRow> = plan.capacity.explain.iter().filter(is_caused).collect();
    for row in &rows {
        let workloads = match &row.reason {
            Reason::Launch { because: LaunchReason::Demand { pods } } => {
                pods.keys().cloned().collect()
            }
            Reason::Retire { .. } => freed(plan, row),
            Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => Vec::new(),
        };
        for name in workloads {
            let cause = causes.entry(name).or_default();
            let is_removal = matches!(row.reason, Reason::Retire { .. });
            cause.removals += u32::from(is_removal);
            cause.launches += u32::from(!is_removal);
            cause.hourly +=
                row.hourly_after.unwrap_or_default() - row.hourly_before.unwrap_or_default();
            if cause.first.is_empty() {
                cause.first = row.address.to_string();
            }
        }
    }
    let mut found: Vec<Annotation> = plan
        .capacity
        .demand
        .iter()
        .filter_map(|row| {
            let name = workload_key(&row.workload);
            let cause = causes.remove(&name)?;
            Some(annotation_of(&name, row.origin.clone(), &cause))
        })
        .collect();
    found.extend(causes.iter().map(|(name, cause)| annotation_of(name, None, cause)));
    found.extend(rows.into_iter().filter_map(drift));
    found
}

fn annotation_of(name: &str, origin: Option<Origin>, cause: &Cause) -> Annotation {
    let Cause { launches, removals, hourly, first } = cause;
    let mut does = Vec::new();
    if *launches > 0 {
        does.push(format!("needs {}", count(*launches, "new node")));
    }
    if *removals > 0 {
        does.push(format!("no longer needs {}", count(*removals, "node")));
    }
    Annotation {
        kind: if *removals > 0 { Kind::Warning } else { Kind::Notice },
        weight: u64::from(*launches) + u64::from(*removals),
        origin,
        title: format!("{name} {}", does.join(", ")),
        message: format!(
            "{} {}: {first}{}, {}/mo",
            name,
            does.join(" and "),
            if launches + removals > 1 { " and others" } else { "" },
            signed_dollars(hourly.per_month(), 2)
        ),
    }
}

/// Returns the workloads whose shrinking frees a node.
fn freed(plan: &Plan, row: &ExplainRow) -> Vec<String> {
    let conditions = plan.capacity.base.preconditions.iter();
    let mut names: Vec<String> = conditions
        .filter(|precondition| precondition.address == row.address)
        .filter_map(|precondition| match &precondition.condition {
            Condition::ReplicasAtMost { workload, .. } => Some(workload_key(workload)),
            Condition::InstanceIs { .. }
            | Condition::KeyUnused { .. }
            | Condition::GroupIs { .. } => None,
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Returns a warning for a node that goes for a reason of its own, not of a workload.
fn drift(row: &ExplainRow) -> Option<Annotation> {
    let because = match &row.reason {
        Reason::Retire { because } => because,
        Reason::Launch { because: LaunchReason::Replacement { because, .. } } => because,
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => return None,
    };
    let own = match because {
        RetireReason::Drifted { .. } | RetireReason::Expired { .. } | RetireReason::PoolRemoved => {
            true
        }
        RetireReason::Empty { .. }
        | RetireReason::Underutilized { .. }
        | RetireReason::Surplus { .. }
        | RetireReason::Requested => false,
    };
    own.then(|| Annotation {
        kind: Kind::Warning,
        weight: 1,
        origin: None,
        title: format!("{} goes", row.address),
        message: format!("{}: {}", row.address, retire(because)),
    })
}

fn unschedulable(plan: &Plan) -> Vec<Annotation> {
    let one = |row: &crate::plan::wire::UnschedulableRow| {
        let name = workload_key(&row.workload);
        let reasons: Vec<String> = row.reasons.iter().map(rejection).collect();
        let nearest = row.nearest.as_ref().map_or_else(String::new, |n| format!("; nearest: {n}"));
        Annotation {
            kind: Kind::Warning,
            weight: 1_000_000 + u64::from(row.pods),
            origin: row.origin.clone(),
            title: format!(
                "{} of {name} {} no place",
                count(row.pods, "pod"),
                if row.pods == 1 { "has" } else { "have" }
            ),
            message: format!("{}{nearest}", reasons.join("; ")),
        }
    };
    let compared = plan.capacity.comparison.as_ref();
    let is_new = |row: &&crate::plan::wire::UnschedulableRow| {
        compared.is_none_or(|c| !c.unplaced_pending.contains(&row.workload))
    };
    plan.capacity.unschedulable.iter().filter(is_new).map(one).collect()
}

fn diagnostics(plan: &Plan) -> Vec<Annotation> {
    let one = |d: &crate::plan::wire::Diagnostic| {
        let kind = match d.severity.as_str() {
            "error" => Kind::Error,
            "warning" => Kind::Warning,
            _ => return None,
        };
        let hint = d.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
        let title = if d.object.is_empty() { "fleetwright".to_owned() } else { d.object.clone() };
        let message = format!("{}{hint}", d.message);
        Some(Annotation { kind, weight: 500_000, origin: d.origin.clone(), title, message })
    };
    let compared = plan.capacity.comparison.as_ref();
    // An error keeps the plan from being applied, whoever made it.
    let is_new = |d: &&crate::plan::wire::Diagnostic| {
        d.severity == "error"
            || compared.is_none_or(|c| !c.problems_pending.contains(&Comparison::problem(d)))
    };
    plan.capacity.diagnostics.iter().filter(is_new).filter_map(one).collect()
}

fn findings(plan: &Plan) -> Vec<Annotation> {
    let mut found = Vec::new();
    for check in &plan.checks {
        let kind = match check.status.as_str() {
            "pass" => continue,
            "warn" => Kind::Warning,
            _ => Kind::Error,
        };
        let located = check.findings.iter().map(|f| (f.message.clone(), f.origin.clone()));
        let messages = check.problems.iter().map(|problem| (problem.clone(), None));
        let all: Vec<_> =
            if check.findings.is_empty() { messages.collect() } else { located.collect() };
        for (message, origin) in all {
            found.push(Annotation {
                kind,
                weight: 2_000_000,
                origin,
                title: format!("policy {}", check.name),
                message,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::Diagnostic;
    use crate::render::fixture::{hostile, plan};

    #[test]
    fn each_annotation_points_to_the_line_that_caused_it() {
        insta::assert_snapshot!(github(&plan()));
    }

    #[test]
    fn at_most_ten_of_a_kind_are_written_and_the_rest_is_counted() {
        let mut plan = plan();
        let problem = |n: u32| Diagnostic {
            severity: "error".into(),
            origin: Some(Origin::new("a.yaml", n)),
            object: format!("o{n}"),
            message: "is wrong".into(),
            hint: None,
        };
        plan.capacity.diagnostics = (1..=25).map(problem).collect();
        let text = github(&plan);
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("::error")).collect();
        assert_eq!((errors.len(), errors[9]), (10, "::error::16 more are in the plan"));
    }

    #[test]
    fn no_name_ends_a_command_or_begins_another() {
        let calm = github(&plan()).lines().count();
        for name in ["\n::error::owned", "\r\n::stop-commands::x", ",line=1::x", "%0A::set-env"] {
            let text = github(&hostile(name));
            assert_eq!(text.lines().count(), calm, "{name:?}\n{text}");
            assert!(!text.contains('\r') && !text.contains("%0A"));
            let commands = text.lines().filter(|line| line.starts_with("::"));
            assert!(commands.clone().all(|line| line.matches("::").count() >= 2));
            assert!(
                commands
                    .into_iter()
                    .all(|line| !line.contains("::error::owned") || !line.starts_with("::error"))
            );
        }
    }
}
