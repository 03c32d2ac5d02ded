//! The fleet of a pass before any voluntary change: nodes to retire are removed, and nodes are
//! added for pending pods.

use super::layout::Layout;
use super::node_disposition::{NodeDisposition, RetireCondition};
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, repair};
use super::simulation::Simulation;
use super::spread_domains::is_spread_over_domains;
use super::work_budget::WorkBudget;

/// Removes nodes to retire, unless that leaves more pods unschedulable.
pub(super) fn without_retiring_nodes(problem: &Problem) -> Layout {
    let leaves = |i: usize| matches!(problem.existing[i].disposition, NodeDisposition::Retire(_));
    let mut layout = problem.layout(vec![true; problem.existing.len()]);
    for index in (0..problem.existing.len()).filter(|i| leaves(*i)) {
        let mut retained = layout.retained.clone();
        retained[index] = false;
        let trial = problem.layout(retained);
        let goes_anyway =
            problem.existing[index].retire_condition == RetireCondition::Unconditional;
        if goes_anyway || trial.packing.leaves_no_more_than(&layout.packing) {
            layout = trial;
        }
    }
    problem.repack(layout)
}

/// Returns the fleet without nodes to retire, before any strategy.
pub(super) fn initial_fleet(simulation: &mut Simulation) -> VerifiedFleet {
    repair_on_existing_first(simulation, &without_retiring_nodes(simulation.problem))
}

/// Repairs a layout: on existing nodes alone if possible, otherwise with new nodes.
fn repair_on_existing_first(simulation: &mut Simulation, layout: &Layout) -> VerifiedFleet {
    on_existing_nodes(simulation, layout).unwrap_or_else(|| repair(simulation, layout))
}

/// Returns the layout without new nodes, if kube-scheduler still places every pod. Then no pod is
/// ever pending, whatever node-level rules say of new nodes.
///
/// Pods that spread over other domains keep their new nodes, although kube-scheduler would not miss
/// them.
fn on_existing_nodes(simulation: &mut Simulation, layout: &Layout) -> Option<VerifiedFleet> {
    let model = simulation.problem.model;
    let mut classes = layout.packing.new_nodes.iter().flat_map(|node| node.pods.keys());
    let groups = simulation.problem.groups;
    let spreads_wide = |class: &usize| {
        model.classes[*class].groups().any(|group| is_spread_over_domains(&groups[group]))
    };
    let is_none = layout.packing.new_nodes.is_empty() || !is_simulated(simulation.problem.groups);
    if is_none || classes.any(spreads_wide) {
        return None;
    }
    let mut bare = layout.clone();
    bare.price = bare.price - bare.packing.price(simulation.problem.model);
    bare.packing.new_nodes.clear();
    bare.packing.left.fill(0);
    simulation.passing(&bare, &mut WorkBudget::unlimited())
}

/// Retains nodes to retire while pods would be unschedulable without them. `place_leftover` is
/// applied to each fleet that is compared.
pub(super) fn with_retiring_nodes(
    simulation: &mut Simulation,
    mut fleet: VerifiedFleet,
    place_leftover: fn(&mut Simulation, VerifiedFleet) -> VerifiedFleet,
) -> VerifiedFleet {
    let problem = simulation.problem;
    for index in 0..problem.existing.len() {
        let leaves = problem.existing[index].may_be_retained();
        let could_help = || fleet.unplaced.keys().any(|group| problem.fits_alone_on(*group, index));
        if !leaves || fleet.layout.retained[index] || !could_help() {
            continue;
        }
        let mut retained = fleet.layout.retained.clone();
        retained[index] = true;
        let trial = repair_on_existing_first(simulation, &problem.layout(retained));
        let trial = place_leftover(simulation, trial);
        if trial.unplaced_by_priority(problem.groups) < fleet.unplaced_by_priority(problem.groups) {
            fleet = trial;
        }
    }
    fleet
}
