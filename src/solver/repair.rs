//! Extends a packing to a fleet that passes every run of the placement simulation.
//!
//! Three ways are tried, and the cheapest that passes wins: the packing as it is, nodes of few
//! shapes (`shape_search`), and the packing with nodes added for unscheduled pods. Nodes that are
//! not needed are then pruned. For few pods, all cheaper fleets are enumerated (`exhaustive`).
//!
//! Work is counted in pods times nodes, so that the result does not depend on the computer. The
//! count only ends the search for a cheaper fleet.

use super::Purpose;
use super::exhaustive::search_few_pods;
use super::greedy_packing::{LookAhead, pack_greedily};
use super::layout::Layout;
use super::problem::VerifiedFleet;
use super::rescue::without_idle;
use super::scheduling_runs::planned_pods;
use super::shape_search::search_few_shapes;
use super::simulation::{Simulation, SimulationOutcome};
use super::work_budget::WorkBudget;
use crate::demand::PodGroup;
use crate::model::reason::Unsteered;
use crate::model::units::MicroUsd;

/// Maximum number of rounds that add nodes. Each round adds room for twice as many of the leftover
/// pods.
const REPAIRS_MAX: u32 = 10;

/// Maximum price after repair, as a multiple of the packing price. Beyond it, nodes stay empty for
/// rare tie-breaking results, and the pod's rule needs a review.
const REPAIRED_PRICE_MAX: i64 = 4;

/// Maximum number of pods for which a plan is simulated. Larger plans say that they are not.
const SIMULATED_PODS_MAX: u64 = 300_000;

/// How far the search for a cheaper fleet goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchEffort {
    /// Work in pods times nodes after which the search ends.
    work_max: u64,
    /// True if combinations of several node shapes are tried.
    pub thorough: bool,
    /// Look-ahead when added nodes are packed.
    ahead: LookAhead,
    /// Upper bound on a useful price, if there is one.
    pub price_below: Option<MicroUsd>,
}

impl SearchEffort {
    /// Limits for the fleet itself: about five seconds of one core.
    const FULL: Self =
        Self { work_max: 150_000_000, thorough: true, ahead: LookAhead::DEEP, price_below: None };
    /// Limits for an estimate: the full search where that is little work.
    const ESTIMATE: Self = Self { work_max: 25_000_000, ..Self::FULL };
    /// Limits for one of many candidate changes.
    const TRIAL: Self = Self { thorough: false, ahead: LookAhead::SHALLOW, ..Self::ESTIMATE };
    /// Limits for adding nodes to a fleet.
    const ADDITION: Self = Self { thorough: false, ..Self::ESTIMATE };
}

/// One search for a fleet that passes.
pub(super) struct Repair<'s, 'a> {
    pub simulation: &'s mut Simulation<'a>,
    pub work: WorkBudget,
    pub effort: SearchEffort,
}

/// Returns `layout` with the nodes that every run needs to place all pods.
pub(super) fn repair(simulation: &mut Simulation, layout: &Layout) -> VerifiedFleet {
    let effort = match simulation.problem.purpose {
        Purpose::Plan => SearchEffort::FULL,
        Purpose::Estimate => SearchEffort::ESTIMATE,
    };
    Repair::new(simulation, effort).run(layout)
}

/// Repairs a layout with less search, for one of many candidate changes. Its work counts against
/// `work`.
pub(super) fn repair_trial(
    simulation: &mut Simulation,
    layout: &Layout,
    work: &mut WorkBudget,
) -> VerifiedFleet {
    let mut repair = Repair::new(simulation, SearchEffort::TRIAL);
    let fleet = repair.run(layout);
    work.count_search(&repair.work);
    fleet
}

/// Repairs a layout like `repair_trial`, or returns `None` if the result would not be cheaper than
/// `cap`. In a large fleet most candidates are not, and their exact price is expensive to compute.
pub(super) fn repair_below(
    simulation: &mut Simulation,
    layout: &Layout,
    cap: MicroUsd,
    work: &mut WorkBudget,
) -> Option<VerifiedFleet> {
    let effort = SearchEffort { price_below: Some(cap), ..SearchEffort::TRIAL };
    let mut repair = Repair::new(simulation, effort);
    let fleet = repair.search(layout);
    work.count_search(&repair.work);
    fleet
}

/// Returns the fleet with nodes added until newly added runs pass; `None` if no nodes achieve that.
pub(super) fn repair_for_added_runs(
    simulation: &mut Simulation,
    fleet: &VerifiedFleet,
) -> Option<VerifiedFleet> {
    let layout = pin_offers(fleet);
    let mut repair = Repair::new(simulation, SearchEffort::ADDITION);
    let first = repair.simulate(&layout);
    let enough = repair.add_missing_nodes(&layout, None, first)?;
    let pruned = repair.prune(enough);
    Some(search_few_pods(&mut repair, &layout, pruned))
}

