//! Executes an approved plan: launches instances, waits for Ready, drains, terminates.
//!
//! This room knows the wire form of a plan and the ports. It never makes a plan. It executes the
//! approved changes or a subset of them; a [`Replan`] names the changes that are no longer needed.
//!
//! Invariants:
//! - Nothing is written before every check has passed.
//! - Each step is idempotent: a second run of the same plan finishes it and launches nothing twice.
//! - New capacity is Ready before any node is drained.
//! - Every wait has a timeout.
//!
//! A crashed run leaves its state in the cluster: the instance tag [`tag::CHANGE`], the client
//! token, and the node annotation [`CORDONED_ANNOTATION`].
//!
//! [`tag::CHANGE`]: crate::model::observed::tag::CHANGE
//! [`CORDONED_ANNOTATION`]: crate::model::observed::CORDONED_ANNOTATION

pub mod adoption;
mod concurrent;
mod drain;
pub(crate) mod eviction_order;
mod fallback;
mod group;
mod launch;
mod launch_timeout;
mod lease_guard;
pub mod observation;
pub mod ports;
pub(crate) mod pre_terminate_check;
mod preconditions;
mod receipt;
mod uncordon;
mod wave_work;

pub use lease_guard::LeaseGuard;
pub use preconditions::{ApplyError, FailedCondition};
pub use receipt::{ApplyStatus, ChangeOutcome, Event, Outcome, Receipt, Step};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::apply::observation::observe;
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::catalog::Catalog;
use crate::model::ids::{Address, ChangeId, Digest, InstanceId};
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::wire::WaveStep;
use crate::plan::{PinnedPlan, Plan};
use wave_work::WaveWork;

/// The ports that an apply uses.
#[derive(Debug)]
pub struct Ports<'a, C, K, T> {
    /// EC2.
    pub cloud: &'a C,
    /// Kubernetes.
    pub cluster: &'a K,
    /// Time.
    pub clock: &'a T,
}

/// Settings of one apply.
#[derive(Debug, Clone)]
pub struct ApplySettings<'a> {
    /// The cluster that the ports reach.
    pub cluster: ClusterIdentity,
    /// The digest that was approved; `None` where approval was given in another way.
    pub approved: Option<Digest>,
    /// Plans again over what is observed before the first write.
    pub replan: &'a dyn Replan,
    /// Labels of fallback offerings; without it, no fallback is launched.
    pub catalog: Option<&'a Catalog>,
    /// When set, drains are reverted and no new change starts.
    pub interrupted: Option<&'a AtomicBool>,
    /// Timeouts of each wait.
    pub bounds: Bounds,
    /// How far each launch is awaited.
    pub launch_wait: LaunchWait,
    /// Change ids of launches that an earlier, equal plan already requested. Reusing the ids keeps
    /// the client tokens, so that each instance is launched once.
    pub earlier_launches: BTreeMap<Address, EarlierLaunch>,
    /// Persists the offering that is requested next; without it, nothing is persisted.
    pub offering_attempts: Option<&'a dyn OfferingAttempts>,
    /// Whether no other apply is running. Then a node cordoned for a drain belongs to a drain that
    /// has ended.
    pub is_exclusive: bool,
}

/// A launch that was requested before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierLaunch {
    /// Change id of that request.
    pub change: ChangeId,
    /// Index of the offering that was requested last; earlier ones had no capacity.
    pub offering_index: u32,
}

/// Persists the offering index of a launch before the call. After a crash, the next process
/// continues with that offering.
pub trait OfferingAttempts: std::fmt::Debug {
    /// Persists that offering `turn` of the launch at `address` is requested next. On failure, the
    /// offering is not requested.
    fn record<'t>(
        &'t self,
        address: &'t Address,
        offering_index: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + 't>>;
}

/// How far a launch is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchWait {
    /// Until its node is Ready, within a timeout.
    #[default]
    UntilReady,
    /// Until EC2 has launched it; the caller tracks it afterwards. Only for plans without removals.
    UntilLaunched,
}

impl<'a> ApplySettings<'a> {
    /// Returns the settings of an exclusive apply that waits for Ready and is never interrupted.
    #[must_use]
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
            is_exclusive: true,
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// Plans again before the first write; apply itself has no planner.
pub trait Replan: std::fmt::Debug {
    /// Plans again over `observed`, pinned to `plan`. With a large fleet this takes seconds, so an
    /// implementation may use another thread.
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r>;
}

/// The future of a pinned plan.
pub type Replanned<'r> = Pin<Box<dyn Future<Output = PinnedPlan> + 'r>>;

/// Timeouts of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Interval between two observations.
    pub poll: SignedDuration,
    /// From launch until the node is Ready; then the instance is terminated.
    pub ready: SignedDuration,
    /// Until live replicas are down to the planned number; then the node is kept.
    pub replicas: SignedDuration,
    /// From cordoning until a node is drained; then it is uncordoned and kept.
    pub drain: SignedDuration,
    /// From the last pod's end until its volumes are detached; then the instance is terminated
    /// anyway, which detaches them.
    pub detach: SignedDuration,
    /// From terminating an instance until EC2 reports it as terminated.
    pub gone: SignedDuration,
    /// Attempts of a call that fails with a transient error.
    pub tries: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            poll: SignedDuration::from_secs(5),
            // Karpenter's registration timeout.
            ready: SignedDuration::from_mins(15),
            replicas: SignedDuration::from_mins(10),
            drain: SignedDuration::from_mins(15),
            // Kubernetes force-detaches after the same time.
            detach: SignedDuration::from_mins(6),
            gone: SignedDuration::from_mins(10),
            tries: 5,
        }
    }
}

