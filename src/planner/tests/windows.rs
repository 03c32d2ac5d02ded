//! Pools of Windows nodes.

use super::*;
use crate::model::desired::AmiFamily;
use crate::model::requirement::label;
use crate::testing::requirement;

#[test]
fn windows_nodes_pass_the_check_of_the_plan() {
    let mut scenario = Scenario::new(&["m5.large", "m5.xlarge"], 500, 1024);
    scenario.node_class().ami_family = AmiFamily::Windows;
    let windows = requirement("kubernetes.io/os", &["windows"]);
    scenario.pool().requirements.push(windows);
    scenario.template().spec.node_selector.extend([label("kubernetes.io/os", "windows")]);
    scenario.scale(3);
    let plan = plan(&scenario.inputs());
    assert!(plan.summary.add > 0, "{:?}", plan.capacity.unschedulable);
    assert!(!plan.errored, "{:?}", plan.capacity.diagnostics);
}

#[test]
fn windows_build_is_that_of_the_node_class() {
    const BUILD: &str = "node.kubernetes.io/windows-build";
    let scenario = |build: Option<&'static str>| {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1024);
        scenario.node_class().ami_family = AmiFamily::Windows;
        scenario.node_class().windows_build = build;
        scenario.pool().requirements.push(requirement("kubernetes.io/os", &["windows"]));
        scenario.template().spec.node_selector.extend([label(BUILD, "10.0.20348")]);
        scenario.scale(1);
        scenario
    };
    let plan = scenario(Some("10.0.20348")).plan();
    assert_eq!((plan.summary.add, plan.errored), (1, false), "{:?}", plan.capacity.diagnostics);
    let after = plan.resource_changes[0].change.after.as_ref().expect("a node");
    assert_eq!(after.labels[BUILD].as_str(), "10.0.20348");
    for build in [Some("10.0.17763"), None] {
        let plan = scenario(build).plan();
        assert_eq!((plan.summary.add, plan.capacity.pods.unschedulable), (0, 1), "{build:?}");
    }
    // A pool that requires another build than its class gives launches no node.
    let mut other = scenario(Some("10.0.20348"));
    other.pool().requirements.push(requirement(BUILD, &["10.0.17763"]));
    assert_eq!(other.plan().summary.add, 0);
    let mut same = scenario(Some("10.0.20348"));
    same.pool().requirements.push(requirement(BUILD, &["10.0.20348"]));
    assert_eq!(same.plan().summary.add, 1);
}
