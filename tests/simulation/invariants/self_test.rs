//! One trace per invariant violation: each check has to detect its own.

mod settings;
mod violations;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fleetwright::controller::{
    Blocked, BlockedReason, InterruptionPhase, PersistedState, PlanScope, RevisionPlanner,
    TerminatingInstance,
};
use fleetwright::model::observed::CORDONED_ANNOTATION;
use fleetwright::model::units::Bytes;

use super::budgets::{READS_PER_MINUTE, SAME_MOST};
use super::{
    Address, BTreeMap, BTreeSet, CallKind, Completeness, ControllerSettings, EarlierLaunch, Effect,
    InvariantChecks, NodeName, Observed, ObservedFleet, Plan, RecordedCall, ReplicaStep,
    ResourceChange, SignedDuration, Status, TerminatedInstance, Timestamp, change_id, rows,
};
use crate::simulation::environment::APPLY;
use crate::simulation::harness::Simulation;
use crate::simulation::repository::{Commit, SimulatedCommit, SimulatedPlanner, catalog};
use fleetwright::apply::ports::LaunchRequest;
use fleetwright::model::desired::{CountOrShare, GuardSettings, RateLimit};
use fleetwright::model::observed::tag;
use fleetwright::plan::wire::{Reason, RetireReason, WaveStep};
use settings::OF_SETTINGS;
use violations::{OF_LAUNCHES, OF_PLANS, OF_REMOVALS};

/// What is given to checks: of a fleet at rest, with plans that change it.
#[derive(Clone)]
struct ViolationTrace {
    checks: Rc<std::cell::RefCell<InvariantChecks>>,
    settings: ControllerSettings,
    status: Status,
    world: Observed,
    guard: GuardSettings,
    kept: PersistedState,
    is_empty: bool,
    /// Launches more; replaces every instance; removes every instance.
    grows: Plan,
    rolls: Plan,
    shrinks: Plan,
    request: LaunchRequest,
    now: Timestamp,
}

/// A change of another plan, which an earlier life was about to carry out.
const BEFORE: &str = "of-before";

/// What instances are that are launched.
const LAUNCHED: [&str; 2] = ["i-new0", "i-new1"];

fn launched(n: usize, request: LaunchRequest) -> CallKind {
    CallKind::Launch(Box::new(request), Some(LAUNCHED[n].into()))
}

fn now_or_never<F: Future>(work: F) -> F::Output {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a plan of the simulation is made at once"),
    }
}

