//! What forbids a voluntary removal now, by rules alone: budgets of pools and of pods.
//!
//! What could not be carried out is not planned. A budget that allows some at a time bounds how many
//! nodes one plan lets go (`pace`); one that allows none while it holds bars them here.
//!
//! Source: karpenter core, `pkg/apis/v1/nodepool.go` (budgets); Kubernetes, `pkg/controller/disruption`.

use jiff::Timestamp;

use crate::demand::{PodGroup, label_set};
use crate::ids::Labels;
use crate::manifest::{Budget, Desired, DisruptionBudget, Pool, kept_pods};
use crate::pod::Selector;

/// Returns whether a budget of the pool lets no node go for this reason at the moment.
pub(super) fn is_barred(pool: &Pool, reason: &str, at: Timestamp) -> bool {
    let concerns = |budget: &&Budget| {
        budget.reasons.is_empty() || budget.reasons.iter().any(|named| named == reason)
    };
    let none = |budget: &Budget| budget.nodes.trim_end_matches('%').trim() == "0";
    pool.budgets.iter().filter(concerns).any(|budget| none(budget) && holds(budget, at))
}

/// Returns whether a budget holds at the moment: always, or for its duration from each start.
pub(super) fn holds(budget: &Budget, at: Timestamp) -> bool {
    let Some(schedule) = &budget.schedule else { return true };
    let begun = budget.duration.and_then(|duration| at.checked_sub(duration).ok());
    let Some(begun) = begun else { return true };
    // A start at the moment itself holds, one that began exactly a duration ago holds no more.
    schedule.next_after(begun).is_some_and(|start| start <= at)
}

/// Returns the budget that never lets a pod of this group be evicted, even when all of them are up: one
/// that keeps them all, or the second of two, since the eviction of a pod under two budgets is refused
/// whatever they allow.
///
/// Source: `pkg/registry/core/pod/rest/eviction.go`.
pub(super) fn protector<'a>(
    desired: &'a Desired,
    groups: &[PodGroup],
    group: &PodGroup,
) -> Option<&'a DisruptionBudget> {
    let protects = |budget: &DisruptionBudget, group: &PodGroup| {
        budget.namespace == group.shape.namespace
            && budget.selector.as_ref().is_some_and(|s| selects(s, &group.shape.labels))
    };
    let of_group = || desired.disruption_budgets.iter().filter(|b| protects(b, group));
    let second = of_group().nth(1);
    second.or_else(|| {
        of_group().find(|budget| {
            let protected = groups.iter().filter(|group| protects(budget, group));
            let pods: i64 = protected.map(|group| i64::from(group.counts.planned)).sum();
            let (least, most) =
                (budget.min_available.as_deref(), budget.max_unavailable.as_deref());
            kept_pods(least, most, pods).is_none_or(|kept| kept >= pods)
        })
    })
}

fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.0.iter().all(|wish| label_set(wish).contains(labels.get(&wish.key)))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::manifest::Schedule;
    use crate::story::pool;

    fn budget(nodes: &str, reasons: &[&str], schedule: Option<(&str, i64)>) -> Budget {
        Budget {
            nodes: nodes.to_owned(),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            schedule: schedule.and_then(|(text, _)| Schedule::parse(text)),
            duration: schedule.map(|(_, hours)| SignedDuration::from_hours(hours)),
        }
    }

    #[test]
    fn a_budget_of_none_bars_its_reasons_while_it_holds() {
        let night = Some(("0 22 * * *", 8));
        let (always, drifted, thrift) = (vec![], vec!["Drifted"], vec!["Underutilized"]);
        let cases = [
            ("0", &always, None, "2026-11-01T12:00:00Z", true),
            ("0%", &always, None, "2026-11-01T12:00:00Z", true),
            ("10%", &always, None, "2026-11-01T12:00:00Z", false),
            ("1", &always, None, "2026-11-01T12:00:00Z", false),
            ("0", &drifted, None, "2026-11-01T12:00:00Z", false),
            ("0", &thrift, night, "2026-11-01T23:00:00Z", true),
            ("0", &thrift, night, "2026-11-01T05:59:00Z", true),
            ("0", &thrift, night, "2026-11-01T06:00:00Z", false),
        ];
        for (nodes, reasons, schedule, at, barred) in cases {
            let budgets = vec![budget(nodes, reasons, schedule)];
            let pool = Pool { budgets, ..pool() };
            let at = at.parse().expect("a time");
            let found = is_barred(&pool, "Underutilized", at);
            assert_eq!(found, barred, "{nodes} {reasons:?} at {at}");
        }
    }
}
