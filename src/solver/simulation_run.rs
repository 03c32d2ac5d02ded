//! State and execution of simulated scheduling runs over planned nodes.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::offer::{Offer, runs_daemon};
use super::parallel::{CancelToken, run_until_failure};
use super::problem::Placements;
use super::scheduling_runs::{
    Arrivals, DrainingPods, Events, SchedulingRun, has_patient_pods, simulates_default_spread,
};
use super::simulation::Simulation;
use super::staggered_readiness::is_staggered;
use super::target_fleet::NodeRef;
use super::work_budget::WorkBudget;
use crate::model::ids::NodeName;
use crate::model::requirement::{key, label};
use crate::model::units::Resources;
use crate::scheduler::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};

/// Pods between two checks for cancellation.
const CANCEL_CHECK_PODS: usize = 64;

/// Work of setting up a node and of binding a staying pod, in pods times nodes tried.
const NODE_WORK: u64 = 300;
const BIND_WORK: u64 = 30;

/// A scheduler without nodes, with the classes of all pods.
#[derive(Clone)]
pub(super) struct EmptyScheduler {
    pub scheduler: Scheduler,
    groups: Vec<ClassIndex>,
    fixed: BoundClasses,
}

/// Classes of the pods that start with their node.
#[derive(Clone)]
pub(super) struct BoundClasses {
    /// Class of each DaemonSet.
    pub daemons: Vec<ClassIndex>,
    /// Classes of static pods, by existing node.
    static_pods: BTreeMap<NodeName, Vec<ClassIndex>>,
}

/// Result of one run.
pub(super) struct RunResult {
    /// Group and node of each bound pod.
    pub bound: Vec<(usize, NodeIndex)>,
    /// Unschedulable pods, by group.
    pub left_over: BTreeMap<usize, u32>,
}

impl RunResult {
    /// Records the node of a pod, or that no node fits.
    fn record(&mut self, group: usize, node: Option<NodeIndex>) {
        match node {
            Some(node) => self.bound.push((group, node)),
            None => *self.left_over.entry(group).or_insert(0) += 1,
        }
    }
}

/// Nodes and running pods before pending pods arrive.
pub(super) struct SimState {
    pub scheduler: Scheduler,
    /// Class of each group.
    pub classes: Vec<ClassIndex>,
    /// Classes of the pods that start with their node.
    pub fixed: BoundClasses,
    /// Nodes, by number.
    nodes: Vec<ScheduleNode>,
    /// Reference of each node, by number.
    node_refs: Vec<NodeRef>,
    /// Offer of each new node.
    pub offers: Vec<usize>,
    pub staying: Placements,
    /// Pods on nodes that are drained.
    pub draining: DrainingPods,
    /// Work of setting up this state, in pods times nodes tried.
    pub setup_work: u64,
}

/// Pods that take part in a run, and their nominations.
#[derive(Clone, Copy)]
pub(super) struct SimInput<'a> {
    /// Number of pods left out, by group.
    pub excluded: &'a BTreeMap<usize, u32>,
    /// Nominations of pods, if the simulation uses them.
    pub nominations: Option<&'a Nominations>,
}

/// When a run that leaves pods unscheduled ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// After all pods arrived, so that all pods left are counted.
    LastPod,
    /// With the first pod that stays unscheduled whatever arrives later.
    FirstLeftOver,
}

/// By group: nominated nodes in order, each with its number of pods.
pub(super) type Nominations = BTreeMap<usize, Vec<(NodeIndex, u32)>>;

impl SimState {
    /// Returns nominations of the arriving pods to their nodes in `placements`.
    pub(super) fn nominations_for(&self, placements: &Placements) -> Nominations {
        let index_of: BTreeMap<&NodeRef, NodeIndex> =
            self.node_refs.iter().zip(self.scheduler.nodes()).collect();
        let mut nominations = Nominations::new();
        for (group, nodes) in placements {
            let staying = self.staying.get(group);
            let mut arriving = Vec::new();
            for (node_ref, count) in nodes {
                let Some(index) = index_of.get(node_ref) else { continue };
                let stay = staying.and_then(|on| on.get(node_ref)).copied().unwrap_or(0);
                if *count > stay {
                    arriving.push((*index, count - stay));
                }
            }
            nominations.insert(*group, arriving);
        }
        nominations
    }

    pub(super) fn node_count(&self) -> usize {
        self.node_refs.len()
    }

