//! One trace per invariant violation: each check has to detect its own.

mod settings;
mod violations;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fleetwright::controller::{
    Blocked, BlockedReason, InterruptionPhase, InterruptionStatus, PersistedState, PlanScope,
    RevisionPlanner,
};
use fleetwright::model::observed::CORDONED_ANNOTATION;
use fleetwright::model::units::Bytes;

use super::budgets::{READS_PER_MINUTE, REPEATS_MAX};
use super::{
    Address, BTreeMap, BTreeSet, CallKind, Completeness, ControllerSettings, EarlierLaunch, Effect,
    InvariantChecks, NodeName, Observed, ObservedFleet, Plan, RecordedCall, ReplicaStep,
    ResourceChange, SignedDuration, Status, TerminatedInstance, Timestamp, change_id, rows,
    workload_key,
};
use crate::simulation::environment::APPLY;
use crate::simulation::harness::Simulation;
use crate::simulation::repository::{Commit, SimulatedCommit, SimulatedPlanner, catalog};
use fleetwright::apply::ports::LaunchRequest;
use fleetwright::model::desired::{ApplyConditions, CountOrShare, RateLimit};
use fleetwright::model::observed::tag;
use fleetwright::plan::wire::{PlacementRow, Reason, RetireReason, WaveStep};
use settings::OF_SETTINGS;
use violations::{OF_LAUNCHES, OF_PLANS, OF_REMOVALS};

/// A converged fleet, plans that change it, and the checks under test.
#[derive(Clone)]
struct ViolationTrace {
    checks: Rc<std::cell::RefCell<InvariantChecks>>,
    settings: ControllerSettings,
    status: Status,
    world: Observed,
    guard: ApplyConditions,
    persisted_state: PersistedState,
    is_empty: bool,
    /// Plans: more launches, a replacement of each instance, a removal of each instance.
    growth: Plan,
    rollout: Plan,
    scale_down: Plan,
    request: LaunchRequest,
    now: Timestamp,
}

/// Change of an earlier plan, from an earlier process.
const EARLIER_CHANGE: &str = "of-before";

/// Names of the launched instances.
const LAUNCHED: [&str; 2] = ["i-new0", "i-new1"];

fn launched(n: usize, request: LaunchRequest) -> CallKind {
    CallKind::Launch(Box::new(request), Some(LAUNCHED[n].into()))
}

fn poll_once<F: Future>(work: F) -> F::Output {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a plan of the simulation has no wait"),
    }
}

impl ViolationTrace {
    fn new() -> Self {
        let catalog = catalog();
        let commit = Commit::default().with("api", 20);
        let mut run = Simulation::new(1, commit.clone(), &catalog);
        run.converge(SignedDuration::from_mins(10)).expect("the fleet converges");
        let world = run.observed();
        let plan = |commit: Commit| {
            let files = SimulatedCommit::read(&commit, 2, &catalog);
            let world = Arc::new(world.clone());
            let shared = Rc::clone(&run.shared);
            poll_once(
                SimulatedPlanner { files, replica: 0, shared }.plan(world, PlanScope::default()),
            )
        };
        let asked = run.shared.calls.borrow();
        let request = asked.iter().find_map(|asked| {
            let CallKind::Launch(request, Some(_)) = &asked.kind else { return None };
            Some((**request).clone())
        });
        let status = run.status().expect("alive");
        Self {
            checks: Rc::default(),
            settings: SimulatedCommit::read(&commit, 1, &catalog).fleet.controller.clone(),
            status,
            guard: ApplyConditions::default(),
            persisted_state: PersistedState::default(),
            is_empty: false,
            growth: plan(commit.clone().with("api", 40)),
            rollout: plan(Commit { image: "al2023@v20261001".to_owned(), ..commit.clone() }),
            scale_down: plan(commit.with("api", 0).with("jobs", 0)),
            request: request.expect("something was launched"),
            now: run.now(),
            world,
        }
    }

    fn effects(&self, effects: &[Effect]) {
        self.checks.borrow_mut().step(&ReplicaStep {
            replica: 0,
            now: self.now,
            status: &self.status,
            effects,
            settings: &self.settings,
            guard: &self.guard,
            persisted_state: &self.persisted_state,
            is_empty: self.is_empty,
        });
    }

