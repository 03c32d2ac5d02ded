//! Selects nodes to remove: empty nodes, and nodes whose removal or replacement
//! saves more than the moves cost.
//!
//! Empty nodes come first. Changes that move pods must together save a share of the fleet's price as
//! well, and a fleet built anew must save as much: a fleet is not rebuilt for a few percent.
//!
//! Candidates are first judged by their packing, which is cheap. Promising candidates are then
//! decided by the placement simulation: a node that only an ideal scheduler could remove is
//! retained.

mod candidate_sets;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::existing_node::ExistingNode;
use super::greedy_packing::Packing;
use super::layout::{Layout, PodsByClass};
use super::node_disposition::NodeDisposition;
use super::pool_weights::PoolWeights;
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, repair_below, repair_trial};
use super::scheduling_runs::{occupied_nodes, planned_pods};
use super::simulation::Simulation;
use super::strategy::{DeclinedChange, SolvedFleet, Strategy};
use super::tie_break_sampling::passes_same_samples;
use super::trial_packings::{TrialPacking, TrialPackings};
use super::work_budget::WorkBudget;
use crate::model::ids::NodeName;
use crate::model::market::{CapacityType, alternative_markup_in};
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::requirement::key;
use crate::model::units::MicroUsd;

/// Maximum number of rounds. Each accepted round lowers the price; the limit bounds the work.
const ROUNDS_MAX: usize = 64;

/// A small set is at most this share of the nodes, like Karpenter's default disruption budget.
const SMALL_SETS: usize = 10;
const SMALL_SET_MIN: usize = 3;

/// Number of promising sets simulated in one round; fewer if each is more work.
const SIMULATED_MAX: usize = 48;
const SIMULATED_MIN: usize = 3;

/// Work limit of all simulations of a round, in pods times nodes.
const SIMULATED_WORK: u64 = 1_000_000;

/// Work limit of optional simulations of one plan, in pods times nodes: some seconds of one core.
/// Later plans find what else can be removed from so large a fleet.
const WORK_MAX: u64 = 1_000_000_000;

/// Pods times nodes above which the exact price of a set that costs too much is not computed.
const CAPPED_WORK: u64 = 1_000_000;

/// Removes and replaces nodes where that saves more than the moves cost.
pub(super) struct Consolidation;

impl Strategy for Consolidation {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        ConsolidationSearch::new(simulation).consolidate(current)
    }
}

/// Changes that a search considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Changes within disruption budgets that move no running pod.
    WithoutMoves,
    /// All changes within disruption budgets.
    WithinBudgets,
    /// Changes of small sets, as this plan and later ones make them, until the fleet has this price.
    /// Later budgets are unknown, so none applies.
    InSteps { until: MicroUsd },
}

/// A candidate set of nodes to remove.
struct ConsolidationTrial {
    nodes: Vec<usize>,
    /// Saving above the needed one, if the pods land as they are packed. Trials are compared by it:
    /// a larger set must earn each further node that it affects.
    surplus: MicroUsd,
    needed: MicroUsd,
    moves: u32,
    /// New nodes beside the remaining ones.
    packing: Packing,
}

struct ConsolidationSearch<'s, 'a> {
    simulation: &'s mut Simulation<'a>,
    problem: &'a Problem<'a>,
    /// Work of all simulations. Once it is exhausted, later plans continue.
    work: WorkBudget,
    /// Nodes with pods of planned workloads.
    occupied: BTreeSet<&'a NodeName>,
    /// Changes of the last round that are not worth their cost.
    declined: BTreeMap<NodeName, DeclinedChange>,
    pool_weights: PoolWeights<'a>,
    packings: TrialPackings<'a>,
}

impl<'s, 'a> ConsolidationSearch<'s, 'a> {
    fn new(simulation: &'s mut Simulation<'a>) -> Self {
        let problem = simulation.problem;
        Self {
            simulation,
            problem,
            work: WorkBudget::for_searches(WORK_MAX),
            occupied: occupied_nodes(problem.groups),
            declined: BTreeMap::new(),
            pool_weights: PoolWeights::new(problem),
            packings: TrialPackings::new(problem),
        }
    }
}

