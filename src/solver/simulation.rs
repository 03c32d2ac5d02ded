//! Placement simulation: checks that kube-scheduler finds a node for every pod of a planned fleet.
//!
//! A packing shows that the pods fit, but the scheduler decides their placement. The scheduler
//! model places the pods on the planned nodes in several runs. `repair` handles pods that a run
//! leaves unscheduled.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::failure_domains::PlacementMap;
use super::layout::Layout;
use super::problem::{Problem, VerifiedFleet, sum_by_priority};
use super::scheduling_runs::{self, CoveredOrders, SchedulingRun, planned_pods};
use super::simulation_run::{EmptyScheduler, RunEnd, RunResult, SimInput, SimState};
use super::work_budget::WorkBudget;

/// The placement simulation of one problem, with the runs that a fleet must pass.
pub(super) struct Simulation<'a> {
    pub problem: &'a Problem<'a>,
    /// Schedulers with all classes and no nodes, with and without default spreading. Classes are
    /// expensive to compile.
    pub spreading_scheduler: OnceLock<EmptyScheduler>,
    pub plain_scheduler: OnceLock<EmptyScheduler>,
    /// Index of the run that failed last. It is simulated first for the next fleet.
    last_failed_run: usize,
    /// Samples that failed for some fleet. Every other fleet must pass them as well.
    pub added_runs: Vec<SchedulingRun>,
    /// True if pods that a drain evicts are nominated like pending pods, as for a fleet built anew.
    nominates_evicted_pods: bool,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        Self {
            problem,
            spreading_scheduler: OnceLock::new(),
            plain_scheduler: OnceLock::new(),
            last_failed_run: 0,
            added_runs: Vec::new(),
            nominates_evicted_pods: false,
        }
    }

    /// Returns the result of `search`, in which pods that a drain evicts are nominated like pending
    /// pods.
    pub(super) fn while_nominating_evicted_pods<T>(
        &mut self,
        search: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.nominates_evicted_pods = true;
        let found = search(self);
        self.nominates_evicted_pods = false;
        found
    }

    /// Returns whether pods that a drain evicts are nominated.
    pub(super) fn nominates_evicted_pods(&self) -> bool {
        self.nominates_evicted_pods
    }

    /// Returns the runs that a fleet must pass.
    fn required_runs(&self, state: &SimState) -> Vec<SchedulingRun> {
        let mut runs = self.all_runs(state, &self.added_runs);
        runs.retain(|run| self.problem.checks.orders.covers(run));
        runs
    }

    /// Returns all runs of a fleet, whatever orders the problem covers.
    pub(super) fn all_runs(&self, state: &SimState, added: &[SchedulingRun]) -> Vec<SchedulingRun> {
        let mut runs = scheduling_runs::required_runs(
            planned_pods(self.problem.groups),
            state.node_count(),
            self.events_in(state),
            self.problem.settings.effective_worst_case(),
        );
        runs.extend(added);
        runs
    }

    /// Returns the state of a layout before pods arrive, with an offer chosen for each new node.
    fn start(&self, layout: &Layout, work: &mut WorkBudget) -> SimState {
        let state = self.initial_state(layout, &self.problem.choose_offers(layout));
        work.count_setup(state.setup_work);
        state
    }

    /// Simulates the runs and stops at the first that leaves pods unscheduled.
    pub(super) fn simulate(&mut self, layout: &Layout, work: &mut WorkBudget) -> SimulationOutcome {
        self.simulate_until(layout, RunEnd::LastPod, work)
    }

    /// Returns the fleet of a layout, if every run places all pods. This is less work than to count
    /// the pods that a run leaves.
    pub(super) fn passing(
        &mut self,
        layout: &Layout,
        work: &mut WorkBudget,
    ) -> Option<VerifiedFleet> {
        match self.simulate_until(layout, RunEnd::FirstLeftOver, work) {
            SimulationOutcome::Passed(fleet) => Some(fleet),
            SimulationOutcome::LeftOver(_) => None,
        }
    }

    fn simulate_until(
        &mut self,
        layout: &Layout,
        end: RunEnd,
        work: &mut WorkBudget,
    ) -> SimulationOutcome {
        if let Some(missing) = self.problem.pods_without_domain(layout) {
            return SimulationOutcome::LeftOver(Failure::without_run(missing));
        }
        let state = self.start(layout, work);
        let unplaced = self.excluded_pods(layout, &state, work);
        let runs = self.required_runs(&state);
        // A fleet that fails usually fails in the same run as the previous fleet.
        let hardest = self.last_failed_run.min(runs.len() - 1);
        let order: Vec<usize> =
            [hardest].into_iter().chain((0..runs.len()).filter(|run| *run != hardest)).collect();
        let in_order: Vec<SchedulingRun> = order.iter().map(|run| runs[*run]).collect();
        let nominations = self.nominations(layout, &state);
        let input = SimInput { excluded: &unplaced, nominations: nominations.as_ref() };
        let results = self.run_until_left_over(&state, &in_order, input, end, work);
        let last = results.last().expect("there is at least one run");
        if !last.left_over.is_empty() {
            self.last_failed_run = order[results.len() - 1];
            return SimulationOutcome::LeftOver(Failure {
                left: self.missing_by_class(&state, last, &last.left_over),
                tried: order[..results.len()].to_vec(),
                pods: last.left_over.values().sum(),
                setup_work: state.setup_work,
                run_work: self.work_of_one_run(layout, &state, &unplaced),
            });
        }
        if !self.problem.checks.failure_domains.is_empty() {
            for (index, result) in results.iter().enumerate() {
                let too_many = self.pods_over_limits(&state, result);
                if !too_many.is_empty() {
                    self.last_failed_run = order[index];
                    let missing = self.missing_by_class(&state, result, &too_many);
                    return SimulationOutcome::LeftOver(Failure::without_run(missing));
                }
            }
        }
        if let Some(missing) = self.displaced(&state, &runs, input, work) {
            return SimulationOutcome::LeftOver(Failure::without_run(missing));
        }
        let first = order.iter().position(|run| *run == 0).expect("every run was simulated");
        SimulationOutcome::Passed(self.verified(layout, &state, &results[first], unplaced))
    }

    /// Returns the planned pods that are pending in some run where unschedulable pods arrive as
    /// well, by class. `None` if there are none, or the problem ignores them.
    fn displaced(
        &self,
        state: &SimState,
        runs: &[SchedulingRun],
        input: SimInput,
        work: &mut WorkBudget,
    ) -> Option<Vec<u32>> {
        if !self.problem.checks.unschedulable_pods_arrive || input.excluded.is_empty() {
            return None;
        }
        let none_excluded = BTreeMap::new();
        let all = SimInput { excluded: &none_excluded, ..input };
        for run in runs {
            let result = self.run_one(state, *run, all, work);
            let more = more_than(&result.left_over, input.excluded);
            if !more.is_empty() {
                return Some(self.missing_by_class(state, &result, &more));
            }
        }
        None
    }

    /// Returns the number of pods above the failure-domain limits after a run, by group.
    fn pods_over_limits(&self, state: &SimState, result: &RunResult) -> BTreeMap<usize, u32> {
        let map = PlacementMap {
            existing: self.problem.existing,
            offers: self.problem.offers,
            chosen: &state.offers,
        };
        let placements = state.placements(result);
        self.problem.checks.failure_domains.excess_pods(
            &placements,
            &state.staying,
            self.problem.groups,
            map,
        )
    }

    /// Returns what [`Simulation::simulate`] returns for a layout that failed before, and counts the
    /// same work. If no other run failed since, the failed run comes first and fails alike.
    pub(super) fn repeat(
        &mut self,
        layout: &Layout,
        failure: Failure,
        work: &mut WorkBudget,
    ) -> SimulationOutcome {
        if failure.tried.last() != Some(&self.last_failed_run) {
            return self.simulate(layout, work);
        }
        work.count_setup(failure.setup_work);
        work.count(failure.run_work);
        SimulationOutcome::LeftOver(failure)
    }

    /// Returns the work of simulating one run of a layout.
    fn work_of_one_run(
        &self,
        layout: &Layout,
        state: &SimState,
        unplaced: &BTreeMap<usize, u32>,
    ) -> u64 {
        let of_exclusion = if layout.packing.left_over() == 0 {
            0
        } else {
            self.work_of_runs(state, &BTreeMap::new(), 1)
        };
        self.work_of_runs(state, unplaced, 1).saturating_add(of_exclusion)
    }

    /// Returns the maximum number of pods that a run leaves of a layout that failed. The problem has
    /// no nominations.
    pub(super) fn most_left_over(&self, layout: &Layout, failure: &Failure) -> u32 {
        let work = &mut WorkBudget::unlimited();
        let state = self.start(layout, work);
        let unplaced = self.excluded_pods(layout, &state, work);
        let input = SimInput { excluded: &unplaced, nominations: None };
        let runs = self.required_runs(&state).into_iter().enumerate();
        let untried = runs.filter(|(run, _)| !failure.tried.contains(run));
        let untried: Vec<SchedulingRun> = untried.map(|(_, run)| run).collect();
        let left = self.left_over_of_runs(&state, &untried, input, work);
        left.iter().map(|left| left.values().sum()).fold(failure.pods, u32::max)
    }

    /// Excludes unscheduled pods until every run places all others.
    pub(super) fn exclude_until_passed(
        &self,
        layout: &Layout,
        work: &mut WorkBudget,
    ) -> VerifiedFleet {
        let state = self.start(layout, work);
        let mut unplaced = self.excluded_pods(layout, &state, work);
        let runs = self.required_runs(&state);
        let nominations = self.nominations(layout, &state);
        loop {
            let input = SimInput { excluded: &unplaced, nominations: nominations.as_ref() };
            let results = self.run_until_left_over(&state, &runs, input, RunEnd::LastPod, work);
            let last = results.last().expect("there is at least one run");
            if last.left_over.is_empty() {
                return self.verified(layout, &state, &results[0], unplaced);
            }
            for (group, count) in &last.left_over {
                *unplaced.entry(*group).or_insert(0) += count;
            }
        }
    }

    /// Returns the layout with exactly these pods left out, if every run places all others.
    pub(super) fn simulate_excluding(
        &self,
        layout: &Layout,
        unplaced: BTreeMap<usize, u32>,
        work: &mut WorkBudget,
    ) -> Option<VerifiedFleet> {
        self.simulate_orders(layout, unplaced, CoveredOrders::All, work)
    }

    /// Returns the layout with exactly these pods left out, if every required run of these orders
    /// places all others.
    pub(super) fn simulate_orders(
        &self,
        layout: &Layout,
        unplaced: BTreeMap<usize, u32>,
        orders: CoveredOrders,
        work: &mut WorkBudget,
    ) -> Option<VerifiedFleet> {
        let state = self.start(layout, work);
        let nominations = self.nominations(layout, &state);
        let input = SimInput { excluded: &unplaced, nominations: nominations.as_ref() };
        let mut runs = self.required_runs(&state);
        runs.retain(|run| orders.covers(run));
        let end = RunEnd::FirstLeftOver;
        let results = self.run_until_left_over(&state, &runs, input, end, work);
        if results.last().is_none_or(|last| !last.left_over.is_empty()) {
            return None;
        }
        Some(self.verified(layout, &state, &results[0], unplaced))
    }

    /// Returns true if unschedulable pods that arrive first leave planned pods pending.
    pub(super) fn is_displacing(&self, fleet: &VerifiedFleet) -> bool {
        let left = self.left_over_by_run(fleet, &mut WorkBudget::unlimited());
        left.iter().any(|left| !more_than(left, &fleet.unplaced).is_empty())
    }

    /// Returns the unscheduled pods of each run when all pods are in the queue, excluded ones as
    /// well.
    pub(super) fn left_over_by_run(
        &self,
        fleet: &VerifiedFleet,
        work: &mut WorkBudget,
    ) -> Vec<BTreeMap<usize, u32>> {
        let state = self.initial_state(&fleet.layout, &fleet.offers);
        work.count_setup(state.setup_work);
        let nominations = self.nominations(&fleet.layout, &state);
        let none = BTreeMap::new();
        let runs = self.required_runs(&state);
        let input = SimInput { excluded: &none, nominations: nominations.as_ref() };
        self.left_over_of_runs(&state, &runs, input, work)
    }

    /// Returns the fleet of a layout after its first run.
    fn verified(
        &self,
        layout: &Layout,
        state: &SimState,
        first: &RunResult,
        unplaced: BTreeMap<usize, u32>,
    ) -> VerifiedFleet {
        let mut layout = layout.clone();
        let (placements, offers) = (state.placements(first), state.offers.clone());
        self.problem.recount_classes(&mut layout, &placements, &offers, &unplaced);
        VerifiedFleet { layout, offers, placements, unplaced }
    }

    /// Returns the unscheduled pods by class. A group with several classes is counted in those that
    /// have fewer pods than planned.
    fn missing_by_class(
        &self,
        state: &SimState,
        result: &RunResult,
        left: &BTreeMap<usize, u32>,
    ) -> Vec<u32> {
        let model = self.problem.model;
        let placements = state.placements_of(result, |group| left.contains_key(&group));
        let mut missing = vec![0; model.classes.len()];
        for (group, count) in left {
            let mut count = *count;
            let mut placed: BTreeMap<usize, u32> = BTreeMap::new();
            for (node_ref, pods) in placements.get(group).into_iter().flatten() {
                if let Some(class) = self.problem.class_at(*group, node_ref, &state.offers) {
                    *placed.entry(class).or_insert(0) += pods;
                }
            }
            for class in model.classes_of_group[*group].iter().copied() {
                let meant = model.classes[class].group_counts.iter().filter(|(g, _)| g == group);
                let meant: u32 = meant.map(|(_, planned)| planned).sum();
                let here = placed.get(&class).copied().unwrap_or(0);
                let short = meant.saturating_sub(here).min(count);
                missing[class] += short;
                count -= short;
            }
            if let Some(class) = model.classes_of_group[*group].first() {
                missing[*class] += count;
            }
        }
        missing
    }

    /// Returns the pods to exclude, by group, because the packing has no room for them.
    ///
    /// The scheduler decides which pods these are, since it serves higher priorities first. If it
    /// leaves more pods of the highest priorities than the packing does, the packing decides.
    fn excluded_pods(
        &self,
        layout: &Layout,
        state: &SimState,
        work: &mut WorkBudget,
    ) -> BTreeMap<usize, u32> {
        if layout.packing.left_over() == 0 {
            return BTreeMap::new();
        }
        let first = self.required_runs(state)[0];
        let input = SimInput { excluded: &BTreeMap::new(), nominations: None };
        let left = self.run_one(state, first, input, work).left_over;
        let packed = self.problem.left_over_by_group(layout, &state.staying);
        let is_no_more = sum_by_priority(&left, self.problem.groups)
            <= sum_by_priority(&packed, self.problem.groups);
        if is_no_more { left } else { packed }
    }
}

