//! What must hold after every step, whatever goes wrong: the invariants I1 to I20 of the design, as far as
//! an outside of the loop can tell.
//!
//! Checks know what was asked and what was shown, and nothing of how the loop came to it; so each can be
//! given a trace that violates it, and has to complain ([`prove`]). Of I16 (upgrade neutrality) that is what
//! can be told of one version: nothing drifts from what is launched in its place, and no life finds
//! anything to change in a fleet that another has left at rest. Liveness is checked once nothing goes wrong
//! any more.

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
use fleetwright::controller::{Effect, PersistedState, Status, TerminatingInstance};
use fleetwright::model::desired::{ControllerSettings, GuardSettings};
use fleetwright::model::ids::{Address, ChangeId, InstanceId, NodeName, PlanId, WorkloadId};
use fleetwright::model::observed::{Completeness, Instance, Node, Observed, tag};
use fleetwright::plan::wire::{Amount, ExplainRow, Reason, ResourceChange, RetireReason, WaveStep};
use fleetwright::plan::{Plan, change_id};
use jiff::{SignedDuration, Timestamp};

use launches::{ApprovedLaunch, allocatable};
use removals::{CordonPeriod, PlannedRemoval};

use super::environment::{APPLY, CallKind, RecordedCall, TerminatedInstance};

/// How long EC2 may take to show what was asked of it.
const SHOWN_WITHIN: SignedDuration = SignedDuration::from_mins(2);
/// How long an answer may take from the port to the mind of the loop.
const HEARD: SignedDuration = SignedDuration::from_millis(500);

/// What was found, and what it takes to find it.
#[derive(Default)]
pub(crate) struct InvariantChecks {
    /// The first thing that was wrong.
    broken: Option<String>,
    /// Calls that were looked at.
    seen: usize,
    /// Launches of plans that were carried out, by any life, as the changes that they are asked for as.
    approved: BTreeMap<ChangeId, ApprovedLaunch>,
    /// Machines that plans which are or were carried out have go, and what comes in their place.
    planned: BTreeMap<InstanceId, PlannedRemoval>,
    /// The same of each plan.
    drains: BTreeMap<PlanId, BTreeSet<InstanceId>>,
    /// Machines that go by themselves, as each replica last told it.
    going: BTreeMap<usize, BTreeMap<InstanceId, TerminatingInstance>>,
    /// Workloads whose pods the plan had come to instances that were held back, when pods of an instance that goes
    /// by itself and has long were first to leave, as each replica told it.
    too_soon: BTreeMap<(usize, InstanceId), BTreeSet<WorkloadId>>,
    /// Nodes of instances that may stand cordoned for long: they go later, or what replaces them is held back.
    patient: BTreeSet<NodeName>,
    /// Machines that went by themselves as any replica ever told it.
    went: BTreeSet<InstanceId>,
    /// Every instance that was launched: when that was asked for first, and as which change.
    machines: BTreeMap<InstanceId, (Timestamp, ChangeId)>,
    /// Plans that were begun.
    begun: u64,
    /// Plans that each replica carries out, as it last told it.
    applying: BTreeMap<usize, BTreeSet<PlanId>>,
    /// Launches of plans that were found to be needed no more when they were last about to be carried out.
    dropped: BTreeMap<PlanId, BTreeSet<Address>>,
    /// Machines that each life knows to have launched, and to have told to end.
    launched: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    ended: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    /// Nodes that stand cordoned, or stood so last, whoever had cordoned them.
    cordons: BTreeMap<NodeName, CordonPeriod>,
    /// When the world was last looked at.
    ticked: Timestamp,
    /// Since when nodes stand cordoned.
    cordoned: BTreeMap<String, Timestamp>,
    /// What each replica planned over last.
    over: BTreeMap<usize, PlanningBase>,
    /// Launches and removals that a plan decided, and the unit that each is of.
    launches: Vec<(Timestamp, InstanceId, String)>,
    removals: Vec<(Timestamp, InstanceId, String)>,
    /// Changes of which an instance was Ready once.
    ready: BTreeSet<ChangeId>,
    /// Every instance that was told to end.
    all_ended: BTreeSet<InstanceId>,
    /// Nodes that there were, as they became fewer or more.
    nodes: Vec<(Timestamp, u32)>,
    /// When the same thing was written.
    writes: BTreeMap<String, Vec<Timestamp>>,
    reads: (u64, Option<Timestamp>),
    /// Nodes that replicas wanted to cordon because an apply had the lease, as far as they had heard.
    shields: BTreeSet<(usize, NodeName)>,
    /// When a clock was last set: what is counted over time is counted anew then.
    clock_set: Option<Timestamp>,
    clocks: clock_offsets::ClockOffsets,
    /// What is planned again, and must come to the same.
    neutral: plan_stability::PlanStability,
    /// Whether somebody has asked for something: people may approve what nothing else does.
    asked: bool,
    /// What settings and people say.
    said: settings::OperatorDecisions,
}