/// Executes `plan`, or refuses it before the first write.
///
/// A change that failed is an outcome in the receipt, not an error. Then the status is [`ApplyStatus::Partly`], and the same plan may be applied again.
///
/// # Errors
/// When the plan may not be applied to this cluster, now, as it is; nothing was written then.
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
    let groups = wave_work::groups(plan);
    let (outcomes, dropped) = (RefCell::default(), BTreeMap::new());
    let report = RefCell::new(report);
    let seen = None;
    let mut run = Run { plan, ports, settings, report, groups, dropped, outcomes, seen };
    let seen = run.observe().await;
    run.dropped = preconditions::check_world(plan, &waves, settings, &seen).await?;
    // Without a write in between, the launch wave reuses this observation.
    run.seen = Some(seen);
    // Planning again takes long; the lease may have expired meanwhile.
    run.ports.clock.yield_now().await;
    run.emit(None, Step::Checked { dropped: run.dropped.len() });
    run.uncordon_stale(&waves).await;
    for wave in &waves {
        let changes = wave.addresses().filter(|address| !run.dropped.contains_key(*address));
        run.emit(None, Step::Wave { step: wave.step(), changes: changes.count() });
        match wave {
            WaveWork::Launch(launches) => run.launch_wave(launches).await,
            WaveWork::Retire(retires) => {
                let outgrown = run.removal_blocker().await;
                run.retire_wave(retires, outgrown.as_deref()).await;
            }
        }
        run.seen = None;
    }
    Ok(run.into_receipt(started_at))
}

/// Runs the checks that need no observation; [`apply`] runs them too.
///
/// # Errors
/// When the plan may not be applied to this cluster, now, as it is.
pub fn verify(plan: &Plan, settings: &ApplySettings<'_>, now: Timestamp) -> Result<(), ApplyError> {
    preconditions::check_plan(plan, settings, now).map(|_| ())
}

/// One apply in progress.
struct Run<'a, C, K, T> {
    plan: &'a Plan,
    ports: &'a Ports<'a, C, K, T>,
    settings: &'a ApplySettings<'a>,
    report: RefCell<&'a mut dyn FnMut(&Event)>,
    /// Replacement group of each row.
    groups: BTreeMap<&'a Address, &'a str>,
    /// Changes that are no longer needed, with the reason; they are skipped.
    dropped: BTreeMap<Address, String>,
    outcomes: RefCell<Vec<ChangeOutcome>>,
    /// The checked observation, until the first write.
    seen: Option<Observed>,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    async fn observe(&self) -> Observed {
        let Ports { cloud, cluster, clock } = self.ports;
        observe(*cloud, *cluster, *clock, self.settings.cluster.clone()).await
    }

    /// Observes the cluster; `None` when any source could not be read in full.
    async fn observe_complete(&self) -> Option<Observed> {
        Some(self.observe().await).filter(Observed::is_complete)
    }

    /// Plans again after the first write: a pod that arrived on a node to be removed may fit
    /// nowhere else. Returns why the nodes must stay, if they must.
    async fn removal_blocker(&mut self) -> Option<String> {
        if self.seen.is_some() || self.settings.is_interrupted() {
            return None;
        }
        let Some(observed) = self.observe_with_retries().await else {
            return Some("the live state cannot be read".to_owned());
        };
        let replanned = self.settings.replan.replan(self.plan, &observed).await;
        let PinnedPlan { blocked_removal: held, frozen, .. } = replanned;
        self.ports.clock.yield_now().await;
        held.or(frozen)
    }

    /// Observes the cluster with a bounded number of retries.
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

    /// Returns the moment `bound` from now.
    fn deadline(&self, bound: SignedDuration) -> Timestamp {
        deadline_after(self.now(), bound)
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
        self.emit(Some(address), Step::Finished { step, outcome: outcome.clone() });
        let instance_id = instance_id.cloned();
        let address = address.clone();
        let outcome = ChangeOutcome { address, step, instance_id, outcome };
        self.outcomes.borrow_mut().push(outcome);
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

/// Returns the moment `bound` after `at`, or the last one there is.
fn deadline_after(at: Timestamp, bound: SignedDuration) -> Timestamp {
    at.checked_add(bound).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
