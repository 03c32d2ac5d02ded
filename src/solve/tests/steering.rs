//! Fleets whose pods are nominated to their nodes.

use super::rules::{deployment, story};
use crate::solve::Target;
use crate::units::MicroUsd;

/// Small pods that the scheduler spreads over all nodes, so that large ones which come later find
/// none with enough room.
fn target(steer: bool) -> Target {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let small = deployment("a", 8, &containers(450));
    let large = deployment("b", 6, &containers(3_400));
    let mut story = story(&[small, large]);
    story.settings.steer = steer;
    story.solve().target
}

fn price(target: &Target) -> MicroUsd {
    target.launches.iter().map(|launch| launch.node.price).sum()
}

#[test]
fn a_steered_fleet_costs_what_its_packing_does_and_says_what_it_counts_on() {
    let (free, steered) = (target(false), target(true));
    assert_eq!((free.unplaced.len(), steered.unplaced.len()), (0, 0));
    assert_eq!(free.unsteered, None);
    assert_eq!(price(&steered), steered.packed);
    assert!(price(&steered) < price(&free), "{:?} {:?}", price(&steered), price(&free));
    let without = steered.unsteered.expect("it is steered");
    assert!(without.pending > 0 && without.nodes > 0, "{without:?}");
    assert!(price(&steered) + without.hourly >= price(&free), "{without:?}");
}

#[test]
fn each_pod_of_a_steered_fleet_has_its_place() {
    let steered = target(true);
    let placed: u32 = steered.placements.values().flat_map(|places| places.values()).sum();
    assert_eq!(placed, 14);
}
