//! Invariants I1 to I25 of the controller, as far as they are observable from outside. They must
//! hold after each step, under all faults.
//!
//! A check sees the calls and their observations, and none of the controller's internals. A
//! recorded trace can therefore violate it, and has to be detected ([`prove`]). The checks cover
//! I16 (upgrade neutrality) only for one version. A plan must not report drift against its own
//! launches. A restarted process must find no change in a converged fleet. Convergence is checked
//! after the last fault.

mod budgets;
mod clock_offsets;
mod launches;
mod plan_stability;
mod removals;
mod self_test;
mod settings;

pub(crate) use self_test::prove;
pub(crate) use settings::is_applied;

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::apply::EarlierLaunch;
use fleetwright::controller::{Effect, InterruptionStatus, PersistedState, Status};
use fleetwright::model::desired::{ApplyConditions, ControllerSettings};
use fleetwright::model::ids::{
    Address, ChangeId, InstanceId, NodeName, PlanId, WorkloadId, WorkloadKey, workload_key,
};
use fleetwright::model::observed::{Completeness, Instance, Node, Observed, tag};
use fleetwright::plan::wire::{Amount, ExplainRow, Reason, ResourceChange, RetireReason, WaveStep};
use fleetwright::plan::{Plan, change_id};
use jiff::{SignedDuration, Timestamp};

use launches::{ApprovedLaunch, allocatable};
use removals::{CordonPeriod, PlannedRemoval, instances_without_pods, is_empty_node};

use super::environment::{APPLY, CallKind, RecordedCall, TerminatedInstance};

/// Time within which EC2 lists a new instance.
const LISTED_WITHIN: SignedDuration = SignedDuration::from_mins(2);
/// Maximum number of stored observations per replica. It plans over fewer while an apply waits.
const PLANNING_BASES_MAX: usize = 1000;
/// Longest time from a reply at the port to its event in the controller.
const REPLY_DELAY_MAX: SignedDuration = SignedDuration::from_millis(500);

/// The first violation, and the state of the checks.
#[derive(Default)]
pub(crate) struct InvariantChecks {
    /// First violation.
    violation: Option<String>,
    /// Number of calls that were checked.
    checked_calls: usize,
    /// Launches of applied plans, of all processes, by the change in their request.
    approved: BTreeMap<ChangeId, ApprovedLaunch>,
    /// Instances that applied plans remove, and their replacements.
    planned_removals: BTreeMap<InstanceId, PlannedRemoval>,
    /// Instances that each plan removes.
    drains: BTreeMap<PlanId, BTreeSet<InstanceId>>,
    /// Terminating instances by replica, from its last status.
    terminating: BTreeMap<usize, BTreeMap<InstanceId, InterruptionStatus>>,
    /// Workloads whose planned launches were blocked when the drain of an instance without a near
    /// deadline began, by replica.
    early_drains: BTreeMap<(usize, InstanceId), BTreeSet<WorkloadId>>,
    /// Nodes that may stay cordoned for long: their deadline is later, their replacement is
    /// blocked, or as many nodes as allowed are drained before them.
    long_cordons: BTreeSet<NodeName>,
    /// Instances that any replica ever reported as terminating.
    ever_terminating: BTreeSet<InstanceId>,
    /// Launched instances: the time of the first request, and its change.
    launched_instances: BTreeMap<InstanceId, (Timestamp, ChangeId)>,
    /// Number of applied plans.
    applied_plans: u64,
    /// Changes of other plans that each applied plan counts as instances, by its number.
    counted_launches: BTreeMap<u64, BTreeSet<ChangeId>>,
    /// Applies in progress by replica, from its last status.
    applying: BTreeMap<usize, BTreeSet<PlanId>>,
    /// Launches that were no longer needed when their plan was last made again.
    dropped_launches: BTreeMap<PlanId, BTreeSet<Address>>,
    /// Instances that each process has launched, by the time of the reply.
    launched: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    ended: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    /// Cordon periods of nodes, of any origin.
    cordon_periods: BTreeMap<NodeName, CordonPeriod>,
    /// Termination grace periods that any commit declared.
    grace_periods: BTreeSet<SignedDuration>,
    /// Time of the last evaluation of the world.
    checked_at: Timestamp,
    /// Start of our cordons of Ready nodes.
    cordoned_since: BTreeMap<String, Timestamp>,
    /// Last observations that each replica planned over, the newest last.
    planning_bases: BTreeMap<usize, Vec<PlanningBase>>,
    /// Planned launches, and planned removals of nodes with pods, with their unit.
    launches: Vec<(Timestamp, InstanceId, String)>,
    removals: Vec<(Timestamp, InstanceId, String)>,
    /// Changes whose instance was Ready at least once.
    ready_changes: BTreeSet<ChangeId>,
    /// Since when, and until when, the instance of each of these changes was Ready and open.
    serving: BTreeMap<ChangeId, (Timestamp, Timestamp)>,
    /// Instances that were terminated.
    terminated: BTreeSet<InstanceId>,
    /// Number of nodes, at each change of it.
    nodes: Vec<(Timestamp, u32)>,
    /// Times of equal writes.
    writes: BTreeMap<String, Vec<Timestamp>>,
    reads: (u64, Option<Timestamp>),
    /// Nodes that replicas asked to cordon while they believed that a CI apply held the lease.
    leaseless_cordons: BTreeSet<(usize, NodeName)>,
    /// Last change of a clock. Rates are counted from then on.
    clock_set: Option<Timestamp>,
    clocks: clock_offsets::ClockOffsets,
    /// State of the check that equal observations give equal plans.
    plan_stability: plan_stability::PlanStability,
    /// True if an operator has sent a request, which may approve blocked changes.
    has_requests: bool,
    /// Settings and operator decisions.
    decisions: settings::OperatorDecisions,
}

