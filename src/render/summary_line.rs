//! First and last line of a plan: what it changes, and what a reader must know before trusting it.

use super::amount::count;
use crate::model::desired::UnresolvedPolicy;
use crate::plan::wire::{Completeness, DiagnosticSeverity, Summary};
use crate::plan::{Plan, is_blocked, is_incomplete};

/// Last line of a plan that covers only some rows and changes none of them.
pub(super) const NO_CHANGES_IN_PART: &str =
    "No changes in this part: targets, exclusions or the controller's scope leave rows out.";

const NO_CHANGES: &str = "No changes. Your infrastructure matches the configuration.";

/// Returns the first line of a plan that is incomplete or has unschedulable pods.
pub(crate) fn first_line(plan: &Plan) -> Option<String> {
    let open = open_points(plan)?;
    let label = if is_incomplete(plan) { "Incomplete" } else { "Attention" };
    Some(format!("{label}: {open}."))
}

/// Returns the last line in the words of Terraform.
///
/// A plan that is incomplete or has unschedulable pods never claims that everything matches.
pub(super) fn last_line(plan: &Plan) -> String {
    let Summary { add, change, destroy, .. } = plan.summary;
    let numbers = format!("{add} to add, {change} to change, {destroy} to destroy.");
    match open_points(plan) {
        Some(open) if is_incomplete(plan) => format!("Plan (incomplete): {numbers} {open}."),
        Some(open) => format!("Plan: {numbers} {open}."),
        None if (add, change, destroy) != (0, 0, 0) => {
            let served = served(plan).map(|served| format!(" {served}."));
            format!("Plan: {numbers}{}", served.unwrap_or_default())
        }
        None if !plan.complete => NO_CHANGES_IN_PART.to_owned(),
        None => {
            // An empty node that a minimum or a budget retains matches the configuration.
            let blocked = plan.capacity.explain.iter();
            let blocked = blocked.filter(|row| row.drift.is_some() && is_blocked(row)).count();
            let blocked = u32::try_from(blocked).unwrap_or(u32::MAX);
            let blocked =
                (blocked > 0).then(|| format!("{} blocked", count(blocked, "due change")));
            let points: Vec<String> = served(plan).into_iter().chain(blocked).collect();
            if points.is_empty() {
                NO_CHANGES.to_owned()
            } else {
                format!("No changes. {}.", points.join(", "))
            }
        }
    }
}

/// Returns the pods that wait for Cluster Autoscaler, such as `2 pods served by cluster-autoscaler`.
pub(crate) fn served(plan: &Plan) -> Option<String> {
    let pods = plan.capacity.pods.served_by_cluster_autoscaler;
    (pods > 0).then(|| format!("{} served by cluster-autoscaler", count(pods, "pod")))
}

