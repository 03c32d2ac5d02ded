//! Tests with mutated plans of random worlds, which compare verification with the kube-scheduler
//! model.

use super::random_worlds::{Random, random_repository, random_template};
use super::*;
use crate::catalog::allocation;
use crate::demand::Demand;
use crate::model::ids::{Address, workload_key};
use crate::model::requirement::key;
use crate::plan::wire::{Action, PlacementRow};
use crate::plan::{Facts, Violation, verify};
use crate::testing::PlacementSimulation;
use crate::testing::pods::{affinity_term, host_port, topology_spread};

/// Number of worlds.
const WORLDS: u64 = 20;
/// Number of mutations of each plan.
const MUTATIONS: u32 = 6;

/// Returns the template with a label of its own and a random rule between its pods.
fn with_rules(random: &mut Random, name: &str, mut template: PodTemplate) -> PodTemplate {
    template.labels = [label("app", name)].into();
    let topology = random.pick(&[key::ZONE, key::HOSTNAME]);
    let term = affinity_term(topology, name);
    let spec = &mut template.spec;
    match random.below(8) {
        0 => spec.pod_anti_affinity.required = vec![term],
        1 => spec.pod_affinity.required = vec![term],
        2 => spec.topology_spread = vec![topology_spread(topology, 1, name)],
        3 => spec.containers[0].host_ports = vec![host_port(8080, "TCP", "")],
        _ => {}
    }
    template
}

/// Returns the violations of `plan` after recomputing its identity.
fn violations_of(scenario: &Scenario, demand: &Demand, plan: &mut Plan) -> Vec<Violation> {
    crate::plan::set_identity(plan);
    let Scenario { desired, observed, catalog, .. } = scenario;
    verify(plan, &Facts { desired, demand, observed, catalog, allocation })
}

fn pick_one<'a, T>(random: &mut Random, list: &'a [T]) -> Option<&'a T> {
    let index = random.below(u32::try_from(list.len()).expect("a short list").max(1));
    list.get(usize::try_from(index).expect("an index of a short list"))
}

/// Moves a new pod to a random other node. Returns false if there is none.
fn move_pod(random: &mut Random, plan: &mut Plan) -> bool {
    let rows = plan.resource_changes.iter().filter(|row| row.change.after.is_some());
    let rows: Vec<Address> = rows.map(|row| row.address.clone()).collect();
    let capacity = &mut plan.capacity;
    let Some(from) = pick_one(random, &capacity.placements).cloned() else { return false };
    let others: Vec<Address> = rows.into_iter().filter(|to| *to != from.address).collect();
    let Some(to) = pick_one(random, &others) else { return false };
    let name = workload_key(&from.workload);
    for row in &mut capacity.explain {
        if row.address == from.address {
            let pods = row.pods.get_mut(name.as_str()).expect("a placed pod");
            *pods -= 1;
            row.pods.retain(|_, pods| *pods > 0);
        } else if row.address == *to {
            *row.pods.entry(name.as_str().into()).or_default() += 1;
        }
    }
    let mut placements: BTreeMap<(WorkloadId, Address), u32> = BTreeMap::new();
    for PlacementRow { workload, address, pods } in std::mem::take(&mut capacity.placements) {
        placements.insert((workload, address), pods);
    }
    *placements.get_mut(&(from.workload.clone(), from.address)).expect("a placement to move") -= 1;
    *placements.entry((from.workload, to.clone())).or_default() += 1;
    let rows = placements.into_iter().filter(|(_, pods)| *pods > 0);
    let row = |((workload, address), pods)| PlacementRow { workload, address, pods };
    capacity.placements = rows.map(row).collect();
    true
}