/// The observation that a replica planned over.
struct PlanningBase {
    /// Time of the observation, and of the request to plan.
    taken_at: Timestamp,
    at: Timestamp,
    instances: BTreeSet<InstanceId>,
    /// Instances whose node runs no pod but its own.
    without_pods: BTreeSet<InstanceId>,
    /// Number of nodes, and of those that are not Ready.
    nodes: usize,
    unready: usize,
    /// Unschedulable nodes.
    closed: BTreeSet<NodeName>,
    /// Number of pods by workload.
    pods: BTreeMap<WorkloadId, u32>,
    /// Terms that could not be resolved, and the time since when. Their instances may be retained
    /// for now.
    unread: BTreeMap<String, Timestamp>,
    /// Minimum allocatable of the nodes, by type and specification.
    allocatable: BTreeMap<(String, String), Amount>,
}

/// The nodes and instances after a step of time.
#[derive(Clone, Copy)]
pub(crate) struct ObservedFleet<'a> {
    pub(crate) nodes: &'a BTreeMap<NodeName, Node>,
    pub(crate) instances: &'a BTreeMap<InstanceId, Instance>,
}

/// A step of a replica.
pub(crate) struct ReplicaStep<'a> {
    pub(crate) replica: usize,
    pub(crate) now: Timestamp,
    pub(crate) status: &'a Status,
    pub(crate) effects: &'a [Effect],
    /// Controller settings of the served commit.
    pub(crate) settings: &'a ControllerSettings,
    /// Apply windows of the same commit.
    pub(crate) guard: &'a ApplyConditions,
    pub(crate) persisted_state: &'a PersistedState,
    /// True if that commit declares neither workloads nor pools.
    pub(crate) is_empty: bool,
}

/// A plan at the start of its apply.
struct ApplyStart<'a> {
    replica: usize,
    plan: &'a Plan,
    /// Launches of earlier applies that this one repeats.
    begun: &'a BTreeMap<Address, EarlierLaunch>,
    /// True if the apply waits until launched instances are Ready.
    waits: bool,
    /// Launches of other plans that the plan counts.
    in_progress: &'a [Instance],
}

impl InvariantChecks {
    /// Returns whether no invariant was violated.
    #[must_use]
    pub(crate) fn is_clean(&self) -> bool {
        self.violation.is_none()
    }

    /// Checks that no invariant was violated.
    ///
    /// # Errors
    /// Returns the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Records a violation, unless there is one already.
    pub(crate) fn fail(&mut self, at: Timestamp, what: &str) {
        self.violation.get_or_insert_with(|| format!("{at:.0}: {what}"));
    }

    /// Records a new clock offset of a replica.
    pub(crate) fn record_clock_offset(
        &mut self,
        replica: usize,
        now: Timestamp,
        by: SignedDuration,
    ) {
        self.clock_set = Some(now);
        self.clocks.set(replica, now, by);
    }