    fn plans(&self) {
        let (world, limits) = (Arc::new(self.world.clone()), PlanScope::default());
        self.effects(&[Effect::Plan { ticket: 1, commit: String::new(), world, limits }]);
    }

    fn applies(&self, plan: &Plan) {
        self.applies_resumed(plan, BTreeMap::new());
    }

    /// Starts the apply of a plan whose launches were partly requested before.
    fn applies_resumed(&self, plan: &Plan, begun: BTreeMap<Address, EarlierLaunch>) {
        let (plan, without) = (Arc::new(plan.clone()), Vec::new());
        let (commit, waits, running) = (String::new(), true, false);
        let ticket = 2;
        self.effects(&[Effect::Apply {
            ticket,
            commit,
            plan,
            excluded_instances: without,
            only_if_empty: BTreeSet::new(),
            wait_until_ready: waits,
            running_pods_only: running,
            previous_attempts: begun,
            launches_in_progress: Vec::new(),
        }]);
    }

    fn asked(&self, kind: CallKind) -> RecordedCall {
        let until = self.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        let (began, lease) = (self.now, Some((0, until)));
        let (at, cluster_read_at, listed_instances) = (self.now, Some(self.now), BTreeSet::new());
        RecordedCall { at, replica: 0, began, lease, cluster_read_at, listed_instances, kind }
    }

    fn call(&self, call: &RecordedCall) {
        self.checks.borrow_mut().call(call, &self.settings);
    }

    fn calls(&self, kind: CallKind) {
        self.call(&self.asked(kind));
    }

    fn tick(&self) {
        self.reads(0);
    }

    /// Sets the cordon of a node, and evaluates the world.
    fn observe_cordon(&mut self, node: &NodeName, cordoned: bool) {
        self.world.nodes.get_mut(node).expect("it joined").unschedulable = cordoned;
        self.tick();
    }

    fn reads(&self, count: u64) {
        let fleet = ObservedFleet { nodes: &self.world.nodes, instances: &self.world.instances };
        self.checks.borrow_mut().tick(fleet, count, self.now);
    }

    /// Returns a valid removal of the `n`-th removed instance of `plan`.
    fn removal(&self, plan: &Plan, n: usize) -> TerminatedInstance {
        let row = rows(plan, WaveStep::Retire).nth(n).expect("so many go");
        let before = row.change.before.as_ref().expect("something goes");
        let id = before.instance_id.clone().expect("known");
        let node = self.world.node_for_instance(&id).map(|node| node.name.clone());
        let launches = rows(plan, WaveStep::Launch);
        let ready = launches.map(|row| change_id(&plan.capacity.plan_id, &row.address)).collect();
        TerminatedInstance {
            id,
            ours: true,
            runs: true,
            node,
            open: false,
            left: Vec::new(),
            ready,
            pending: Vec::new(),
        }
    }

    /// Cordons the node and terminates its instance.
    fn terminates(&self, ended: TerminatedInstance) {
        if let Some(node) = ended.node.clone() {
            self.calls(CallKind::Cordon { node, on: true, ours: true });
        }
        self.calls(CallKind::Terminate(ended));
    }

    /// Returns a removal of the `n`-th launched instance, which has no node.
    fn removal_of_launched(&self, n: usize) -> TerminatedInstance {
        TerminatedInstance {
            id: LAUNCHED[n].into(),
            node: None,
            ..self.removal(&self.scale_down, 0)
        }
    }

    /// Makes the instance of the `n`-th launch of `growth` Ready.
    fn becomes_ready(&mut self, n: usize) {
        let request = self.request(&self.growth, n);
        let node = self.world.nodes.values_mut().next().expect("one");
        let instance = node.instance.as_ref().and_then(|id| self.world.instances.get_mut(id));
        let instance = instance.expect("one");
        instance.tags.insert(tag::CHANGE.to_owned(), request.tags[tag::CHANGE].clone());
        node.ready = true;
        self.tick();
    }

