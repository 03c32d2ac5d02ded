//! Selects nodes to remove: empty nodes, and nodes whose removal or replacement
//! saves more than the moves cost.
//!
//! Empty nodes come first. Changes that move pods must together save a share of the fleet's price as
//! well, and a fleet built anew must save as much: a fleet is not rebuilt for a few percent.
//!
//! Candidates are first judged by their packing, which is cheap. Promising candidates are then
//! decided by the placement simulation: a node that only an ideal scheduler could remove is
//! retained.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::disruption_budget::DisruptionBudgets;
use super::existing_node::ExistingNode;
use super::layout::{Layout, PodsByClass};
use super::node_disposition::NodeDisposition;
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, repair_below, repair_trial};
use super::scheduling_runs::{occupied_nodes, planned_pods};
use super::simulation::Simulation;
use super::strategy::{DeclinedChange, SolvedFleet, Strategy};
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;
use crate::model::ids::NodeName;
use crate::model::market::{CapacityType, alternative_markup_in};
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::requirement::key;
use crate::model::units::MicroUsd;

/// Maximum number of rounds. Each accepted round lowers the price; the limit bounds the work.
const ROUNDS_MAX: usize = 64;

/// Maximum number of candidates for which pairs are tried.
const PAIRS_MAX: usize = 16;

/// Number of nodes tried alone in one round, most wasteful first.
const SINGLES_MAX: usize = 96;
const SINGLES_MIN: usize = 8;

/// Work limit of all single-node tries of a round, in classes times nodes.
const SINGLES_WORK: usize = 2_000_000;

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
        let problem = simulation.problem;
        let mut round = ConsolidationRound {
            simulation,
            problem,
            work: WorkBudget::for_searches(WORK_MAX),
            occupied: occupied_nodes(problem.groups),
            declined: BTreeMap::new(),
            budget_blocked: BTreeSet::new(),
            may_move: problem.settings.minimum_fleet_saving_milli_percent == 0,
            is_cut_by_budget: false,
            ignores_budgets: false,
        };
        let baseline_price = current.fleet.layout.price;
        let unmoved = round.improve_to_end(current.fleet);
        let fleet = if round.is_near_fresh_fleet(&unmoved) {
            unmoved
        } else {
            round.may_move = true;
            round.is_cut_by_budget = false;
            let improved = round.improve_to_end(unmoved.clone());
            round.select(unmoved, improved)
        };
        round.record_budget_blocked(&fleet);
        let mut solved = SolvedFleet {
            fleet,
            baseline_price,
            declined: round.declined,
            budget_blocked: round.budget_blocked,
            is_cut_short: round.work.is_exhausted(),
            ..current
        };
        solved.drop_removed_nodes(problem.existing);
        solved
    }
}

/// A candidate set of nodes to remove, with its layout and gain.
struct ConsolidationTrial {
    nodes: Vec<usize>,
    layout: Layout,
    gain: MicroUsd,
    needed: MicroUsd,
    moves: u32,
}

struct ConsolidationRound<'s, 'a> {
    simulation: &'s mut Simulation<'a>,
    problem: &'a Problem<'a>,
    /// Work of all simulations. Once it is exhausted, later plans continue.
    work: WorkBudget,
    /// Nodes with pods of planned workloads.
    occupied: BTreeSet<&'a NodeName>,
    declined: BTreeMap<NodeName, DeclinedChange>,
    budget_blocked: BTreeSet<NodeName>,
    /// True if a change may move running pods.
    may_move: bool,
    /// True if a disruption budget allowed only a part of a change.
    is_cut_by_budget: bool,
    /// True while removals are searched without disruption budgets.
    ignores_budgets: bool,
}

impl ConsolidationRound<'_, '_> {
    /// Changes the fleet until no change is worth its cost.
    fn improve_to_end(&mut self, mut fleet: VerifiedFleet) -> VerifiedFleet {
        for _ in 0..ROUNDS_MAX {
            if self.work.is_exhausted() {
                break;
            }
            match self.improve(&fleet) {
                Some(better) => fleet = better,
                None => break,
            }
        }
        fleet
    }

