//! Disruption budgets of pools: how many nodes a plan may remove for the reasons that they name.
//!
//! Judged are the budgets that hold at the moment that the plan states. Nodes of the pool that are
//! not Ready are gone already; a share is of all of them.

use jiff::Timestamp;

use super::Verdict;
use super::case::{Case, Row};
use crate::fleet::{Node, tag};
use crate::manifest::{Budget, Pool};
use crate::plan::wire::Reason;
use crate::solve::RetireReason;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for pool in case.facts.desired.pools.values() {
        let nodes: Vec<&Node> = nodes(case, pool);
        let down = nodes.iter().filter(|node| !node.ready).count();
        for budget in pool.budgets.iter().filter(|budget| holds(budget, case.plan.timestamp)) {
            let removed = case.rows.iter().filter(|row| is_of(row, pool));
            let removed = removed.filter(|row| concerns(budget, row)).count();
            let most = most(budget, nodes.len()).saturating_sub(down);
            if removed > most {
                let fault = format!(
                    "pool {} loses {removed} nodes, its budget of {} lets {most} of {} go while \
                     {down} are not Ready",
                    pool.name,
                    budget.nodes,
                    nodes.len()
                );
                verdict.plan("budgets/removed", fault);
            }
        }
    }
}

/// Returns the nodes that this cluster's machines of the pool have.
fn nodes<'a>(case: &Case<'a>, pool: &Pool) -> Vec<&'a Node> {
    let observed = case.facts.observed;
    let is_of = |node: &&Node| {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        instance.is_some_and(|instance| {
            instance.is_ours(&observed.cluster.name)
                && instance.tags.get(tag::POOL).is_some_and(|name| *name == pool.name.as_str())
        })
    };
    observed.nodes.values().filter(is_of).collect()
}

/// Returns whether a budget holds: at all times, or within its duration from a start at or before
/// the moment.
fn holds(budget: &Budget, at: Timestamp) -> bool {
    let (Some(schedule), Some(duration)) = (&budget.schedule, budget.duration) else {
        return true;
    };
    let Ok(earliest) = at.checked_sub(duration) else { return true };
    match schedule.next_after(earliest) {
        Some(start) => start <= at,
        None => false,
    }
}

/// Returns whether the row is of a node of the pool that is there.
fn is_of(row: &Row<'_>, pool: &Pool) -> bool {
    row.node.is_some() && row.before.is_some_and(|state| state.pool.as_ref() == Some(&pool.name))
}

/// Returns whether the row removes a node for a reason that the budget is about.
fn concerns(budget: &Budget, row: &Row<'_>) -> bool {
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
    row.deed.deletes()
        && (budget.reasons.is_empty() || budget.reasons.iter().any(|named| named == reason))
}

/// Returns how many of so many nodes a budget lets go, a share rounded up.
fn most(budget: &Budget, there: usize) -> usize {
    let (digits, is_share) =
        budget.nodes.strip_suffix('%').map_or((budget.nodes.as_str(), false), |text| (text, true));
    let number = digits.trim().parse::<usize>().unwrap_or(0);
    if is_share { (there.saturating_mul(number)).div_ceil(100) } else { number }
}
