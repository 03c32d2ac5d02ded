//! What moved outside Git: nodes that no longer are what their pool declares, and workloads that no
//! longer run what the repository says.
//!
//! This module reads a plan and makes another of it that nobody can apply.

use std::collections::{BTreeMap, BTreeSet};

use super::seal;
use super::wire::{
    Decider, DemandRow, Diagnostic, LaunchReason, Plan, Reason, RetireReason, Summary, workload_key,
};
use crate::ids::Address;

/// Returns `plan` as a report of drift: `resource_drift` holds the rows that moved, nothing changes,
/// and it can never be applied.
#[must_use]
pub fn drift(plan: &Plan) -> Plan {
    let drifted: BTreeSet<&Address> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| {
            let differs = row.retire_reason.as_ref().is_some_and(is_drift_of_node);
            differs || row.drift.is_some() || is_drift(&row.reason)
        })
        .map(|row| &row.address)
        .collect();
    let rows = plan.resource_changes.iter().filter(|row| drifted.contains(&row.address));
    let mut report = Plan {
        applyable: false,
        resource_drift: rows.cloned().collect(),
        resource_changes: Vec::new(),
        checks: Vec::new(),
        summary: Summary::default(),
        ..plan.clone()
    };
    let moved = workloads(plan);
    let capacity = &mut report.capacity;
    capacity.explain.retain(|row| drifted.contains(&row.address));
    capacity.base.preconditions.clear();
    capacity.waves.clear();
    capacity.placements.clear();
    capacity.alternatives.clear();
    capacity.diagnostics.extend(moved);
    capacity.diagnostics.sort();
    seal(&mut report);
    report
}

/// Returns whether anything moved.
#[must_use]
pub fn has_drift(report: &Plan) -> bool {
    !report.resource_drift.is_empty()
        || report.capacity.diagnostics.iter().any(|d| d.severity == DRIFT)
}

/// The severity of what moved and is no row.
const DRIFT: &str = "drift";

fn is_drift(reason: &Reason) -> bool {
    match reason {
        Reason::Retire { because } => is_drift_of_node(because),
        Reason::Launch { because: LaunchReason::Replacement { because, .. } } => {
            is_drift_of_node(because)
        }
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => false,
    }
}

fn is_drift_of_node(reason: &RetireReason) -> bool {
    match reason {
        RetireReason::Drifted { .. } | RetireReason::PoolRemoved => true,
        RetireReason::Empty { .. }
        | RetireReason::Underutilized { .. }
        | RetireReason::Surplus { .. }
        | RetireReason::Expired { .. }
        | RetireReason::Requested => false,
    }
}

/// Returns workloads that run another number of pods than the repository declares, where nothing but
/// the repository decides.
fn workloads(plan: &Plan) -> Vec<Diagnostic> {
    let mut running: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, pods) in plan.capacity.explain.iter().flat_map(|row| &row.pods_before) {
        *running.entry(name).or_insert(0) += pods;
    }
    let of = |row: &DemandRow| {
        let name = workload_key(&row.workload);
        // Pods on Fargate have no node that a row would tell of.
        let on_fargate = row.fargate.as_ref().map_or(0, |taken| taken.pods);
        let declared = row.counts.planned.saturating_sub(on_fargate);
        let runs = running.get(name.as_str()).copied().unwrap_or(0);
        let decided = matches!(row.decided_by, Decider::Git | Decider::Removed);
        (decided && runs != declared).then(|| Diagnostic {
            severity: DRIFT.to_owned(),
            origin: row.origin.clone(),
            object: name,
            message: format!("runs {runs} pods, and the repository declares {declared}"),
            hint: None,
        })
    };
    plan.capacity.demand.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixture::{plan, sealed};

    #[test]
    fn a_report_of_drift_changes_nothing_and_can_never_be_applied() {
        let calm = drift(&plan());
        assert!(
            !calm.applyable && calm.resource_changes.is_empty() && calm.capacity.waves.is_empty()
        );
        let mut moved = plan();
        let address = moved.capacity.explain[1].address.clone();
        moved.capacity.explain[1].reason = Reason::Retire {
            because: RetireReason::Drifted {
                field: "image".into(),
                is: "a".into(),
                declared: "b".into(),
            },
        };
        let report = drift(&sealed(moved));
        assert_eq!(report.resource_drift.len(), 1);
        assert_eq!(report.resource_drift[0].address, address);
        assert!(has_drift(&report));
        assert!(Plan::from_json(&report.to_json()).is_ok(), "its digest is that of its contents");
    }
}
