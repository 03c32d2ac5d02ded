//! Executes an approved plan: launches instances, waits for Ready, drains nodes and terminates
//! instances.
//!
//! This module depends on the wire form of a plan and on the ports. It has no planner. It executes
//! the approved changes or a subset of them; a [`Replan`] names the changes that are no longer
//! needed.
//!
//! Invariants:
//! - All checks pass before the first write.
//! - Each step is idempotent: a second run of a plan finishes it and repeats no launch.
//! - New capacity is Ready before any node is drained.
//! - Every wait has a timeout.
//!
//! A crashed run leaves its state in the cluster: the instance tag [`tag::CHANGE`], the client
//! token, and the node annotation [`CORDONED_ANNOTATION`].
//!
//! [`tag::CHANGE`]: crate::model::observed::tag::CHANGE
//! [`CORDONED_ANNOTATION`]: crate::model::observed::CORDONED_ANNOTATION

#[cfg(doc)]
#[doc = include_str!("adr/0021-spot-launches.md")]
pub mod adr_0021 {}

pub mod adoption;
mod auto_scaling_group;
mod batch_check;
mod closed_batch;
pub(crate) mod concurrent;
mod drain;
pub(crate) mod eviction_order;
mod fallback;
mod launch;
mod launch_timeout;
mod lease_guard;
mod nomination;
pub mod observation;
mod opening;
mod opening_annotations;
pub mod ports;
pub(crate) mod pre_terminate_check;
mod preconditions;
mod receipt;
mod replacement_batches;
mod retirement_state;
mod revert_launches;
mod termination_grace;
mod uncordon;
mod wave_plan;

pub(crate) use closed_batch::{BatchPods, WaitingNode, batch_pools};
pub use fallback::requested_offering;
pub use lease_guard::LeaseGuard;
pub(crate) use nomination::{
    AcceptedNominations, EARLY_NOMINATIONS_MAX, PlannedNodes, is_pending, nominate,
    nominate_and_open, sort_by_queue_order, waits_for_node,
};
pub use nomination::{NominationAnswer, OpenedBatch, PodNomination};
pub use opening_annotations::OpeningAnnotations;
pub(crate) use opening_annotations::{is_unannotated, opening_annotations};
pub use preconditions::{ApplyError, FailedCondition};
pub use receipt::{ApplyStatus, ChangeOutcome, Event, LaunchedOffering, Outcome, Receipt, Step};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::apply::observation::observe;
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::catalog::Catalog;
use crate::model::ids::{Address, ChangeId, Digest, InstanceId};
use crate::model::observed::{ClusterIdentity, Observed};
use crate::model::saturating_time::later;
use crate::plan::wire::WaveStep;
use crate::plan::{Plan, RevalidatedPlan};
use preconditions::Exceptions;
use wave_plan::WaveWork;

/// Time after which an apply begins no further batch. Credentials of CI jobs last one hour.
const BATCHES_BEGIN_WITHIN: SignedDuration = SignedDuration::from_mins(40);

const LATE_BATCH: &str = "earlier batches took 40 minutes; plan once more for the rest";

/// Ports that an apply uses.
#[derive(Debug)]
pub struct Ports<'a, C, K, T> {
    /// Port to EC2.
    pub cloud: &'a C,
    /// Port to Kubernetes.
    pub cluster: &'a K,
    /// Time source.
    pub clock: &'a T,
}

