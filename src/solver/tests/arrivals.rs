//! Pods that arrive in another order than their priority, or although they are unschedulable.

use super::pod_rules::{deployment, scenario};
use crate::model::desired::WorstCase;
use crate::solver::Solution;
use crate::testing::{Scenario, requirement};

fn containers(cpu: u32) -> String {
    format!("containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]")
}

fn avoids(other: &str) -> String {
    format!(
        "affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
         [{{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{app: {other}}}}}}}]}}}}"
    )
}

fn daemon_set(cpu: u32) -> String {
    let containers = containers(cpu);
    format!(
        "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: logs, namespace: web}}\n\
         spec:\n  selector: {{matchLabels: {{app: logs}}}}\n  template:\n\
         \x20   metadata: {{labels: {{app: logs}}}}\n    spec: {{{containers}}}\n"
    )
}

fn only_large_nodes(scenario: &mut Scenario) {
    for pool in scenario.desired.pools.values_mut() {
        pool.requirements[0] = requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    }
}

fn unschedulable(solution: &Solution) -> u32 {
    solution.target.unschedulable.iter().map(|unplaced| unplaced.pods).sum()
}

fn messages<'s>(solution: &'s Solution, part: &str) -> Vec<&'s str> {
    let found = solution.refusals.iter().filter(|message| message.contains(part));
    found.map(String::as_str).collect()
}

/// Three pods of `a`, and one pod of `z` that shares no node with them.
fn patient(policy: &str) -> Scenario {
    let patient = format!("priority: 500, {policy}{}, {}", containers(500), avoids("a"));
    scenario(&[deployment("a", 3, &containers(500)), deployment("z", 1, &patient)])
}

#[test]
fn pod_that_never_preempts_has_a_node_if_it_is_created_last() {
    let preempting = patient("").solve();
    let solution = patient("preemptionPolicy: Never, ").solve();
    assert_eq!((unschedulable(&preempting), unschedulable(&solution)), (0, 0));
    assert!(preempting.target.launches.len() < solution.target.launches.len());
    let order = "never-preempting-last (kube-scheduler 1.35)".to_owned();
    assert!(solution.target.simulated_runs.contains(&order));
    assert!(!preempting.target.simulated_runs.contains(&order));
}

#[test]
fn workloads_that_compete_for_a_limit_are_both_named() {
    let manifests =
        [deployment("a", 1, &containers(1_500)), deployment("b", 1, &containers(1_400))];
    let mut scenario = scenario(&manifests);
    only_large_nodes(&mut scenario);
    for pool in scenario.desired.pools.values_mut() {
        pool.limits.nodes = Some(1);
    }
    let solution = scenario.solve();
    assert_eq!((solution.target.launches.len(), unschedulable(&solution)), (1, 1));
    let found = messages(&solution, "compete for");
    assert_eq!(found.len(), 1, "{:?}", solution.refusals);
    assert!(found[0].contains("web/Deployment/a") && found[0].contains("web/Deployment/b"));
}

#[test]
fn preempted_daemon_set_is_named() {
    for (priority, expected) in [(500, 1), (0, 0)] {
        let low = format!("priority: {priority}, {}", containers(600));
        let high = format!("priority: 1000, {}", containers(1_300));
        let manifests = [daemon_set(300), deployment("a", 2, &low), deployment("z", 1, &high)];
        let mut scenario = scenario(&manifests);
        only_large_nodes(&mut scenario);
        let solution = scenario.solve();
        let found = messages(&solution, "may preempt");
        assert_eq!(found.len(), expected, "{priority}: {:?}", solution.refusals);
        assert!(found.iter().all(|message| message.contains("DaemonSet/logs")));
    }
}

#[test]
fn every_launch_holds_a_pod() {
    let solution = patient("preemptionPolicy: Never, ").solve();
    let used: std::collections::BTreeSet<_> =
        solution.target.placements.values().flat_map(|places| places.keys()).collect();
    assert_eq!(used.len(), solution.target.launches.len());
}

/// The small pods take the room of the large node in every likely order. The next plan would launch
/// another one for the large pod.
#[test]
fn pod_that_needs_a_node_dearer_than_half_the_fleet_is_placed() {
    let container = |cpu: u32| {
        format!("containers: [{{name: app, resources: {{requests: {{cpu: {cpu}, memory: 1Gi}}}}}}]")
    };
    let mut scenario =
        scenario(&[deployment("small", 3, &container(1)), deployment("whole", 1, &container(14))]);
    let types = requirement("node.kubernetes.io/instance-type", &["m5.large", "m5.4xlarge"]);
    scenario.pool().requirements[0] = types;
    scenario.settings.worst_case = WorstCase::Contingency;
    let plan = scenario.apply();
    assert_eq!(plan.capacity.pods.unschedulable, 0);
    assert_eq!(scenario.plan().summary.add, 0);
}

/// With the pods of `z` last, those of `a` are on every node, whatever nodes are added.
fn not_placeable_in_all_orders() -> Scenario {
    let patient =
        format!("priority: 500, preemptionPolicy: Never, {}, {}", containers(1_700), avoids("a"));
    let mut scenario =
        scenario(&[deployment("a", 24, &containers(450)), deployment("z", 8, &patient)]);
    scenario.settings.worst_case = WorstCase::Contingency;
    scenario
}

#[test]
fn orders_by_priority_place_pods_that_no_fleet_places_in_all_orders() {
    let solution = not_placeable_in_all_orders().solve();
    assert_eq!(unschedulable(&solution), 0);
    let passed = |part: &str| solution.target.simulated_runs.iter().any(|run| run.contains(part));
    assert!(passed("interleaved") && !passed("never-preempting-last"));
    assert_eq!(messages(&solution, "stay pending").len(), 1, "{:?}", solution.refusals);
}

/// The nodes for likely orders come after the Spot nodes were distributed.
#[test]
fn spot_nodes_for_likely_orders_share_offerings_or_a_note_says_so() {
    let mut scenario = not_placeable_in_all_orders();
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    scenario.desired.max_offering_share = Some(50_000);
    let solution = scenario.solve();
    let mut by_offering = std::collections::BTreeMap::new();
    let launches = &solution.target.launches;
    for launch in launches {
        *by_offering.entry((&launch.node.instance_type, &launch.node.zone)).or_insert(0) += 1;
    }
    let most = by_offering.values().copied().max().unwrap_or(0);
    let note = format!("{most} of {} Spot nodes", launches.len());
    assert!(
        most * 2 <= launches.len() || messages(&solution, &note).len() == 1,
        "{by_offering:?} {:?}",
        solution.refusals
    );
}
