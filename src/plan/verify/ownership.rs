//! Deletions: only managed instances, as observed, and only by a plan with complete inputs.

use std::collections::{BTreeMap, BTreeSet};

use super::Violations;
use super::context::{CheckContext, CheckedRow, RunningPods};
use crate::demand::{JobEvictions, is_do_not_disrupt_at};
use crate::model::ids::{NodeName, WorkloadId};
use crate::model::reason::RetireReason;
use crate::plan::wire::{Reason, ResourceKind};

/// Annotation that forbids a voluntary disruption of a node.
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Nodes and workloads with a pod on the node that must not be moved at the plan's timestamp, or
/// whose Job might fail without it.
type PinnedPods<'a> = BTreeSet<(&'a NodeName, &'a WorkloadId)>;

fn pinned_pods<'a>(context: &CheckContext<'a>) -> PinnedPods<'a> {
    let (observed, at) = (context.facts.observed, context.plan.timestamp);
    let jobs = JobEvictions::new(observed, context.facts.desired);
    let pods = observed.pods.iter().filter(|pod| pod.is_active());
    let pods =
        pods.filter(|pod| is_do_not_disrupt_at(pod, observed, at) || jobs.refusal(pod).is_some());
    pods.filter_map(|pod| Some((pod.node.as_ref()?, pod.owner.as_ref()?))).collect()
}

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let pinned_pods = pinned_pods(context);
    let places = places(context);
    for row in context.rows.iter().filter(|row| row.action.deletes()) {
        check_stranded(context, row, &places, violations);
        check_managed(context, row, violations);
        check_inputs(context, row, violations);
        check_pinned(context, row, &pinned_pods, violations);
        check_grace(context, row, violations);
    }
    // A malformed row must not bypass the rules for deletions.
    for row in context.rows.iter().filter(|row| !row.action.deletes()) {
        if row.before.is_some() && row.after.is_none() {
            violations.report_row(
                "ownership/hidden",
                row.address,
                "a node disappears without a delete action",
            );
        }
    }
}

fn check_managed(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    if row.change.kind != ResourceKind::Ec2Instance {
        violations.report_row("ownership/ours", row.address, "only instances are ours to delete");
        return;
    }
    let Some(instance) = row.instance else {
        return violations.report_row(
            "ownership/ours",
            row.address,
            "the instance was not observed",
        );
    };
    let member = context.group_of(row).is_some_and(|group| context.is_member(instance, group));
    if !context.is_managed(instance) && !member {
        let cluster = &context.facts.observed.cluster.name;
        let fault = format!("{} does not carry our tags for cluster {cluster}", instance.id);
        violations.report_row("ownership/ours", row.address, fault);
    }
    let node = context.node_for_instance(&instance.id);
    let stated = row.before.and_then(|before| before.node_uid.as_ref());
    if node.map(|node| &node.uid) != stated {
        let fault = format!("the node of {} is not the one stated", instance.id);
        violations.report_row("ownership/node", row.address, fault);
    }
}

fn check_inputs(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    if context.plan.errored {
        violations.report_row("ownership/errored", row.address, "an errored plan deletes nothing");
    }
    if !context.facts.observed.is_complete() {
        let fault = "the cluster was not observed completely; unknown objects are not deleted";
        violations.report_row("ownership/unknown", row.address, fault);
    }
}

/// Checks that a drain ends by force only as the pool of the node declares it.
fn check_grace(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    let pool = row.before.and_then(|before| before.pool.as_ref());
    let pool = pool.and_then(|pool| context.facts.desired.pools.get(pool));
    let declared = retire_reason(row).and_then(|reason| pool?.forced_drain_period(reason));
    let declared = declared.and_then(|grace| u64::try_from(grace.as_secs()).ok());
    let stated = row.change.change.termination_grace_seconds;
    if stated != declared {
        let text = |seconds: Option<u64>| seconds.map_or("none".to_owned(), |s| format!("{s} s"));
        let fault =
            format!("its grace period is {}, its pool has {}", text(stated), text(declared));
        violations.report_row("ownership/grace", row.address, fault);
    }
}

/// Checks that removals for cost only affect nodes that may be disrupted. A drain that ends by
/// force may affect them as well.
fn check_pinned(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    pinned_pods: &PinnedPods<'_>,
    violations: &mut Violations,
) {
    let is_forced = row.change.change.termination_grace_seconds.is_some();
    let ends_by_force = retire_reason(row).is_some_and(RetireReason::ends_drain_by_force);
    let (Some(node), true) = (row.node, saves_only(row) || ends_by_force) else { return };
    let pool = row.before.and_then(|before| before.pool.as_ref());
    let pool = pool.and_then(|pool| context.facts.desired.pools.get(pool));
    let is_pinned = node.annotations.get(DO_NOT_DISRUPT).is_some_and(|value| value == "true");
    if is_pinned || pool.is_some_and(|pool| pool.do_not_disrupt) {
        violations.report_row(
            "ownership/pinned",
            row.address,
            format!("{} forbids disruption", node.name),
        );
    }
    for here in context.running_on(&node.name).filter(|_| !is_forced) {
        if !here.group.shape.do_not_disrupt
            && !pinned_pods.contains(&(&node.name, &here.group.workload))
        {
            continue;
        }
        let fault =
            format!("a pod of {} runs on node {} and may not be moved", here.key, node.name);
        violations.report_row("ownership/pinned", row.address, fault);
    }
}

/// Returns the number of pods of each workload that have a place on a node after the plan.
fn places<'c>(context: &'c CheckContext<'_>) -> BTreeMap<&'c str, u32> {
    let mut places: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, pods) in context.rows.iter().flat_map(CheckedRow::pods) {
        let sum = places.entry(key).or_default();
        *sum = sum.saturating_add(pods);
    }
    places
}

/// Checks that a removal for cost alone lets every running pod that stays planned have a place. The
/// number of unschedulable pods is no excuse: the plan may count running pods among them.
fn check_stranded(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    places: &BTreeMap<&str, u32>,
    violations: &mut Violations,
) {
    let (Some(node), true) = (row.node, saves_only(row)) else { return };
    for RunningPods { key, group, .. } in context.running_on(&node.name) {
        if !group.running.contains_key(&node.name) {
            continue;
        }
        let running = group.running.values().fold(0, |sum: u32, pods| sum.saturating_add(*pods));
        let needed = running.min(group.counts.planned);
        let placed = places.get(key).copied().unwrap_or(0);
        if placed < needed {
            let fault = format!(
                "pods of {key} run on node {}, {needed} pods of it run and stay planned, and \
                 {placed} have a place without the node",
                node.name
            );
            violations.report_row("ownership/stranded", row.address, fault);
        }
    }
}

/// Returns the reason of a removal, if the plan states one.
fn retire_reason<'a>(row: &CheckedRow<'a>) -> Option<&'a RetireReason> {
    let explain = row.explain?;
    match &explain.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            explain.retire_reason.as_ref()
        }
    }
}

/// Returns whether cost is the only reason of the removal. A removal without a reason counts.
fn saves_only(row: &CheckedRow<'_>) -> bool {
    match retire_reason(row) {
        None | Some(RetireReason::Empty { .. } | RetireReason::Underutilized { .. }) => true,
        Some(
            RetireReason::Surplus { .. }
            | RetireReason::PoolRemoved
            | RetireReason::Drifted { .. }
            | RetireReason::Expired { .. }
            | RetireReason::Requested,
        ) => false,
    }
}
