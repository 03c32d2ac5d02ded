//! Layouts that fail in the placement simulation.

use crate::solver::initial_fleet;
use crate::solver::problem::Problem;
use crate::solver::simulation::{Failure, Simulation, SimulationOutcome};
use crate::solver::work_budget::WorkBudget;
use crate::testing::Scenario;

/// Simulates a layout that lacks a node, first, once more, and only until a pod is left. The packing
/// leaves `left` pods.
fn simulate_failure(problem: &Problem, left: u32) {
    let mut layout = initial_fleet::without_retiring_nodes(problem);
    layout.packing.new_nodes.pop();
    layout.packing.left[0] = left;
    let mut simulation = Simulation::new(problem);
    let failure = |outcome: SimulationOutcome| -> Failure {
        match outcome {
            SimulationOutcome::LeftOver(failure) => failure,
            SimulationOutcome::Passed(_) => panic!("a node is missing"),
        }
    };
    let mut work = [0, 1, 2, 3].map(|_| WorkBudget::for_search(1_000));
    let first = failure(simulation.simulate(&layout, &mut work[0]));
    let second = failure(simulation.simulate(&layout, &mut work[1]));
    let third = failure(simulation.repeat(&layout, first, &mut work[2]));
    assert_eq!(second, third);
    assert_eq!(work[1], work[2]);
    assert!(simulation.passing(&layout, &mut work[3]).is_none());
    assert_eq!(work[1], work[3]);
}

#[test]
fn failed_layout_fails_alike_with_equal_work() {
    let mut scenario = Scenario::new(&["m5.large"], 600, 100);
    scenario.scale(8);
    scenario.with_problem(|problem| simulate_failure(problem, 0));
    scenario.with_problem(|problem| simulate_failure(problem, 1));
}
