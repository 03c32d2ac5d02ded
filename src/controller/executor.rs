//! Runs effects through the ports, and feeds their results back as events.
//!
//! The executor decides nothing and holds only running effects.
//!
//! Invariants:
//! - Signals take precedence over all other events, and a bounded number of them in a row starves
//!   nothing.
//! - Every effect that calls a port ends in one event.
//! - An apply also reports its progress.
//! - Nothing is written without a certain lease, except cordons of interrupted nodes while an apply
//!   holds it.

mod node_writes;
mod open_nodes;
mod revalidation;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;
use tracing::Span;

use super::event::{Effect, Event, PlanScope, PodScope, Revision, RevisionError, Ticket};
use super::persisted_state::VerifiedCommit;
use super::ports::{RevisionPlanner, RevisionSource, SignalSource, StateStore};
use super::state::{ControllerState, StartOptions, step};
use super::{failures, tracing_spans};
use crate::apply::observation::observe;
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::apply::{
    self, ApplySettings, Bounds, LaunchWait, LeaseGuard, OfferingAttempts, OpenedBy, apply,
};
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::{ClusterIdentity, Instance, Observed};
use crate::plan::Plan;
use node_writes::{
    cordon, cordon_without_lease, delete_node, evict, terminate_if_unchanged, uncordon,
};
use open_nodes::{nominate_pods, open_nodes};
use revalidation::Revalidation;

const PLANNERS_MAX: usize = 4;

/// Maximum number of signals in a row before other events. An interruption waits for one event at
/// most, and a flood of signals does not starve the events that it causes.
const CONSECUTIVE_SIGNALS_MAX: u32 = 8;

/// The outside world, as ports.
#[derive(Debug)]
pub struct ExternalPorts<'a, C, K, T, S, G, D> {
    /// EC2.
    pub cloud: &'a C,
    /// Kubernetes.
    pub cluster: &'a K,
    /// Clock.
    pub clock: &'a T,
    /// Repository.
    pub source: &'a S,
    /// Signals, and the lease.
    pub signals: &'a G,
    /// Store of the persisted state.
    pub store: &'a D,
}

impl<C, K, T, S, G, D> Clone for ExternalPorts<'_, C, K, T, S, G, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, K, T, S, G, D> Copy for ExternalPorts<'_, C, K, T, S, G, D> {}

/// Runs the controller until it exits, and returns its last state.
///
/// Calls `watch` after each step with the new state and its effects.
pub async fn run<C, K, T, S, G, D>(
    ports: ExternalPorts<'_, C, K, T, S, G, D>,
    start: StartOptions,
    bounds: Bounds,
    watch: &mut dyn FnMut(&ControllerState, &[Effect]),
) -> ControllerState
where
    C: Cloud,
    K: Cluster,
    T: Clock,
    S: RevisionSource,
    G: SignalSource,
    D: StateStore,
{
    let executor = Executor {
        ports,
        cluster: start.cluster.clone(),
        bounds,
        planners: Rc::default(),
        last_planned: Rc::default(),
        last_planned_commit: Rc::default(),
        inbox: Rc::default(),
        attempt_waiters: Rc::default(),
        cause_span: RefCell::new(Span::none()),
        interrupt_flags: RefCell::default(),
        consecutive_signals: Cell::default(),
    };
    let mut state = ControllerState::new(start);
    let mut running: Vec<TracedEffect<'_>> = Vec::new();
    let mut event = Event::Timer;
    loop {
        let span = tracing_spans::step(&event, &executor.cause_span.replace(Span::none()));
        let now = ports.clock.now();
        let (next, effects) = span.in_scope(|| step(state, event, now));
        span.record("effects", effects.len());
        state = next;
        state.time_step(ports.clock.now().duration_since(now));
        watch(&state, &effects);
        for effect in effects {
            let effect_span = tracing_spans::effect(&effect, &span);
            let started = effect_span.in_scope(|| executor.start(effect));
            running.extend(started.map(|effect| TracedEffect { effect, span: effect_span }));
        }
        if state.has_ended() {
            return state;
        }
        let wake = state.wakes_at().unwrap_or_else(|| ports.clock.now());
        event = executor.next(&mut running, wake).await;
    }
}

