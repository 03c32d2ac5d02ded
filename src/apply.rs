//! Carries an approved plan out: launches, waits until Ready, drains, terminates.
//!
//! This module knows the wire form of a plan and the ports, and nothing of how the plan came to be.
//! It decides nothing: it does a subset of what was approved, or nothing; what of it is no longer
//! needed, and what is missing, a [`Replan`] says. Invariants: nothing is
//! written before every check has passed; each step looks first whether it is done, so that running
//! the same plan again finishes what is left and launches nothing twice; new capacity is Ready
//! before anything is drained; every wait has a bound, and every drain ends.
//!
//! What survives a run that dies is in the world itself: the tag [`tag::CHANGE`] of an instance,
//! its client token, the annotation [`CORDONED_ANNOTATION`] of a node.
//!
//! [`tag::CHANGE`]: crate::fleet::tag::CHANGE
//! [`CORDONED_ANNOTATION`]: crate::fleet::CORDONED_ANNOTATION

mod fence;
mod give_up;
mod group;
mod guard;
mod launch;
pub(crate) mod leave;
mod many;
mod receipt;
pub(crate) mod rest;
mod retire;
mod stand_in;
mod uncordon;
mod work;

pub use fence::Fenced;
pub use guard::{ApplyError, FailedCondition};
pub use receipt::{ChangeOutcome, Event, Outcome, Receipt, Step, Verdict};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::fleet::{ClusterIdentity, Observed};
use crate::ids::{Address, ChangeId, Digest, InstanceId};
use crate::observe::observe;
use crate::plan::wire::WaveStep;
use crate::plan::{Pinned, Plan};
use crate::port::{Clock, Cloud, Cluster};
use work::WaveWork;

/// The outside, as apply needs it.
#[derive(Debug)]
pub struct Ports<'a, C, K, T> {
    /// EC2.
    pub cloud: &'a C,
    /// Kubernetes.
    pub cluster: &'a K,
    /// Time.
    pub clock: &'a T,
}

/// How one plan is to be applied.
#[derive(Debug, Clone)]
pub struct ApplySettings<'a> {
    /// The cluster that the ports reach.
    pub cluster: ClusterIdentity,
    /// The digest that was approved; `None` where approval was given in another way.
    pub approved: Option<Digest>,
    /// Plans again over what is observed before the first write.
    pub replan: &'a dyn Replan,
    /// Tells the labels of stand-in offerings; without it none is taken.
    pub catalog: Option<&'a Catalog>,
    /// Set where the run is to end soon: drains are undone, nothing new begins.
    pub interrupted: Option<&'a AtomicBool>,
    /// How long each wait may take.
    pub bounds: Bounds,
    /// What a launch is waited for.
    pub waits: Waits,
    /// Changes as which launches of the plan were asked for before, for another plan that decided the same of
    /// them: they are asked for as these again, so that each is launched once.
    pub begun: BTreeMap<Address, Before>,
    /// Keeps which offering of a launch is asked for next; without it nothing is kept.
    pub turns: Option<&'a dyn Turns>,
    /// Whether nothing else is carried out: a node that stands cordoned for a drain is of one that is over then.
    pub alone: bool,
}

/// How a launch was asked for before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// The change as which.
    pub change: ChangeId,
    /// Which of its offerings was asked for last, counted from 0: those before had no capacity.
    pub turn: u32,
}

/// Keeps which offering of a launch is asked for, before it is: whoever comes after a process that died goes on
/// with that one, and not with one before it.
pub trait Turns: std::fmt::Debug {
    /// Returns once it is kept that the offering `turn` of the launch at `address` is about to be asked for;
    /// fails where it cannot be kept, and the offering is not asked for then.
    fn keep<'t>(
        &'t self,
        address: &'t Address,
        turn: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + 't>>;
}

/// What a launch is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waits {
    /// Until its node is Ready; one that takes too long is given up.
    #[default]
    UntilReady,
    /// Until it is launched: whoever asks watches over it from then on. For plans that remove nothing.
    UntilLaunched,
}

impl<'a> ApplySettings<'a> {
    /// Returns those of an apply beside which nothing else goes on, which waits for what it does, and which nobody
    /// interrupts.
    #[must_use]
    pub fn of(cluster: ClusterIdentity, replan: &'a dyn Replan) -> Self {
        Self {
            cluster,
            approved: None,
            replan,
            catalog: None,
            interrupted: None,
            bounds: Bounds::default(),
            waits: Waits::UntilReady,
            begun: BTreeMap::new(),
            turns: None,
            alone: true,
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// Plans again before anything is written: apply itself knows of no planner.
pub trait Replan: std::fmt::Debug {
    /// Returns what planning again over `observed`, pinned to `plan`, makes of it. That takes seconds where the
    /// fleet is large, so that whoever has something else to do meanwhile does it on another thread.
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r>;
}

/// A plan that is made again.
pub type Replanned<'r> = Pin<Box<dyn Future<Output = Pinned> + 'r>>;

/// How long each wait of an apply may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Between two looks at the world.
    pub poll: SignedDuration,
    /// From an instance's launch until its node is Ready; then it is given up.
    pub ready: SignedDuration,
    /// Until live replicas are down to the planned ones; then the node is left.
    pub replicas: SignedDuration,
    /// From cordoning until a node is drained; then it is uncordoned and left.
    pub drain: SignedDuration,
    /// From the last pod's end until its volumes are detached; then the instance is ended all the same,
    /// which detaches them too.
    pub detach: SignedDuration,
    /// From terminating an instance until EC2 says that it is gone.
    pub gone: SignedDuration,
    /// How often a call is made that fails for a reason that may pass.
    pub tries: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            poll: SignedDuration::from_secs(5),
            // Karpenter gives a machine as long to register.
            ready: SignedDuration::from_mins(15),
            replicas: SignedDuration::from_mins(10),
            drain: SignedDuration::from_mins(15),
            // As long as Kubernetes waits before it detaches by force.
            detach: SignedDuration::from_mins(6),
            gone: SignedDuration::from_mins(10),
            tries: 5,
        }
    }
}

