//! What may be deleted at all: what is ours, as it was observed, by a plan that knows everything.

use super::Verdict;
use super::case::{Case, Row};
use crate::plan::wire::ResourceKind;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for row in case.rows.iter().filter(|row| row.deed.deletes()) {
        ours(case, row, verdict);
        known(case, row, verdict);
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
    if !case.is_ours(instance) {
        let cluster = &case.facts.observed.cluster.name;
        let fault = format!("{} does not carry our tags for cluster {cluster}", instance.id);
        verdict.row("ownership/ours", row.address, fault);
    }
    let node = case.facts.observed.node_of(&instance.id);
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
