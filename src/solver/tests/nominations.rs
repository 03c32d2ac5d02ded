//! Fleets whose pods are nominated to their nodes.

use std::collections::BTreeMap;

use super::pod_rules::{deployment, scenario, zonal_database};
use crate::model::desired::WorstCase;
use crate::model::ids::NodeName;
use crate::model::units::MicroUsd;
use crate::solver::{NodeRef, Solution, TargetFleet};
use crate::testing::{Scenario, requirement};

/// Returns a fleet of small pods that the scheduler spreads over all nodes, so that later large
/// pods find no node with enough room.
fn target(steer: bool) -> TargetFleet {
    target_with(|scenario| scenario.settings.steer = steer)
}

fn target_with(change: impl FnOnce(&mut Scenario)) -> TargetFleet {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let small = deployment("a", 8, &containers(450));
    let large = deployment("b", 6, &containers(3_400));
    let mut scenario = scenario(&[small, large]);
    change(&mut scenario);
    scenario.solve().target
}

fn price(target: &TargetFleet) -> MicroUsd {
    target.launches.iter().map(|launch| launch.node.price).sum()
}

#[test]
fn nominated_fleet_costs_its_packing_and_reports_the_shortage() {
    let (free, steered) = (target(false), target(true));
    assert_eq!((free.unschedulable.len(), steered.unschedulable.len()), (0, 0));
    assert_eq!(free.without_nominations, None);
    assert_eq!(price(&steered), steered.packed_price);
    assert!(price(&steered) < price(&free), "{:?} {:?}", price(&steered), price(&free));
    let without = steered.without_nominations.expect("it is steered");
    assert!(without.pending > 0 && without.nodes > 0, "{without:?}");
    let likely = target_with(|scenario| scenario.settings.worst_case = WorstCase::Contingency);
    assert!(price(&steered) + without.hourly >= price(&likely), "{without:?}");
}

#[test]
fn pods_that_a_drain_evicts_are_not_nominated() {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let mut scenario =
        scenario(&[deployment("a", 8, &containers(450)), deployment("b", 6, &containers(3_400))]);
    scenario.settings.steer = true;
    let first = scenario.solve();
    scenario.carry_out(&first);
    scenario.drift();
    // kube-scheduler spreads the evicted small pods over the new nodes, so these need more room.
    let second = scenario.solve().target;
    assert_eq!(second.retires.len(), first.target.launches.len());
    assert!(price(&second) > price(&first.target), "{:?}", price(&second));
    assert!(second.unschedulable.is_empty());
}

/// Evicted pods are not nominated, so some orders need one node more than others.
#[test]
fn steered_rollout_launches_no_node_without_pods() {
    let spec = |memory: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: 300m, memory: {memory}Mi}}}}}}]"
        )
    };
    let avoids_a = "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                    [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: a}}}]}}";
    let apart = format!("{}, {avoids_a}", spec(6_000));
    let mut scenario = scenario(&[deployment("a", 1, &spec(512)), deployment("b", 2, &apart)]);
    scenario.pool().requirements[0] =
        requirement("node.kubernetes.io/instance-type", &["c5.large", "r5.large"]);
    scenario.settings.steer = true;
    let first = scenario.apply();
    assert_eq!((first.summary.add, first.capacity.pods.unschedulable), (2, 0));
    scenario.drift();
    let plan = scenario.plan();
    let summary = &plan.summary;
    assert_eq!((summary.add, summary.destroy, plan.capacity.pods.unschedulable), (2, 2, 0));
    let launches = plan.capacity.explain.iter().filter(|row| row.hourly_after.is_some());
    let pods: Vec<u32> = launches.map(|row| row.pods.values().sum()).collect();
    assert!(pods.iter().all(|pods| *pods > 0) && pods.iter().sum::<u32>() == 3, "{pods:?}");
    // Two nodes of the dearer type hold the pods in every order.
    let dearer =
        scenario.catalog.types["r5.large"].offerings.iter().filter_map(|of| of.price).max();
    let hourly = plan.capacity.cost.hourly_after;
    assert!(dearer.is_some_and(|price| hourly <= price + price), "{hourly:?} {dearer:?}");
}

#[test]
fn every_pod_of_a_nominated_fleet_is_placed() {
    let steered = target(true);
    let placed: u32 = steered.placements.values().flat_map(|places| places.values()).sum();
    assert_eq!(placed, 14);
}

#[test]
fn nominated_fleet_names_a_share_of_its_launches_as_contingency() {
    let steered = target(true);
    let contingency = steered.contingency.clone().expect("it is steered");
    let highest_price = steered.launches.iter().map(|launch| launch.node.price).max();
    assert_eq!((contingency.nodes, Some(contingency.hourly)), (1, highest_price));
    let [pool] = &contingency.pools[..] else { panic!("{contingency:?}") };
    assert_eq!((pool.nodes, Some(pool.node_hourly)), (1, highest_price));
    assert!(
        steered.launches.iter().all(|l| pool.instance_types.contains(&l.node.instance_type)),
        "{pool:?}"
    );
    assert_eq!(target(false).contingency, None, "every order finds a place");
    // The share is a setting, and the limits of the pool hold.
    let half = target_with(|scenario| {
        (scenario.settings.steer, scenario.settings.contingency_milli_percent) = (true, 50_000);
    });
    let nodes = u32::try_from(half.launches.len()).expect("few");
    assert_eq!(half.contingency.expect("it is steered").nodes, nodes.div_ceil(2));
    let full = target_with(|scenario| {
        scenario.settings.steer = true;
        scenario.pool().limits.nodes = Some(nodes);
    });
    assert_eq!(full.contingency, None, "no further node is allowed");
}

