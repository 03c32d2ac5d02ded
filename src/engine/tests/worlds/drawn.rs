//! Worlds drawn by lot.

use std::collections::BTreeMap;

use super::{TYPES, bare, carry_out, changes, declare, deploy, id, on, pool, template, whole};
use crate::demand::{Demand, DemandMode};
use crate::ids::WorkloadKind;
use crate::manifest::Scale;
use crate::pod::{PodTemplate, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::requirement::label;
use crate::solve::Solution;
use crate::story::{Story, requirement};

/// A sequence of numbers that a seed decides (xorshift).
pub(super) struct Lot(u64);

impl Lot {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(bound)).expect("below a bound of 32 bits")
    }

    pub(super) fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        let bound = u32::try_from(list.len()).expect("a short list");
        list[usize::try_from(self.below(bound)).expect("an index of a short list")]
    }
}

/// One to three pools without limits, with types, weights and taints drawn by lot.
pub(super) fn drawn_repository(lot: &mut Lot) -> Story {
    const SOME: [&str; 7] =
        ["c5.large", "m5.large", "r5.large", "m5.xlarge", "c5.xlarge", "t3.medium", "c5.2xlarge"];
    let mut story = bare(&["m5.large"]);
    let proto = pool(&mut story).clone();
    story.desired.pools.clear();
    for number in 0..=lot.below(3) {
        let mut pool = proto.clone();
        pool.name = format!("p{number}").as_str().into();
        let types: Vec<&str> = (0..=lot.below(4)).map(|_| lot.of(&SOME)).collect();
        pool.requirements[0] = requirement(TYPES, &types);
        pool.labels = [label("type", pool.name.as_str())].into();
        pool.weight = lot.of(&[0, 0, 10, 50]);
        if lot.one_in(4) {
            let effect = TaintEffect::NoSchedule;
            pool.taints = vec![Taint { key: "dedicated".into(), value: "x".into(), effect }];
        }
        story.desired.pools.insert(pool.name.clone(), pool);
    }
    if lot.one_in(2) {
        let agent = id("agent", WorkloadKind::DaemonSet);
        declare(&mut story, agent, Scale::PerNode, template(50, 50));
    }
    story
}

pub(super) fn drawn_template(lot: &mut Lot, pools: u32) -> PodTemplate {
    let cpu = lot.of(&[50, 250, 600, 600, 1000, 1700]);
    let mut drawn = template(cpu, lot.of(&[64, 500, 500, 1500, 5000]));
    if lot.one_in(3) {
        drawn = on(&format!("p{}", lot.below(pools)), drawn);
    }
    if lot.one_in(3) {
        let operator = TolerationOperator::Exists;
        let key = "dedicated".into();
        drawn.spec.tolerations = vec![Toleration { key, operator, ..Toleration::default() }];
    }
    drawn
}

/// No pod that runs and is still wanted is left without a place.
fn assert_running_pods_keep_a_place(demand: &Demand, solution: &Solution, at: &str) {
    let left: BTreeMap<usize, u32> =
        solution.target.unplaced.iter().map(|u| (u.group, u.pods)).collect();
    for (index, group) in demand.groups.iter().enumerate() {
        let wanted = group.counts.planned;
        let runs = group.running.values().sum::<u32>().min(wanted);
        let placed = wanted.saturating_sub(left.get(&index).copied().unwrap_or(0));
        assert!(placed >= runs, "{at}: {} keeps {placed} of {runs}", group.workload);
    }
}

/// In worlds drawn by lot every plan passes the judge (`plan_of` asserts it), costs no less than
/// its bound, and leaves no running pod without a place.
///
/// Carrying a plan out should leave nothing to plan, and in these worlds it does today. It is no
/// law, though: the search is a heuristic. It takes its own answer as carried out and looks again,
/// but not without end, and from the world as it has become it may find a packing that it did not
/// reach from the world as it was. Such a second plan is sound, so the bound is not zero but one in
/// twenty; more than that is a search that no longer settles.
#[test]
fn drawn_worlds_get_sound_plans_that_seldom_leave_more_to_plan() {
    let (mut steps, mut unsettled) = (0_u32, Vec::new());
    for seed in 1..=12 {
        let mut lot = Lot::new(seed);
        let mut story = drawn_repository(&mut lot);
        let pools = u32::try_from(story.desired.pools.len()).expect("at most three");
        let templates = ["w0", "w1", "w2"].map(|name| (name, drawn_template(&mut lot, pools)));
        for step in 0..3 {
            let at = format!("seed {seed} step {step}");
            for (name, template) in &templates {
                if step == 0 || lot.one_in(2) {
                    deploy(&mut story, name, lot.below(9), template.clone());
                }
            }
            let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
            let solution = story.solve();
            assert_running_pods_keep_a_place(&demand, &solution, &at);
            let first = whole(&story);
            let cost = &first.capacity.cost;
            assert!(cost.lower_bound_hourly <= cost.hourly_after, "{at}: {cost:?}");
            carry_out(&mut story, &demand, &solution);
            let again = whole(&story);
            assert_eq!(again.capacity.pods.placed, first.capacity.pods.placed, "{at}");
            steps += 1;
            if changes(&again) != (0, 0) {
                unsettled.push(at);
            }
        }
    }
    let seldom = unsettled.len() * 20 <= usize::try_from(steps).expect("few steps");
    assert!(seldom, "{} of {steps}: {unsettled:?}", unsettled.len());
}
