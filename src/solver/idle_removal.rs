//! Removes new nodes that hold no pod in the first run.
//!
//! Some arrival orders use more nodes than others. A plan lists a node only if it lists a pod for
//! it. The runs that need another node are reported instead (`uncovered_orders`).

use super::problem::VerifiedFleet;
use super::repair::{is_simulated, pin_offers};
use super::scheduling_runs::CoveredOrders;
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::target_fleet::NodeRef;
use super::work_budget::WorkBudget;

/// Maximum number of attempts. Other nodes may become idle once some are removed.
const TRIES_MAX: usize = 16;

/// Removes new nodes that hold no pod.
pub(super) struct IdleRemoval;

impl Strategy for IdleRemoval {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let problem = simulation.problem;
        // In an unsteered plan, some order needs every node.
        if !problem.settings.steer || !is_simulated(problem.groups) {
            return current;
        }
        let before = current.fleet.layout.price;
        let (mut fleet, mut is_partly_covered) = (current.fleet, current.is_partly_covered);
        for _ in 0..TRIES_MAX {
            let idle = idle_nodes(&fleet);
            if idle.is_empty() {
                break;
            }
            let is_covered;
            (fleet, is_covered) = without_nodes(simulation, &fleet, &idle);
            is_partly_covered = !is_covered;
        }
        let baseline_price = current.baseline_price + fleet.layout.price - before;
        SolvedFleet { fleet, baseline_price, is_partly_covered, ..current }
    }
}

/// Returns the new nodes that hold no pod.
fn idle_nodes(fleet: &VerifiedFleet) -> Vec<usize> {
    let is_idle = |node: &usize| {
        let node_ref = NodeRef::Launch(*node);
        !fleet.placements.values().any(|nodes| nodes.get(&node_ref).is_some_and(|n| *n > 0))
    };
    (0..fleet.offers.len()).filter(is_idle).collect()
}

/// Returns the fleet without these nodes, and true if every run places all pods. The placements
/// stay if the first run leaves a pod pending without the nodes: they hold no pod.
fn without_nodes(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    nodes: &[usize],
) -> (VerifiedFleet, bool) {
    let problem = simulation.problem;
    let mut layout = pin_offers(fleet);
    let new_nodes = std::mem::take(&mut layout.packing.new_nodes).into_iter().enumerate();
    layout.packing.new_nodes =
        new_nodes.filter(|(index, _)| !nodes.contains(index)).map(|(_, node)| node).collect();
    layout.price = fleet.layout.price - fleet.layout.packing.price(problem.model)
        + layout.packing.price(problem.model);
    let work = &mut WorkBudget::unlimited();
    let excluded = &fleet.unplaced;
    for orders in [CoveredOrders::All, CoveredOrders::Likely, CoveredOrders::Declared] {
        if let Some(fleet) = simulation.simulate_orders(&layout, excluded.clone(), orders, work) {
            return (fleet, orders == CoveredOrders::All);
        }
    }
    let mut numbers = vec![None; fleet.offers.len()];
    let stay = (0..fleet.offers.len()).filter(|index| !nodes.contains(index));
    stay.enumerate().for_each(|(number, index)| numbers[index] = Some(number));
    let renumbered = |node_ref: &NodeRef| match node_ref {
        NodeRef::Existing(_) => Some(node_ref.clone()),
        NodeRef::Launch(index) => numbers[*index].map(NodeRef::Launch),
    };
    let placements = fleet.placements.iter().map(|(group, nodes)| {
        let nodes =
            nodes.iter().filter_map(|(node_ref, pods)| Some((renumbered(node_ref)?, *pods)));
        (*group, nodes.collect())
    });
    let offers = fleet.offers.iter().enumerate();
    let offers = offers.filter(|(index, _)| numbers[*index].is_some()).map(|(_, o)| *o).collect();
    let unplaced = fleet.unplaced.clone();
    let placements = placements.collect();
    (VerifiedFleet { layout, offers, placements, unplaced }, false)
}
