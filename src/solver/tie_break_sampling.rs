//! Tie-breaking sampling: simulates the same arrival orders again with other ties.
//!
//! The required runs sample each order once. In a small fleet one tie may decide whether the last
//! pod fits, so a passing fleet is sampled many more times. A sample that leaves a pod unscheduled
//! becomes a required run, and nodes are added until it passes.
//!
//! Some samples fail whatever nodes are added: for example, the first of several pods that must
//! share a node goes to a small node. These are reported. The number of samples is limited by work,
//! and large fleets have none: many ties even out there.

use std::collections::{BTreeMap, BTreeSet};

use super::Purpose;
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, repair_for_added_runs};
use super::scheduling_runs::{SchedulingRun, planned_pods, tie_break_samples};
use super::simulation::Simulation;
use super::simulation_run::{RunEnd, SimInput};
use super::strategy::{SolvedFleet, Strategy};
use super::work_budget::WorkBudget;

/// Maximum number of workloads named in the message.
const NAMED_MAX: usize = 3;

/// Maximum number of samples for which nodes are added.
const REPAIRED_SAMPLES_MAX: usize = 12;

/// Adds the nodes that every tie-breaking sample needs, except samples that no nodes repair.
pub(super) struct SampleRepair;

impl Strategy for SampleRepair {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let fleet = repair_failed_samples(simulation, current.fleet);
        SolvedFleet { fleet, added_runs: simulation.added_runs.clone(), ..current }
    }
}

pub(super) fn repair_failed_samples(
    simulation: &mut Simulation,
    fleet: VerifiedFleet,
) -> VerifiedFleet {
    let problem = simulation.problem;
    if problem.purpose == Purpose::Estimate {
        return fleet;
    }
    if samples(problem, &fleet, 0).is_empty() {
        return fleet;
    }
    let work = &mut WorkBudget::unlimited();
    let (mut best, mut unrepairable) = (fleet, BTreeSet::new());
    let mut next = 0;
    for _ in 0..REPAIRED_SAMPLES_MAX {
        let samples = samples(problem, &best, 0);
        let known = (&unrepairable, next);
        let failed = first_failed_sample(simulation, &best, &samples, known, work);
        let Some(at) = failed else { break };
        simulation.added_runs.push(samples[at]);
        match repair_for_added_runs(simulation, &best) {
            Some(better) if better.unplaced == best.unplaced => (best, next) = (better, 0),
            Some(_) | None => {
                simulation.added_runs.pop();
                unrepairable.insert(at);
                next = at + 1;
            }
        }
    }
    best
}

/// Adds failed samples of a fleet to the required runs, at most as many as are repaired.
pub(super) fn require_failed_samples(simulation: &mut Simulation, fleet: &VerifiedFleet) {
    let samples = samples(simulation.problem, fleet, 0);
    let (mut failed, work) = (BTreeSet::new(), &mut WorkBudget::unlimited());
    while failed.len() < REPAIRED_SAMPLES_MAX {
        let known = (&failed, after_last(&failed));
        let next = first_failed_sample(simulation, fleet, &samples, known, work);
        let Some(at) = next else { break };
        failed.insert(at);
    }
    simulation.added_runs.extend(failed.into_iter().map(|at| samples[at]));
}

/// Returns true if `next` passes every sample that `current` passes, in at least `least`
/// samples.
pub(super) fn passes_same_samples(
    simulation: &Simulation,
    next: &VerifiedFleet,
    current: &VerifiedFleet,
    least: u64,
    work: &mut WorkBudget,
) -> bool {
    let samples = samples(simulation.problem, next, least);
    let (mut failed, none) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let known = (&failed, after_last(&failed));
        let Some(at) = first_failed_sample(simulation, next, &samples, known, work) else {
            return true;
        };
        let sample = &samples[at..=at];
        if first_failed_sample(simulation, current, sample, (&none, 0), work).is_none() {
            return false;
        }
        failed.insert(at);
    }
}

/// Returns the number of samples that are known once the last of these failed.
fn after_last(failed: &BTreeSet<usize>) -> usize {
    failed.last().map_or(0, |last| last + 1)
}

/// Returns a message about failed samples, with their number and workloads.
pub(super) fn failed_samples_message(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
) -> Option<String> {
    let samples = samples(simulation.problem, fleet, 0);
    if samples.is_empty() {
        // The state of a large fleet is expensive.
        return None;
    }
    let (none, work) = (BTreeSet::new(), &mut WorkBudget::unlimited());
    let first = first_failed_sample(simulation, fleet, &samples, (&none, 0), work)?;
    let state = simulation.initial_state(&fleet.layout, &fleet.offers);
    let nominations = simulation.nominations(&fleet.layout, &state);
    let input = SimInput { excluded: &fleet.unplaced, nominations: nominations.as_ref() };
    let mut left = simulation.left_over_of_runs(&state, &samples[first..], input, work);
    left.retain(|left| !left.is_empty());
    let of = |group: &usize| &simulation.problem.groups[*group].workload;
    let workloads: BTreeSet<_> = left.iter().flat_map(BTreeMap::keys).map(of).collect();
    let named: Vec<String> = workloads.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let beyond = workloads.len() - named.len();
    let more = if beyond > 0 { format!(" and {beyond} more") } else { String::new() };
    Some(format!(
        "in {} of {} further samples with other ties or node orders, pods of {}{more} are \
         pending that every listed run places: no additional node was found to help",
        left.len(),
        samples.len(),
        named.join(", "),
    ))
}

fn samples(problem: &Problem, fleet: &VerifiedFleet, least: u64) -> Vec<SchedulingRun> {
    if !is_simulated(problem.groups) {
        return Vec::new();
    }
    let retained = fleet.layout.retained.iter().filter(|retained| **retained).count();
    let nodes = retained + fleet.offers.len();
    let worst_case = problem.settings.effective_worst_case();
    let mut samples = tie_break_samples(planned_pods(problem.groups), nodes, least, worst_case);
    samples.retain(|sample| problem.checks.orders.covers(sample));
    samples
}

/// Returns the first failed sample that is not in `skipped`. All samples before `next` are known:
/// they are in `skipped`, or the fleet passes them.
///
/// Known samples count as work as well: a search that knows more does not go further.
fn first_failed_sample(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    samples: &[SchedulingRun],
    (skipped, next): (&BTreeSet<usize>, usize),
    work: &mut WorkBudget,
) -> Option<usize> {
    let state = simulation.initial_state(&fleet.layout, &fleet.offers);
    work.count_setup(state.setup_work);
    let nominations = simulation.nominations(&fleet.layout, &state);
    let input = SimInput { excluded: &fleet.unplaced, nominations: nominations.as_ref() };
    let (passed, untried): (Vec<usize>, Vec<usize>) = (0..samples.len())
        .filter(|sample| !skipped.contains(sample))
        .partition(|sample| *sample < next);
    work.count(simulation.work_of_runs(&state, &fleet.unplaced, passed.len()));
    let runs: Vec<SchedulingRun> = untried.iter().map(|sample| samples[*sample]).collect();
    let results = simulation.run_until_left_over(&state, &runs, input, RunEnd::FirstLeftOver, work);
    let is_left = results.last().is_some_and(|last| !last.left_over.is_empty());
    is_left.then(|| untried[results.len() - 1])
}