/// Changes a launch to a random other zone. Returns false if there is none.
fn move_node(random: &mut Random, scenario: &Scenario, plan: &mut Plan) -> bool {
    let mut launches: Vec<_> = plan
        .resource_changes
        .iter_mut()
        .filter(|row| row.change.actions == [Action::Create])
        .filter_map(|row| row.change.after.as_mut())
        .collect();
    let index = random.below(u32::try_from(launches.len()).expect("a short list").max(1));
    let Some(after) = launches.get_mut(usize::try_from(index).expect("an index of a short list"))
    else {
        return false;
    };
    let kind = &scenario.catalog.types[after.instance_type.as_ref().expect("a launch has a type")];
    let others = kind.offerings.iter().filter(|offering| {
        Some(&offering.zone) != after.zone.as_ref()
            && Some(offering.capacity_type) == after.capacity_type
    });
    let others: Vec<_> = others.collect();
    let Some(other) = pick_one(random, &others) else { return false };
    after.zone = Some(other.zone.clone());
    after.zone_id = Some(other.zone_id.clone());
    after.labels.extend([
        label(key::ZONE, other.zone.as_str()),
        label(key::ZONE_ID, other.zone_id.as_str()),
    ]);
    true
}

#[test]
fn mutated_plan_is_reported_if_unreachable() {
    let (mut reached, mut reported) = (0_u32, 0_u32);
    for seed in 1..=WORLDS {
        let mut random = Random::new(seed);
        let mut scenario = random_repository(&mut random);
        let pools = u32::try_from(scenario.desired.pools.len()).expect("at most three");
        for name in ["w0", "w1", "w2", "w3"] {
            let template = random_template(&mut random, pools);
            let template = with_rules(&mut random, name, template);
            scenario.deploy(name, random.below(5), template);
        }
        if random.one_in(2) {
            scenario.apply();
            scenario.deploy("w0", 6, template(600, 500));
        }
        let demand = scenario.demand();
        let sound = scenario.plan();
        for number in 0..MUTATIONS {
            let at = format!("seed {seed} number {number}");
            let mut plan = sound.clone();
            let mutated = match number % 2 {
                0 => move_pod(&mut random, &mut plan),
                _ => move_node(&mut random, &scenario, &mut plan),
            };
            let found = violations_of(&scenario, &demand, &mut plan);
            let simulation = PlacementSimulation::new(&plan, &demand, &scenario.desired.namespaces);
            match simulation.is_reachable() {
                Some(true) => {
                    let fit = |violation: &&Violation| {
                        let bookkeeping = ["fit/daemons", "fit/placements"];
                        violation.rule.starts_with("fit/") && !bookkeeping.contains(&violation.rule)
                    };
                    assert_eq!(found.iter().find(fit), None, "{at}");
                    reached += u32::from(mutated);
                }
                Some(false) if !simulation.fits_at_end() => {
                    assert!(!found.is_empty(), "{at}: {plan:#?}");
                    reported += 1;
                }
                Some(false) | None => {}
            }
        }
    }
    assert!(reached > 10 && reported > 10, "{reached} reached, {reported} reported");
}

#[test]
fn plan_with_a_deleted_node_is_reported() {
    for seed in 1..=WORLDS {
        let mut random = Random::new(seed);
        let mut scenario = random_repository(&mut random);
        scenario.deploy("a", 5, template(600, 500));
        let demand = scenario.demand();
        let sound = scenario.plan();
        let rows: Vec<Address> = sound.resource_changes.iter().map(|r| r.address.clone()).collect();
        for deleted in rows {
            let mut plan = sound.clone();
            plan.resource_changes.retain(|row| row.address != deleted);
            plan.capacity.explain.retain(|row| row.address != deleted);
            plan.capacity.placements.retain(|row| row.address != deleted);
            plan.capacity.alternatives.retain(|row| row.address != deleted);
            let found = violations_of(&scenario, &demand, &mut plan);
            let is_reported = found.iter().any(|violation| violation.rule == "totals/group");
            assert!(is_reported, "seed {seed}: {deleted} is not reported: {found:?}");
        }
    }
}
