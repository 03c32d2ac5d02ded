//! Checks that a consolidated fleet places its pods when all of them are created again.
//!
//! An unsteered plan buys room for the orders in which its pods may arrive. Once the pods run, a
//! part of this room looks superfluous. A change that gives it up would follow every apply, and
//! pods would stay pending after a restart of the workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use super::converge::Passes;
use super::existing_node::ExistingNode;
use super::greedy_packing::{PackedNode, Packing};
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
use crate::model::ids::NodeName;

/// Pods times nodes up to which the check runs. In a larger fleet the room for other orders is a
/// small share of the price.
const WORK_MAX: u64 = 2_500_000;

/// The pods of a fleet that are all created again.
pub(super) struct Redeployment<'a> {
    passes: &'a Passes<'a>,
    existing: &'a [ExistingNode],
    /// The groups without running pods, but for those that stay where they are.
    groups: Vec<PodGroup>,
    /// Packing model of the groups, which all checks share.
    model: OnceLock<PackingModel>,
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
        // Pods on closed nodes would take the room of others, and the simulation places no pod that it
        // does not support.
        let closed: BTreeSet<&NodeName> =
            existing.iter().filter(|node| !node.schedulable).map(|node| &node.name).collect();
        let staying = |running: &BTreeMap<NodeName, u32>| -> BTreeMap<NodeName, u32> {
            let on = running.iter().filter(|(node, _)| closed.contains(node));
            on.map(|(node, pods)| (node.clone(), *pods)).collect()
        };
        let pending = |group: &PodGroup| {
            if !group.shape.unsupported.is_empty() {
                return group.clone();
            }
            let partitions = group.partitions.iter().map(|partition| ReplicaPartition {
                running: staying(&partition.running),
                ..partition.clone()
            });
            let partitions = partitions.collect();
            PodGroup {
                running: staying(&group.running),
                ending: [].into(),
                partitions,
                ..group.clone()
            }
        };
        is_checked.then(|| Self {
            passes,
            existing,
            groups: groups.iter().map(pending).collect(),
            model: OnceLock::new(),
        })
    }

    /// Returns true if each run leaves no more pods of any priority pending on `next` than on
    /// `current`.
    pub(super) fn holds(
        &self,
        current: &VerifiedFleet,
        next: &VerifiedFleet,
        work: &mut WorkBudget,
    ) -> bool {
        let model = self.model.get_or_init(|| self.passes.model(&self.groups, self.existing));
        let problem = self.passes.problem(&self.groups, self.existing, model);
        let simulation = Simulation::new(&problem);
        let [current, next] = [current, next].map(|fleet| as_pending(model, fleet));
        let mut left = |fleet: &VerifiedFleet| -> Vec<Vec<u32>> {
            let runs = simulation.left_over_by_run(fleet, work);
            runs.iter().map(|left| sum_by_priority(left, &self.groups)).collect()
        };
        let (before, after) = (left(&current), left(&next));
        let is_no_worse = |(after, before): (&Vec<u32>, &Vec<u32>)| {
            after.iter().zip(before).all(|(after, before)| after <= before)
        };
        after.iter().zip(&before).all(is_no_worse)
            && passes_same_samples(&simulation, &next, &current, 0, work)
    }
}

/// Returns the nodes of a fleet without its pods, but for those that stay.
fn as_pending(model: &PackingModel, fleet: &VerifiedFleet) -> VerifiedFleet {
    let new_nodes = fleet.offers.iter().map(|offer| PackedNode {
        offer_class: model.class_of_offer[*offer],
        pods: PodsByClass::new(),
        offer: Some(*offer),
    });
    let nodes = fleet.layout.retained.len();
    let staying = model.bins.iter().map(|bin| {
        let running = bin.running.iter().copied().enumerate();
        running.filter(|(_, pods)| *pods > 0).collect()
    });
    let layout = Layout {
        retained: fleet.layout.retained.clone(),
        pods_on: vec![PodsByClass::new(); nodes],
        staying: staying.collect(),
        packing: Packing { new_nodes: new_nodes.collect(), left: Vec::new() },
        price: fleet.layout.price,
    };
    VerifiedFleet { layout, placements: Placements::new(), ..fleet.clone() }
}