impl ViolationTrace {
    fn new() -> Self {
        let catalog = catalog();
        let commit = Commit::default().with("api", 20);
        let mut run = Simulation::new(1, commit.clone(), &catalog);
        run.comes_to_rest(SignedDuration::from_mins(10)).expect("at rest");
        let world = run.observed();
        let plan = |commit: Commit| {
            let files = SimulatedCommit::read(&commit, 2, &catalog);
            let world = Arc::new(world.clone());
            let shared = Rc::clone(&run.shared);
            now_or_never(
                SimulatedPlanner { files, replica: 0, shared }.plan(world, PlanScope::default()),
            )
        };
        let asked = run.shared.asked.borrow();
        let request = asked.iter().find_map(|asked| {
            let CallKind::Launch(request, Some(_)) = &asked.what else { return None };
            Some((**request).clone())
        });
        let status = run.status().expect("alive");
        Self {
            checks: Rc::default(),
            settings: SimulatedCommit::read(&commit, 1, &catalog).fleet.controller.clone(),
            status,
            guard: GuardSettings::default(),
            kept: PersistedState::default(),
            is_empty: false,
            grows: plan(commit.clone().with("api", 40)),
            rolls: plan(Commit { image: "al2023@v20261001".to_owned(), ..commit.clone() }),
            shrinks: plan(commit.with("api", 0).with("jobs", 0)),
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
            kept: &self.kept,
            is_empty: self.is_empty,
        });
    }

    fn plans(&self) {
        let (world, limits) = (Arc::new(self.world.clone()), PlanScope::default());
        self.effects(&[Effect::Plan { ticket: 1, commit: String::new(), world, limits }]);
    }

    fn applies(&self, plan: &Plan) {
        self.applies_again(plan, BTreeMap::new());
    }

    /// Has a plan be carried out of which launches were asked for before.
    fn applies_again(&self, plan: &Plan, begun: BTreeMap<Address, EarlierLaunch>) {
        let (plan, without) = (Arc::new(plan.clone()), Vec::new());
        let (commit, waits, running) = (String::new(), true, false);
        let ticket = 2;
        self.effects(&[Effect::Apply {
            ticket,
            commit,
            plan,
            excluded_instances: without,
            wait_until_ready: waits,
            running_pods_only: running,
            previous_attempts: begun,
        }]);
    }

    fn asked(&self, what: CallKind) -> RecordedCall {
        let until = self.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        let (began, lease) = (self.now, Some((0, until)));
        let (at, looked, shown) = (self.now, Some(self.now), BTreeSet::new());
        RecordedCall { at, replica: 0, began, lease, looked, shown, what }
    }

    fn call(&self, call: &RecordedCall) {
        self.checks.borrow_mut().call(call, &self.settings);
    }

    fn calls(&self, what: CallKind) {
        self.call(&self.asked(what));
    }

    fn tick(&self) {
        self.reads(0);
    }

    /// Has the world be looked at, in which a node stands cordoned, or does not.
    fn stands(&mut self, node: &NodeName, cordoned: bool) {
        self.world.nodes.get_mut(node).expect("it joined").unschedulable = cordoned;
        self.tick();
    }

    fn reads(&self, count: u64) {
        let sight = ObservedFleet { nodes: &self.world.nodes, instances: &self.world.instances };
        self.checks.borrow_mut().tick(sight, count, self.now);
    }

    /// Returns a removal of the `n`-th machine of `plan`, as it should be.
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
        }
    }

    /// Has an instance be told to end after its cordon.
    fn ends(&self, ended: TerminatedInstance) {
        if let Some(node) = ended.node.clone() {
            self.calls(CallKind::Cordon { node, on: true, ours: true });
        }
        self.calls(CallKind::Terminate(ended));
    }

    /// Returns a removal of the `n`-th machine that is launched, which has no node.
    fn new_one(&self, n: usize) -> TerminatedInstance {
        TerminatedInstance { id: LAUNCHED[n].into(), node: None, ..self.removal(&self.shrinks, 0) }
    }

    /// Has the instance of the `n`-th launch of what grows be Ready.
    fn serves(&mut self, n: usize) {
        let request = self.request(&self.grows, n);
        let node = self.world.nodes.values_mut().next().expect("one");
        let instance = node.instance.as_ref().and_then(|id| self.world.instances.get_mut(id));
        let instance = instance.expect("one");
        instance.tags.insert(tag::CHANGE.to_owned(), request.tags[tag::CHANGE].clone());
        node.ready = true;
        self.tick();
    }

    /// Returns the request of a launch of `plan`, by number.
    fn request(&self, plan: &Plan, n: usize) -> LaunchRequest {
        let row = rows(plan, WaveStep::Launch).nth(n).expect("so many come");
        let mut request = self.request.clone();
        let change = change_id(&plan.capacity.plan_id, &row.address);
        request.tags.insert(tag::CHANGE.to_owned(), change.to_string());
        let after = row.change.after.as_ref().expect("something comes");
        request.instance_type = after.instance_type.clone().expect("decided");
        request.zone = after.zone.clone().expect("decided");
        request.capacity_type = after.capacity_type.expect("decided");
        request.image = after.image.clone().expect("decided");
        request
    }

    /// Returns a launch of `plan`, by number.
    fn launch(&self, plan: &Plan, n: usize) -> CallKind {
        launched(n, self.request(plan, n))
    }

    /// Returns the same, asked for as the change as which it was before.
    fn launch_again(&self, plan: &Plan, n: usize) -> CallKind {
        let mut request = self.request(plan, n);
        request.tags.insert(tag::CHANGE.to_owned(), BEFORE.to_owned());
        launched(n, request)
    }

    /// Returns that the `n`-th launch of `plan` was asked for before.
    fn before(plan: &Plan, n: usize) -> BTreeMap<Address, EarlierLaunch> {
        let row = rows(plan, WaveStep::Launch).nth(n).expect("so many come");
        [(row.address.clone(), EarlierLaunch { change: BEFORE.into(), offering_index: 0 })].into()
    }

    /// Has the node of the `n`-th machine that goes be uncordoned.
    fn uncordons(&self, n: usize) {
        let TerminatedInstance { id: instance, node, .. } = self.removal(&self.shrinks, n);
        let node = Box::new(self.world.nodes[&node.expect("it joined")].clone());
        self.effects(&[Effect::Cordon { instance, node, mark: None }]);
    }

    /// Has pods be asked to leave an instance that EC2 ends after so long, of a workload whose pods are to come to a
    /// instance that a suspension holds back.
    fn leaves(&mut self, after: SignedDuration) {
        let deadline = self.now.checked_add(after).ok();
        let (instance, why) = (self.removal(&self.shrinks, 0).id, "health".to_owned());
        let (since, phase) = (self.now, InterruptionPhase::Draining);
        let (node, held) = (None, None);
        self.status.terminating.push(TerminatingInstance {
            instance: instance.clone(),
            node,
            reason: why,
            since,
            deadline,
            phase,
            replacement_blocked: held,
        });
        let plan = self.status.plan.as_mut().expect("planned");
        plan.plan = Arc::new(self.grows.clone());
        let suspended = BlockedReason::Suspended { reason: "a freeze".to_owned(), until: None };
        let coming: Vec<Address> =
            rows(&self.grows, WaveStep::Launch).map(|row| row.address.clone()).collect();
        let held = |address: &Address| {
            (address.clone(), Blocked { reason: suspended.clone(), message: String::new() })
        };
        plan.blocked = coming.iter().map(held).collect();
        let mut placed = self.grows.capacity.placements.iter();
        let placed = placed.find(|row| coming.contains(&row.address)).expect("pods come");
        let mut pod = self.world.pods.first().expect("one").as_ref().clone();
        pod.owner = Some(placed.workload.clone());
        self.effects(&[Effect::Evict { instance, pods: vec![pod] }]);
    }

    /// Has EC2 show the `n`-th machine that was launched.
    fn shows(&mut self, n: usize) {
        let mut machine = self.world.instances.values().next().expect("one").clone();
        machine.id = LAUNCHED[n].into();
        machine.tags.insert(tag::CHANGE.to_owned(), format!("of-{}", machine.id));
        self.world.instances.insert(machine.id.clone(), machine);
    }

    /// Has the replica say that it carries a plan out.
    fn goes_on(&mut self, plan: &Plan) {
        self.status.in_progress.insert(plan.capacity.plan_id.clone(), (Vec::new(), self.now));
        self.effects(&[]);
    }

    /// Has `plan` be made again, by which it needs none of the launches of `without`.
    fn pins(&self, plan: &Plan, without: &Plan) {
        let dropped = rows(without, WaveStep::Launch).map(|row| row.address.clone()).collect();
        self.calls(CallKind::Pinned(plan.capacity.plan_id.clone(), dropped));
    }

    /// Has a node be cordoned because an apply has the lease, as far as was heard.
    fn shields(&self) -> RecordedCall {
        let node = self.world.nodes.values().next().expect("one").clone();
        let name = node.name.clone();
        self.effects(&[Effect::CordonWithoutLease { node: Box::new(node) }]);
        self.asked(CallKind::Cordon { node: name, on: true, ours: true })
    }

    /// Has an instance be launched, and replaced a minute later for another image of the same words, which was released in
    /// between or before.
    fn launches_and_replaces(&mut self, between: bool) {
        self.plans();
        let words = self.request(&self.grows, 0).image;
        let releases = |t: &Self| t.checks.borrow_mut().image_was_released(&words, t.now);
        releases(self);
        self.applies(&self.grows);
        self.calls(self.launch(&self.grows, 0));
        self.later(1);
        if between {
            releases(self);
        }
        self.shows(0);
        self.plans();
        let mut rolls = self.rolls.clone();
        let goes = rows(&rolls, WaveStep::Retire).next().expect("some go").address.clone();
        for row in &mut rolls.resource_changes {
            if let Some(before) = row.change.before.as_mut().filter(|_| row.address == goes) {
                before.instance_id = Some(LAUNCHED[0].into());
            }
            row.change.after.iter_mut().for_each(|after| after.image = Some(words.clone()));
        }
        let because = rolls.capacity.explain.iter_mut().find(|row| row.address == goes);
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
        self.applies(&rolls);
    }

    fn later(&mut self, minutes: i64) {
        self.now = self.now.checked_add(SignedDuration::from_mins(minutes)).expect("a time");
    }
}