/// What a replica has planned over.
struct PlanningBase {
    at: Timestamp,
    machines: BTreeSet<InstanceId>,
    /// How many nodes there are, and how many of them are not Ready.
    nodes: usize,
    unready: usize,
    /// Nodes that take no pods.
    closed: BTreeSet<NodeName>,
    /// How many pods there are of each workload.
    pods: BTreeMap<WorkloadId, u32>,
    /// What cannot be looked up, and since when: instances may be left alone for now because of it.
    unread: BTreeMap<String, Timestamp>,
    /// The least that nodes have, by type and specification.
    allocatable: BTreeMap<(String, String), Amount>,
}

/// What there is, after a moment has passed.
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
    /// The settings of the commit that is served.
    pub(crate) settings: &'a ControllerSettings,
    /// When plans may be begun, by the same.
    pub(crate) guard: &'a GuardSettings,
    /// What is kept in the cluster.
    pub(crate) kept: &'a PersistedState,
    /// Whether that commit asks for nothing at all.
    pub(crate) is_empty: bool,
}

impl InvariantChecks {
    /// Returns whether nothing was wrong.
    #[must_use]
    pub(crate) fn is_well(&self) -> bool {
        self.broken.is_none()
    }

    /// Returns what was wrong.
    ///
    /// # Errors
    /// With the first of it.
    pub(crate) fn well(&self) -> Result<(), String> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Notes that something is wrong.
    pub(crate) fn fail(&mut self, at: Timestamp, what: &str) {
        self.broken.get_or_insert_with(|| format!("{at:.0}: {what}"));
    }

    /// Notes that the clock of a replica was set, and by how much it is wrong.
    pub(crate) fn clock_is_set(&mut self, replica: usize, now: Timestamp, by: SignedDuration) {
        self.clock_set = Some(now);
        self.clocks.set(replica, now, by);
    }

    /// Forgets what a life knew that has ended: another begins, with a clock that is right.
    pub(crate) fn restarted(&mut self, replica: usize, now: Timestamp) {
        self.clocks.set(replica, now, SignedDuration::ZERO);
        self.neutral.restarted(replica);
        self.said.restarted(replica);
        self.launched.remove(&replica);
        self.ended.remove(&replica);
        self.going.remove(&replica);
        self.too_soon.retain(|(of, _), _| *of != replica);
        self.over.remove(&replica);
        self.applying.remove(&replica);
    }

    /// Looks at a step of a replica.
    pub(crate) fn step(&mut self, step: &ReplicaStep<'_>) {
        let going =
            step.status.terminating.iter().map(|going| (going.instance.clone(), going.clone()));
        let going: BTreeMap<_, _> = going.collect();
        self.went.extend(going.keys().cloned());
        self.waits_for_new_places(step, &going);
        self.going.insert(step.replica, going);
        self.applying.insert(step.replica, step.status.in_progress.keys().cloned().collect());
        if let Some(why) = self.neutral.was_planned(step.replica, step.status) {
            self.fail(step.now, &format!("I16: {why}"));
        }
        self.heeds(step);
        self.confirmations_lapse(step);
        for effect in step.effects {
            self.is_allowed(effect, step);
            if let Effect::Plan { world, .. } = effect {
                self.plans_over(step.replica, world, step.now);
            }
            self.neutral.asks(step.replica, effect, step.status);
            if let Effect::CordonWithoutLease { node } = effect {
                self.shields.insert((step.replica, node.name.clone()));
            }
            self.uncordons(effect, step);
            self.leaves_too_soon(effect, step);
            if let Effect::Apply {
                plan, previous_attempts: begun, wait_until_ready: waits, ..
            } = effect
            {
                self.carries_out(plan, (begun, *waits), step);
            }
        }
    }

    /// Looks at a plan that is begun, of which those launches that were asked for before, by whichever life,
    /// are asked for again as the same changes: each row is one change, and its own only where it is new.
    fn carries_out(
        &mut self,
        plan: &Plan,
        (begun, waits): (&BTreeMap<Address, EarlierLaunch>, bool),
        step: &ReplicaStep<'_>,
    ) {
        let ReplicaStep { now, replica, status, settings, .. } = *step;
        if plan.errored || !plan.applyable {
            self.fail(now, "I18: a plan is carried out that may not be");
        }
        let mut sources = plan.capacity.base.world.sources.values();
        if !sources.all(|source| *source == Completeness::Complete) {
            self.fail(now, "I3: a plan is carried out over a world that was read in part");
        }
        let newer = self.replaced_for_nothing_newer(plan);
        if let Some(why) = plan_stability::drifts_from_itself(plan).or(newer) {
            self.fail(now, &format!("I16: {why}"));
        }
        let launched: Vec<&ResourceChange> = rows(plan, WaveStep::Launch).collect();
        self.quarantines_hold(&launched, status, now);
        self.learned_is_used(&launched, replica, now);
        self.closed_is_no_room(plan, replica, now);
        self.counts_with_all(&launched, begun, step);
        if rows(plan, WaveStep::Retire).next().is_some() {
            self.may_remove(step);
            self.is_no_mass_removal(plan, settings, now);
        }
        self.is_decided(plan, begun, waits);
    }

