//! One simulation: replicas over a world, and checks after each step.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fleetwright::apply::Bounds;
use fleetwright::catalog::Catalog;
use fleetwright::controller::{ControllerState, Effect, ExternalPorts, StartOptions, Status, run};
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::{ClusterIdentity, Instance, Node, Observed};
use fleetwright::plan::wire::DiagnosticSeverity;
use fleetwright::simulator::{World, WorldInit};
use jiff::{SignedDuration, Timestamp};

use super::environment::{APPLY, Faults, LEASE, Replica, SharedWorld};
use super::invariants::{InvariantChecks, ObservedFleet, ReplicaStep};
use super::operators::Operators;
use super::random::Random;
use super::repository::{Commit, SimulatedCommit};
use super::virtual_time::ReplicaClock;

/// When every run begins.
pub(crate) const BEGIN: &str = "2026-11-21T12:00:00Z";
/// Between two moments at which the world is looked at by those who wait for it.
const TICK: SignedDuration = SignedDuration::from_secs(1);
/// Looks, two seconds apart, at which all has to be at rest: longer than a look at the world and the time
/// for which a removal has to be planned.
const RESTS: u32 = 60;
/// How often a lease is renewed.
const RENEWED: SignedDuration = SignedDuration::from_secs(10);

/// A replica that lives.
struct RunningReplica {
    outside: Rc<Replica>,
    watch: Rc<ReplicaClock>,
    loops: Pin<Box<dyn Future<Output = ()>>>,
    /// Until when it is not run, as a process that the machine does not run.
    paused: Timestamp,
}

/// A run.
pub(crate) struct Simulation {
    /// What replicas share.
    pub(crate) shared: Rc<SharedWorld>,
    /// What was found to be wrong.
    pub(crate) checks: Rc<RefCell<InvariantChecks>>,
    /// Chance, of the story.
    pub(crate) random: Random,
    /// The last status of each replica.
    pub(crate) statuses: Rc<RefCell<Vec<Option<Status>>>>,
    /// Steps that were taken, and the time they took for real.
    pub(crate) steps: Rc<Cell<u64>>,
    /// Whether a kubelet was silenced.
    pub(crate) silenced: bool,
    commit: Commit,
    commits: usize,
    catalog: Rc<Catalog>,
    alive: Vec<Option<RunningReplica>>,
    lives: u64,
    renewed: Timestamp,
    messages: u64,
    people: Option<Operators>,
}

impl Simulation {
    /// Returns a run over an empty world with one replica.
    ///
    /// # Panics
    /// Where the simulation itself is broken; so for all.
    #[must_use]
    pub(crate) fn new(seed: u64, commit: Commit, catalog: &Rc<Catalog>) -> Self {
        let cluster = ClusterIdentity {
            name: "test".into(),
            region: "us-east-1".into(),
            account: "123456789012".into(),
            uid: "u-1".into(),
        };
        let files = SimulatedCommit::read(&commit, 1, catalog);
        let now: Timestamp = BEGIN.parse().expect("a time");
        let genesis = WorldInit { cluster, now, seed };
        let world = Rc::new(World::in_memory(&genesis, files.shapes()));
        world.deliver(&files.delivery()).expect("kept in memory");
        let shared = SharedWorld::new(&world, &files, seed);
        let mut run = Self {
            shared,
            checks: Rc::default(),
            random: Random::new(seed ^ 0x5EED),
            statuses: Rc::default(),
            steps: Rc::default(),
            silenced: false,
            commit,
            commits: 1,
            catalog: Rc::clone(catalog),
            alive: Vec::new(),
            lives: 0,
            renewed: Timestamp::MIN,
            messages: 0,
            people: None,
        };
        run.checks.borrow_mut().committed(&files, run.now());
        run.start(0);
        run
    }

