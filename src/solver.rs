//! Computes the target fleet: the nodes to run, and the node of each pod ([`TargetFleet`]).
//!
//! The solver knows pods, nodes, offers and pools. It does not know files, plans or the execution
//! of a plan. It does not log, and the time it plans for is an argument.
//!
//! Invariants: equal inputs give an equal target. A pod that cannot be placed is part of the
//! result, with reasons, and not an error. Work is counted and never timed.

mod alternatives;
mod attach_limits;
mod auto_scaling_groups;
mod candidate_pools;
mod cloud_drift;
mod consolidate;
mod contention;
mod contingency;
mod converge;
mod daemon_sets;
mod disruption_blockers;
mod disruption_budget;
mod drain;
mod drift;
mod equal_nodes;
mod excluded_pods;
mod exhaustive;
mod existing_node;
mod failure_domains;
mod greedy_packing;
mod idle_removal;
mod initial_fleet;
mod layout;
mod limits;
mod local_search;
mod lower_bound;
mod min_values;
mod node_disposition;
mod node_packing;
mod node_shape;
mod node_template;
mod offer;
mod offer_admission;
mod packing_model;
mod parallel;
mod pending_instances;
mod placement_lookup;
mod pod_ranks;
mod pod_variants;
mod pool_weights;
mod priced_packing;
mod pricing;
mod pricing_input;
mod problem;
mod redeployment;
mod repair;
mod replacement;
mod replacement_obstacle;
mod reported_resources;
mod rescue;
mod reserved_pools;
mod scheduling_runs;
mod shape_search;
mod simulation;
mod simulation_run;
mod special_hardware;
mod spot_diversity;
mod spread_domains;
mod staggered_readiness;
mod static_pools;
mod strategy;
mod target_builder;
mod target_fleet;
#[cfg(test)]
mod tests;
mod tie_break_sampling;
mod topology;
mod trial_packings;
mod uncovered_orders;
mod unschedulable;
mod work_budget;
mod zone_balance;

#[cfg(doc)]
#[doc = include_str!("adr/0005-placement-simulation.md")]
pub mod adr_0005 {}

#[cfg(doc)]
#[doc = include_str!("adr/0006-rules-between-pods.md")]
pub mod adr_0006 {}

#[cfg(doc)]
#[doc = include_str!("adr/0007-groups.md")]
pub mod adr_0007 {}

#[cfg(doc)]
#[doc = include_str!("adr/0008-resolved-selectors.md")]
pub mod adr_0008 {}

#[cfg(doc)]
#[doc = include_str!("adr/0009-node-shape-search.md")]
pub mod adr_0009 {}

#[cfg(doc)]
#[doc = include_str!("adr/0011-budgets.md")]
pub mod adr_0011 {}

pub use auto_scaling_groups::{
    GroupGrowth, assign_capacity_types, external_group_problems, live_group, observe_only_reason,
    with_external_groups,
};
pub use cloud_drift::unresolved_selectors;
pub use disruption_budget::exceeded_budget;
pub use existing_node::{ExistingNode, spec_digests};
pub use lower_bound::Proof;
pub use node_disposition::{NodeDisposition, RetireCondition};
pub use offer::{
    Offer, OfferInput, Offers, PoolRefusal, WithheldReason, admits, daemon_requests,
    groups_on_several_architectures, pool_problems, pool_requirements, runs_daemon,
};
pub use reported_resources::{
    StoredReports, learned_nodes, measured_resources, stored_reports_in_use,
};
pub use reserved_pools::{UnmatchedReservations, unmatched_reservations};
pub use target_fleet::{
    Contention, Launch, NewNode, NodeRef, Retire, TargetFleet, UnschedulablePods,
};
pub use unschedulable::EXPORT_POOLS;

use std::collections::BTreeSet;
use std::num::NonZero;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::demand::Demand;
use crate::model::desired::{Desired, WorstCase};
use crate::model::ids::NodeName;
use crate::model::observed::Observed;
use crate::model::reason::{BlockReason, KeepReason, RetireReason};
use crate::model::units::MicroUsd;
use attach_limits::VolumeLimits;
use converge::{ConvergedFleet, Passes};
use disruption_budget::{DisruptionBudgets, DriftedNodes};
use offer_admission::OfferAdmission;
use packing_model::PackingModel;
use pod_variants::SplitDemand;
use problem::FleetChecks;
use scheduling_runs::CoveredOrders;
use static_pools::StaticPoolNodes;
use target_builder::TargetBuilder;
use unschedulable::UnschedulableReport;