    /// Forgets the state of the process before a restart. The new process has a correct clock.
    pub(crate) fn record_restart(&mut self, replica: usize, now: Timestamp) {
        self.clocks.set(replica, now, SignedDuration::ZERO);
        self.plan_stability.record_restart(replica);
        self.decisions.record_restart(replica);
        self.launched.remove(&replica);
        self.ended.remove(&replica);
        self.terminating.remove(&replica);
        self.early_drains.retain(|(of, _), _| *of != replica);
        self.planning_bases.remove(&replica);
        self.applying.remove(&replica);
    }

    /// Checks a step of a replica.
    pub(crate) fn step(&mut self, step: &ReplicaStep<'_>) {
        let terminating = step
            .status
            .interrupted
            .iter()
            .map(|terminating| (terminating.instance.clone(), terminating.clone()));
        let terminating: BTreeMap<_, _> = terminating.collect();
        self.ever_terminating.extend(terminating.keys().cloned());
        self.record_drains(step, &terminating);
        self.terminating.insert(step.replica, terminating);
        self.applying.insert(step.replica, step.status.in_progress.keys().cloned().collect());
        if let Some(why) = self.plan_stability.check_plan(step.replica, step.status) {
            self.fail(step.now, &format!("I16: {why}"));
        }
        self.record_settings(step);
        self.record_lapsed_confirmations(step);
        for effect in step.effects {
            self.check_settings(effect, step);
            if let Effect::Plan { world, .. } = effect {
                self.check_planning_base(step.replica, world, step.now);
            }
            self.plan_stability.record_request(step.replica, effect, step.status);
            if let Effect::CordonWithoutLease { node } = effect {
                self.leaseless_cordons.insert((step.replica, node.name.clone()));
            }
            self.check_uncordon(effect, step);
            self.check_eviction_time(effect, step);
            if let Effect::Apply {
                plan,
                previous_attempts: begun,
                wait_until_ready: waits,
                launches_in_progress: in_progress,
                ..
            } = effect
            {
                let (replica, waits) = (step.replica, *waits);
                let start = ApplyStart { replica, plan, begun, waits, in_progress };
                self.check_apply(&start, step);
            }
        }
    }

    /// Checks a plan at the start of its apply. A launch that an earlier apply requested keeps its
    /// change. Every other launch has a change of its own.
    fn check_apply(&mut self, start: &ApplyStart<'_>, step: &ReplicaStep<'_>) {
        let ApplyStart { replica, plan, begun, waits: _, in_progress } = *start;
        let ReplicaStep { now, status, settings, .. } = *step;
        if plan.errored || !plan.applyable {
            self.fail(now, "I18: a plan that is not applyable is applied");
        }
        let mut sources = plan.capacity.base.world.sources.values();
        if !sources.all(|source| *source == Completeness::Complete) {
            self.fail(now, "I3: a plan over a partial observation is applied");
        }
        let newer = self.replaced_without_release(plan);
        if let Some(why) = plan_stability::drifts_from_replacement(plan).or(newer) {
            self.fail(now, &format!("I16: {why}"));
        }
        let launched: Vec<&ResourceChange> = rows(plan, WaveStep::Launch).collect();
        self.check_quarantine(&launched, status, now);
        self.check_observed_resources(plan, replica, now);
        self.check_unschedulable_nodes(plan, replica, now);
        self.check_recent_launches(plan, begun, in_progress, step);
        if rows(plan, WaveStep::Retire).next().is_some() {
            if !in_progress.is_empty() {
                self.fail(now, "I13: a plan with removals counts launches in progress");
            }
            self.check_removal_allowed(plan, step);
            self.check_mass_removal(plan, settings, now);
        }
        self.record_plan(start);
    }

    /// Records the start of a CI apply. The budgets of the controller exclude it.
    pub(crate) fn record_ci_apply(&mut self, plan: &Plan) {
        let begun = &BTreeMap::new();
        let (replica, waits) = (APPLY, true);
        self.record_plan(&ApplyStart { replica, plan, begun, waits, in_progress: &[] });
        self.applying.insert(APPLY, [plan.capacity.plan_id.clone()].into());
    }

