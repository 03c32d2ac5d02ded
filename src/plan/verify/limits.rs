//! Pool limits: the total capacity of the nodes of a pool.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow, RowAction, count, resources};
use crate::model::desired::Pool;
use crate::model::ids::PoolName;
use crate::model::reason::Alternative;
use crate::model::units::{ResourceName, Resources};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let mut totals: BTreeMap<&PoolName, Resources> = BTreeMap::new();
    for pool in context.facts.desired.pools.values() {
        let rows: Vec<&CheckedRow<'_>> =
            context.rows.iter().filter(|row| is_of(row, pool)).collect();
        // A pool may exceed a lowered limit, but then it must not grow.
        if !rows.iter().any(|row| row.action.creates()) {
            continue;
        }
        // A retiring node runs until its replacement is Ready, so both nodes count.
        let total = rows.iter().fold(Resources::default(), |sum, row| {
            sum.plus(&capacity(row)).plus(&removed_capacity(row))
        });
        for (name, amount, limit) in exceeded(pool, &total) {
            let fault =
                format!("pool {} comes to {name} {amount}, its limit is {limit}", pool.name);
            violations.report_plan("limits/resources", fault);
        }
        let replaced = count(rows.iter().filter(|row| row.action == RowAction::Replace));
        let nodes = count(&rows).saturating_add(replaced);
        if let Some(limit) = pool.limits.nodes.filter(|limit| nodes > *limit) {
            let fault = format!("pool {} comes to {nodes} nodes, its limit is {limit}", pool.name);
            violations.report_plan("limits/nodes", fault);
        }
        totals.insert(&pool.name, total);
    }
    let mut growth: BTreeMap<(&PoolName, &ResourceName), i64> = BTreeMap::new();
    for of in &context.plan.capacity.alternatives {
        let row = context.row(&of.address).filter(|row| row.action.creates());
        let Some((row, pool)) = row.and_then(|row| Some((row, row.after?.pool.as_ref()?))) else {
            continue;
        };
        let Some((pool, total)) = context.pool(pool).zip(totals.get(pool)) else { continue };
        if pool.limits.resources.is_empty() {
            continue;
        }
        let others = total.minus(&capacity(row));
        for offering in &of.offerings {
            check_alternative(context, pool, row, &others, offering, violations);
        }
        // `minValues` demands alternatives whatever the limits leave for several launches.
        if pool.requirements.iter().all(|requirement| requirement.min_values.is_none()) {
            for (name, more) in largest_growth(context, pool, row, &of.offerings) {
                *growth.entry((&pool.name, name)).or_insert(0) += more;
            }
        }
    }
    for ((pool, name), more) in growth {
        let Some((pool, total)) = context.pool(pool).zip(totals.get(pool)) else { continue };
        let (amount, limit) =
            (amount(total, name).saturating_add(more), pool.limits.resources[name]);
        if amount > limit {
            let fault = format!(
                "with the largest alternatives pool {} comes to {name} {amount}, its limit is {limit}",
                pool.name
            );
            violations.report_plan("limits/alternatives", fault);
        }
    }
}

/// Returns how much the largest alternative of a launch exceeds it, for each limited resource.
fn largest_growth<'a>(
    context: &CheckContext<'_>,
    pool: &'a Pool,
    row: &CheckedRow<'_>,
    offerings: &[Alternative],
) -> Vec<(&'a ResourceName, i64)> {
    let planned = capacity(row);
    let allocations = offerings.iter().filter_map(|offering| {
        let kind = context.facts.catalog.types.get(&offering.instance_type)?;
        context.allocation(pool, kind, &row.after?.labels)
    });
    let capacities: Vec<Resources> = allocations.map(|found| found.capacity.clone()).collect();
    let growth = |name| {
        let more = capacities.iter().map(|of| amount(of, name) - amount(&planned, name)).max();
        (name, more.unwrap_or(0).max(0))
    };
    pool.limits.resources.keys().map(growth).collect()
}

fn is_of(row: &CheckedRow<'_>, pool: &Pool) -> bool {
    row.after.or(row.before).is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
}

/// Returns the capacity of the node that the row removes.
fn removed_capacity(row: &CheckedRow<'_>) -> Resources {
    let before = row.before.filter(|_| row.action.deletes());
    before.map(|before| resources(&before.capacity)).unwrap_or_default()
}

fn capacity(row: &CheckedRow<'_>) -> Resources {
    row.after.map(|after| resources(&after.capacity)).unwrap_or_default()
}

/// Checks an alternative of one launch against the limits of the pool.
fn check_alternative(
    context: &CheckContext<'_>,
    pool: &Pool,
    row: &CheckedRow<'_>,
    others: &Resources,
    offering: &Alternative,
    violations: &mut Violations,
) {
    let kind = context.facts.catalog.types.get(&offering.instance_type);
    let labels = row.after.map(|after| &after.labels);
    let allocation = kind.zip(labels).and_then(|(k, labels)| context.allocation(pool, k, labels));
    let Some(allocation) = allocation else { return };
    for (name, amount, limit) in exceeded(pool, &others.plus(&allocation.capacity)) {
        let fault = format!(
            "with {} in its place pool {} comes to {name} {amount}, its limit is {limit}",
            offering.instance_type, pool.name
        );
        violations.report_row("limits/alternative", row.address, fault);
    }
}

/// Returns the resources of `total` that exceed the pool's limit, with both amounts.
fn exceeded<'a>(pool: &'a Pool, total: &Resources) -> Vec<(&'a ResourceName, i64, i64)> {
    let limits = pool.limits.resources.iter();
    limits
        .map(|(name, limit)| (name, amount(total, name), *limit))
        .filter(|(_, amount, limit)| amount > limit)
        .collect()
}

/// Returns the amount of a resource in `total`: thousandths of a core, or whole units.
pub(super) fn amount(total: &Resources, name: &ResourceName) -> i64 {
    match name.as_str() {
        "cpu" => total.cpu.0,
        "memory" => total.memory.0,
        "ephemeral-storage" => total.ephemeral_storage.0,
        "pods" => total.pods,
        _ => total.extended(name),
    }
}