    /// Returns the request of the `n`-th launch of `plan`.
    fn request(&self, plan: &Plan, n: usize) -> LaunchRequest {
        let row = rows(plan, WaveStep::Launch).nth(n).expect("so many come");
        let mut request = self.request.clone();
        let change = change_id(&plan.capacity.plan_id, &row.address);
        request.tags.insert(tag::CHANGE.to_owned(), change.to_string());
        let after = row.change.after.as_ref().expect("something comes");
        request.offerings.truncate(1);
        request.offerings[0].instance_type = after.instance_type.clone().expect("decided");
        request.offerings[0].zone = after.zone.clone().expect("decided");
        request.capacity_type = after.capacity_type.expect("decided");
        request.image = after.image.clone().expect("decided");
        request
    }

    /// Returns the `n`-th launch of `plan`.
    fn launch(&self, plan: &Plan, n: usize) -> CallKind {
        launched(n, self.request(plan, n))
    }

    /// Returns the same launch with the change of its earlier request.
    fn repeated_launch(&self, plan: &Plan, n: usize) -> CallKind {
        let mut request = self.request(plan, n);
        request.tags.insert(tag::CHANGE.to_owned(), EARLIER_CHANGE.to_owned());
        launched(n, request)
    }

    /// Returns the earlier request of the `n`-th launch of `plan`.
    fn earlier_launch(plan: &Plan, n: usize) -> BTreeMap<Address, EarlierLaunch> {
        let row = rows(plan, WaveStep::Launch).nth(n).expect("so many come");
        [(row.address.clone(), EarlierLaunch { change: EARLIER_CHANGE.into(), attempt_index: 0 })]
            .into()
    }

    /// Uncordons the node of the `n`-th removed instance.
    fn uncordons(&self, n: usize) {
        let TerminatedInstance { id: instance, node, .. } = self.removal(&self.scale_down, n);
        let node = Box::new(self.world.nodes[&node.expect("it joined")].clone());
        self.effects(&[Effect::Uncordon { instance, node }]);
    }

    /// Evicts pods of an instance whose deadline is `after` from now. A suspension blocks the
    /// launch that the pods are planned for.
    fn evicts_while_blocked(&mut self, after: SignedDuration) {
        let deadline = self.now.checked_add(after).ok();
        let (instance, why) = (self.removal(&self.scale_down, 0).id, "health".to_owned());
        let (since, phase) = (self.now, InterruptionPhase::Draining);
        let (node, held) = (None, None);
        self.status.interrupted.push(InterruptionStatus {
            instance: instance.clone(),
            node,
            reason: why,
            since,
            deadline,
            phase,
            replacement_blocked: held,
        });
        let plan = self.status.plan.as_mut().expect("planned");
        plan.plan = Arc::new(self.growth.clone());
        let suspended = BlockedReason::Suspended { reason: "a freeze".to_owned(), until: None };
        let coming: Vec<Address> =
            rows(&self.growth, WaveStep::Launch).map(|row| row.address.clone()).collect();
        let held = |address: &Address| {
            (address.clone(), Blocked { reason: suspended.clone(), message: String::new() })
        };
        plan.blocked = coming.iter().map(held).collect();
        let mut placed = self.growth.capacity.placements.iter();
        let placed = placed.find(|row| coming.contains(&row.address)).expect("pods come");
        let mut pod = self.world.pods.first().expect("one").as_ref().clone();
        pod.owner = Some(placed.workload.clone());
        self.effects(&[Effect::Evict { instance, pods: vec![pod] }]);
    }

    /// Terminates an interrupted instance with a pod, half an hour after its deadline.
    fn terminates_overdue(&mut self, reason: &str) {
        let ended = self.removal(&self.scale_down, 0);
        let deadline = self.now.checked_add(SignedDuration::from_mins(30)).ok();
        self.status.interrupted.push(InterruptionStatus {
            instance: ended.id.clone(),
            node: ended.node.clone(),
            reason: reason.to_owned(),
            since: self.now,
            deadline,
            phase: InterruptionPhase::Draining,
            replacement_blocked: None,
        });
        self.effects(&[]);
        self.later(60);
        self.terminates(TerminatedInstance { left: vec![None], ..ended });
    }

    /// Adds the `n`-th launched instance to the observed instances.
    fn list_instance(&mut self, n: usize) {
        let mut instance = self.world.instances.values().next().expect("one").clone();
        instance.id = LAUNCHED[n].into();
        instance.tags.insert(tag::CHANGE.to_owned(), format!("of-{}", instance.id));
        self.world.instances.insert(instance.id.clone(), instance);
    }

