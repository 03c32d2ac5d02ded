//! What may be deleted at all: what is ours, as it was observed, by a plan that knows everything.

use std::collections::BTreeSet;

use super::Verdict;
use super::case::{Case, Row};
use crate::demand::is_pinned_at;
use crate::ids::{NodeName, WorkloadId};
use crate::plan::wire::{Reason, ResourceKind};
use crate::solve::RetireReason;

/// The annotation by which a node says that nothing may disrupt it.
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Nodes, and workloads of which a pod there asks not to be moved when the plan is made.
type Asking<'a> = BTreeSet<(&'a NodeName, &'a WorkloadId)>;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let (observed, at) = (case.facts.observed, case.plan.timestamp);
    let asks =
        observed.pods.iter().filter(|pod| pod.is_active() && is_pinned_at(pod, observed, at));
    let asking = asks.filter_map(|pod| Some((pod.node.as_ref()?, pod.owner.as_ref()?))).collect();
    for row in case.rows.iter().filter(|row| row.deed.deletes()) {
        ours(case, row, verdict);
        known(case, row, verdict);
        pinned(case, row, &asking, verdict);
    }
    // A row of a strange form must not slip by the rules for those that delete.
    for row in case.rows.iter().filter(|row| !row.deed.deletes()) {
        if row.before.is_some() && row.after.is_none() {
            verdict.row("ownership/hidden", row.address, "a node is gone that no action deletes");
        }
    }
}

fn ours(case: &Case<'_>, row: &Row<'_>, verdict: &mut Verdict) {
    if row.change.kind != ResourceKind::Ec2Instance {
        verdict.row("ownership/ours", row.address, "only instances are ours to delete");
        return;
    }
    let Some(instance) = row.instance else {
        return verdict.row("ownership/ours", row.address, "the instance was not observed");
    };
    let member = case.group_of(row).is_some_and(|group| case.is_member(instance, group));
    if !case.is_ours(instance) && !member {
        let cluster = &case.facts.observed.cluster.name;
        let fault = format!("{} does not carry our tags for cluster {cluster}", instance.id);
        verdict.row("ownership/ours", row.address, fault);
    }
    let node = case.node_of(&instance.id);
    let stated = row.before.and_then(|before| before.node_uid.as_ref());
    if node.map(|node| &node.uid) != stated {
        let fault = format!("the node of {} is not the one stated", instance.id);
        verdict.row("ownership/node", row.address, fault);
    }
}

fn known(case: &Case<'_>, row: &Row<'_>, verdict: &mut Verdict) {
    if case.plan.errored {
        verdict.row("ownership/errored", row.address, "an errored plan deletes nothing");
    }
    if !case.facts.observed.is_complete() {
        let fault = "the world was not read completely; what is not known is not deleted";
        verdict.row("ownership/unknown", row.address, fault);
    }
}

/// Holds removals that only save money to nodes that may be disrupted.
fn pinned(case: &Case<'_>, row: &Row<'_>, asking: &Asking<'_>, verdict: &mut Verdict) {
    let (Some(node), true) = (row.node, saves_only(row)) else { return };
    if node.annotations.get(DO_NOT_DISRUPT).is_some_and(|value| value == "true") {
        verdict.row(
            "ownership/pinned",
            row.address,
            format!("{} forbids to disrupt it", node.name),
        );
    }
    for here in case.running_on(&node.name) {
        if !here.group.shape.pinned && !asking.contains(&(&node.name, &here.group.workload)) {
            continue;
        }
        let fault =
            format!("a pod of {} runs on node {} and may not be moved", here.key, node.name);
        verdict.row("ownership/pinned", row.address, fault);
    }
}

/// Returns whether the node goes for no other reason than its price.
fn saves_only(row: &Row<'_>) -> bool {
    let Some(explain) = row.explain else { return true };
    let because = match &explain.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            explain.retire_reason.as_ref()
        }
    };
    match because {
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