/// Thresholds for voluntary changes, and limits of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Hours over which savings are added up.
    pub horizon_hours: i64,
    /// Assumed cost of moving one running pod.
    pub restart_cost: MicroUsd,
    /// Minimum saving, in thousandths of a percent of the price of the affected nodes.
    pub minimum_saving_milli_percent: i64,
    /// Minimum saving of all changes that move pods, in thousandths of a percent of the price of the
    /// fleet.
    pub minimum_fleet_saving_milli_percent: i64,
    /// True if pods are nominated to their planned nodes, which kube-scheduler then tries first.
    pub steer: bool,
    /// What a fleet without nominations buys for unlikely orders of arrival.
    pub worst_case: WorstCase,
    /// Further nodes for pods that stay pending after nominations, in thousandths of a percent of
    /// the launched nodes of a pool.
    pub contingency_milli_percent: u32,
    /// True if a node younger than `consolidateAfter` of its pool stays. The controller waits by
    /// itself, from the last pod event of the node.
    pub keep_young_nodes: bool,
    /// Number of worker threads; `None` uses one per core. It affects the planning time only.
    pub workers: Option<NonZero<usize>>,
}

/// Purpose of a target, which decides how far the search for a cheaper one goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// The fleet is to be built.
    #[default]
    Plan,
    /// Only the price is needed: large fleets are searched less.
    Estimate,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon_hours: 24,
            restart_cost: MicroUsd(1_000),
            minimum_saving_milli_percent: 5_000,
            minimum_fleet_saving_milli_percent: 5_000,
            steer: false,
            worst_case: WorstCase::Capacity,
            contingency_milli_percent: contingency::STEERED_MILLI_PERCENT,
            keep_young_nodes: true,
            workers: None,
        }
    }
}

impl Settings {
    /// Returns what the fleet buys for unlikely orders. With nominations the order matters little,
    /// and every order is simulated.
    fn effective_worst_case(&self) -> WorstCase {
        if self.steer { WorstCase::Capacity } else { self.worst_case }
    }

    /// Returns the gain of a change over the horizon, less the cost of its moves.
    fn gain(&self, saves_hourly: MicroUsd, moves: u32) -> MicroUsd {
        saves_hourly.times(self.horizon_hours) - self.restart_cost.times(i64::from(moves))
    }

    /// Returns the minimum hourly saving for a change of nodes with this price.
    fn needed_saving(&self, affected: MicroUsd, moves: u32) -> MicroUsd {
        let share =
            MicroUsd(affected.0.saturating_mul(self.minimum_saving_milli_percent) / 100_000);
        let repaid = self.restart_cost.times(i64::from(moves)).0 / self.horizon_hours.max(1);
        MicroUsd(share.0.max(repaid + 1))
    }

    /// Returns the minimum hourly saving of all moves of pods in a fleet with this price.
    fn needed_saving_of_fleet(&self, price: MicroUsd) -> MicroUsd {
        MicroUsd(price.0.saturating_mul(self.minimum_fleet_saving_milli_percent) / 100_000)
    }

    /// Returns the hours after which a saving has paid for the moves.
    fn payback_hours(&self, saves_hourly: MicroUsd, moves: u32) -> u32 {
        let cost = self.restart_cost.times(i64::from(moves)).0;
        u32::try_from(cost / saves_hourly.0.max(1) + i64::from(cost % saves_hourly.0.max(1) != 0))
            .unwrap_or(u32::MAX)
    }
}

/// Inputs of the solver.
pub struct Input<'a> {
    /// Desired state, as the repository declares it.
    pub desired: &'a Desired,
    /// Pods to place.
    pub demand: &'a Demand,
    /// Observed state.
    pub observed: &'a Observed,
    /// Instance types, prices and offerings.
    pub catalog: &'a Catalog,
    /// Time that the plan is computed for.
    pub at: Timestamp,
    /// Reason why no node may be removed, if there is one.
    pub frozen: Option<String>,
    /// Nodes that the user asked to replace.
    pub replace: &'a [NodeName],
    /// Nodes that must not change.
    pub untouched: &'a [NodeName],
    /// Nodes that are not removed, because their running pods have no other place.
    pub needed: &'a [NodeName],
    /// Thresholds for voluntary changes, and limits of the computation.
    pub settings: Settings,
    /// Purpose of the target.
    pub purpose: Purpose,
}

