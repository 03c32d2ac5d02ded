//! Scheduling orders in which a planned fleet leaves pods pending.
//!
//! A fleet normally passes all runs. If no fleet does, the plan covers fewer orders, and this module
//! simulates the others for the report.

use std::collections::{BTreeMap, BTreeSet};

use super::problem::VerifiedFleet;
use super::repair::is_simulated;
use super::scheduling_runs::{self, SchedulingRun};
use super::simulation::Simulation;
use super::simulation_run::SimInput;
use super::work_budget::WorkBudget;
use crate::model::plural::count;

/// Maximum number of workloads named in the message.
const NAMED_MAX: usize = 3;

/// The simulated runs of a fleet, by result.
#[derive(Default)]
pub(super) struct OrderReport {
    /// Names of the runs that place all pods.
    pub passed: Vec<String>,
    /// Message about the other runs.
    pub message: Option<String>,
}

/// Simulates all runs and the added runs over the fleet.
pub(super) fn report(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    added: &[SchedulingRun],
) -> OrderReport {
    let groups = simulation.problem.groups;
    if !is_simulated(groups) {
        return OrderReport::default();
    }
    let state = simulation.initial_state(&fleet.layout, &fleet.offers);
    let runs = simulation.all_runs(&state, added);
    let nominations = simulation.nominations(&fleet.layout, &state);
    let input = SimInput { excluded: &fleet.unplaced, nominations: nominations.as_ref() };
    let work = &mut WorkBudget::unlimited();
    let (mut passed, mut left) = (Vec::new(), Vec::new());
    for (run, of_run) in runs.iter().zip(simulation.left_over_of_runs(&state, &runs, input, work)) {
        if of_run.is_empty() {
            passed.push(*run);
        } else {
            left.push(of_run);
        }
    }
    let mut names: Vec<String> = Vec::new();
    // Two fleets may have added the same sample.
    for name in scheduling_runs::names(&passed, groups, state.node_count()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let message = (!left.is_empty()).then(|| message(simulation, &left, runs.len()));
    OrderReport { passed: names, message }
}

fn message(simulation: &Simulation, left: &[BTreeMap<usize, u32>], runs: usize) -> String {
    let of = |group: &usize| &simulation.problem.groups[*group].workload;
    let workloads: BTreeSet<_> = left.iter().flat_map(BTreeMap::keys).map(of).collect();
    let named: Vec<String> = workloads.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let beyond = workloads.len() - named.len();
    let more = if beyond > 0 { format!(" and {beyond} more") } else { String::new() };
    let most: u32 = left.iter().map(|left| left.values().sum()).max().unwrap_or(0);
    let most = count(most, "pod");
    format!(
        "in {} of {runs} simulated orders, up to {most} of {}{more} stay pending until the next \
         plan",
        left.len(),
        named.join(", "),
    )
}
