//! Launches that wait while their pods may be placed on launched nodes.

use super::*;
use crate::plan::wire::LaunchReason;

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