    /// Cordons or uncordons all nodes.
    fn sets_all_cordons(&mut self, cordoned: bool) {
        self.world.nodes.values_mut().for_each(|node| node.unschedulable = cordoned);
    }

    /// Places pods of `growth` on a node that stays.
    fn places_pods_on_a_node(&mut self) {
        let mut rows = self.growth.resource_changes.iter();
        let stays = |row: &&ResourceChange| {
            row.change.after.as_ref().is_some_and(|after| after.node.is_some())
        };
        let address = rows.find(stays).expect("one stays").address.clone();
        let placement = self.growth.capacity.placements.first_mut().expect("pods come");
        placement.address = address;
    }

    /// Observes the world at a later time than that of the plans.
    fn observes_later(&mut self) {
        let later = self.world.taken_at.checked_add(SignedDuration::from_secs(1));
        self.world.taken_at = later.expect("a time");
    }

    fn sets_clock(&self, replica: usize, by: SignedDuration) {
        self.checks.borrow_mut().record_clock_offset(replica, self.now, by);
    }

    /// Reports an apply of `plan` in progress.
    fn reports_in_progress(&mut self, plan: &Plan) {
        self.status.in_progress.insert(plan.capacity.plan_id.clone(), (Vec::new(), self.now));
        self.effects(&[]);
    }

    /// Makes `plan` again, without the launches of `without`.
    fn replans(&self, plan: &Plan, without: &Plan) {
        let dropped = rows(without, WaveStep::Launch).map(|row| row.address.clone()).collect();
        self.calls(CallKind::Pinned(plan.capacity.plan_id.clone(), dropped));
    }

    /// Cordons a node without the lease, as during a CI apply.
    fn cordons_without_lease(&self) -> RecordedCall {
        let node = self.world.nodes.values().next().expect("one").clone();
        let name = node.name.clone();
        self.effects(&[Effect::CordonWithoutLease { node: Box::new(node) }]);
        self.asked(CallKind::Cordon { node: name, on: true, ours: true })
    }

    /// Launches an instance, and replaces it a minute later for another image of the same term.
    /// `between` sets whether the image was released after the launch.
    fn launches_and_replaces(&mut self, between: bool) {
        self.plans();
        let words = self.request(&self.growth, 0).image;
        let releases = |t: &Self| t.checks.borrow_mut().record_image_release(&words, t.now);
        releases(self);
        self.applies(&self.growth);
        self.calls(self.launch(&self.growth, 0));
        self.later(1);
        if between {
            releases(self);
        }
        self.list_instance(0);
        self.plans();
        let mut rollout = self.rollout.clone();
        let removed = rows(&rollout, WaveStep::Retire).next().expect("some go").address.clone();
        for row in &mut rollout.resource_changes {
            if let Some(before) = row.change.before.as_mut().filter(|_| row.address == removed) {
                before.instance_id = Some(LAUNCHED[0].into());
            }
            row.change.after.iter_mut().for_each(|after| after.image = Some(words.clone()));
        }
        let because = rollout.capacity.explain.iter_mut().find(|row| row.address == removed);
        let [field, is, declared] =
            ["image", "ami-1", "ami-2 by node class default"].map(ToOwned::to_owned);
        let row = because.expect("explained");
        let because = RetireReason::Drifted { field, is, declared };
        match &mut row.reason {
            Reason::Retire { because: reason } => *reason = because,
            Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
                row.retire_reason = Some(because);
            }
        }
        self.applies(&rollout);
    }

    /// Makes the call of a CI apply.
    fn ci_calls(&self, kind: CallKind) {
        let asked = self.asked(kind);
        let lease = asked.lease.map(|(_, until)| (APPLY, until));
        self.call(&RecordedCall { replica: APPLY, lease, ..asked });
    }

    /// Begins a CI apply that replaces all nodes together, in batches, and removes the first node
    /// after the first launch. The last launch has this number of places.
    fn replaces_first_of_many(&self, last_places: u32) {
        let mut plan = self.rollout.clone();
        let launches: Vec<Address> =
            rows(&plan, WaveStep::Launch).map(|row| row.address.clone()).collect();
        assert!(launches.len() > 3, "more nodes than a batch: {launches:?}");
        let workload = plan.capacity.placements[0].workload.clone();
        let moved = u32::try_from(launches.len()).expect("few");
        for row in &mut plan.capacity.explain {
            row.group = Some("r0".to_owned());
            row.pods_before = [(workload_key(&workload).into(), moved)].into();
        }
        let place = |launch: &Address| {
            let pods = if Some(launch) == launches.last() { last_places } else { 1 };
            PlacementRow { workload: workload.clone(), address: launch.clone(), pods }
        };
        plan.capacity.placements = launches.iter().map(place).collect();
        self.checks.borrow_mut().record_ci_apply(&plan);
        let ended = self.removal(&plan, 0);
        let ready = [change_id(&plan.capacity.plan_id, &launches[0])].into();
        let node = ended.node.clone().expect("joined");
        self.ci_calls(CallKind::Cordon { node, on: true, ours: true });
        self.ci_calls(CallKind::Terminate(TerminatedInstance { ready, ..ended }));
    }

    /// Takes back the launch of a CI apply while pods created at these times wait for a node.
    fn takes_back(&self, pending: Vec<Timestamp>) {
        self.checks.borrow_mut().record_ci_apply(&self.rollout);
        self.ci_calls(self.launch(&self.rollout, 0));
        let ended = TerminatedInstance { pending, ..self.removal_of_launched(0) };
        self.ci_calls(CallKind::Terminate(ended));
    }

    fn later(&mut self, minutes: i64) {
        self.now = self.now.checked_add(SignedDuration::from_mins(minutes)).expect("a time");
    }
}

