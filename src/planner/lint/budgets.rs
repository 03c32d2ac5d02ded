//! Lint for disruption budgets that block every drain.

use super::warning;
use crate::demand::{Demand, PodGroup};
use crate::model::code::Code;
use crate::model::desired::{Desired, DisruptionBudget, Problem, pods_to_keep};

/// Returns the consequence of budgets that never allow an eviction.
fn consequence(desired: &Desired) -> &'static str {
    if desired.pools.values().any(|pool| pool.termination_grace_period.is_some()) {
        "only a terminationGracePeriod ends the drain of a node with one of these pods"
    } else {
        "a node with one of these pods can never be drained"
    }
}

/// Returns a warning for each budget that never allows an eviction, and for each workload with two
/// budgets.
pub(super) fn budgets(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let mut found: Vec<Problem> =
        demand.groups.iter().filter_map(|group| two_budgets(desired, group)).collect();
    for budget in &desired.disruption_budgets {
        let protects = |group: &&PodGroup| protects(budget, group);
        let groups: Vec<&PodGroup> = demand.groups.iter().filter(protects).collect();
        if groups.is_empty() {
            continue;
        }
        let most = groups.iter().map(|group| group.counts.ceiling).fold(0, u32::saturating_add);
        if let Some((message, hint)) = blocking_budget(budget, most) {
            let object = format!("PodDisruptionBudget {}/{}", budget.namespace, budget.name);
            let message = format!("{message}: {}", consequence(desired));
            found.push(
                warning(&budget.origin, &object, message, hint).code(Code::BudgetBlocksDrain),
            );
        }
    }
    found
}

/// Returns a warning if two budgets select the pods of a workload. The API server refuses every
/// eviction of such pods, regardless of the budgets.
fn two_budgets(desired: &Desired, group: &PodGroup) -> Option<Problem> {
    let mut own = desired.disruption_budgets.iter().filter(|budget| protects(budget, group));
    let (first, second) = own.next().zip(own.next())?;
    let object = format!("PodDisruptionBudget {}/{}", second.namespace, second.name);
    let message = format!(
        "selects pods of {} {} as {} ({}) does, and pods under two budgets are never evicted: {}",
        group.workload.kind,
        group.workload,
        first.name,
        first.origin,
        consequence(desired)
    );
    let hint = "select each pod by one budget only";
    Some(warning(&second.origin, &object, message, hint).code(Code::BudgetBlocksDrain))
}

fn protects(budget: &DisruptionBudget, group: &PodGroup) -> bool {
    group.workload.namespace == budget.namespace
        && group.origin.is_some()
        && budget.selector.as_ref().is_some_and(|selector| selector.matches(&group.shape.labels))
}

/// Returns the message and the hint for a budget that blocks every eviction among at most `most`
/// pods.
fn blocking_budget(budget: &DisruptionBudget, most: u32) -> Option<(String, &'static str)> {
    if let Some(unavailable) = budget.max_unavailable.as_deref().filter(|text| is_none(text)) {
        let message = format!("allows {unavailable} of its pods to be unavailable");
        return Some((message, "write maxUnavailable: 1"));
    }
    let stated = budget.min_available.as_deref()?;
    let least = pods_to_keep(Some(stated), None, most.into())?;
    if least < i64::from(most) || most == 0 {
        return None;
    }
    if most == 1 {
        let message = format!("keeps {stated} available of a single replica");
        return Some((message, "run two replicas, or write maxUnavailable: 1"));
    }
    let message = format!("keeps {stated} available of at most {most} pods");
    Some((message, "write maxUnavailable: 1 instead, which holds whatever the number of pods"))
}

fn is_none(text: &str) -> bool {
    matches!(text, "0" | "0%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Origin;

    #[test]
    fn budget_without_evictions_is_reported() {
        let budget = |min: Option<&str>, max: Option<&str>| DisruptionBudget {
            namespace: "web".into(),
            name: "api".to_owned(),
            origin: Origin::new("a.yaml", 1),
            selector: None,
            min_available: min.map(str::to_owned),
            max_unavailable: max.map(str::to_owned),
        };
        for (rule, min, max, pods, expected) in [
            ("one of one", Some("1"), None, 1, Some("a single replica")),
            ("all of three", Some("3"), None, 3, Some("at most 3 pods")),
            ("more than there are", Some("5"), None, 3, Some("at most 3 pods")),
            ("all by share", Some("100%"), None, 3, Some("at most 3 pods")),
            ("a share that rounds up", Some("51%"), None, 1, Some("a single replica")),
            ("two of three", Some("2"), None, 3, None),
            ("none may go", None, Some("0"), 3, Some("allows 0 of its pods")),
            ("none by share", None, Some("0%"), 3, Some("allows 0% of its pods")),
            ("one may go", None, Some("1"), 1, None),
            ("nothing runs", Some("1"), None, 0, None),
        ] {
            let found = blocking_budget(&budget(min, max), pods).map(|(message, _)| message);
            assert_eq!(
                found.as_deref().is_some_and(|m| expected.is_some_and(|e| m.contains(e))),
                expected.is_some(),
                "{rule}: {found:?}"
            );
            assert_eq!(found.is_some(), expected.is_some(), "{rule}");
        }
    }
}
