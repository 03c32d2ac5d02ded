//! Drift report: changes made outside Git, and other differences from the repository.
//!
//! Drift is a manual change. Examples are a node label that neither its pool nor its instance sets,
//! a label that contradicts the instance, a changed taint or tag, and a group with undeclared
//! bounds. It is reported even if the plan replaces or removes the node. A node is *behind* if an
//! earlier commit explains the difference: a pool or node class changed since the launch, or a pool
//! was removed. Such nodes are reported, but are not drift, since every rollout causes them. The
//! same applies to resources that a node class no longer selects. Image and subnet of an instance
//! never change. For security groups, EC2 does not reveal whether the instance or the selection
//! changed.
//!
//! A workload with another number of pods is reported like a node that is behind. The cluster does
//! not reveal whether a commit is not applied yet, or whether a user scaled the workload.
//!
//! This module derives a report from a plan; the report is itself a plan that can never be applied.

use std::collections::{BTreeMap, BTreeSet};

use super::set_identity;
use super::wire::{
    Decider, DemandRow, Diagnostic, DriftedField, ExplainRow, LaunchReason, Plan, Reason,
    RetireReason, Summary, workload_key,
};
use crate::model::ids::{Address, Origin};
use crate::model::plural::count;
use crate::model::reason::drifted_field_text;
use crate::plan::wire::DiagnosticSeverity;

/// Returns a drift report for `plan`. `resource_drift` has the drifted rows, and `resource_changes`
/// is empty. The report cannot be applied.
pub fn drift(plan: &Plan) -> Plan {
    let existing = existing_rows(plan);
    let rows = existing.iter().filter(|row| !manual_changes(row).is_empty());
    let drifted: BTreeSet<&Address> = rows.map(|row| &row.address).collect();
    let rows = plan.resource_changes.iter().filter(|row| drifted.contains(&row.address));
    let mut report = Plan {
        applyable: false,
        resource_drift: rows.cloned().collect(),
        resource_changes: Vec::new(),
        checks: Vec::new(),
        summary: Summary::default(),
        ..plan.clone()
    };
    let mut behind = nodes_behind(&existing);
    behind.extend(workloads(plan));
    let capacity = &mut report.capacity;
    capacity.explain.retain(|row| drifted.contains(&row.address));
    capacity.base.preconditions.clear();
    capacity.waves.clear();
    capacity.placements.clear();
    capacity.alternatives.clear();
    capacity.diagnostics.extend(behind);
    capacity.diagnostics.sort();
    set_identity(&mut report);
    report
}

/// Returns the rows of nodes and groups that exist. A planned launch cannot differ from the
/// repository, even if its reason is the difference of the node that it replaces.
fn existing_rows(plan: &Plan) -> Vec<&ExplainRow> {
    let launches = plan.resource_changes.iter().filter(|row| row.change.before.is_none());
    let launches: BTreeSet<&Address> = launches.map(|row| &row.address).collect();
    plan.capacity.explain.iter().filter(|row| !launches.contains(&row.address)).collect()
}

/// Returns whether the report has drifted rows.
pub fn has_drift(report: &Plan) -> bool {
    !report.resource_drift.is_empty()
}

/// Returns the fields of a row that no commit explains. The plan may keep, replace or remove the row.
pub fn manual_changes(row: &ExplainRow) -> Vec<DriftedField> {
    drifted_fields(row).into_iter().filter(|drifted| is_manual(&drifted.field)).collect()
}

/// Returns the reasons to replace or remove the node of a row.
fn reasons(row: &ExplainRow) -> impl Iterator<Item = &RetireReason> {
    let row_reason = match &row.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { because: LaunchReason::Replacement { because, .. } } => Some(&**because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => None,
    };
    row_reason.into_iter().chain(&row.retire_reason).chain(&row.drift)
}

/// Returns every field in which a row differs from its declaration, once. The bounds of a group, and
/// rows of older plans, have the difference only in their reasons.
fn drifted_fields(row: &ExplainRow) -> Vec<DriftedField> {
    let of_reasons = reasons(row).filter_map(|reason| match reason {
        RetireReason::Drifted { field, is, declared } => {
            Some(DriftedField { field: field.clone(), is: is.clone(), declared: declared.clone() })
        }
        RetireReason::PoolRemoved
        | RetireReason::Empty { .. }
        | RetireReason::Underutilized { .. }
        | RetireReason::Surplus { .. }
        | RetireReason::Expired { .. }
        | RetireReason::Requested => None,
    });
    let mut found: Vec<DriftedField> = row.differences.clone();
    for drifted in of_reasons {
        if found.iter().all(|known| known.field != drifted.field) {
            found.push(drifted);
        }
    }
    found
}

/// Returns whether no commit explains the difference.
fn is_manual(field: &str) -> bool {
    match field.split_once(' ') {
        Some(("label", key)) => !is_instance_label(key),
        // `instance label KEY`: the label contradicts the instance.
        Some(("taint" | "tag" | "bounds" | "instance", _)) => true,
        _ => false,
    }
}

/// Returns whether a label describes the instance. If such a label agrees with the instance and no
/// longer fits, the pool changed.
fn is_instance_label(key: &str) -> bool {
    let prefixes = ["karpenter.k8s.aws/", "topology.kubernetes.io/", "topology.k8s.aws/"];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
        || matches!(
            key,
            "kubernetes.io/arch"
                | "kubernetes.io/os"
                | "node.kubernetes.io/instance-type"
                | "karpenter.sh/capacity-type"
        )
}

