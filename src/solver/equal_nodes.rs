//! Retains nodes that would be replaced by equal ones, if that costs no more.

use super::node_disposition::NodeDisposition;
use super::repair::repair;
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;

/// Retains a node instead of a new one of the same kind.
pub(super) struct EqualNodeReuse;

impl Strategy for EqualNodeReuse {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let (problem, work) = (simulation.problem, &mut WorkBudget::unlimited());
        let mut fleet = current.fleet;
        for (index, node) in problem.existing.iter().enumerate() {
            let alike = |offer: &usize| problem.offers[*offer].is_same_kind_as(node);
            let replaced = !fleet.layout.retained[index] && fleet.offers.iter().any(alike);
            if !replaced || node.disposition != NodeDisposition::Consolidatable {
                continue;
            }
            let mut retained = fleet.layout.retained.clone();
            retained[index] = true;
            let other = repair(simulation, &problem.layout(retained));
            if other.layout.price <= fleet.layout.price
                && other.unplaced == fleet.unplaced
                && passes_same_samples(simulation, &other, &fleet, 0, work)
            {
                fleet = other;
            }
        }
        SolvedFleet { fleet, ..current }
    }
}
