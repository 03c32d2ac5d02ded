//! Static pools: the number of nodes is independent of pods, and nodes are replaced one at a time.

use super::Violations;
use super::context::{CheckContext, CheckedRow, RowAction, count};
use crate::model::desired::Pool;
use crate::plan::wire::{LaunchReason, Reason, RetireReason};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for row in context.rows.iter().filter(|row| row.action.creates()) {
        let pool = row.after.and_then(|after| context.pool(after.pool.as_ref()?));
        let Some(pool) = pool else { continue };
        // A group may launch nodes for its minimum size too.
        let is_group = context.facts.desired.node_groups.contains_key(&pool.name);
        if !is_group && pool.replicas.is_some() != is_fixed(row, pool) {
            let fault = "launches of static pools, and only those, must have a static reason";
            violations.report_row("static/reason", row.address, fault);
        }
    }
    for pool in context.facts.desired.pools.values() {
        if let Some(declared) = pool.replicas {
            check_count(context, pool, declared, violations);
        }
    }
}

/// Returns whether the reason of a launch of `pool` is independent of pods.
fn is_fixed(row: &CheckedRow<'_>, pool: &Pool) -> bool {
    match row.explain.map(|explain| &explain.reason) {
        Some(Reason::Launch { because: LaunchReason::Static { .. } }) => true,
        // Nodes of other pools can be replaced too.
        Some(Reason::Launch { because: LaunchReason::Replacement { .. } }) => {
            pool.replicas.is_some()
        }
        Some(_) | None => false,
    }
}

/// Checks that launches do not exceed the declared number and removals do not fall below it.
fn check_count(
    context: &CheckContext<'_>,
    pool: &Pool,
    declared: u32,
    violations: &mut Violations,
) {
    let of_pool = |row: &&CheckedRow<'_>| {
        let state = row.after.or(row.before);
        state.is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
    };
    let rows: Vec<&CheckedRow<'_>> = context.rows.iter().filter(of_pool).collect();
    let after = count(rows.iter().filter(|row| row.after.is_some()));
    let launches = rows.iter().any(|row| row.action == RowAction::Create);
    if launches && after > declared && !rows.iter().any(|row| is_dead(context, row)) {
        let fault = format!("pool {} reaches {after} nodes but declares {declared}", pool.name);
        violations.report_plan("static/count", fault);
    }
    let surplus = rows.iter().filter(|row| row.action == RowAction::Delete && is_surplus(row));
    if surplus.count() > 0 && after < declared {
        let fault = format!("pool {} falls to {after} nodes but declares {declared}", pool.name);
        violations.report_plan("static/count", fault);
    }
    let replaced = count(rows.iter().filter(|row| row.action == RowAction::Replace));
    if replaced > 1 {
        let fault = format!("{replaced} nodes of pool {} are replaced at once", pool.name);
        violations.report_plan("static/in-turn", fault);
    }
}

fn is_surplus(row: &CheckedRow<'_>) -> bool {
    let reason = row.explain.map(|explain| &explain.reason);
    matches!(reason, Some(Reason::Retire { because: RetireReason::Surplus { .. } }))
}

/// Returns whether the row retains an instance without a node, which does not count towards the
/// pool.
fn is_dead(context: &CheckContext<'_>, row: &CheckedRow<'_>) -> bool {
    row.action.keeps() && row.instance.is_some_and(|i| context.node_for_instance(&i.id).is_none())
}
