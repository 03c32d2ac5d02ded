//! Compares launch options with their definition by the names of instance types.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::model::desired::{ReservationTerm, WorstCase};
use crate::model::observed::Reservation;
use crate::model::requirement::label;
use crate::solver::alternatives::{AlternativeCandidates, choose_alternatives};
use crate::solver::converge::Passes;
use crate::solver::initial_fleet::initial_fleet;
use crate::solver::packing_model::PackingModel;
use crate::solver::simulation::Simulation;
use crate::solver::strategy::SolvedFleet;
use crate::solver::{DriftedNodes, Prepared, topology};
use crate::testing::{Scenario, requirement};

const TYPES: [&str; 7] =
    ["c5.large", "m5.large", "m6a.large", "m6g.large", "m5.xlarge", "m6g.xlarge", "m5.2xlarge"];

/// Number of random inputs.
const CASES: u64 = 6;

/// Returns the offers of the pool of a scenario.
fn offers(scenario: &Scenario) -> Vec<Offer> {
    scenario.with_input(|input| Prepared::new(input, &DriftedNodes::default()).offers.list)
}

#[test]
fn offers_are_ordered_by_price_then_type_then_zone_then_index() {
    let mut scenario = Scenario::new(&["m5.large"], 500, 64);
    scenario.scale(1);
    let offer = offers(&scenario).swap_remove(0);
    let with = |(price, kind, zone): (i64, &str, &str)| {
        let mut offer = offer.clone();
        offer.node.price = MicroUsd(price);
        (offer.node.instance_type, offer.node.zone) = (kind.into(), zone.into());
        offer
    };
    let drawn = [
        (2, "m5.large", "b"),
        (1, "r5.large", "b"),
        (1, "c5.large", "b"),
        (1, "c5.large", "a"),
        (1, "r5.large", "a"),
        (1, "c5.large", "b"),
    ];
    let offers: Vec<Offer> = drawn.into_iter().map(with).collect();
    let order = OfferOrder::new(&offers);
    assert_eq!(order.ranks, [5, 4, 1, 0, 3, 2]);
    let names: Vec<&str> = order.names.iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["c5.large", "m5.large", "r5.large"]);
    assert_eq!(order.types, [1, 2, 0, 0, 2, 0]);
}

/// Returns true if a node of the class holds the pods. No type here has special hardware.
fn holds_plainly(class: &OfferClass, node: &PackedNode, requested: &[i64]) -> bool {
    let admits = node.pods.keys().all(|pods| class.admits[*pods]);
    admits && requested.iter().zip(&class.room).all(|(amount, room)| amount <= room)
}

/// Returns the offers of candidates, by the plain definition.
fn plain_candidates(
    builder: &TargetBuilder,
    node: &PackedNode,
    limits: &RemainingLimits,
    together: i64,
) -> Vec<usize> {
    let (model, offers) = (builder.model, builder.offers);
    let selected = &model.offer_classes[node.offer_class];
    let requested = builder.total_requests(node);
    let classes = model.offer_classes.iter().enumerate().filter(|(index, class)| {
        class.pool == selected.pool
            && !class.is_reserved
            && holds_plainly(class, node, &requested)
            && limits.allows_swap(node.offer_class, *index)
            && limits.allows_swaps(node.offer_class, *index, together)
    });
    let mut found: Vec<usize> = classes.flat_map(|(_, class)| class.offers.clone()).collect();
    found.sort_by_key(|index| {
        let node = &offers[*index].node;
        (node.price, &node.instance_type, &node.zone, *index)
    });
    found
}

/// Returns the reasons of rejections, each with the number of types, by the plain definition. A
/// reason that concerns the price names the cheapest type.
fn plain_rejections(
    builder: &TargetBuilder,
    node: &PackedNode,
    new: &NewNode,
) -> Vec<(String, usize)> {
    let (model, offers) = (builder.model, builder.offers);
    let selected = &model.offer_classes[node.offer_class];
    let requested = builder.total_requests(node);
    let alternatives = new.alternatives.iter();
    let mut used: BTreeSet<_> =
        alternatives.map(|other| (&other.instance_type, other.capacity_type)).collect();
    used.insert((&new.instance_type, new.capacity_type));
    let mut fitting = BTreeSet::from([&offers[selected.offers[0]].node.instance_type]);
    let (mut too_tight, mut too_small, mut not_allowed, mut used_up) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut equal, mut dearer) = (BTreeMap::new(), BTreeMap::new());
    for (index, class) in model.offer_classes.iter().enumerate() {
        if class.pool != selected.pool {
            continue;
        }
        let other = &offers[class.offers[0]].node;
        let kind = &other.instance_type;
        match (builder.allows(class, node), has_room(class, &requested)) {
            (true, true) => fitting.insert(kind),
            (true, false) => too_small.insert(kind),
            (false, _) => not_allowed.insert(kind),
        };
        if !holds_plainly(class, node, &requested) {
            continue;
        }
        if class.is_reserved {
            if !selected.is_reserved {
                used_up.insert(kind);
            }
        } else if class.price < selected.price {
            too_tight.insert(kind);
        } else if index != node.offer_class && !used.contains(&(kind, other.capacity_type)) {
            let types = if other.price == new.price { &mut equal } else { &mut dearer };
            let least = types.entry(kind).or_insert(other.price);
            *least = other.price.min(*least);
        }
    }
    not_allowed.retain(|kind| !fitting.contains(kind) && !too_small.contains(kind));
    too_small.retain(|kind| !fitting.contains(kind));
    dearer.retain(|kind, _| !equal.contains_key(kind));
    let by_price = [("no-cheaper", equal), ("dearer", dearer)].into_iter();
    let by_price = by_price.filter_map(|(reason, types)| {
        let (kind, price) = types.iter().min_by_key(|(kind, price)| (**price, **kind))?;
        Some((format!("{reason} from {kind} at ${}/h", price.rounded(4)), types.len()))
    });
    let others = [
        ("too-tight", too_tight),
        ("too-small", too_small),
        ("not-allowed", not_allowed),
        ("reservation-full", used_up),
    ];
    let others = others.into_iter().map(|(reason, types)| (format!("{reason} "), types.len()));
    by_price.chain(others.filter(|(_, types)| *types > 0)).collect()
}

