//! Numbers of pods and nodes: every planned pod is accounted for, once.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::{Case, Deed, Row, number, total};
use super::fargate::is_stuck;
use crate::plan::wire::{
    Action, Amount, EvictionRow, NodeTotals, PodTotals, Reason, Summary, UnschedulableRow,
};
use crate::solve::{KeepReason, workload_key};

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    demand(case, verdict);
    groups(case, verdict);
    pods(case, verdict);
    summary(case, verdict);
}

/// Holds the rows of demand to the demand.
fn demand(case: &Case<'_>, verdict: &mut Verdict) {
    let capacity = &case.plan.capacity;
    let facts = case.facts.demand;
    let stated: BTreeMap<_, _> =
        capacity.demand.iter().map(|row| (workload_key(&row.workload), row)).collect();
    let workloads: BTreeSet<&String> = case.groups.keys().chain(case.fargate.keys()).collect();
    if workloads.len() != capacity.demand.len()
        || case.groups.len() != facts.groups.len()
        || case.fargate.len() != facts.fargate.len()
    {
        verdict.plan("totals/demand", "not every pod group has one row of demand");
    }
    for (key, group) in &case.groups {
        let requests = Amount::from(&group.shape.requests);
        let same = stated.get(key).is_some_and(|row| {
            // What Fargate has a part of is held to its counts elsewhere, which are those of both.
            let counts = case.fargate.get(key).map_or(group.counts, |taken| taken.counts);
            row.counts == counts && row.requests == requests && row.decided_by == group.decided_by
        });
        if !same {
            verdict.plan("totals/demand", format!("the row of {key} is not its demand"));
        }
    }
    for (key, taken) in &case.fargate {
        let same = stated
            .get(key)
            .is_some_and(|row| row.counts == taken.counts && row.decided_by == taken.decided_by);
        if !same {
            verdict.plan("totals/demand", format!("the row of {key} is not its demand"));
        }
    }
    let daemons = facts
        .daemons
        .iter()
        .map(|daemon| (workload_key(&daemon.workload), Amount::from(&daemon.shape.requests)));
    let stated =
        capacity.daemons.iter().map(|row| (workload_key(&row.workload), row.requests.clone()));
    let (stated, holds): (BTreeMap<_, _>, BTreeMap<_, _>) = (stated.collect(), daemons.collect());
    verdict.equal("totals/daemons", "the list of daemons", &stated, &holds);
}

/// Holds each group to: planned = placed + without a place.
fn groups(case: &Case<'_>, verdict: &mut Verdict) {
    let mut placed: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, pods) in case.rows.iter().flat_map(Row::pods) {
        let sum = placed.entry(key).or_default();
        *sum = sum.saturating_add(pods);
    }
    let mut unplaced: BTreeMap<String, u32> = BTreeMap::new();
    for row in case.plan.capacity.unschedulable.iter().filter(|row| !is_stuck(row)) {
        let key = workload_key(&row.workload);
        if row.pods == 0 || !case.groups.contains_key(&key) {
            verdict.plan("totals/unschedulable", format!("{key} has no pods without a place"));
        }
        evictions((row, &key), case, verdict);
        let sum = unplaced.entry(key).or_default();
        *sum = sum.saturating_add(row.pods);
    }
    for (key, group) in &case.groups {
        let placed = placed.get(key.as_str()).copied().unwrap_or(0);
        let unplaced = unplaced.get(key).copied().unwrap_or(0);
        if placed.saturating_add(unplaced) != group.counts.planned {
            let fault = format!(
                "{key}: {placed} placed and {unplaced} without a place are not the {} planned",
                group.counts.planned
            );
            verdict.plan("totals/group", fault);
        }
    }
}

/// Holds what is said of evictions to: no more are let in than wait, and whoever goes has a lower
/// priority.
fn evictions((row, key): (&UnschedulableRow, &str), case: &Case<'_>, verdict: &mut Verdict) {
    let Some(EvictionRow { lets_in, evicts }) = &row.eviction else { return };
    let own = case.groups.get(key).map(|group| group.shape.priority);
    let daemons = case.facts.demand.daemons.iter();
    let daemons: BTreeMap<String, i32> =
        daemons.map(|daemon| (workload_key(&daemon.workload), daemon.shape.priority)).collect();
    let lower = |victim: &String| {
        let group = case.groups.get(victim).map(|group| group.shape.priority);
        group.or_else(|| daemons.get(victim).copied()) < own
    };
    if *lets_in > row.pods || *lets_in == 0 || evicts.is_empty() || !evicts.keys().all(lower) {
        let fault = format!("nobody that is named can be evicted for {lets_in} pods of {key}");
        verdict.plan("totals/eviction", fault);
    }
}

