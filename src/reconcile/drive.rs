//! The hands of the loop: carries effects out through the ports, and feeds back what came of them.
//!
//! This module decides nothing and keeps nothing but what is under way. Invariants: signals come ahead of
//! everything else, but never so many in a row that what has ended or is due waits for ever; every effect
//! ends in one event; nothing is written while the lease is not certain, but cordons of nodes that EC2 takes back
//! while an apply has it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;
use tracing::Span;

use super::event::{Effect, Ending, Event, Head, Limits, NoCommit, Ticket};
use super::failing;
use super::looks::{needs_as_before, shows_the_same};
use super::ports::{Desk, Planner, Signals, Source};
use super::state::{Start, State, step};
use super::trace;
use super::work::retired;
use crate::apply::rest::in_the_way;
use crate::apply::{self, ApplySettings, Bounds, Fenced, Replan, Replanned, Turns, Waits, apply};
use crate::fleet::{ClusterIdentity, CordonedFor, Node, Observed, Pod};
use crate::ids::{Address, InstanceId, NodeName};
use crate::observe::observe;
use crate::plan::{Pinned, Plan};
use crate::port::{Clock, Cloud, Cluster, EvictOutcome, PortError};

/// How old a plan may be that counts as made over what is seen now, where that is the same: what has a time of its own
/// may be due later.
const AGE_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Most commits of which the planners are kept.
const PLANNERS_MAX: usize = 4;

/// Most signals in a row before whatever else has happened has its turn: an interruption waits
/// for one event at most, and a flood of them is heard between the events that it leads to.
const SIGNALS_IN_A_ROW: u32 = 8;

/// Everything outside of the loop.
#[derive(Debug)]
pub struct Outside<'a, C, K, T, S, G, D> {
    /// EC2.
    pub cloud: &'a C,
    /// Kubernetes.
    pub cluster: &'a K,
    /// Time.
    pub clock: &'a T,
    /// The repository.
    pub source: &'a S,
    /// What comes unasked, and the lease.
    pub signals: &'a G,
    /// What is kept.
    pub desk: &'a D,
}

impl<C, K, T, S, G, D> Clone for Outside<'_, C, K, T, S, G, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, K, T, S, G, D> Copy for Outside<'_, C, K, T, S, G, D> {}

/// Drives the loop until it ends, and returns what it knew then.
///
/// `watch` sees the state after each step, and what is done because of it.
pub async fn drive<C, K, T, S, G, D>(
    outside: Outside<'_, C, K, T, S, G, D>,
    start: Start,
    bounds: Bounds,
    watch: &mut dyn FnMut(&State, &[Effect]),
) -> State
where
    C: Cloud,
    K: Cluster,
    T: Clock,
    S: Source,
    G: Signals,
    D: Desk,
{
    let hands = Hands {
        outside,
        cluster: start.cluster.clone(),
        bounds,
        planners: Rc::default(),
        planned: Rc::default(),
        served: Rc::default(),
        inbox: Rc::default(),
        turning: Rc::default(),
        cause: RefCell::new(Span::none()),
        flags: RefCell::default(),
        in_a_row: Cell::default(),
    };
    let mut state = State::new(start);
    let mut running: Vec<Running<'_>> = Vec::new();
    let mut event = Event::Timer;
    loop {
        let span = trace::step(&event, &hands.cause.replace(Span::none()));
        let now = outside.clock.now();
        let (next, effects) = span.in_scope(|| step(state, event, now));
        span.record("effects", effects.len());
        state = next;
        state.took_step(outside.clock.now().duration_since(now));
        watch(&state, &effects);
        for effect in effects {
            let work = trace::effect(&effect, &span);
            let begun = work.in_scope(|| hands.begin(effect));
            running.extend(begun.map(|begun| Running { begun, span: work }));
        }
        if state.has_ended() {
            return state;
        }
        let wake = state.wakes_at().unwrap_or_else(|| outside.clock.now());
        event = hands.next(&mut running, wake).await;
    }
}

