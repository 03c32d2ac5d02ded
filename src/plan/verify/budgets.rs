//! Disruption budgets of pools: the number of nodes that a plan may remove for the reasons that a
//! budget names.
//!
//! Only budgets that are active at the plan's timestamp are checked. Nodes of the pool that are not
//! Ready count as removed. A percentage is relative to all nodes of the pool.

use jiff::Timestamp;

use super::Violations;
use super::context::{CheckContext, CheckedRow};
use crate::model::desired::{Budget, BudgetNodes, Pool};
use crate::model::observed::{Node, tag};
use crate::model::reason::RetireReason;
use crate::plan::wire::Reason;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for pool in context.facts.desired.pools.values() {
        let nodes: Vec<&Node> = nodes(context, pool);
        let down = nodes.iter().filter(|node| !node.ready).count();
        for budget in pool.budgets.iter().filter(|budget| is_active(budget, context.plan.timestamp))
        {
            let removed = context.rows.iter().filter(|row| is_of(row, pool));
            let removed = removed.filter(|row| covers(budget, row));
            // A drain that has begun continues, and counts.
            let (begun, removed): (Vec<_>, Vec<_>) = removed.partition(|row| has_begun(row));
            let (removed, down) = (removed.len(), down + begun.len());
            let nodes_allowed = nodes_allowed(budget, nodes.len()).saturating_sub(down);
            if removed > nodes_allowed {
                let fault = format!(
                    "pool {} loses {removed} nodes, its budget of {} allows {nodes_allowed} of {} to \
                     be removed while {down} are not Ready or in a drain that has begun",
                    pool.name,
                    budget.nodes,
                    nodes.len()
                );
                violations.report_plan("budgets/removed", fault);
            }
        }
    }
}

/// Returns the nodes of the managed instances of the pool.
fn nodes<'a>(context: &CheckContext<'a>, pool: &Pool) -> Vec<&'a Node> {
    let observed = context.facts.observed;
    let is_of = |node: &&Node| {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        instance.is_some_and(|instance| {
            instance.is_managed_by(&observed.cluster.name)
                && instance.tags.get(tag::POOL).is_some_and(|name| *name == pool.name.as_str())
        })
    };
    observed.nodes.values().filter(is_of).collect()
}

/// Returns whether a budget is active: always, or within its duration after a scheduled start.
fn is_active(budget: &Budget, at: Timestamp) -> bool {
    let (Some(schedule), Some(duration)) = (&budget.schedule, budget.duration) else {
        return true;
    };
    let Ok(earliest) = at.checked_sub(duration) else { return true };
    match schedule.next_after(earliest) {
        Some(start) => start <= at,
        None => false,
    }
}

/// Returns whether the row is about an existing node of the pool.
fn is_of(row: &CheckedRow<'_>, pool: &Pool) -> bool {
    row.node.is_some() && row.before.is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
}

/// Returns whether an earlier apply began the drain of the node, which ends by force.
fn has_begun(row: &CheckedRow<'_>) -> bool {
    row.change.change.termination_grace_seconds.is_some()
        && row.node.is_some_and(|node| node.grace_period_began_at().is_some())
}

/// Returns whether the row removes a node for a reason that the budget covers.
fn covers(budget: &Budget, row: &CheckedRow<'_>) -> bool {
    let because = row.explain.and_then(|explain| match &explain.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            explain.retire_reason.as_ref()
        }
    });
    let reason = match because {
        Some(RetireReason::Empty { .. }) => "Empty",
        Some(RetireReason::Underutilized { .. }) => "Underutilized",
        Some(RetireReason::Drifted { .. }) => "Drifted",
        Some(
            RetireReason::Surplus { .. }
            | RetireReason::PoolRemoved
            | RetireReason::Expired { .. }
            | RetireReason::Requested,
        )
        | None => return false,
    };
    row.action.deletes()
        && (budget.reasons.is_empty() || budget.reasons.iter().any(|named| named == reason))
}

/// Returns the number of `total` nodes that a budget allows to remove. Percentages are rounded up.
fn nodes_allowed(budget: &Budget, total: usize) -> usize {
    let number = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    match budget.nodes {
        BudgetNodes::Count(nodes) => number(nodes),
        BudgetNodes::Percent(share) => total.saturating_mul(number(share)).div_ceil(100),
    }
}
