//! Fleets for pods that are left over after all passes, because some order of arrival leaves no room
//! for them. Without them, the next plan would add their nodes.

use super::super::idle_removal::IdleRemoval;
use super::super::problem::{FleetChecks, VerifiedFleet};
use super::super::repair::repair_for_added_runs;
use super::super::scheduling_runs::CoveredOrders;
use super::super::simulation::Simulation;
use super::super::spot_diversity::SpotDiversity;
use super::super::strategy::{SolvedFleet, Strategy};
use super::{ConvergedFleet, PASSES_MAX, Passes};
use crate::model::units::MicroUsd;

/// Maximum price of an unsteered fleet with nodes for left-over pods, in percent of the price
/// without, unless one node alone costs more. The next plan knows where the pods run, and often finds
/// much cheaper nodes for the rest.
const LEFT_OVER_PRICE_PERCENT: i64 = 150;

/// Returns this percentage of a price.
fn share_of(price: MicroUsd, percent: i64) -> MicroUsd {
    MicroUsd(price.0.saturating_mul(percent) / 100)
}

impl Passes<'_> {
    /// Adds nodes for pods that are left over once all other pods run, as the next plan would.
    pub(super) fn place_after_others(&self, converged: &mut ConvergedFleet) {
        let passes = self.with_checks(converged.checks);
        let problem = passes.problem(&self.demand.groups, self.existing, &converged.model);
        let unplaced = |fleet: &VerifiedFleet| fleet.unplaced_by_priority(&self.demand.groups);
        let outcome = &mut converged.outcome;
        let price = outcome.fleet.layout.price;
        let share_max = share_of(price, LEFT_OVER_PRICE_PERCENT);
        let with_one_node = price + self.most_expensive_needed_node(&outcome.fleet);
        let price_max = Some(share_max.max(with_one_node))
            .filter(|_| !self.input.settings.steer && price > MicroUsd::ZERO);
        let mut is_changed = false;
        // Of a large fleet, only the next plan is made in advance, if it can launch nodes.
        let passes_max = if problem.is_too_large(&outcome.fleet) {
            usize::from(problem.allows_nodes_for_left_over(&outcome.fleet))
        } else {
            PASSES_MAX
        };
        for _ in 0..passes_max {
            if !problem.has_left_over(&outcome.fleet) {
                break;
            }
            let groups = self.groups_after(&outcome.fleet);
            let existing = self.fleet_after(&outcome.fleet);
            let next = self.model(&groups, &existing);
            let later = passes.pass(&groups, &existing, &next);
            let is_too_expensive = price_max.is_some_and(|max| later.fleet.layout.price > max);
            if unplaced(&later.fleet) >= unplaced(&outcome.fleet) || is_too_expensive {
                break;
            }
            outcome.fleet = passes.translate(&converged.model, &outcome.fleet, &later.fleet);
            is_changed = true;
        }
        if is_changed {
            outcome.is_partly_covered = true;
            outcome.drop_removed_nodes(self.existing);
            let current = SolvedFleet::new(outcome.fleet.clone());
            let simulation = &mut Simulation::new(&problem);
            let current = IdleRemoval.improve(simulation, current);
            outcome.fleet = SpotDiversity.improve(simulation, current).fleet;
        }
    }

    /// Returns the highest price of the cheapest node that holds a pod which is left over. No plan
    /// places that pod for less if it has to launch a node.
    fn most_expensive_needed_node(&self, fleet: &VerifiedFleet) -> MicroUsd {
        let needed = fleet.unplaced.iter().filter(|(_, pods)| **pods > 0);
        let needed = needed.filter_map(|(group, _)| {
            let shape = &self.demand.groups[*group].shape;
            let offers = self.offers.iter().zip(self.admission.of_group(*group));
            let holding = offers
                .filter(|(offer, admitted)| **admitted && shape.requests.fits(&offer.room))
                .map(|(offer, _)| offer.node.price);
            holding.min()
        });
        needed.max().unwrap_or_default()
    }

    /// Replaces a fleet that leaves pods over by one that places more of them in fewer orders of
    /// arrival. Otherwise the next plan would add their nodes.
    pub(super) fn place_left_over(&self, converged: &mut ConvergedFleet, orders: CoveredOrders) {
        let problem = self.problem(&self.demand.groups, self.existing, &converged.model);
        if !problem.has_searchable_left_over(&converged.outcome.fleet) {
            return;
        }
        let with_events = converged.checks.with_events;
        let ignores_nominations = self.input.settings.steer;
        let checks = FleetChecks { with_events, orders, ignores_nominations, ..self.checks };
        let mut found = self.with_checks(checks).run_passes(&converged.model);
        if self.input.settings.steer {
            // With nominations, the same pods need fewer nodes.
            found = self
                .with_checks(FleetChecks { with_events, ..self.checks })
                .further_passes(&converged.model, found);
        }
        let unplaced =
            |outcome: &SolvedFleet| outcome.fleet.unplaced_by_priority(&self.demand.groups);
        if unplaced(&found) < unplaced(&converged.outcome) {
            (converged.outcome, converged.checks.orders) = (found, orders);
        }
    }

    /// Adds nodes to a fleet with which some likely orders leave pods pending, until these orders
    /// place all of them. Otherwise the next plan would add the nodes.
    pub(super) fn cover_likely_orders(&self, converged: &mut ConvergedFleet) {
        let ConvergedFleet { outcome, model, checks, .. } = converged;
        if checks.orders == CoveredOrders::All && !outcome.is_partly_covered {
            return;
        }
        let price_max = share_of(outcome.fleet.layout.price, LEFT_OVER_PRICE_PERCENT);
        let unplaced = |fleet: &VerifiedFleet| fleet.unplaced_by_priority(&self.demand.groups);
        for orders in [CoveredOrders::All, CoveredOrders::LikelyByPriority] {
            let passes = self.with_checks(FleetChecks { orders, ..*checks });
            let problem = passes.problem(&self.demand.groups, self.existing, model);
            if problem.is_too_large(&outcome.fleet) {
                return;
            }
            let more = repair_for_added_runs(&mut Simulation::new(&problem), &outcome.fleet);
            let is_better = |more: &VerifiedFleet| {
                more.layout.price <= price_max && unplaced(more) <= unplaced(&outcome.fleet)
            };
            if let Some(more) = more.filter(&is_better) {
                // The added nodes are the cheapest, so they may share one Spot offering.
                let shared = SolvedFleet::new(more.clone());
                let shared = SpotDiversity.improve(&mut Simulation::new(&problem), shared).fleet;
                let more = if is_better(&shared) { shared } else { more };
                outcome.baseline_price += more.layout.price - outcome.fleet.layout.price;
                outcome.fleet = more;
                (checks.orders, outcome.is_partly_covered) = (orders, false);
                return;
            }
        }
    }

    /// Replaces a fleet in which unschedulable pods could take the room of planned pods by one with
    /// room for both, if there is one.
    pub(super) fn make_room_for_unschedulable(&self, converged: &mut ConvergedFleet) {
        let checks = FleetChecks { unschedulable_pods_arrive: true, ..converged.checks };
        let passes = self.with_checks(checks);
        let problem = passes.problem(&self.demand.groups, self.existing, &converged.model);
        let fleet = &converged.outcome.fleet;
        if !problem.has_searchable_left_over(fleet)
            || !Simulation::new(&problem).is_displacing(fleet)
        {
            return;
        }
        let roomier = passes.run_passes(&converged.model);
        let unplaced = |fleet: &VerifiedFleet| fleet.unplaced_by_priority(&self.demand.groups);
        let holds = unplaced(&roomier.fleet) <= unplaced(fleet)
            && !Simulation::new(&problem).is_displacing(&roomier.fleet);
        if holds {
            converged.outcome = roomier;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::initial_fleet::without_retiring_nodes;
    use crate::solver::packing_model::PackingModel;
    use crate::solver::work_budget::WorkBudget;
    use crate::testing::Scenario;

    /// Returns whether a fleet without one of its nodes is too large for a search, and its
    /// left-over pods and new nodes before and after their placement.
    fn place_missing_pods(passes: &Passes, model: PackingModel) -> (bool, [(u32, usize); 2]) {
        let (fleet, is_too_large) = {
            let problem = passes.problem(&passes.demand.groups, passes.existing, &model);
            let mut layout = without_retiring_nodes(&problem);
            let node = layout.packing.new_nodes.pop().expect("a new node");
            layout.price = layout.price - model.offer_classes[node.offer_class].price;
            for (class, pods) in &node.pods {
                layout.packing.left[*class] += pods;
            }
            let work = &mut WorkBudget::unlimited();
            let fleet = Simulation::new(&problem).exclude_until_passed(&layout, work);
            let is_too_large = problem.is_too_large(&fleet);
            (fleet, is_too_large)
        };
        let counts =
            |fleet: &VerifiedFleet| (fleet.unplaced.values().sum::<u32>(), fleet.offers.len());
        let before = counts(&fleet);
        let (outcome, checks) = (SolvedFleet::new(fleet), passes.checks);
        let mut converged = ConvergedFleet { outcome, model, checks, failure_domains: None };
        passes.place_after_others(&mut converged);
        (is_too_large, [before, counts(&converged.outcome.fleet)])
    }

    /// Pods with a scheduling gate make a fleet large, and cost no time: none of them is simulated.
    #[test]
    fn left_over_pod_of_a_large_fleet_gets_its_node() {
        for (gated, is_too_large) in [(0, false), (150_000, true)] {
            let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
            scenario.settings.steer = true;
            scenario.scale(3);
            let mut template = scenario.template().clone();
            template.spec.scheduling_gates = vec!["example.com/wait".to_owned()];
            scenario.deploy("gated", gated, template);
            let found = scenario.with_passes(place_missing_pods);
            assert_eq!(found, (is_too_large, [(1, 2), (0, 3)]), "{gated} gated pods");
        }
    }
}