/// Logs the error that something ended with.
fn tell_failure(event: &Event) {
    if let Some((deed, of, Some(error))) = failing::done(event) {
        tracing::warn!(deed = deed.as_str(), of, %error, "something failed; it is tried again");
    }
}

/// Something under way, which ends in an event.
type Begun<'a> = Pin<Box<dyn Future<Output = Event> + 'a>>;

/// The same, and what is traced of it.
struct Running<'a> {
    begun: Begun<'a>,
    span: Span,
}

/// A plan, and the world that it was made over.
type Over = (Arc<Plan>, Arc<Observed>);

/// Planners by commit, the newest last.
type Planners<P> = Rc<RefCell<Vec<(String, Rc<P>)>>>;

/// What happened, and in which span.
type Inbox = Rc<RefCell<VecDeque<(Event, Span)>>>;

/// Launches that wait until it is kept which offering they ask for next.
type TurnsWaited = Rc<RefCell<BTreeMap<(Ticket, Address), oneshot::Sender<bool>>>>;

/// Has launches of an apply wait until it is kept which offering they ask for next.
struct Turning {
    ticket: Ticket,
    inbox: Inbox,
    waits: TurnsWaited,
}

impl std::fmt::Debug for Turning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turning").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Turns for Turning {
    fn keep<'t>(
        &'t self,
        address: &'t Address,
        turn: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + 't>> {
        Box::pin(async move {
            let (ticket, address) = (self.ticket, address.clone());
            let (answer, answered) = oneshot::channel();
            self.waits.borrow_mut().insert((ticket, address.clone()), answer);
            let event = Event::Turning { ticket, address, turn };
            self.inbox.borrow_mut().push_back((event, Span::current()));
            match answered.await {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => {
                    Err("it could not be kept which offering is asked for next".to_owned())
                }
            }
        })
    }
}

/// Where planners are kept.
struct Stock<P> {
    planners: Planners<P>,
    served: Rc<RefCell<String>>,
}

impl<P> Stock<P> {
    /// Keeps the planner of a commit, and as few others as are needed.
    fn keep(&self, (head, planner): (Head, P)) -> Arc<Head> {
        let mut planners = self.planners.borrow_mut();
        planners.retain(|(commit, _)| *commit != head.commit);
        planners.push((head.commit.clone(), Rc::new(planner)));
        let spare = planners.iter().position(|(of, _)| *of != *self.served.borrow());
        if let Some(spare) = spare.filter(|_| planners.len() > PLANNERS_MAX) {
            drop(planners.remove(spare));
        }
        Arc::new(head)
    }
}

struct Hands<'a, C, K, T, S: Source, G, D> {
    outside: Outside<'a, C, K, T, S, G, D>,
    cluster: ClusterIdentity,
    bounds: Bounds,
    planners: Planners<S::Planner>,
    /// The last plan, and the world that it was made over.
    planned: Rc<RefCell<Option<Over>>>,
    /// The commit that was planned from last.
    served: Rc<RefCell<String>>,
    /// What happened in applies, in order.
    inbox: Inbox,
    /// Launches that wait until it is kept which offering is asked for next.
    turning: TurnsWaited,
    /// What the last event came of.
    cause: RefCell<Span>,
    /// By which applies are told to end soon.
    flags: RefCell<Vec<Rc<AtomicBool>>>,
    /// How many signals came one after another.
    in_a_row: Cell<u32>,
}