fn log_failure(event: &Event) {
    if let Some((action, object, Some(error))) = failures::action_outcome(event) {
        tracing::warn!(action = action.as_str(), object, %error, "action failed; retrying");
    }
}

/// A running effect, which ends in an event.
type RunningEffect<'a> = Pin<Box<dyn Future<Output = Event> + 'a>>;

/// A running effect and its tracing span.
struct TracedEffect<'a> {
    effect: RunningEffect<'a>,
    span: Span,
}

/// A plan, and the observation that it was made from.
type PlannedWorld = (Arc<Plan>, Arc<Observed>);

/// Planners by commit, the newest last.
type Planners<P> = Rc<RefCell<Vec<(String, Rc<P>)>>>;

/// Events in order, each with its span.
type Inbox = Rc<RefCell<VecDeque<(Event, Span)>>>;

/// Launches that wait until their next offering attempt is persisted.
type AttemptWaiters = Rc<RefCell<BTreeMap<(Ticket, Address), oneshot::Sender<bool>>>>;

/// Delays each offering attempt of an apply until it is persisted.
struct AttemptGate {
    ticket: Ticket,
    inbox: Inbox,
    waiters: AttemptWaiters,
}

impl std::fmt::Debug for AttemptGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttemptGate").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl OfferingAttempts for AttemptGate {
    fn record<'t>(
        &'t self,
        address: &'t Address,
        attempt: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + 't>> {
        Box::pin(async move {
            let (ticket, address) = (self.ticket, address.clone());
            let (sender, receiver) = oneshot::channel();
            self.waiters.borrow_mut().insert((ticket, address.clone()), sender);
            let event = Event::OfferingAttemptRequested { ticket, address, attempt };
            self.inbox.borrow_mut().push_back((event, Span::current()));
            match receiver.await {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => {
                    Err("the next offering attempt could not be persisted".to_owned())
                }
            }
        })
    }
}

/// Options of [`Effect::Apply`].
struct ApplyOptions {
    excluded_instances: Vec<InstanceId>,
    only_if_empty: BTreeSet<InstanceId>,
    wait_until_ready: bool,
    running_pods_only: bool,
    previous_attempts: BTreeMap<Address, apply::EarlierLaunch>,
    launches_in_progress: Vec<Instance>,
}

/// Cache of planners.
struct PlannerCache<P> {
    planners: Planners<P>,
    last_planned_commit: Rc<RefCell<String>>,
}

impl<P> PlannerCache<P> {
    /// Caches the planner of a commit, and evicts planners beyond the limit.
    fn insert(&self, revision: Revision, planner: P) -> Arc<Revision> {
        let mut planners = self.planners.borrow_mut();
        planners.retain(|(commit, _)| *commit != revision.commit);
        planners.push((revision.commit.clone(), Rc::new(planner)));
        let evictable =
            planners.iter().position(|(of, _)| *of != *self.last_planned_commit.borrow());
        if let Some(evictable) = evictable.filter(|_| planners.len() > PLANNERS_MAX) {
            drop(planners.remove(evictable));
        }
        Arc::new(revision)
    }

    /// Returns the planner of the commit that was planned last, unless it is this commit.
    fn newer_than(&self, commit: &str) -> Option<Rc<P>> {
        let last = self.last_planned_commit.borrow();
        let planners = self.planners.borrow();
        let newest = planners.iter().rev().find(|(of, _)| *of == *last && *of != *commit)?;
        Some(Rc::clone(&newest.1))
    }
}

struct Executor<'a, C, K, T, S: RevisionSource, G, D> {
    ports: ExternalPorts<'a, C, K, T, S, G, D>,
    cluster: ClusterIdentity,
    bounds: Bounds,
    planners: Planners<S::Planner>,
    last_planned: Rc<RefCell<Option<PlannedWorld>>>,
    last_planned_commit: Rc<RefCell<String>>,
    /// Events from running applies, in order.
    inbox: Inbox,
    attempt_waiters: AttemptWaiters,
    /// Span of the last event.
    cause_span: RefCell<Span>,
    /// Flags that tell applies to stop early.
    interrupt_flags: RefCell<Vec<Rc<AtomicBool>>>,
    consecutive_signals: Cell<u32>,
}

