//! Traces that violate the invariants, one each: a check that does not complain of its own is none.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fleetwright::fleet::CORDONED_ANNOTATION;
use fleetwright::reconcile::{AwayPhase, Going, Limits, Planner};
use fleetwright::units::Bytes;

use super::{
    Address, Asked, BTreeMap, BTreeSet, Before, Checks, Completeness, ControllerSettings, Effect,
    Ended, LaunchRequest, Most, Observed, Plan, READS_PER_MINUTE, Rate, SAME_MOST, Sight,
    SignedDuration, Status, Step, Timestamp, WaveStep, What, change_id, rows, tag,
};
use crate::seeds::files::{Commit, Files, Plans, catalog};
use crate::seeds::outside::APPLY;
use crate::seeds::run::Run;

/// What is given to checks: of a fleet at rest, with plans that change it.
#[derive(Clone)]
struct Trace {
    checks: Rc<std::cell::RefCell<Checks>>,
    settings: ControllerSettings,
    status: Status,
    world: Observed,
    is_empty: bool,
    /// Launches more; replaces every machine; removes every machine.
    grows: Plan,
    rolls: Plan,
    shrinks: Plan,
    request: LaunchRequest,
    now: Timestamp,
}

/// A change of another plan, which an earlier life was about to carry out.
const BEFORE: &str = "of-before";

/// What machines are that are launched.
const LAUNCHED: [&str; 2] = ["i-new0", "i-new1"];

fn launched(n: usize, request: LaunchRequest) -> What {
    What::Launch(Box::new(request), Some(LAUNCHED[n].into()))
}

fn now_or_never<F: Future>(work: F) -> F::Output {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a plan of the simulation is made at once"),
    }
}

