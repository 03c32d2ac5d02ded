//! A plan as annotations of a GitHub workflow. Each annotation points to the manifest line that
//! causes a change, so that it appears in the diff of the pull request.
//!
//! This module knows the wire form and the syntax of workflow commands.
//!
//! Invariants:
//! - Outside text cannot end or begin a command, in the form `::command::` or `##[command]`.
//! - At most ten annotations of a level are written, most severe first, because GitHub drops the
//!   rest silently.
//! - The rest is counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::amount::{count, signed_dollars};
use super::reason::{rejection, retire};
use super::text_page::{escape, shorten};
use super::{comparison, overlay_prices};
use crate::model::desired::is_settings_file;
use crate::model::ids::{Origin, WorkloadId};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{
    CheckStatus, Comparison, Condition, DiagnosticSeverity, ExplainRow, LaunchReason, Reason,
    RetireReason, workload_key,
};

/// Most columns of a file path; systems allow 4,096 bytes.
const PATH_WIDTH: usize = 4_096;

/// Most annotations of one level that GitHub shows for a step.
const LEVEL_MAX: usize = 10;
/// Longest message, in columns.
const MESSAGE_WIDTH: usize = 500;
const TITLE_WIDTH: usize = 100;

/// The level of an annotation, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AnnotationLevel {
    Error,
    Warning,
    Notice,
}

