//! Operators who approve and confirm, and CI that applies.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use fleetwright::apply::observation::observe;
use fleetwright::apply::{ApplySettings, ApplyStatus, Ports, Replan, Replanned, apply};
use fleetwright::controller::{
    AuthorizedRequest, BlockedReason, CiApply, PlanScope, RevisionPlanner as _, Status,
};
use fleetwright::model::observed::Observed;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::ResourceChange;
use jiff::{SignedDuration, Timestamp};

use super::environment::{APPLY, LEASE, Replica};
use super::harness::Simulation;
use super::random::Random;
use super::random_settings::RandomSettings;
use super::repository::{SimulatedCommit, SimulatedPlanner};
use super::virtual_time::ReplicaClock;

/// Between two looks of people at what waits for them, while things go wrong and afterwards.
const LOOKS: SignedDuration = SignedDuration::from_secs(20);
const LOOKS_SOON: SignedDuration = SignedDuration::from_secs(5);
/// The longest that CI has the lease.
const CI_MOST: SignedDuration = SignedDuration::from_hours(2);

/// What becomes of an apply of CI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApplyFate {
    /// It ends.
    Ends,
    /// It dies so long after it began, and its lease runs out.
    Dies(SignedDuration),
}

/// An apply of CI that is to begin.
struct PendingMerge {
    files: Rc<SimulatedCommit>,
    at: Timestamp,
    fate: ApplyFate,
}

/// An apply of CI that goes on.
struct RunningApply {
    work: Pin<Box<dyn Future<Output = ()>>>,
    dies: Option<Timestamp>,
}

/// People and CI.
pub(crate) struct Operators {
    drawn: RandomSettings,
    random: Random,
    due: Timestamp,
    /// Whether they do what waits for them at once.
    diligent: bool,
    merge: Option<PendingMerge>,
    applying: Option<RunningApply>,
}

impl Operators {
    /// Returns those of a seed.
    #[must_use]
    pub(crate) fn new(seed: u64, drawn: RandomSettings) -> Self {
        let random = Random::new(seed ^ 0x9E0_91E);
        let due = Timestamp::MIN;
        Self { drawn, random, due, diligent: false, merge: None, applying: None }
    }

    /// Has them do from now on what waits for them.
    pub(crate) fn hurry(&mut self) {
        self.diligent = true;
    }

    fn does(&mut self) -> bool {
        self.diligent || self.random.chance(400)
    }

    /// Hears of a merge: CI carries it out, dies over it, or never comes.
    pub(crate) fn merged(&mut self, files: &Rc<SimulatedCommit>, now: Timestamp) {
        if !self.drawn.ci {
            return;
        }
        let seconds = |n: u64| SignedDuration::from_secs(i64::try_from(n).unwrap_or(0));
        let fate = match self.random.below(3) {
            0 => ApplyFate::Ends,
            1 => ApplyFate::Dies(seconds(1 + self.random.below(120))),
            _ => return self.merge = None,
        };
        let begins = now.checked_add(seconds(10 + self.random.below(150)));
        let files = Rc::clone(files);
        self.merge = begins.ok().map(|at| PendingMerge { files, at, fate });
    }

    /// Does what there is to do now.
    pub(crate) fn act(&mut self, run: &mut Simulation) {
        let now = run.now();
        self.apply(run, now);
        if now < self.due {
            return;
        }
        let wait = if self.diligent { LOOKS_SOON } else { LOOKS };
        self.due = now.checked_add(wait).unwrap_or(now);
        let Some((leader, status)) = run.leader() else { return };
        // Who is asked while a replica begins is not heard.
        let suspended = status.suspended.as_ref().is_some_and(|asked| asked.until.is_none());
        if suspended && self.diligent {
            run.ask(leader, AuthorizedRequest::Resume { by: "bob".to_owned() });
        }
        for request in asked_for(&status) {
            if self.does() {
                run.ask(leader, request);
            }
        }
    }

    /// Has CI begin what it has to, and go on with what it has begun.
    fn apply(&mut self, run: &mut Simulation, now: Timestamp) {
        // The loop lends its lease once nothing is under way.
        let lends = || run.leader().is_some_and(|(_, status)| status.in_progress.is_empty());
        if self.applying.is_none()
            && self.merge.as_ref().is_some_and(|merge| now >= merge.at)
            && lends()
            && let Some(PendingMerge { files, fate, .. }) = self.merge.take()
        {
            run.lend(CI_MOST);
            let dies = match fate {
                ApplyFate::Ends => None,
                ApplyFate::Dies(after) => now.checked_add(after).ok(),
            };
            self.applying = Some(RunningApply { work: Box::pin(carries_out(run, files)), dies });
        }
        if self.applying.as_ref().and_then(|a| a.dies).is_some_and(|dies| now >= dies) {
            self.applying = None;
            run.lend(LEASE);
        }
    }

