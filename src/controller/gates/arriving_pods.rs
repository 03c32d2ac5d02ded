//! Launches whose pods may still be placed on launched nodes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::change_group::ChangeGroup;
use super::{GateContext, GroupBlock};
use crate::apply::waits_for_node;
use crate::controller::opening::bound_pods;
use crate::controller::planning::planned_demand;
use crate::controller::reconcile::launched_rows;
use crate::controller::status::BlockedReason;
use crate::model::ids::Address;
use crate::model::observed::{Observed, Pod};
use crate::plan::Plan;
use crate::plan::wire::{ExplainRow, LaunchReason, PlacementMode, Reason, workload_key};

/// Minimum number of bound pods for each pending pod of workloads whose launches do not wait.
const BOUND_PER_PENDING_MIN: usize = 10;

/// Workloads whose pods may still be placed on launched nodes.
pub(super) struct WorkloadsArriving {
    workloads: BTreeSet<String>,
    until: Timestamp,
}

/// Returns the workloads whose pods may still be placed on launched nodes, unless the plan has more
/// pods than the launches. Pods that were added since have no node yet. If the plan launches nodes
/// for every pending pod of the workloads, none of them waits for a launched node.
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
    let is_awaited = !workloads.is_empty() && !launches_for_all(plan, &workloads, context.planned);
    is_awaited.then_some(WorkloadsArriving { workloads, until: arriving.until })
}

/// Returns true if a steered plan launches nodes for all planned pods of the workloads that have no
/// node, and at most one in eleven existing pods waits. In an unsteered plan, they may have a place
/// elsewhere in another order of arrival. If more pods wait, something else may keep them from the
/// launched nodes, and from further ones.
fn launches_for_all(plan: &Plan, workloads: &BTreeSet<String>, world: &Observed) -> bool {
    let launched: BTreeSet<&Address> = launched_rows(plan).map(|row| &row.address).collect();
    let rows = plan.capacity.explain.iter();
    let rows = rows.filter(|row| is_for_demand(row) && launched.contains(&row.address));
    let mut launched_pods: BTreeMap<&str, u32> = BTreeMap::new();
    for (workload, pods) in rows.flat_map(|row| &row.pods) {
        let launched = launched_pods.entry(workload.as_str()).or_default();
        *launched = launched.saturating_add(*pods);
    }
    let (demand, bound) = (planned_demand(plan), bound_pods(world));
    let is_launched = |workload: &String| {
        let planned = demand.get(workload).copied().unwrap_or(0);
        let without_node = planned.saturating_sub(bound.get(workload).copied().unwrap_or(0));
        without_node <= launched_pods.get(workload.as_str()).copied().unwrap_or(0)
    };
    let is_pending = |pod: &Pod| {
        waits_for_node(pod, world) && workloads.contains(&workload_key(&pod.workload()))
    };
    let pending = world.pods.iter().filter(|pod| is_pending(pod)).count();
    let bound_pods = workloads.iter().filter_map(|workload| bound.get(workload));
    let bound_pods: usize = bound_pods.map(|pods| usize::try_from(*pods).unwrap_or(0)).sum();
    plan.capacity.placement.mode == PlacementMode::Steered
        && pending > 0
        && pending.saturating_mul(BOUND_PER_PENDING_MIN) <= bound_pods
        && workloads.iter().all(is_launched)
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
