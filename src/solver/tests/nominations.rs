//! Fleets whose pods are nominated to their nodes.

use super::pod_rules::{deployment, scenario};
use crate::model::units::MicroUsd;
use crate::solver::TargetFleet;

/// Returns a fleet of small pods that the scheduler spreads over all nodes, so that later large
/// pods find no node with enough room.
fn target(steer: bool) -> TargetFleet {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let small = deployment("a", 8, &containers(450));
    let large = deployment("b", 6, &containers(3_400));
    let mut scenario = scenario(&[small, large]);
    scenario.settings.steer = steer;
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
    assert!(price(&steered) + without.hourly >= price(&free), "{without:?}");
}

#[test]
fn every_pod_of_a_nominated_fleet_is_placed() {
    let steered = target(true);
    let placed: u32 = steered.placements.values().flat_map(|places| places.values()).sum();
    assert_eq!(placed, 14);
}
