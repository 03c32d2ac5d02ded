//! Diagnostics of a plan: problems of its inputs, and what the plan does not do.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inputs, cluster_autoscalers, repository_amounts, unproven_instances};
use crate::catalog::warning_code;
use crate::demand::{Decider, Demand, PodGroup, QueueWait};
use crate::model::code::Code;
use crate::model::desired::{Problem, Severity};
use crate::model::ids::{WorkloadId, workload_key};
use crate::model::observed::{Observed, QueueAdmission};
use crate::model::plural;
use crate::plan::wire::{Diagnostic, DiagnosticSeverity};
use crate::planner::lint::lints;
use crate::solver::{Solution, UnschedulablePods, external_group_problems, unresolved_selectors};

/// Maximum number of workloads listed in a note. The demand of the plan has a row for each of them.
const NAMED_MAX: usize = 10;

/// Maximum number of unread objects with a warning of their own.
const UNREAD_NAMED_MAX: usize = 20;

/// Returns the diagnostics that the inputs and the solution give, before there is a plan.
pub(super) fn of_inputs(inputs: &Inputs, demand: &Demand, solution: &Solution) -> Vec<Diagnostic> {
    let diagnostic = |problem: &Problem| {
        let severity = match problem.severity {
            Severity::Error => DiagnosticSeverity::Error,
            Severity::Warning => DiagnosticSeverity::Warning,
        };
        Diagnostic::new(severity, problem.object.clone(), problem.message.clone())
            .origin(problem.origin.clone())
            .maybe_hint(problem.hint.clone())
            .code(problem.code)
    };
    let mut found = inputs.catalog.unknown_type_warnings(inputs.desired);
    found.extend(inputs.catalog.unequal_type_warnings(inputs.desired));
    found.extend(inputs.catalog.overlay_conflicts(inputs.desired));
    found.extend(inputs.catalog.windows_price_warnings(inputs.desired));
    found.extend(lints(inputs.desired, demand, inputs.catalog));
    found.extend(external_group_problems(inputs.desired, inputs.observed));
    found.extend(unresolved_selectors(inputs.desired, inputs.observed));
    let problems = inputs.desired.problems.iter().chain(&demand.problems).chain(&found);
    let mut list: Vec<Diagnostic> = problems.map(diagnostic).collect();
    let catalog_note = |text: &String| Diagnostic::note("", text.clone()).code(warning_code(text));
    list.extend(inputs.catalog.warnings.iter().map(catalog_note));
    list.extend(undeclared_workloads(demand, demand.declarations_read(inputs.desired)));
    list.extend(cluster_autoscalers::warnings(inputs.desired, inputs.observed));
    list.extend(queued_workloads(demand));
    list.extend(provisioning_checks(inputs.observed));
    list.extend(unproven_instances::warnings(inputs.observed));
    list.extend(repository_amounts::diagnostics(inputs.desired, inputs.catalog));
    list.extend(solution.refusals.iter().map(|message| Diagnostic::warning("", message.clone())));
    list.sort();
    list.dedup();
    list
}

