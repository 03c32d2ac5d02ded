//! Totals of pods and nodes: every planned pod counts once.

use std::collections::{BTreeMap, BTreeSet};

use super::Violations;
use super::context::{CheckContext, CheckedRow, RowAction, count, total};
use super::fargate::is_unrunnable;
use crate::model::ids::workload_key;
use crate::model::reason::{BlockReason, KeepReason};
use crate::plan::wire::{
    Action, Amount, EvictionRow, ExplainRow, NodeTotals, PodTotals, Reason, Summary,
    UnschedulableRow,
};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    demand(context, violations);
    groups(context, violations);
    pods(context, violations);
    summary(context, violations);
}

/// Checks the demand rows of the plan against the demand.
fn demand(context: &CheckContext<'_>, violations: &mut Violations) {
    let capacity = &context.plan.capacity;
    let facts = context.facts.demand;
    let stated: BTreeMap<_, _> =
        capacity.demand.iter().map(|row| (workload_key(&row.workload), row)).collect();
    let workloads: BTreeSet<&String> =
        context.groups.keys().chain(context.fargate.keys()).collect();
    if workloads.len() != capacity.demand.len()
        || context.groups.len() != facts.groups.len()
        || context.fargate.len() != facts.fargate.len()
    {
        violations.report_plan("totals/demand", "not every pod group has one row of demand");
    }
    for (key, group) in &context.groups {
        let requests = Amount::from(&group.shape.requests);
        let same = stated.get(key).is_some_and(|row| {
            // The counts of a workload with pods on Fargate cover both parts.
            let counts = context.fargate.get(key).map_or(group.counts, |taken| taken.counts);
            row.counts == counts && row.requests == requests && row.decided_by == group.decided_by
        });
        if !same {
            violations.report_plan("totals/demand", format!("the row of {key} is not its demand"));
        }
    }
    for (key, taken) in &context.fargate {
        let same = stated
            .get(key)
            .is_some_and(|row| row.counts == taken.counts && row.decided_by == taken.decided_by);
        if !same {
            violations.report_plan("totals/demand", format!("the row of {key} is not its demand"));
        }
    }
    let daemons = facts
        .daemons
        .iter()
        .map(|daemon| (workload_key(&daemon.workload), Amount::from(&daemon.shape.requests)));
    let stated =
        capacity.daemons.iter().map(|row| (workload_key(&row.workload), row.requests.clone()));
    let (stated, computed): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (stated.collect(), daemons.collect());
    violations.require_equal("totals/daemons", "the list of daemons", &stated, &computed);
}

/// Checks each group: planned = placed + unschedulable.
fn groups(context: &CheckContext<'_>, violations: &mut Violations) {
    let mut placed: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, pods) in context.rows.iter().flat_map(CheckedRow::pods) {
        let sum = placed.entry(key).or_default();
        *sum = sum.saturating_add(pods);
    }
    let mut unplaced: BTreeMap<String, u32> = BTreeMap::new();
    for row in context.plan.capacity.unschedulable.iter().filter(|row| !is_unrunnable(row)) {
        let key = workload_key(&row.workload);
        if row.pods == 0 || !context.groups.contains_key(&key) {
            violations
                .report_plan("totals/unschedulable", format!("{key} has no unschedulable pods"));
        }
        evictions(context, row, &key, violations);
        let sum = unplaced.entry(key).or_default();
        *sum = sum.saturating_add(row.pods);
    }
    for (key, pods) in context.plan.capacity.cluster_autoscaler.iter().flat_map(|row| &row.pods) {
        let sum = unplaced.entry(key.clone()).or_default();
        *sum = sum.saturating_add(*pods);
    }
    for (key, group) in &context.groups {
        let placed = placed.get(key.as_str()).copied().unwrap_or(0);
        let unplaced = unplaced.get(key).copied().unwrap_or(0);
        if placed.saturating_add(unplaced) != group.counts.planned {
            let fault = format!(
                "{key}: {placed} placed and {unplaced} unschedulable pods are not the {} planned",
                group.counts.planned
            );
            violations.report_plan("totals/group", fault);
        }
    }
}

/// Checks stated evictions: the number of scheduled pods does not exceed the number of
/// unschedulable pods, and victims have a lower priority.
fn evictions(
    context: &CheckContext<'_>,
    row: &UnschedulableRow,
    key: &str,
    violations: &mut Violations,
) {
    let Some(EvictionRow { lets_in, evicts }) = &row.eviction else { return };
    let own = context.groups.get(key).map(|group| group.shape.priority);
    let daemons = context.facts.demand.daemons.iter();
    let daemons: BTreeMap<String, i32> =
        daemons.map(|daemon| (workload_key(&daemon.workload), daemon.shape.priority)).collect();
    let lower = |victim: &String| {
        let group = context.groups.get(victim).map(|group| group.shape.priority);
        group.or_else(|| daemons.get(victim).copied()) < own
    };
    if *lets_in > row.pods || *lets_in == 0 || evicts.is_empty() || !evicts.keys().all(lower) {
        let fault = format!("the named pods cannot be evicted for {lets_in} pods of {key}");
        violations.report_plan("totals/eviction", fault);
    }
}