/// Carries `plan` out, or refuses before the first write.
///
/// What could not be done is an outcome of its change in the receipt, not an error; then the
/// verdict is [`Verdict::Partly`], and the same plan may be applied again.
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
    let mut waves = guard::check_plan(plan, settings, started_at)?;
    for wave in &mut waves {
        wave.begun_as(&settings.begun);
    }
    let groups = work::groups(plan);
    let (outcomes, dropped) = (RefCell::default(), BTreeMap::new());
    let report = RefCell::new(report);
    let seen = None;
    let mut run = Run { plan, ports, settings, report, groups, dropped, outcomes, seen };
    let seen = run.look().await;
    run.dropped = guard::check_world(plan, &waves, settings, &seen).await?;
    // Where nothing comes in between, that is the look before the first launch, too.
    run.seen = Some(seen);
    // Planning again takes long, and holding the lock may have become uncertain meanwhile.
    run.ports.clock.breathe().await;
    run.say(None, Step::Checked { dropped: run.dropped.len() });
    run.uncordon_stale(&waves).await;
    for wave in &waves {
        let changes = wave.addresses().filter(|address| !run.dropped.contains_key(*address));
        run.say(None, Step::Wave { step: wave.step(), changes: changes.count() });
        match wave {
            WaveWork::Launch(launches) => run.launch_wave(launches).await,
            WaveWork::Retire(retires) => {
                let outgrown = run.outgrown().await;
                run.retire_wave(retires, outgrown.as_deref()).await;
            }
        }
        run.seen = None;
    }
    Ok(run.into_receipt(started_at))
}

/// Checks what can be checked without a look at the world; [`apply`] does so too.
///
/// # Errors
/// When the plan may not be applied to this cluster, now, as it is.
pub fn verify(plan: &Plan, settings: &ApplySettings<'_>, now: Timestamp) -> Result<(), ApplyError> {
    guard::check_plan(plan, settings, now).map(|_| ())
}

/// One apply, under way.
struct Run<'a, C, K, T> {
    plan: &'a Plan,
    ports: &'a Ports<'a, C, K, T>,
    settings: &'a ApplySettings<'a>,
    report: RefCell<&'a mut dyn FnMut(&Event)>,
    /// The group of rows that replace each other, by row.
    groups: BTreeMap<&'a Address, &'a str>,
    /// Changes that are no longer needed, with the reason; they are left out.
    dropped: BTreeMap<Address, String>,
    outcomes: RefCell<Vec<ChangeOutcome>>,
    /// The look that everything was checked by, until something is done.
    seen: Option<Observed>,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    async fn look(&self) -> Observed {
        let Ports { cloud, cluster, clock } = self.ports;
        observe(*cloud, *cluster, *clock, self.settings.cluster.clone()).await
    }

    /// Looks at the world; `None` where not all of it could be read: then nothing is concluded.
    async fn look_whole(&self) -> Option<Observed> {
        Some(self.look().await).filter(Observed::is_complete)
    }

    /// Plans again once something was done: what came meanwhile to a node that goes may have no other
    /// place by now, as a pod whose volume was made there. Returns what the nodes that go are needed
    /// for, or what is not known.
    async fn outgrown(&mut self) -> Option<String> {
        if self.seen.is_some() || self.settings.is_interrupted() {
            return None;
        }
        let Some(observed) = self.look_again().await else {
            return Some("the live state cannot be read".to_owned());
        };
        let replanned = self.settings.replan.replan(self.plan, &observed).await;
        let Pinned { held, frozen, .. } = replanned;
        self.ports.clock.breathe().await;
        held.or(frozen)
    }

    /// Looks at the world until all of it can be read, a bounded number of times.
    async fn look_again(&self) -> Option<Observed> {
        for _ in 1..self.settings.bounds.tries {
            if let Some(observed) = self.look_whole().await {
                return Some(observed);
            }
            self.say(None, Step::Unreadable);
            self.pause().await;
        }
        self.look_whole().await
    }

    async fn pause(&self) {
        self.ports.clock.sleep(self.settings.bounds.poll).await;
    }

    /// Returns the moment `bound` from now.
    fn deadline(&self, bound: SignedDuration) -> Timestamp {
        later(self.now(), bound)
    }

    fn say(&self, address: Option<&Address>, step: Step) {
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
        self.say(Some(address), Step::Finished { step, outcome: outcome.clone() });
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
            (false, _) => Verdict::Applied,
            (true, true) => Verdict::Interrupted,
            (true, false) => Verdict::Partly,
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
fn later(at: Timestamp, bound: SignedDuration) -> Timestamp {
    at.checked_add(bound).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