    /// Lets CI go on.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        let Some(applying) = &mut self.applying else { return };
        if let Poll::Ready(()) = applying.work.as_mut().poll(context) {
            self.applying = None;
        }
    }
}

/// Returns what would have changes be carried out that wait for somebody.
fn asked_for(status: &Status) -> Vec<AuthorizedRequest> {
    let Some(plan) = &status.plan else { return Vec::new() };
    let by = || "alice".to_owned();
    let instance = |row: &ResourceChange| row.change.before.as_ref()?.instance_id.clone();
    let waits = |row: &ResourceChange| match &plan.blocked.get(&row.address)?.reason {
        BlockedReason::NotApproved { digest } => {
            Some(AuthorizedRequest::Approve { digest: digest.clone(), by: by() })
        }
        BlockedReason::NotConfirmed { .. } => {
            Some(AuthorizedRequest::Confirm { instance: instance(row)?, by: by() })
        }
        BlockedReason::NotLeader
        | BlockedReason::Mode { .. }
        | BlockedReason::Suspended { .. }
        | BlockedReason::NotApplyable { .. }
        | BlockedReason::OutsideWindow { .. }
        | BlockedReason::LaunchBudget { .. }
        | BlockedReason::RemovalBudget { .. }
        | BlockedReason::Settling { .. }
        | BlockedReason::ConsolidateAfter { .. }
        | BlockedReason::MassUnready { .. }
        | BlockedReason::Breaker { .. }
        | BlockedReason::Quarantined { .. }
        | BlockedReason::GroupBlocked { .. }
        | BlockedReason::BackingOff { .. }
        | BlockedReason::LaunchInDoubt { .. }
        | BlockedReason::InProgress => None,
    };
    let mut all: Vec<AuthorizedRequest> =
        plan.plan.resource_changes.iter().filter_map(waits).collect();
    all.dedup();
    all
}

/// Plans again for CI.
struct CiReplanner<'p>(&'p SimulatedPlanner);

impl std::fmt::Debug for CiReplanner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Again")
    }
}

impl Replan for CiReplanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(self.0.replan_pinned(Arc::new(plan.clone()), Arc::new(observed.clone()), false))
    }
}

/// Plans and applies a commit as CI does, and leaves its receipt; whatever fails leaves none.
fn carries_out(run: &Simulation, files: Rc<SimulatedCommit>) -> impl Future<Output = ()> + use<> {
    let (shared, checks) = (Rc::clone(&run.shared), Rc::clone(&run.checks));
    async move {
        let ports = Replica::new(APPLY, &shared);
        let watch = ReplicaClock { time: Rc::clone(&shared.time), offset: Cell::default() };
        let cluster = shared.world.cluster();
        let commit = files.name.clone();
        let plans = SimulatedPlanner { files, replica: APPLY, shared: Rc::clone(&shared) };
        // Whoever had the lease ends what it was about to write.
        shared.time.sleep(SignedDuration::from_secs(2)).await;
        let world = observe(&ports, &ports, &watch, cluster.clone()).await;
        let mut whole = None;
        if world.is_complete() {
            let plan = plans.plan(Arc::new(world), PlanScope::default()).await;
            if plan.capacity.waves.iter().all(|wave| wave.addresses.is_empty()) {
                whole = Some(!plan.errored);
            } else if plan.applyable {
                checks.borrow_mut().ci_carries_out(&plan);
                let again = CiReplanner(&plans);
                let settings = ApplySettings {
                    catalog: Some(plans.catalog()),
                    ..ApplySettings::new(cluster, &again)
                };
                let ports = Ports { cloud: &ports, cluster: &ports, clock: &watch };
                let end = apply(&plan, &ports, &settings, &mut |_| ()).await;
                whole = end.ok().map(|receipt| receipt.verdict == ApplyStatus::Applied);
            }
        }
        if let Some(whole) = whole {
            let at = shared.time.now();
            shared.kept.borrow_mut().ci_apply = Some(CiApply { commit, at, complete: whole });
        }
        shared.lease.set(None);
    }
}