impl<'a, C, K, T, S, G, D> Hands<'a, C, K, T, S, G, D>
where
    C: Cloud,
    K: Cluster,
    T: Clock,
    S: Source,
    G: Signals,
    D: Desk,
{
    fn interrupt(&self) {
        for flag in self.flags.borrow_mut().drain(..) {
            flag.store(true, Ordering::Relaxed);
        }
        // Whoever waits is told that nothing more is kept.
        self.turning.borrow_mut().clear();
    }

    /// Waits for the next event: signals first, then what applies tell, then what has ended, then the time.
    /// After many signals in a row the others come first for once.
    async fn next(&self, running: &mut Vec<Running<'a>>, wake: Timestamp) -> Event {
        let Outside { clock, signals, .. } = self.outside;
        let wait = wake.duration_since(clock.now()).max(SignedDuration::ZERO);
        let (mut timer, mut signal) = (pin!(clock.sleep(wait)), pin!(signals.next()));
        let patient = self.in_a_row.get() < SIGNALS_IN_A_ROW;
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
            if let Some(event) = self.happened(running, context) {
                return Poll::Ready(event);
            }
            // A wait that is begun anew each time would never end under a flood.
            if wait.is_zero() || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Timer);
            }
            if patient { Poll::Pending } else { signalled(context) }
        })
        .await;
        let is_signal = matches!(event, Event::Signal(_));
        self.in_a_row.set(if is_signal && patient { self.in_a_row.get() + 1 } else { 0 });
        event
    }

    /// Returns what happened of what is under way, where something did.
    fn happened(&self, running: &mut Vec<Running<'a>>, context: &mut Context<'_>) -> Option<Event> {
        if self.inbox.borrow().is_empty() {
            let mut ended = None;
            for (n, work) in running.iter_mut().enumerate() {
                let Running { begun, span } = work;
                if let Poll::Ready(event) = span.in_scope(|| begun.as_mut().poll(context)) {
                    ended = Some((n, event));
                    break;
                }
            }
            if let Some((n, event)) = ended {
                let Running { span, .. } = running.remove(n);
                tell_failure(&event);
                // What it told before it ended comes first.
                self.inbox.borrow_mut().push_back((event, span));
            }
        }
        let (event, span) = self.inbox.borrow_mut().pop_front()?;
        self.cause.replace(span);
        Some(event)
    }

    /// Begins what an effect asks for; `None` where nothing is left to wait for.
    fn begin(&self, effect: Effect) -> Option<Begun<'a>> {
        let outside = self.outside;
        let Outside { cloud, cluster, clock, signals, desk, .. } = outside;
        let work: Begun<'a> = match effect {
            Effect::Recall => {
                Box::pin(async move { Event::Recalled(desk.recall().await.map(Box::new)) })
            }
            Effect::Save(kept) => Box::pin(async move { Event::Saved(desk.save(&kept).await) }),
            Effect::ReadHead => self.read_head(),
            Effect::ReadCommit { commit } => self.read_commit(commit),
            Effect::Observe => {
                let identity = self.cluster.clone();
                Box::pin(async move {
                    let observed = observe(cloud, cluster, clock, identity).await;
                    Event::World(Arc::new(observed))
                })
            }
            Effect::Plan { ticket, commit, world, limits } => {
                self.plan(ticket, &commit, world, limits)
            }
            Effect::Apply { ticket, commit, plan, without, waits, running, begun } => {
                self.apply(ticket, &commit, (plan, without, running), (waits, begun))
            }
            Effect::Cordon { instance, node, mark } => Box::pin(async move {
                let may_write = || signals.may_write();
                let end = Fenced::new(cluster, &may_write).cordon(&node, mark).await;
                Event::Cordoned { instance, mark, end }
            }),
            // The one write without the lease: it is safe for any number to make, and takes nothing away.
            Effect::Shield { node } => Box::pin(async move {
                let end = cluster.cordon(&node, Some(CordonedFor::Leaving)).await;
                Event::Shielded { node: node.name, end }
            }),
            Effect::Evict { instance, pods } => Box::pin(evict(outside, instance, pods)),
            Effect::End { instance, node } => Box::pin(end(outside, instance, node)),
            Effect::DeleteNode { instance, node } => Box::pin(async move {
                let may_write = || signals.may_write();
                let end = Fenced::new(cluster, &may_write).delete_node(&node.name, &node.uid).await;
                Event::NodeDeleted { instance, end }
            }),
            Effect::Acknowledge { receipt } => Box::pin(async move {
                let end = signals.acknowledge(&receipt).await;
                Event::Acknowledged { receipt, end }
            }),
            Effect::Nominate { pod, node } => Box::pin(nominate((desk, signals), pod, node)),
            Effect::Turn { ticket, address, kept } => {
                let waits = self.turning.borrow_mut().remove(&(ticket, address));
                // The apply may have ended.
                let _ = waits.map(|waits| waits.send(kept));
                return None;
            }
            Effect::Interrupt => {
                self.interrupt();
                return None;
            }
            // The state itself says when it is due, and when it has ended.
            Effect::Wake(_) | Effect::Exit => return None,
        };
        Some(work)
    }

    fn read_head(&self) -> Begun<'a> {
        let (source, stock) = (self.outside.source, self.stock());
        Box::pin(async move { Event::Head(source.head().await.map(|read| stock.keep(read))) })
    }

    fn read_commit(&self, commit: String) -> Begun<'a> {
        let (source, stock) = (self.outside.source, self.stock());
        Box::pin(async move {
            let read = source.commit(&commit).await.and_then(|(head, planner)| {
                if head.commit == commit {
                    return Ok(stock.keep((head, planner)));
                }
                Err(NoCommit::Gone(format!("`{}` was read in its place", head.commit)))
            });
            Event::Commit { commit, read }
        })
    }

    fn stock(&self) -> Stock<S::Planner> {
        Stock { planners: Rc::clone(&self.planners), served: Rc::clone(&self.served) }
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
        limits: Limits,
    ) -> Begun<'a> {
        let clock = self.outside.clock;
        commit.clone_into(&mut self.served.borrow_mut());
        let Some(planner) = self.planner(commit) else {
            return Box::pin(std::future::ready(Event::Unplanned { ticket }));
        };
        let last = Rc::clone(&self.planned);
        Box::pin(async move {
            let began = clock.now();
            let plan = Arc::new(planner.plan(Arc::clone(&world), limits).await);
            Span::current().record("plan", plan.capacity.digest.as_str());
            last.replace(Some((Arc::clone(&plan), world)));
            Event::Planned { ticket, plan, took: clock.now().duration_since(began) }
        })
    }

    fn apply(
        &self,
        ticket: Ticket,
        commit: &str,
        (plan, without, running): (Arc<Plan>, Vec<InstanceId>, bool),
        (waits, begun): (bool, BTreeMap<Address, apply::Before>),
    ) -> Begun<'a> {
        let Outside { cloud, cluster, clock, signals, .. } = self.outside;
        let Some(planner) = self.planner(commit) else {
            let why = "the commit it was made from is no longer at hand".to_owned();
            return Box::pin(std::future::ready(Event::Applied { ticket, end: Err(why) }));
        };
        let over = self.planned.borrow().clone();
        let over = over.filter(|(of, _)| Arc::ptr_eq(of, &plan)).map(|(_, world)| world);
        let flag = Rc::new(AtomicBool::new(false));
        let mut flags = self.flags.borrow_mut();
        flags.retain(|flag| Rc::strong_count(flag) > 1);
        flags.push(Rc::clone(&flag));
        drop(flags);
        let (identity, bounds, inbox) = (self.cluster.clone(), self.bounds, Rc::clone(&self.inbox));
        let turns = Turning { ticket, inbox: Rc::clone(&inbox), waits: Rc::clone(&self.turning) };
        Box::pin(async move {
            let may_write = || signals.may_write();
            let (cloud, cluster) =
                (Fenced::new(cloud, &may_write), Fenced::new(cluster, &may_write));
            let ports = apply::Ports { cloud: &cloud, cluster: &cluster, clock };
            let again =
                Pinning { planner: &*planner, plan: Arc::clone(&plan), without, running, over };
            let settings = ApplySettings {
                cluster: identity,
                approved: None,
                replan: &again,
                catalog: Some(planner.catalog()),
                interrupted: Some(&*flag),
                bounds,
                waits: if waits { Waits::UntilReady } else { Waits::UntilLaunched },
                begun,
                turns: Some(&turns),
                alone: false,
            };
            let mut report = |event: &apply::Event| {
                let event = Event::Progress { ticket, event: event.clone() };
                inbox.borrow_mut().push_back((event, Span::current()));
            };
            let end = apply(&plan, &ports, &settings, &mut report).await;
            let end = end.map(Box::new).map_err(|error| error.to_string());
            Event::Applied { ticket, end }
        })
    }
}

