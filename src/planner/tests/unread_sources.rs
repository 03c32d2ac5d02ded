//! Tests of plans with sources that were not read: what stays, and what may be removed.

use super::changes;
use crate::model::desired::{Desired, Scale, Unresolved, UnresolvedPolicy};
use crate::model::ids::{NodeName, Origin};
use crate::model::requirement::label;
use crate::plan::wire::Plan;
use crate::planner::plan;
use crate::testing::Scenario;
use crate::testing::pods::{deployment, template_requesting};

/// Returns two nodes of one pod each, whose second pod the repository does not declare: an unread
/// release runs it.
fn two_nodes() -> (Scenario, NodeName) {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    scenario.step(2);
    let shop = deployment("web", "shop");
    let mut template = template_requesting(&[("cpu", 1500), ("memory", 1024 << 20)]);
    template.labels.extend([label("app.kubernetes.io/instance", "shop")]);
    let last = scenario.last_pod();
    last.owner = Some(shop);
    last.template = "shop".into();
    let node = last.node.clone().expect("bound");
    scenario.observed.templates.insert("shop".to_owned(), template.into());
    scenario.scale(0);
    scenario.desired.unresolved.push(Unresolved {
        origin: Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".to_owned(),
        reason: "charts are not downloaded".to_owned(),
    });
    (scenario, node)
}

fn planned(scenario: &mut Scenario, policy: UnresolvedPolicy) -> Plan {
    scenario.desired.unresolved_policy = policy;
    plan(&scenario.inputs())
}

#[test]
fn node_of_an_unread_release_stays_and_the_other_is_removed() {
    let (mut scenario, node) = two_nodes();
    let plan = planned(&mut scenario, UnresolvedPolicy::Running);
    assert_eq!(changes(&plan), (0, 1), "{:?}", plan.capacity.diagnostics);
    let stays = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
    let stays: Vec<_> = stays.filter_map(|state| state.node.clone()).collect();
    assert_eq!(stays, [node]);
    assert_eq!(plan.capacity.unresolved[0].running, 1, "the pod carries the mark of the release");
    assert_eq!(plan.capacity.base.unresolved, Some(UnresolvedPolicy::Running));
}

#[test]
fn hold_removes_no_node_while_a_source_is_not_read() {
    let (mut scenario, _) = two_nodes();
    assert_eq!(changes(&planned(&mut scenario, UnresolvedPolicy::Hold)), (0, 0));
}

#[test]
fn node_of_an_undeclared_pool_stays_unless_sources_are_ignored() {
    let (mut scenario, _) = two_nodes();
    scenario.desired.pools.clear();
    assert_eq!(changes(&planned(&mut scenario, UnresolvedPolicy::Running)), (0, 0));
    let ignored = planned(&mut scenario, UnresolvedPolicy::Ignore);
    assert!(ignored.summary.destroy > 0, "{:?}", ignored.summary);
}

#[test]
fn workload_that_an_unread_source_may_deliver_keeps_its_pods() {
    let (mut scenario, _) = two_nodes();
    let shop = deployment("web", "shop");
    scenario.observed.mark_delivered([shop]);
    assert_eq!(changes(&planned(&mut scenario, UnresolvedPolicy::Running)), (0, 1));
    assert_eq!(changes(&planned(&mut scenario, UnresolvedPolicy::Ignore)), (0, 2));
}

#[test]
fn workload_that_no_tool_removes_keeps_its_pods() {
    let shop = || deployment("web", "shop");
    let planned_with = |retain: fn(&mut Desired)| {
        let (mut scenario, _) = two_nodes();
        scenario.desired.unresolved.clear();
        scenario.observed.mark_delivered([shop()]);
        retain(&mut scenario.desired);
        changes(&planned(&mut scenario, UnresolvedPolicy::Running))
    };
    assert_eq!(planned_with(|_| {}), (0, 2), "it is removed");
    assert_eq!(
        planned_with(|desired| desired.retained.extend([deployment("web", "shop")])),
        (0, 1)
    );
    let in_namespace = |desired: &mut Desired| desired.retaining_namespaces.extend(["web".into()]);
    assert_eq!(planned_with(in_namespace), (0, 1));
}

#[test]
fn complete_inputs_state_no_treatment() {
    let (mut scenario, _) = two_nodes();
    scenario.desired.unresolved.clear();
    let plan = planned(&mut scenario, UnresolvedPolicy::Running);
    assert_eq!(plan.capacity.base.unresolved, None);
}

#[test]
fn assumed_pods_count_without_an_observed_cluster_only() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    let mut assumed = scenario.desired.workloads.values().next().expect("one workload").clone();
    assumed.id.name = "assumed:charts-shop".into();
    assumed.scale = Scale::Replicas(2);
    scenario.desired.assumed.push(assumed);
    scenario.scale(0);
    assert_eq!(plan(&scenario.inputs()).summary.add, 2);
    scenario.desired.assumed.clear();
    scenario.step(1);
    let mut assumed = scenario.desired.workloads.values().next().expect("one workload").clone();
    assumed.id.name = "assumed:charts-shop".into();
    scenario.desired.assumed.push(assumed);
    assert_eq!(changes(&plan(&scenario.inputs())), (0, 0), "a node runs");
}