/// Checks that each check detects its violation, and accepts a valid trace.
///
/// # Errors
/// Returns the check that fails.
pub(crate) fn prove() -> Result<(), String> {
    let trace = ViolationTrace::new();
    for (invariant, about, violate) in [OF_PLANS, OF_LAUNCHES, OF_REMOVALS, OF_SETTINGS].concat() {
        let mut trace = ViolationTrace { checks: Rc::default(), ..trace.clone() };
        violate(&mut trace);
        let found = trace.checks.borrow().check().err().unwrap_or_default();
        if !found.contains(&format!(" {invariant}: ")) {
            return Err(format!("{invariant}, {about}: the check reported {found:?}"));
        }
    }
    let mut trace = ViolationTrace { checks: Rc::default(), ..trace };
    valid_trace(&mut trace);
    let end = trace.checks.borrow().check();
    end.map_err(|found| format!("a valid trace was reported as a violation: {found}"))
}

fn valid_trace(trace: &mut ViolationTrace) {
    holds_earlier_plan(&mut trace.clone());
    settings::valid_trace(trace);
    trace.clone().evicts_while_blocked(SignedDuration::from_mins(15));
    let mut separate = ViolationTrace { checks: Rc::default(), ..trace.clone() };
    separate.call(&RecordedCall { lease: None, ..separate.cordons_without_lease() });
    separate.launches_and_replaces(true);
    let mut found = separate.checks.borrow().check();
    let replaces: fn(&mut ViolationTrace) = |trace| trace.replaces_first_of_many(1);
    let takes_back: fn(&mut ViolationTrace) = |trace| trace.takes_back(vec![trace.now]);
    for valid in
        [waits_for_its_record, forgets_by_its_clock, removes_empty_nodes, replaces, takes_back]
    {
        let mut alone = ViolationTrace { checks: Rc::default(), ..trace.clone() };
        valid(&mut alone);
        found = found.and(alone.checks.borrow().check());
    }
    if let Err(why) = found {
        trace.checks.borrow_mut().fail(trace.now, &why);
    }
    trace.tick();
    trace.plans();
    trace.applies_resumed(&trace.growth, ViolationTrace::earlier_launch(&trace.growth, 1));
    trace.calls(trace.launch(&trace.growth, 0));
    trace.calls(trace.repeated_launch(&trace.growth, 1));
    trace.calls(CallKind::Launched(LAUNCHED[0].into()));
    trace.later(1);
    // A repeated change launches no second instance, and the observation shows the launched one.
    trace.list_instance(0);
    trace.plans();
    trace.applies_resumed(&trace.growth, ViolationTrace::earlier_launch(&trace.growth, 1));
    trace.calls(trace.repeated_launch(&trace.growth, 1));
    trace.list_instance(1);
    trace.plans();
    trace.applies(&trace.rollout);
    let listed_instances = [LAUNCHED[1].into()].into();
    trace.call(&RecordedCall { listed_instances, ..trace.asked(trace.launch(&trace.rollout, 1)) });
    trace.later(2);
    trace.applies_resumed(&trace.rollout, ViolationTrace::earlier_launch(&trace.rollout, 0));
    let mut ended = trace.removal(&trace.rollout, 0);
    ended.ready.insert(EARLIER_CHANGE.into());
    trace.terminates(ended);
    // An instance that never became Ready is terminated once its apply has stopped waiting.
    let mut late = trace.clone();
    late.later(15);
    let growth = late.growth.clone();
    late.reports_in_progress(&growth);
    late.calls(CallKind::Terminate(late.removal_of_launched(0)));
    trace.later(3);
    trace.replans(&trace.rollout, &trace.rollout);
    trace.calls(CallKind::Pinned(trace.rollout.capacity.plan_id.clone(), BTreeSet::new()));
    trace.terminates(TerminatedInstance {
        ready: BTreeSet::new(),
        ..trace.removal(&trace.rollout, 1)
    });
    trace.later(3);
    trace.applies(&trace.scale_down);
    trace.terminates(trace.removal(&trace.scale_down, 2));
    trace.calls(CallKind::Acknowledge("m1".to_owned(), Vec::new()));
    trace.calls(CallKind::Raise { group: "g".into(), from: 3, to: 4 });
    trace.tick();
}