    /// Records the launches and removals of an applied plan.
    fn record_plan(&mut self, start: &ApplyStart<'_>) {
        let ApplyStart { replica, plan, begun, waits, in_progress } = *start;
        let base = self.base_of(replica, plan);
        let without_pods = base.map(|base| base.without_pods.clone()).unwrap_or_default();
        self.drains.entry(plan.capacity.plan_id.clone()).or_default();
        let launched: Vec<&ResourceChange> = rows(plan, WaveStep::Launch).collect();
        let plan_id = &plan.capacity.plan_id;
        let explained: BTreeMap<_, _> =
            plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
        let groups: BTreeMap<_, _> = explained
            .iter()
            .filter_map(|(address, row)| Some((*address, row.group.as_deref()?)))
            .collect();
        let places = places(plan);
        let unit = |row: &ResourceChange| {
            let group = groups.get(&row.address).copied();
            format!("{plan_id} {}", group.unwrap_or(row.address.as_str()))
        };
        let change = |address: &Address| {
            let before = begun.get(address).map(|before| before.change.clone());
            before.unwrap_or_else(|| change_id(plan_id, address))
        };
        self.applied_plans += 1;
        self.counted_launches.insert(self.applied_plans, changes_of(in_progress).collect());
        self.dropped_launches.remove(plan_id);
        for row in &launched {
            let Some(node) = row.change.after.clone() else { continue };
            let alternatives = plan.capacity.alternatives.iter();
            let alternatives = alternatives.filter(|of| of.address == row.address);
            let alternatives = alternatives.flat_map(|of| of.offerings.clone()).collect();
            let launch = ApprovedLaunch {
                unit: unit(row),
                plan: plan_id.clone(),
                begun: self.applied_plans,
                waits,
                node,
                alternatives,
                pods: places.get(&row.address).cloned().unwrap_or_default(),
            };
            self.approved.insert(change(&row.address), launch);
        }
        for row in rows(plan, WaveStep::Retire) {
            let Some(id) = row.change.before.as_ref().and_then(|b| b.instance_id.clone()) else {
                continue;
            };
            let group = groups.get(&row.address).copied();
            let mine = |other: &&&ResourceChange| {
                other.address == row.address
                    || group.is_some() && groups.get(&other.address).copied() == group
            };
            let after = launched.iter().filter(mine);
            let row_of = |row: &ResourceChange| (plan_id.clone(), row.address.clone());
            let after = after.map(|row| (change(&row.address), row_of(row))).collect();
            self.drains.entry(plan_id.clone()).or_default().insert(id.clone());
            let pods = explained.get(&row.address).map(|row| (*row.pods_before).clone());
            let pods = pods.unwrap_or_default();
            let reason = explained.get(&row.address).copied();
            let is_empty = reason.is_some_and(is_empty_node) && without_pods.contains(&id);
            let node = row.change.before.as_ref().and_then(|before| before.node.clone());
            let (row, unit) = (row.address.clone(), unit(row));
            let removal = PlannedRemoval { row, unit, node, after, pods, is_empty };
            self.planned_removals.insert(id, removal);
        }
    }

    /// Returns the observation that a plan was made from. An apply starts once its changes are
    /// persisted. By then the replica may have planned over a later observation.
    fn base_of(&self, replica: usize, plan: &Plan) -> Option<&PlanningBase> {
        let taken_at = plan.capacity.base.world.taken_at;
        let mut bases = self.planning_bases.get(&replica)?.iter().rev();
        bases.find(|base| base.taken_at == taken_at)
    }

    /// Returns the last observation that a replica planned over.
    fn last_base(&self, replica: usize) -> Option<&PlanningBase> {
        self.planning_bases.get(&replica)?.last()
    }

    /// I7: a plan places no pods on unschedulable nodes.
    fn check_unschedulable_nodes(&mut self, plan: &Plan, replica: usize, now: Timestamp) {
        let Some(over) = self.base_of(replica, plan) else { return };
        let closed = |row: &&ResourceChange| {
            let node = row.change.after.as_ref().and_then(|after| after.node.as_ref());
            node.is_some_and(|name| over.closed.contains(name))
        };
        let closed: BTreeSet<&Address> =
            plan.resource_changes.iter().filter(closed).map(|row| &row.address).collect();
        let placed = plan.capacity.placements.iter().find(|row| closed.contains(&row.address));
        if let Some(row) = placed {
            let what = format!("I7: pods of {} are planned for {}", row.workload, row.address);
            self.fail(now, &format!("{what}, which is unschedulable"));
        }
    }