    /// Notes what an apply of CI begins: the loop's budgets are not its own.
    pub(crate) fn ci_carries_out(&mut self, plan: &Plan) {
        self.is_decided(plan, &BTreeMap::new(), true);
        self.applying.insert(APPLY, [plan.capacity.plan_id.clone()].into());
    }

    /// Notes what is decided by a plan that is begun.
    fn is_decided(&mut self, plan: &Plan, begun: &BTreeMap<Address, EarlierLaunch>, waits: bool) {
        self.drains.entry(plan.capacity.plan_id.clone()).or_default();
        let launched: Vec<&ResourceChange> = rows(plan, WaveStep::Launch).collect();
        let plan_id = &plan.capacity.plan_id;
        let groups: BTreeMap<_, _> = plan
            .capacity
            .explain
            .iter()
            .filter_map(|row| Some((&row.address, row.group.as_deref()?)))
            .collect();
        let unit = |row: &ResourceChange| {
            let group = groups.get(&row.address).copied();
            format!("{plan_id} {}", group.unwrap_or(row.address.as_str()))
        };
        let change = |address: &Address| {
            let before = begun.get(address).map(|before| before.change.clone());
            before.unwrap_or_else(|| change_id(plan_id, address))
        };
        self.begun += 1;
        self.dropped.remove(plan_id);
        for row in &launched {
            let Some(node) = row.change.after.clone() else { continue };
            let alternatives = plan.capacity.alternatives.iter();
            let alternatives = alternatives.filter(|of| of.address == row.address);
            let alternatives = alternatives.flat_map(|of| of.offerings.clone()).collect();
            let (unit, plan) = (unit(row), plan_id.clone());
            let launch =
                ApprovedLaunch { unit, plan, begun: self.begun, waits, node, alternatives };
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
            self.planned.insert(id, PlannedRemoval { unit: unit(row), after });
        }
    }

    /// I7: a node that takes no pods, whoever has cordoned it, is no room for any.
    fn closed_is_no_room(&mut self, plan: &Plan, replica: usize, now: Timestamp) {
        let Some(over) = self.over.get(&replica) else { return };
        let closed = |row: &&ResourceChange| {
            let node = row.change.after.as_ref().and_then(|after| after.node.as_ref());
            node.is_some_and(|name| over.closed.contains(name))
        };
        let closed: BTreeSet<&Address> =
            plan.resource_changes.iter().filter(closed).map(|row| &row.address).collect();
        let placed = plan.capacity.placements.iter().find(|row| closed.contains(&row.address));
        if let Some(row) = placed {
            let what = format!("I7: pods of {} are to come to {}", row.workload, row.address);
            self.fail(now, &format!("{what}, which takes none"));
        }
    }

    /// I13: what this life launched is in the world that it plans over, and what it told to end is not in use,
    /// or it is long past.
    fn plans_over(&mut self, replica: usize, world: &Observed, now: Timestamp) {
        let young = |at: &Timestamp| now.duration_since(*at) < SHOWN_WITHIN;
        let known = self.launched.get(&replica).cloned().unwrap_or_default();
        for (id, _) in known.iter().filter(|(_, at)| young(at)) {
            let may_go = self.planned.contains_key(id) || self.went.contains(id);
            if !world.instances.contains_key(id) && !may_go {
                self.fail(now, &format!("I13: planned as if {id} had not been launched"));
            }
        }
        let ended = self.ended.get(&replica).cloned().unwrap_or_default();
        // What comes back at the same moment is heard after what is under way.
        for (id, _) in ended.iter().filter(|(_, at)| young(at) && now.duration_since(**at) > HEARD)
        {
            if world.instances.get(id).is_some_and(Instance::is_active) {
                self.fail(now, &format!("I13: planned as if {id} had not been told to end"));
            }
        }
        let nodes = world.nodes.values().filter(|node| !node.is_fargate());
        let unready = nodes.clone().filter(|node| !node.ready).count();
        let (at, machines) = (now, world.instances.keys().cloned().collect());
        let closed = nodes.clone().filter(|node| node.unschedulable);
        let closed = closed.map(|node| node.name.clone()).collect();
        let (nodes, allocatable) = (nodes.count(), allocatable(world));
        let mut pods = BTreeMap::new();
        for pod in world.pods.iter().filter(|pod| pod.is_active()) {
            *pods.entry(pod.workload()).or_insert(0) += 1;
        }
        let before = self.over.get(&replica).map(|over| &over.unread);
        let since = |words: &String| before.and_then(|all| all.get(words)).copied().unwrap_or(now);
        let unread = world.resolved.unread.iter().map(|unread| &unread.words);
        let unread = unread.map(|words| (words.clone(), since(words))).collect();
        let over = PlanningBase { at, machines, nodes, unready, closed, pods, unread, allocatable };
        self.over.insert(replica, over);
    }