/// Returns the differences that an earlier commit explains.
fn nodes_behind(existing: &[&ExplainRow]) -> Vec<Diagnostic> {
    let of_row = |row: &&ExplainRow| {
        let fields = drifted_fields(row).into_iter().filter(|drifted| !is_manual(&drifted.field));
        let message =
            |DriftedField { field, is, declared }| drifted_field_text(&field, &is, &declared);
        let is_removed = reasons(row).any(|reason| *reason == RetireReason::PoolRemoved);
        let removed = is_removed.then(|| "its pool is no longer declared".to_owned());
        let messages: Vec<String> = fields.map(message).chain(removed).collect();
        (!messages.is_empty()).then(|| behind(None, row.address.to_string(), messages.join("; ")))
    };
    existing.iter().filter_map(of_row).collect()
}

fn behind(origin: Option<Origin>, object: String, message: String) -> Diagnostic {
    Diagnostic::new(DiagnosticSeverity::Behind, object, message).origin(origin)
}

/// Returns the workloads whose number of running pods differs from the declared one. Workloads
/// whose count another source decides are skipped.
fn workloads(plan: &Plan) -> Vec<Diagnostic> {
    let mut running: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, pods) in plan.capacity.explain.iter().flat_map(|row| &row.pods_before) {
        *running.entry(name.as_str()).or_insert(0) += pods;
    }
    let diagnostic = |row: &DemandRow| {
        let name = workload_key(&row.workload);
        // Pods on Fargate have no node and therefore no row.
        let on_fargate = row.fargate.as_ref().map_or(0, |fargate| fargate.pods);
        let declared = row.counts.planned.saturating_sub(on_fargate);
        let runs = running.get(name.as_str()).copied().unwrap_or(0);
        let decided = matches!(row.decided_by, Decider::Git | Decider::Removed);
        (decided && runs != declared).then(|| {
            let message =
                format!("runs {}, and the repository declares {declared}", count(runs, "pod"));
            behind(row.origin.clone(), name, message)
        })
    };
    plan.capacity.demand.iter().filter_map(diagnostic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::valid_plan::plan;

    #[test]
    fn drift_report_changes_nothing_and_is_never_applyable() {
        let calm = drift(&plan());
        assert!(
            !calm.applyable && calm.resource_changes.is_empty() && calm.capacity.waves.is_empty()
        );
        let mut moved = plan();
        let address = moved.capacity.explain[1].address.clone();
        moved.capacity.explain[1].reason = Reason::Retire {
            because: RetireReason::Drifted {
                field: "label team".into(),
                is: "a".into(),
                declared: "b".into(),
            },
        };
        let report = drift(&moved.with_identity());
        assert_eq!(report.resource_drift.len(), 1);
        assert_eq!(report.resource_drift[0].address, address);
        assert!(has_drift(&report));
        assert!(Plan::from_json(&report.to_json()).is_ok(), "the report has a valid digest");
    }

    #[test]
    fn planned_launch_is_neither_drift_nor_behind() {
        for field in ["label team", "image"] {
            let mut plan = plan();
            let launch = &mut plan.capacity.explain[3];
            let address = launch.address.to_string();
            let drifted =
                RetireReason::Drifted { field: field.into(), is: "a".into(), declared: "b".into() };
            launch.retire_reason = Some(drifted);
            let report = drift(&plan.with_identity());
            assert!(!has_drift(&report), "{field}");
            let mut lines = report.capacity.diagnostics.iter();
            assert!(lines.all(|line| line.object != address), "{field}");
        }
    }

    #[test]
    fn differences_explained_by_a_commit_are_behind_not_drift() {
        let behind = |report: &Plan| {
            report
                .capacity
                .diagnostics
                .iter()
                .filter(|d| d.severity == DiagnosticSeverity::Behind)
                .count()
        };
        let drifted = |field: &str| RetireReason::Drifted {
            field: field.into(),
            is: "a".into(),
            declared: "b".into(),
        };
        for (because, moved) in [
            (drifted("userData of node class default"), false),
            (drifted("labels, taints"), false),
            (drifted("template label team"), false),
            (drifted("taints"), false),
            (drifted("taint team"), true),
            (drifted("tag team"), true),
            (drifted("bounds of the group"), true),
            (drifted("image"), false),
            (drifted("subnet"), false),
            (drifted("security groups"), false),
            (drifted("offering"), false),
            (drifted("label karpenter.k8s.aws/instance-family"), false),
            (drifted("label topology.kubernetes.io/zone"), false),
            (drifted("instance label topology.kubernetes.io/zone"), true),
            (drifted("instanceProfile of node class default"), false),
            (RetireReason::PoolRemoved, false),
            (drifted("label team"), true),
        ] {
            let mut plan = plan();
            plan.capacity.explain[1].reason = Reason::Retire { because: because.clone() };
            let report = drift(&plan.with_identity());
            assert_eq!(has_drift(&report), moved, "{because:?}");
            let address = &report.capacity.explain.first().map(|row| row.address.to_string());
            let is_behind = report.capacity.diagnostics.iter().any(|d| {
                d.severity == DiagnosticSeverity::Behind && d.object.starts_with("ec2_instance.")
            });
            assert_eq!((is_behind, address.is_some()), (!moved, moved), "{because:?}");
            assert_eq!(report.resource_drift.len(), usize::from(moved), "{because:?}");
        }
        let mut plan = plan();
        plan.capacity.demand[0].counts.planned += 3;
        let report = drift(&plan.with_identity());
        assert!(!has_drift(&report) && behind(&report) > 0, "pods that do not run yet are behind");
    }
}
