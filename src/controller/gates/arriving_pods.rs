//! Launches whose pods may still be placed on launched nodes.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::change_group::ChangeGroup;
use super::{GateContext, GroupBlock};
use crate::controller::planning::planned_demand;
use crate::controller::reconcile::launched_rows;
use crate::controller::status::BlockedReason;
use crate::model::ids::Address;
use crate::plan::Plan;
use crate::plan::wire::{ExplainRow, LaunchReason, Reason};

/// Workloads whose pods may still be placed on launched nodes.
pub(super) struct WorkloadsArriving {
    workloads: BTreeSet<String>,
    until: Timestamp,
}

/// Returns the workloads whose pods may still be placed on launched nodes, unless the plan has more
/// pods than the launches. Pods that were added since have no node yet.
pub(super) fn workloads_arriving(
    plan: &Plan,
    context: &GateContext<'_>,
    now: Timestamp,
) -> Option<WorkloadsArriving> {
    let arriving = context.pods_arriving.as_ref().filter(|arriving| now < arriving.until)?;
    let demand = planned_demand(plan);
    let workloads = arriving.workloads.iter().filter(|(workload, launched)| {
        demand.get(*workload).is_none_or(|planned| planned <= *launched)
    });
    let workloads: BTreeSet<String> = workloads.map(|(workload, _)| workload.clone()).collect();
    (!workloads.is_empty()).then_some(WorkloadsArriving { workloads, until: arriving.until })
}

/// Returns the reason that blocks launches whose pods may still be placed on launched nodes.
pub(super) fn pods_arriving_block(
    group: &ChangeGroup<'_>,
    plan: &Plan,
    arriving: Option<&WorkloadsArriving>,
) -> Option<GroupBlock> {
    let WorkloadsArriving { workloads, until } = arriving?;
    let launched = explained_launches(group, plan);
    let mut pods = launched.iter().flat_map(|row| row.pods.keys());
    let has_only_their_pods = pods.all(|workload| workloads.contains(workload.as_str()));
    // A node for another order of arrival has no pod of its own.
    let is_for_pods = |row: &&ExplainRow| !row.pods.is_empty() || is_for_demand(row);
    if !has_only_their_pods || !launched.iter().any(is_for_pods) {
        return None;
    }
    Some(GroupBlock::of_all(BlockedReason::PodsArriving { until: *until }))
}

/// Returns the explained launches of a group.
fn explained_launches<'p>(group: &ChangeGroup<'_>, plan: &'p Plan) -> Vec<&'p ExplainRow> {
    if group.launches == 0 {
        return Vec::new();
    }
    let in_group: BTreeSet<&Address> = group.rows.iter().map(|row| &row.address).collect();
    let launched: BTreeSet<&Address> = launched_rows(plan)
        .map(|row| &row.address)
        .filter(|address| in_group.contains(address))
        .collect();
    let explained = plan.capacity.explain.iter();
    explained.filter(|row| launched.contains(&row.address)).collect()
}

fn is_for_demand(row: &ExplainRow) -> bool {
    matches!(row.reason, Reason::Launch { because: LaunchReason::Demand { .. } })
}