impl AnnotationLevel {
    const ALL: [Self; 3] = [Self::Error, Self::Warning, Self::Notice];

    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// An annotation. A higher `weight` is written first within a level.
struct Annotation {
    level: AnnotationLevel,
    weight: u64,
    origin: Option<Origin>,
    title: String,
    message: String,
}

/// Returns the plan as workflow commands, one per line, and its last line.
pub fn github(plan: &Plan) -> String {
    let mut all = impacts(plan);
    all.extend(unschedulable(plan));
    all.extend(diagnostics(plan));
    all.extend(findings(plan));
    let mut text = String::new();
    for level in AnnotationLevel::ALL {
        let mut same_level: Vec<&Annotation> = all.iter().filter(|a| a.level == level).collect();
        same_level
            .sort_by_key(|a| (std::cmp::Reverse(a.weight), a.origin.clone(), a.title.clone()));
        let room = if same_level.len() > LEVEL_MAX { LEVEL_MAX - 1 } else { LEVEL_MAX };
        for annotation in same_level.iter().take(room) {
            text.push_str(&command(plan, annotation));
        }
        if let Some(rest) = same_level.len().checked_sub(room).filter(|rest| *rest > 0) {
            let n = u32::try_from(rest).unwrap_or(u32::MAX);
            let _ = writeln!(text, "::{}::{} more are in the plan", level.as_str(), n);
        }
    }
    if let Some(found) = &plan.capacity.comparison {
        let against = escape(&comparison::compared_with(found)).into_owned();
        let caused = comparison::caused_text(found);
        // A line that starts with two colons would be a command.
        let _ = writeln!(text, "Caused by this change (against {against}): {caused}");
        if let Some(overlays) = overlay_prices::comparison_text(found) {
            let _ = writeln!(text, "{}", escape(&overlays));
        }
        let pending = comparison::pending_title(&escape(&found.revision));
        let _ = writeln!(text, "{pending}: {}", comparison::pending_text(found));
    }
    let _ = writeln!(text, "{}", super::last_line(plan));
    text
}

fn command(plan: &Plan, annotation: &Annotation) -> String {
    let Annotation { level, origin, title, message, .. } = annotation;
    let mut properties = Vec::new();
    // No file has an object of the cluster.
    if let Some(origin) = origin.as_ref().filter(|origin| !origin.is_in_cluster()) {
        properties
            .push(format!("file={}", property(&shorten(&path(plan, &origin.file), PATH_WIDTH))));
        if origin.line > 0 {
            properties.push(format!("line={}", origin.line));
        }
    }
    properties.push(format!("title={}", property(&shorten(title, TITLE_WIDTH))));
    let message = data(&shorten(message, MESSAGE_WIDTH));
    format!("::{} {}::{message}\n", level.as_str(), properties.join(","))
}

/// Returns a file of the planned tree by its path in the repository. Settings are those of the planned
/// directory, also where the whole repository was read.
fn path(plan: &Plan, file: &str) -> String {
    let base = &plan.capacity.base;
    if base.whole_repository && !is_settings_file(file) {
        return file.to_owned();
    }
    let root = base.directory.as_ref().unwrap_or(&base.path);
    let root = root.trim_start_matches("./").trim_end_matches('/');
    // An absolute path is a location on this computer, and not in the repository.
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

/// The impact of one workload on the fleet.
#[derive(Default)]
struct WorkloadImpact {
    launches: u32,
    removals: u32,
    hourly: MicroUsd,
    first: String,
}

fn impacts(plan: &Plan) -> Vec<Annotation> {
    let mut impacts: BTreeMap<String, WorkloadImpact> = BTreeMap::new();
    let compared = plan.capacity.comparison.as_ref();
    // Changes that were pending without this revision are not in its diff.
    let is_caused = |row: &&ExplainRow| compared.is_none_or(|c| c.caused.contains(&row.address));
    let rows: Vec<&ExplainRow> = plan.capacity.explain.iter().filter(is_caused).collect();
    for row in &rows {
        let workloads: Vec<(String, u32)> = match &row.reason {
            Reason::Launch { because: LaunchReason::Demand { pods } } => {
                pods.iter().map(|(name, pods)| (name.clone(), *pods)).collect()
            }
            Reason::Retire { .. } => {
                shrunk_workloads(plan, row).into_iter().map(|name| (name, 1)).collect()
            }
            Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => Vec::new(),
        };
        let hourly = row.hourly_after.unwrap_or_default() - row.hourly_before.unwrap_or_default();
        let weights = workloads.iter().map(|(_, weight)| *weight);
        let shares = cost_shares(hourly, &weights.collect::<Vec<_>>());
        for ((name, _), share) in workloads.into_iter().zip(shares) {
            let impact = impacts.entry(name).or_default();
            let is_removal = matches!(row.reason, Reason::Retire { .. });
            impact.removals += u32::from(is_removal);
            impact.launches += u32::from(!is_removal);
            impact.hourly += share;
            if impact.first.is_empty() {
                impact.first = row.address.to_string();
            }
        }
    }
    let mut found: Vec<Annotation> = plan
        .capacity
        .demand
        .iter()
        .filter_map(|row| {
            let name = workload_key(&row.workload);
            let impact = impacts.remove(&name)?;
            // A line that the revision does not touch gets no annotation.
            let origin = row.origin.clone().filter(|_| is_touched(compared, &row.workload));
            Some(impact_annotation(&name, origin, &impact))
        })
        .collect();
    found.extend(impacts.iter().map(|(name, impact)| impact_annotation(name, None, impact)));
    found.extend(rows.into_iter().filter_map(node_drift));
    found
}

/// Returns whether the revision changes the pods of a workload, as far as it was compared.
fn is_touched(compared: Option<&Comparison>, workload: &WorkloadId) -> bool {
    compared.is_none_or(|found| found.workloads.iter().any(|row| row.workload == *workload))
}

/// Splits a price among the causes of a node, in proportion to their pods. The parts add up to the
/// price.
fn cost_shares(price: MicroUsd, weights: &[u32]) -> Vec<MicroUsd> {
    let sum: i128 = weights.iter().map(|weight| i128::from(*weight)).sum();
    let up_to = |part: i128| {
        let share = i128::from(price.0) * part / sum.max(1);
        i64::try_from(share).unwrap_or(price.0)
    };
    let (mut before, mut part) = (0, 0);
    let mut shares = Vec::with_capacity(weights.len());
    for weight in weights {
        part += i128::from(*weight);
        let end = up_to(part);
        shares.push(MicroUsd(end - before));
        before = end;
    }
    shares
}

fn impact_annotation(name: &str, origin: Option<Origin>, impact: &WorkloadImpact) -> Annotation {
    let WorkloadImpact { launches, removals, hourly, first } = impact;
    let mut does = Vec::new();
    if *launches > 0 {
        does.push(format!("needs {}", count(*launches, "new node")));
    }
    if *removals > 0 {
        does.push(format!("no longer needs {}", count(*removals, "node")));
    }
    Annotation {
        level: if *removals > 0 { AnnotationLevel::Warning } else { AnnotationLevel::Notice },
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

/// Returns the workloads whose scale-down frees a node.
fn shrunk_workloads(plan: &Plan, row: &ExplainRow) -> Vec<String> {
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

/// Returns a warning for a node that is replaced or removed independently of workloads.
fn node_drift(row: &ExplainRow) -> Option<Annotation> {
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
        level: AnnotationLevel::Warning,
        weight: 1,
        origin: None,
        title: format!("{} will be terminated", row.address),
        message: format!("{}: {}", row.address, retire(because)),
    })
}

fn unschedulable(plan: &Plan) -> Vec<Annotation> {
    let one = |row: &crate::plan::wire::UnschedulableRow| {
        let name = workload_key(&row.workload);
        let reasons: Vec<String> = row.reasons.iter().map(rejection).collect();
        let nearest = row.nearest.as_ref().map_or_else(String::new, |n| format!("; nearest: {n}"));
        Annotation {
            level: AnnotationLevel::Warning,
            weight: 1_000_000 + u64::from(row.pods),
            origin: row.origin.clone(),
            title: format!(
                "{} of {name} {} unschedulable",
                count(row.pods, "pod"),
                if row.pods == 1 { "is" } else { "are" }
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
        let level = match &d.severity {
            DiagnosticSeverity::Error => AnnotationLevel::Error,
            DiagnosticSeverity::Warning => AnnotationLevel::Warning,
            DiagnosticSeverity::Behind
            | DiagnosticSeverity::Note
            | DiagnosticSeverity::Other(_) => return None,
        };
        let hint = d.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
        let title = if d.object.is_empty() { "fleetwright".to_owned() } else { d.object.clone() };
        let message = format!("{}{hint}", d.message);
        Some(Annotation { level, weight: 500_000, origin: d.origin.clone(), title, message })
    };
    let compared = plan.capacity.comparison.as_ref();
    // An error prevents the apply, whichever revision causes it.
    let is_new = |d: &&crate::plan::wire::Diagnostic| {
        d.severity == DiagnosticSeverity::Error
            || compared.is_none_or(|c| !c.problems_pending.contains(&Comparison::problem_key(d)))
    };
    plan.capacity.diagnostics.iter().filter(is_new).filter_map(one).collect()
}

fn findings(plan: &Plan) -> Vec<Annotation> {
    let mut found = Vec::new();
    for check in &plan.checks {
        let level = match &check.status {
            CheckStatus::Pass => continue,
            CheckStatus::Warn => AnnotationLevel::Warning,
            CheckStatus::Error
            | CheckStatus::Fail
            | CheckStatus::Unknown
            | CheckStatus::Other(_) => AnnotationLevel::Error,
        };
        let located = check.findings.iter().map(|f| (f.message.clone(), f.origin.clone()));
        let messages = check.problems.iter().map(|problem| (problem.clone(), None));
        let all: Vec<_> =
            if check.findings.is_empty() { messages.collect() } else { located.collect() };
        for (message, origin) in all {
            found.push(Annotation {
                level,
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
    use crate::testing::sample_plan::{hostile, plan};

    #[test]
    fn annotations_point_to_their_manifest_lines() {
        insta::assert_snapshot!(github(&plan()));
    }

    #[test]
    fn object_of_the_cluster_is_annotated_without_a_file() {
        let annotation = |origin| Annotation {
            level: AnnotationLevel::Warning,
            weight: 0,
            origin: Some(origin),
            title: "t".to_owned(),
            message: "m".to_owned(),
        };
        let of_cluster = annotation(Origin::in_cluster("NodePool", "web"));
        assert_eq!(command(&plan(), &of_cluster), "::warning title=t::m\n");
        let of_file = annotation(Origin::new("a.yaml", 2));
        assert!(command(&plan(), &of_file).contains("a.yaml,line=2,title=t"));
    }

    #[test]
    fn at_most_ten_annotations_per_level() {
        let mut plan = plan();
        let problem = |n: u32| {
            Diagnostic::error(format!("o{n}"), "is wrong").origin(Origin::new("a.yaml", n))
        };
        plan.capacity.diagnostics = (1..=25).map(problem).collect();
        let text = github(&plan);
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("::error")).collect();
        assert_eq!((errors.len(), errors[9]), (10, "::error::16 more are in the plan"));
    }

    #[test]
    fn cost_of_a_node_is_split_among_its_causes() {
        for (price, weights, expected) in [
            (100, vec![1, 1, 1], vec![33, 33, 34]),
            (-70, vec![1, 6], vec![-10, -60]),
            (7, vec![3], vec![7]),
            (7, vec![], vec![]),
        ] {
            let shares: Vec<i64> =
                cost_shares(MicroUsd(price), &weights).into_iter().map(|share| share.0).collect();
            assert_eq!(shares, expected);
        }
    }

    #[test]
    fn names_cannot_end_or_begin_workflow_commands() {
        let calm = github(&plan()).lines().count();
        for name in [
            "\n::error::owned",
            "\r\n::stop-commands::x",
            ",line=1::x",
            "%0A::set-env",
            "##[set-env]",
        ] {
            let text = github(&hostile(name));
            assert!(!text.contains("##"), "{text}");
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
