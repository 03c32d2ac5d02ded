//! Tests of drift reports, and of the changes that are due on blocked nodes.

use std::sync::Arc;

use jiff::SignedDuration;

use super::changes;
use super::pools::{apply_and_check, cores};
use crate::model::desired::{Budget, BudgetNodes, Consolidation, Expiry, Problem};
use crate::model::ids::Origin;
use crate::model::reason::RetireReason;
use crate::model::requirement::label;
use crate::plan::wire::{Decider, DiagnosticSeverity, Plan};
use crate::plan::{RowSelection, drift, has_drift, manual_changes};
use crate::planner;
use crate::testing::pods::no_schedule;
use crate::testing::{Scenario, requirement, workload_id};

/// Returns the manually changed fields of a report.
fn changed(report: &Plan) -> Vec<String> {
    let rows = report.capacity.explain.iter();
    rows.flat_map(manual_changes).map(|drifted| drifted.field).collect()
}

fn budget(nodes: &str) -> Budget {
    Budget {
        nodes: BudgetNodes::parse(nodes).expect("a budget"),
        reasons: Vec::new(),
        schedule: None,
        duration: None,
    }
}

fn do_not_disrupt() -> (String, String) {
    ("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned())
}

/// Returns a running node with a label and a taint that a user set.
fn edited_by_hand() -> Scenario {
    let mut scenario = cores(&["m5.large"], 1);
    scenario.node_class().spec_digests = Arc::default();
    apply_and_check(&mut scenario);
    scenario.node().labels.extend([label("ops", "x")]);
    scenario.node().taints.push(no_schedule("mine", ""));
    scenario
}

#[test]
fn every_manual_change_is_drift_whatever_the_plan_does() {
    let mut scenario = edited_by_hand();
    let fields = ["taint mine", "label ops"];
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!(changed(&drift(&plan)), fields);
    let saved = plan.to_file_json(RowSelection::ChangesOnly);
    let read = Plan::from_json(&saved).expect("a plan");
    assert_eq!(changed(&drift(&read)), fields, "a saved plan has them too");
    // A commit replaces the requirements of the pool.
    scenario.pool().requirements[0].values = vec!["m5.xlarge".into()];
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (1, 1));
    let report = drift(&plan);
    assert_eq!(changed(&report), fields);
    assert!(has_drift(&report));
    let other = report.capacity.diagnostics.iter();
    let other = other.filter(|d| d.severity == DiagnosticSeverity::Behind);
    let other: Vec<_> = other.map(|d| d.message.as_str()).collect();
    assert!(other[0].starts_with("label node.kubernetes.io/instance-type: m5.large"), "{other:?}");
    // The plan removes the node, because its workload shrank.
    let mut scenario = edited_by_hand();
    scenario.scale(0);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 1));
    assert_eq!(changed(&drift(&plan)), fields);
}

#[test]
fn label_that_contradicts_the_instance_is_drift() {
    let (kind, zone) = ("node.kubernetes.io/instance-type", "topology.kubernetes.io/zone");
    let mut scenario = cores(&["m5.large"], 1);
    apply_and_check(&mut scenario);
    let instance = scenario.observed.instances.values().next().expect("launched");
    let wrong = if instance.zone.as_str() == "us-east-1a" { "us-east-1b" } else { "us-east-1a" };
    scenario.node().labels.extend([label(zone, wrong)]);
    let report = drift(&scenario.plan());
    assert_eq!(changed(&report), [format!("instance label {zone}")]);
    // The pool does not declare this type, and no commit explains it.
    scenario.node().labels.extend([label(kind, "c5.large")]);
    let report = drift(&scenario.plan());
    let fields = changed(&report);
    for key in [kind, zone] {
        assert!(fields.contains(&format!("instance label {key}")), "{fields:?}");
    }
    let other = report.capacity.diagnostics.iter();
    let other: Vec<_> = other.filter(|d| d.object.starts_with("ec2_instance.")).collect();
    assert!(other.iter().all(|d| d.severity != DiagnosticSeverity::Behind), "{other:?}");
}

#[test]
fn label_that_contradicts_the_instance_type_is_drift() {
    let cpu = "karpenter.k8s.aws/instance-cpu";
    let mut scenario = cores(&["m5.large"], 1);
    apply_and_check(&mut scenario);
    assert!(!has_drift(&drift(&scenario.plan())));
    scenario.node().labels.extend([label(cpu, "96")]);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0), "no node is replaced for it");
    assert_eq!(changed(&drift(&plan)), [format!("instance label {cpu}")]);
    scenario.node().labels.remove(cpu);
    assert!(!has_drift(&drift(&scenario.plan())), "an absent label is not wrong");
    // The pool does not admit the value, and no commit explains it.
    scenario.node().labels.extend([label(cpu, "96")]);
    scenario.pool().requirements.push(requirement(cpu, &["2"]));
    let report = drift(&scenario.plan());
    assert_eq!(changed(&report), [format!("instance label {cpu}")]);
    let other = report.capacity.diagnostics.iter();
    let mut other = other.filter(|d| d.object.starts_with("ec2_instance."));
    assert!(other.all(|d| d.severity != DiagnosticSeverity::Behind), "{report:?}");
}

