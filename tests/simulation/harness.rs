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

/// Start time of each run.
pub(crate) const START: &str = "2026-11-21T12:00:00Z";
/// Longest step of time between two evaluations of the world.
const TICK: SignedDuration = SignedDuration::from_secs(1);
/// Consecutive checks, two seconds apart, for convergence. They span more than one observation and
/// the minimum time for which a removal has to be planned.
const CONVERGED_CHECKS: u32 = 60;
/// Interval of lease renewals.
const LEASE_RENEWAL: SignedDuration = SignedDuration::from_secs(10);

/// A running replica.
struct RunningReplica {
    ports: Rc<Replica>,
    clock: Rc<ReplicaClock>,
    controller: Pin<Box<dyn Future<Output = ()>>>,
    /// End of the pause. The process is not scheduled until then.
    paused_until: Timestamp,
}

/// A run of a scenario.
pub(crate) struct Simulation {
    pub(crate) shared: Rc<SharedWorld>,
    pub(crate) checks: Rc<RefCell<InvariantChecks>>,
    /// Random choices of the scenario.
    pub(crate) random: Random,
    /// Last status by replica number.
    pub(crate) statuses: Rc<RefCell<Vec<Option<Status>>>>,
    /// Number of controller steps.
    pub(crate) steps: Rc<Cell<u64>>,
    /// True if a kubelet was stopped.
    pub(crate) kubelet_stopped: bool,
    commit: Commit,
    commits: usize,
    catalog: Rc<Catalog>,
    replicas: Vec<Option<RunningReplica>>,
    lives: u64,
    lease_renewed_at: Timestamp,
    messages: u64,
    operators: Option<Operators>,
}