/// Returns the names of the first workloads, and the number of further ones.
fn names(workloads: &[&WorkloadId]) -> String {
    let mut named: Vec<String> =
        workloads.iter().take(NAMED_MAX).map(|workload| workload_key(workload)).collect();
    if let Some(more) = workloads.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

/// Workloads with pods that wait for Kueue.
type Waits<'d> = Vec<(&'d WorkloadId, &'d QueueWait)>;

/// Returns notes on the pods that Kueue has not admitted.
fn queued_workloads(demand: &Demand) -> Vec<Diagnostic> {
    let planned = demand.groups.iter().filter(|group| group.counts.planned > 0);
    let planned: BTreeSet<&WorkloadId> = planned.map(|group| &group.workload).collect();
    let (read, unread): (Waits, Waits) =
        demand.queue_waits.iter().partition(|(_, wait)| wait.is_read);
    let (started, waiting): (Waits, Waits) =
        read.into_iter().partition(|(workload, _)| planned.contains(workload));
    let workloads = |waits: &Waits| {
        let ids: Vec<&WorkloadId> = waits.iter().map(|(workload, _)| *workload).collect();
        (ids.len(), names(&ids))
    };
    let mut notes = Vec::new();
    match workloads(&waiting) {
        (0, _) => {}
        (1, named) => {
            notes.push(Diagnostic::note(named, "waits for Kueue, and needs no node before"));
        }
        (n, named) => notes.push(Diagnostic::note(
            "",
            format!("{n} workloads wait for Kueue, and need no node before ({named})"),
        )),
    }
    let pods = started.iter().fold(0_u32, |pods, (_, wait)| pods.saturating_add(wait.pods));
    let pods = plural::count_with_verb(pods, "pod", "wait");
    match workloads(&started) {
        (0, _) => {}
        (1, named) => {
            let message = format!("{pods} for Kueue, beside those that may start");
            notes.push(Diagnostic::note(named, message));
        }
        (n, named) => notes.push(Diagnostic::note(
            "",
            format!("{pods} for Kueue, beside those of {n} workloads that may start ({named})"),
        )),
    }
    let unread_note = "the queues of Kueue were not read, so pods count once they may start";
    match workloads(&unread) {
        (0, _) => {}
        (1, named) => notes.push(Diagnostic::note(named, unread_note)),
        (n, named) => {
            let message = format!("{unread_note}: {n} workloads wait for Kueue ({named})");
            notes.push(Diagnostic::note("", message));
        }
    }
    notes
}

/// Returns a warning for each admission check of Kueue that waits for `ProvisioningRequests`.
fn provisioning_checks(observed: &Observed) -> Vec<Diagnostic> {
    let mut waiting: BTreeMap<&str, u32> = BTreeMap::new();
    for queued in observed.scaling.queued.iter().flatten() {
        if let QueueAdmission::Waiting { provisioning_check: Some(check), .. } = &queued.admission {
            *waiting.entry(check).or_insert(0) += 1;
        }
    }
    let warning = |(check, workloads): (&str, u32)| {
        let message = format!(
            "{} for a ProvisioningRequest, which Cluster Autoscaler answers and Fleetwright does \
             not: without it, Kueue never admits them",
            plural::count_with_verb(workloads, "Workload", "wait")
        );
        Diagnostic::warning(format!("AdmissionCheck {check}"), message)
            .hint("remove the check from the ClusterQueue: admitted pods get nodes without it")
    };
    waiting.into_iter().map(warning).collect()
}

/// Returns a note for each running workload that was removed from the repository, and one note for
/// all workloads that are not declared. `is_certain` is false if a part of the repository was not
/// read.
fn undeclared_workloads(demand: &Demand, is_certain: bool) -> Vec<Diagnostic> {
    let mut notes = Vec::new();
    let mut undeclared: Vec<&PodGroup> = Vec::new();
    for group in &demand.groups {
        match group.decided_by {
            Decider::Removed => {
                let pods = group.active();
                let message = format!(
                    "is no longer in the repository: its {pods} pods are terminating and get no \
                     capacity"
                );
                let object = format!("{} {}", group.workload.kind, group.workload);
                notes.push(Diagnostic::note(object, message));
            }
            Decider::World => undeclared.push(group),
            Decider::Git
            | Decider::Schedule { .. }
            | Decider::Autoscaler { .. }
            | Decider::Buffer { .. } => {}
        }
    }
    let pods =
        undeclared.iter().fold(0_u32, |pods, group| pods.saturating_add(group.counts.planned));
    let ids: Vec<&WorkloadId> = undeclared.iter().map(|group| &group.workload).collect();
    let named = names(&ids);
    let (object, message) = match (undeclared.len(), is_certain) {
        (0, _) => return notes,
        (1, true) => (
            named,
            format!(
                "runs although the repository does not declare it: its {pods} pods keep their \
                 capacity"
            ),
        ),
        (1, false) => (
            named,
            format!(
                "runs, and is not in the files that could be read: its {pods} pods keep their \
                 capacity"
            ),
        ),
        (n, true) => (
            String::new(),
            format!(
                "{n} workloads run although the repository does not declare them ({named}): their \
                 {pods} pods keep their capacity"
            ),
        ),
        (n, false) => (
            String::new(),
            format!(
                "{n} workloads run, and are not in the files that could be read ({named}): their \
                 {pods} pods keep their capacity"
            ),
        ),
    };
    notes.push(Diagnostic::note(object, message));
    notes
}

/// Returns a warning for each object of the cluster that could not be understood.
pub(super) fn unread_object_warnings(observed: &Observed) -> Vec<Diagnostic> {
    let warning = |object: String, message: String| {
        Diagnostic::warning(object, message).code(Code::ObjectUnreadable)
    };
    let named = observed.unread.iter().take(UNREAD_NAMED_MAX).map(|unread| {
        let effect = match unread.nodes.len() {
            0 => "no node is planned for it".to_owned(),
            1 => "its node is kept".to_owned(),
            nodes => format!("{nodes} nodes with its pods are kept"),
        };
        warning(unread.object.clone(), format!("{}: {effect}", unread.reason))
    });
    let more = observed.unread.len().saturating_sub(UNREAD_NAMED_MAX);
    let others = (more > 0).then(|| {
        warning(String::new(), format!("{more} more objects of the cluster could not be read"))
    });
    named.chain(others).collect()
}

/// Returns a warning for each workload that a vertical autoscaler sizes beyond its largest permitted
/// node. Its pods are unschedulable. The status of the autoscaler is no part of the repository: an
/// error would stop every other change.
pub(super) fn oversize_warnings(demand: &Demand, solution: &Solution) -> Vec<Diagnostic> {
    let warning = |unplaced: &UnschedulablePods| {
        let workload = &demand.groups[unplaced.group].workload;
        let sizing = demand.sizings.get(workload).filter(|sizing| sizing.applied)?;
        let size = unplaced.oversize.as_ref()?;
        let message = format!(
            "makes the pods of {workload} larger than any node they may run on ({}): {size}",
            sizing.because
        );
        let hint = "bound it with maxAllowed, or let a pool have larger types";
        Some(
            Diagnostic::warning(sizing.autoscaler.clone(), message)
                .origin(sizing.origin.clone())
                .hint(hint)
                .code(Code::TooSmall),
        )
    };
    solution.target.unschedulable.iter().filter_map(warning).collect()
}