impl<'a, C, K, T, S, G, D> Executor<'a, C, K, T, S, G, D>
where
    C: Cloud,
    K: Cluster,
    T: Clock,
    S: RevisionSource,
    G: SignalSource,
    D: StateStore,
{
    fn interrupt(&self) {
        for flag in self.interrupt_flags.borrow_mut().drain(..) {
            flag.store(true, Ordering::Relaxed);
        }
        // Dropped senders tell the waiting launches that no attempt will be persisted.
        self.attempt_waiters.borrow_mut().clear();
    }

    /// Waits for the next event: signals, then progress of applies, then finished effects, then the
    /// timer. After many signals in a row the other events go first once.
    async fn next(&self, running: &mut Vec<TracedEffect<'a>>, wake: Timestamp) -> Event {
        let ExternalPorts { clock, signals, .. } = self.ports;
        let wait = wake.duration_since(clock.now()).max(SignedDuration::ZERO);
        let (mut timer, mut signal) = (pin!(clock.sleep(wait)), pin!(signals.next()));
        let patient = self.consecutive_signals.get() < CONSECUTIVE_SIGNALS_MAX;
        let event = std::future::poll_fn(|context| {
            let mut signalled =
                |context: &mut Context<'_>| signal.as_mut().poll(context).map(Event::Signal);
            if patient {
                if let Poll::Ready(event) = signalled(context) {
                    return Poll::Ready(event);
                }
            } else if wait.is_zero() {
                return Poll::Ready(Event::Timer);
            }
            if let Some(event) = self.poll_running(running, context) {
                return Poll::Ready(event);
            }
            // A timer that restarts with each signal would never fire under a flood.
            if wait.is_zero() || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Timer);
            }
            if patient { Poll::Pending } else { signalled(context) }
        })
        .await;
        let is_signal = matches!(event, Event::Signal(_));
        self.consecutive_signals.set(if is_signal && patient {
            self.consecutive_signals.get() + 1
        } else {
            0
        });
        event
    }

    /// Returns the next event of running effects, if one is ready.
    fn poll_running(
        &self,
        running: &mut Vec<TracedEffect<'a>>,
        context: &mut Context<'_>,
    ) -> Option<Event> {
        if self.inbox.borrow().is_empty() {
            let mut ended = None;
            for (n, traced) in running.iter_mut().enumerate() {
                let TracedEffect { effect, span } = traced;
                if let Poll::Ready(event) = span.in_scope(|| effect.as_mut().poll(context)) {
                    ended = Some((n, event));
                    break;
                }
            }
            if let Some((n, event)) = ended {
                let TracedEffect { span, .. } = running.remove(n);
                log_failure(&event);
                // Progress reported before the end comes first.
                self.inbox.borrow_mut().push_back((event, span));
            }
        }
        let (event, span) = self.inbox.borrow_mut().pop_front()?;
        self.cause_span.replace(span);
        Some(event)
    }

    /// Starts an effect; returns `None` if there is nothing to wait for.
    fn start(&self, effect: Effect) -> Option<RunningEffect<'a>> {
        let ExternalPorts { cloud, cluster, clock, signals, store, .. } = self.ports;
        let may_write = move || signals.may_write();
        let guarded = LeaseGuard::new(cluster, may_write);
        let running: RunningEffect<'a> = match effect {
            Effect::LoadState => {
                Box::pin(async move { Event::StateLoaded(store.load().await.map(Box::new)) })
            }
            Effect::SaveState(persisted) => {
                Box::pin(async move { Event::StateSaved(store.save(&persisted).await) })
            }
            Effect::ReadBranch { verified } => self.read_branch(verified),
            Effect::ReadCommit { commit } => self.read_commit(commit),
            Effect::Observe => self.observe(),
            Effect::Plan { ticket, commit, world, limits } => {
                self.plan(ticket, &commit, world, limits)
            }
            Effect::Apply {
                ticket,
                commit,
                plan,
                excluded_instances,
                only_if_empty,
                wait_until_ready,
                running_pods_only,
                previous_attempts,
                launches_in_progress,
            } => self.apply(
                ticket,
                &commit,
                plan,
                ApplyOptions {
                    excluded_instances,
                    only_if_empty,
                    wait_until_ready,
                    running_pods_only,
                    previous_attempts,
                    launches_in_progress,
                },
            ),
            Effect::Cordon { instance, node, reason } => {
                Box::pin(cordon(guarded, instance, node, reason))
            }
            Effect::Uncordon { instance, node } => Box::pin(uncordon(guarded, instance, node)),
            Effect::CordonWithoutLease { node } => Box::pin(cordon_without_lease(cluster, node)),
            Effect::Evict { instance, pods } => Box::pin(evict(guarded, instance, pods)),
            Effect::Terminate { instance, node } => {
                let cloud = LeaseGuard::new(cloud, may_write);
                Box::pin(terminate_if_unchanged(cloud, guarded, instance, node))
            }
            Effect::DeleteNode { instance, node } => Box::pin(delete_node(guarded, instance, node)),
            Effect::Acknowledge { receipt } => Box::pin(acknowledge(signals, receipt)),
            Effect::NominatePods { nominations } => {
                Box::pin(nominate_pods(guarded, clock, nominations))
            }
            Effect::OpenNodes { nominations, nodes, annotations } => {
                Box::pin(open_nodes(guarded, clock, nominations, nodes, annotations))
            }
            Effect::AnswerOfferingAttempt { ticket, address, is_persisted } => {
                let waiter = self.attempt_waiters.borrow_mut().remove(&(ticket, address));
                // The apply may have ended.
                let _ = waiter.map(|waiter| waiter.send(is_persisted));
                return None;
            }
            Effect::InterruptApplies => {
                self.interrupt();
                return None;
            }
            // The state records both.
            Effect::WakeAt(_) | Effect::Exit => return None,
        };
        Some(running)
    }

    fn observe(&self) -> RunningEffect<'a> {
        let ExternalPorts { cloud, cluster, clock, .. } = self.ports;
        let identity = self.cluster.clone();
        Box::pin(async move {
            let observed = observe(cloud, cluster, clock, identity).await;
            Event::Observed(Arc::new(observed))
        })
    }

    fn read_branch(&self, verified: Option<VerifiedCommit>) -> RunningEffect<'a> {
        let (source, cache) = (self.ports.source, self.planner_cache());
        Box::pin(async move {
            Event::BranchRead(
                source
                    .read_branch(verified)
                    .await
                    .map(|(revision, planner)| cache.insert(revision, planner)),
            )
        })
    }

    fn read_commit(&self, commit: String) -> RunningEffect<'a> {
        let (source, cache) = (self.ports.source, self.planner_cache());
        Box::pin(async move {
            let read = source.read_commit(&commit).await.and_then(|(revision, planner)| {
                if revision.commit == commit {
                    return Ok(cache.insert(revision, planner));
                }
                Err(RevisionError::NotFound(format!("`{}` was read instead", revision.commit)))
            });
            Event::CommitRead { commit, read }
        })
    }

    fn planner_cache(&self) -> PlannerCache<S::Planner> {
        PlannerCache {
            planners: Rc::clone(&self.planners),
            last_planned_commit: Rc::clone(&self.last_planned_commit),
        }
    }

    fn planner(&self, commit: &str) -> Option<Rc<S::Planner>> {
        let planners = self.planners.borrow();
        planners.iter().rev().find(|(of, _)| of == commit).map(|(_, planner)| Rc::clone(planner))
    }

    fn plan(
        &self,
        ticket: Ticket,
        commit: &str,
        world: Arc<Observed>,
        limits: PlanScope,
    ) -> RunningEffect<'a> {
        let clock = self.ports.clock;
        commit.clone_into(&mut self.last_planned_commit.borrow_mut());
        let Some(planner) = self.planner(commit) else {
            return Box::pin(std::future::ready(Event::PlannerMissing { ticket }));
        };
        let last = Rc::clone(&self.last_planned);
        Box::pin(async move {
            let began = clock.now();
            let plan = Arc::new(planner.plan(Arc::clone(&world), limits).await);
            Span::current().record("plan", plan.capacity.digest.as_str());
            last.replace(Some((Arc::clone(&plan), world)));
            Event::Planned { ticket, plan, took: clock.now().duration_since(began) }
        })
    }

    /// Returns the observation that the plan was made from, if it is the last plan.
    fn planned_world_of(&self, plan: &Arc<Plan>) -> Option<Arc<Observed>> {
        let last = self.last_planned.borrow();
        last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, plan)).map(|(_, world)| Arc::clone(world))
    }

    /// Returns the flag that interrupts a new apply, and forgets those of ended applies.
    fn register_interrupt_flag(&self) -> Rc<AtomicBool> {
        let flag = Rc::new(AtomicBool::new(false));
        let mut flags = self.interrupt_flags.borrow_mut();
        flags.retain(|flag| Rc::strong_count(flag) > 1);
        flags.push(Rc::clone(&flag));
        flag
    }

    fn apply(
        &self,
        ticket: Ticket,
        commit: &str,
        plan: Arc<Plan>,
        options: ApplyOptions,
    ) -> RunningEffect<'a> {
        let ApplyOptions {
            excluded_instances,
            only_if_empty,
            wait_until_ready,
            running_pods_only,
            previous_attempts,
            launches_in_progress,
        } = options;
        let ExternalPorts { cloud, cluster, clock, signals, .. } = self.ports;
        let Some(planner) = self.planner(commit) else {
            let why =
                "the planner of its commit is no longer cached; it is planned again".to_owned();
            return Box::pin(std::future::ready(Event::ApplyFinished { ticket, result: Err(why) }));
        };
        let pods = if running_pods_only { PodScope::RunningOnly } else { PodScope::Declared };
        let planned_world = self.planned_world_of(&plan);
        let flag = self.register_interrupt_flag();
        let (identity, bounds, inbox) = (self.cluster.clone(), self.bounds, Rc::clone(&self.inbox));
        let (planners, commit) = (self.planner_cache(), commit.to_owned());
        let attempt_gate = AttemptGate {
            ticket,
            inbox: Rc::clone(&inbox),
            waiters: Rc::clone(&self.attempt_waiters),
        };
        Box::pin(async move {
            let may_write = || signals.may_write();
            let (cloud, cluster) =
                (LeaseGuard::new(cloud, may_write), LeaseGuard::new(cluster, may_write));
            let ports = apply::Ports { cloud: &cloud, cluster: &cluster, clock };
            let replan = Revalidation {
                planner: &*planner,
                planners,
                commit,
                is_begun: Cell::new(false),
                plan: Arc::clone(&plan),
                excluded_instances,
                repeated_launches: previous_attempts.clone(),
                launches_in_progress,
                pods,
                planned_world,
            };
            let settings = ApplySettings {
                cluster: identity,
                approved: None,
                replan: &replan,
                catalog: Some(planner.catalog()),
                interrupted: Some(&*flag),
                bounds,
                launch_wait: if wait_until_ready {
                    LaunchWait::UntilReady
                } else {
                    LaunchWait::UntilLaunched
                },
                earlier_launches: previous_attempts,
                offering_attempts: Some(&attempt_gate),
                only_if_empty,
                opened_by: OpenedBy::Controller,
                is_exclusive: false,
            };
            let mut report = |event: &apply::Event| {
                let event = Event::ApplyProgressed { ticket, event: event.clone() };
                inbox.borrow_mut().push_back((event, Span::current()));
            };
            let result = apply(&plan, &ports, &settings, &mut report).await;
            let result = result.map(Box::new).map_err(|error| error.to_string());
            Event::ApplyFinished { ticket, result }
        })
    }
}

async fn acknowledge<G: SignalSource>(signals: &G, receipt: String) -> Event {
    let result = signals.acknowledge(&receipt).await;
    Event::Acknowledged { receipt, result }
}

#[cfg(test)]
mod tests;