/// Returns the pods of `left` that are not in `excluded`, by group.
fn more_than(left: &BTreeMap<usize, u32>, excluded: &BTreeMap<usize, u32>) -> BTreeMap<usize, u32> {
    let more = |(group, pods): (&usize, &u32)| {
        let more = pods.saturating_sub(excluded.get(group).copied().unwrap_or(0));
        (more > 0).then_some((*group, more))
    };
    left.iter().filter_map(more).collect()
}

/// Pods that a layout leaves unscheduled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Pods left, by class.
    pub left: Vec<u32>,
    /// Indices of the simulated runs. The last one left the pods. Empty if every run placed all pods,
    /// or none was simulated.
    tried: Vec<usize>,
    /// Number of pods that the last run left.
    pods: u32,
    /// Work of the setup, and of the runs if the failed one is simulated first.
    setup_work: u64,
    run_work: u64,
}

impl Failure {
    /// Returns a failure that another rule than a run decides.
    fn without_run(left: Vec<u32>) -> Self {
        Self { left, tried: Vec::new(), pods: 0, setup_work: 0, run_work: 0 }
    }
}

/// Outcome of the simulated runs of a layout.
pub(super) enum SimulationOutcome {
    /// Every run placed every pod.
    Passed(VerifiedFleet),
    /// A run left pods unscheduled.
    LeftOver(Failure),
}