    /// Returns the moment it is.
    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.time.now()
    }

    /// Returns what the replica that leads says of itself.
    #[must_use]
    pub(crate) fn status(&self) -> Option<Status> {
        let all = self.statuses.borrow();
        let leads = all.iter().flatten().find(|status| status.is_leader);
        leads.or_else(|| all.iter().flatten().next()).cloned()
    }

    /// Returns the replica that leads, as far as it tells, with what it says of itself.
    #[must_use]
    pub(crate) fn leader(&self) -> Option<(usize, Status)> {
        let all = self.statuses.borrow();
        let lives = |n: usize| self.alive.get(n).is_some_and(Option::is_some);
        let mut all = all.iter().enumerate().filter_map(|(n, status)| Some((n, status.as_ref()?)));
        let found = all.find(|(n, status)| lives(*n) && status.is_leader);
        found.map(|(n, status)| (n, status.clone()))
    }

    /// Has people and CI be there from now on.
    pub(crate) fn beside(&mut self, people: Operators) {
        self.people = Some(people);
    }

    /// Does something with those who act beside the loop, where there are any.
    pub(crate) fn with_people(&mut self, what: impl FnOnce(&mut Operators, &mut Self)) {
        if let Some(mut people) = self.people.take() {
            what(&mut people, self);
            self.people = Some(people);
        }
    }

    /// Returns what runs.
    #[must_use]
    pub(crate) fn observed(&self) -> Observed {
        self.shared.world.observed()
    }

    /// Returns the instances of ours that run or are about to.
    #[must_use]
    pub(crate) fn machines(&self) -> Vec<Instance> {
        let observed = self.observed();
        let ours = |i: &&Instance| i.is_active() && i.is_managed_by(&observed.cluster.name);
        observed.instances.values().filter(ours).cloned().collect()
    }

    /// Starts a replica, or starts it again with nothing but the world.
    pub(crate) fn start(&mut self, number: usize) {
        let outside = Rc::new(Replica::new(number, &self.shared));
        let watch =
            Rc::new(ReplicaClock { time: Rc::clone(&self.shared.time), offset: Cell::default() });
        self.lives += 1;
        let start = StartOptions {
            started_at: self.now(),
            identity: format!("replica-{number}"),
            cluster: self.shared.world.cluster(),
            mode: None,
            once: false,
        };
        while self.statuses.borrow().len() <= number {
            self.statuses.borrow_mut().push(None);
        }
        let (checks, statuses) = (Rc::clone(&self.checks), Rc::clone(&self.statuses));
        let (shared, steps) = (Rc::clone(&self.shared), Rc::clone(&self.steps));
        checks.borrow_mut().restarted(number, self.now());
        let (ports, clock) = (Rc::clone(&outside), Rc::clone(&watch));
        let loops = Box::pin(async move {
            let all = ExternalPorts {
                cloud: &*ports,
                cluster: &*ports,
                clock: &*clock,
                source: &*ports,
                signals: &*ports,
                store: &*ports,
            };
            let mut looked = 0;
            let mut watch = |state: &ControllerState, effects: &[Effect]| {
                steps.set(steps.get() + 1);
                ports.takes.set(state.accepts_messages());
                // Where nothing is done that could be wrong, nothing is to be looked at.
                let idle = |effect: &Effect| matches!(effect, Effect::WakeAt(_));
                if effects.iter().all(idle) && shared.asked.borrow().len() == looked {
                    return;
                }
                looked = shared.asked.borrow().len();
                let status = state.status();
                let served = status.repository.commit.clone();
                let commits = shared.commits.borrow();
                let files = commits.iter().find(|files| Some(&files.name) == served.as_ref());
                let files = files.unwrap_or(&commits[0]);
                let mut checks = checks.borrow_mut();
                checks.step(&ReplicaStep {
                    replica: number,
                    now: shared.time.now(),
                    status: &status,
                    effects,
                    settings: &files.fleet.controller,
                    guard: &files.fleet.guard,
                    kept: &shared.kept.borrow(),
                    is_empty: files.is_empty(),
                });
                checks.calls(&shared.asked.borrow(), &files.fleet.controller);
                drop(checks);
                if let Some(slot) = statuses.borrow_mut().get_mut(number) {
                    *slot = Some(status);
                }
            };
            run(all, start, Bounds::default(), &mut watch).await;
        });
        while self.alive.len() <= number {
            self.alive.push(None);
        }
        let paused = Timestamp::MIN;
        self.alive[number] = Some(RunningReplica { outside, watch, loops, paused });
    }

    /// Kills a replica where it stands.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(slot) = self.alive.get_mut(number) {
            *slot = None;
        }
    }

    /// Has a replica not run for a while.
    pub(crate) fn pause(&mut self, number: usize, time: SignedDuration) {
        let until = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        if let Some(Some(alive)) = self.alive.get_mut(number) {
            alive.paused = until;
        }
    }

    /// Sets the clock of a replica wrong.
    pub(crate) fn skew(&mut self, number: usize, by: SignedDuration) {
        if let Some(Some(alive)) = self.alive.get_mut(number) {
            self.checks.borrow_mut().clock_is_set(number, self.shared.time.now(), by);
            alive.watch.offset.set(by);
        }
    }

    /// Gives the lease to an apply of CI for a while, once the loop has nothing under way.
    pub(crate) fn lend(&mut self, time: SignedDuration) {
        let until = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        self.shared.lease.set(Some((APPLY, until)));
    }

    /// Asks something of a replica.
    pub(crate) fn ask(&self, number: usize, request: fleetwright::controller::AuthorizedRequest) {
        if let Some(Some(alive)) = self.alive.get(number) {
            let seen = self.statuses.borrow().get(number).cloned().flatten();
            let plan = seen.and_then(|status| Some(status.plan?.plan));
            self.checks.borrow_mut().somebody_asks(&request, plan.as_ref());
            alive.outside.requests.borrow_mut().push_back(request);
        }
    }

    /// Has a replica end in order.
    pub(crate) fn end(&self, number: usize) {
        if let Some(Some(alive)) = self.alive.get(number) {
            alive.outside.ends.set(true);
        }
    }

    /// Commits to the repository, and has the delivery tool follow.
    pub(crate) fn commit(&mut self, change: impl FnOnce(Commit) -> Commit) {
        self.commit = change(self.commit.clone());
        self.commits += 1;
        let files = SimulatedCommit::read(&self.commit, self.commits, &self.catalog);
        self.shared.world.deliver(&files.delivery()).expect("kept in memory");
        self.checks.borrow_mut().committed(&files, self.now());
        self.shared.commits.borrow_mut().push(Rc::clone(&files));
        let now = self.now();
        self.people.iter_mut().for_each(|people| people.merged(&files, now));
        *self.shared.files.borrow_mut() = files;
    }

    /// Releases a new image behind the words of a node class.
    pub(crate) fn release_image(&self, words: &str) {
        self.checks.borrow_mut().image_was_released(words, self.now());
        self.shared.world.release_image(words);
    }

    /// Sets what goes wrong from now on.
    pub(crate) fn faults(&self, faults: Faults) {
        self.shared.faults.set(faults);
    }

    /// Has there always be another signal for a while, which passes.
    pub(crate) fn flood(&mut self, time: SignedDuration) {
        self.shared.flood.set(self.now().checked_add(time).ok());
        self.pass(time);
    }

    /// Puts a message into the queue.
    pub(crate) fn message(&mut self, detail_type: &str, source: &str, detail: &str) {
        self.messages += 1;
        let now = self.now();
        let body = format!(
            r#"{{"version":"0","detail-type":"{detail_type}","source":"{source}","time":"{now:.0}","detail":{detail}}}"#
        );
        self.shared.queue.borrow_mut().put(&format!("m{:05}", self.messages), body, now);
    }

    /// Warns that a spot instance is taken back, and takes it back when `taken` is over.
    pub(crate) fn warn(&mut self, id: &InstanceId) {
        let detail = format!(r#"{{"instance-id":"{id}","instance-action":"terminate"}}"#);
        self.message("EC2 Spot Instance Interruption Warning", "aws.ec2", &detail);
    }

    /// Lets time pass, with everything that replicas do meanwhile.
    pub(crate) fn pass(&mut self, time: SignedDuration) {
        let end = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        while self.now() < end && self.checks.borrow().is_well() {
            self.renew();
            self.with_people(Operators::act);
            self.poll();
            let next = self.now().checked_add(TICK).unwrap_or(Timestamp::MAX).min(end);
            self.shared.time.pass(next);
            if self.shared.faults.get().stale > 0 {
                self.shared.photograph();
            }
            let settings = self.settings();
            let mut checks = self.checks.borrow_mut();
            checks.calls(&self.shared.asked.borrow(), &settings.fleet.controller);
            let view = self.shared.world.view();
            let sight = ObservedFleet { nodes: view.nodes(), instances: view.instances() };
            checks.tick(sight, self.shared.reads.get(), self.shared.time.now());
        }
    }

    /// Returns the settings of the newest commit.
    fn settings(&self) -> Rc<SimulatedCommit> {
        Rc::clone(&self.shared.files.borrow())
    }

    /// Lets time pass until something holds, at most so long; returns whether it did.
    pub(crate) fn until(&mut self, limit: SignedDuration, holds: impl Fn(&Self) -> bool) -> bool {
        let end = self.now().checked_add(limit).unwrap_or(Timestamp::MAX);
        while !holds(self) {
            if self.now() >= end || !self.checks.borrow().is_well() {
                return false;
            }
            self.pass(SignedDuration::from_secs(1));
        }
        true
    }

    fn renew(&mut self) {
        let now = self.now();
        if now < self.renewed.checked_add(RENEWED).unwrap_or(now) {
            return;
        }
        self.renewed = now;
        let runs = |alive: &Option<RunningReplica>| {
            alive.as_ref().is_some_and(|alive| now >= alive.paused)
        };
        let until = now.checked_add(LEASE).unwrap_or(Timestamp::MAX);
        match self.shared.lease.get() {
            Some((by, _)) if self.alive.get(by).is_some_and(runs) => {
                self.shared.lease.set(Some((by, until)));
            }
            Some((_, ends)) if now < ends => {}
            Some(_) | None => {
                let next = self.alive.iter().position(runs);
                self.shared.lease.set(next.map(|by| (by, until)));
            }
        }
    }

    fn poll(&mut self) {
        let now = self.now();
        let mut context = Context::from_waker(Waker::noop());
        self.people.iter_mut().for_each(|people| people.poll(&mut context));
        for slot in &mut self.alive {
            let Some(alive) = slot else { continue };
            if now < alive.paused {
                continue;
            }
            if let Poll::Ready(()) = alive.loops.as_mut().poll(&mut context) {
                *slot = None;
            }
        }
    }

    /// Returns whether what the repository asks for runs: every pod on a Ready node, no node too many,
    /// no machine without a node, nothing cordoned but by a person, nothing under way.
    ///
    /// # Errors
    /// With what is not so.
    pub(crate) fn is_at_rest(&self) -> Result<(), String> {
        let observed = self.observed();
        if let Some(plan) =
            self.status().and_then(|status| status.plan).filter(|plan| plan.plan.errored)
        {
            let rows = plan.plan.capacity.diagnostics.iter();
            let errors: Vec<&str> = rows
                .filter(|row| row.severity == DiagnosticSeverity::Error)
                .map(|row| row.message.as_str())
                .collect();
            return Err(format!("the plan has errors: {}", errors.join("; ")));
        }
        let waiting = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_none());
        let waiting = waiting.count();
        if waiting > 0 {
            return Err(format!("{waiting} pods wait"));
        }
        for machine in self.machines() {
            match observed.node_for_instance(&machine.id) {
                Some(node) if node.ready && self.is_open(node) => {}
                Some(node) => return Err(format!("node {} is not well", node.name)),
                None => return Err(format!("machine {} has no node", machine.id)),
            }
        }
        let Some(status) = self.status() else { return Err("nobody lives".to_owned()) };
        if !status.in_progress.is_empty() || !status.terminating.is_empty() {
            return Err("something is under way".to_owned());
        }
        let left = self.shared.queue.borrow().len();
        if left > 0 {
            return Err(format!("{left} messages are left"));
        }
        let Some(plan) = &status.plan else { return Err("there is no plan".to_owned()) };
        let commit = self.shared.files.borrow().name.clone();
        if status.repository.commit.as_ref() != Some(&commit) {
            return Err("another commit is served".to_owned());
        }
        if plan.plan.capacity.base.commit.as_ref() != Some(&commit) {
            return Err("another commit is planned".to_owned());
        }
        if !plan.plan.capacity.waves.iter().all(|wave| wave.addresses.is_empty()) {
            return Err(format!("the plan is not empty: {:?}", plan.blocked));
        }
        Ok(())
    }

    /// Returns whether a node takes pods, but for what a person wants.
    fn is_open(&self, node: &Node) -> bool {
        !node.unschedulable || self.shared.is_cordoned_by_person(node)
    }

    /// Lets time pass until all is at rest, and stays so for longer than anything takes to be seen.
    ///
    /// # Errors
    /// With what never came to rest.
    pub(crate) fn comes_to_rest(&mut self, limit: SignedDuration) -> Result<(), String> {
        let end = self.now().checked_add(limit).unwrap_or(Timestamp::MAX);
        let mut rests = 0;
        while rests < RESTS {
            self.well()?;
            match self.is_at_rest() {
                Ok(()) => rests += 1,
                Err(why) if self.now() >= end => return Err(why),
                Err(_) => rests = 0,
            }
            self.pass(SignedDuration::from_secs(2));
        }
        self.well()
    }

    /// Returns what was found to be wrong.
    ///
    /// # Errors
    /// With the first of it.
    pub(crate) fn well(&self) -> Result<(), String> {
        self.checks.borrow().well()
    }
}