    /// I13: a plan counts the recent launches of its own process, and no instance that it has
    /// terminated.
    fn check_planning_base(&mut self, replica: usize, world: &Observed, now: Timestamp) {
        // The wait ends by the clock of the replica, which may have been set forward since.
        let clocks = self.clocks.clone();
        let young = |at: &Timestamp| {
            now.duration_since(*at) + clocks.set_forward_since(replica, *at) < LISTED_WITHIN
        };
        let known = self.launched.get(&replica).cloned().unwrap_or_default();
        for (id, _) in known.iter().filter(|(_, at)| young(at)) {
            let is_removable =
                self.planned_removals.contains_key(id) || self.ever_terminating.contains(id);
            if !world.instances.contains_key(id) && !is_removable {
                self.fail(now, &format!("I13: a plan ignores the launch of {id}"));
            }
        }
        let ended = self.ended.get(&replica).cloned().unwrap_or_default();
        // Events of the same moment arrive after the results of calls in progress.
        for (id, _) in
            ended.iter().filter(|(_, at)| young(at) && now.duration_since(**at) > REPLY_DELAY_MAX)
        {
            if world.instances.get(id).is_some_and(Instance::is_active) {
                self.fail(now, &format!("I13: a plan ignores the termination of {id}"));
            }
        }
        let nodes = world.nodes.values().filter(|node| !node.is_fargate());
        let unready = nodes.clone().filter(|node| !node.ready).count();
        let (at, instances) = (now, world.instances.keys().cloned().collect());
        let closed = nodes.clone().filter(|node| node.unschedulable);
        let closed = closed.map(|node| node.name.clone()).collect();
        let (nodes, allocatable) = (nodes.count(), allocatable(world));
        let mut pods = BTreeMap::new();
        for pod in world.pods.iter().filter(|pod| pod.is_active()) {
            *pods.entry(pod.workload()).or_insert(0) += 1;
        }
        let before = self.last_base(replica).map(|over| &over.unread);
        let since = |words: &String| before.and_then(|all| all.get(words)).copied().unwrap_or(now);
        let unread = world.resolved.unread.iter().map(|unread| &unread.words);
        let unread = unread.map(|words| (words.clone(), since(words))).collect();
        let taken_at = world.taken_at;
        let over = PlanningBase {
            taken_at,
            at,
            instances,
            without_pods: instances_without_pods(world),
            nodes,
            unready,
            closed,
            pods,
            unread,
            allocatable,
        };
        let bases = self.planning_bases.entry(replica).or_default();
        bases.push(over);
        let old = bases.len().saturating_sub(PLANNING_BASES_MAX);
        bases.drain(..old);
    }

    /// Checks the new calls. `all` holds every call of the run.
    pub(crate) fn calls(&mut self, all: &[RecordedCall], settings: &ControllerSettings) {
        let new: Vec<RecordedCall> = all.iter().skip(self.checked_calls).cloned().collect();
        self.checked_calls = all.len();
        for call in new {
            self.call(&call, settings);
        }
    }