/// Settings of one apply.
#[derive(Debug, Clone)]
pub struct ApplySettings<'a> {
    /// Cluster that the ports reach.
    pub cluster: ClusterIdentity,
    /// Approved digest; `None` if the plan was approved in another way.
    pub approved: Option<Digest>,
    /// Planner that runs again during an apply: before the first write, and before removals that
    /// follow a write.
    pub replan: &'a dyn Replan,
    /// Catalog with the labels of fallback offerings. Without it, no fallback is launched.
    pub catalog: Option<&'a Catalog>,
    /// Flag that interrupts the apply: drains are reverted, and no new change starts.
    pub interrupted: Option<&'a AtomicBool>,
    /// Timeout of each wait.
    pub bounds: Bounds,
    /// State up to which each launch is awaited.
    pub launch_wait: LaunchWait,
    /// Change IDs of launches that an earlier, equal plan requested. Reusing them keeps the client
    /// tokens, so that each instance is launched once.
    pub earlier_launches: BTreeMap<Address, EarlierLaunch>,
    /// Store for the next requested offering. Without it, nothing is persisted.
    pub offering_attempts: Option<&'a dyn OfferingAttempts>,
    /// Instances that are removed only while their nodes run no pods but their own. No pod is
    /// evicted from these nodes.
    pub only_if_empty: BTreeSet<InstanceId>,
    /// Component that opens the launched nodes.
    pub opened_by: OpenedBy,
    /// True if no other apply is running. A node with a drain cordon then belongs to a drain that
    /// has ended.
    pub is_exclusive: bool,
}

/// A launch that an earlier plan requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierLaunch {
    /// Change ID of that request.
    pub change: ChangeId,
    /// Index of the last request. The offerings of the requests before it had no capacity.
    pub attempt_index: u32,
}

/// Persists the request index of a launch before the call. After a crash, the next process
/// continues with that request.
pub trait OfferingAttempts: std::fmt::Debug {
    /// Persists that the launch at `address` makes request `attempt_index` next. If it fails, the
    /// request is not made.
    fn record<'t>(
        &'t self,
        address: &'t Address,
        attempt_index: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + 't>>;
}

/// State up to which a launch is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchWait {
    /// The node is Ready, within a timeout.
    #[default]
    UntilReady,
    /// EC2 has launched the instance. The caller tracks it afterwards. For plans without removals.
    UntilLaunched,
}

/// Component that opens the launched nodes. Until then, a taint keeps pods away from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenedBy {
    /// The apply, which nominates the pods of a steered plan first. It also opens nodes that an
    /// earlier apply left closed.
    #[default]
    Apply,
    /// The apply, in a cluster that refuses nominations.
    ApplyWithoutNominations,
    /// The controller, which nominates the pods of the nodes first.
    Controller,
}

impl<'a> ApplySettings<'a> {
    /// Returns settings of an exclusive apply that waits for Ready and is never interrupted.
    pub fn new(cluster: ClusterIdentity, replan: &'a dyn Replan) -> Self {
        Self {
            cluster,
            approved: None,
            replan,
            catalog: None,
            interrupted: None,
            bounds: Bounds::default(),
            launch_wait: LaunchWait::UntilReady,
            earlier_launches: BTreeMap::new(),
            offering_attempts: None,
            only_if_empty: BTreeSet::new(),
            opened_by: OpenedBy::Apply,
            is_exclusive: true,
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// Planner that runs again during an apply: before the first write, and before removals that follow
/// a write.
pub trait Replan: std::fmt::Debug {
    /// Plans for `observed`, and compares the approved `plan` with the result. A large fleet takes
    /// seconds, so an implementation yields before it plans, or uses another thread.
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r>;

    /// Returns why the removals of the apply are called off, if they are. Its launched instances are
    /// Ready in the observation. Their nodes are closed, and no removal has begun.
    fn call_off<'r>(
        &'r self,
        _launched: &'r BTreeSet<InstanceId>,
        _observed: &'r Observed,
    ) -> CalledOff<'r> {
        Box::pin(std::future::ready(None))
    }
}

/// Future of a revalidated plan.
pub type Replanned<'r> = Pin<Box<dyn Future<Output = RevalidatedPlan> + 'r>>;

/// Future of the reason why removals are called off, if they are.
pub type CalledOff<'r> = Pin<Box<dyn Future<Output = Option<String>> + 'r>>;

/// Timeouts and retry limits of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Interval between two observations.
    pub poll: SignedDuration,
    /// Time from the launch until the node is Ready. On timeout, the instance is terminated.
    pub ready: SignedDuration,
    /// Time until live replicas are down to the planned number. On timeout, the node is kept.
    pub replicas: SignedDuration,
    /// Time from the cordon until the node is drained. On timeout, it is uncordoned and kept.
    pub drain: SignedDuration,
    /// Time from the end of the last pod until its volumes are detached. On timeout, the instance
    /// is terminated, which detaches them.
    pub detach: SignedDuration,
    /// Time from the termination call until EC2 reports the instance as terminated.
    pub gone: SignedDuration,
    /// Maximum number of attempts of a call with transient errors.
    pub tries: u32,
}

