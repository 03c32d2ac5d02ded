//! Pools with a fixed number of nodes: pods add none, and a node that is replaced waits its turn.

use super::Verdict;
use super::case::{Case, Deed, Row, number};
use crate::manifest::Pool;
use crate::plan::wire::{LaunchReason, Reason, RetireReason};

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for row in case.rows.iter().filter(|row| row.deed.creates()) {
        let pool = row.after.and_then(|after| case.pool(after.pool.as_ref()?));
        let Some(pool) = pool else { continue };
        if (pool.replicas.is_some()) != is_fixed(row, pool) {
            let fault = "launches of a pool with a fixed number of nodes, and they alone, say so";
            verdict.row("static/reason", row.address, fault);
        }
    }
    for pool in case.facts.desired.pools.values() {
        if let Some(declared) = pool.replicas {
            count(case, (pool, declared), verdict);
        }
    }
}

/// Returns whether a launch of `pool` gives a reason that does not come from pods.
fn is_fixed(row: &Row<'_>, pool: &Pool) -> bool {
    match row.explain.map(|explain| &explain.reason) {
        Some(Reason::Launch { because: LaunchReason::Static { .. } }) => true,
        // Nodes of other pools are replaced as well.
        Some(Reason::Launch { because: LaunchReason::Replacement { .. } }) => {
            pool.replicas.is_some()
        }
        Some(_) | None => false,
    }
}

/// Holds a pool to its number: it is never exceeded by launches, nor fallen below by removals.
fn count(case: &Case<'_>, (pool, declared): (&Pool, u32), verdict: &mut Verdict) {
    let of_pool = |row: &&Row<'_>| {
        let state = row.after.or(row.before);
        state.is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
    };
    let rows: Vec<&Row<'_>> = case.rows.iter().filter(of_pool).collect();
    let after = number(rows.iter().filter(|row| row.after.is_some()));
    let launches = rows.iter().any(|row| row.deed == Deed::Create);
    if launches && after > declared && !rows.iter().any(|row| is_dead(case, row)) {
        let fault = format!("pool {} comes to {after} nodes and declares {declared}", pool.name);
        verdict.plan("static/count", fault);
    }
    let surplus = rows.iter().filter(|row| row.deed == Deed::Delete && is_surplus(row));
    if surplus.count() > 0 && after < declared {
        let fault = format!("pool {} falls to {after} nodes and declares {declared}", pool.name);
        verdict.plan("static/count", fault);
    }
    let replaced = number(rows.iter().filter(|row| row.deed == Deed::Replace));
    if replaced > 1 {
        let fault = format!("{replaced} nodes of pool {} are replaced at once", pool.name);
        verdict.plan("static/in-turn", fault);
    }
}

fn is_surplus(row: &Row<'_>) -> bool {
    let reason = row.explain.map(|explain| &explain.reason);
    matches!(reason, Some(Reason::Retire { because: RetireReason::Surplus { .. } }))
}

/// Returns whether the row is of an instance that has no node: one that never joined counts as none.
fn is_dead(case: &Case<'_>, row: &Row<'_>) -> bool {
    row.deed.stays() && row.instance.is_some_and(|i| case.node_of(&i.id).is_none())
}
