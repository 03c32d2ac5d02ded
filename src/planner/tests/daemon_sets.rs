//! DaemonSets that have no room on nodes with running pods.

use super::*;
use crate::model::desired::{Budget, BudgetNodes, Scale};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::testing::pods;

/// Returns six running pods of one core on nodes of four cores.
fn running() -> Scenario {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(6);
    scenario.carry_out(&scenario.solve());
    scenario.age();
    scenario
}

/// Declares a DaemonSet of pods with this CPU request.
fn declare(scenario: &mut Scenario, name: &str, cpu: i64) {
    let id =
        WorkloadId { namespace: "evil".into(), name: name.into(), kind: WorkloadKind::DaemonSet };
    scenario.declare(id, Scale::PerNode, pods::template(cpu, 0));
}

#[test]
fn daemon_set_without_room_removes_no_node_and_no_place_of_running_pods() {
    for cpu in [17_000, 3_500, 2_500, 1_500] {
        let mut scenario = running();
        let nodes = scenario.observed.nodes.len();
        declare(&mut scenario, "big", cpu);
        let plan = scenario.plan();
        assert_eq!(plan.summary.destroy, 0, "{cpu}");
        let pods = &plan.capacity.pods;
        assert_eq!((pods.placed, pods.unschedulable), (6, 0), "{cpu}");
        assert_eq!(scenario.observed.nodes.len(), nodes);
    }
}

#[test]
fn daemon_set_larger_than_every_type_stops_no_other_workload() {
    let mut scenario = running();
    declare(&mut scenario, "big", 17_000);
    scenario.scale(20);
    let plan = scenario.plan();
    assert!(plan.summary.add > 0);
    assert_eq!(plan.capacity.pods.unschedulable, 0);
    let rows = plan.capacity.diagnostics.iter().map(|row| row.message.as_str());
    let named: Vec<&str> = rows.filter(|text| text.contains("evil/DaemonSet/big")).collect();
    let expected = "evil/DaemonSet/big requests more cpu than any node that admits it has";
    assert!(named.len() == 1 && named[0].starts_with(expected), "{named:?}");
}

#[test]
fn types_too_small_for_a_daemon_set_are_not_launched() {
    let mut scenario = Scenario::new(&["m5.large", "m5.2xlarge"], 500, 0);
    declare(&mut scenario, "agent", 3_000);
    scenario.scale(2);
    let solution = scenario.solve();
    let kinds = solution.target.launches.iter().map(|l| l.node.instance_type.as_str());
    assert_eq!(kinds.collect::<Vec<_>>(), ["m5.2xlarge"]);
}

#[test]
fn running_pods_that_a_daemon_set_may_evict_get_another_place() {
    let mut scenario = running();
    let id = WorkloadId {
        namespace: "kube-system".into(),
        name: "critical".into(),
        kind: WorkloadKind::DaemonSet,
    };
    let mut template = pods::template(2_500, 0);
    template.spec.priority = Some(2_000_001_000);
    scenario.declare(id, Scale::PerNode, template);
    let plan = scenario.plan();
    assert!(plan.summary.add > 0, "DaemonSet pods of a higher priority evict running pods");
    assert_eq!(plan.capacity.pods.unschedulable, 0);
}

#[test]
fn node_is_not_removed_for_cost_while_its_pods_have_no_other_place() {
    let mut scenario = running();
    let before = scenario.observed.nodes.len();
    // The pods are declared larger than any node: no node has a place for them.
    scenario.template().spec.containers = pods::template(90_000, 0).spec.containers;
    let plan = scenario.plan();
    assert_eq!(plan.summary.destroy, 0, "{before} nodes");
}

/// With a budget of one node, each planning round found one more node of the same workload. After a
/// few rounds, no node of any workload was removed.
#[test]
fn workload_without_a_place_keeps_its_own_nodes_only() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.deploy("large", 6, pods::template(1_500, 64));
    scenario.deploy("small", 2, pods::template(1_500, 64));
    scenario.apply();
    scenario.age();
    let nodes = BudgetNodes::Count(1);
    scenario.pool().budgets =
        vec![Budget { nodes, reasons: vec![], schedule: None, duration: None }];
    scenario.deploy("large", 6, pods::template(90_000, 64));
    scenario.deploy("small", 0, pods::template(1_500, 64));
    let plan = scenario.plan();
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unschedulable), (1, 6));
}