impl ConsolidationSearch<'_, '_> {
    /// Returns the fleet after all changes that are worth their cost.
    fn consolidate(&mut self, current: SolvedFleet) -> SolvedFleet {
        let problem = self.problem;
        let baseline_price = current.fleet.layout.price;
        let is_every_move_worth_it = problem.settings.minimum_fleet_saving_milli_percent == 0;
        let unmoved = self.improve_to_end(current.fleet, Scope::WithoutMoves);
        let (fleet, scope) = if is_every_move_worth_it || self.is_limited() {
            (self.improve_to_end(unmoved, Scope::WithinBudgets), Scope::WithinBudgets)
        } else {
            self.improve_with_moves(unmoved)
        };
        let budget_blocked = self.budget_blocked_nodes(&fleet, scope);
        let mut solved = SolvedFleet {
            fleet,
            baseline_price,
            declined: std::mem::take(&mut self.declined),
            budget_blocked,
            is_cut_short: self.work.is_exhausted(),
            ..current
        };
        solved.drop_removed_nodes(problem.existing);
        solved
    }

    /// Changes the fleet until no change is worth its cost. A set that failed is tried once more
    /// when no other set is left.
    fn improve_to_end(&mut self, mut fleet: VerifiedFleet, scope: Scope) -> VerifiedFleet {
        let mut failed = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let is_enough =
                matches!(scope, Scope::InSteps { until } if fleet.layout.price <= until);
            if is_enough || self.work.is_exhausted() {
                break;
            }
            let is_complete = failed.is_empty();
            let allows_large = is_complete && !matches!(scope, Scope::InSteps { .. });
            let small = small_set(&fleet);
            let mut sets = self.removal_sets(&fleet.layout, scope);
            // A large set waits for the small ones that failed.
            sets.retain(|set| (allows_large || set.len() <= small) && !failed.contains(set));
            match self.improve(&fleet, sets, scope, &mut failed) {
                Some(better) => fleet = better,
                None if is_complete => break,
                None => failed.clear(),
            }
        }
        fleet
    }

    /// Returns the fleet after changes that move pods, if all of them save the minimum share of the
    /// fleet's price together: a part is worth it if the whole is, and later plans make the rest.
    fn improve_with_moves(&mut self, unmoved: VerifiedFleet) -> (VerifiedFleet, Scope) {
        if self.decline_if_near_fresh_fleet(&unmoved) {
            return (unmoved, Scope::WithoutMoves);
        }
        let part = self.improve_to_end(unmoved.clone(), Scope::WithinBudgets);
        let saving = unmoved.layout.price - part.layout.price;
        let needed = self.problem.settings.needed_saving_of_fleet(unmoved.layout.price);
        let is_worth_it = saving >= needed
            || self.moved_pods(&self.removed_nodes(&unmoved, &part), &unmoved) == 0
            || self.is_part_of_worthwhile_whole(&unmoved, &part, needed);
        if is_worth_it { (part, Scope::WithinBudgets) } else { (unmoved, Scope::WithoutMoves) }
    }

    /// Returns true if the changes of this plan and of later ones save the amount together, or if the
    /// search for them is cut short. Otherwise records the nodes that they remove.
    fn is_part_of_worthwhile_whole(
        &mut self,
        unmoved: &VerifiedFleet,
        part: &VerifiedFleet,
        needed: MicroUsd,
    ) -> bool {
        let work = std::mem::replace(&mut self.work, WorkBudget::for_searches(WORK_MAX));
        let declined = std::mem::take(&mut self.declined);
        let until = unmoved.layout.price - needed;
        let whole = self.improve_to_end(part.clone(), Scope::InSteps { until });
        let is_cut_short = std::mem::replace(&mut self.work, work).is_exhausted();
        self.declined = declined;
        let saving = unmoved.layout.price - whole.layout.price;
        if saving < needed && !is_cut_short {
            self.decline_moves(self.removed_nodes(unmoved, &whole), unmoved, saving);
        }
        saving >= needed || is_cut_short
    }

    /// Returns true if a fleet built anew, without the nodes that may be removed, would not save the
    /// minimum share of the fleet's price, and records these nodes as declined. A plan from nothing
    /// buys room for every order in which its pods may arrive. Once they run, this room looks
    /// superfluous, and the next arrivals need it.
    fn decline_if_near_fresh_fleet(&mut self, fleet: &VerifiedFleet) -> bool {
        let existing = self.problem.existing;
        let is_replaceable = |i: &usize| {
            fleet.layout.retained[*i]
                && existing[*i].price.is_some()
                && existing[*i].disposition == NodeDisposition::Consolidatable
        };
        let nodes: Vec<usize> = (0..existing.len()).filter(is_replaceable).collect();
        if nodes.iter().all(|index| existing[*index].is_planned) {
            return false;
        }
        let layout = self.problem.trial_layout(fleet.layout.without(&nodes));
        let price = fleet.layout.price;
        let needed = self.problem.settings.needed_saving_of_fleet(price);
        // The packing has no room for other orders, so the fleet costs at least as much.
        let mut saving = price - layout.price;
        if saving >= needed {
            // All pods of a fleet built anew are pending, so that all of them are nominated.
            let fresh = self.simulation.while_nominating_evicted_pods(|simulation| {
                repair_trial(simulation, &layout, &mut WorkBudget::unlimited())
            });
            saving = price - fresh.layout.price;
        }
        // A much more expensive fleet shows nothing: its offerings cost more than those that run.
        let is_near = saving < needed && saving > MicroUsd::ZERO - needed;
        if is_near {
            let real = nodes.into_iter().filter(|index| !existing[*index].is_planned).collect();
            self.decline_moves(real, fleet, saving);
        }
        is_near
    }

    /// Returns the running nodes that the later fleet does not retain.
    fn removed_nodes(&self, before: &VerifiedFleet, after: &VerifiedFleet) -> Vec<usize> {
        let is_removed = |index: &usize| {
            before.layout.retained[*index]
                && !after.layout.retained[*index]
                && !self.problem.existing[*index].is_planned
        };
        (0..self.problem.existing.len()).filter(is_removed).collect()
    }

    /// Returns true if the plan may change only a part of the fleet: a user named the part, or the
    /// controller plans around changes that are blocked.
    fn is_limited(&self) -> bool {
        let untouched = NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::NotTargeted });
        self.problem.existing.iter().any(|node| node.disposition == untouched)
    }

    /// Records that the removal of all these nodes together is not worth its cost.
    fn decline_moves(&mut self, nodes: Vec<usize>, fleet: &VerifiedFleet, saving: MicroUsd) {
        let declined = DeclinedChange {
            saves: saving,
            needed: self.problem.settings.needed_saving_of_fleet(fleet.layout.price),
            moves: self.moved_pods(&nodes, fleet),
            nodes: Some(u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
            fails_redeployment: false,
        };
        let names = nodes.into_iter().map(|index| self.problem.existing[index].name.clone());
        self.declined.extend(names.map(|name| (name, declined)));
    }

    /// Returns the fleet after the best change that passes the placement simulation. Adds the sets
    /// that are not worth their cost to `failed`.
    fn improve(
        &mut self,
        current: &VerifiedFleet,
        sets: Vec<Vec<usize>>,
        scope: Scope,
        failed: &mut BTreeSet<Vec<usize>>,
    ) -> Option<VerifiedFleet> {
        self.declined.clear();
        let mut trials = Vec::new();
        for set in sets {
            match self.pack_without(current, set.clone(), scope) {
                Some(trial) => trials.push(trial),
                None => _ = failed.insert(set),
            }
        }
        let small = small_set(current);
        let is_large = |trial: &ConsolidationTrial| trial.moves > 0 && trial.nodes.len() > small;
        trials.sort_by_key(|trial| (is_large(trial), Reverse(trial.surplus), trial.nodes.len()));
        // The best large trial is simulated in any case, unless a small one passes.
        let first_large = trials.iter().position(is_large);
        let mut best: Option<(MicroUsd, VerifiedFleet)> = None;
        for (index, trial) in trials.into_iter().enumerate() {
            if index >= self.simulations_max() && first_large != Some(index) {
                continue;
            }
            // The simulation seldom finds a cheaper fleet than the packing.
            let is_beaten = best
                .as_ref()
                .is_some_and(|(surplus, _)| is_large(&trial) || trial.surplus <= *surplus);
            if self.work.is_exhausted() || is_beaten {
                break;
            }
            let (needed, nodes) = (trial.needed, trial.nodes.clone());
            let Some(fleet) = self.simulate_trial(current, trial) else {
                failed.insert(nodes);
                continue;
            };
            let surplus = current.layout.price - fleet.layout.price - needed;
            if best.as_ref().is_none_or(|(most, _)| surplus > *most) {
                best = Some((surplus, fleet));
            }
        }
        best.map(|(_, fleet)| fleet)
    }

    /// Packs without the nodes of `set`. Returns `None` if the packing alone shows that the change
    /// is not worth it.
    fn pack_without(
        &mut self,
        current: &VerifiedFleet,
        set: Vec<usize>,
        scope: Scope,
    ) -> Option<ConsolidationTrial> {
        let problem = self.problem;
        // Planned nodes are removed at no cost.
        let real = || set.iter().filter(|i| !problem.existing[**i].is_planned);
        let affected: MicroUsd = real().map(|i| price_or_minimum(&problem.existing[*i])).sum();
        let moves = real().map(|i| self.running_and_awaited_pods(&current.layout, *i)).sum();
        if moves > 0 && scope == Scope::WithoutMoves {
            return None;
        }
        // EC2 chose the offering of a Spot node. A cheaper one alone is no reason to replace the
        // node: EC2 could choose the same offering again.
        let markup: MicroUsd = real().filter_map(|i| spot_markup(&problem.existing[*i])).sum();
        let needed = problem.settings.needed_saving(affected, moves).max(markup + MicroUsd(1));
        // The plan states the saving of one node even if it is too small.
        let least_saving = if set.len() == 1 { MicroUsd(1) } else { needed };
        let price_max = current.layout.price - least_saving;
        let before = &current.layout.packing;
        let trial = self.packings.packing(&current.layout.without(&set), before, price_max);
        let mut saves = MicroUsd::ZERO;
        if let Some(TrialPacking { packing, price }) = trial {
            if self.pool_weights.is_lowered(problem, &set, before, packing) {
                return None;
            }
            if packing.leaves_no_more_than(before) {
                saves = current.layout.price - *price;
            }
            if problem.settings.gain(saves, moves) > MicroUsd::ZERO && saves >= needed {
                let (surplus, packing) = (saves - needed, packing.clone());
                return Some(ConsolidationTrial { nodes: set, surplus, needed, moves, packing });
            }
        }
        let declined =
            DeclinedChange { saves, needed, moves, nodes: None, fails_redeployment: false };
        self.decline(&set, declined);
        None
    }

    /// Simulates a trial. Nodes that the simulation requires count against it.
    fn simulate_trial(
        &mut self,
        current: &VerifiedFleet,
        trial: ConsolidationTrial,
    ) -> Option<VerifiedFleet> {
        let ConsolidationTrial { nodes: set, needed, moves, packing, .. } = trial;
        let layout = self.problem.layout_packed(current.layout.without(&set), packing);
        let fleet = if self.is_capped(current, &set) {
            // The bound is exclusive, hence one more.
            let cap = current.layout.price - needed + MicroUsd(1);
            repair_below(self.simulation, &layout, cap, &mut self.work)?
        } else {
            repair_trial(self.simulation, &layout, &mut self.work)
        };
        let saves = current.layout.price - fleet.layout.price;
        let before = &current.layout.packing;
        // No workload may have more unschedulable pods.
        let is_no_worse = fleet
            .unplaced
            .iter()
            .all(|(group, pods)| current.unplaced.get(group).is_some_and(|before| pods <= before));
        let is_worth_it =
            saves >= needed && self.problem.settings.gain(saves, moves) > MicroUsd::ZERO;
        let is_better = is_no_worse
            && !self.relies_on_starting_nodes(current, &fleet)
            && !self.pool_weights.is_lowered(self.problem, &set, before, &fleet.layout.packing)
            && is_worth_it
            && passes_same_samples(self.simulation, &fleet, current, 0, &mut self.work);
        let fails_redeployment = is_better && !self.holds_redeployment(current, &set, &fleet);
        if is_better && !fails_redeployment {
            return Some(fleet);
        }
        self.decline(
            &set,
            DeclinedChange { saves, needed, moves, nodes: None, fails_redeployment },
        );
        None
    }

    /// Returns true if the pods still have room when all of them are created again. The removal of
    /// empty nodes is not checked.
    fn holds_redeployment(
        &mut self,
        current: &VerifiedFleet,
        set: &[usize],
        next: &VerifiedFleet,
    ) -> bool {
        let is_empty =
            set.iter().all(|node| self.running_and_awaited_pods(&current.layout, *node) == 0);
        let redeployment = self.problem.redeployment;
        is_empty || redeployment.is_none_or(|pods| pods.holds(current, next, &mut self.work))
    }

    /// Returns true if a set is dropped as soon as it costs too much: if its exact price is
    /// expensive to compute and not reported.
    fn is_capped(&self, current: &VerifiedFleet, set: &[usize]) -> bool {
        let nodes = u64::try_from(current.layout.retained.len()).unwrap_or(u64::MAX);
        let work = planned_pods(self.problem.groups).saturating_mul(nodes);
        current.unplaced.is_empty()
            && set.len() > 1
            && work > CAPPED_WORK
            && is_simulated(self.problem.groups)
    }

    /// Returns true if pods would move to nodes that are not Ready yet, and may never be.
    fn relies_on_starting_nodes(&self, current: &VerifiedFleet, next: &VerifiedFleet) -> bool {
        let not_ready = NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::NotReady });
        let pods =
            |fleet: &VerifiedFleet, index: usize| fleet.layout.pods_on[index].values().sum::<u32>();
        self.problem.existing.iter().enumerate().any(|(index, node)| {
            node.disposition == not_ready && pods(next, index) > pods(current, index)
        })
    }

    fn decline(&mut self, set: &[usize], declined: DeclinedChange) {
        if let [only] = set {
            let name = self.problem.existing[*only].name.clone();
            self.declined.insert(name, declined);
        }
    }

    /// Returns nodes that only a disruption budget retains: empty nodes together, then single nodes
    /// whose removal pays. A node that is needed, or not worth removing after those, is not blocked
    /// by a budget.
    fn budget_blocked_nodes(&mut self, fleet: &VerifiedFleet, scope: Scope) -> BTreeSet<NodeName> {
        let mut blocked_names = BTreeSet::new();
        let budgets = self.remaining_budgets(&fleet.layout);
        if budgets.is_unbounded() {
            return blocked_names;
        }
        let existing = self.problem.existing;
        let mut blocked = self.candidates(&fleet.layout);
        blocked.retain(|index| !budgets.allows(&existing[*index].name));
        let is_empty = |index: &usize| fleet.layout.pods_on[*index].is_empty();
        let empty: Vec<usize> = blocked.iter().copied().filter(is_empty).collect();
        let mut sets = Vec::new();
        if !empty.is_empty() {
            sets.push(empty);
        }
        sets.extend(blocked.into_iter().map(|index| vec![index]));
        sets.truncate(self.singles_max());
        // The fleet without the nodes found so far.
        let mut smaller = fleet.clone();
        let mut simulations_left = self.simulations_max();
        for set in sets {
            if simulations_left == 0
                || self.work.is_exhausted()
                || set.iter().any(|index| !smaller.layout.retained[*index])
            {
                continue;
            }
            let Some(trial) = self.pack_without(&smaller, set.clone(), scope) else { continue };
            simulations_left -= 1;
            if let Some(next) = self.simulate_trial(&smaller, trial) {
                blocked_names.extend(set.iter().map(|index| existing[*index].name.clone()));
                smaller = next;
            }
        }
        blocked_names
    }

    /// Returns the number of pods that a removal of these nodes moves.
    fn moved_pods(&self, nodes: &[usize], fleet: &VerifiedFleet) -> u32 {
        nodes.iter().map(|index| self.running_and_awaited_pods(&fleet.layout, *index)).sum()
    }

    /// Returns the number of pods that run on a node, and of pending pods for which an earlier plan
    /// launched it. A node just launched is not replaced to save a fraction of its price.
    fn running_and_awaited_pods(&self, layout: &Layout, node: usize) -> u32 {
        let (on, staying) = (&layout.pods_on[node], &layout.staying[node]);
        let count = |pods: &PodsByClass, class| pods.get(class).copied().unwrap_or(0);
        let awaited = self.problem.model.bins[node].planned.iter().map(|(class, planned)| {
            count(on, class).saturating_sub(count(staying, class)).min(*planned)
        });
        layout.staying_pods_on(node) + awaited.sum::<u32>()
    }

    fn simulations_max(&self) -> usize {
        let pods = self.problem.model.classes.iter().map(|class| u64::from(class.planned));
        let nodes = u64::try_from(self.problem.existing.len()).unwrap_or(u64::MAX);
        let work = pods.fold(0, u64::saturating_add).saturating_mul(nodes).max(1);
        usize::try_from(SIMULATED_WORK / work)
            .unwrap_or(SIMULATED_MAX)
            .clamp(SIMULATED_MIN, SIMULATED_MAX)
    }
}

/// Returns the number of nodes up to which a set comes before larger sets: a large change must earn
/// what it moves beyond the small ones.
fn small_set(fleet: &VerifiedFleet) -> usize {
    let retained = fleet.layout.retained.iter().filter(|retained| **retained).count();
    SMALL_SET_MIN.max(retained.div_ceil(SMALL_SETS))
}

/// Returns the part of the price of a Spot node that EC2's choice may account for.
fn spot_markup(node: &ExistingNode) -> Option<MicroUsd> {
    let is_spot = node.labels.get(key::CAPACITY_TYPE)?.as_str() == CapacityType::Spot.as_str();
    node.price.filter(|_| is_spot).map(alternative_markup_in)
}

/// Returns the price of a node, or the minimum price if it is unknown. Such a node is removed when
/// it is not needed and never replaced to save money.
pub(super) fn price_or_minimum(node: &ExistingNode) -> MicroUsd {
    node.price.unwrap_or(MicroUsd(1))
}

#[cfg(test)]
mod tests;