impl Trace {
    fn new() -> Self {
        let catalog = catalog();
        let commit = Commit::default().with("api", 20);
        let mut run = Run::new(1, commit.clone(), &catalog);
        run.comes_to_rest(SignedDuration::from_mins(10)).expect("at rest");
        let world = run.observed();
        let plan = |commit: Commit| {
            let files = Files::read(&commit, 2, &catalog);
            let world = Arc::new(world.clone());
            let shared = Rc::clone(&run.shared);
            now_or_never(Plans { files, shared }.plan(world, Limits::default()))
        };
        let asked = run.shared.asked.borrow();
        let request = asked.iter().find_map(|asked| {
            let What::Launch(request, Some(_)) = &asked.what else { return None };
            Some((**request).clone())
        });
        let status = run.status().expect("alive");
        Self {
            checks: Rc::default(),
            settings: Files::read(&commit, 1, &catalog).fleet.controller.clone(),
            status,
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
        self.checks.borrow_mut().step(&Step {
            replica: 0,
            now: self.now,
            status: &self.status,
            effects,
            settings: &self.settings,
            is_empty: self.is_empty,
        });
    }

    fn plans(&self) {
        let (world, limits) = (Arc::new(self.world.clone()), Limits::default());
        self.effects(&[Effect::Plan { ticket: 1, commit: String::new(), world, limits }]);
    }

    fn applies(&self, plan: &Plan) {
        self.applies_again(plan, BTreeMap::new());
    }

    /// Has a plan be carried out of which launches were asked for before.
    fn applies_again(&self, plan: &Plan, begun: BTreeMap<Address, Before>) {
        let (plan, without) = (Arc::new(plan.clone()), Vec::new());
        let commit = String::new();
        self.effects(&[Effect::Apply { ticket: 2, commit, plan, without, waits: true, begun }]);
    }

    fn asked(&self, what: What) -> Asked {
        let until = self.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        let (began, lease) = (self.now, Some((0, until)));
        let (at, looked, shown) = (self.now, Some(self.now), BTreeSet::new());
        Asked { at, replica: 0, began, lease, looked, shown, what }
    }

    fn call(&self, call: &Asked) {
        self.checks.borrow_mut().call(call, &self.settings);
    }

    fn calls(&self, what: What) {
        self.call(&self.asked(what));
    }

    fn tick(&self) {
        self.reads(0);
    }

    fn reads(&self, count: u64) {
        let sight = Sight { nodes: &self.world.nodes, instances: &self.world.instances };
        self.checks.borrow_mut().tick(sight, count, self.now);
    }

    /// Returns a removal of the `n`-th machine of `plan`, as it should be.
    fn removal(&self, plan: &Plan, n: usize) -> Ended {
        let row = rows(plan, WaveStep::Retire).nth(n).expect("so many go");
        let before = row.change.before.as_ref().expect("something goes");
        let id = before.instance_id.clone().expect("known");
        let node = self.world.node_of(&id).map(|node| node.name.clone());
        let launches = rows(plan, WaveStep::Launch);
        let ready = launches.map(|row| change_id(&plan.capacity.plan_id, &row.address)).collect();
        Ended { id, ours: true, runs: true, node, left: 0, ready, dropped: BTreeSet::new() }
    }

    /// Has a machine be told to end after its cordon.
    fn ends(&self, ended: Ended) {
        if let Some(node) = ended.node.clone() {
            self.calls(What::Cordon { node, on: true, ours: true });
        }
        self.calls(What::Terminate(ended));
    }

    /// Returns a removal of the `n`-th machine that is launched, which has no node.
    fn new_one(&self, n: usize) -> Ended {
        Ended { id: LAUNCHED[n].into(), node: None, ..self.removal(&self.shrinks, 0) }
    }

    /// Has the machine of the `n`-th launch of what grows be Ready.
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
    fn launch(&self, plan: &Plan, n: usize) -> What {
        launched(n, self.request(plan, n))
    }

    /// Returns the same, asked for as the change as which it was before.
    fn launch_again(&self, plan: &Plan, n: usize) -> What {
        let mut request = self.request(plan, n);
        request.tags.insert(tag::CHANGE.to_owned(), BEFORE.to_owned());
        launched(n, request)
    }

    /// Returns that the `n`-th launch of `plan` was asked for before.
    fn before(plan: &Plan, n: usize) -> BTreeMap<Address, Before> {
        let row = rows(plan, WaveStep::Launch).nth(n).expect("so many come");
        [(row.address.clone(), Before { change: BEFORE.into(), turn: 0 })].into()
    }

    /// Has the node of the `n`-th machine that goes be uncordoned.
    fn uncordons(&self, n: usize) {
        let Ended { id: instance, node, .. } = self.removal(&self.shrinks, n);
        let node = Box::new(self.world.nodes[&node.expect("it joined")].clone());
        self.effects(&[Effect::Cordon { instance, node, mark: None }]);
    }

    fn later(&mut self, minutes: i64) {
        self.now = self.now.checked_add(SignedDuration::from_mins(minutes)).expect("a time");
    }
}

/// An invariant, what it is about, and a trace that violates it.
type Violation = (&'static str, &'static str, fn(&mut Trace));

const OF_PLANS: &[Violation] = &[
    ("I3", "a partial world", |t| {
        let failed = Completeness::Failed { reason: "x".to_owned() };
        t.grows.capacity.base.world.sources.insert("ec2".to_owned(), failed);
        t.applies(&t.grows);
    }),
    ("I4", "a mass removal", |t| {
        t.settings.mass_removal = Most::Count(3);
        t.tick();
        t.rolls.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
        t.applies(&t.rolls);
    }),
    ("I6", "a launch in quarantine", |t| {
        let until = t.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        t.status.quarantined.insert("web".into(), (String::new(), until));
        t.applies(&t.grows);
    }),
    ("I7", "a plan that knows better than what was seen", |t| {
        let row = rows(&t.grows, WaveStep::Launch).next().expect("something comes");
        let kind = row.change.after.as_ref().and_then(|a| a.instance_type.clone());
        let kind = kind.expect("known");
        t.world.instances.values_mut().for_each(|i| i.instance_type = kind.clone());
        t.world.nodes.values_mut().for_each(|node| node.allocatable.memory = Bytes(1));
        t.plans();
        t.applies(&t.grows);
    }),
    ("I14", "a removal while the world cannot be read", |t| {
        t.status.world.as_mut().expect("seen").reads.failures = 1;
        t.applies(&t.shrinks);
    }),
    ("I15", "a removal while the fleet is broken", |t| {
        t.world.nodes.values_mut().for_each(|node| node.ready = false);
        t.plans();
        t.applies(&t.shrinks);
    }),
    ("I17", "a removal for an empty commit", |t| {
        t.is_empty = true;
        t.applies(&t.shrinks);
    }),
    ("I18", "a plan with errors", |t| {
        t.grows.errored = true;
        t.applies(&t.grows);
    }),
    ("I18", "a plan that is denied", |t| {
        t.grows.applyable = false;
        t.applies(&t.grows);
    }),
    ("I16", "a machine that drifts from its like", |t| {
        for row in &mut t.rolls.resource_changes {
            for side in row.change.before.iter_mut().chain(&mut row.change.after) {
                (side.spec_digest, side.labels) = (Some("the same".to_owned()), [].into());
            }
        }
        t.applies(&t.rolls);
    }),
    ("I16", "a fleet at rest in which another life finds something to change", |t| {
        let commit = t.status.repository.commit.clone().expect("served");
        let (world, limits) = (Arc::new(t.world.clone()), Limits::default());
        let plan = Effect::Plan { ticket: 1, commit: commit.clone(), world, limits };
        let now = |t: &mut Trace, mut plan: Plan| {
            plan.capacity.base.commit = Some(commit.clone());
            t.status.plan.as_mut().expect("planned").plan = Arc::new(plan);
        };
        let rolls = t.rolls.clone();
        let mut rests = rolls.clone();
        rests.capacity.waves.clear();
        t.effects(std::slice::from_ref(&plan));
        now(t, rests);
        t.effects(&[plan]);
        now(t, rolls);
        t.effects(&[]);
    }),
    ("I13", "a launch that is forgotten", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.calls(What::Launched(LAUNCHED[0].into()));
        t.plans();
    }),
    ("I13", "a launch while nobody has heard of another", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(1);
        t.applies(&t.rolls);
        t.calls(t.launch(&t.rolls, 1));
    }),
    ("I13", "a removal that is forgotten", |t| {
        t.calls(What::Ended(t.removal(&t.shrinks, 0).id));
        t.later(1);
        t.plans();
    }),
];