/// Shows that every check complains of a trace that violates it, and none of what is in order.
///
/// # Errors
/// With the check that does not.
pub(crate) fn prove() -> Result<(), String> {
    let trace = ViolationTrace::new();
    for (invariant, about, violate) in [OF_PLANS, OF_LAUNCHES, OF_REMOVALS, OF_SETTINGS].concat() {
        let mut trace = ViolationTrace { checks: Rc::default(), ..trace.clone() };
        violate(&mut trace);
        let said = trace.checks.borrow().well().err().unwrap_or_default();
        if !said.contains(&format!(" {invariant}: ")) {
            return Err(format!("{invariant}, {about}: the check said {said:?}"));
        }
    }
    let mut trace = ViolationTrace { checks: Rc::default(), ..trace };
    in_order(&mut trace);
    let end = trace.checks.borrow().well();
    end.map_err(|said| format!("what is in order was complained of: {said}"))
}

fn in_order(trace: &mut ViolationTrace) {
    holds_an_older_plan(&mut trace.clone());
    settings::in_order(trace);
    trace.clone().leaves(SignedDuration::from_mins(15));
    let mut apart = ViolationTrace { checks: Rc::default(), ..trace.clone() };
    apart.call(&RecordedCall { lease: None, ..apart.shields() });
    apart.launches_and_replaces(true);
    if let Err(why) = apart.checks.borrow().well() {
        trace.checks.borrow_mut().fail(trace.now, &why);
    }
    trace.tick();
    trace.plans();
    trace.applies_again(&trace.grows, ViolationTrace::before(&trace.grows, 1));
    trace.calls(trace.launch(&trace.grows, 0));
    trace.calls(trace.launch_again(&trace.grows, 1));
    trace.calls(CallKind::Launched(LAUNCHED[0].into()));
    trace.later(1);
    // As the same change nobody launches more; what was answered is shown.
    trace.shows(0);
    trace.plans();
    trace.applies_again(&trace.grows, ViolationTrace::before(&trace.grows, 1));
    trace.calls(trace.launch_again(&trace.grows, 1));
    trace.shows(1);
    trace.plans();
    trace.applies(&trace.rolls);
    let shown = [LAUNCHED[1].into()].into();
    trace.call(&RecordedCall { shown, ..trace.asked(trace.launch(&trace.rolls, 1)) });
    trace.later(2);
    trace.applies_again(&trace.rolls, ViolationTrace::before(&trace.rolls, 0));
    let mut ended = trace.removal(&trace.rolls, 0);
    ended.ready.insert(BEFORE.into());
    trace.ends(ended);
    // What never was of use goes once the apply that launched it waits for it no more.
    let mut late = trace.clone();
    late.later(15);
    let grows = late.grows.clone();
    late.goes_on(&grows);
    late.calls(CallKind::Terminate(late.new_one(0)));
    trace.later(3);
    trace.pins(&trace.rolls, &trace.rolls);
    trace.calls(CallKind::Pinned(trace.rolls.capacity.plan_id.clone(), BTreeSet::new()));
    trace.ends(TerminatedInstance { ready: BTreeSet::new(), ..trace.removal(&trace.rolls, 1) });
    trace.later(3);
    trace.applies(&trace.shrinks);
    trace.ends(trace.removal(&trace.shrinks, 2));
    trace.calls(CallKind::Acknowledge("m1".to_owned(), Vec::new()));
    trace.calls(CallKind::Raise { group: "g".into(), from: 3, to: 4 });
    trace.tick();
}

/// A plan that needs nothing is held while the same look is planned over once more, with an instance that goes; the
/// plan of that says nothing of what is planned over it a third time.
fn holds_an_older_plan(trace: &mut ViolationTrace) {
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
    let rolls = trace.rolls.clone();
    let mut rests = rolls.clone();
    rests.capacity.waves.clear();
    trace.effects(&[asks(&trace.world)]);
    holds(trace, rests);
    trace.effects(&[asks(&less)]);
    trace.effects(&[]);
    holds(trace, rolls);
    trace.effects(&[asks(&less)]);
    trace.effects(&[]);
}
