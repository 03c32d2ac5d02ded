//! Tests with random repositories and clusters.

use std::collections::BTreeMap;

use super::{TYPES, changes, id, on};
use crate::demand::Demand;
use crate::model::desired::Scale;
use crate::model::ids::WorkloadKind;
use crate::model::pod::{PodTemplate, Toleration, TolerationOperator};
use crate::model::requirement::label;
use crate::solver::Solution;
use crate::testing::pods::{no_schedule, template};
use crate::testing::{Scenario, requirement};

/// Pseudo-random sequence of a seed (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(bound)).expect("below a bound of 32 bits")
    }

    pub(super) fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        let bound = u32::try_from(list.len()).expect("a short list");
        list[usize::try_from(self.below(bound)).expect("an index of a short list")]
    }
}

/// Returns a scenario with one to three pools, with random instance types, weights and taints.
pub(super) fn random_repository(random: &mut Random) -> Scenario {
    const TYPE_NAMES: [&str; 7] =
        ["c5.large", "m5.large", "r5.large", "m5.xlarge", "c5.xlarge", "t3.medium", "c5.2xlarge"];
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    let template_pool = scenario.pool().clone();
    scenario.desired.pools.clear();
    for number in 0..=random.below(3) {
        let mut pool = template_pool.clone();
        pool.name = format!("p{number}").as_str().into();
        let types: Vec<&str> = (0..=random.below(4)).map(|_| random.pick(&TYPE_NAMES)).collect();
        pool.requirements[0] = requirement(TYPES, &types);
        pool.labels = [label("type", pool.name.as_str())].into();
        pool.weight = random.pick(&[0, 0, 10, 50]);
        if random.one_in(4) {
            pool.taints = vec![no_schedule("dedicated", "x")];
        }
        scenario.desired.pools.insert(pool.name.clone(), pool);
    }
    if random.one_in(2) {
        let agent = id("agent", WorkloadKind::DaemonSet);
        scenario.declare(agent, Scale::PerNode, template(50, 50));
    }
    scenario
}

pub(super) fn random_template(random: &mut Random, pools: u32) -> PodTemplate {
    let cpu = random.pick(&[50, 250, 600, 600, 1000, 1700]);
    let mut pod_template = template(cpu, random.pick(&[64, 500, 500, 1500, 5000]));
    if random.one_in(3) {
        pod_template = on(&format!("p{}", random.below(pools)), pod_template);
    }
    if random.one_in(3) {
        let operator = TolerationOperator::Exists;
        let key = "dedicated".into();
        pod_template.spec.tolerations = vec![Toleration { key, operator, ..Toleration::default() }];
    }
    pod_template
}

/// Checks that every running and still planned pod remains schedulable.
fn assert_running_pods_stay_schedulable(demand: &Demand, solution: &Solution, at: &str) {
    let left: BTreeMap<usize, u32> =
        solution.target.unschedulable.iter().map(|u| (u.group, u.pods)).collect();
    for (index, group) in demand.groups.iter().enumerate() {
        let wanted = group.counts.planned;
        let runs = group.running.values().sum::<u32>().min(wanted);
        let placed = wanted.saturating_sub(left.get(&index).copied().unwrap_or(0));
        assert!(placed >= runs, "{at}: {} places {placed} of {runs}", group.workload);
    }
}

/// In random worlds, every plan passes verification (`Scenario::plan` asserts it), costs at least its
/// lower bound, and keeps running pods schedulable.
///
/// A plan after an apply should have no changes, and in these worlds it has none today. The search
/// is a heuristic, so this is not guaranteed. It assumes its own result as applied and searches
/// again, but only a bounded number of times. From the changed world it may find a packing that it
/// missed before. Such a second plan is valid, so the bound is one in twenty instead of zero. A
/// higher rate means that the search no longer converges.
#[test]
fn random_plans_are_valid_and_mostly_converge() {
    let (mut steps, mut changing_steps) = (0_u32, Vec::new());
    for seed in 1..=12 {
        let mut random = Random::new(seed);
        let mut scenario = random_repository(&mut random);
        let pools = u32::try_from(scenario.desired.pools.len()).expect("at most three");
        let templates = ["w0", "w1", "w2"].map(|name| (name, random_template(&mut random, pools)));
        for step in 0..3 {
            let at = format!("seed {seed} step {step}");
            for (name, template) in &templates {
                if step == 0 || random.one_in(2) {
                    scenario.deploy(name, random.below(9), template.clone());
                }
            }
            let demand = scenario.demand();
            let solution = scenario.solve();
            assert_running_pods_stay_schedulable(&demand, &solution, &at);
            let first = scenario.plan();
            let cost = &first.capacity.cost;
            assert!(cost.lower_bound_hourly <= cost.hourly_after, "{at}: {cost:?}");
            scenario.carry_out(&solution);
            let again = scenario.plan();
            assert_eq!(again.capacity.pods.placed, first.capacity.pods.placed, "{at}");
            steps += 1;
            if changes(&again) != (0, 0) {
                changing_steps.push(at);
            }
        }
    }
    let is_rare = changing_steps.len() * 20 <= usize::try_from(steps).expect("few steps");
    assert!(is_rare, "{} of {steps}: {changing_steps:?}", changing_steps.len());
}
