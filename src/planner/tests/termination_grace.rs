//! End-to-end tests of pools with a termination grace period. Each plan is verified.

use jiff::SignedDuration;

use super::pools::{apply_and_check, cores};
use super::*;
use crate::model::desired::{Budget, BudgetNodes, DisruptionBudget, Unresolved, UnresolvedPolicy};
use crate::model::ids::{NodeName, Origin};
use crate::model::observed::{CORDONED_ANNOTATION, GRACE_PERIOD_ANNOTATION};
use crate::model::pod::Selector;
use crate::model::requirement::label;
use crate::plan::stale_cordons;
use crate::testing::workload_id;

/// Protects the pods of a pool with a period of an hour, and lets its nodes drift.
fn drift_with_protected_pods(scenario: &mut Scenario) {
    let annotations = &mut scenario.template().annotations;
    annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    scenario.carry_out(&scenario.solve());
    scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
    scenario.pool().labels.extend([label("team", "b")]);
}

#[test]
fn termination_grace_period_lets_drift_start() {
    let protect: [fn(&mut Scenario); 2] = [
        |scenario| {
            let annotations = &mut scenario.template().annotations;
            annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
        },
        |scenario| {
            scenario.desired.disruption_budgets.push(DisruptionBudget {
                namespace: workload_id().namespace,
                name: "api".into(),
                selector: Some(Selector(Vec::new())),
                min_available: None,
                max_unavailable: Some("0".to_owned()),
                origin: Origin { file: "a.yaml".into(), line: 1 },
            });
        },
    ];
    for protect in protect {
        let mut scenario = cores(&["m5.large"], 1);
        apply_and_check(&mut scenario);
        protect(&mut scenario);
        scenario.carry_out(&scenario.solve());
        let grace = |plan: &Plan| -> Vec<Option<u64>> {
            let rows = plan.resource_changes.iter().map(|row| row.change.termination_grace_seconds);
            rows.collect()
        };
        scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
        assert_eq!(changes(&scenario.plan()), (0, 0), "no drift yet");
        scenario.pool().labels.extend([label("team", "b")]);
        let plan = scenario.plan();
        assert_eq!((changes(&plan), grace(&plan)), ((1, 1), vec![Some(3_600)]));
        scenario.pool().termination_grace_period = None;
        let plan = scenario.plan();
        assert_eq!((changes(&plan), grace(&plan)), ((0, 0), vec![None]));
    }
}

#[test]
fn grace_period_spares_static_pools_and_requested_drains() {
    for is_static in [true, false] {
        let mut scenario = cores(&["m5.large"], 1);
        scenario.pool().replicas = is_static.then_some(1);
        apply_and_check(&mut scenario);
        drift_with_protected_pods(&mut scenario);
        let rows = scenario.plan().resource_changes;
        let all = rows.iter().map(|row| row.address.to_string()).filter(|_| !is_static);
        let plan =
            scenario.plan_within(Scope { replaced_addresses: all.collect(), ..Scope::default() });
        assert_eq!(changes(&plan), (0, 0), "{is_static}");
    }
}

#[test]
fn termination_grace_period_bounds_no_drain_that_saves_cost() {
    let mut scenario = cores(&["m5.large"], 3);
    scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
    apply_and_check(&mut scenario);
    scenario.scale(1);
    let plan = scenario.plan();
    assert!(changes(&plan).1 > 0);
    let bounded =
        plan.resource_changes.iter().any(|row| row.change.termination_grace_seconds.is_some());
    assert!(!bounded, "{:?}", plan.resource_changes);
}

#[test]
fn drifted_node_whose_drain_has_begun_comes_first() {
    let mut scenario = cores(&["m5.large"], 3);
    scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
    scenario.pool().budgets = vec![Budget {
        nodes: BudgetNodes::Count(1),
        reasons: Vec::new(),
        schedule: None,
        duration: None,
    }];
    apply_and_check(&mut scenario);
    scenario.pool().labels.extend([label("team", "b")]);
    let replaced = |plan: &Plan| -> Vec<NodeName> {
        let rows = plan.resource_changes.iter();
        let deleted = rows.filter(|row| row.change.actions.contains(&Action::Delete));
        deleted.filter_map(|row| row.change.before.as_ref()?.node.clone()).collect()
    };
    let names: Vec<NodeName> = scenario.observed.nodes.keys().cloned().collect();
    assert!(names.len() > 1, "{names:?}");
    assert_eq!(replaced(&scenario.plan()), names[..1]);
    for name in &names {
        let before = scenario.observed.clone();
        let node = scenario.observed.nodes.get_mut(name).expect("a node");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
        let began = before.taken_at.to_string();
        node.annotations.insert(GRACE_PERIOD_ANNOTATION.to_owned(), began);
        assert_eq!(replaced(&scenario.plan()), *std::slice::from_ref(name));
        // It continues while a budget lets no drain begin.
        scenario.pool().budgets[0].nodes = BudgetNodes::Count(0);
        assert_eq!(replaced(&scenario.plan()), *std::slice::from_ref(name));
        scenario.pool().budgets[0].nodes = BudgetNodes::Count(1);
        scenario.observed = before;
    }
}

#[test]
fn unknown_sizes_end_no_drain_that_has_begun() {
    for has_begun in [true, false] {
        let mut scenario = cores(&["m5.large"], 1);
        scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
        apply_and_check(&mut scenario);
        scenario.pool().labels.extend([label("team", "b")]);
        let began = scenario.observed.taken_at.to_string();
        let node = scenario.observed.nodes.values_mut().next().expect("a node");
        node.unschedulable = true;
        let mut annotations = vec![(CORDONED_ANNOTATION.to_owned(), "drain".to_owned())];
        annotations.extend(has_begun.then(|| (GRACE_PERIOD_ANNOTATION.to_owned(), began)));
        node.annotations.extend(annotations);
        scenario.desired.unresolved_policy = UnresolvedPolicy::Hold;
        scenario.desired.unresolved.push(Unresolved {
            origin: Origin::new("release.yaml", 1),
            object: "HelmRelease web/shop".into(),
            reason: "the chart is not rendered".into(),
        });
        let plan = scenario.plan();
        assert_eq!(changes(&plan), (0, 0));
        let cordons = stale_cordons(&plan, &scenario.observed, &BTreeSet::new());
        let waits: Vec<bool> = cordons.iter().map(|cordon| cordon.may_continue).collect();
        assert_eq!(waits, [has_begun]);
    }
}

#[test]
fn node_that_an_operator_cordoned_has_no_period() {
    for (mark, expected) in [(None, (0, 0)), (Some("drain"), (1, 1))] {
        let mut scenario = cores(&["m5.large"], 1);
        apply_and_check(&mut scenario);
        drift_with_protected_pods(&mut scenario);
        let node = scenario.observed.nodes.values_mut().next().expect("a node");
        node.unschedulable = true;
        let mark = mark.map(|mark| (CORDONED_ANNOTATION.to_owned(), mark.to_owned()));
        node.annotations.extend(mark);
        assert_eq!(changes(&scenario.plan()), expected);
    }
}