    /// Returns true if a fleet built anew, without the nodes that may be removed, would not save the
    /// minimum share of the fleet's price. A plan from nothing buys room for every order in which its
    /// pods may arrive. Once they run, this room looks superfluous, and the next arrivals need it.
    fn is_near_fresh_fleet(&mut self, fleet: &VerifiedFleet) -> bool {
        let existing = self.problem.existing;
        let may_go = |i: &usize| {
            fleet.layout.retained[*i]
                && existing[*i].price.is_some()
                && existing[*i].disposition == NodeDisposition::Consolidatable
        };
        let nodes: Vec<usize> = (0..existing.len()).filter(may_go).collect();
        let share = self.problem.settings.minimum_fleet_saving_milli_percent;
        if share == 0 || self.is_limited() || nodes.iter().all(|index| existing[*index].is_planned)
        {
            return false;
        }
        let mut retained = fleet.layout.retained.clone();
        for index in &nodes {
            retained[*index] = false;
        }
        let layout = self.problem.trial_layout(retained);
        let price = fleet.layout.price;
        let needed = self.problem.settings.needed_saving_of_fleet(price);
        // The packing has no room for other orders, so the fleet costs at least as much.
        let mut saves = price - layout.price;
        if saves >= needed {
            // All pods of a fleet built anew are pending, so that all of them are nominated.
            self.simulation.nominates_evicted_pods = true;
            let fresh = repair_trial(self.simulation, &layout, &mut WorkBudget::unlimited());
            self.simulation.nominates_evicted_pods = false;
            saves = price - fresh.layout.price;
        }
        // A much dearer fleet says nothing: its offerings cost more than those that run.
        let is_near = saves < needed && saves > MicroUsd::ZERO - needed;
        if is_near {
            let real = nodes.into_iter().filter(|index| !existing[*index].is_planned).collect();
            self.decline_moves(real, fleet, saves);
        }
        is_near
    }

    /// Returns the improved fleet if its changes move no pod, or save the minimum share of the fleet's
    /// price. Otherwise records the nodes that would be removed.
    fn select(&mut self, unmoved: VerifiedFleet, improved: VerifiedFleet) -> VerifiedFleet {
        let (was, is) = (&unmoved.layout.retained, &improved.layout.retained);
        let existing = self.problem.existing.iter().enumerate();
        let removed = existing.filter(|(i, node)| was[*i] && !is[*i] && !node.is_planned);
        let removed: Vec<usize> = removed.map(|(index, _)| index).collect();
        let saves = unmoved.layout.price - improved.layout.price;
        let needed = self.problem.settings.needed_saving_of_fleet(unmoved.layout.price);
        let moves_no_pod = self.moved_pods(&removed, &unmoved) == 0;
        if saves >= needed || moves_no_pod || self.is_limited() {
            return improved;
        }
        // A part goes on if the whole change is worth it.
        if self.is_cut_by_budget && self.saves_without_budgets(&unmoved, needed) {
            return improved;
        }
        self.decline_moves(removed, &unmoved, saves);
        self.may_move = false;
        unmoved
    }

    /// Returns true if all changes would save the amount without budgets, or if the search for them
    /// is cut short: a fleet built anew would save as much.
    fn saves_without_budgets(&mut self, fleet: &VerifiedFleet, needed: MicroUsd) -> bool {
        let declined = std::mem::take(&mut self.declined);
        let work = std::mem::replace(&mut self.work, WorkBudget::for_searches(WORK_MAX));
        self.ignores_budgets = true;
        let whole = self.improve_to_end(fleet.clone());
        self.ignores_budgets = false;
        self.declined = declined;
        let is_cut_short = std::mem::replace(&mut self.work, work).is_exhausted();
        is_cut_short || fleet.layout.price - whole.layout.price >= needed
    }

    /// Returns true if the plan may change only a part of the fleet: a user named the part, or the
    /// controller plans around changes that are blocked.
    fn is_limited(&self) -> bool {
        let untouched = KeepReason::Blocked { by: BlockReason::NotTargeted };
        let mut existing = self.problem.existing.iter();
        existing.any(|node| node.disposition == NodeDisposition::Keep(untouched.clone()))
    }