/// Applies a plan once it is persisted. Meanwhile its node is cordoned, and planned over.
fn waits_for_its_record(trace: &mut ViolationTrace) {
    trace.plans();
    trace.observes_later();
    trace.sets_all_cordons(true);
    trace.plans();
    trace.places_pods_on_a_node();
    trace.applies(&trace.growth);
}

/// Removes two nodes without pods. The budget allows one removal of a node with pods.
fn removes_empty_nodes(trace: &mut ViolationTrace) {
    let limit = CountOrShare::Count(1);
    trace.settings.removals = RateLimit { limit, window: SignedDuration::from_mins(5) };
    trace.world.pods.clear();
    trace.plans();
    trace.applies(&trace.scale_down);
    for n in [0, 1] {
        trace.terminates(trace.removal(&trace.scale_down, n));
    }
}

/// Plans without a launch that EC2 has had enough time to list, by the clock of the replica.
fn forgets_by_its_clock(trace: &mut ViolationTrace) {
    trace.applies(&trace.growth);
    trace.calls(trace.launch(&trace.growth, 0));
    trace.calls(CallKind::Launched(LAUNCHED[0].into()));
    trace.later(1);
    trace.sets_clock(0, SignedDuration::from_secs(70));
    trace.plans();
}

/// Plans over one observation repeatedly, each time without one more instance. A plan without
/// changes is not the answer to a later request.
fn holds_earlier_plan(trace: &mut ViolationTrace) {
    let commit = trace.status.repository.commit.clone().expect("served");
    let mut less = trace.world.clone();
    less.remove_instances(&less.instances.keys().take(1).cloned().collect());
    let asks = |world: &Observed| {
        let (world, limits) = (Arc::new(world.clone()), PlanScope::default());
        Effect::Plan { ticket: 1, commit: commit.clone(), world, limits }
    };
    let holds = |trace: &mut ViolationTrace, mut plan: Plan| {
        plan.capacity.base.commit = Some(commit.clone());
        trace.status.plan.as_mut().expect("planned").plan = Arc::new(plan);
    };
    let rollout = trace.rollout.clone();
    let mut rests = rollout.clone();
    rests.capacity.waves.clear();
    trace.effects(&[asks(&trace.world)]);
    holds(trace, rests);
    trace.effects(&[asks(&less)]);
    trace.effects(&[]);
    holds(trace, rollout);
    trace.effects(&[asks(&less)]);
    trace.effects(&[]);
}