    /// Looks at what was asked since; `all` is everything that ever was.
    pub(crate) fn calls(&mut self, all: &[RecordedCall], settings: &ControllerSettings) {
        let new: Vec<RecordedCall> = all.iter().skip(self.seen).cloned().collect();
        self.seen = all.len();
        for call in new {
            self.call(&call, settings);
        }
    }

    /// Looks at one call.
    pub(crate) fn call(&mut self, call: &RecordedCall, settings: &ControllerSettings) {
        let RecordedCall { at, replica, lease, what, .. } = call;
        // I12: only who holds the lease, and holds it for long enough, begins to write.
        let holds = lease.is_some_and(|(by, until)| {
            by == *replica
                && call.began < until.checked_sub(super::environment::LEASE_MARGIN).unwrap_or(until)
        });
        // While an apply has it, as far as was heard, nodes that EC2 takes back are cordoned, and nothing else.
        let shields = if let CallKind::Cordon { node, on: true, .. } = what {
            let asked = self.shields.contains(&(*replica, node.clone()));
            lease.is_some_and(|(by, _)| by == APPLY) || lease.is_none() && asked
        } else {
            false
        };
        let hears =
            matches!(what, CallKind::Ended(_) | CallKind::Launched(_) | CallKind::Pinned(..));
        self.writes_nothing(call);
        if !holds && !shields && !hears && !matches!(what, CallKind::Acknowledge(..)) {
            self.fail(*at, &format!("I12: replica {replica} writes, and does not hold the lease"));
        }
        self.is_polite(*at, what);
        match what {
            CallKind::Launch(request, Some(id)) => self.launch(call, (request, id), settings),
            CallKind::Terminate(ended) => self.terminate(call, ended, settings),
            CallKind::Cordon { node, ours: false, .. } => {
                self.fail(*at, &format!("I2: {node} is none of ours, and was cordoned"));
            }
            CallKind::Cordon { node, on: true, .. } => {
                // One that stands cordoned is only marked for something else.
                self.stands_cordoned(node, *at);
            }
            CallKind::Cordon { node, on: false, .. } => {
                self.cordons.remove(node);
            }
            CallKind::Raise { group, from, to } if to < from => {
                self.fail(*at, &format!("I11: group {group} is shrunk by number"));
            }
            CallKind::Acknowledge(receipt, open) => {
                if let Some(id) = open.first() {
                    let why = "before it is cordoned and kept";
                    self.fail(*at, &format!("I20: {receipt} is taken off {why}, about {id}"));
                }
            }
            CallKind::Ended(id) => {
                self.ended.entry(*replica).or_default().insert(id.clone(), *at);
            }
            CallKind::Pinned(plan, dropped) => {
                // What is planned again once something was done drops nothing.
                self.dropped.entry(plan.clone()).or_insert_with(|| dropped.clone());
            }
            CallKind::Launched(id) => {
                self.launched.entry(*replica).or_default().insert(id.clone(), *at);
            }
            CallKind::Serves(served) => self.merge_waits(*at, served),
            CallKind::Nominate(pod) => self.nominates(call, pod),
            CallKind::Raise { .. } | CallKind::Launch(_, None) | CallKind::Evict(_) => {}
        }
    }

    /// Looks at the world after a moment has passed.
    pub(crate) fn tick(&mut self, observed: ObservedFleet<'_>, reads: u64, now: Timestamp) {
        let nodes = u32::try_from(observed.nodes.len()).unwrap_or(u32::MAX);
        if self.nodes.last().is_none_or(|(_, last)| *last != nodes) {
            self.nodes.push((now, nodes));
        }
        let serve = observed.nodes.values().filter(|node| node.ready);
        let serve = serve.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let changes = serve.filter_map(|instance| instance.tags.get(tag::CHANGE));
        self.ready.extend(changes.map(|change| ChangeId::from(change.as_str())));
        self.cordons_stand(observed, now);
        self.cordons_end(observed, now);
        self.changes_are_unique(observed, now);
        self.is_frugal(reads, now);
    }
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