async fn evict<C, K: Cluster, T, S, G: Signals, D>(
    outside: Outside<'_, C, K, T, S, G, D>,
    instance: InstanceId,
    pods: Vec<Pod>,
) -> Event {
    let may_write = || outside.signals.may_write();
    let cluster = Fenced::new(outside.cluster, &may_write);
    let mut ends: Vec<Result<EvictOutcome, PortError>> = Vec::new();
    for pod in &pods {
        ends.push(cluster.evict(pod).await);
    }
    Event::Evicted { instance, ends }
}

/// Tells a machine to end, where its node stands as it was seen.
async fn end<C: Cloud, K: Cluster, T, S, G: Signals, D>(
    outside: Outside<'_, C, K, T, S, G, D>,
    instance: InstanceId,
    node: Option<Box<Node>>,
) -> Event {
    let may_write = || outside.signals.may_write();
    let stands = match &node {
        Some(node) => in_the_way(outside.cluster, node).await,
        None => Ok(None),
    };
    let end = match stands {
        Ok(None) => {
            let cloud = Fenced::new(outside.cloud, &may_write);
            cloud.terminate(&instance).await.map(|()| Ending::Told)
        }
        Ok(Some(why)) => {
            tracing::info!(%instance, why, "a machine is not told to end");
            Ok(Ending::Held)
        }
        Err(error) => Ok(Ending::Unread(error)),
    };
    Event::Ended { instance, end }
}