const OF_LAUNCHES: &[Violation] = &[
    ("I1", "two machines of a change", |t| {
        let mut twin = t.world.instances.values().next().expect("one").clone();
        twin.id = "i-twin".into();
        t.world.instances.insert(twin.id.clone(), twin);
        t.tick();
    }),
    ("I2", "a launch without tags", |t| {
        t.applies(&t.grows);
        let What::Launch(mut request, id) = t.launch(&t.grows, 0) else { return };
        request.tags.remove(tag::POOL);
        t.calls(What::Launch(request, id));
    }),
    ("I5", "too many launches", |t| {
        t.settings.launches.most = Most::Count(1);
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.calls(t.launch(&t.grows, 1));
    }),
    ("I12", "a launch without the lease", |t| {
        t.applies(&t.grows);
        t.call(&Asked { lease: None, ..t.asked(t.launch(&t.grows, 0)) });
    }),
    ("I12", "a launch under the lease of another", |t| {
        t.applies(&t.grows);
        let call = t.asked(t.launch(&t.grows, 0));
        t.call(&Asked { lease: call.lease.map(|(_, until)| (1, until)), ..call });
    }),
    ("I12", "a launch at the end of the lease", |t| {
        t.applies(&t.grows);
        let call = t.asked(t.launch(&t.grows, 0));
        t.call(&Asked { lease: Some((0, t.now)), ..call });
    }),
    ("I18", "a launch that no plan has", |t| t.calls(t.launch(&t.grows, 0))),
    ("I18", "a launch as a change of before that nothing takes up again", |t| {
        t.applies(&t.grows);
        t.calls(t.launch_again(&t.grows, 0));
    }),
    ("I18", "a launch that was taken up as a change of before, and anew beside", |t| {
        t.applies_again(&t.grows, Trace::before(&t.grows, 0));
        t.calls(t.launch_again(&t.grows, 0));
        t.calls(t.launch(&t.grows, 0));
    }),
    ("I18", "a launch of something else than was decided", |t| {
        t.applies(&t.grows);
        t.calls(launched(0, LaunchRequest { zone: "us-east-1z".into(), ..t.request(&t.grows, 0) }));
    }),
    ("I18", "a launch as a change of before, of something else than is decided now", |t| {
        t.applies_again(&t.grows, Trace::before(&t.grows, 0));
        let What::Launch(request, id) = t.launch_again(&t.grows, 0) else { return };
        let instance_type = "m5.24xlarge".into();
        t.calls(What::Launch(Box::new(LaunchRequest { instance_type, ..*request }), id));
    }),
    ("I19", "the same launch over and over", |t| {
        t.applies(&t.grows);
        for _ in 0..=SAME_MOST {
            t.calls(t.launch(&t.grows, 0));
        }
    }),
    ("I19", "too many reads", |t| {
        t.tick();
        t.later(1);
        t.reads(READS_PER_MINUTE + 1);
    }),
];

