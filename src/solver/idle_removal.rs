//! Removes new nodes that hold no pod in the first run.
//!
//! Some arrival orders use more nodes than others. A steered plan lists a node only if it lists a
//! pod for it. The runs that need another node are reported instead (`uncovered_orders`). An
//! unsteered plan has every node that one of its orders needs.

use super::Purpose;
use super::layout::Layout;
use super::problem::VerifiedFleet;
use super::repair::{is_simulated, pin_offers};
use super::scheduling_runs::CoveredOrders;
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::target_fleet::NodeRef;
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;

/// Maximum number of attempts. Other nodes may become idle once some are removed.
const TRIES_MAX: usize = 16;

/// Removes new nodes that hold no pod.
pub(super) struct IdleRemoval;

impl Strategy for IdleRemoval {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let problem = simulation.problem;
        if !is_simulated(problem.groups) {
            return current;
        }
        let before = current.fleet.layout.price;
        let (fleet, is_partly_covered) = if problem.settings.steer {
            without_idle_nodes(simulation, current.fleet, current.is_partly_covered)
        } else if problem.purpose == Purpose::Plan {
            (without_unneeded_nodes(simulation, current.fleet), current.is_partly_covered)
        } else {
            return current;
        };
        let baseline_price = current.baseline_price + fleet.layout.price - before;
        SolvedFleet { fleet, baseline_price, is_partly_covered, ..current }
    }
}

/// Returns the fleet without idle nodes, and true if some run leaves pods pending since then.
fn without_idle_nodes(
    simulation: &Simulation,
    mut fleet: VerifiedFleet,
    mut is_partly_covered: bool,
) -> (VerifiedFleet, bool) {
    for _ in 0..TRIES_MAX {
        let idle = idle_nodes(&fleet);
        if idle.is_empty() {
            break;
        }
        let is_covered;
        (fleet, is_covered) = without_nodes(simulation, &fleet, &idle);
        is_partly_covered = !is_covered;
    }
    (fleet, is_partly_covered)
}

/// Returns the fleet without the idle nodes that no run needs.
fn without_unneeded_nodes(simulation: &mut Simulation, mut fleet: VerifiedFleet) -> VerifiedFleet {
    let mut needed = 0;
    for _ in 0..TRIES_MAX {
        let Some(node) = idle_nodes(&fleet).into_iter().rev().nth(needed) else { break };
        let work = &mut WorkBudget::unlimited();
        let layout = layout_without(simulation, &fleet, &[node]);
        let leaner = simulation.passing(&layout, work).filter(|leaner| {
            leaner.unplaced == fleet.unplaced
                && passes_same_samples(simulation, leaner, &fleet, 0, work)
        });
        match leaner {
            Some(leaner) => fleet = leaner,
            None => needed += 1,
        }
    }
    fleet
}

/// Returns the new nodes that hold no pod.
fn idle_nodes(fleet: &VerifiedFleet) -> Vec<usize> {
    let is_idle = |node: &usize| {
        let node_ref = NodeRef::Launch(*node);
        !fleet.placements.values().any(|nodes| nodes.get(&node_ref).is_some_and(|n| *n > 0))
    };
    (0..fleet.offers.len()).filter(is_idle).collect()
}

/// Returns the layout of the fleet without these nodes.
fn layout_without(simulation: &Simulation, fleet: &VerifiedFleet, nodes: &[usize]) -> Layout {
    let model = simulation.problem.model;
    let mut layout = pin_offers(fleet);
    let new_nodes = std::mem::take(&mut layout.packing.new_nodes).into_iter().enumerate();
    layout.packing.new_nodes =
        new_nodes.filter(|(index, _)| !nodes.contains(index)).map(|(_, node)| node).collect();
    layout.price =
        fleet.layout.price - fleet.layout.packing.price(model) + layout.packing.price(model);
    layout
}

/// Returns the fleet without these nodes, and true if every run places all pods. The placements
/// stay if the first run leaves a pod pending without the nodes: they hold no pod.
fn without_nodes(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    nodes: &[usize],
) -> (VerifiedFleet, bool) {
    let layout = layout_without(simulation, fleet, nodes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::greedy_packing::PackedNode;
    use crate::solver::initial_fleet::without_retiring_nodes;
    use crate::solver::layout::PodsByClass;
    use crate::testing::Scenario;

    /// Each node has room for one pod.
    #[test]
    fn unsteered_fleet_loses_only_idle_nodes_that_no_order_needs() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(3);
        scenario.with_passes(|passes, model| {
            let problem = passes.problem(&passes.demand.groups, passes.existing, &model);
            let mut layout = without_retiring_nodes(&problem);
            assert_eq!(layout.packing.new_nodes.len(), 3);
            let improved = |layout: &Layout, is_placed: fn(&NodeRef) -> bool| {
                let mut simulation = Simulation::new(&problem);
                let work = &mut WorkBudget::unlimited();
                let mut fleet = simulation.exclude_until_passed(layout, work);
                fleet.placements.values_mut().for_each(|on| on.retain(|node, _| is_placed(node)));
                let improved = IdleRemoval.improve(&mut simulation, SolvedFleet::new(fleet));
                (improved.fleet.offers.len(), improved.baseline_price)
            };
            let price = layout.packing.price(&model);
            // As if another order needed the third node.
            let is_placed = |node: &NodeRef| *node != NodeRef::Launch(2);
            assert_eq!(improved(&layout, is_placed), (3, price));
            for _ in 0..2 {
                let idle = layout.packing.new_nodes[0].clone();
                let idle = PackedNode { pods: PodsByClass::new(), ..idle };
                layout.packing.new_nodes.push(idle);
            }
            layout.price = layout.packing.price(&model);
            assert_eq!(improved(&layout, |_| true), (3, price));
        });
    }
}