/// Returns the shortage of a fleet in a problem without nominations: the maximum number of
/// unscheduled pods, and the nodes to add for them.
pub(super) fn shortage_without_nominations(
    simulation: &mut Simulation,
    fleet: &VerifiedFleet,
) -> Unsteered {
    let layout = pin_offers(fleet);
    let mut repair = Repair::new(simulation, SearchEffort::FULL);
    let (first, pending) = repair.simulate_all_runs(&layout);
    if pending == 0 {
        return Unsteered { pending, nodes: 0, hourly: MicroUsd::ZERO };
    }
    let planned = layout.packing.new_nodes.len();
    let enough = repair.add_missing_nodes(&layout, None, first);
    let enough = enough.map(|enough| repair.prune_from(enough, planned));
    let more = enough.map_or_else(|| layout.clone(), |enough| enough.layout);
    let nodes = more.packing.new_nodes.len().saturating_sub(planned);
    let hourly = (more.price - layout.price).max(MicroUsd::ZERO);
    Unsteered { pending, nodes: u32::try_from(nodes).unwrap_or(u32::MAX), hourly }
}

/// Nodes that a fleet lacks in some order of arrival.
pub(super) struct MissingNodes {
    /// Maximum number of pods that a run leaves unscheduled.
    pub pending: u32,
    /// Offer of each node to add.
    pub offers: Vec<usize>,
}

/// Returns the nodes to add to a fleet until every run places all pods. All nodes of the fleet
/// stay. If no nodes achieve that, returns room for the pods that one run leaves.
pub(super) fn missing_nodes(simulation: &mut Simulation, fleet: &VerifiedFleet) -> MissingNodes {
    let layout = pin_offers(fleet);
    let mut repair = Repair::new(simulation, SearchEffort::FULL);
    let (first, pending) = repair.simulate_all_runs(&layout);
    if pending == 0 {
        return MissingNodes { pending, offers: Vec::new() };
    }
    let planned = layout.packing.new_nodes.len();
    let offers = match repair.add_missing_nodes(&layout, None, first) {
        Some(enough) => repair.prune_from(enough, planned).offers,
        None => repair.with_room_for_one_run(layout),
    };
    MissingNodes { pending, offers: offers.into_iter().skip(planned).collect() }
}

impl<'s, 'a> Repair<'s, 'a> {
    fn new(simulation: &'s mut Simulation<'a>, effort: SearchEffort) -> Self {
        Self { simulation, work: WorkBudget::for_search(effort.work_max), effort }
    }

    pub(super) fn simulate(&mut self, layout: &Layout) -> SimulationOutcome {
        self.simulation.simulate(layout, &mut self.work)
    }

    /// Returns the fleet of a layout, if every run places all pods.
    pub(super) fn passing(&mut self, layout: &Layout) -> Option<VerifiedFleet> {
        self.simulation.passing(layout, &mut self.work)
    }

    /// Returns the outcome of [`Repair::simulate`], and the maximum number of pods that any run
    /// leaves unscheduled. The problem has no nominations.
    fn simulate_all_runs(&mut self, layout: &Layout) -> (SimulationOutcome, u32) {
        let outcome = self.simulate(layout);
        let pending = match &outcome {
            SimulationOutcome::Passed(_) => 0,
            SimulationOutcome::LeftOver(failure) => self.simulation.most_left_over(layout, failure),
        };
        (outcome, pending)
    }

    fn run(&mut self, layout: &Layout) -> VerifiedFleet {
        if !is_simulated(self.simulation.problem.groups) {
            return self.simulation.problem.as_packed(layout);
        }
        self.search(layout).expect("without a price limit there is always a fleet")
    }

    /// Returns the cheapest fleet found, or `None` if none is below the price limit of the effort.
    fn search(&mut self, layout: &Layout) -> Option<VerifiedFleet> {
        let failure = match self.simulate(layout) {
            SimulationOutcome::Passed(fleet) => {
                return Some(without_idle(self.simulation, fleet, &mut self.work));
            }
            SimulationOutcome::LeftOver(failure) => failure,
        };
        let best = match search_few_shapes(self, layout) {
            Some(few) if self.work.is_exhausted() => few,
            few => {
                let cap = few.as_ref().map(|few| few.layout.price).or(self.effort.price_below);
                let first = self.simulation.repeat(layout, failure, &mut self.work);
                match self.add_missing_nodes(layout, cap, first).or(few) {
                    None if cap.is_none() => {
                        self.simulation.exclude_until_passed(layout, &mut self.work)
                    }
                    best => best?,
                }
            }
        };
        let best = self.prune(best);
        Some(if self.effort.thorough { search_few_pods(self, layout, best) } else { best })
    }

    /// Removes new nodes while every run still places all pods: empty nodes first, then growing
    /// batches of each column, most expensive first.
    fn prune(&mut self, fleet: VerifiedFleet) -> VerifiedFleet {
        let busy = without_idle(self.simulation, fleet, &mut self.work);
        self.prune_from(busy, 0)
    }