/// A target and the nodes that it refers to.
pub struct Solution {
    /// Target fleet.
    pub target: TargetFleet,
    /// Existing nodes.
    pub existing_nodes: Vec<ExistingNode>,
    /// Messages about pools that cannot launch nodes, and about limits of the search.
    pub refusals: Vec<String>,
}

/// The tightest packing of all pods, before the placement simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedFleet {
    /// Number of nodes, retained ones included.
    pub nodes: usize,
    /// Price per hour of all nodes.
    pub hourly: MicroUsd,
    /// Lower bound on the price of every fleet that holds the placed pods.
    pub lower_bound: MicroUsd,
    /// Number of pods that the packing does not place.
    pub left_over: u64,
}

/// Returns the tightest packing found. Only an ideal scheduler could follow it.
///
/// It measures the solver alone, without the placement simulation.
pub fn packing(input: &Input, proof: Option<Proof>) -> PackedFleet {
    with_passes(input, |passes, model| {
        let problem = passes.problem(&passes.demand.groups, passes.existing, &model);
        let layout = initial_fleet::without_retiring_nodes(&problem);
        let retained = layout.retained.iter().filter(|retained| **retained).count();
        let lower_bound = match proof {
            Some(proof) => passes.packing_price_bound(&model, &layout, proof),
            None => MicroUsd::ZERO,
        };
        PackedFleet {
            nodes: retained + layout.packing.new_nodes.len(),
            hourly: layout.price,
            lower_bound,
            left_over: layout.packing.left_over(),
        }
    })
}

/// Calls `use_passes` with the passes over an input, and the packing model of its pods and nodes.
fn with_passes<T>(input: &Input, use_passes: impl FnOnce(&Passes, PackingModel) -> T) -> T {
    let Prepared { split, offers, existing, static_nodes: _, budgets } =
        Prepared::new(input, &DriftedNodes::default());
    let (demand, list) = (&split.demand, &offers.list);
    let admission = OfferAdmission::new(&demand.groups, list);
    let passes = Passes::new(input, demand, list, &admission, &existing, &budgets);
    let model = passes.model(&demand.groups, &existing);
    use_passes(&passes, model)
}

/// What every search starts from.
struct Prepared {
    /// Demand, with one pod shape per group.
    split: SplitDemand,
    offers: Offers,
    existing: Vec<ExistingNode>,
    static_nodes: StaticPoolNodes,
    budgets: DisruptionBudgets,
}

impl Prepared {
    fn new(input: &Input, drifted: &DriftedNodes) -> Self {
        let split = SplitDemand::new(input.demand);
        let shapes = split.demand.groups.iter().map(|group| &*group.shape);
        let supply = OfferInput {
            desired: input.desired,
            catalog: input.catalog,
            observed: input.observed,
            at: input.at,
        };
        let mut offers = Offers::new(&supply, &input.demand.daemons, shapes);
        let volume_limits =
            VolumeLimits::new(input.desired, input.observed, input.catalog, input.demand);
        volume_limits.limit_offers(offers.all_mut());
        let mut existing = existing_node::existing_nodes(input, &offers);
        // Apply disruption budgets before static pools choose nodes to replace: a blocked node is
        // not replaced.
        let budgets = DisruptionBudgets::new(
            input.desired,
            input.at,
            input.observed,
            &mut existing,
            &split.demand.groups,
            drifted,
        );
        let static_nodes = StaticPoolNodes::decide(input, &offers, &mut existing);
        existing.extend(static_nodes.as_existing_nodes());
        volume_limits.limit_existing(&mut existing);
        Self { split, offers, existing, static_nodes, budgets }
    }
}

/// Returns the target fleet.
///
/// A drifted node whose pods have no other place stays. It must not use up the disruption budget
/// of its pool: the target is then computed without such nodes, so that others are replaced.
pub fn solve(input: &Input) -> Solution {
    let first = solve_with(input, &DriftedNodes::default());
    if !first.has_stuck_node() {
        return first;
    }
    let all = DriftedNodes { ignore_budgets: true, ..DriftedNodes::default() };
    let mut irreplaceable = solve_with(input, &all).irreplaceable_nodes();
    irreplaceable.extend(first.irreplaceable_nodes());
    solve_with(input, &DriftedNodes { irreplaceable, ignore_budgets: false })
}

