//! The rows as such: addresses, order, and actions that agree with the states beside them.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::Verdict;
use super::case::{Case, Deed, Row};
use super::fargate::is_stuck;
use super::groups::has_certain_zone;
use crate::plan::wire::{NodeState, Reason, ResourceKind};

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    order(case, verdict);
    for row in &case.rows {
        address(row, verdict);
        actions(case, row, verdict);
        explanation(row, verdict);
    }
}

fn order(case: &Case<'_>, verdict: &mut Verdict) {
    let capacity = &case.plan.capacity;
    let rows = case.plan.resource_changes.iter();
    ascending("resource_changes", rows.map(|row| &row.address), verdict);
    ascending("explain", capacity.explain.iter().map(|row| &row.address), verdict);
    ascending("alternatives", capacity.alternatives.iter().map(|row| &row.address), verdict);
    ascending("demand", capacity.demand.iter().map(|row| &row.workload), verdict);
    ascending("daemons", capacity.daemons.iter().map(|row| &row.workload), verdict);
    let unschedulable = capacity.unschedulable.iter();
    let keys = unschedulable.map(|row| Pair(&row.workload, is_stuck(row)));
    ascending("unschedulable", keys, verdict);
    let placements = capacity.placements.iter();
    ascending("placements", placements.map(|row| Pair(&row.workload, &row.address)), verdict);
    let known: BTreeSet<_> = case.plan.resource_changes.iter().map(|row| &row.address).collect();
    let explained = capacity.explain.iter().map(|row| &row.address);
    for address in explained.chain(capacity.alternatives.iter().map(|row| &row.address)) {
        if !known.contains(address) {
            verdict.row("row/missing", address, "it is explained, but is no row of the plan");
        }
    }
}

/// Two parts of a key, compared in turn.
#[derive(PartialEq, PartialOrd)]
struct Pair<A, B>(A, B);

impl<A: Display, B: Display> Display for Pair<A, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.0, self.1)
    }
}

/// Holds a list to strictly ascending keys: sorted, and none twice.
fn ascending<K: PartialOrd + Display>(
    list: &str,
    keys: impl Iterator<Item = K>,
    verdict: &mut Verdict,
) {
    let keys: Vec<K> = keys.collect();
    for pair in keys.windows(2) {
        if let [a, b] = pair
            && a >= b
        {
            let fault = if a == b { "stands twice" } else { "stands after a later one" };
            verdict.plan("row/order", format!("{b} {fault} in `{list}`"));
        }
    }
}

fn address(row: &Row<'_>, verdict: &mut Verdict) {
    let change = row.change;
    let kind = change.kind.as_str();
    let expected = match &change.index {
        Some(index) => format!("{kind}.{}[\"{index}\"]", change.name),
        None => format!("{kind}.{}", change.name),
    };
    if row.address.as_str() != expected {
        verdict.row("row/address", row.address, format!("type, name and index give {expected}"));
    }
    let pool = row.after.or(row.before).and_then(|state| state.pool.as_ref());
    if let Some(pool) = pool.filter(|_| change.kind == ResourceKind::Ec2Instance)
        && pool.as_str() != change.name
    {
        verdict.row("row/address", row.address, format!("the row is named otherwise than {pool}"));
    }
}

fn actions(case: &Case<'_>, row: &Row<'_>, verdict: &mut Verdict) {
    let fault = match (row.deed, row.before, row.after) {
        (Deed::Keep, Some(before), Some(after)) => {
            (before != after).then_some("nothing is to change, but before and after differ")
        }
        (Deed::Update, Some(before), Some(after)) => {
            (before == after).then_some("something is to change, but before and after are equal")
        }
        (Deed::Create, None, Some(_))
        | (Deed::Delete, Some(_), None)
        | (Deed::Replace, Some(_), Some(_)) => None,
        (Deed::Unknown, ..) => Some("the actions are none of the lists that there are"),
        (Deed::Keep | Deed::Update | Deed::Create | Deed::Delete | Deed::Replace, ..) => {
            Some("the actions do not agree with which of before and after there is")
        }
    };
    if let Some(fault) = fault {
        verdict.row("row/actions", row.address, fault);
    }
    if let (true, Some(after)) = (row.deed.creates(), row.after) {
        decided(case, row, after, verdict);
    } else if !row.change.change.after_unknown.is_empty() && row.deed != Deed::Update {
        verdict.row("row/unknown", row.address, "nothing comes, so nothing can be unknown yet");
    }
}

/// Holds a node to come to what must be decided, and to what nobody can know yet.
fn decided(case: &Case<'_>, row: &Row<'_>, after: &NodeState, verdict: &mut Verdict) {
    // Where the next member of a group will be, Auto Scaling decides.
    let group = case.group_of(row);
    let is_open = group.is_some_and(|group| !has_certain_zone(case, group));
    for (name, present) in [
        ("pool", after.pool.is_some()),
        ("instance_type", after.instance_type.is_some()),
        ("zone", is_open || after.zone.is_some()),
        ("zone_id", is_open || after.zone_id.is_some()),
        ("capacity_type", after.capacity_type.is_some()),
        ("image", after.image.is_some()),
        ("spec_digest", after.spec_digest.is_some()),
    ] {
        if !present {
            verdict.row("row/undecided", row.address, format!("`after.{name}` is left open"));
        }
    }
    let known = [
        ("instance_id", after.instance_id.is_some()),
        ("node", after.node.is_some()),
        ("node_uid", after.node_uid.is_some()),
    ];
    for (name, _) in known.iter().filter(|(_, present)| *present) {
        let fault = format!("`after.{name}` is stated for a node that does not exist yet");
        verdict.row("row/unknown", row.address, fault);
    }
    let of_place = |key: &String| is_open && (key == "zone" || key == "zone_id");
    let may_be = |key: &String| of_place(key) || known.iter().any(|(name, _)| name == key);
    for key in row.change.change.after_unknown.keys().filter(|key| !may_be(key)) {
        let fault = format!("`{key}` is decided by the plan and cannot be unknown");
        verdict.row("row/unknown", row.address, fault);
    }
}

fn explanation(row: &Row<'_>, verdict: &mut Verdict) {
    let Some(explain) = row.explain else {
        return verdict.row("explain/missing", row.address, "nothing explains the row");
    };
    let fits = match (&explain.reason, row.deed) {
        (Reason::Launch { .. }, Deed::Create | Deed::Replace)
        | (Reason::Retire { .. }, Deed::Delete)
        | (Reason::Keep { .. }, Deed::Keep | Deed::Update) => true,
        (_, _) => false,
    };
    if !fits {
        verdict.row("explain/reason", row.address, "the reason is one of another action");
    }
    if explain.retire_reason.is_some() != (row.deed == Deed::Replace) {
        let fault = "a reason for what goes belongs to rows that replace, and to those alone";
        verdict.row("explain/reason", row.address, fault);
    }
}
