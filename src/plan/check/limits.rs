//! Pool limits: what the nodes of a pool may add up to, in capacity.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, Deed, Row, number, resources};
use crate::ids::PoolName;
use crate::manifest::Pool;
use crate::solve::Alternative;
use crate::units::{ResourceName, Resources};

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let mut totals: BTreeMap<&PoolName, Resources> = BTreeMap::new();
    for pool in case.facts.desired.pools.values() {
        let rows: Vec<&Row<'_>> = case.rows.iter().filter(|row| is_of(row, pool)).collect();
        // A pool may stand above a limit that was lowered; it may not grow there.
        if !rows.iter().any(|row| row.deed.creates()) {
            continue;
        }
        // What goes is there until what comes is Ready: both count.
        let total = rows
            .iter()
            .fold(Resources::default(), |sum, row| sum.plus(&capacity(row)).plus(&going(row)));
        for (name, amount, limit) in exceeded(pool, &total) {
            let fault =
                format!("pool {} comes to {name} {amount}, its limit is {limit}", pool.name);
            verdict.plan("limits/resources", fault);
        }
        let replaced = number(rows.iter().filter(|row| row.deed == Deed::Replace));
        let nodes = number(&rows).saturating_add(replaced);
        if let Some(limit) = pool.limits.nodes.filter(|limit| nodes > *limit) {
            let fault = format!("pool {} comes to {nodes} nodes, its limit is {limit}", pool.name);
            verdict.plan("limits/nodes", fault);
        }
        totals.insert(&pool.name, total);
    }
    for of in &case.plan.capacity.alternatives {
        let row = case.row(&of.address).filter(|row| row.deed.creates());
        let Some((row, pool)) = row.and_then(|row| Some((row, row.after?.pool.as_ref()?))) else {
            continue;
        };
        let Some((pool, total)) = case.pool(pool).zip(totals.get(pool)) else { continue };
        if pool.limits.resources.is_empty() {
            continue;
        }
        let others = total.minus(&capacity(row));
        for offering in &of.offerings {
            stand_in(case, (pool, row, &others), offering, verdict);
        }
    }
}

fn is_of(row: &Row<'_>, pool: &Pool) -> bool {
    row.after.or(row.before).is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
}

/// Returns the capacity of the node that goes in the course of a row's change.
fn going(row: &Row<'_>) -> Resources {
    let before = row.before.filter(|_| row.deed.deletes());
    before.map(|before| resources(&before.capacity)).unwrap_or_default()
}

fn capacity(row: &Row<'_>) -> Resources {
    row.after.map(|after| resources(&after.capacity)).unwrap_or_default()
}

/// Holds an offering that may stand in for one launch to the pool's limits.
fn stand_in(
    case: &Case<'_>,
    (pool, row, others): (&Pool, &Row<'_>, &Resources),
    offering: &Alternative,
    verdict: &mut Verdict,
) {
    let kind = case.facts.catalog.types.get(&offering.instance_type);
    let labels = row.after.map(|after| &after.labels);
    let allocation = kind.zip(labels).and_then(|(k, labels)| case.allocation(pool, k, labels));
    let Some(allocation) = allocation else { return };
    for (name, amount, limit) in exceeded(pool, &others.plus(&allocation.capacity)) {
        let fault = format!(
            "with {} in its place pool {} comes to {name} {amount}, its limit is {limit}",
            offering.instance_type, pool.name
        );
        verdict.row("limits/alternative", row.address, fault);
    }
}

/// Returns the resources of which `total` is above the pool's limit, with both amounts.
fn exceeded<'a>(pool: &'a Pool, total: &Resources) -> Vec<(&'a ResourceName, i64, i64)> {
    let limits = pool.limits.resources.iter();
    limits
        .map(|(name, limit)| (name, amount(total, name), *limit))
        .filter(|(_, amount, limit)| amount > limit)
        .collect()
}

/// Returns the part of `total` that limits call `name`: thousandths of a core, or whole units.
fn amount(total: &Resources, name: &ResourceName) -> i64 {
    match name.as_str() {
        "cpu" => total.cpu.0,
        "memory" => total.memory.0,
        "ephemeral-storage" => total.ephemeral_storage.0,
        "pods" => total.pods,
        _ => total.extended(name),
    }
}
