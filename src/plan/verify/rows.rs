//! Rows: addresses, order, and actions that agree with the states before and after.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::Violations;
use super::context::{CheckContext, CheckedRow, RowAction};
use super::fargate::is_unrunnable;
use super::groups::has_certain_zone;
use crate::plan::wire::{NodeState, Reason, ResourceKind};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    order(context, violations);
    for row in &context.rows {
        address(row, violations);
        actions(context, row, violations);
        explanation(row, violations);
    }
}

fn order(context: &CheckContext<'_>, violations: &mut Violations) {
    let capacity = &context.plan.capacity;
    let rows = context.plan.resource_changes.iter();
    ascending("resource_changes", rows.map(|row| &row.address), violations);
    ascending("explain", capacity.explain.iter().map(|row| &row.address), violations);
    ascending("alternatives", capacity.alternatives.iter().map(|row| &row.address), violations);
    ascending("demand", capacity.demand.iter().map(|row| &row.workload), violations);
    ascending("daemons", capacity.daemons.iter().map(|row| &row.workload), violations);
    let unschedulable = capacity.unschedulable.iter();
    let keys = unschedulable.map(|row| RowKey(&row.workload, is_unrunnable(row)));
    ascending("unschedulable", keys, violations);
    let grown = capacity.cluster_autoscaler.iter().map(|row| &row.address);
    ascending("cluster_autoscaler", grown, violations);
    let placements = capacity.placements.iter();
    ascending("placements", placements.map(|row| RowKey(&row.workload, &row.address)), violations);
    let known: BTreeSet<_> = context.plan.resource_changes.iter().map(|row| &row.address).collect();
    let explained = capacity.explain.iter().map(|row| &row.address);
    for address in explained.chain(capacity.alternatives.iter().map(|row| &row.address)) {
        if !known.contains(address) {
            violations.report_row(
                "row/missing",
                address,
                "it is explained, but is not a row of the plan",
            );
        }
    }
}

/// Two parts of a key, compared in turn.
#[derive(PartialEq, PartialOrd)]
struct RowKey<A, B>(A, B);

impl<A: Display, B: Display> Display for RowKey<A, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.0, self.1)
    }
}

/// Checks that keys are sorted and unique.
fn ascending<K: PartialOrd + Display>(
    list: &str,
    keys: impl Iterator<Item = K>,
    violations: &mut Violations,
) {
    let keys: Vec<K> = keys.collect();
    for pair in keys.windows(2) {
        if let [a, b] = pair
            && a >= b
        {
            let fault = if a == b { "occurs twice" } else { "occurs after a later one" };
            violations.report_plan("row/order", format!("{b} {fault} in `{list}`"));
        }
    }
}

fn address(row: &CheckedRow<'_>, violations: &mut Violations) {
    let change = row.change;
    let kind = change.kind.as_str();
    let expected = match &change.index {
        Some(index) => format!("{kind}.{}[\"{index}\"]", change.name),
        None => format!("{kind}.{}", change.name),
    };
    if row.address.as_str() != expected {
        violations.report_row(
            "row/address",
            row.address,
            format!("type, name and index give {expected}"),
        );
    }
    let pool = row.after.or(row.before).and_then(|state| state.pool.as_ref());
    if let Some(pool) = pool.filter(|_| change.kind == ResourceKind::Ec2Instance)
        && pool.as_str() != change.name
    {
        violations.report_row(
            "row/address",
            row.address,
            format!("the name of the row differs from pool {pool}"),
        );
    }
}

fn actions(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    let fault = match (row.action, row.before, row.after) {
        (RowAction::Keep, Some(before), Some(after)) => {
            (before != after).then_some("nothing is to change, but before and after differ")
        }
        (RowAction::Update, Some(before), Some(after)) => {
            (before == after).then_some("something is to change, but before and after are equal")
        }
        (RowAction::Create, None, Some(_))
        | (RowAction::Delete, Some(_), None)
        | (RowAction::Replace, Some(_), Some(_)) => None,
        (RowAction::Unknown, ..) => Some("the list of actions is invalid"),
        (
            RowAction::Keep
            | RowAction::Update
            | RowAction::Create
            | RowAction::Delete
            | RowAction::Replace,
            ..,
        ) => Some("the actions contradict the presence of before and after"),
    };
    if let Some(fault) = fault {
        violations.report_row("row/actions", row.address, fault);
    }
    if let (true, Some(after)) = (row.action.creates(), row.after) {
        check_decisions(context, row, after, violations);
    } else if !row.change.change.after_unknown.is_empty() && row.action != RowAction::Update {
        violations.report_row(
            "row/unknown",
            row.address,
            "nothing is launched, so no field can be unknown",
        );
    }
}

/// Checks that a new node states all decisions and no field that is known only after the launch.
fn check_decisions(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    after: &NodeState,
    violations: &mut Violations,
) {
    // Auto Scaling chooses the zone of the next group member.
    let group = context.group_of(row);
    let is_open = group.is_some_and(|group| !has_certain_zone(context, group));
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
            violations.report_row(
                "row/undecided",
                row.address,
                format!("`after.{name}` is left open"),
            );
        }
    }
    let known = [
        ("instance_id", after.instance_id.is_some()),
        ("node", after.node.is_some()),
        ("node_uid", after.node_uid.is_some()),
    ];
    for (name, _) in known.iter().filter(|(_, present)| *present) {
        let fault = format!("`after.{name}` is stated for a node that does not exist yet");
        violations.report_row("row/unknown", row.address, fault);
    }
    let of_place = |key: &String| is_open && (key == "zone" || key == "zone_id");
    let may_be = |key: &String| of_place(key) || known.iter().any(|(name, _)| name == key);
    for key in row.change.change.after_unknown.keys().filter(|key| !may_be(key)) {
        let fault = format!("`{key}` is decided by the plan and cannot be unknown");
        violations.report_row("row/unknown", row.address, fault);
    }
}

fn explanation(row: &CheckedRow<'_>, violations: &mut Violations) {
    let Some(explain) = row.explain else {
        return violations.report_row("explain/missing", row.address, "nothing explains the row");
    };
    let fits = match (&explain.reason, row.action) {
        (Reason::Launch { .. }, RowAction::Create | RowAction::Replace)
        | (Reason::Retire { .. }, RowAction::Delete)
        | (Reason::Keep { .. }, RowAction::Keep | RowAction::Update) => true,
        (_, _) => false,
    };
    if !fits {
        violations.report_row(
            "explain/reason",
            row.address,
            "the reason belongs to another action",
        );
    }
    if explain.retire_reason.is_some() != (row.action == RowAction::Replace) {
        let fault = "only rows that replace have a retire reason";
        violations.report_row("explain/reason", row.address, fault);
    }
}