#[test]
fn unlikely_orders_cost_no_capacity_with_a_contingency() {
    // Large pods are declared first, so that only an order by size begins with the small ones.
    let solve = |[large, small]: [(u32, u32); 2], worst_case: WorstCase| {
        let group = |name: &str, (pods, cpu): (u32, u32)| {
            let requests = format!("{{cpu: {cpu}m, memory: 64Mi}}");
            let container = format!("{{name: app, resources: {{requests: {requests}}}}}");
            deployment(name, pods, &format!("containers: [{container}]"))
        };
        let mut scenario = scenario(&[group("a", large), group("b", small)]);
        scenario.settings.worst_case = worst_case;
        scenario.solve().target
    };
    let mut cheaper = 0;
    for pods in [[(4, 3_400), (8, 450)], [(6, 3_700), (30, 150)]] {
        let capacity = solve(pods, WorstCase::Capacity);
        let likely = solve(pods, WorstCase::Contingency);
        assert_eq!((likely.unschedulable.len(), &capacity.contingency), (0, &None));
        assert!(likely.simulated_runs.iter().all(|run| !run.contains("-first")));
        assert!(likely.simulated_runs.iter().any(|run| run.starts_with("interleaved")));
        cheaper += u32::from(price(&likely) < price(&capacity));
    }
    assert!(cheaper > 0, "orders by size cost nothing anywhere");
}

#[test]
fn nominated_fleet_is_simulated_in_every_order() {
    let steered = target_with(|scenario| {
        scenario.settings.worst_case = WorstCase::Contingency;
        scenario.settings.steer = true;
    });
    let usual = target(true);
    assert_eq!(steered.simulated_runs, usual.simulated_runs);
    assert_eq!(steered.without_nominations, usual.without_nominations);
}

/// Launches the nodes of a solution, with its pods planned on them, and returns the nodes.
fn launch_without_pods(scenario: &mut Scenario, solution: &Solution) -> Vec<NodeName> {
    let target = &solution.target;
    let nodes: Vec<_> =
        target.launches.iter().map(|launch| scenario.launch(&launch.node)).collect();
    let groups = scenario.demand().groups;
    for (group, places) in &target.placements {
        let workload = crate::model::ids::workload_key(&groups[*group].workload);
        for (place, count) in places {
            let NodeRef::Launch(index) = place else { panic!("{place:?}") };
            let node = &scenario.observed.nodes[&nodes[*index]];
            let instance = node.instance.clone().expect("it runs on one");
            let pods = scenario.observed.planned_pods.entry(instance).or_default();
            pods.insert(workload.clone(), *count);
        }
    }
    nodes
}

#[test]
fn planned_pods_with_zonal_volumes_keep_their_own_zones() {
    let mut scenario = scenario(&[zonal_database()]);
    let first = scenario.solve();
    launch_without_pods(&mut scenario, &first);
    let second = scenario.solve().target;
    assert!(second.launches.is_empty() && second.unschedulable.is_empty(), "{second:?}");
}

/// Without the last plan, a pod of the spread would go to a third zone.
#[test]
fn planned_pods_keep_their_zones_before_they_run() {
    let rule = "topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, \
                whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a}}, maxSkew: 1}]";
    let mut scenario = scenario(&[deployment("a", 3, rule)]);
    let zones = requirement("topology.kubernetes.io/zone", &["us-east-1a", "us-east-1b"]);
    scenario.pool().requirements.push(zones);
    let first = scenario.solve();
    launch_without_pods(&mut scenario, &first);
    scenario.pool().requirements.pop();
    let second = scenario.solve().target;
    assert!(second.launches.is_empty() && second.unschedulable.is_empty(), "{second:?}");
}

#[test]
fn empty_launched_nodes_receive_the_pods_of_the_last_plan() {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let mut scenario =
        scenario(&[deployment("a", 4, &containers(400)), deployment("b", 4, &containers(1_000))]);
    scenario.settings.steer = true;
    let first = scenario.solve();
    let nodes = launch_without_pods(&mut scenario, &first);
    let second = scenario.solve().target;
    assert!(second.launches.is_empty(), "{:?}", second.launches);
    let by_node = |placements: &BTreeMap<usize, BTreeMap<NodeRef, u32>>| -> BTreeMap<_, _> {
        let all = placements.iter().flat_map(|(group, places)| {
            places.iter().map(|(node_ref, count)| {
                let node = match node_ref {
                    NodeRef::Launch(index) => nodes[*index].clone(),
                    NodeRef::Existing(name) => name.clone(),
                };
                ((*group, node), *count)
            })
        });
        all.collect()
    };
    assert_eq!(by_node(&second.placements), by_node(&first.target.placements));
    // A pod that the plan did not know takes free room elsewhere, and moves none of them.
    scenario.observed.planned_pods.values_mut().next().expect("planned pods").clear();
    assert!(scenario.solve().target.launches.is_empty());
}
