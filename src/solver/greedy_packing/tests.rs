//! Look-ahead with and without known ends. Limits that allow every node exclude known ends.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::*;
use crate::solver::converge::Passes;
use crate::solver::offer_admission::OfferAdmission;
use crate::solver::{DriftedNodes, Input, Prepared};
use crate::testing::Scenario;

const TYPES: [&str; 7] =
    ["c5.large", "c5.xlarge", "m5.large", "m5.xlarge", "m5.2xlarge", "r5.large", "r5.2xlarge"];

/// Requests of the pods of each workload: CPU in thousandths, and MiB of memory.
const REQUESTS: [(i64, i64); 5] = [(250, 512), (400, 3000), (900, 800), (1500, 1500), (100, 64)];

/// Number of random sets of pods for each work limit.
const PACKINGS: usize = 15;

/// Work limits of the look-ahead. Most packings reach the first one, and none the last one.
const WORK_LIMITS: [u64; 3] = [500, 5_000, u64::MAX];

/// A packing, with its work and the number of its known ends.
struct CountedPacking {
    packing: Packing,
    work: u64,
    known_ends: usize,
}

fn pack_and_count(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
    total_max: u64,
) -> CountedPacking {
    let all: Vec<usize> = (0..model.offer_classes.len()).collect();
    let (work, ends) = (Cell::new(0), RefCell::default());
    let mut tier = WeightTier {
        model,
        undominated: &model.undominated,
        all: &all,
        limits: limits.clone(),
        ahead: LookAhead { total_max, ..LookAhead::DEEP },
        work: &work,
        ends: &ends,
        ranks: None,
    };
    let mut packing = Packing { new_nodes: Vec::new(), left: wanted.to_vec() };
    tier.run(&mut packing);
    CountedPacking { packing, work: work.get(), known_ends: ends.borrow().len() }
}

/// Packs random pods of every workload.
fn pack_random_pods(input: &Input) -> Vec<CountedPacking> {
    let Prepared { split, offers, existing, budgets, .. } =
        Prepared::new(input, &DriftedNodes::default());
    let (demand, list) = (&split.demand, &offers.list);
    let admission = OfferAdmission::new(&demand.groups, list);
    let passes = Passes::new(input, demand, list, &admission, &existing, &budgets);
    let model = passes.model(&demand.groups, &existing);
    let problem = passes.problem(&demand.groups, &existing, &model);
    let mut rng = Pcg64::new(1, 1);
    let mut packings = Vec::new();
    for total_max in WORK_LIMITS {
        for _ in 0..PACKINGS {
            let pods = model.classes.iter().map(|_| rng.random_range(0..12));
            let wanted: Vec<u32> = pods.collect();
            packings.push(pack_and_count(&model, &wanted, &problem.limits, total_max));
        }
    }
    packings
}

#[test]
fn known_ends_change_neither_a_packing_nor_its_work() {
    let mut scenario = Scenario::without_workloads(&TYPES);
    for (index, (cpu, memory)) in REQUESTS.into_iter().enumerate() {
        let template = Scenario::new(&TYPES, cpu, memory).template().clone();
        scenario.deploy(&format!("web-{index}"), 20, template);
    }
    let known = scenario.with_input(pack_random_pods);
    scenario.pool().limits.nodes = Some(1_000_000);
    let packed = scenario.with_input(pack_random_pods);
    for (known, packed) in known.iter().zip(&packed) {
        assert_eq!(known.packing.new_nodes, packed.packing.new_nodes);
        assert_eq!(known.packing.left, packed.packing.left);
        assert_eq!(known.work, packed.work);
        assert_eq!(packed.known_ends, 0, "a limit may change an end");
    }
    let unlimited = &known[(WORK_LIMITS.len() - 1) * PACKINGS..];
    let ends: usize = unlimited.iter().map(|packing| packing.known_ends).sum();
    assert!(ends > PACKINGS, "{ends} ends of {PACKINGS} packings");
}
