//! Strategies that improve a fleet, in the order in which they run.
//!
//! A strategy receives the fleet of the one before and returns a fleet that is at least as good.
//! All that it passes on is in its result, and in the runs that it adds to the simulation.

use std::collections::{BTreeMap, BTreeSet};

use super::consolidate::Consolidation;
use super::equal_nodes::EqualNodeReuse;
use super::existing_node::ExistingNode;
use super::idle_removal::IdleRemoval;
use super::local_search::{Readmission, UnschedulableSearch};
use super::problem::VerifiedFleet;
use super::scheduling_runs::SchedulingRun;
use super::simulation::Simulation;
use super::special_hardware::SpecialHardwareFirst;
use super::spot_diversity::SpotDiversity;
use super::tie_break_sampling::SampleRepair;
use super::zone_balance::ZoneBalance;
use crate::model::ids::NodeName;
use crate::model::units::MicroUsd;

/// One way to improve a fleet.
pub(super) trait Strategy {
    /// Returns `current`, or a better fleet.
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet;
}

/// Part of the computation. Each part begins with a new simulation, without added runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Once in each pass, after the initial fleet.
    Pass,
    /// Once, after the last pass.
    Reuse,
    /// Once, at the end.
    Finish,
}

/// All strategies. A percentage is the mean by which plans cost more without the strategy. See
/// `docs/src/explanation/measurements.md`.
const STRATEGIES: [(Stage, &dyn Strategy); 9] = [
    // Retains nodes to retire, and simulates fleets that differ by one node, for fewer unschedulable
    // pods.
    (Stage::Pass, &UnschedulableSearch),
    // Serves pods that need special hardware first, where limits leave pods over. Up to 40 more of 61
    // pods are placed in small trees; it does nothing elsewhere.
    (Stage::Pass, &SpecialHardwareFirst),
    // Readmits pods that were left in favor of other unschedulable pods. 0 % in 60 small trees.
    (Stage::Pass, &Readmission),
    // Adds nodes until further tie-breaking samples pass.
    (Stage::Pass, &SampleRepair),
    // Removes and replaces nodes where that saves more than the moves cost. 2.8 % in 60 small trees.
    (Stage::Pass, &Consolidation),
    // Retains a node instead of a new one of the same kind, for fewer moves. 0 % in 16 trees.
    (Stage::Reuse, &EqualNodeReuse),
    // Balances new nodes over zones at the same price.
    (Stage::Finish, &ZoneBalance),
    // Distributes new Spot nodes over instance types and zones.
    (Stage::Finish, &SpotDiversity),
    // Removes new nodes that hold no pod, in an unsteered plan only those that no order needs.
    (Stage::Finish, &IdleRemoval),
];

/// Applies the strategies of a stage in order.
pub(super) fn improve(
    stage: Stage,
    simulation: &mut Simulation,
    current: SolvedFleet,
) -> SolvedFleet {
    let strategies = STRATEGIES.iter().filter(|(of, _)| *of == stage);
    strategies.fold(current, |fleet, (_, strategy)| strategy.improve(simulation, fleet))
}

/// A fleet, with what the strategies decided about its nodes.
pub(super) struct SolvedFleet {
    pub fleet: VerifiedFleet,
    /// Price before any voluntary change, including new nodes for pending pods.
    pub baseline_price: MicroUsd,
    /// For each retained node: the best change of it alone that was not worth its cost.
    pub declined: BTreeMap<NodeName, DeclinedChange>,
    /// Nodes that only a disruption budget retains.
    pub budget_blocked: BTreeSet<NodeName>,
    /// Tie-breaking samples that were added as runs.
    pub added_runs: Vec<SchedulingRun>,
    /// True if the search ended before all candidates were tried.
    pub is_cut_short: bool,
    /// True if some runs leave pods pending since nodes without pods were removed.
    pub is_partly_covered: bool,
}

impl SolvedFleet {
    /// Returns a fleet without voluntary changes.
    pub(super) fn new(fleet: VerifiedFleet) -> Self {
        Self {
            baseline_price: fleet.layout.price,
            fleet,
            declined: BTreeMap::new(),
            budget_blocked: BTreeSet::new(),
            added_runs: Vec::new(),
            is_cut_short: false,
            is_partly_covered: false,
        }
    }

    /// Drops decisions about nodes that the fleet does not retain.
    pub(super) fn drop_removed_nodes(&mut self, existing: &[ExistingNode]) {
        let nodes = existing.iter().zip(&self.fleet.layout.retained);
        let retained: BTreeSet<&NodeName> =
            nodes.filter(|(_, retained)| **retained).map(|(node, _)| &node.name).collect();
        self.declined.retain(|name, _| retained.contains(name));
        self.budget_blocked.retain(|name| retained.contains(name));
    }
}

/// A change that was not worth its cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeclinedChange {
    /// Saving per hour.
    pub saves: MicroUsd,
    /// Minimum saving per hour.
    pub needed: MicroUsd,
    /// Number of running and awaited pods that it would move.
    pub moves: u32,
    /// Number of nodes that all moves of pods together would remove, if the minimum is a share of the
    /// fleet's price.
    pub nodes: Option<u32>,
    /// True if more pods would stay pending if all pods were created again.
    pub fails_redeployment: bool,
}
