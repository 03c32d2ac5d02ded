//! Repeats planning until a further pass changes nothing.
//!
//! The first pass only serves unschedulable pods. Its result can be improved like any other fleet.
//! Each result is therefore treated as applied and consolidated again, and planned nodes can be
//! removed at no cost. Changes that would otherwise appear in the next plan become part of this
//! plan.

mod left_over_pods;

use std::collections::{BTreeMap, BTreeSet};

use super::disruption_budget::DisruptionBudgets;
use super::existing_node::ExistingNode;
use super::failure_domains::{FailureDomainLimits, PlacementMap};
use super::greedy_packing::{PackedNode, Packing};
use super::initial_fleet::initial_fleet;
use super::layout::{Layout, PodsByClass};
use super::limits::RemainingLimits;
use super::lower_bound::{Proof, lower_bound};
use super::node_disposition::NodeDisposition;
use super::offer::Offer;
use super::offer_admission::OfferAdmission;
use super::packing_model::{PackingModel, PackingSupply};
use super::problem::{FleetChecks, FollowedPods, Placements, Problem, ProblemInput, VerifiedFleet};
use super::redeployment::Redeployment;
use super::repair::{is_simulated, missing_nodes, shortage_without_nominations};
use super::scheduling_runs::CoveredOrders;
use super::simulation::Simulation;
use super::spot_diversity::OfferingShare;
use super::strategy::{SolvedFleet, Stage, improve};
use super::target_fleet::NodeRef;
use super::tie_break_sampling::{passes_same_samples, require_failed_samples};
use super::topology::{TopologyAssignment, TopologyInput};
use super::work_budget::WorkBudget;
use super::{Input, Purpose, auto_scaling_groups, contingency};
use crate::demand::{Demand, PodGroup};
use crate::model::desired::WorstCase;
use crate::model::ids::NodeName;
use crate::model::reason::{Contingency, FailureDomainReport, Unsteered};
use crate::model::units::MicroUsd;

/// Maximum number of passes after the first.
const PASSES_MAX: usize = 8;

/// Pods times nodes up to which passes search for a better fleet.
const PASS_WORK_MAX: u64 = 20_000;

/// Inputs of every pass.
pub(super) struct Passes<'a> {
    pub input: &'a Input<'a>,
    /// Demand, with one pod shape per group.
    pub demand: &'a Demand,
    pub offers: &'a [Offer],
    /// Admission of the groups of the demand to the offers.
    pub admission: &'a OfferAdmission<'a>,
    pub existing: &'a [ExistingNode],
    /// Disruption budgets of the existing nodes.
    pub budgets: &'a DisruptionBudgets,
    /// What a fleet is checked for.
    pub checks: FleetChecks<'a>,
}

/// Result of all passes, with the packing model that it refers to.
pub(super) struct ConvergedFleet<'a> {
    pub outcome: SolvedFleet,
    pub model: PackingModel,
    /// What the fleet was checked for.
    pub checks: FleetChecks<'a>,
    /// Effect of failure-domain limits, if any are declared.
    pub failure_domains: Option<FailureDomainReport>,
}

impl<'a> Passes<'a> {
    /// Returns the passes over the whole problem, with every check.
    pub(super) fn new(
        input: &'a Input<'a>,
        demand: &'a Demand,
        offers: &'a [Offer],
        admission: &'a OfferAdmission<'a>,
        existing: &'a [ExistingNode],
        budgets: &'a DisruptionBudgets,
    ) -> Self {
        Self {
            input,
            demand,
            offers,
            admission,
            existing,
            budgets,
            checks: FleetChecks::all(&input.desired.failure_domains),
        }
    }

    /// Returns the same passes with other checks.
    pub(super) fn with_checks(&self, checks: FleetChecks<'a>) -> Self {
        Self { checks, ..*self }
    }