impl Solution {
    /// Returns true if a drifted node stays because its pods have no other place, while the budget of
    /// its pool blocks another drifted node.
    fn has_stuck_node(&self) -> bool {
        let by_budget = NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::Budget });
        let blocked = self.existing_nodes.iter().filter(|node| node.disposition == by_budget);
        let pools: BTreeSet<_> = blocked.filter_map(|node| node.pool.as_ref()).collect();
        let is_blocked =
            |node: &&ExistingNode| node.pool.as_ref().is_some_and(|p| pools.contains(p));
        self.drifted_without_place().any(|node| is_blocked(&node))
    }

    /// Returns the drifted nodes that stay because their pods have no other place.
    fn irreplaceable_nodes(&self) -> BTreeSet<NodeName> {
        self.drifted_without_place().map(|node| node.name.clone()).collect()
    }

    fn drifted_without_place(&self) -> impl Iterator<Item = &ExistingNode> {
        self.existing_nodes.iter().filter(|node| {
            let keep = self.target.keeps.get(&node.name);
            let is_stuck = matches!(
                keep,
                Some(KeepReason::Blocked {
                    by: BlockReason::NoOtherPlace
                        | BlockReason::NodeLimit { .. }
                        | BlockReason::PoolLimits { .. }
                })
            );
            is_stuck
                && matches!(node.disposition, NodeDisposition::Retire(RetireReason::Drifted { .. }))
        })
    }
}

fn solve_with(input: &Input, drifted: &DriftedNodes) -> Solution {
    let Prepared { split, offers, mut existing, static_nodes, budgets } =
        Prepared::new(input, drifted);
    let (demand, list, groups) = (&split.demand, &offers.list, &split.demand.groups);
    let admission = OfferAdmission::new(groups, list);
    let passes = Passes::new(input, demand, list, &admission, &existing, &budgets);
    let ConvergedFleet { outcome, model, checks, failure_domains } = passes.converge();
    let FleetChecks { with_events, orders, followed_pods, .. } = checks;
    let passes = passes.with_checks(FleetChecks { with_events, followed_pods, ..passes.checks });
    let tied_keys = topology::tied_keys(passes.topology_input(groups, &existing), &demand.daemons);
    let builder = TargetBuilder {
        input,
        tied_keys: &tied_keys,
        model: &model,
        groups,
        offers: &offers.list,
        admission: &admission,
        existing: &existing,
        budgets: &budgets,
        outcome: &outcome,
        settings: &input.settings,
    };
    let mut placements = builder.placements();
    let mut launches = builder.launches();
    static_nodes.add_launches(&mut placements, &mut launches, groups, &tied_keys, &offers);
    let (mut keeps, retires) = builder.keeps_and_retires(&placements, &mut launches);
    keeps.retain(|name, _| !static_nodes.contains(name));
    let problem = passes.problem(groups, &existing, &model);
    let occupants = unschedulable::PoolOccupants::of_fleet(&problem, &outcome.fleet);
    let simulation = simulation::Simulation::new(&problem);
    let eviction_budgets = contention::eviction_budgets(input.desired, groups);
    let mut contention =
        contention::contention_by_group(&simulation, &outcome.fleet, eviction_budgets);
    let competing = contention::competition_messages(groups, &contention);
    // Pods that evict others are scheduled without a new node.
    let needs_node = |group: usize| contention.get(&group).is_none_or(|c| c.let_in == 0);
    let growths = auto_scaling_groups::grow(input, groups, &mut placements, needs_node);
    let report = UnschedulableReport::new(input, &offers, occupants, &growths.groups);
    let mut unschedulable = report.explain_all(groups, &placements.unplaced, || {
        rescue::RescueContext::new(&simulation, &outcome.fleet)
    });
    for pods in &mut unschedulable {
        pods.contention = contention.remove(&pods.group).unwrap_or_default();
    }
    let (simulated_runs, uncovered) = covered_orders(&passes, orders, &simulation, &outcome);
    let mut refusals = refusal_messages(&offers, &problem, &outcome.fleet, with_events);
    refusals.extend(uncovered.into_iter().chain(competing).chain(growths.messages));
    refusals.extend(limitations(&passes, orders, &simulation, &outcome));
    let target = TargetFleet {
        placement_rejections: rescue::placement_rejections(
            &simulation,
            &outcome.fleet,
            &split.group_of,
        ),
        launches,
        keeps,
        retires,
        placements: split.merge_placements(placements.by_group),
        unschedulable: split.merge_unschedulable(unschedulable),
        growths: growths.groups,
        packed_price: passes.packed_price(&outcome.fleet),
        simulated_runs,
        without_nominations: input
            .settings
            .steer
            .then(|| passes.shortage_without_nominations(&model, &outcome)),
        contingency: passes.contingency(&model, &outcome),
        lower_bound: passes.price_bound(&outcome, Proof::Quick),
        failure_domains,
    };
    existing.retain(|node| !static_nodes.contains(&node.name));
    Solution { target, existing_nodes: existing, refusals }
}

