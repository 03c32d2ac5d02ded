//! Disruption budgets that no drain can ever honour.

use super::warning;
use crate::demand::{Demand, PodGroup, label_set};
use crate::manifest::{Desired, DisruptionBudget, Problem, kept_pods};
use crate::pod::{Expression, Selector};
use crate::requirement::Requirements;

/// What comes of a budget, or of two, that let no pod go.
const NEVER: &str = "a node with one of these pods can never be drained";

/// Returns a warning for each budget that lets none of its pods ever go, and for each workload under two
/// of them.
pub(super) fn budgets(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let mut found: Vec<Problem> =
        demand.groups.iter().filter_map(|group| of_two(desired, group)).collect();
    for budget in &desired.disruption_budgets {
        let protects = |group: &&PodGroup| protects(budget, group);
        let groups: Vec<&PodGroup> = demand.groups.iter().filter(protects).collect();
        if groups.is_empty() {
            continue;
        }
        let most = groups.iter().map(|group| group.counts.ceiling).fold(0, u32::saturating_add);
        if let Some((message, hint)) = verdict(budget, most) {
            let object = format!("PodDisruptionBudget {}/{}", budget.namespace, budget.name);
            found.push(warning(&budget.origin, &object, message, hint));
        }
    }
    found
}

/// Returns a warning where two budgets are about the pods of a workload: the API server then refuses to
/// evict any of them, whatever the budgets allow.
fn of_two(desired: &Desired, group: &PodGroup) -> Option<Problem> {
    let mut own = desired.disruption_budgets.iter().filter(|budget| protects(budget, group));
    let (first, second) = own.next().zip(own.next())?;
    let object = format!("PodDisruptionBudget {}/{}", second.namespace, second.name);
    let message = format!(
        "is about pods of {} {} like {} ({}), and pods under two budgets are never evicted: {NEVER}",
        group.workload.kind, group.workload, first.name, first.origin
    );
    let hint = "leave each pod to one budget";
    Some(warning(&second.origin, &object, message, hint))
}

fn protects(budget: &DisruptionBudget, group: &PodGroup) -> bool {
    group.workload.namespace == budget.namespace
        && group.origin.is_some()
        && budget.selector.as_ref().is_some_and(|selector| matches(selector, group))
}

fn matches(selector: &Selector, group: &PodGroup) -> bool {
    let of = |expression: &Expression| (expression.key.clone(), label_set(expression));
    selector.0.iter().map(of).collect::<Requirements>().match_labels(&group.shape.labels)
}

/// Returns what is wrong with a budget for at most so many pods.
fn verdict(budget: &DisruptionBudget, most: u32) -> Option<(String, &'static str)> {
    if let Some(unavailable) = budget.max_unavailable.as_deref().filter(|text| is_none(text)) {
        let message = format!("lets {unavailable} of its pods be unavailable: {NEVER}");
        return Some((message, "write maxUnavailable: 1"));
    }
    let stated = budget.min_available.as_deref()?;
    let least = kept_pods(Some(stated), None, most.into())?;
    if least < i64::from(most) || most == 0 {
        return None;
    }
    if most == 1 {
        let message = format!("keeps {stated} available of a single replica: {NEVER}");
        return Some((message, "run two replicas, or write maxUnavailable: 1"));
    }
    let message = format!("keeps {stated} available of at most {most} pods: {NEVER}");
    Some((message, "write maxUnavailable: 1 instead, which holds whatever the number of pods"))
}

fn is_none(text: &str) -> bool {
    matches!(text, "0" | "0%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Origin;

    #[test]
    fn a_budget_that_lets_no_pod_go_is_named() {
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
            ("none may go", None, Some("0"), 3, Some("lets 0 of its pods")),
            ("none by share", None, Some("0%"), 3, Some("lets 0% of its pods")),
            ("one may go", None, Some("1"), 1, None),
            ("nothing runs", Some("1"), None, 0, None),
        ] {
            let found = verdict(&budget(min, max), pods).map(|(message, _)| message);
            assert_eq!(
                found.as_deref().is_some_and(|m| expected.is_some_and(|e| m.contains(e))),
                expected.is_some(),
                "{rule}: {found:?}"
            );
            assert_eq!(found.is_some(), expected.is_some(), "{rule}");
        }
    }
}