/// Returns rejections as [`plain_rejections`] does.
fn reasons(rejections: &[Rejection]) -> Vec<(String, usize)> {
    let reason = |rejection: &Rejection| {
        let cheapest = rejection.detail.strip_prefix("holds the same pods, ").unwrap_or_default();
        let count = usize::try_from(rejection.count).expect("few types");
        (format!("{} {cheapest}", rejection.reason), count)
    };
    rejections.iter().map(reason).collect()
}

/// Compares the options of each packed node on each offer class that holds its pods. Returns the
/// reasons of the rejections.
fn compare_options(builder: &TargetBuilder) -> BTreeSet<String> {
    let (order, limits) = (OfferOrder::new(builder.offers), builder.limits());
    let index_of = |offer: &&Offer| {
        let found = builder.offers.iter().position(|known| std::ptr::eq(known, *offer));
        found.expect("an offer of the problem")
    };
    let mut seen = BTreeSet::new();
    for packed in &builder.outcome.fleet.layout.packing.new_nodes {
        let requested = builder.total_requests(packed);
        for (index, class) in builder.model.offer_classes.iter().enumerate() {
            if !holds_plainly(class, packed, &requested) {
                continue;
            }
            let node = PackedNode { offer_class: index, ..packed.clone() };
            for together in [1, 3] {
                let options = builder.node_options(&node, &order, &limits, together);
                let candidates: Vec<usize> = options.candidates.iter().map(index_of).collect();
                let expected = plain_candidates(builder, &node, &limits, together);
                assert_eq!(candidates, expected, "{together} of {node:?}");
                let alone = builder.offers[class.offers[0]].node.clone();
                let mut new = alone.clone();
                let tied_keys = &BTreeSet::new();
                let candidates = AlternativeCandidates { offers: &options.candidates, tied_keys };
                choose_alternatives(&mut new, &candidates, &BTreeMap::new());
                for new in [alone, new] {
                    let rejections = builder.rejections(&options, &order, &new);
                    let expected = plain_rejections(builder, &node, &new);
                    assert_eq!(reasons(&rejections), expected, "{node:?} {:?}", new.alternatives);
                    seen.extend(rejections.into_iter().map(|rejection| rejection.reason));
                }
            }
        }
    }
    seen
}

/// Compares the options of the fleet of an input, as [`compare_options`].
fn compare_fleet(passes: &Passes, model: &PackingModel) -> BTreeSet<String> {
    let Passes { input, demand, offers, admission, existing, budgets, .. } = *passes;
    let problem = passes.problem(&demand.groups, existing, model);
    let outcome = SolvedFleet::new(initial_fleet(&mut Simulation::new(&problem)));
    let topology = passes.topology_input(&demand.groups, existing);
    let tied_keys = topology::tied_keys(topology, &demand.daemons);
    compare_options(&TargetBuilder {
        input,
        tied_keys: &tied_keys,
        model,
        groups: &demand.groups,
        offers,
        admission,
        existing,
        budgets,
        outcome: &outcome,
        settings: &input.settings,
    })
}

/// Reserves an instance of a type, and permits the pool to use it.
fn reserve_instance(scenario: &mut Scenario, instance_type: &str) {
    let term = ReservationTerm { id: Some("cr-1".into()), ..ReservationTerm::default() };
    scenario.node_class().reservations = vec![term];
    scenario.pool().requirements[1] =
        requirement("karpenter.sh/capacity-type", &["on-demand", "spot", "reserved"]);
    let reservation: Reservation = serde_json::from_value(serde_json::json!({
        "id": "cr-1", "instance_type": instance_type, "zone": "us-east-1a", "available": 1,
    }))
    .expect("a reservation");
    scenario.observed.reservations.insert(reservation.id.clone(), reservation);
}

#[test]
fn options_are_those_of_the_plain_definition() {
    let mut seen = BTreeSet::new();
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        // Pods of the second size fit on no `large` type.
        let cpu = if seed % 2 == 0 { 600 } else { 2_500 };
        let mut scenario = Scenario::new(&TYPES, cpu, 256);
        scenario.settings.worst_case = WorstCase::Contingency;
        scenario.pool().requirements[1] =
            requirement("karpenter.sh/capacity-type", &["on-demand", "spot"]);
        if seed % 3 > 0 {
            let arch = label("kubernetes.io/arch", "amd64");
            scenario.template().spec.node_selector.extend([arch]);
        }
        if seed % 3 == 2 {
            reserve_instance(&mut scenario, "m5.xlarge");
        }
        if seed >= CASES / 2 {
            scenario.pool().limits.resources = [("cpu".into(), 16_000)].into();
        }
        // Few prices, so that many offerings cost the same.
        let offerings = scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings);
        for offering in offerings {
            offering.price = Some(MicroUsd(rng.random_range(8..12) * 10_000));
        }
        scenario.scale(4);
        seen.extend(scenario.with_passes(|passes, model| compare_fleet(passes, &model)));
    }
    let expected =
        ["dearer", "no-cheaper", "not-allowed", "reservation-full", "too-small", "too-tight"];
    assert_eq!(seen, expected.map(str::to_owned).into());
}
