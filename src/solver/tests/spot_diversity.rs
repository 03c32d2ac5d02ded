//! The share of Spot nodes in one instance type and zone.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::model::market::alternative_price_max;
use crate::model::units::MicroUsd;
use crate::solver::TargetFleet;
use crate::testing::{Scenario, requirement};

const HALF: Option<u32> = Some(50_000);
const TYPES: [&str; 3] = ["m5.large", "m6i.large", "m5a.large"];

/// Returns one pod for each node of a Spot pool. Each offering has a price of its own, and the
/// first one is the cheapest.
fn spot(nodes: u32, types: &[&str], step: i64) -> Scenario {
    let mut scenario = Scenario::new(types, 1_500, 64);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    let mut price = 30_000;
    for name in types {
        let kind = scenario.catalog.types.get_mut(*name).expect("a type");
        for offering in &mut kind.offerings {
            offering.price = Some(MicroUsd(price));
            price += step;
        }
    }
    scenario.desired.max_offering_share = HALF;
    scenario.scale(nodes);
    scenario
}

/// Number of launches by planned offering, and by every offering that EC2 may choose.
type ByOffering = BTreeMap<(String, String), u32>;

fn by_offering(target: &TargetFleet) -> (ByOffering, ByOffering) {
    let (mut planned, mut possible) = (ByOffering::new(), ByOffering::new());
    for launch in &target.launches {
        let node = &launch.node;
        let own = (node.instance_type.to_string(), node.zone.to_string());
        *planned.entry(own.clone()).or_insert(0) += 1;
        let spot = node.alternatives.iter().filter(|other| other.capacity_type.is_spot());
        let others = spot.map(|other| (other.instance_type.to_string(), other.zone.to_string()));
        for offering in others.chain([own]) {
            *possible.entry(offering).or_insert(0) += 1;
        }
    }
    (planned, possible)
}

fn max(counts: &ByOffering) -> u32 {
    counts.values().copied().max().unwrap_or(0)
}

#[test]
fn half_of_the_spot_nodes_may_be_in_one_offering() {
    for (nodes, most) in [(3, 3), (4, 2), (5, 2), (10, 5)] {
        let solution = spot(nodes, &TYPES, 100).solve();
        let (planned, possible) = by_offering(&solution.target);
        assert_eq!(max(&planned), most, "{nodes}: {planned:?}");
        assert!(nodes < 4 || max(&possible) <= most, "{nodes}: {possible:?}");
        assert_eq!(solution.refusals, [""; 0], "{nodes}");
    }
}

#[test]
fn without_a_share_all_nodes_are_in_the_cheapest_offering() {
    let mut scenario = spot(10, &TYPES, 100);
    scenario.desired.max_offering_share = None;
    assert_eq!(max(&by_offering(&scenario.solve().target).0), 10);
    let mut on_demand = Scenario::new(&["m5.large"], 1_500, 64);
    on_demand.desired.max_offering_share = HALF;
    on_demand.scale(8);
    let launches = on_demand.solve().target.launches;
    assert_eq!(launches.len(), 8);
    assert!(launches.iter().all(|launch| !launch.node.alternatives.is_empty()));
}

#[test]
fn offerings_beyond_the_markup_do_not_share_and_a_note_says_so() {
    // Each offering costs twice as much as the first.
    let solution = spot(6, &TYPES[..1], 30_000).solve();
    assert_eq!(max(&by_offering(&solution.target).0), 6);
    let [note] = &solution.refusals[..] else { panic!("{:?}", solution.refusals) };
    assert!(note.contains("6 of 6 Spot nodes are m5.large in us-east-1a"), "{note}");
    assert!(note.contains("allows 3"), "{note}");
}

#[test]
fn existing_nodes_count_and_stay() {
    let mut scenario = spot(4, &TYPES, 100);
    scenario.desired.max_offering_share = None;
    let first = scenario.solve();
    scenario.carry_out(&first);
    scenario.desired.max_offering_share = HALF;
    let resting = scenario.solve().target;
    assert_eq!((resting.launches.len(), resting.retires.len()), (0, 0));
    scenario.scale(8);
    let (planned, possible) = by_offering(&scenario.solve().target);
    // The existing four are half of eight.
    let cheapest = ("m5.large".to_owned(), "us-east-1a".to_owned());
    assert_eq!(planned.values().sum::<u32>(), 4);
    assert!(!possible.contains_key(&cheapest), "{possible:?}");
}

#[test]
fn distributed_fleets_are_at_rest() {
    for seed in 0..40 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let types = ["c5.large", "m5.large", "m6i.large", "m5a.large", "m5.xlarge"];
        let mut scenario = Scenario::new(&types, rng.random_range(300..1_500), 64);
        scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
        scenario.desired.max_offering_share = Some(rng.random_range(10_000..80_000));
        scenario.settings.steer = rng.random_bool(0.5);
        scenario.scale(rng.random_range(1..40));
        for offering in scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings) {
            let price = rng.random_range(60..140);
            offering.price = offering.price.map(|full| MicroUsd(full.0 * price / 300));
        }
        let first = scenario.solve();
        for launch in &first.target.launches {
            let (node, near) = (&launch.node, alternative_price_max(launch.node.price));
            assert!(node.alternatives.iter().all(|other| other.hourly <= near), "seed {seed}");
        }
        scenario.carry_out(&first);
        let next = scenario.solve().target;
        let moved = (next.launches.len(), next.retires.keys().collect::<Vec<_>>());
        assert_eq!(moved, (0, vec![]), "seed {seed}");
    }
}
