//! Disruption budgets of pools: how many nodes a plan may remove for the reasons that they name.
//!
//! Judged are budgets that hold at all times; when another holds is for the clock of the planner to
//! say, which no plan states.

use super::Verdict;
use super::case::{Case, Row};
use crate::manifest::{Budget, Pool};
use crate::plan::wire::Reason;
use crate::solve::RetireReason;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for pool in case.facts.desired.pools.values() {
        let there = case.rows.iter().filter(|row| is_of(row, pool)).count();
        for budget in pool.budgets.iter().filter(|budget| budget.schedule.is_none()) {
            let removed = case.rows.iter().filter(|row| is_of(row, pool));
            let removed = removed.filter(|row| concerns(budget, row)).count();
            let most = most(budget, there);
            if removed > most {
                let fault = format!(
                    "pool {} loses {removed} nodes, its budget of {} lets {most} go",
                    pool.name, budget.nodes
                );
                verdict.plan("budgets/removed", fault);
            }
        }
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