#[test]
fn expired_node_with_a_changed_label_is_drift() {
    let mut scenario = cores(&["m5.large"], 1);
    scenario.pool().labels.extend([label("team", "a")]);
    apply_and_check(&mut scenario);
    scenario.node().labels.extend([label("team", "b")]);
    scenario.pool().expire_after = Expiry::After(SignedDuration::from_hours(1));
    scenario.age();
    assert_eq!(changed(&drift(&scenario.plan())), ["label team"]);
}

#[test]
fn blocked_node_states_the_change_that_is_due() {
    let mut scenario = cores(&["m5.large"], 1);
    apply_and_check(&mut scenario);
    scenario.age();
    scenario.pool().do_not_disrupt = true;
    let due = |scenario: &Scenario| scenario.plan().capacity.explain[0].drift.clone();
    assert_eq!(due(&scenario), None);
    scenario.pool().expire_after = Expiry::After(SignedDuration::from_hours(24));
    let expired = RetireReason::Expired { age_hours: 72, limit_hours: 24 };
    assert_eq!(due(&scenario), Some(expired));
    scenario.pool().expire_after = Expiry::Never;
    scenario.pool().requirements[0].values = vec!["m5.xlarge".into()];
    let Some(RetireReason::Drifted { field, .. }) = due(&scenario) else {
        panic!("the type is no longer declared")
    };
    assert_eq!(field, "label node.kubernetes.io/instance-type");
}

#[test]
fn absence_from_a_broken_repository_is_no_removal() {
    let mut scenario = cores(&["m5.large"], 3);
    apply_and_check(&mut scenario);
    scenario.observed.mark_delivered([workload_id()]);
    scenario.desired.workloads.clear();
    let removed = scenario.plan();
    assert_eq!(removed.capacity.demand[0].decided_by, Decider::Removed);
    assert!(changes(&removed).1 > 0);
    let broken = Problem::error(Origin::new("apps/shop.yaml", 37), "", "is not YAML");
    scenario.desired.problems.push(broken);
    let pools = std::mem::take(&mut scenario.desired.pools);
    let plan = planner::plan(&scenario.inputs());
    assert_eq!(changes(&plan), (0, 0));
    let row = &plan.capacity.demand[0];
    assert_eq!((&row.decided_by, row.counts.planned), (&Decider::World, 3));
    let messages: Vec<_> = plan.capacity.diagnostics.iter().map(|d| d.message.as_str()).collect();
    let expected =
        "runs, and is not in the files that could be read: its 3 pods keep their capacity";
    assert!(messages.contains(&expected), "{messages:?}");
    assert!(!messages.iter().any(|text| text.contains("terminating")), "{messages:?}");
    let report = drift(&plan);
    let different = report.capacity.diagnostics.iter();
    let different = different.filter(|d| d.severity == DiagnosticSeverity::Behind);
    assert_eq!(different.count(), 0, "neither the workload nor the pool is known to be removed");
    scenario.desired.pools = pools;
    scenario.desired.problems.clear();
    assert!(changes(&scenario.plan()).1 > 0);
}

/// Returns the number of blocked nodes of a plan without changes.
fn blocked(scenario: &Scenario) -> u32 {
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    plan.summary.blocked
}

type Rule<'a> = &'a dyn Fn(&mut Scenario);

#[test]
fn protected_nodes_without_a_due_change_are_not_blocked() {
    let rules: [Rule<'_>; 6] = [
        &|scenario| scenario.pool().consolidation = Consolidation::WhenEmpty,
        &|scenario| scenario.pool().consolidate_after = None,
        &|scenario| scenario.pool().consolidate_after = Some(SignedDuration::from_hours(9)),
        &|scenario| scenario.pool().budgets = vec![budget("0")],
        &|scenario| scenario.pool().do_not_disrupt = true,
        &|scenario| scenario.template().annotations.extend([do_not_disrupt()]),
    ];
    for (index, rule) in rules.iter().enumerate() {
        let mut scenario = cores(&["m5.large"], 3);
        rule(&mut scenario);
        scenario.carry_out(&scenario.solve());
        assert_eq!(blocked(&scenario), 0, "{index}");
        let plan = scenario.plan();
        let words = plan.resource_changes.iter().filter_map(|row| row.action_reason.as_deref());
        let blocked_words = words.filter(|word| *word == "noop_because_blocked").count();
        assert_eq!(blocked_words, 0, "{index}");
    }
}

#[test]
fn protected_nodes_with_a_due_change_are_blocked() {
    let after = |rule: Rule<'_>| {
        let mut scenario = cores(&["m5.large"], 3);
        scenario.carry_out(&scenario.solve());
        rule(&mut scenario);
        (blocked(&scenario), scenario.observed.nodes.len())
    };
    let rules: [Rule<'_>; 4] = [
        &|scenario| {
            scenario.pool().do_not_disrupt = true;
            scenario.scale(0);
        },
        &|scenario| {
            scenario.pool().do_not_disrupt = true;
            scenario.pool().labels.extend([label("team", "b")]);
        },
        &|scenario| {
            scenario.pool().budgets = vec![budget("0")];
            scenario.scale(0);
        },
        &|scenario| {
            scenario.pool().budgets = vec![budget("0")];
            scenario.pool().labels.extend([label("team", "b")]);
        },
    ];
    for (index, rule) in rules.iter().enumerate() {
        let (blocked, nodes) = after(rule);
        assert_eq!(usize::try_from(blocked), Ok(nodes), "{index}");
    }
}