    /// Returns the nodes with their references and the offers of new nodes.
    pub(super) fn nodes_with_offers(
        &self,
    ) -> impl Iterator<Item = (&ScheduleNode, &NodeRef, Option<usize>)> {
        self.nodes.iter().zip(&self.node_refs).map(|(node, node_ref)| match node_ref {
            NodeRef::Launch(index) => (node, node_ref, self.offers.get(*index).copied()),
            NodeRef::Existing(_) => (node, node_ref, None),
        })
    }

    /// Binds the pods that stay on their nodes.
    pub(super) fn bind_running(&self, scheduler: &mut Scheduler) {
        bind_running_pods(scheduler, &self.classes, &self.staying);
    }

    /// Returns the placement of all pods after a run, staying pods included.
    pub(super) fn placements(&self, result: &RunResult) -> Placements {
        self.placements_of(result, |_| true)
    }

    /// Returns the placement of the pods of some groups after a run, staying pods included.
    pub(super) fn placements_of(
        &self,
        result: &RunResult,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Placements {
        let bound = result.bound.iter().filter(|(group, _)| is_wanted(*group));
        let mut bound: Vec<(usize, NodeIndex)> = bound.copied().collect();
        bound.sort_unstable();
        let staying = self.staying.iter().filter(|(group, _)| is_wanted(**group));
        let mut placements: Placements =
            staying.map(|(group, nodes)| (*group, nodes.clone())).collect();
        for equal in bound.chunk_by(|a, b| a == b) {
            let (group, node) = equal[0];
            let count = u32::try_from(equal.len()).unwrap_or(u32::MAX);
            let node_ref = self.node_refs[node.number()].clone();
            *placements.entry(group).or_default().entry(node_ref).or_insert(0) += count;
        }
        placements
    }

    /// Returns the events that happen while pods arrive.
    fn events(&self, offers: &[Offer]) -> Events {
        let has_existing_nodes = self.offers.len() < self.nodes.len();
        Events {
            has_drains: !self.draining.is_empty(),
            has_staggered_readiness: is_staggered(has_existing_nodes, &self.offers, offers),
            has_patient_pods: false,
        }
    }
}

fn bind_running_pods(scheduler: &mut Scheduler, classes: &[ClassIndex], staying: &Placements) {
    for (group, nodes) in staying {
        for (node_ref, count) in nodes {
            let NodeRef::Existing(name) = node_ref else { continue };
            let node = scheduler.node(name).expect("every retained node is in the state");
            (0..*count).for_each(|_| scheduler.bind(classes[*group], node));
        }
    }
}

/// Arriving pods by group, with nominations.
struct ArrivingPods<'a> {
    pending: &'a [u32],
    nominations: Option<&'a Nominations>,
    end: RunEnd,
}

impl ArrivingPods<'_> {
    /// Returns true if the run ends with this outcome for a pod of a class.
    fn end_with(&self, node: Option<NodeIndex>, class: ClassIndex, scheduler: &Scheduler) -> bool {
        node.is_none() && self.end == RunEnd::FirstLeftOver && scheduler.stays_unschedulable(class)
    }
}

/// Retries pods on their nominated nodes as long as that helps, then on any node.
///
/// A rule between pods may exclude a nominated node until another pod is bound. The nomination
/// stays until then, and no other nominated pod takes the reserved room.
fn retry_nominated(
    state: &SimState,
    scheduler: &mut Scheduler,
    mut waiting: Vec<(usize, NodeIndex)>,
    result: &mut RunResult,
) {
    loop {
        let before = waiting.len();
        waiting.retain(|(group, node)| {
            let class = state.classes[*group];
            if scheduler.fits(class, *node).is_err() {
                return true;
            }
            scheduler.bind(class, *node);
            result.bound.push((*group, *node));
            false
        });
        if waiting.len() == before {
            break;
        }
    }
    for (group, _) in waiting {
        result.record(group, scheduler.try_schedule(state.classes[group], None));
    }
}

/// Drops so many nominations of a group.
fn drop_nominations(nodes: &mut Vec<(NodeIndex, u32)>, mut pods: u32) {
    while pods > 0
        && let Some((_, count)) = nodes.last_mut()
    {
        let dropped = pods.min(*count);
        pods -= dropped;
        *count -= dropped;
        if *count == 0 {
            nodes.pop();
        }
    }
}

