//! Nodes that a plan would remove to save cost although their running pods have no other place.
//!
//! The search compares the unschedulable pods before and after a removal. Where an input makes
//! running pods look unplaced, it would find nothing wrong. This check needs no such comparison.

use std::collections::{BTreeMap, BTreeSet};

use crate::demand::Demand;
use crate::model::ids::{Address, NodeName, workload_key};
use crate::model::reason::RetireReason;
use crate::plan::wire::{Action, Plan, Reason};

/// Returns the nodes of each workload that loses a node for cost alone, and whose running pods do
/// not all have a place after the plan.
pub(super) fn nodes_that_strand(plan: &Plan, demand: &Demand) -> BTreeSet<NodeName> {
    let removed = removed_for_cost(plan);
    if removed.is_empty() {
        return BTreeSet::new();
    }
    let mut places: BTreeMap<&str, u32> = BTreeMap::new();
    let placed = plan.capacity.explain.iter().flat_map(|row| &row.pods);
    // Growth of a group that cluster-autoscaler resizes is no place: it may never happen.
    for (key, pods) in placed {
        let sum = places.entry(key.as_str()).or_default();
        *sum = sum.saturating_add(*pods);
    }
    let mut stranding = BTreeSet::new();
    for group in &demand.groups {
        let running: u32 = group.running.values().sum();
        let key = workload_key(&group.workload);
        let placed = places.get(key.as_str()).copied().unwrap_or(0);
        if placed < running.min(group.counts.planned) {
            // Otherwise the next round would remove another node of the same workload.
            if group.running.keys().any(|node| removed.contains(node)) {
                stranding.extend(group.running.keys().cloned());
            }
        }
    }
    stranding
}

fn removed_for_cost(plan: &Plan) -> BTreeSet<NodeName> {
    let saves_only = |reason: &RetireReason| match reason {
        RetireReason::Empty { .. } | RetireReason::Underutilized { .. } => true,
        RetireReason::Surplus { .. }
        | RetireReason::PoolRemoved
        | RetireReason::Drifted { .. }
        | RetireReason::Expired { .. }
        | RetireReason::Requested => false,
    };
    let rows = plan.capacity.explain.iter().filter(|row| {
        let retire = match &row.reason {
            Reason::Retire { because } => Some(because),
            Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
                row.retire_reason.as_ref()
            }
        };
        retire.is_some_and(saves_only)
    });
    let addresses: BTreeSet<&Address> = rows.map(|row| &row.address).collect();
    let removed = plan.resource_changes.iter().filter(|row| {
        row.change.actions.contains(&Action::Delete) && addresses.contains(&row.address)
    });
    removed.filter_map(|row| row.change.before.as_ref()?.node.clone()).collect()
}