    /// Returns the fleet for the whole problem.
    ///
    /// Failure-domain limits are dropped if they leave more pods unschedulable.
    pub(super) fn converge(&self) -> ConvergedFleet<'a> {
        let limited = self.converge_with_checks();
        let limits = self.checks.failure_domains;
        if limits.is_empty() {
            return limited;
        }
        let failure_domains = FailureDomainLimits::none();
        let unlimited =
            self.with_checks(FleetChecks { failure_domains, ..self.checks }).converge_with_checks();
        let unplaced = |converged: &ConvergedFleet| {
            converged.outcome.fleet.unplaced_by_priority(&self.demand.groups)
        };
        let price = |converged: &ConvergedFleet| converged.outcome.fleet.layout.price;
        let extra_price = (price(&limited) - price(&unlimited)).max(MicroUsd::ZERO);
        let (converged, hourly) = if unplaced(&limited) > unplaced(&unlimited) {
            (unlimited, MicroUsd::ZERO)
        } else {
            (limited, extra_price)
        };
        let fleet = &converged.outcome.fleet;
        let map =
            PlacementMap { existing: self.existing, offers: self.offers, chosen: &fleet.offers };
        let beyond = limits.exceeded(&fleet.placements, &self.demand.groups, map);
        let report = FailureDomainReport { hourly, beyond };
        ConvergedFleet { failure_domains: Some(report), ..converged }
    }

    /// Returns the fleet for the checks.
    ///
    /// Pods that others must be near are assigned to one domain instead of several if that leaves
    /// fewer pods unschedulable, as it may where limits of a pool bound the fleet.
    fn converge_with_checks(&self) -> ConvergedFleet<'a> {
        let spread = self.converge_once();
        let unplaced = |converged: &ConvergedFleet| {
            converged.outcome.fleet.unplaced_by_priority(&self.demand.groups)
        };
        if spread.outcome.fleet.unplaced.is_empty() || !self.spreads_followed_pods() {
            return spread;
        }
        let checks = FleetChecks { followed_pods: FollowedPods::Together, ..self.checks };
        let together = self.with_checks(checks).converge_once();
        if unplaced(&together) < unplaced(&spread) { together } else { spread }
    }

    /// Returns true if some pods must be near other pods and may be spread as well.
    fn spreads_followed_pods(&self) -> bool {
        let follows = |group: &PodGroup| {
            let shape = &group.shape;
            let is_apart = !shape.spread.is_empty() || !shape.anti_affinity.required.is_empty();
            is_apart && !shape.affinity.required.is_empty()
        };
        self.checks.followed_pods == FollowedPods::Spread && self.demand.groups.iter().any(follows)
    }

    fn converge_once(&self) -> ConvergedFleet<'a> {
        let model = self.model(&self.demand.groups, self.existing);
        let (outcome, with_events) = self.run_with_best_events(&model);
        let checks = FleetChecks { with_events, ..self.checks };
        let mut converged = ConvergedFleet { outcome, model, checks, failure_domains: None };
        // With `WorstCase::Capacity`, an unsteered plan holds every simulated order, or names its pods
        // as unschedulable.
        if self.input.settings.steer {
            for orders in [CoveredOrders::Likely, CoveredOrders::Declared] {
                self.place_left_over(&mut converged, orders);
            }
            self.place_after_others(&mut converged);
            self.make_room_for_unschedulable(&mut converged);
        } else if self.input.settings.worst_case == WorstCase::Contingency {
            for orders in [CoveredOrders::LikelyByPriority, CoveredOrders::Declared] {
                self.place_left_over(&mut converged, orders);
            }
            self.place_after_others(&mut converged);
            self.cover_likely_orders(&mut converged);
        }
        converged
    }

    /// Returns the fleet, and true if its runs included events (staggered readiness, drains). If no
    /// fleet places every pod during events, a fleet that places more pods without events is
    /// better.
    pub(super) fn run_with_best_events(&self, model: &PackingModel) -> (SolvedFleet, bool) {
        let unplaced =
            |outcome: &SolvedFleet| outcome.fleet.unplaced_by_priority(&self.demand.groups);
        let outcome = self.run_passes(model);
        if outcome.fleet.unplaced.is_empty() || !self.has_events() {
            return (outcome, true);
        }
        let checks = FleetChecks { with_events: false, ..self.checks };
        let without_events = self.with_checks(checks).run_passes(model);
        if unplaced(&without_events) < unplaced(&outcome) {
            (without_events, false)
        } else {
            (outcome, true)
        }
    }

    /// Returns true if some nodes may be ready before others, or drained.
    fn has_events(&self) -> bool {
        let is_tainted = |offer: &Offer| !offer.node.startup_taints.is_empty();
        !self.existing.is_empty()
            || self.offers.iter().any(is_tainted) && !self.offers.iter().all(is_tainted)
    }

    /// Returns the fleet that no further pass improves, in terms of `model`, which covers the
    /// groups and the existing nodes.
    pub(super) fn run_passes(&self, model: &PackingModel) -> SolvedFleet {
        let outcome = self.pass(&self.demand.groups, self.existing, model);
        self.further_passes(model, outcome)
    }

    /// Returns the fleet that no further pass improves, from the result of a pass.
    fn further_passes(&self, model: &PackingModel, mut outcome: SolvedFleet) -> SolvedFleet {
        for _ in 0..PASSES_MAX {
            if outcome.fleet.offers.is_empty() || self.is_large(&outcome.fleet) {
                break;
            }
            let groups = self.groups_after(&outcome.fleet);
            let existing = self.fleet_after(&outcome.fleet);
            let next = self.model(&groups, &existing);
            let better = self.pass(&groups, &existing, &next);
            let layout = &better.fleet.layout;
            if layout.retained.iter().all(|retained| *retained)
                && layout.packing.new_nodes.is_empty()
            {
                break;
            }
            if layout.price > outcome.fleet.layout.price {
                break;
            }
            let leaner = self.translate(model, &outcome.fleet, &better.fleet);
            let Some(proven) = self.verify_in_all_orders(model, &outcome.fleet, &leaner) else {
                break;
            };
            outcome.fleet = proven;
            outcome.budget_blocked.retain(|name| !better.declined.contains_key(name));
            outcome.declined.retain(|name, _| !better.budget_blocked.contains(name));
            outcome.declined.extend(better.declined);
            outcome.budget_blocked.extend(better.budget_blocked);
        }
        let problem = self.problem(&self.demand.groups, self.existing, model);
        for stage in [Stage::Reuse, Stage::Finish] {
            outcome = improve(stage, &mut Simulation::new(&problem), outcome);
        }
        outcome.drop_removed_nodes(self.existing);
        outcome
    }

    /// Returns the packing model of `groups`, some of which run on `existing`.
    pub(super) fn model(&self, groups: &[PodGroup], existing: &[ExistingNode]) -> PackingModel {
        let supply = PackingSupply {
            offers: self.offers,
            admission: self.admission,
            existing,
            daemons: &self.demand.daemons,
        };
        PackingModel::new(
            groups,
            &TopologyAssignment::new(self.topology_input(groups, existing)),
            supply,
        )
    }

    /// Returns the input of the topology assignment.
    pub(super) fn topology_input<'t>(
        &'t self,
        groups: &'t [PodGroup],
        existing: &'t [ExistingNode],
    ) -> TopologyInput<'t> {
        let namespaces = &self.input.desired.namespaces;
        TopologyInput {
            groups,
            offers: self.offers,
            admission: self.admission,
            existing,
            namespaces,
            failure_domains: self.checks.failure_domains,
            followed_pods: self.checks.followed_pods,
        }
    }

    /// Simulates a fleet that was found with planned pods treated as running. Returns `None` if a
    /// run does not place all of them.
    fn verify_in_all_orders(
        &self,
        model: &PackingModel,
        earlier: &VerifiedFleet,
        leaner: &VerifiedFleet,
    ) -> Option<VerifiedFleet> {
        let problem = self.problem(&self.demand.groups, self.existing, model);
        let (mut simulation, work) = (Simulation::new(&problem), &mut WorkBudget::unlimited());
        let proven = simulation.passing(&leaner.layout, work)?;
        let left = |fleet: &VerifiedFleet| fleet.unplaced_by_priority(&self.demand.groups);
        let holds = left(&proven) <= left(earlier)
            && passes_same_samples(&simulation, &proven, earlier, 0, work);
        holds.then_some(proven)
    }

    /// Returns a lower bound on the price of every fleet of new nodes that holds the placed pods. It
    /// depends on demand, offers and prices alone, so that it stays while the fleet changes. Pods
    /// that no offer admits add nothing. No topology domain is fixed, because another fleet may
    /// choose another.
    pub(super) fn price_bound(&self, outcome: &SolvedFleet, proof: Proof) -> MicroUsd {
        let groups = &self.demand.groups;
        let supply = PackingSupply {
            offers: self.offers,
            admission: self.admission,
            existing: &[],
            daemons: &self.demand.daemons,
        };
        let domains = TopologyAssignment::caps_only(self.topology_input(groups, &[]));
        let model = PackingModel::new(groups, &domains, supply);
        let placed = |(group, planned): &(usize, u32)| {
            planned.saturating_sub(outcome.fleet.unplaced.get(group).copied().unwrap_or(0))
        };
        let classes = model.classes.iter();
        let placed: Vec<u32> = classes.map(|c| c.group_counts.iter().map(placed).sum()).collect();
        lower_bound(&model, placed, proof)
    }

    /// Returns the price of the tightest packing found for the pods that the fleet places, on the
    /// nodes that it retains. The packing of a fleet that leaves out other pods may cost less than
    /// any that holds these.
    pub(super) fn packed_price(&self, fleet: &VerifiedFleet) -> MicroUsd {
        let price = fleet.layout.price;
        if self.input.purpose == Purpose::Estimate || !is_simulated(&self.demand.groups) {
            return price;
        }
        let placed = |(index, group): (usize, &PodGroup)| {
            let unplaced = fleet.unplaced.get(&index).copied().unwrap_or(0);
            PodGroup { counts: group.counts.minus(unplaced), ..group.clone() }
        };
        let groups: Vec<PodGroup> = self.demand.groups.iter().enumerate().map(placed).collect();
        let model = self.model(&groups, self.existing);
        let problem = self.problem(&groups, self.existing, &model);
        let layout = problem.repack(problem.layout(fleet.layout.retained.clone()));
        if layout.packing.left_over() == 0 { layout.price.min(price) } else { price }
    }

    /// Returns a lower bound on the price of every fleet that holds the pods of a packing.
    pub(super) fn packing_price_bound(
        &self,
        model: &PackingModel,
        layout: &Layout,
        proof: Proof,
    ) -> MicroUsd {
        let fleet = self.problem(&self.demand.groups, self.existing, model).as_packed(layout);
        self.price_bound(&SolvedFleet::new(fleet), proof)
    }

    /// Places `groups` on existing and new nodes, and consolidates.
    fn pass(
        &self,
        groups: &[PodGroup],
        existing: &[ExistingNode],
        model: &PackingModel,
    ) -> SolvedFleet {
        let redeployment = Redeployment::new(self, groups, existing);
        let problem =
            self.problem(groups, existing, model).with_redeployment(redeployment.as_ref());
        let mut simulation = Simulation::new(&problem);
        let start = SolvedFleet::new(initial_fleet(&mut simulation));
        improve(Stage::Pass, &mut simulation, start)
    }

    /// Returns the problem of placing `groups` on `existing` and new nodes.
    pub(super) fn problem<'s>(
        &'s self,
        groups: &'s [PodGroup],
        existing: &'s [ExistingNode],
        model: &'s PackingModel,
    ) -> Problem<'s> {
        let columns: Vec<&Offer> =
            model.offer_classes.iter().map(|c| &self.offers[c.offers[0]]).collect();
        let pools = auto_scaling_groups::pool_limits(self.input.desired, self.input.observed);
        // Retiring nodes still count against limits, because they are removed last.
        let new = existing.iter().filter(|node| node.is_planned);
        let current = self.existing.iter().filter(|node| !node.is_planned);
        let counted: Vec<ExistingNode> = current.chain(new).cloned().collect();
        let reservations = self.input.observed.reservations.iter();
        let supply = reservations.map(|(id, reservation)| (id, reservation.available));
        let limits = RemainingLimits::new(&pools, supply, &counted, &columns);
        let problem = Problem::new(ProblemInput {
            model,
            groups,
            daemons: &self.demand.daemons,
            offers: self.offers,
            admission: self.admission,
            existing,
            namespaces: &self.input.desired.namespaces,
            limits,
            settings: self.input.settings,
            purpose: self.input.purpose,
            checks: self.checks,
            budgets: self.remaining_budgets(existing),
            offering_share: OfferingShare::new(self.input.desired),
            redeployment: None,
        });
        if self.checks.ignores_nominations { problem.without_nominations() } else { problem }
    }

    /// Returns the budgets that remain once all nodes other than `existing` are removed.
    fn remaining_budgets(&self, existing: &[ExistingNode]) -> DisruptionBudgets {
        if self.budgets.is_unbounded() {
            return self.budgets.clone();
        }
        let retained: BTreeSet<&NodeName> = existing.iter().map(|node| &node.name).collect();
        let names = self.existing.iter().map(|node| &node.name);
        self.budgets.after_removing(names.filter(|name| !retained.contains(name)))
    }

    /// Returns the shortage of the fleet if no nomination is honored.
    pub(super) fn shortage_without_nominations(
        &self,
        model: &PackingModel,
        outcome: &SolvedFleet,
    ) -> Unsteered {
        let problem = self.problem(&self.demand.groups, self.existing, model);
        let problem = problem.without_nominations();
        shortage_without_nominations(&mut Simulation::new(&problem), &outcome.fleet)
    }

    /// Returns the further nodes for pods that stay pending once the fleet runs: a share of the
    /// launched nodes where pods are nominated, and else the nodes that unlikely orders need. Every
    /// other fleet holds every order, and needs none.
    pub(super) fn contingency(
        &self,
        model: &PackingModel,
        outcome: &SolvedFleet,
    ) -> Option<Contingency> {
        let settings = &self.input.settings;
        let is_needed = settings.steer || settings.worst_case == WorstCase::Contingency;
        let is_planned = self.input.purpose == Purpose::Plan && is_simulated(&self.demand.groups);
        if !is_needed || !is_planned || outcome.fleet.offers.is_empty() {
            return None;
        }
        let problem = self.problem(&self.demand.groups, self.existing, model);
        if settings.steer {
            return contingency::for_steered(&problem, &outcome.fleet);
        }
        let problem = problem.without_nominations();
        let mut simulation = Simulation::new(&problem);
        require_failed_samples(&mut simulation, &outcome.fleet);
        let missing = missing_nodes(&mut simulation, &outcome.fleet);
        contingency::for_missing(&missing, self.offers)
    }

    /// Returns true if further passes for a better fleet would take too long. A later plan may improve
    /// such a fleet.
    fn is_large(&self, fleet: &VerifiedFleet) -> bool {
        let pods = self.demand.groups.iter().map(|group| u64::from(group.counts.planned));
        let retained = fleet.layout.retained.iter().filter(|retained| **retained).count();
        let nodes = u64::try_from(retained + fleet.offers.len()).unwrap_or(u64::MAX);
        pods.fold(0, u64::saturating_add).saturating_mul(nodes) > PASS_WORK_MAX
    }

    /// Returns the groups with their pods running as `fleet` places them.
    fn groups_after(&self, fleet: &VerifiedFleet) -> Vec<PodGroup> {
        let running = |index: usize| -> BTreeMap<NodeName, u32> {
            let nodes = fleet.placements.get(&index).into_iter().flatten();
            nodes.map(|(node, count)| (node_name(node), *count)).collect()
        };
        let groups = self.demand.groups.iter().enumerate();
        groups
            .map(|(index, group)| PodGroup {
                running: running(index),
                ending: [].into(),
                ..group.clone()
            })
            .collect()
    }

    /// Returns the retained nodes, then the launched nodes.
    fn fleet_after(&self, fleet: &VerifiedFleet) -> Vec<ExistingNode> {
        let retained =
            self.existing.iter().zip(&fleet.layout.retained).filter(|(_, retained)| **retained);
        let retained = retained.map(|(node, _)| node.clone());
        let launched = fleet.offers.iter().enumerate().map(|(index, offer)| {
            let name = node_name(&NodeRef::Launch(index));
            ExistingNode::from_offer(name, &self.offers[*offer], NodeDisposition::Consolidatable)
        });
        retained.chain(launched).collect()
    }

    /// Expresses `later`, which is relative to the fleet after `earlier`, in terms of the existing
    /// nodes.
    fn translate(
        &self,
        model: &PackingModel,
        earlier: &VerifiedFleet,
        later: &VerifiedFleet,
    ) -> VerifiedFleet {
        let mut later_retained = later.layout.retained.iter().copied();
        let retained: Vec<bool> = earlier
            .layout
            .retained
            .iter()
            .map(|retained| *retained && later_retained.next().unwrap_or(false))
            .collect();
        let (mut offers, mut launches) = (Vec::new(), BTreeMap::new());
        for (index, offer) in earlier.offers.iter().enumerate() {
            if later_retained.next().unwrap_or(false) {
                let planned = NodeRef::Existing(node_name(&NodeRef::Launch(index)));
                launches.insert(planned, offers.len());
                offers.push(*offer);
            }
        }
        for (index, offer) in later.offers.iter().enumerate() {
            launches.insert(NodeRef::Launch(index), offers.len());
            offers.push(*offer);
        }
        let translated = |node: &NodeRef| {
            launches.get(node).map_or_else(|| node.clone(), |index| NodeRef::Launch(*index))
        };
        let of_group = |on: &BTreeMap<NodeRef, u32>| {
            on.iter().map(|(node, count)| (translated(node), *count)).collect()
        };
        let placements: Placements =
            later.placements.iter().map(|(group, on)| (*group, of_group(on))).collect();
        // Running pods decide which offers are equal, so columns are looked up again.
        let column = |offer: &usize| model.class_of_offer[*offer];
        let new_nodes = offers.iter().map(|offer| PackedNode {
            offer_class: column(offer),
            pods: PodsByClass::new(),
            offer: Some(*offer),
        });
        let packing = Packing { new_nodes: new_nodes.collect(), left: Vec::new() };
        let mut layout = Layout {
            pods_on: vec![PodsByClass::new(); retained.len()],
            staying: vec![PodsByClass::new(); retained.len()],
            retained,
            packing,
            price: later.layout.price,
        };
        let problem = self.problem(&self.demand.groups, self.existing, model);
        problem.recount_classes(&mut layout, &placements, &offers, &later.unplaced);
        problem.record_staying(&mut layout, &placements);
        VerifiedFleet { layout, offers, placements, unplaced: later.unplaced.clone() }
    }
}

