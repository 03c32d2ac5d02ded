//! Launches that wait while their pods may be placed on launched nodes.

use super::*;
use crate::controller::planning::planned_demand;
use crate::plan::wire::{LaunchReason, PlacementMode, workload_key};
use crate::testing::pods::deployment;

#[test]
fn launch_waits_while_launched_nodes_may_hold_all_its_pods() {
    let launched = "web 9";
    let plan = GateScenario::new().plan;
    let explained = plan.capacity.explain.iter();
    let row = explained.filter(|row| short_name(&row.address) == launched);
    let pods: Vec<String> = row.flat_map(|row| row.pods.keys()).map(ToString::to_string).collect();
    assert_eq!(pods, ["web/Deployment/api"], "the launch is for pods");
    let arriving = |workload: &str, pods, seconds| {
        let held = GateScenario::with(|g| {
            g.pods_arriving = Some(pods_arriving(workload, pods, seconds));
        });
        held.allowed().contains(&launched.to_owned())
    };
    assert!(!arriving(&pods[0], 36, 1));
    assert!(arriving(&pods[0], 36, 0), "the time has passed");
    assert!(arriving(&pods[0], 35, 1), "one of 36 pods has no node yet");
    assert!(arriving("Deployment/other/pods", 36, 1));
}

/// Returns pods of a workload that may still be placed on launched nodes.
fn pods_arriving(workload: &str, pods: u32, seconds: i64) -> PodsArriving {
    let until = now() + SignedDuration::from_secs(seconds);
    PodsArriving { workloads: [(workload.to_owned(), pods)].into(), until }
}

#[test]
fn steered_launches_for_all_pods_without_a_node_do_not_wait() {
    let api = deployment("web", "api");
    let key = workload_key(&api);
    let launches = GateScenario::new().plan;
    // Pods of replaced nodes have a node.
    let rows = launches.capacity.explain.iter().filter(|row| {
        matches!(row.reason, Reason::Launch { because: LaunchReason::Demand { .. } })
    });
    let pods = rows.filter_map(|row| row.pods.get(key.as_str()));
    let pods: u32 = pods.sum();
    let demand = planned_demand(&launches)[&key];
    assert!(0 < pods && pods < demand, "other pods have a node");
    let is_allowed = |mode, bound: u32, pending: u32, other: u32| {
        let held = GateScenario::with(|g| {
            g.plan.capacity.placement.mode = mode;
            let mut arriving = pods_arriving(&key, 36, 1);
            arriving.workloads.extend((other > 0).then(|| ("web/Deployment/other".to_owned(), 36)));
            g.pods_arriving = Some(arriving);
            if other > 0 {
                let mut row = g.plan.capacity.demand[0].clone();
                row.workload = deployment("web", "other");
                row.counts.planned = other;
                g.plan.capacity.demand.push(row);
            }
            let pod = |name: String| world::pod(&name).owned_by(&api);
            let bound = (0..bound).map(|n| pod(format!("bound-{n}")).on("node-1"));
            let pending = (0..pending).map(|n| pod(format!("pending-{n}")));
            g.observed = g.observed.clone().with_pods(bound.chain(pending));
        });
        held.allowed().contains(&"web 9".to_owned())
    };
    let rest = demand - pods;
    assert!(is_allowed(PlacementMode::Steered, rest, 1, 0));
    assert!(!is_allowed(PlacementMode::Unsteered, rest, 1, 0));
    assert!(
        !is_allowed(PlacementMode::Steered, rest - 1, 1, 0),
        "one has a place on a launched node"
    );
    let many = rest.div_ceil(10) + 1;
    assert!(
        !is_allowed(PlacementMode::Steered, rest, many, 0),
        "something keeps pods from launched nodes"
    );
    assert!(!is_allowed(PlacementMode::Steered, rest, 0, 0), "the pods are still to come");
    assert!(
        !is_allowed(PlacementMode::Steered, rest, 1, 1),
        "a pod of another workload has a place there"
    );
}

#[test]
fn node_for_another_order_waits_until_pods_have_arrived() {
    let without_pods = |because: LaunchReason, seconds| {
        let held = GateScenario::with(|g| {
            g.pods_arriving = Some(pods_arriving("web/Deployment/api", 36, seconds));
            let mut rows = g.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| short_name(&row.address) == "web 9").expect("a launch");
            row.pods.clear();
            row.reason = Reason::Launch { because };
        });
        held.allowed().contains(&"web 9".to_owned())
    };
    let for_pods = || LaunchReason::Demand { pods: BTreeMap::new() };
    assert!(!without_pods(for_pods(), 1));
    assert!(without_pods(for_pods(), 0), "the time has passed");
    assert!(without_pods(LaunchReason::Static { declared: 2, there: 1 }, 1));
}