const OF_REMOVALS: &[Violation] = &[
    ("I2", "a removal of another's machine", |t| {
        t.applies(&t.shrinks);
        t.ends(Ended { ours: false, ..t.removal(&t.shrinks, 0) });
    }),
    ("I4", "too many removals", |t| {
        t.settings.removals = Rate { most: Most::Count(1), within: SignedDuration::from_mins(5) };
        t.applies(&t.shrinks);
        t.ends(t.removal(&t.shrinks, 0));
        t.later(4);
        t.ends(t.removal(&t.shrinks, 1));
    }),
    ("I8", "a removal before what replaces it is Ready", |t| {
        t.applies(&t.rolls);
        t.ends(Ended { ready: BTreeSet::new(), ..t.removal(&t.rolls, 0) });
    }),
    ("I8", "a removal before what was asked for again in its place is Ready", |t| {
        t.applies_again(&t.rolls, Trace::before(&t.rolls, 0));
        // What a plan calls its own changes is not what was asked for.
        for n in 0..rows(&t.rolls, WaveStep::Retire).count() {
            t.ends(t.removal(&t.rolls, n));
        }
    }),
    ("I9", "a removal with pods left", |t| {
        t.applies(&t.shrinks);
        t.ends(Ended { left: 1, ..t.removal(&t.shrinks, 0) });
    }),
    ("I9", "a removal without a cordon", |t| {
        t.applies(&t.shrinks);
        t.calls(What::Terminate(t.removal(&t.shrinks, 0)));
    }),
    ("I9", "a removal without a look after the cordon", |t| {
        t.applies(&t.shrinks);
        let ended = t.removal(&t.shrinks, 0);
        let looked = Some(t.now);
        t.later(1);
        let node = ended.node.clone().expect("joined");
        t.calls(What::Cordon { node, on: true, ours: true });
        t.call(&Asked { looked, ..t.asked(What::Terminate(ended)) });
    }),
    ("I9", "an uncordon beside an apply", |t| {
        t.status.applying.insert("p".into(), (Vec::new(), t.now));
        t.uncordons(0);
    }),
    ("I9", "an uncordon of a machine that goes by itself beside the apply that drains it", |t| {
        t.applies(&t.shrinks);
        t.status.applying.insert(t.shrinks.capacity.plan_id.clone(), (Vec::new(), t.now));
        let instance = t.removal(&t.shrinks, 0).id;
        let (why, since) = ("health".to_owned(), t.now);
        let phase = AwayPhase::Draining;
        t.status.going.push(Going { instance, node: None, why, since, deadline: None, phase });
        t.uncordons(0);
    }),
    ("I9", "an uncordon of a node that the plan has go", |t| {
        t.status.plan.as_mut().expect("planned").plan = Arc::new(t.shrinks.clone());
        t.uncordons(0);
    }),
    ("I2", "an uncordon of what a person cordoned", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(What::Cordon { node, on: false, ours: false });
    }),
    ("I10", "a cordon that nobody takes back", |t| {
        let node = t.world.nodes.values_mut().next().expect("one");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
        t.tick();
        t.later(61);
        t.tick();
    }),
    ("I11", "a group that shrinks by number", |t| {
        t.calls(What::Raise { group: "g".into(), from: 3, to: 2 });
    }),
    ("I2", "a cordon of somebody else's node", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(What::Cordon { node, on: true, ours: false });
    }),
    ("I12", "a node that is uncordoned while an apply has the lease", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        let lease = Some((APPLY, t.now));
        t.call(&Asked { lease, ..t.asked(What::Cordon { node, on: false, ours: true }) });
    }),
    ("I12", "a cordon without the lease", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.call(&Asked { lease: None, ..t.asked(What::Cordon { node, on: true, ours: true }) });
    }),
    ("I8", "a removal before what replaces it is Ready, though other launches were dropped", |t| {
        t.applies(&t.rolls);
        let dropped = rows(&t.grows, WaveStep::Launch);
        let dropped = dropped.map(|row| (t.grows.capacity.plan_id.clone(), row.address.clone()));
        let dropped = dropped.collect();
        t.ends(Ended { ready: BTreeSet::new(), dropped, ..t.removal(&t.rolls, 0) });
    }),
    ("I18", "a removal that nothing asks for", |t| t.ends(t.removal(&t.shrinks, 0))),
    ("I18", "a removal of what may still become Ready", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(14);
        t.calls(What::Terminate(t.new_one(0)));
    }),
    ("I18", "a removal of what was Ready once, however long ago it came", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.serves(0);
        t.later(60);
        t.calls(What::Terminate(t.new_one(0)));
    }),
    ("I20", "a message that is taken off too early", |t| {
        t.calls(What::Acknowledge("m1".to_owned(), vec!["i-1".into()]));
    }),
];