/// Returns the name of a planned node while it is treated as existing.
fn node_name(node: &NodeRef) -> NodeName {
    match node {
        NodeRef::Existing(name) => name.clone(),
        // Further new nodes are named `launch/…`, and names must differ.
        NodeRef::Launch(index) => format!("planned/{index}").as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::initial_fleet::without_retiring_nodes;
    use crate::testing::Scenario;

    /// Each node has room for one pod.
    #[test]
    fn packing_holds_the_pods_that_the_fleet_places() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(3);
        scenario.with_passes(|passes, model| {
            let problem = passes.problem(&passes.demand.groups, passes.existing, &model);
            let tightest = without_retiring_nodes(&problem);
            let nodes = &tightest.packing.new_nodes;
            let price = model.offer_classes[nodes[0].offer_class].price;
            assert_eq!((nodes.len(), tightest.price), (3, price.times(3)));
            for (left_out, idle) in [(0, 0), (0, 2), (1, 0), (1, 2), (3, 1)] {
                let mut layout = tightest.clone();
                for node in &mut layout.packing.new_nodes[..left_out] {
                    for (class, pods) in std::mem::take(&mut node.pods) {
                        layout.packing.left[class] += pods;
                    }
                }
                layout.packing.new_nodes.drain(..left_out);
                let idle_node = PackedNode { pods: PodsByClass::new(), ..nodes[0].clone() };
                layout.packing.new_nodes.extend(vec![idle_node; idle]);
                layout.price = layout.packing.price(&model);
                let fleet = problem.as_packed(&layout);
                let unplaced = fleet.unplaced.values().sum::<u32>();
                assert_eq!(usize::try_from(unplaced), Ok(left_out));
                let packed = passes.packed_price(&fleet);
                let expected = price.times(3 - i64::from(unplaced));
                assert_eq!(packed, expected, "{left_out} left out, {idle} idle");
                assert!(passes.price_bound(&SolvedFleet::new(fleet), Proof::Quick) <= packed);
            }
        });
    }

    #[test]
    fn planned_nodes_and_further_new_nodes_have_different_names() {
        let planned = node_name(&NodeRef::Launch(0));
        assert!(!planned.as_str().starts_with("launch/"), "{planned:?}");
        assert_eq!(node_name(&NodeRef::Existing("n1".into())).as_str(), "n1");
    }
}
