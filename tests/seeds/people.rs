//! Those who act beside the loop as its settings have it: people who approve and confirm, and CI.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use fleetwright::apply::{ApplySettings, Ports, Replan, Replanned, Verdict, apply};
use fleetwright::fleet::Observed;
use fleetwright::observe::observe;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::ResourceChange;
use fleetwright::reconcile::{Applied, Held, Limits, Planner as _, Request, Status};
use jiff::{SignedDuration, Timestamp};

use super::drawn::Drawn;
use super::files::{Files, Plans};
use super::outside::{APPLY, LEASE, Replica};
use super::random::Random;
use super::run::Run;
use super::time::Watch;

/// Between two looks of people at what waits for them, while things go wrong and afterwards.
const LOOKS: SignedDuration = SignedDuration::from_secs(20);
const LOOKS_SOON: SignedDuration = SignedDuration::from_secs(5);
/// The longest that CI has the lease.
const CI_MOST: SignedDuration = SignedDuration::from_hours(2);

/// What becomes of an apply of CI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It ends.
    Ends,
    /// It dies so long after it began, and its lease runs out.
    Dies(SignedDuration),
}

/// An apply of CI that is to begin.
struct Merge {
    files: Rc<Files>,
    at: Timestamp,
    fate: Fate,
}

/// An apply of CI that goes on.
struct Applying {
    work: Pin<Box<dyn Future<Output = ()>>>,
    dies: Option<Timestamp>,
}

/// People and CI.
pub(crate) struct People {
    drawn: Drawn,
    random: Random,
    due: Timestamp,
    /// Whether they do what waits for them at once.
    diligent: bool,
    merge: Option<Merge>,
    applying: Option<Applying>,
}

impl People {
    /// Returns those of a seed.
    #[must_use]
    pub(crate) fn new(seed: u64, drawn: Drawn) -> Self {
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
    pub(crate) fn merged(&mut self, files: &Rc<Files>, now: Timestamp) {
        if !self.drawn.ci {
            return;
        }
        let seconds = |n: u64| SignedDuration::from_secs(i64::try_from(n).unwrap_or(0));
        let fate = match self.random.below(3) {
            0 => Fate::Ends,
            1 => Fate::Dies(seconds(1 + self.random.below(120))),
            _ => return self.merge = None,
        };
        let begins = now.checked_add(seconds(10 + self.random.below(150)));
        let files = Rc::clone(files);
        self.merge = begins.ok().map(|at| Merge { files, at, fate });
    }

    /// Does what there is to do now.
    pub(crate) fn act(&mut self, run: &mut Run) {
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
            run.ask(leader, Request::Resume { by: "bob".to_owned() });
        }
        for request in asked_for(&status) {
            if self.does() {
                run.ask(leader, request);
            }
        }
    }

    /// Has CI begin what it has to, and go on with what it has begun.
    fn apply(&mut self, run: &mut Run, now: Timestamp) {
        // The loop lends its lease once nothing is under way.
        let lends = || run.leader().is_some_and(|(_, status)| status.applying.is_empty());
        if self.applying.is_none()
            && self.merge.as_ref().is_some_and(|merge| now >= merge.at)
            && lends()
            && let Some(Merge { files, fate, .. }) = self.merge.take()
        {
            run.lend(CI_MOST);
            let dies = match fate {
                Fate::Ends => None,
                Fate::Dies(after) => now.checked_add(after).ok(),
            };
            self.applying = Some(Applying { work: Box::pin(carries_out(run, files)), dies });
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
fn asked_for(status: &Status) -> Vec<Request> {
    let Some(plan) = &status.plan else { return Vec::new() };
    let by = || "alice".to_owned();
    let instance = |row: &ResourceChange| row.change.before.as_ref()?.instance_id.clone();
    let waits = |row: &ResourceChange| match &plan.held.get(&row.address)?.why {
        Held::NotApproved { digest } => Some(Request::Approve { digest: digest.clone(), by: by() }),
        Held::NotConfirmed { .. } => Some(Request::Confirm { instance: instance(row)?, by: by() }),
        Held::NotLeader
        | Held::Mode { .. }
        | Held::Suspended { .. }
        | Held::NotApplyable { .. }
        | Held::Window { .. }
        | Held::LaunchBudget { .. }
        | Held::RemovalBudget { .. }
        | Held::Settling { .. }
        | Held::Resting { .. }
        | Held::MassUnready { .. }
        | Held::Breaker { .. }
        | Held::Quarantined { .. }
        | Held::Together { .. }
        | Held::BackingOff { .. }
        | Held::Unheard { .. }
        | Held::UnderWay => None,
    };
    let mut all: Vec<Request> = plan.plan.resource_changes.iter().filter_map(waits).collect();
    all.dedup();
    all
}

/// Plans again for CI.
struct Again<'p>(&'p Plans);

impl std::fmt::Debug for Again<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Again")
    }
}

impl Replan for Again<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(self.0.pinned(Arc::new(plan.clone()), Arc::new(observed.clone()), false))
    }
}

/// Plans and applies a commit as CI does, and leaves its receipt; whatever fails leaves none.
fn carries_out(run: &Run, files: Rc<Files>) -> impl Future<Output = ()> + use<> {
    let (shared, checks) = (Rc::clone(&run.shared), Rc::clone(&run.checks));
    async move {
        let ports = Replica::new(APPLY, &shared);
        let watch = Watch { time: Rc::clone(&shared.time), offset: Cell::default() };
        let cluster = shared.world.cluster();
        let commit = files.name.clone();
        let plans = Plans { files, replica: APPLY, shared: Rc::clone(&shared) };
        // Whoever had the lease ends what it was about to write.
        shared.time.sleep(SignedDuration::from_secs(2)).await;
        let world = observe(&ports, &ports, &watch, cluster.clone()).await;
        let mut whole = None;
        if world.is_complete() {
            let plan = plans.plan(Arc::new(world), Limits::default()).await;
            if plan.capacity.waves.iter().all(|wave| wave.addresses.is_empty()) {
                whole = Some(!plan.errored);
            } else if plan.applyable {
                checks.borrow_mut().ci_carries_out(&plan);
                let again = Again(&plans);
                let settings = ApplySettings {
                    catalog: Some(plans.catalog()),
                    ..ApplySettings::of(cluster, &again)
                };
                let ports = Ports { cloud: &ports, cluster: &ports, clock: &watch };
                let end = apply(&plan, &ports, &settings, &mut |_| ()).await;
                whole = end.ok().map(|receipt| receipt.verdict == Verdict::Applied);
            }
        }
        if let Some(whole) = whole {
            let at = shared.time.now();
            shared.kept.borrow_mut().applied = Some(Applied { commit, at, whole });
        }
        shared.lease.set(None);
    }
}
