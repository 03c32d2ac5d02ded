//! Operators that approve and confirm, and CI that applies.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use fleetwright::apply::observation::observe;
use fleetwright::apply::{ApplySettings, ApplyStatus, Ports, Replan, Replanned, apply};
use fleetwright::controller::{
    AuthorizedRequest, BlockedReason, CiApply, PlanScope, PodScope, RevisionPlanner as _, Status,
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

/// Interval between two actions of the operators, under faults and afterwards.
const ACTION_INTERVAL: SignedDuration = SignedDuration::from_secs(20);
const ACTION_INTERVAL_DILIGENT: SignedDuration = SignedDuration::from_secs(5);
/// Maximum duration of a CI lease.
const CI_LEASE_MAX: SignedDuration = SignedDuration::from_hours(2);

/// The end of a CI apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApplyFate {
    Completes,
    /// It crashes this long after its start, and its lease expires.
    Crashes(SignedDuration),
}

/// A scheduled CI apply.
struct PendingMerge {
    files: Rc<SimulatedCommit>,
    at: Timestamp,
    fate: ApplyFate,
}

/// A CI apply in progress.
struct RunningApply {
    work: Pin<Box<dyn Future<Output = ()>>>,
    crashes_at: Option<Timestamp>,
}

/// Operators and CI.
pub(crate) struct Operators {
    settings: RandomSettings,
    random: Random,
    due: Timestamp,
    /// True if the operators act on each request at once.
    diligent: bool,
    merge: Option<PendingMerge>,
    applying: Option<RunningApply>,
}

impl Operators {
    /// Returns the operators of a seed.
    #[must_use]
    pub(crate) fn new(seed: u64, settings: RandomSettings) -> Self {
        let random = Random::new(seed ^ 0x9E0_91E);
        let due = Timestamp::MIN;
        Self { settings, random, due, diligent: false, merge: None, applying: None }
    }

    /// Makes the operators act on all requests from now on.
    pub(crate) fn act_on_all(&mut self) {
        self.diligent = true;
    }

    fn acts_now(&mut self) -> bool {
        self.diligent || self.random.chance(400)
    }

    /// Schedules the CI apply of a merge, which completes, crashes or never starts.
    pub(crate) fn schedule_ci_apply(&mut self, files: &Rc<SimulatedCommit>, now: Timestamp) {
        if !self.settings.ci {
            return;
        }
        let seconds = |n: u64| SignedDuration::from_secs(i64::try_from(n).unwrap_or(0));
        let fate = match self.random.below(3) {
            0 => ApplyFate::Completes,
            1 => ApplyFate::Crashes(seconds(1 + self.random.below(600))),
            _ => return self.merge = None,
        };
        let begins = now.checked_add(seconds(10 + self.random.below(150)));
        let files = Rc::clone(files);
        self.merge = begins.ok().map(|at| PendingMerge { files, at, fate });
    }

    pub(crate) fn act(&mut self, run: &mut Simulation) {
        let now = run.now();
        self.apply(run, now);
        if now < self.due {
            return;
        }
        let wait = if self.diligent { ACTION_INTERVAL_DILIGENT } else { ACTION_INTERVAL };
        self.due = now.checked_add(wait).unwrap_or(now);
        let Some((leader, status)) = run.leader() else { return };
        // A replica that is starting ignores requests.
        let suspended = status.suspended.as_ref().is_some_and(|asked| asked.until.is_none());
        if suspended && self.diligent {
            run.send_request(leader, AuthorizedRequest::Resume { by: "bob".to_owned() });
        }
        for request in unblocking_requests(&status) {
            if self.acts_now() {
                run.send_request(leader, request);
            }
        }
    }

    /// Starts a due CI apply, and ends one that crashes.
    fn apply(&mut self, run: &mut Simulation, now: Timestamp) {
        // The controller gives up its lease only without applies in progress.
        let lends = || run.leader().is_some_and(|(_, status)| status.in_progress.is_empty());
        if self.applying.is_none()
            && self.merge.as_ref().is_some_and(|merge| now >= merge.at)
            && lends()
            && let Some(PendingMerge { files, fate, .. }) = self.merge.take()
        {
            run.give_lease_to_ci(CI_LEASE_MAX);
            let crashes_at = match fate {
                ApplyFate::Completes => None,
                ApplyFate::Crashes(after) => now.checked_add(after).ok(),
            };
            self.applying = Some(RunningApply { work: Box::pin(ci_apply(run, files)), crashes_at });
        }
        if self
            .applying
            .as_ref()
            .and_then(|a| a.crashes_at)
            .is_some_and(|crashes_at| now >= crashes_at)
        {
            self.applying = None;
            run.give_lease_to_ci(LEASE);
        }
    }

    /// Polls the CI apply.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        let Some(applying) = &mut self.applying else { return };
        if let Poll::Ready(()) = applying.work.as_mut().poll(context) {
            self.applying = None;
        }
    }
}

/// Returns the requests that would unblock changes.
fn unblocking_requests(status: &Status) -> Vec<AuthorizedRequest> {
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
        | BlockedReason::PodsArriving { .. }
        | BlockedReason::PodsMissing
        | BlockedReason::MassRemoval { .. }
        | BlockedReason::UnexplainedRemoval { .. }
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

/// Plans again for the CI apply.
struct CiReplanner<'p>(&'p SimulatedPlanner);

impl std::fmt::Debug for CiReplanner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CiReplanner")
    }
}

impl Replan for CiReplanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(self.0.revalidate(
            Arc::new(plan.clone()),
            Arc::new(observed.clone()),
            PodScope::Declared,
        ))
    }
}

/// Plans and applies a commit as CI does, and writes its receipt. A failure leaves no receipt.
fn ci_apply(run: &Simulation, files: Rc<SimulatedCommit>) -> impl Future<Output = ()> + use<> {
    let (shared, checks) = (Rc::clone(&run.shared), Rc::clone(&run.checks));
    async move {
        let ports = Replica::new(APPLY, &shared);
        let watch = ReplicaClock { time: Rc::clone(&shared.time), offset: Cell::default() };
        let cluster = shared.world.cluster();
        let commit = files.name.clone();
        let plans = SimulatedPlanner { files, replica: APPLY, shared: Rc::clone(&shared) };
        // The previous holder finishes its last write.
        shared.time.sleep(SignedDuration::from_secs(2)).await;
        let world = observe(&ports, &ports, &watch, cluster.clone()).await;
        let mut whole = None;
        if world.is_complete() {
            let plan = plans.plan(Arc::new(world), PlanScope::default()).await;
            if plan.capacity.waves.iter().all(|wave| wave.addresses.is_empty()) {
                whole = Some(!plan.errored);
            } else if plan.applyable {
                checks.borrow_mut().record_ci_apply(&plan);
                let replanner = CiReplanner(&plans);
                let settings = ApplySettings {
                    catalog: Some(plans.catalog()),
                    ..ApplySettings::new(cluster, &replanner)
                };
                let ports = Ports { cloud: &ports, cluster: &ports, clock: &watch };
                let end = apply(&plan, &ports, &settings, &mut |_| ()).await;
                whole = end.ok().map(|receipt| receipt.verdict == ApplyStatus::Applied);
            }
        }
        if let Some(whole) = whole {
            let at = shared.time.now();
            shared.persisted_state.borrow_mut().ci_apply =
                Some(CiApply { commit, at, complete: whole });
        }
        shared.lease.set(None);
    }
}
