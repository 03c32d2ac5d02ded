//! Needless replacements: no node without pods is removed to save cost while an equal node is
//! launched for pods that it could hold.
//!
//! Equal nodes have the same pool, instance type, zone and capacity type. Pods with volumes, host
//! ports or rules about other pods are not judged here: they need more than room.

use std::collections::BTreeSet;

use super::Violations;
use super::admission::{AdmissionView, refusal_of, runs_daemon};
use super::context::{CheckContext, CheckedRow, resources};
use super::end_state::{EndState, PodSet, PodSetKind};
use super::ownership::saves_only;
use crate::demand::{PodGroup, PodShape};
use crate::model::ids::NodeName;
use crate::model::units::Resources;
use crate::plan::wire::NodeState;

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    let removed = context.rows.iter().filter_map(|row| Some((row, free_node(context, row)?)));
    for (row, before) in removed {
        let equal = state.nodes.iter().enumerate().find(|(index, end_node)| {
            end_node.row.action.creates()
                && is_equal(before, end_node.after)
                && holds(context, before, &pods_of(state, *index))
        });
        if let Some((_, end_node)) = equal {
            let fault = format!(
                "it is removed to save cost and has no pods, and {} launches an equal node whose \
                 pods it could hold",
                end_node.row.address
            );
            violations.report_row("ownership/needless", row.address, fault);
        }
    }
}

/// Returns the state of a node that is removed to save cost, is open to pods, and has none but
/// those of declared DaemonSets.
fn free_node<'a>(context: &CheckContext<'a>, row: &CheckedRow<'a>) -> Option<&'a NodeState> {
    let (before, node) = (row.before?, row.node?);
    let is_open = node.ready && !node.unschedulable && before.startup_taints.is_empty();
    let is_removed = row.action.deletes() && saves_only(row);
    // The size of a group decides which of its members remain.
    let is_member = context.group_of(row).is_some();
    let daemons = &context.facts.demand.daemons;
    let daemons: BTreeSet<_> = daemons.iter().map(|daemon| &daemon.workload).collect();
    let pods = context
        .facts
        .observed
        .pods
        .iter()
        .filter(|pod| pod.is_active() && pod.node.as_ref() == Some(&node.name));
    let mut foreign =
        pods.filter(|pod| pod.mirror || !pod.owner.as_ref().is_some_and(|of| daemons.contains(of)));
    let is_free = is_removed && is_open && !is_member;
    (is_free && context.running_on(&node.name).next().is_none() && foreign.next().is_none())
        .then_some(before)
}

fn is_equal(before: &NodeState, after: &NodeState) -> bool {
    let offering = |state: &NodeState| {
        let NodeState { pool, instance_type, zone, capacity_type, .. } = state;
        let known = (pool.clone()?, instance_type.clone()?, zone.clone()?);
        Some((known, (*capacity_type)?))
    };
    offering(before).is_some_and(|of| offering(after) == Some(of))
}

/// Returns the placed pods of a node, with their number.
fn pods_of<'s>(state: &'s EndState<'_>, index: usize) -> Vec<(&'s PodSet, u32)> {
    let here = state.pods_on(index).filter(|(pods, _)| pods.kind == PodSetKind::Placed);
    here.map(|(pods, presence)| (pods, presence.all())).collect()
}

/// Returns true if a node without pods admits these and has room for them beside its DaemonSets.
fn holds(context: &CheckContext<'_>, node: &NodeState, pods: &[(&PodSet, u32)]) -> bool {
    let view = AdmissionView {
        labels: &node.labels,
        taints: &node.taints,
        name: node.node.as_ref().map(NodeName::as_str),
    };
    let allocatable = resources(&node.allocatable);
    let daemons = context.facts.demand.daemons.iter();
    let daemons = daemons.filter(|daemon| runs_daemon(&daemon.shape, &view, &allocatable));
    let room = daemons.fold(allocatable.clone(), |room, daemon| room.minus(&daemon.shape.requests));
    let requests = pods.iter().fold(Resources::default(), |sum, (pods, count)| {
        sum.plus(&pods.shape.requests.times(i64::from(*count)))
    });
    let is_admitted = |(pods, _): &(&PodSet, u32)| {
        let group = context.groups.get(&pods.name);
        let is_one = |of: &&&PodGroup| of.partitions.is_empty();
        needs_only_room(&pods.shape)
            && group.filter(is_one).is_some_and(|of| refusal_of(of, &view).is_none())
    };
    requests.fits(&room) && pods.iter().all(is_admitted)
}

fn needs_only_room(shape: &PodShape) -> bool {
    shape.volumes.is_empty()
        && shape.host_ports.is_empty()
        && shape.spread.is_empty()
        && shape.affinity.required.is_empty()
        && shape.anti_affinity.required.is_empty()
        && shape.unsupported.is_empty()
}