/// Takes the next nominated node.
fn next_nomination(nodes: &mut Vec<(NodeIndex, u32)>) -> Option<NodeIndex> {
    let (node, count) = nodes.last_mut()?;
    let next = *node;
    *count -= 1;
    if *count == 0 {
        nodes.pop();
    }
    Some(next)
}

impl Simulation<'_> {
    /// Returns the events that happen while pods arrive.
    pub(super) fn events_in(&self, state: &SimState) -> Events {
        let events = if self.problem.checks.with_events {
            state.events(self.problem.offers)
        } else {
            Events::NONE
        };
        Events { has_patient_pods: has_patient_pods(self.problem.groups), ..events }
    }

    /// Returns nominations of pods to their nodes in the packing of a layout, if the plan uses
    /// nominations. Pods that a drain evicts are usually not nominated: kube-scheduler places their
    /// replacements at once.
    pub(super) fn nominations(&self, layout: &Layout, state: &SimState) -> Option<Nominations> {
        if !self.problem.settings.steer {
            return None;
        }
        let unplaced = self.problem.left_over_by_group(layout, &state.staying);
        let mut nominations = state.nominations_for(&self.problem.placements_of(layout, &unplaced));
        if !self.nominates_evicted_pods() {
            for (group, evicted) in state.draining.iter().flat_map(|(_, pods)| pods) {
                if let Some(nodes) = nominations.get_mut(group) {
                    drop_nominations(nodes, *evicted);
                }
            }
        }
        Some(nominations)
    }

    /// Simulates runs until the first that leaves pods unscheduled. That run is the last result.
    pub(super) fn run_until_left_over(
        &self,
        state: &SimState,
        runs: &[SchedulingRun],
        input: SimInput,
        end: RunEnd,
        work: &mut WorkBudget,
    ) -> Vec<RunResult> {
        let pending = self.pending_pods(state, input.excluded);
        let one = |index: usize, wanted: &CancelToken| {
            let pods = ArrivingPods { pending: &pending, nominations: input.nominations, end };
            self.run(state, runs[index], &pods, &|| wanted.is_active())
        };
        let results = run_until_failure(runs.len(), self.problem.settings.workers, one, |run| {
            !run.left_over.is_empty()
        });
        work.count(self.work_of_runs(state, input.excluded, results.len()));
        results
    }

    /// Simulates all runs, and returns the pods that each leaves unscheduled, by group.
    pub(super) fn left_over_of_runs(
        &self,
        state: &SimState,
        runs: &[SchedulingRun],
        input: SimInput,
        work: &mut WorkBudget,
    ) -> Vec<BTreeMap<usize, u32>> {
        let pending = self.pending_pods(state, input.excluded);
        let one = |index: usize, _: &CancelToken| {
            let (nominations, end) = (input.nominations, RunEnd::LastPod);
            let pods = ArrivingPods { pending: &pending, nominations, end };
            self.run(state, runs[index], &pods, &|| true).left_over
        };
        work.count(self.work_of_runs(state, input.excluded, runs.len()));
        run_until_failure(runs.len(), self.problem.settings.workers, one, |_| false)
    }

    /// Returns the work of this number of runs, in pods times nodes.
    pub(super) fn work_of_runs(
        &self,
        state: &SimState,
        excluded: &BTreeMap<usize, u32>,
        runs: usize,
    ) -> u64 {
        let pending = self.pending_pods(state, excluded);
        let pods: u64 = pending.iter().map(|count| u64::from(*count)).sum();
        let tries = pods.saturating_mul(u64::try_from(state.node_count()).unwrap_or(u64::MAX));
        tries.saturating_mul(u64::try_from(runs).unwrap_or(u64::MAX))
    }

    pub(super) fn run_one(
        &self,
        state: &SimState,
        run: SchedulingRun,
        input: SimInput,
        work: &mut WorkBudget,
    ) -> RunResult {
        let mut results = self.run_until_left_over(state, &[run], input, RunEnd::LastPod, work);
        results.pop().expect("one run was simulated")
    }

    /// Returns the number of arriving pods, by group.
    pub(super) fn pending_pods(
        &self,
        state: &SimState,
        unplaced: &BTreeMap<usize, u32>,
    ) -> Vec<u32> {
        let groups = self.problem.groups.iter().enumerate();
        let pending = groups.map(|(index, group)| {
            if !group.shape.unsupported.is_empty() {
                return 0;
            }
            let staying: u32 =
                state.staying.get(&index).into_iter().flat_map(BTreeMap::values).sum();
            let without = unplaced.get(&index).copied().unwrap_or(0);
            group.counts.planned.saturating_sub(staying + without)
        });
        pending.collect()
    }

    fn run(
        &self,
        state: &SimState,
        run: SchedulingRun,
        pods: &ArrivingPods,
        is_wanted: &dyn Fn() -> bool,
    ) -> RunResult {
        if run.is_staggered() && pods.nominations.is_none() {
            return self.run_staggered(state, run, pods.pending);
        }
        if run.is_drain() && pods.nominations.is_none() {
            return self.run_drain(state, run, pods.pending);
        }
        let scheduler = state.scheduler.clone();
        let mut scheduler = run.configure(scheduler);
        let arrivals = Arrivals { pending: pods.pending, draining: &state.draining };
        let queue = run.queue(self.problem.groups, &arrivals);
        let mut nominations = pods.nominations.cloned().unwrap_or_default();
        let mut result =
            RunResult { bound: Vec::with_capacity(queue.len()), left_over: BTreeMap::new() };
        let mut waiting = Vec::new();
        let priority = |group: &usize| self.problem.groups[*group].shape.priority;
        for same_priority in queue.chunk_by(|a, b| priority(a) == priority(b)) {
            // Nominations reserve room against other pods of the same priority.
            let mut without_nomination = Vec::new();
            for (index, group) in same_priority.iter().copied().enumerate() {
                if index % CANCEL_CHECK_PODS == 0 && !is_wanted() {
                    return result;
                }
                let class = state.classes[group];
                match nominations.get_mut(&group).and_then(next_nomination) {
                    Some(node) if scheduler.fits(class, node).is_err() => {
                        waiting.push((group, node));
                    }
                    None if pods.nominations.is_some() => without_nomination.push(group),
                    nominated => {
                        let node = scheduler.try_schedule(class, nominated);
                        result.record(group, node);
                        if pods.end_with(node, class, &scheduler) {
                            return result;
                        }
                    }
                }
            }
            for group in without_nomination {
                let class = state.classes[group];
                let node = scheduler.try_schedule(class, None);
                result.record(group, node);
                if pods.end_with(node, class, &scheduler) {
                    return result;
                }
            }
        }
        retry_nominated(state, &mut scheduler, waiting, &mut result);
        self.retry_affected(state, &mut scheduler, &mut result);
        result
    }

    /// Retries pods with affinity or spread rules as long as that helps. kube-scheduler also
    /// retries such pods when another pod is bound, which may be the pod that they depend on.
    fn retry_affected(&self, state: &SimState, scheduler: &mut Scheduler, result: &mut RunResult) {
        let depends_on_pods = |group: &usize| {
            let shape = &self.problem.groups[*group].shape;
            !shape.affinity.required.is_empty() || !shape.spread.is_empty()
        };
        let RunResult { bound, left_over } = result;
        loop {
            let waiting: Vec<usize> = left_over.keys().copied().filter(depends_on_pods).collect();
            let bound_before = bound.len();
            for group in waiting {
                while let Some(count) = left_over.get_mut(&group) {
                    let node = scheduler.try_schedule(state.classes[group], None);
                    let Some(node) = node else { break };
                    bound.push((group, node));
                    *count -= 1;
                    if *count == 0 {
                        left_over.remove(&group);
                    }
                }
            }
            if bound.len() == bound_before {
                return;
            }
        }
    }

    /// Returns a scheduler for this number of nodes that has the classes of all pods.
    pub(super) fn empty_scheduler(&self, nodes: usize) -> &EmptyScheduler {
        if simulates_default_spread(self.problem.groups.len(), nodes) {
            self.spreading_scheduler.get_or_init(|| self.build_empty_scheduler(true))
        } else {
            self.plain_scheduler.get_or_init(|| self.build_empty_scheduler(false))
        }
    }

    fn build_empty_scheduler(&self, spreads: bool) -> EmptyScheduler {
        let mut scheduler = Scheduler::new(Vec::new(), self.problem.namespaces, 0);
        // Default spreading requires an owner.
        let mut class =
            |shape, workload| scheduler.class(shape, Some(workload).filter(|_| spreads));
        let groups = self.problem.groups.iter().map(|g| class(&g.shape, &g.workload)).collect();
        let daemons = self.problem.daemons.iter().map(|d| class(&d.shape, &d.workload)).collect();
        let with_static = self.problem.existing.iter().filter(|node| !node.static_pods.is_empty());
        let static_pods = with_static.map(|node| {
            let classes = node.static_pods.iter().map(|shape| scheduler.class(shape, None));
            (node.name.clone(), classes.collect())
        });
        let fixed = BoundClasses { daemons, static_pods: static_pods.collect() };
        EmptyScheduler { scheduler, groups, fixed }
    }

    /// Returns the initial state: nodes, their DaemonSet pods, and the pods that stay.
    pub(super) fn initial_state(&self, layout: &Layout, offers: &[usize]) -> SimState {
        let (mut nodes, mut node_refs) = (Vec::new(), Vec::new());
        for (node, retained) in self.problem.existing.iter().zip(&layout.retained) {
            if !retained {
                continue;
            }
            let daemons = super::offer::daemon_requests(
                self.problem.daemons,
                &node.labels,
                &node.taints,
                &node.allocatable,
            );
            // Static pods are bound without requests, and each of them takes one place for a pod.
            let mut allocatable = node.room.plus(&daemons);
            allocatable.pods += i64::try_from(node.static_pods.len()).unwrap_or(i64::MAX);
            nodes.push(ScheduleNode {
                name: node.name.clone(),
                labels: node.labels.clone(),
                taints: node.taints.clone(),
                allocatable,
                unschedulable: !node.schedulable,
            });
            node_refs.push(NodeRef::Existing(node.name.clone()));
        }
        for (index, offer) in offers.iter().enumerate() {
            nodes.push(self.launched_node(*offer, index));
            node_refs.push(NodeRef::Launch(index));
        }
        let EmptyScheduler { mut scheduler, groups: classes, fixed } =
            self.empty_scheduler(nodes.len()).clone();
        let indices = scheduler.add_nodes(nodes.iter().cloned());
        for ((node, node_ref), index) in nodes.iter().zip(&node_refs).zip(&indices) {
            let whole = self.allocatable_of(node_ref, offers);
            self.bind_fixed(&mut scheduler, &fixed, (node, *index), whole);
        }
        let staying = self.problem.staying_pods(layout);
        let staying_count: u64 =
            staying.values().flat_map(BTreeMap::values).map(|n| u64::from(*n)).sum();
        let node_count = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
        let setup_work =
            node_count.saturating_mul(NODE_WORK) + staying_count.saturating_mul(BIND_WORK);
        let draining = self.problem.draining_pods(layout);
        let offers = offers.to_vec();
        bind_running_pods(&mut scheduler, &classes, &staying);
        SimState {
            scheduler,
            classes,
            fixed,
            nodes,
            node_refs,
            offers,
            staying,
            draining,
            setup_work,
        }
    }

    pub(super) fn launched_node(&self, offer: usize, index: usize) -> ScheduleNode {
        let offer = &self.problem.offers[offer];
        let node = &offer.node;
        let name = format!("launch/{index}");
        let mut labels = node.labels.clone();
        labels.extend([label(key::HOSTNAME, &name)]);
        ScheduleNode {
            name: name.as_str().into(),
            labels,
            taints: node.taints.clone(),
            // The room includes attachable volumes, and amounts that alternatives must also hold.
            allocatable: offer.planned_capacity(),
            unschedulable: false,
        }
    }

    /// Returns the allocatable resources of a node, the share of its DaemonSets included.
    pub(super) fn allocatable_of(&self, node: &NodeRef, offers: &[usize]) -> &Resources {
        match node {
            NodeRef::Existing(name) => {
                &self.problem.existing[self.problem.index_of(name)].allocatable
            }
            NodeRef::Launch(index) => &self.problem.offers[offers[*index]].node.allocatable,
        }
    }

    /// Binds the pods that start with their node: DaemonSet pods and static pods. `whole` are the
    /// allocatable resources of the node.
    pub(super) fn bind_fixed(
        &self,
        scheduler: &mut Scheduler,
        classes: &BoundClasses,
        (node, index): (&ScheduleNode, NodeIndex),
        whole: &Resources,
    ) {
        for (daemon, class) in self.problem.daemons.iter().zip(&classes.daemons) {
            if runs_daemon(daemon, &node.labels, &node.taints, whole) {
                scheduler.bind(*class, index);
            }
        }
        for class in classes.static_pods.get(&node.name).into_iter().flatten() {
            scheduler.bind(*class, index);
        }
    }
}