impl Bounds {
    /// Bounds of applies to real clusters, which the controller shares.
    pub const DEFAULT: Self = Self {
        poll: SignedDuration::from_secs(5),
        // Karpenter's registration timeout.
        ready: SignedDuration::from_mins(15),
        replicas: SignedDuration::from_mins(10),
        drain: SignedDuration::from_mins(15),
        // Kubernetes force-detaches volumes after the same time.
        detach: SignedDuration::from_mins(6),
        gone: SignedDuration::from_mins(10),
        tries: 5,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Executes `plan`, or rejects it before the first write.
///
/// A failed change is an outcome in the receipt and not an error. The status is then
/// [`ApplyStatus::Partly`], and the same plan may be applied again.
///
/// # Errors
/// If the plan must not be applied to this cluster now. Nothing was written then.
pub async fn apply<C: Cloud, K: Cluster, T: Clock>(
    plan: &Plan,
    ports: &Ports<'_, C, K, T>,
    settings: &ApplySettings<'_>,
    report: &mut dyn FnMut(&Event),
) -> Result<Receipt, ApplyError> {
    let started_at = ports.clock.now();
    let mut waves = preconditions::check_plan(plan, settings, started_at)?;
    for wave in &mut waves {
        wave.reuse_change_ids(&settings.earlier_launches);
    }
    let groups = wave_plan::groups(plan);
    let (outcomes, exceptions) = (RefCell::default(), Exceptions::default());
    let report = RefCell::new(report);
    let (observation, joins_batches, called_off) = (None, true, None);
    let mut run = Run {
        plan,
        ports,
        settings,
        report,
        groups,
        exceptions,
        outcomes,
        observation,
        joins_batches,
        called_off,
    };
    let observation = run.observe().await;
    run.exceptions = preconditions::check_observation(plan, &waves, settings, &observation).await?;
    // Reuse this observation in the launch wave if nothing is written in between.
    run.observation = Some(observation);
    // Let the lease renewal run: the lease may have expired while the planner ran.
    run.ports.clock.yield_now().await;
    run.emit(None, Step::Checked { dropped: run.exceptions.dropped.len() });
    run.open_left_closed(&waves).await;
    run.uncordon_stale(&waves).await;
    // The controller plans beside its applies, and counts on all launches from the start.
    if settings.opened_by != OpenedBy::Controller {
        waves = replacement_batches::in_batches(plan, waves);
    }
    run.carry_out(waves).await;
    Ok(run.into_receipt(started_at))
}

/// Runs the checks that need no observation. [`apply`] runs them too.
///
/// # Errors
/// If the plan must not be applied to this cluster now.
pub fn check_plan(
    plan: &Plan,
    settings: &ApplySettings<'_>,
    now: Timestamp,
) -> Result<(), ApplyError> {
    preconditions::check_plan(plan, settings, now).map(|_| ())
}

/// An apply in progress.
struct Run<'a, C, K, T> {
    plan: &'a Plan,
    ports: &'a Ports<'a, C, K, T>,
    settings: &'a ApplySettings<'a>,
    report: RefCell<&'a mut dyn FnMut(&Event)>,
    /// Replacement group of each row.
    groups: BTreeMap<&'a Address, &'a str>,
    exceptions: Exceptions,
    outcomes: RefCell<Vec<ChangeOutcome>>,
    /// Observation that passed the checks; `None` after the first write.
    observation: Option<Observed>,
    /// True until a batch is blocked.
    joins_batches: bool,
    /// Reason why the removals are called off.
    called_off: Option<String>,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Carries out the waves in order. A wave of removals ends a batch.
    async fn carry_out(&mut self, mut waves: Vec<WaveWork<'_>>) {
        let has_batches = waves.iter().filter(|wave| wave.step() == WaveStep::Retire).count() > 1;
        let last_begin = self.deadline(BATCHES_BEGIN_WITHIN);
        let (mut begin, mut index, mut blocker) = (0, 0, None);
        while index < waves.len() {
            if has_batches && index == begin {
                blocker = if self.now() > last_begin {
                    Some(LATE_BATCH.to_owned())
                } else {
                    self.batch_blocker(&mut waves, index).await
                };
            }
            let wave = &waves[index];
            let dropped = &self.exceptions.dropped;
            let changes = wave.addresses().filter(|address| !dropped.contains_key(*address));
            self.emit(None, Step::Wave { step: wave.step(), changes: changes.count() });
            match wave {
                WaveWork::Launch(launches) => {
                    self.launch_wave(launches, blocker.as_deref()).await;
                }
                WaveWork::Retire(retires) => {
                    if blocker.is_none() {
                        blocker = self.removal_blocker(&waves[..=index]).await;
                    }
                    self.retire_wave(retires, blocker.as_deref()).await;
                    self.revert_launches(&waves, begin..=index).await;
                    (begin, blocker) = (index + 1, None);
                }
            }
            self.observation = None;
            index += 1;
        }
    }

    fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    async fn observe(&self) -> Observed {
        let Ports { cloud, cluster, clock } = self.ports;
        observe(*cloud, *cluster, *clock, self.settings.cluster.clone()).await
    }

    /// Observes the cluster; returns `None` if a source could not be read in full.
    async fn observe_complete(&self) -> Option<Observed> {
        Some(self.observe().await).filter(Observed::is_complete)
    }

    /// Observes the cluster with a limited number of retries.
    async fn observe_with_retries(&self) -> Option<Observed> {
        for _ in 1..self.settings.bounds.tries {
            if let Some(observed) = self.observe_complete().await {
                return Some(observed);
            }
            self.emit(None, Step::Unreadable);
            self.pause().await;
        }
        self.observe_complete().await
    }

    async fn pause(&self) {
        self.ports.clock.sleep(self.settings.bounds.poll).await;
    }

    /// Returns the time after `bound`.
    fn deadline(&self, bound: SignedDuration) -> Timestamp {
        later(self.now(), bound)
    }

    fn emit(&self, address: Option<&Address>, step: Step) {
        let event = Event { at: self.now(), address: address.cloned(), step };
        (self.report.borrow_mut())(&event);
    }

    fn finish(
        &self,
        address: &Address,
        step: WaveStep,
        instance_id: Option<&InstanceId>,
        outcome: Outcome,
    ) {
        let instance_id = instance_id.cloned();
        let address = address.clone();
        self.record_outcome(ChangeOutcome { address, step, instance_id, launched: None, outcome });
    }

    fn record_outcome(&self, ended: ChangeOutcome) {
        let ChangeOutcome { address, step, outcome, .. } = &ended;
        self.emit(Some(address), Step::Finished { step: *step, outcome: outcome.clone() });
        self.outcomes.borrow_mut().push(ended);
    }

    fn into_receipt(self, started_at: Timestamp) -> Receipt {
        let finished_at = self.now();
        let mut outcomes = self.outcomes.into_inner();
        outcomes.sort_by(|a, b| (&a.address, a.step).cmp(&(&b.address, b.step)));
        let unfinished = outcomes.iter().any(|change| !change.outcome.is_settled());
        let verdict = match (unfinished, self.settings.is_interrupted()) {
            (false, _) => ApplyStatus::Applied,
            (true, true) => ApplyStatus::Interrupted,
            (true, false) => ApplyStatus::Partly,
        };
        Receipt {
            plan_id: self.plan.capacity.plan_id.clone(),
            digest: self.plan.capacity.digest.clone(),
            outcomes,
            started_at,
            finished_at,
            verdict,
        }
    }
}

#[cfg(test)]
mod tests;