fn pods(context: &CheckContext<'_>, violations: &mut Violations) {
    let capacity = &context.plan.capacity;
    let PodTotals {
        total: all,
        placed,
        unschedulable,
        served_by_cluster_autoscaler: served,
        fargate,
        unresolved,
        moved,
    } = capacity.pods;
    let sum = [placed, unschedulable, served, fargate].into_iter().fold(0, u32::saturating_add);
    violations.require_equal("totals/pods", "pods.total", &all, &sum);
    let planned = total(context.groups.values(), |group| group.counts.planned);
    let taken = total(context.fargate.values(), |taken| taken.pods);
    violations.require_equal("totals/pods", "pods.total", &all, &planned.saturating_add(taken));
    let run = context.fargate.values().filter(|taken| taken.size.is_ok());
    let computed = total(run, |taken| taken.pods);
    violations.require_equal("totals/pods", "pods.fargate", &fargate, &computed);
    let computed = total(context.rows.iter().flat_map(CheckedRow::pods), |(_, pods)| pods);
    violations.require_equal("totals/pods", "pods.placed", &placed, &computed);
    let computed = total(&capacity.unschedulable, |row| row.pods);
    violations.require_equal("totals/pods", "pods.unschedulable", &unschedulable, &computed);
    let computed = total(capacity.cluster_autoscaler.iter().flat_map(|row| &row.pods), |(_, n)| *n);
    violations.require_equal("totals/pods", "pods.served", &served, &computed);
    let computed = count(&context.facts.demand.unresolved);
    violations.require_equal("totals/pods", "pods.unresolved", &unresolved, &computed);
    violations.require_equal(
        "totals/pods",
        "the list of unresolved",
        &count(&capacity.unresolved),
        &computed,
    );
    let (least, most) = moves(context);
    if !(least..=most).contains(&moved) {
        let fault = format!("pods.moved is stated as {moved}, but is between {least} and {most}");
        violations.report_plan("totals/moved", fault);
    }
}

/// Returns the minimum and maximum number of pods that removals of nodes move: running pods on
/// these nodes that are still planned. The number is lower if the workload shrinks on these nodes,
/// or if pods become unschedulable.
fn moves(context: &CheckContext<'_>) -> (u32, u32) {
    let retiring_nodes = context.rows.iter().filter(|row| row.action.deletes());
    let retiring_nodes: BTreeSet<_> =
        retiring_nodes.filter_map(|row| row.node).map(|node| &node.name).collect();
    let rows = context.plan.capacity.unschedulable.iter();
    let served = context.plan.capacity.cluster_autoscaler.iter().flat_map(|row| row.pods.clone());
    let mut unplaced: BTreeMap<String, u32> = BTreeMap::new();
    for (key, pods) in rows.map(|row| (workload_key(&row.workload), row.pods)).chain(served) {
        let sum = unplaced.entry(key).or_default();
        *sum = sum.saturating_add(pods);
    }
    let (mut least, mut most) = (0_u32, 0_u32);
    for (key, group) in &context.groups {
        let here = retiring_nodes.iter().map(|name| group.active_on(name)).sum::<u32>();
        let not_placed = unplaced.get(key).copied().unwrap_or(0);
        let running = group.active();
        let planned = group.counts.planned;
        let at_least = planned.min(running).saturating_sub(running - here).min(here);
        least = least.saturating_add(at_least.saturating_sub(not_placed));
        most = most.saturating_add(here.min(planned));
    }
    (least, most)
}

/// Returns true if a rule blocks a change that is due: the row states the change, the rule implies
/// one, or an empty node stays that is not declared.
fn is_change_blocked(explain: &ExplainRow) -> bool {
    let Reason::Keep { because: KeepReason::Blocked { by } } = &explain.reason else {
        return false;
    };
    let implies_change = matches!(
        by,
        BlockReason::NoOtherPlace
            | BlockReason::Budget
            | BlockReason::InTurn
            | BlockReason::NodeLimit { .. }
            | BlockReason::PoolLimits { .. }
            | BlockReason::NotTargeted
    );
    let is_uncertain = matches!(
        by,
        BlockReason::NotReady | BlockReason::TagsLost { .. } | BlockReason::Unknown { .. }
    );
    let is_declared = *by == BlockReason::StaticPool;
    let is_idle = explain.pods.is_empty() && !is_declared;
    explain.drift.is_some() || implies_change || is_uncertain || is_idle
}

fn summary(context: &CheckContext<'_>, violations: &mut Violations) {
    let rows = |computed: fn(&CheckedRow<'_>) -> bool| {
        count(context.rows.iter().filter(|row| computed(row)))
    };
    let groups = context.group_rows.iter();
    let resized = count(groups.filter(|row| row.change.actions.as_slice() == [Action::Update]));
    let (add, destroy) = (rows(|row| row.action.creates()), rows(|row| row.action.deletes()));
    let computed = Summary {
        add,
        change: rows(|row| row.action == RowAction::Update).saturating_add(resized),
        destroy,
        replace: rows(|row| row.action == RowAction::Replace),
        blocked: rows(|row| row.explain.is_some_and(is_change_blocked)),
        destructive: destroy > 0,
        nodes: NodeTotals {
            before: rows(|row| row.before.is_some()),
            launch: add,
            terminate: destroy,
            after: rows(|row| row.after.is_some()),
        },
    };
    violations.require_equal("totals/summary", "summary", &context.plan.summary, &computed);
}