    /// Records that the removal of all these nodes together is not worth its cost.
    fn decline_moves(&mut self, nodes: Vec<usize>, fleet: &VerifiedFleet, saves: MicroUsd) {
        let declined = DeclinedChange {
            saves,
            needed: self.problem.settings.needed_saving_of_fleet(fleet.layout.price),
            moves: self.moved_pods(&nodes, fleet),
            nodes: Some(u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
            fails_redeployment: false,
        };
        let names = nodes.into_iter().map(|index| self.problem.existing[index].name.clone());
        self.declined.extend(names.map(|name| (name, declined)));
    }

    /// Returns the best change that passes the placement simulation.
    fn improve(&mut self, current: &VerifiedFleet) -> Option<VerifiedFleet> {
        self.declined.clear();
        let sets = self.candidate_sets(&current.layout);
        let mut trials: Vec<ConsolidationTrial> = self
            .within_budgets(&current.layout, sets)
            .into_iter()
            .filter_map(|set| self.try_without(current, set))
            .collect();
        trials.sort_by_key(|trial| (Reverse(trial.gain), trial.nodes.len()));
        for trial in trials.into_iter().take(self.simulations_max()) {
            if self.work.is_exhausted() {
                break;
            }
            if let Some(better) = self.simulate_trial(current, trial) {
                return Some(better);
            }
        }
        None
    }

    /// Packs without the nodes of `set`. Returns `None` if the packing alone shows that the change
    /// is not worth it.
    fn try_without(
        &mut self,
        current: &VerifiedFleet,
        set: Vec<usize>,
    ) -> Option<ConsolidationTrial> {
        let problem = self.problem;
        // Planned nodes are removed at no cost.
        let real = || set.iter().filter(|i| !problem.existing[**i].is_planned);
        let affected: MicroUsd = real().map(|i| price_or_minimum(&problem.existing[*i])).sum();
        let moves = real().map(|i| self.running_and_awaited_pods(&current.layout, *i)).sum();
        if moves > 0 && !self.may_move {
            return None;
        }
        let mut retained = current.layout.retained.clone();
        for index in &set {
            retained[*index] = false;
        }
        let layout = problem.trial_layout(retained);
        // EC2 chose the offering of a Spot node. A cheaper one alone is no reason to replace the
        // node: EC2 could choose the same offering again.
        let markup: MicroUsd = real().filter_map(|i| spot_markup(&problem.existing[*i])).sum();
        let needed = self.problem.settings.needed_saving(affected, moves);
        let needed = needed.max(markup + MicroUsd(1));
        let saves = current.layout.price - layout.price;
        let gain = self.problem.settings.gain(saves, moves);
        let fits = layout.packing.leaves_no_more_than(&current.layout.packing);
        if fits && gain > MicroUsd::ZERO && saves >= needed {
            return Some(ConsolidationTrial { nodes: set, layout, gain, needed, moves });
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
        let ConsolidationTrial { nodes: set, layout, needed, moves, .. } = trial;
        let fleet = if self.is_capped(current, &set) {
            // The bound is exclusive, hence one more.
            let cap = current.layout.price - needed + MicroUsd(1);
            repair_below(self.simulation, &layout, cap, &mut self.work)?
        } else {
            repair_trial(self.simulation, &layout, &mut self.work)
        };
        let saves = current.layout.price - fleet.layout.price;
        // No workload may have more unschedulable pods.
        let has_place = |(group, pods): (&usize, &u32)| {
            current.unplaced.get(group).is_some_and(|before| pods <= before)
        };
        let holds = fleet.unplaced.iter().all(has_place);
        let holds = holds && !self.relies_on_starting_nodes(current, &fleet);
        let pays = saves >= needed && self.problem.settings.gain(saves, moves) > MicroUsd::ZERO;
        let is_better = holds
            && pays
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
        let starts = |index: &usize| match &self.problem.existing[*index].disposition {
            NodeDisposition::Keep(KeepReason::Blocked { by }) => *by == BlockReason::NotReady,
            NodeDisposition::Keep(_)
            | NodeDisposition::RemoveWhenEmpty(_)
            | NodeDisposition::Consolidatable
            | NodeDisposition::Retire(_) => false,
        };
        let pods =
            |fleet: &VerifiedFleet, index: usize| fleet.layout.pods_on[index].values().sum::<u32>();
        let mut starting = (0..self.problem.existing.len()).filter(starts);
        starting.any(|index| pods(next, index) > pods(current, index))
    }

    fn decline(&mut self, set: &[usize], declined: DeclinedChange) {
        if let [only] = set {
            let name = self.problem.existing[*only].name.clone();
            self.declined.insert(name, declined);
        }
    }

    /// Returns the nodes that may be removed, most wasteful first.
    fn candidates(&self, layout: &Layout) -> Vec<usize> {
        let existing = self.problem.existing;
        let there = |i: &usize| layout.retained[*i];
        let idle = |i: &usize| layout.staying[*i].is_empty();
        let may_go = |i: &usize| match existing[*i].disposition {
            NodeDisposition::Consolidatable => idle(i) || existing[*i].price.is_some(),
            NodeDisposition::RemoveWhenEmpty(_) => !self.occupied.contains(&existing[*i].name),
            NodeDisposition::Keep(_) | NodeDisposition::Retire(_) => false,
        };
        let mut all: Vec<usize> = (0..existing.len()).filter(there).filter(may_go).collect();
        all.sort_by_key(|i| (Reverse(self.unused_price(layout, *i)), *i));
        all
    }

    /// Returns the sets of nodes to try: all empty nodes, each candidate alone, pairs if there are
    /// few candidates, and the 2, 3, 4, 6, 9, … most wasteful together up to all.
    fn candidate_sets(&self, layout: &Layout) -> Vec<Vec<usize>> {
        let existing = self.problem.existing;
        let all = self.candidates(layout);
        let idle = |i: &usize| layout.staying[*i].is_empty();
        let empty: Vec<usize> = all.iter().copied().filter(idle).collect();
        let free: Vec<usize> = all
            .iter()
            .copied()
            .filter(|i| existing[*i].disposition == NodeDisposition::Consolidatable)
            .collect();
        let mut sets: Vec<Vec<usize>> =
            all.iter().take(self.singles_max()).map(|i| vec![*i]).collect();
        if free.len() <= PAIRS_MAX {
            let pairs = free.iter().enumerate();
            sets.extend(pairs.flat_map(|(at, a)| free[at + 1..].iter().map(|b| vec![*a, *b])));
        }
        let mut size = 2;
        while size < free.len() {
            sets.push(free[..size].to_vec());
            size += (size / 2).max(1);
        }
        sets.extend([empty, free].into_iter().filter(|set| set.len() > 1));
        sets
    }

    /// Removes from each set the nodes that disruption budgets block, and drops duplicates.
    fn within_budgets(&mut self, layout: &Layout, sets: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
        let budgets = self.remaining_budgets(layout);
        let mut seen = BTreeSet::new();
        let mut allowed = Vec::new();
        for set in sets {
            let nodes = set.len();
            let subset = budgets.allowed_subset(set, self.problem.existing);
            self.is_cut_by_budget |= subset.len() < nodes;
            if !subset.is_empty() && seen.insert(subset.clone()) {
                allowed.push(subset);
            }
        }
        allowed
    }

    /// Returns the budgets that remain after the removals of a layout.
    fn remaining_budgets(&self, layout: &Layout) -> DisruptionBudgets {
        if self.ignores_budgets {
            return DisruptionBudgets::default();
        }
        let gone =
            self.problem.existing.iter().zip(&layout.retained).filter(|(_, retained)| !**retained);
        self.problem.budgets.after_removing(gone.map(|(node, _)| &node.name))
    }

    /// Records nodes that only a disruption budget retains: empty nodes together, then single nodes
    /// whose removal pays. A node that is needed, or not worth removing after those, is not blocked
    /// by a budget.
    fn record_budget_blocked(&mut self, fleet: &VerifiedFleet) {
        let budgets = self.remaining_budgets(&fleet.layout);
        if budgets.is_unbounded() {
            return;
        }
        let existing = self.problem.existing;
        let mut waits = self.candidates(&fleet.layout);
        waits.retain(|index| !budgets.allows(&existing[*index].name));
        let is_idle = |index: &usize| fleet.layout.pods_on[*index].is_empty();
        let idle: Vec<usize> = waits.iter().copied().filter(is_idle).collect();
        let alone = waits.into_iter().map(|index| vec![index]);
        let sets = std::iter::once(idle).filter(|set| !set.is_empty()).chain(alone);
        let (mut beyond, mut rehearsals) = (fleet.clone(), self.simulations_max());
        for set in sets.take(self.singles_max()) {
            if rehearsals == 0
                || self.work.is_exhausted()
                || set.iter().any(|index| !beyond.layout.retained[*index])
            {
                continue;
            }
            let Some(trial) = self.try_without(&beyond, set.clone()) else { continue };
            rehearsals -= 1;
            if let Some(next) = self.simulate_trial(&beyond, trial) {
                self.budget_blocked.extend(set.iter().map(|index| existing[*index].name.clone()));
                beyond = next;
            }
        }
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

    /// Returns the number of nodes tried alone in one round; fewer if each try is more work.
    fn singles_max(&self) -> usize {
        let model = self.problem.model;
        let work = model.classes.len().saturating_mul(model.bins.len()).max(1);
        (SINGLES_WORK / work).clamp(SINGLES_MIN, SINGLES_MAX)
    }

    /// Returns the price of a node less the worth of its pods.
    fn unused_price(&self, layout: &Layout, node: usize) -> i128 {
        let worth =
            |(class, n): (&usize, &u32)| self.problem.model.classes[*class].value * i128::from(*n);
        let used: i128 = layout.pods_on[node].iter().map(worth).sum();
        i128::from(price_or_minimum(&self.problem.existing[node]).0) * 1000 - used
    }
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