    pub(crate) fn call(&mut self, call: &RecordedCall, settings: &ControllerSettings) {
        let RecordedCall { at, replica, lease, kind, .. } = call;
        // I12: only the holder of the lease writes, and only before the margin at the end of its
        // lease.
        let holds = lease.is_some_and(|(by, until)| {
            by == *replica
                && call.began < until.checked_sub(super::environment::LEASE_MARGIN).unwrap_or(until)
        });
        // During a CI apply, the controller cordons interrupted nodes and makes no other call.
        let cordons_without_lease = if let CallKind::Cordon { node, on: true, .. } = kind {
            let asked = self.leaseless_cordons.contains(&(*replica, node.clone()));
            lease.is_some_and(|(by, _)| by == APPLY) || lease.is_none() && asked
        } else {
            false
        };
        let hears =
            matches!(kind, CallKind::Ended(_) | CallKind::Launched(_) | CallKind::Pinned(..));
        self.check_observe_only_call(call);
        if !holds && !cordons_without_lease && !hears && !matches!(kind, CallKind::Acknowledge(..))
        {
            self.fail(*at, &format!("I12: replica {replica} writes without the lease"));
        }
        self.check_repeated_writes(*at, kind);
        match kind {
            CallKind::Launch(request, Some(id)) => self.launch(call, request, id, settings),
            CallKind::Terminate(ended) => self.terminate(call, ended, settings),
            CallKind::Cordon { node, ours: false, .. } => {
                self.fail(*at, &format!("I2: {node} was cordoned and is not managed"));
            }
            CallKind::Cordon { node, on: true, .. } => {
                // A cordoned node may only receive another mark.
                self.record_cordon(node, *at);
            }
            CallKind::Cordon { node, on: false, .. } => {
                self.cordon_periods.remove(node);
            }
            CallKind::Raise { group, from, to } if to < from => {
                self.fail(*at, &format!("I11: the desired size of group {group} is reduced"));
            }
            CallKind::Acknowledge(receipt, open) => {
                if let Some(id) = open.first() {
                    let why = "before it is cordoned and persisted";
                    self.fail(
                        *at,
                        &format!("I20: the message {receipt} about {id} is acknowledged {why}"),
                    );
                }
            }
            CallKind::Ended(id) => {
                self.ended.entry(*replica).or_default().insert(id.clone(), *at);
            }
            CallKind::Pinned(plan, dropped) => {
                // A plan that is made again after its first call drops no launches.
                self.dropped_launches.entry(plan.clone()).or_insert_with(|| dropped.clone());
            }
            CallKind::Launched(id) => {
                self.launched.entry(*replica).or_default().insert(id.clone(), *at);
            }
            CallKind::Serves(served) => self.check_merge_wait(*at, served),
            CallKind::Nominate(pod, node) => self.check_nomination(call, pod, node),
            CallKind::Open(node) => self.record_opening(node, *at),
            CallKind::Evict(_, node) => self.record_eviction(node.as_ref()),
            CallKind::Raise { .. } | CallKind::Launch(_, None) => {}
            CallKind::DeletePod(_, node) => self.check_pod_deletion(*at, node.as_ref()),
        }
    }

    /// Checks the world after a step of time.
    pub(crate) fn tick(&mut self, observed: ObservedFleet<'_>, reads: u64, now: Timestamp) {
        let nodes = u32::try_from(observed.nodes.len()).unwrap_or(u32::MAX);
        if self.nodes.last().is_none_or(|(_, last)| *last != nodes) {
            self.nodes.push((now, nodes));
        }
        // A closed node serves no pod yet, and its launch may still time out.
        let serve = observed.nodes.values().filter(|node| node.ready && !node.is_closed());
        let serve = serve.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let changes = serve.filter_map(|instance| instance.tags.get(tag::CHANGE));
        for change in changes.map(|change| ChangeId::from(change.as_str())) {
            self.serving.entry(change.clone()).or_insert((now, now)).1 = now;
            self.ready_changes.insert(change);
        }
        self.record_cordons(observed, now);
        self.check_cordon_duration(observed, now);
        self.check_unique_changes(observed, now);
        self.check_read_rate(reads, now);
    }
}

/// Returns the changes that launched these instances.
fn changes_of(instances: &[Instance]) -> impl Iterator<Item = ChangeId> {
    let tags = instances.iter().filter_map(|instance| instance.tags.get(tag::CHANGE));
    tags.map(|change| ChangeId::from(change.as_str()))
}

/// Returns the number of pods by workload that a plan places on each node.
fn places(plan: &Plan) -> BTreeMap<&Address, BTreeMap<WorkloadKey, u32>> {
    let mut places: BTreeMap<&Address, BTreeMap<WorkloadKey, u32>> = BTreeMap::new();
    for row in &plan.capacity.placements {
        let on = places.entry(&row.address).or_default();
        *on.entry(workload_key(&row.workload).into()).or_insert(0) += row.pods;
    }
    places
}

fn rows(plan: &Plan, step: WaveStep) -> impl Iterator<Item = &ResourceChange> {
    let waves = plan.capacity.waves.iter().filter(move |wave| wave.step == step);
    let addresses: BTreeSet<_> = waves.flat_map(|wave| &wave.addresses).collect();
    plan.resource_changes.iter().filter(move |row| addresses.contains(&row.address))
}

fn because(row: &ExplainRow) -> Option<&RetireReason> {
    match &row.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            row.retire_reason.as_ref()
        }
    }
}