/// Returns errors, sources that were not read, and unschedulable pods, such as `25 sources not
/// read, 2 pods unschedulable`.
pub(super) fn open_points(plan: &Plan) -> Option<String> {
    let capacity = &plan.capacity;
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let errors = capacity.diagnostics.iter().filter(|d| d.severity == DiagnosticSeverity::Error);
    let world = capacity.base.world.sources.values();
    let partial = world.filter(|state| **state != Completeness::Complete).count();
    let is_ignored = capacity.base.unresolved == Some(UnresolvedPolicy::Ignore);
    let unread = if is_ignored { " ignored" } else { " not read" };
    let points = [
        (number(errors.count()), "error", ""),
        (number(partial), "part", " of the cluster not read"),
        (number(capacity.unresolved.len()), "source", unread),
        (capacity.pods.unschedulable, "pod", " unschedulable"),
    ];
    let points = points.into_iter().filter(|(n, ..)| *n > 0);
    let points: Vec<String> =
        points.map(|(n, noun, what)| format!("{}{what}", count(n, noun))).collect();
    if points.is_empty() {
        return plan.errored.then(|| "the inputs have errors".to_owned());
    }
    Some(points.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::{BlockReason, Diagnostic, KeepReason, Reason, RetireReason};
    use crate::testing::sample_plan::plan;

    /// Returns the sample plan with these unread sources and unschedulable pods, without blocked
    /// changes.
    fn sample(unread: usize, pods: u32, has_changes: bool) -> Plan {
        let mut plan = plan();
        plan.capacity.unresolved.truncate(unread);
        plan.capacity.pods.unschedulable = pods;
        plan.capacity.explain.retain(|row| !is_blocked(row));
        if !has_changes {
            plan.summary = Summary::default();
        }
        plan
    }

    #[test]
    fn pods_that_cluster_autoscaler_serves_are_in_the_last_line() {
        for (has_changes, expected) in [
            (false, "No changes. 3 pods served by cluster-autoscaler."),
            (
                true,
                "Plan: 4 to add, 1 to change, 4 to destroy. 3 pods served by cluster-autoscaler.",
            ),
        ] {
            let mut plan = sample(0, 0, has_changes);
            plan.capacity.pods.served_by_cluster_autoscaler = 3;
            assert_eq!(last_line(&plan), expected);
            assert_eq!(first_line(&plan), None);
        }
    }

    #[test]
    fn blocked_changes_do_not_match_the_configuration() {
        let mut plan = Plan { summary: Summary::default(), ..plan() };
        plan.capacity.unresolved.clear();
        plan.capacity.pods.unschedulable = 0;
        plan.capacity.explain.retain(is_blocked);
        plan.capacity.explain.truncate(1);
        plan.capacity.explain[0].drift = None;
        let because = KeepReason::Blocked { by: BlockReason::Budget };
        plan.capacity.explain[0].reason = Reason::Keep { because };
        assert_eq!(last_line(&plan), NO_CHANGES);
        plan.capacity.explain[0].drift = Some(RetireReason::PoolRemoved);
        assert_eq!(last_line(&plan), "No changes. 1 due change blocked.");
        plan.capacity.pods.served_by_cluster_autoscaler = 2;
        let both = "No changes. 2 pods served by cluster-autoscaler, 1 due change blocked.";
        assert_eq!(last_line(&plan), both);
    }

    #[test]
    fn each_combination_has_its_first_and_last_line() {
        let cases = [
            (0, 0, false, None, NO_CHANGES),
            (0, 0, true, None, "Plan: 4 to add, 1 to change, 4 to destroy."),
            (
                0,
                2,
                false,
                Some("Attention: 2 pods unschedulable."),
                "Plan: 0 to add, 0 to change, 0 to destroy. 2 pods unschedulable.",
            ),
            (
                0,
                1,
                true,
                Some("Attention: 1 pod unschedulable."),
                "Plan: 4 to add, 1 to change, 4 to destroy. 1 pod unschedulable.",
            ),
            (
                1,
                0,
                false,
                Some("Incomplete: 1 source not read."),
                "Plan (incomplete): 0 to add, 0 to change, 0 to destroy. 1 source not read.",
            ),
            (
                1,
                3,
                true,
                Some("Incomplete: 1 source not read, 3 pods unschedulable."),
                "Plan (incomplete): 4 to add, 1 to change, 4 to destroy. 1 source not read, \
                 3 pods unschedulable.",
            ),
        ];
        for (unread, pods, has_changes, first, last) in cases {
            let plan = sample(unread, pods, has_changes);
            assert_eq!(first_line(&plan).as_deref(), first);
            assert_eq!(last_line(&plan), last);
        }
    }

    #[test]
    fn errors_and_unread_parts_of_the_cluster_are_incomplete() {
        let mut plan = Plan { errored: true, ..sample(0, 0, false) };
        assert_eq!(first_line(&plan).as_deref(), Some("Incomplete: the inputs have errors."));
        plan.capacity.diagnostics = vec![Diagnostic::error("", "is not a quantity")];
        let failed = Completeness::Failed { reason: "access denied".into() };
        plan.capacity.base.world.sources.insert("ec2".into(), failed);
        let open = "1 error, 1 part of the cluster not read.";
        assert_eq!(first_line(&plan), Some(format!("Incomplete: {open}")));
        assert!(last_line(&plan).starts_with("Plan (incomplete): "), "{}", last_line(&plan));
    }

    #[test]
    fn partial_plan_without_changes_names_its_scope() {
        let plan = Plan { complete: false, ..sample(0, 0, false) };
        assert_eq!((first_line(&plan), last_line(&plan).as_str()), (None, NO_CHANGES_IN_PART));
    }
}