fn pods(case: &Case<'_>, verdict: &mut Verdict) {
    let capacity = &case.plan.capacity;
    let PodTotals { total: all, placed, unschedulable, fargate, unresolved, moved } = capacity.pods;
    let sum = placed.saturating_add(unschedulable).saturating_add(fargate);
    verdict.equal("totals/pods", "pods.total", &all, &sum);
    let planned = total(case.groups.values(), |group| group.counts.planned);
    let taken = total(case.fargate.values(), |taken| taken.pods);
    verdict.equal("totals/pods", "pods.total", &all, &planned.saturating_add(taken));
    let run = case.fargate.values().filter(|taken| taken.size.is_ok());
    let holds = total(run, |taken| taken.pods);
    verdict.equal("totals/pods", "pods.fargate", &fargate, &holds);
    let holds = total(case.rows.iter().flat_map(Row::pods), |(_, pods)| pods);
    verdict.equal("totals/pods", "pods.placed", &placed, &holds);
    let holds = total(&capacity.unschedulable, |row| row.pods);
    verdict.equal("totals/pods", "pods.unschedulable", &unschedulable, &holds);
    let holds = number(&case.facts.demand.unresolved);
    verdict.equal("totals/pods", "pods.unresolved", &unresolved, &holds);
    verdict.equal("totals/pods", "the list of unresolved", &number(&capacity.unresolved), &holds);
    let (least, most) = moves(case);
    if !(least..=most).contains(&moved) {
        let fault = format!("pods.moved is stated as {moved}, but is between {least} and {most}");
        verdict.plan("totals/moved", fault);
    }
}

/// Returns the least and the most pods that retirements move: of the pods that run on nodes that
/// go, those that are planned at all; fewer where the workload shrinks and the surplus is taken
/// from those nodes, or where pods find no place.
fn moves(case: &Case<'_>) -> (u32, u32) {
    let going = case.rows.iter().filter(|row| row.deed.deletes());
    let going: BTreeSet<_> = going.filter_map(|row| row.node).map(|node| &node.name).collect();
    let rows = case.plan.capacity.unschedulable.iter();
    let unplaced: BTreeMap<_, _> =
        rows.map(|row| (workload_key(&row.workload), row.pods)).collect();
    let (mut least, mut most) = (0_u32, 0_u32);
    for (key, group) in &case.groups {
        let here = group.running.iter().filter(|(name, _)| going.contains(name));
        let here = total(here, |(_, pods)| *pods);
        let homeless = unplaced.get(key).copied().unwrap_or(0);
        let running: u32 = group.running.values().sum();
        let planned = group.counts.planned;
        let at_least = planned.min(running).saturating_sub(running - here).min(here);
        least = least.saturating_add(at_least.saturating_sub(homeless));
        most = most.saturating_add(here.min(planned));
    }
    (least, most)
}

fn summary(case: &Case<'_>, verdict: &mut Verdict) {
    let rows = |holds: fn(&Row<'_>) -> bool| number(case.rows.iter().filter(|row| holds(row)));
    let blocked = |row: &Row<'_>| {
        row.explain.is_some_and(|explain| {
            matches!(&explain.reason, Reason::Keep { because: KeepReason::Blocked { .. } })
        })
    };
    let groups = case.group_rows.iter();
    let resized = number(groups.filter(|row| row.change.actions.as_slice() == [Action::Update]));
    let (add, destroy) = (rows(|row| row.deed.creates()), rows(|row| row.deed.deletes()));
    let holds = Summary {
        add,
        change: rows(|row| row.deed == Deed::Update).saturating_add(resized),
        destroy,
        replace: rows(|row| row.deed == Deed::Replace),
        blocked: rows(blocked),
        destructive: destroy > 0,
        nodes: NodeTotals {
            before: rows(|row| row.before.is_some()),
            launch: add,
            terminate: destroy,
            after: rows(|row| row.after.is_some()),
        },
    };
    verdict.equal("totals/summary", "summary", &case.plan.summary, &holds);
}