const EVENTS_NOT_COVERED: &str = "no fleet places every pod while nodes start or drain: some pods \
                                  may be pending until a later plan";

const CUT_SHORT: &str =
    "the search for savings ended early in a fleet of this size: a later plan may find more";

/// Returns messages about pools that cannot launch nodes, and about limits of the simulation.
fn refusal_messages(
    offers: &Offers,
    problem: &problem::Problem,
    fleet: &problem::VerifiedFleet,
    with_events: bool,
) -> Vec<String> {
    let refusals = offers.refusals.iter().map(|(p, r)| unschedulable::refusal_message(p, r));
    let not_simulated = repair::not_simulated_message(problem.groups);
    let daemons = daemon_sets::oversized_messages(problem.daemons, offers, problem.existing);
    let incomplete = contention::incomplete_contention_message(problem, fleet);
    let events = (!with_events).then(|| EVENTS_NOT_COVERED.to_owned());
    let concentrated = problem.offering_share.messages(problem, fleet);
    let all = refusals.chain(not_simulated).chain(incomplete).chain(events);
    all.chain(concentrated).chain(daemons).collect()
}

/// Returns messages about preempted daemons, failed samples and a search that ended early.
fn limitations(
    passes: &Passes,
    orders: CoveredOrders,
    simulation: &simulation::Simulation,
    outcome: &strategy::SolvedFleet,
) -> Vec<String> {
    let daemons = contention::preempted_daemons_message(simulation, &outcome.fleet);
    let failed_samples = (passes.input.purpose == Purpose::Plan && orders == CoveredOrders::All)
        .then(|| tie_break_sampling::failed_samples_message(simulation, &outcome.fleet));
    let cut_short = outcome.is_cut_short.then(|| CUT_SHORT.to_owned());
    daemons.into_iter().chain(failed_samples.flatten()).chain(cut_short).collect()
}

/// Returns the names of the runs that the fleet passes, and a message about those that it does not.
fn covered_orders(
    passes: &Passes,
    orders: CoveredOrders,
    simulation: &simulation::Simulation,
    outcome: &strategy::SolvedFleet,
) -> (Vec<String>, Option<String>) {
    if orders == CoveredOrders::All && !outcome.is_partly_covered {
        return (simulated_runs(passes, outcome), None);
    }
    let report = uncovered_orders::report(simulation, &outcome.fleet, &outcome.added_runs);
    (report.passed, report.message)
}

/// Returns the names of the runs that the fleet passed, and of the samples that were added as runs.
fn simulated_runs(passes: &Passes, outcome: &strategy::SolvedFleet) -> Vec<String> {
    let (groups, offers, existing) = (&passes.demand.groups, passes.offers, passes.existing);
    if !repair::is_simulated(groups) {
        return Vec::new();
    }
    let layout = &outcome.fleet.layout;
    let nodes = layout.retained.iter().filter(|retained| **retained).count()
        + layout.packing.new_nodes.len();
    let events = || {
        let draining = scheduling_runs::draining_pods(groups, existing, &layout.retained);
        let stays = |(node, retained): (&ExistingNode, &bool)| *retained && !node.is_planned;
        let any_stays = existing.iter().zip(&layout.retained).any(stays);
        scheduling_runs::Events {
            has_drains: !draining.is_empty(),
            has_staggered_readiness: staggered_readiness::is_staggered(
                any_stays,
                &outcome.fleet.offers,
                offers,
            ),
            ..scheduling_runs::Events::NONE
        }
    };
    let events = if passes.checks.with_events { events() } else { scheduling_runs::Events::NONE };
    let has_patient_pods = scheduling_runs::has_patient_pods(groups);
    let events = scheduling_runs::Events { has_patient_pods, ..events };
    let worst_case = passes.input.settings.effective_worst_case();
    let mut orders = scheduling_runs::required_run_names(groups, nodes, events, worst_case);
    // Two fleets may have added the same sample.
    for name in scheduling_runs::names(&outcome.added_runs, groups, nodes) {
        if !orders.contains(&name) {
            orders.push(name);
        }
    }
    orders
}