    /// Removes new nodes with at least this index while every run still places all pods: growing
    /// batches of each column, most expensive first.
    fn prune_from(&mut self, fleet: VerifiedFleet, first: usize) -> VerifiedFleet {
        let mut best = fleet;
        let columns = &self.simulation.problem.model.offer_classes;
        let mut used: Vec<usize> =
            best.layout.packing.new_nodes.iter().map(|n| n.offer_class).collect();
        used.sort_unstable();
        used.dedup();
        used.sort_by_key(|column| std::cmp::Reverse(columns[*column].price));
        for column in used {
            let mut step = 1;
            while step > 0 && !self.work.is_exhausted() {
                let new_nodes = best.layout.packing.new_nodes.iter().enumerate().skip(first).rev();
                let of_column = new_nodes.filter(|(_, node)| node.offer_class == column);
                let last: Vec<usize> = of_column.map(|(index, _)| index).take(step).collect();
                match self.without_nodes(&best, &last) {
                    Some(leaner) => (best, step) = (leaner, step * 2),
                    None => step /= 2,
                }
            }
        }
        best
    }

    /// Returns the fleet without these new nodes, if it still passes.
    fn without_nodes(&mut self, fleet: &VerifiedFleet, nodes: &[usize]) -> Option<VerifiedFleet> {
        if nodes.is_empty() {
            return None;
        }
        let mut layout = pin_offers(fleet);
        let new_nodes: Vec<_> = std::mem::take(&mut layout.packing.new_nodes);
        for (index, node) in new_nodes.into_iter().enumerate() {
            if nodes.contains(&index) {
                layout.price = layout.price
                    - self.simulation.problem.model.offer_classes[node.offer_class].price;
            } else {
                layout.packing.new_nodes.push(node);
            }
        }
        self.passing(&layout).filter(|leaner| leaner.unplaced == fleet.unplaced)
    }

    /// Returns the offers of the layout with room for the pods that a run leaves unscheduled.
    fn with_room_for_one_run(&mut self, mut layout: Layout) -> Vec<usize> {
        let problem = self.simulation.problem;
        if let SimulationOutcome::LeftOver(failure) = self.simulate(&layout) {
            let limits = problem.limits_after(&layout);
            let more = pack_greedily(problem.model, &failure.left, &limits, self.effort.ahead);
            layout.packing.new_nodes.extend(more.new_nodes);
        }
        problem.choose_offers(&layout)
    }

    /// Adds nodes for unscheduled pods until none are left. Returns `None` if the price reaches
    /// `cap` or no node can be added.
    ///
    /// The scheduler spreads pods over new nodes as well, so adding exactly enough may never end.
    /// Each round therefore adds room for twice as many of the leftover pods as the one before.
    /// `first` is the outcome of the layout itself.
    fn add_missing_nodes(
        &mut self,
        layout: &Layout,
        cap: Option<MicroUsd>,
        first: SimulationOutcome,
    ) -> Option<VerifiedFleet> {
        let problem = self.simulation.problem;
        let most = layout.price.times(REPAIRED_PRICE_MAX);
        let (mut layout, mut first) = (layout.clone(), Some(first));
        for round in 0..REPAIRS_MAX {
            let failure = match first.take().unwrap_or_else(|| self.simulate(&layout)) {
                SimulationOutcome::Passed(fleet) => return Some(fleet),
                SimulationOutcome::LeftOver(failure) => failure,
            };
            let grown: Vec<u32> =
                failure.left.iter().map(|n| n.saturating_mul(1 << round)).collect();
            let limits = problem.limits_after(&layout);
            let more = pack_greedily(problem.model, &grown, &limits, self.effort.ahead);
            if more.new_nodes.is_empty() {
                return None;
            }
            layout.price += more.price(problem.model);
            layout.packing.new_nodes.extend(more.new_nodes);
            if layout.price > most || cap.is_some_and(|cap| layout.price >= cap) {
                return None;
            }
        }
        None
    }
}

/// Returns the layout with the chosen offer fixed for each new node.
pub(super) fn pin_offers(fleet: &VerifiedFleet) -> Layout {
    let mut layout = fleet.layout.clone();
    for (node, offer) in layout.packing.new_nodes.iter_mut().zip(&fleet.offers) {
        node.offer = Some(*offer);
    }
    layout
}

/// Returns a message if the fleet is too large to simulate.
pub(super) fn not_simulated_message(groups: &[PodGroup]) -> Option<String> {
    let pods = planned_pods(groups);
    (pods > SIMULATED_PODS_MAX).then(|| {
        format!(
            "placement is not simulated: the plan has {pods} pods, and the limit is \
             {SIMULATED_PODS_MAX}; kube-scheduler may leave some of them pending"
        )
    })
}

pub(super) fn is_simulated(groups: &[PodGroup]) -> bool {
    planned_pods(groups) <= SIMULATED_PODS_MAX
}
