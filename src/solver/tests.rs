//! Solver tests with the fleets of the source documents.

mod arrivals;
mod failures;
mod interfaces;
mod nominations;
mod pod_rules;
mod special_hardware;
mod spot_diversity;
mod stability;
mod suggested_change;
mod untagged;

use super::converge::Passes;
use super::packing_model::PackingModel;
use super::problem::Problem;
use super::with_passes;
use crate::model::requirement::label;
use crate::model::units::MicroUsd;
use crate::testing::Scenario;

impl Scenario {
    /// Returns the result of `use_passes` for the passes, and their packing model.
    pub(in crate::solver) fn with_passes<T>(
        &self,
        use_passes: impl FnOnce(&Passes, PackingModel) -> T,
    ) -> T {
        self.with_input(|input| with_passes(input, use_passes))
    }

    /// Returns the result of `use_problem` for the problem of placing all pods.
    pub(in crate::solver) fn with_problem<T>(&self, use_problem: impl FnOnce(&Problem) -> T) -> T {
        self.with_passes(|passes, model| {
            use_problem(&passes.problem(&passes.demand.groups, passes.existing, &model))
        })
    }
}

#[test]
fn workshop_sequence_never_costs_more_than_karpenter() {
    let mut scenario = Scenario::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024);
    assert_eq!(scenario.step(5), (vec!["m5.large".into()], MicroUsd(96_000)));
    assert!(scenario.step(12).1 <= MicroUsd(2 * 96_000));
    assert!(scenario.step(5).1 <= MicroUsd(96_000));
    assert_eq!(scenario.step(1), (vec!["c5.large".into()], MicroUsd(85_000)));
    assert_eq!(scenario.step(0), (vec![], MicroUsd(0)));
}

#[test]
fn provisioner_sequence_never_costs_more_than_karpenter() {
    let mut scenario = Scenario::new(&["c5.large", "m5.large", "m5.xlarge"], 1000, 0);
    assert!(scenario.step(12).1 <= MicroUsd(4 * 192_000));
    assert!(scenario.step(5).1 <= MicroUsd(2 * 192_000));
    assert_eq!(scenario.step(1), (vec!["c5.large".into()], MicroUsd(85_000)));
}

#[test]
fn limits_are_reached_but_never_exceeded() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(9);
    let pool = scenario.pool();
    pool.limits.resources = [("cpu".into(), 8_000)].into();
    let target = scenario.solve().target;
    assert_eq!(target.launches.len(), 2);
    assert_eq!(target.unschedulable[0].pods, 3);
    assert_eq!(target.unschedulable[0].rejections[0].reason, "limit-reached");
    assert!(
        target.unschedulable[0]
            .suggested_change
            .as_ref()
            .is_some_and(|n| n.contains("limits of NodePool default"))
    );
}

#[test]
fn types_are_too_small_only_if_the_rules_of_the_pods_allow_them() {
    let types = ["m6a.large", "m6a.xlarge", "m6a.2xlarge", "m6g.2xlarge"];
    for (key, value, cpu, expected) in [
        ("topology.kubernetes.io/zone", "us-east-1b", 500, &[("dearer", 3_u32)][..]),
        (
            "kubernetes.io/arch",
            "amd64",
            3_000,
            &[("dearer", 1), ("too-small", 1), ("not-allowed", 1)],
        ),
    ] {
        let mut scenario = Scenario::new(&types, cpu, 64);
        scenario.template().spec.node_selector.extend([label(key, value)]);
        scenario.scale(1);
        let target = scenario.solve().target;
        let rejected = target.launches[0].rejected.iter();
        let counts: Vec<(&str, u32)> = rejected.map(|of| (of.reason.as_str(), of.count)).collect();
        assert_eq!(counts, expected, "{key}");
    }
}

#[test]
fn oversized_pod_names_the_resource_and_a_larger_type() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 40 * 1024);
    scenario.scale(1);
    let unplaced = &scenario.solve().target.unschedulable[0];
    assert_eq!(unplaced.rejections[0].reason, "too-small");
    assert!(unplaced.rejections[0].detail.contains("memory: needs 40Gi"), "{unplaced:?}");
    let nearest = unplaced.suggested_change.as_deref().unwrap_or_default();
    assert!(nearest.starts_with("add "), "{nearest}");
}

#[test]
fn new_nodes_spread_over_zones_of_the_same_price() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 0);
    scenario.scale(6);
    let target = scenario.solve().target;
    let zones: std::collections::BTreeSet<_> =
        target.launches.iter().map(|l| &l.node.zone).collect();
    assert!(zones.len() >= 3, "{zones:?}");
}

#[test]
fn lower_bound_never_exceeds_the_packing() {
    for replicas in [1, 2, 3, 5, 8, 13, 21, 100, 1000] {
        let mut scenario =
            Scenario::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 333, 700);
        scenario.scale(replicas);
        let target = scenario.solve().target;
        assert!(
            target.lower_bound <= target.packed_price,
            "{replicas}: {} > {}",
            target.lower_bound,
            target.packed_price
        );
        assert!(target.lower_bound > MicroUsd::ZERO);
    }
}