async fn nominate<D: Desk, G: Signals>(
    (desk, signals): (&D, &G),
    pod: Box<Pod>,
    node: NodeName,
) -> Event {
    let may_write = || signals.may_write();
    let end = match Fenced::new(desk, &may_write).check("nominate node") {
        Ok(()) => desk.nominate(&pod, &node).await,
        Err(error) => Err(error),
    };
    Event::Nominated { pod: pod.uid.clone(), end }
}

/// Plans again before the first write, without the machines that go.
struct Pinning<'p, P> {
    planner: &'p P,
    /// The plan that is carried out.
    plan: Arc<Plan>,
    without: Vec<InstanceId>,
    /// Whether only pods count that there are.
    running: bool,
    /// The world that the plan was made over, where it was the last one.
    over: Option<Arc<Observed>>,
}

impl<P> Pinning<'_, P> {
    /// Returns whether the plan was made over what `world` shows, just now: made again it would be the same. Where it
    /// launches and removes nothing, it is enough that all that it launches is needed still: pods that wait are not to
    /// wait for another plan because some node became Ready meanwhile.
    fn is_of(&self, world: &Observed) -> bool {
        self.over.as_ref().is_some_and(|over| {
            let age = world.taken_at.duration_since(over.taken_at);
            let needed = || retired(&self.plan).next().is_none() && needs_as_before(over, world);
            age.abs() <= AGE_MAX && (shows_the_same(over, world) || needed())
        })
    }
}

impl<P> std::fmt::Debug for Pinning<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinning").field("without", &self.without).finish_non_exhaustive()
    }
}

impl<P: Planner> Replan for Pinning<'_, P> {
    fn replan<'r>(&'r self, _: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(async move {
            let mut world = Cow::Borrowed(observed);
            if !self.without.is_empty() {
                world.to_mut().take_away(&self.without.iter().cloned().collect());
            }
            if self.is_of(&world) {
                return Pinned::as_approved(Plan::clone(&self.plan));
            }
            let (plan, world) = (Arc::clone(&self.plan), Arc::new(world.into_owned()));
            self.planner.pinned(plan, world, self.running).await
        })
    }
}

#[cfg(test)]
mod tests;
