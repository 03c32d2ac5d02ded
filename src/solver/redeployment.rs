//! Checks that a consolidated fleet places its pods when all of them are created again.
//!
//! An unsteered plan buys room for the orders in which its pods may arrive. Once the pods run, a
//! part of this room looks superfluous. A change that gives it up would follow every apply, and
//! pods would stay pending after a restart of the workloads.

use std::collections::BTreeMap;

use super::converge::Passes;
use super::existing_node::ExistingNode;
use super::greedy_packing::{OpenedNode, Packing};
use super::layout::{Layout, PodsByClass};
use super::packing_model::PackingModel;
use super::problem::{Placements, VerifiedFleet, sum_by_priority};
use super::repair::is_simulated;
use super::scheduling_runs::planned_pods;
use super::simulation::Simulation;
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;
use super::{Input, Purpose};
use crate::demand::{PodGroup, ReplicaPartition};

/// Pods times nodes up to which the check runs: fleets that all required runs simulate. In a larger
/// fleet the room for other orders is a small share of the price.
const WORK_MAX: u64 = 5_000_000;

/// The pods of a fleet that are all created again.
pub(super) struct Redeployment<'a> {
    passes: &'a Passes<'a>,
    existing: &'a [ExistingNode],
    /// The groups without running pods.
    groups: Vec<PodGroup>,
}

impl<'a> Redeployment<'a> {
    /// Returns the check; `None` if pods are nominated, nothing runs, or the fleet is too large.
    pub(super) fn new(
        passes: &'a Passes<'a>,
        groups: &[PodGroup],
        existing: &'a [ExistingNode],
    ) -> Option<Self> {
        let Input { settings, purpose, .. } = passes.input;
        let nodes = u64::try_from(existing.len()).unwrap_or(u64::MAX);
        let is_checked = !settings.steer
            && *purpose == Purpose::Plan
            && !existing.is_empty()
            && is_simulated(groups)
            && planned_pods(groups).saturating_mul(nodes) <= WORK_MAX;
        let pending = |group: &PodGroup| PodGroup {
            running: BTreeMap::new(),
            partitions: group.partitions.iter().map(without_running).collect(),
            ..group.clone()
        };
        is_checked.then(|| Self { passes, existing, groups: groups.iter().map(pending).collect() })
    }

    /// Returns true if each run leaves no more pods pending on `next` than on `current`.
    pub(super) fn holds(&self, current: &VerifiedFleet, next: &VerifiedFleet) -> bool {
        // By then, every node is Ready and none is drained.
        let passes = Passes { with_events: false, ..*self.passes };
        let model = passes.model(&self.groups, self.existing);
        let problem = passes.problem(&self.groups, self.existing, &model);
        let simulation = Simulation::new(&problem);
        let [current, next] = [current, next].map(|fleet| as_pending(&model, fleet));
        let left = |simulation: &Simulation, fleet: &VerifiedFleet| -> Vec<Vec<u32>> {
            let runs = simulation.left_over_by_run(fleet);
            runs.iter().map(|left| sum_by_priority(left, &self.groups)).collect()
        };
        let (before, after) = (left(&simulation, &current), left(&simulation, &next));
        let is_no_worse = after.iter().zip(&before).all(|(after, before)| after <= before);
        is_no_worse
            && passes_same_samples(&simulation, &next, &current, 0, &mut WorkBudget::unlimited())
    }
}

fn without_running(partition: &ReplicaPartition) -> ReplicaPartition {
    ReplicaPartition { running: BTreeMap::new(), ..partition.clone() }
}

/// Returns the nodes of a fleet without its pods.
fn as_pending(model: &PackingModel, fleet: &VerifiedFleet) -> VerifiedFleet {
    let opened = fleet.offers.iter().map(|offer| OpenedNode {
        offer_class: model.class_of_offer[*offer],
        pods: PodsByClass::new(),
        offer: Some(*offer),
    });
    let nodes = fleet.layout.retained.len();
    let layout = Layout {
        retained: fleet.layout.retained.clone(),
        pods_on: vec![PodsByClass::new(); nodes],
        staying: vec![PodsByClass::new(); nodes],
        packing: Packing { opened: opened.collect(), left: Vec::new() },
        price: fleet.layout.price,
    };
    VerifiedFleet { layout, placements: Placements::new(), ..fleet.clone() }
}
