//! Budgets that block a voluntary disruption at the given time: those of pools and of pods.
//!
//! The plan contains only changes that can be carried out. A budget that allows some disruptions
//! limits their number (`disruption_budget`). A budget that allows none blocks the node here.
//!
//! Source: karpenter core, `pkg/apis/v1/nodepool.go` (budgets); Kubernetes,
//! `pkg/controller/disruption`.

use jiff::Timestamp;

use crate::demand::PodGroup;
use crate::model::desired::{Budget, BudgetNodes, Desired, DisruptionBudget, Pool, pods_to_keep};

/// Returns true if an active budget of the pool allows no disruption for this reason.
pub(super) fn is_disruption_blocked(pool: &Pool, reason: &str, at: Timestamp) -> bool {
    let concerns = |budget: &&Budget| {
        budget.reasons.is_empty() || budget.reasons.iter().any(|named| named == reason)
    };
    let is_zero =
        |budget: &&Budget| matches!(budget.nodes, BudgetNodes::Count(0) | BudgetNodes::Percent(0));
    let mut zero = pool.budgets.iter().filter(concerns).filter(is_zero);
    zero.any(|budget| is_budget_active(budget, at))
}

/// Returns true if a budget is active: always, or for its duration from each scheduled start.
pub(super) fn is_budget_active(budget: &Budget, at: Timestamp) -> bool {
    let Some(schedule) = &budget.schedule else { return true };
    let earliest_start = budget.duration.and_then(|duration| at.checked_sub(duration).ok());
    let Some(earliest_start) = earliest_start else { return true };
    // A start at `at` itself counts. A start exactly one duration ago has ended.
    schedule.next_after(earliest_start).is_some_and(|start| start <= at)
}

/// Returns the budget that prevents every eviction of a pod of this group, even if all pods are
/// ready. It is a budget that requires all pods. A second budget also blocks, because the eviction
/// of a pod under two budgets is always refused.
///
/// Source: `pkg/registry/core/pod/rest/eviction.go`.
pub(super) fn blocking_disruption_budget<'a>(
    desired: &'a Desired,
    groups: &[PodGroup],
    group: &PodGroup,
) -> Option<&'a DisruptionBudget> {
    let protects = |budget: &DisruptionBudget, group: &PodGroup| {
        budget.namespace == group.shape.namespace
            && budget.selector.as_ref().is_some_and(|s| s.matches(&group.shape.labels))
    };
    let of_group = || desired.disruption_budgets.iter().filter(|b| protects(b, group));
    let second = of_group().nth(1);
    second.or_else(|| {
        of_group().find(|budget| {
            let protected = groups.iter().filter(|group| protects(budget, group));
            let pods: i64 = protected.map(|group| i64::from(group.counts.planned)).sum();
            let (least, most) =
                (budget.min_available.as_deref(), budget.max_unavailable.as_deref());
            pods_to_keep(least, most, pods).is_none_or(|required| required >= pods)
        })
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::model::desired::Schedule;
    use crate::testing::pool;

    fn budget(nodes: &str, reasons: &[&str], schedule: Option<(&str, i64)>) -> Budget {
        Budget {
            nodes: BudgetNodes::parse(nodes).expect("a budget"),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            schedule: schedule.and_then(|(text, _)| Schedule::parse(text)),
            duration: schedule.map(|(_, hours)| SignedDuration::from_hours(hours)),
        }
    }

    #[test]
    fn zero_budget_blocks_its_reasons_while_active() {
        let night = Some(("0 22 * * *", 8));
        let (always, drifted, thrift) = (vec![], vec!["Drifted"], vec!["Underutilized"]);
        let cases = [
            ("0", &always, None, "2026-11-01T12:00:00Z", true),
            ("0%", &always, None, "2026-11-01T12:00:00Z", true),
            ("00", &always, None, "2026-11-01T12:00:00Z", true),
            ("10%", &always, None, "2026-11-01T12:00:00Z", false),
            ("1", &always, None, "2026-11-01T12:00:00Z", false),
            ("0", &drifted, None, "2026-11-01T12:00:00Z", false),
            ("0", &thrift, night, "2026-11-01T23:00:00Z", true),
            ("0", &thrift, night, "2026-11-01T05:59:00Z", true),
            ("0", &thrift, night, "2026-11-01T06:00:00Z", false),
        ];
        for (nodes, reasons, schedule, at, blocked) in cases {
            let budgets = vec![budget(nodes, reasons, schedule)];
            let pool = Pool { budgets, ..pool() };
            let at = at.parse().expect("a time");
            let found = is_disruption_blocked(&pool, "Underutilized", at);
            assert_eq!(found, blocked, "{nodes} {reasons:?} at {at}");
        }
    }
}
