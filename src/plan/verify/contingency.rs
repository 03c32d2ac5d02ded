//! Contingency: its totals, its types, its prices, and the limits of its pools.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow, count, resources};
use super::limits::amount;
use crate::catalog::InstanceType;
use crate::model::desired::Pool;
use crate::model::ids::{InstanceTypeName, PoolName};
use crate::model::units::{MicroUsd, Resources};
use crate::plan::wire::{Contingency, PlacementMode, PoolContingency};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let Some(contingency) = &context.plan.capacity.placement.contingency else { return };
    if !context.rows.iter().any(|row| row.action.creates()) {
        violations.report_plan("contingency/launch", "it is stated, and the plan launches nothing");
    }
    totals(contingency, violations);
    for of in &contingency.pools {
        let Some(pool) = context.pool(&of.pool) else {
            let fault = format!("pool {} is not declared", of.pool);
            violations.report_plan("contingency/pool", fault);
            continue;
        };
        types(context, pool, of, violations);
        limits(context, pool, of, violations);
    }
}

/// Checks the sums over the pools, and that the price of one node explains the price of all.
fn totals(contingency: &Contingency, violations: &mut Violations) {
    let Contingency { nodes, hourly, pods, pools } = contingency;
    let sum = pools.iter().fold(0_u32, |sum, pool| sum.saturating_add(pool.nodes));
    violations.require_equal("contingency/sum", "the nodes of the contingency", nodes, &sum);
    let price: MicroUsd = pools.iter().map(|pool| pool.hourly).sum();
    violations.require_equal("contingency/sum", "the price of the contingency", hourly, &price);
    if *nodes == 0 || *pods == 0 {
        violations.report_plan("contingency/sum", "it is stated without nodes or without pods");
    }
    let mut named: BTreeMap<&PoolName, u32> = BTreeMap::new();
    for PoolContingency { pool, nodes, hourly, node_hourly, instance_types } in pools {
        *named.entry(pool).or_insert(0) += 1;
        let most = node_hourly.times(i64::from(*nodes));
        let is_priced = *node_hourly >= MicroUsd::ZERO && hourly >= node_hourly && *hourly <= most;
        if *nodes == 0 || !is_priced || instance_types.is_empty() {
            let fault = format!("{nodes} nodes of pool {pool} at most {node_hourly} cost {hourly}");
            violations.report_plan("contingency/price", fault);
        }
    }
    for (pool, _) in named.into_iter().filter(|(_, times)| *times > 1) {
        violations.report_plan("contingency/pool", format!("pool {pool} is stated twice"));
    }
}

/// Checks that the types exist, and that one of them has the stated price. A steered plan names
/// only types that it launches in the pool.
fn types(
    context: &CheckContext<'_>,
    pool: &Pool,
    of: &PoolContingency,
    violations: &mut Violations,
) {
    let launches: Vec<&CheckedRow<'_>> = launches(context, pool).collect();
    let is_steered = context.plan.capacity.placement.mode == PlacementMode::Steered;
    let mut prices: Vec<MicroUsd> = Vec::new();
    for name in &of.instance_types {
        let Some(kind) = context.facts.catalog.types.get(name) else {
            let fault = format!("{name} is not in the catalog");
            violations.report_plan("contingency/type", fault);
            continue;
        };
        let same = launches.iter().filter(|row| instance_type(row) == Some(name));
        let launched: Vec<MicroUsd> =
            same.filter_map(|row| row.explain.and_then(|explain| explain.hourly_after)).collect();
        if is_steered && launched.is_empty() {
            let fault = format!("pool {} does not launch {name}", pool.name);
            violations.report_plan("contingency/type", fault);
        }
        prices.extend(launched);
        prices.extend(offered_prices(context, pool, kind));
    }
    if !prices.contains(&of.node_hourly) {
        let fault = format!("no type of pool {} costs {}", pool.name, of.node_hourly);
        violations.report_plan("contingency/price", fault);
    }
}

/// Returns the prices of the offerings of a type, with the overlays of a pool.
fn offered_prices<'c>(
    context: &'c CheckContext<'_>,
    pool: &'c Pool,
    kind: &'c InstanceType,
) -> impl Iterator<Item = MicroUsd> + 'c {
    kind.offerings.iter().filter_map(|offering| {
        let labels = &pool.labels;
        context.catalog_offering(kind, &offering.zone, offering.capacity_type, labels)?.price
    })
}

fn launches<'c, 'a>(
    context: &'c CheckContext<'a>,
    pool: &'c Pool,
) -> impl Iterator<Item = &'c CheckedRow<'a>> {
    let launched = context.rows.iter().filter(|row| row.action.creates());
    launched.filter(|row| row.after.and_then(|after| after.pool.as_ref()) == Some(&pool.name))
}

fn instance_type<'a>(row: &CheckedRow<'a>) -> Option<&'a InstanceTypeName> {
    row.after?.instance_type.as_ref()
}

/// Checks that the further nodes fit the limits of the pool beside all other nodes, each as small
/// as the smallest of its types that the plan launches.
fn limits(
    context: &CheckContext<'_>,
    pool: &Pool,
    of: &PoolContingency,
    violations: &mut Violations,
) {
    let of_pool = |row: &&CheckedRow<'_>| {
        row.after.or(row.before).is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
    };
    let rows: Vec<&CheckedRow<'_>> = context.rows.iter().filter(of_pool).collect();
    let nodes = count(&rows).saturating_add(of.nodes);
    if let Some(limit) = pool.limits.nodes.filter(|limit| nodes > *limit) {
        let fault = format!(
            "with its contingency pool {} comes to {nodes} nodes, its limit is {limit}",
            pool.name
        );
        violations.report_plan("contingency/limit", fault);
    }
    let capacity = |row: &&CheckedRow<'_>| row.after.map(|after| resources(&after.capacity));
    let total = rows.iter().filter_map(capacity).fold(Resources::default(), |a, b| a.plus(&b));
    for (name, limit) in &pool.limits.resources {
        let named = launches(context, pool)
            .filter(|row| instance_type(row).is_some_and(|name| of.instance_types.contains(name)));
        let sizes = named.filter_map(|row| row.after).map(|after| resources(&after.capacity));
        let Some(least) = sizes.map(|size| amount(&size, name)).min() else { continue };
        let further = least.saturating_mul(i64::from(of.nodes));
        let comes_to = amount(&total, name).saturating_add(further);
        if comes_to > *limit {
            let fault = format!(
                "with its contingency pool {} comes to {name} {comes_to}, its limit is {limit}",
                pool.name
            );
            violations.report_plan("contingency/limit", fault);
        }
    }
}