/// Shows that every check complains of a trace that violates it, and none of what is in order.
///
/// # Errors
/// With the check that does not.
pub(crate) fn prove() -> Result<(), String> {
    let trace = Trace::new();
    for (invariant, about, violate) in [OF_PLANS, OF_LAUNCHES, OF_REMOVALS].concat() {
        let mut trace = Trace { checks: Rc::default(), ..trace.clone() };
        violate(&mut trace);
        let said = trace.checks.borrow().well().err().unwrap_or_default();
        if !said.contains(&format!(" {invariant}: ")) {
            return Err(format!("{invariant}, {about}: the check said {said:?}"));
        }
    }
    let mut trace = Trace { checks: Rc::default(), ..trace };
    in_order(&mut trace);
    let end = trace.checks.borrow().well();
    end.map_err(|said| format!("what is in order was complained of: {said}"))
}

fn in_order(trace: &mut Trace) {
    holds_an_older_plan(&mut trace.clone());
    trace.tick();
    trace.plans();
    trace.applies_again(&trace.grows, Trace::before(&trace.grows, 1));
    trace.calls(trace.launch(&trace.grows, 0));
    trace.calls(trace.launch_again(&trace.grows, 1));
    trace.calls(What::Launched(LAUNCHED[0].into()));
    trace.later(1);
    // As the same change nobody launches more.
    trace.applies_again(&trace.grows, Trace::before(&trace.grows, 1));
    trace.calls(trace.launch_again(&trace.grows, 1));
    trace.applies(&trace.rolls);
    let shown = [LAUNCHED[1].into()].into();
    trace.call(&Asked { shown, ..trace.asked(trace.launch(&trace.rolls, 1)) });
    trace.later(2);
    trace.applies_again(&trace.rolls, Trace::before(&trace.rolls, 0));
    let mut ended = trace.removal(&trace.rolls, 0);
    ended.ready.insert(BEFORE.into());
    trace.ends(ended);
    // What never was of use goes once nobody waits for it any more.
    let mut late = trace.clone();
    late.later(15);
    late.calls(What::Terminate(late.new_one(0)));
    trace.later(3);
    let dropped = rows(&trace.rolls, WaveStep::Launch);
    let dropped =
        dropped.map(|row| (trace.rolls.capacity.plan_id.clone(), row.address.clone())).collect();
    trace.ends(Ended { ready: BTreeSet::new(), dropped, ..trace.removal(&trace.rolls, 1) });
    trace.later(3);
    trace.applies(&trace.shrinks);
    trace.ends(trace.removal(&trace.shrinks, 2));
    trace.calls(What::Acknowledge("m1".to_owned(), Vec::new()));
    trace.calls(What::Raise { group: "g".into(), from: 3, to: 4 });
    trace.tick();
}

/// A plan that needs nothing is held while the same look is planned over once more, with a machine that goes; the
/// plan of that says nothing of what is planned over it a third time.
fn holds_an_older_plan(trace: &mut Trace) {
    let commit = trace.status.repository.commit.clone().expect("served");
    let mut less = trace.world.clone();
    less.take_away(&less.instances.keys().take(1).cloned().collect());
    let asks = |world: &Observed| {
        let (world, limits) = (Arc::new(world.clone()), Limits::default());
        Effect::Plan { ticket: 1, commit: commit.clone(), world, limits }
    };
    let holds = |trace: &mut Trace, mut plan: Plan| {
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