impl Simulation {
    /// Starts one replica over an empty world.
    ///
    /// # Panics
    /// Panics if the simulation itself is defective. The same holds for the other methods.
    #[must_use]
    pub(crate) fn new(seed: u64, commit: Commit, catalog: &Rc<Catalog>) -> Self {
        let cluster = ClusterIdentity {
            name: "test".into(),
            region: "us-east-1".into(),
            account: "123456789012".into(),
            uid: "u-1".into(),
        };
        let files = SimulatedCommit::read(&commit, 1, catalog);
        let now: Timestamp = START.parse().expect("a time");
        let init = WorldInit { cluster, now, seed };
        let world = Rc::new(World::in_memory(&init, files.shapes()));
        world.deliver(&files.delivery()).expect("kept in memory");
        let shared = SharedWorld::new(&world, &files, seed);
        let mut run = Self {
            shared,
            checks: Rc::default(),
            random: Random::new(seed ^ 0x5EED),
            statuses: Rc::default(),
            steps: Rc::default(),
            kubelet_stopped: false,
            commit,
            commits: 1,
            catalog: Rc::clone(catalog),
            replicas: Vec::new(),
            lives: 0,
            lease_renewed_at: Timestamp::MIN,
            messages: 0,
            operators: None,
        };
        run.checks.borrow_mut().record_commit(&files, run.now());
        run.start(0);
        run
    }

    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.time.now()
    }

    /// Returns the status of the leader, or of another replica if none leads.
    #[must_use]
    pub(crate) fn status(&self) -> Option<Status> {
        let all = self.statuses.borrow();
        let leads = all.iter().flatten().find(|status| status.is_leader);
        leads.or_else(|| all.iter().flatten().next()).cloned()
    }

    /// Returns the number and the status of the replica that reports itself as leader.
    #[must_use]
    pub(crate) fn leader(&self) -> Option<(usize, Status)> {
        let all = self.statuses.borrow();
        let lives = |n: usize| self.replicas.get(n).is_some_and(Option::is_some);
        let mut all = all.iter().enumerate().filter_map(|(n, status)| Some((n, status.as_ref()?)));
        let found = all.find(|(n, status)| lives(*n) && status.is_leader);
        found.map(|(n, status)| (n, status.clone()))
    }

    /// Adds operators and CI to the run.
    pub(crate) fn add_operators(&mut self, operators: Operators) {
        self.operators = Some(operators);
    }

    /// Calls `what` with the operators, if there are any.
    pub(crate) fn with_operators(&mut self, what: impl FnOnce(&mut Operators, &mut Self)) {
        if let Some(mut operators) = self.operators.take() {
            what(&mut operators, self);
            self.operators = Some(operators);
        }
    }

    #[must_use]
    pub(crate) fn observed(&self) -> Observed {
        self.shared.world.observed()
    }

    /// Returns the active managed instances.
    #[must_use]
    pub(crate) fn instances(&self) -> Vec<Instance> {
        let observed = self.observed();
        let ours = |i: &&Instance| i.is_active() && i.is_managed_by(&observed.cluster.name);
        observed.instances.values().filter(ours).cloned().collect()
    }

    /// Starts a replica, or restarts it without its in-memory state.
    pub(crate) fn start(&mut self, number: usize) {
        let ports = Rc::new(Replica::new(number, &self.shared));
        let clock =
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
        checks.borrow_mut().record_restart(number, self.now());
        let (own_ports, own_clock) = (Rc::clone(&ports), Rc::clone(&clock));
        let controller = Box::pin(async move {
            let all = ExternalPorts {
                cloud: &*own_ports,
                cluster: &*own_ports,
                clock: &*own_clock,
                source: &*own_ports,
                signals: &*own_ports,
                store: &*own_ports,
            };
            let mut checked_calls = 0;
            let mut check_step = |state: &ControllerState, effects: &[Effect]| {
                steps.set(steps.get() + 1);
                own_ports.accepts_messages.set(state.accepts_messages());
                // A step without effects and calls cannot violate an invariant.
                let idle = |effect: &Effect| matches!(effect, Effect::WakeAt(_));
                if effects.iter().all(idle) && shared.calls.borrow().len() == checked_calls {
                    return;
                }
                checked_calls = shared.calls.borrow().len();
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
                    persisted_state: &shared.persisted_state.borrow(),
                    is_empty: files.is_empty(),
                });
                checks.calls(&shared.calls.borrow(), &files.fleet.controller);
                drop(checks);
                if let Some(slot) = statuses.borrow_mut().get_mut(number) {
                    *slot = Some(status);
                }
            };
            run(all, start, Bounds::default(), &mut check_step).await;
        });
        while self.replicas.len() <= number {
            self.replicas.push(None);
        }
        let paused_until = Timestamp::MIN;
        self.replicas[number] = Some(RunningReplica { ports, clock, controller, paused_until });
    }

    /// Kills a replica without a shutdown.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(slot) = self.replicas.get_mut(number) {
            *slot = None;
        }
    }

    /// Pauses a replica.
    pub(crate) fn pause(&mut self, number: usize, time: SignedDuration) {
        let until = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        if let Some(Some(replica)) = self.replicas.get_mut(number) {
            replica.paused_until = until;
        }
    }

    /// Sets the clock offset of a replica.
    pub(crate) fn skew(&mut self, number: usize, by: SignedDuration) {
        if let Some(Some(replica)) = self.replicas.get_mut(number) {
            self.checks.borrow_mut().record_clock_offset(number, self.shared.time.now(), by);
            replica.clock.offset.set(by);
        }
    }

    /// Gives the lease to a CI apply for a while.
    pub(crate) fn give_lease_to_ci(&mut self, time: SignedDuration) {
        let until = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        self.shared.lease.set(Some((APPLY, until)));
    }

    /// Sends an operator request to a replica.
    pub(crate) fn send_request(
        &self,
        number: usize,
        request: fleetwright::controller::AuthorizedRequest,
    ) {
        if let Some(Some(replica)) = self.replicas.get(number) {
            let seen = self.statuses.borrow().get(number).cloned().flatten();
            let plan = seen.and_then(|status| Some(status.plan?.plan));
            self.checks.borrow_mut().record_request(&request, plan.as_ref());
            replica.ports.requests.borrow_mut().push_back(request);
        }
    }

    /// Requests a graceful shutdown of a replica.
    pub(crate) fn shut_down(&self, number: usize) {
        if let Some(Some(replica)) = self.replicas.get(number) {
            replica.ports.shutdown_requested.set(true);
        }
    }

    /// Merges a commit, and delivers its workloads to the cluster.
    pub(crate) fn commit(&mut self, change: impl FnOnce(Commit) -> Commit) {
        let files = self.merge(change);
        self.shared.world.deliver(&files.delivery()).expect("kept in memory");
    }

    /// Merges a commit without a delivery of its workloads, and returns its files.
    pub(crate) fn merge(&mut self, change: impl FnOnce(Commit) -> Commit) -> Rc<SimulatedCommit> {
        self.commit = change(self.commit.clone());
        self.commits += 1;
        let files = SimulatedCommit::read(&self.commit, self.commits, &self.catalog);
        self.checks.borrow_mut().record_commit(&files, self.now());
        self.shared.commits.borrow_mut().push(Rc::clone(&files));
        let now = self.now();
        self.operators.iter_mut().for_each(|operators| operators.schedule_ci_apply(&files, now));
        *self.shared.files.borrow_mut() = Rc::clone(&files);
        files
    }

    /// Releases a new image for the image term of a node class.
    pub(crate) fn release_image(&self, words: &str) {
        self.checks.borrow_mut().record_image_release(words, self.now());
        self.shared.world.release_image(words);
    }

    /// Sets the injected faults.
    pub(crate) fn faults(&self, faults: Faults) {
        self.shared.faults.set(faults);
    }

    /// Advances the time under a flood of signals.
    pub(crate) fn flood(&mut self, time: SignedDuration) {
        self.shared.flood_until.set(self.now().checked_add(time).ok());
        self.advance(time);
    }

    /// Sends a message to the queue.
    pub(crate) fn send_message(&mut self, detail_type: &str, source: &str, detail: &str) {
        self.messages += 1;
        let now = self.now();
        let body = format!(
            r#"{{"version":"0","detail-type":"{detail_type}","source":"{source}","time":"{now:.0}","detail":{detail}}}"#
        );
        self.shared.queue.borrow_mut().put(&format!("m{:05}", self.messages), body, now);
    }

    /// Sends the interruption warning of a spot instance.
    pub(crate) fn send_interruption_warning(&mut self, id: &InstanceId) {
        let detail = format!(r#"{{"instance-id":"{id}","instance-action":"terminate"}}"#);
        self.send_message("EC2 Spot Instance Interruption Warning", "aws.ec2", &detail);
    }

    /// Advances the time and runs the replicas.
    pub(crate) fn advance(&mut self, time: SignedDuration) {
        let end = self.now().checked_add(time).unwrap_or(Timestamp::MAX);
        while self.now() < end && self.checks.borrow().is_clean() {
            self.renew();
            self.with_operators(Operators::act);
            self.poll();
            let next = self.now().checked_add(TICK).unwrap_or(Timestamp::MAX).min(end);
            self.shared.time.advance(next);
            if self.shared.faults.get().stale > 0 {
                self.shared.record_stale_instances();
            }
            let settings = self.settings();
            let mut checks = self.checks.borrow_mut();
            checks.calls(&self.shared.calls.borrow(), &settings.fleet.controller);
            let view = self.shared.world.view();
            let fleet = ObservedFleet { nodes: view.nodes(), instances: view.instances() };
            checks.tick(fleet, self.shared.reads.get(), self.shared.time.now());
        }
    }

    /// Returns the newest commit.
    fn settings(&self) -> Rc<SimulatedCommit> {
        Rc::clone(&self.shared.files.borrow())
    }

    /// Advances the time until a condition holds. Returns false if it does not hold within `limit`.
    pub(crate) fn wait_until(
        &mut self,
        limit: SignedDuration,
        holds: impl Fn(&Self) -> bool,
    ) -> bool {
        let end = self.now().checked_add(limit).unwrap_or(Timestamp::MAX);
        while !holds(self) {
            if self.now() >= end || !self.checks.borrow().is_clean() {
                return false;
            }
            self.advance(SignedDuration::from_secs(1));
        }
        true
    }

    fn renew(&mut self) {
        let now = self.now();
        if now < self.lease_renewed_at.checked_add(LEASE_RENEWAL).unwrap_or(now) {
            return;
        }
        self.lease_renewed_at = now;
        let runs = |replica: &Option<RunningReplica>| {
            replica.as_ref().is_some_and(|replica| now >= replica.paused_until)
        };
        let until = now.checked_add(LEASE).unwrap_or(Timestamp::MAX);
        match self.shared.lease.get() {
            Some((by, _)) if self.replicas.get(by).is_some_and(runs) => {
                self.shared.lease.set(Some((by, until)));
            }
            Some((_, ends)) if now < ends => {}
            Some(_) | None => {
                let next = self.replicas.iter().position(runs);
                self.shared.lease.set(next.map(|by| (by, until)));
            }
        }
    }

    fn poll(&mut self) {
        let now = self.now();
        let mut context = Context::from_waker(Waker::noop());
        self.operators.iter_mut().for_each(|operators| operators.poll(&mut context));
        for slot in &mut self.replicas {
            let Some(replica) = slot else { continue };
            if now < replica.paused_until {
                continue;
            }
            if let Poll::Ready(()) = replica.controller.as_mut().poll(&mut context) {
                *slot = None;
            }
            if self.shared.kill.take() {
                *slot = None;
            }
        }
    }

    /// Returns whether a replica runs.
    pub(crate) fn is_running(&self, number: usize) -> bool {
        self.replicas.get(number).is_some_and(Option::is_some)
    }

    /// Checks that the fleet matches the repository. Each pod is on a Ready node, each instance has
    /// a node, and only operators have cordoned nodes. No message is pending, and the plan of the
    /// newest commit is empty.
    ///
    /// # Errors
    /// Returns the first difference.
    pub(crate) fn check_converged(&self) -> Result<(), String> {
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
            return Err(format!("{waiting} pods are pending"));
        }
        for instance in self.instances() {
            match observed.node_for_instance(&instance.id) {
                Some(node) if node.is_closed() => {
                    return Err(format!("node {} is closed", node.name));
                }
                Some(node) if node.ready && self.is_open(node) => {}
                Some(node) => {
                    return Err(format!("node {} is not Ready or not schedulable", node.name));
                }
                None => return Err(format!("instance {} has no node", instance.id)),
            }
        }
        let Some(status) = self.status() else { return Err("no replica runs".to_owned()) };
        if !status.in_progress.is_empty() || !status.interrupted.is_empty() {
            return Err("changes are in progress".to_owned());
        }
        let left = self.shared.queue.borrow().len();
        if left > 0 {
            return Err(format!("{left} messages are left"));
        }
        let Some(plan) = &status.plan else { return Err("no plan".to_owned()) };
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

    /// Returns whether a node is schedulable or cordoned by an operator.
    fn is_open(&self, node: &Node) -> bool {
        !node.unschedulable || self.shared.is_cordoned_by_operator(node)
    }

    /// Advances the time until the fleet has converged and remains so.
    ///
    /// # Errors
    /// Returns the last difference after `limit`.
    pub(crate) fn converge(&mut self, limit: SignedDuration) -> Result<(), String> {
        let end = self.now().checked_add(limit).unwrap_or(Timestamp::MAX);
        let mut checks_passed = 0;
        while checks_passed < CONVERGED_CHECKS {
            self.check()?;
            match self.check_converged() {
                Ok(()) => checks_passed += 1,
                Err(why) if self.now() >= end => return Err(why),
                Err(_) => checks_passed = 0,
            }
            self.advance(SignedDuration::from_secs(2));
        }
        self.check()
    }

    /// Checks that no invariant is violated.
    ///
    /// # Errors
    /// Returns the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.checks.borrow().check()
    }
}
