//! What the loop knows, and what each event makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::asked;
use super::away::{Away, Outlook, Turn};
use super::costs::Costs;
use super::current::{Aside, Current};
use super::event::{Effect, Event, Head, Limits, Signal, Ticket};
use super::face;
use super::failing::Failing;
use super::health::Health;
use super::kept::{Kept, doubled, later};
use super::mail::Mail;
use super::quiet::Quiet;
use super::rival::Rivals;
use super::status::{KeptNow, Past, SourceState, WorldNow};
use super::steer::Steering;
use super::timing::Timing;
use super::uncordon::Uncordons;
use super::view::Unseen;
use crate::fleet::{ClusterIdentity, Observed, Part};
use crate::ids::{Address, InstanceId, PoolName};
use crate::manifest::Mode;
use crate::plan::Plan;
use crate::port::PortError;

/// Between two looks at the world while something is under way.
pub(super) const BUSY_REFRESH: SignedDuration = SignedDuration::from_secs(5);
/// Least time between two looks at the world, or two reads of the repository, because of hints.
const HINTED: SignedDuration = SignedDuration::from_secs(2);
/// The first wait after a failure, and the longest.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(2);
const RETRY_MOST: SignedDuration = SignedDuration::from_mins(5);

/// Who the loop is, and what it was started with.
#[derive(Debug, Clone)]
pub struct Start {
    /// When.
    pub at: Timestamp,
    /// Who it is, as the lease names it.
    pub identity: String,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// What it may do, where the caller says so; else the repository does.
    pub mode: Option<Mode>,
    /// Whether it ends once nothing is left to do.
    pub once: bool,
}

/// Which of the plans over one world it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// One that only adds, made before that of everything because pods have come that wait.
    Ahead,
    /// That of everything, from which what is held back was left out so many times.
    Round(u32),
}

/// A plan that is being made.
#[derive(Debug, Clone)]
pub(super) struct Planning {
    pub(super) ticket: Ticket,
    pub(super) world: Arc<Observed>,
    pub(super) limits: Limits,
    /// Whether it is limited by nothing but what may be done at all.
    pub(super) whole: bool,
    pub(super) pass: Pass,
    pub(super) going: BTreeSet<InstanceId>,
    /// Which of all states of the machines that go this was, and how many had been told to end.
    pub(super) going_no: u64,
    pub(super) ended_no: u64,
    /// What has to be read anew before a plan made meanwhile counts.
    pub(super) need: u64,
}

/// A plan that is being carried out.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) plan: Arc<Plan>,
    pub(super) addresses: BTreeSet<Address>,
    pub(super) past: Past,
    pub(super) removes: bool,
    /// Whether launches may still be asked for: what they are is not known before.
    pub(super) launching: bool,
    /// Machines that it removes, and those of them that were told to end.
    pub(super) goes: BTreeSet<InstanceId>,
    pub(super) ended: BTreeSet<InstanceId>,
    /// Launches of which EC2 may have heard, while nobody has heard of its answer.
    pub(super) unheard: BTreeSet<Address>,
    /// Launches that wait until it is kept which offering they ask for next.
    pub(super) turning: BTreeMap<Address, u32>,
    /// By what it is begun once its launches and removals are kept.
    pub(super) begins: Option<Box<Effect>>,
}

impl Lane {
    /// Returns whether it removes a machine.
    pub(super) fn removes_machine(&self, instance: &InstanceId) -> bool {
        self.goes.contains(instance)
    }
}

/// What the loop knows.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is about one thing of its own")]
pub struct State {
    pub(super) start: Start,
    pub(super) now: Timestamp,
    pub(super) leader: bool,
    pub(super) led_by: Option<String>,
    /// Whether the lease is that of an apply, which takes no messages.
    pub(super) lent: bool,
    pub(super) stopping: bool,
    pub(super) exited: bool,

    pub(super) head: Option<Arc<Head>>,
    /// A commit that was served before and is needed, and cannot be had from the branch; and why the
    /// last read of it failed.
    pub(super) former: Option<(String, Option<String>)>,
    pub(super) former_due: Retry,
    pub(super) reading_former: bool,
    /// A newer commit, for which CI has until that moment.
    pub(super) newer: Option<(Arc<Head>, Timestamp)>,
    pub(super) git: SourceState,
    pub(super) git_due: Timestamp,
    /// Whether it changed again while it was read.
    pub(super) git_hinted: bool,
    pub(super) reading: bool,

    pub(super) world: Option<Arc<Observed>>,
    /// The same in numbers.
    pub(super) seen: Option<WorldNow>,
    pub(super) world_reads: SourceState,
    pub(super) world_due: Timestamp,
    pub(super) observing: bool,
    /// When the last look was begun.
    pub(super) looked_at: Timestamp,
    /// Whether the world changed again while it was looked at.
    pub(super) look_hinted: bool,
    /// How many looks were begun, which of them `world` is, and which is the first that counts.
    pub(super) looks: u64,
    pub(super) world_no: u64,
    pub(super) need: u64,
    pub(super) unseen: Unseen,
    pub(super) rivals: Rivals,
    /// The first and the last pod of a burst.
    pub(super) batch: Option<(Timestamp, Timestamp)>,
    /// When the first of the pods was seen that the next plan is for.
    pub(super) reaction: Option<Timestamp>,

    pub(super) planning: Option<Planning>,
    pub(super) current: Option<Current>,
    /// What the last plan has for pods of machines that go.
    pub(super) outlook: Outlook,
    /// The world and the commit that were last planned over.
    pub(super) planned: Option<(Arc<Observed>, String)>,
    pub(super) replan_at: Timestamp,
    pub(super) planned_since: BTreeMap<InstanceId, Timestamp>,
    /// What could not be looked up, and since when.
    pub(super) unread_since: BTreeMap<(Part, String), Timestamp>,
    /// Since when nodes keep the pods that they have.
    pub(super) quiet: Quiet,
    pub(super) health: Health,
    /// Since when only what adds was planned, where that was planned last.
    pub(super) ahead_since: Option<Timestamp>,
    pub(super) lanes: BTreeMap<Ticket, Lane>,
    /// What failed, and when it is tried again, by pool.
    pub(super) removes: BTreeMap<PoolName, Retry>,
    pub(super) launches: BTreeMap<PoolName, Retry>,
    pub(super) away: BTreeMap<InstanceId, Away>,
    /// When all of them are next looked at, whatever is heard of some.
    pub(super) away_due: Timestamp,
    /// How often other machines went than before, and how often something else was known of them.
    pub(super) going_no: u64,
    pub(super) leaving_no: u64,
    /// Which state of them is in `kept`.
    pub(super) leaving_kept: Option<u64>,
    /// Machines that go which the record has.
    pub(super) recorded: BTreeSet<InstanceId>,
    pub(super) mail: Mail,
    /// Nodes that stand cordoned for nothing.
    pub(super) uncordons: Uncordons,
    /// Where the last plan needs nothing more: which state of the machines that go it was made for.
    pub(super) settled: Option<u64>,
    /// Where it needs no launch, either, the same.
    pub(super) covered: Option<u64>,

    pub(super) kept: Option<Kept>,
    pub(super) recalling: bool,
    pub(super) saved: Option<Kept>,
    pub(super) saving: Option<Kept>,
    pub(super) desk: Retry,
    /// What was written last, in numbers.
    pub(super) kept_now: KeptNow,

    pub(super) steering: Steering,
    /// What fails of what is done.
    pub(super) failing: Failing,
    pub(super) history: Vec<Arc<Past>>,
    pub(super) costs: Costs,
    pub(super) aside: Aside,
    pub(super) timing: Timing,
    pub(super) tickets: Ticket,
    pub(super) wakes_at: Option<Timestamp>,
}

/// How often something failed in a row, and when it is tried again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    failures: u32,
    pub(super) at: Timestamp,
}

impl Retry {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { failures: 0, at: now }
    }

    pub(super) fn failed(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.at = later(now, backoff(self.failures));
    }

    pub(super) fn worked(&mut self, now: Timestamp) {
        *self = Self::new(now);
    }
}

/// Returns how long to wait after so many failures in a row.
pub(super) fn backoff(failures: u32) -> SignedDuration {
    doubled(RETRY_FIRST, failures.saturating_sub(1), RETRY_MOST)
}

/// Takes one step: what `event` makes of `state` at `now`, and what is to be done.
///
/// Pure: the same arguments give the same result, nothing is read and nothing is written.
#[must_use]
pub fn step(mut state: State, event: Event, now: Timestamp) -> (State, Vec<Effect>) {
    // A clock that was set back must not keep the loop waiting for moments that were near.
    if now < state.now {
        (state.git_due, state.world_due, state.replan_at) = (now, now, now);
        (state.desk.at, state.former_due.at, state.rivals.due) = (now, now, now);
        state.removes.values_mut().for_each(|retry| retry.at = now);
        state.launches.values_mut().for_each(|retry| retry.at = now);
        state.away.values_mut().for_each(|away| away.hurry(now));
        state.away_due = now;
        state.batch = state.batch.map(|_| (now, now));
    }
    state.now = now;
    state.count("steps", 1);
    // Nothing that this event brings is approved by what has run out.
    if let Some(kept) = &mut state.kept {
        kept.mend_glass(now);
    }
    let turn = Turn::after(&event);
    let mut effects = state.take(event);
    state.advance(turn, &mut effects);
    (state, effects)
}

impl State {
    /// Returns the state of a loop that knows nothing yet.
    #[must_use]
    pub fn new(start: Start) -> Self {
        let now = start.at;
        Self {
            now,
            leader: false,
            led_by: None,
            lent: false,
            stopping: false,
            exited: false,
            head: None,
            former: None,
            former_due: Retry::new(now),
            reading_former: false,
            newer: None,
            git: SourceState::default(),
            git_due: now,
            git_hinted: false,
            reading: false,
            world: None,
            seen: None,
            world_reads: SourceState::default(),
            world_due: now,
            observing: false,
            looked_at: now,
            look_hinted: false,
            looks: 0,
            world_no: 0,
            need: 1,
            unseen: Unseen::default(),
            rivals: Rivals::new(now),
            batch: None,
            reaction: None,
            planning: None,
            current: None,
            outlook: Outlook::default(),
            planned: None,
            replan_at: now,
            planned_since: BTreeMap::new(),
            unread_since: BTreeMap::new(),
            quiet: Quiet::default(),
            health: Health::default(),
            ahead_since: None,
            lanes: BTreeMap::new(),
            removes: BTreeMap::new(),
            launches: BTreeMap::new(),
            away: BTreeMap::new(),
            away_due: now,
            going_no: 0,
            leaving_no: 0,
            leaving_kept: None,
            recorded: BTreeSet::new(),
            mail: Mail::default(),
            uncordons: Uncordons::default(),
            settled: None,
            covered: None,
            kept: None,
            recalling: false,
            saved: None,
            saving: None,
            desk: Retry::new(now),
            kept_now: KeptNow::default(),
            steering: Steering::default(),
            failing: Failing::default(),
            history: Vec::new(),
            costs: Costs::default(),
            aside: Aside::default(),
            timing: Timing::default(),
            tickets: 0,
            wakes_at: None,
            start,
        }
    }

    pub(super) fn count(&mut self, name: &str, by: u64) {
        match self.timing.counters.get_mut(name) {
            Some(count) => *count = count.saturating_add(by),
            None => {
                self.timing.counters.insert(name.to_owned(), by);
            }
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    /// Returns what the loop may do: as the caller says, else as the repository does; no more than plan while
    /// somebody else makes and removes nodes, and no more than add while the commit that is served was not read.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.rival().is_some() {
            return Mode::Observe;
        }
        let of_head = || self.head.as_ref().map(|head| head.controller.mode);
        let mode = self.start.mode.or_else(of_head).unwrap_or_default();
        if self.has_stand_in() { mode.min(Mode::Additive) } else { mode }
    }

    /// Returns whether somebody has said that it is only to plan. What an earlier one has begun goes on while nobody
    /// knows what is said, and beside another autoscaler: that one has no part in it.
    pub(super) fn looks_on(&self) -> bool {
        let of_head = || self.head.as_ref().map(|head| head.controller.mode);
        self.start.mode.or_else(of_head) == Some(Mode::Observe)
    }

    /// Returns whether it may have machines of ours go that EC2 takes back.
    pub(super) fn heeds_interruptions(&self) -> bool {
        self.mode() != Mode::Observe
    }

    fn take(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failing.heed(&event, self.now);
        match event {
            Event::Recalled(end) => self.recalled(end),
            Event::Saved(end) => self.was_saved(&end, &mut effects),
            Event::Head(read) => self.head_was_read(read),
            Event::Commit { commit, read } => self.commit_was_read(&commit, read),
            Event::World(observed) => self.world_was_seen(observed),
            Event::Planned { ticket, plan, took } => {
                self.was_planned((ticket, plan), took, &mut effects);
            }
            Event::Progress { ticket, event } => self.progressed(ticket, &event),
            Event::Turning { ticket, address, turn } => {
                self.turns(ticket, address, turn, &mut effects);
            }
            Event::Applied { ticket, end } => self.was_applied(ticket, end),
            Event::Cordoned { instance, mark, end } => self.was_cordoned(&instance, mark, &end),
            Event::Shielded { node: _, end } => self.was_shielded(&end),
            Event::Evicted { instance: _, ends } => self.were_evicted(&ends),
            Event::Ended { instance, end } => self.was_ended(&instance, &end),
            Event::NodeDeleted { instance, end } => self.was_deleted(&instance, &end),
            Event::Acknowledged { receipt: _, end } => self.was_acknowledged(&end),
            Event::Nominated { pod, end } => self.was_nominated(&pod, &end),
            Event::Signal(signal) => self.signalled(signal, &mut effects),
            Event::Unplanned { ticket } => self.was_not_planned(ticket),
            Event::Timer => {}
        }
        effects
    }

    fn recalled(&mut self, end: Result<Box<Kept>, PortError>) {
        self.recalling = false;
        if let Ok(mut kept) = end {
            self.desk.worked(self.now);
            self.remember(&kept);
            self.saved = Some((*kept).clone());
            kept.take_over(self.now);
            asked::take_over(&mut kept.asked, self.now);
            // What was seen before this was known tells of launches, too.
            if let Some(seen) = self.world.as_ref().filter(|seen| seen.is_complete()) {
                kept.learn(seen, self.now);
            }
            // What was launched last may not be shown yet, whoever launched it.
            for launch in &kept.launched {
                self.unseen.launch(&launch.instance, launch.at.min(self.now));
            }
            self.kept = Some(*kept);
            self.leaving_kept = None;
            self.serve_as_kept();
            self.has_recorded();
        } else {
            self.count("errors.record", 1);
            self.desk.failed(self.now);
        }
    }

    fn was_saved(&mut self, end: &Result<(), PortError>, effects: &mut Vec<Effect>) {
        let kept = self.saving.take();
        if end.is_ok() {
            self.desk.worked(self.now);
            self.saved = kept;
            self.has_recorded();
        } else {
            self.count("errors.record", 1);
            self.desk.failed(self.now);
            // What cannot be counted is not begun.
            self.drop_waiting();
            self.drop_turns(effects);
            self.replan_at = self.desk.at;
        }
    }

    fn world_was_seen(&mut self, observed: Arc<Observed>) {
        self.observing = false;
        let now = self.now;
        if observed.is_complete() {
            self.count("reads.world.done", 1);
            self.world_reads = SourceState { read_at: Some(now), error: None, failures: 0 };
            self.unseen.strike(now);
            self.unseen.meet(self.world.as_deref(), &observed, now);
            let booting = self.booting();
            if let Some(kept) = &mut self.kept {
                kept.learn(&observed, now);
                asked::shown(&mut kept.asked, &observed);
            }
            self.times_look(&observed, &booting);
            self.look_for_rivals(&observed);
            self.look_for_unread(&observed);
            self.watch_health(&observed);
            self.quiet.look(&observed, now);
            self.steering.judge(&observed, &mut self.timing.counters);
            self.world_no = self.looks;
            self.world = Some(Arc::clone(&observed));
            self.meet_strangers();
        } else {
            self.count("reads.world.partial", 1);
            let mut whole: Vec<String> = Vec::new();
            for (name, source) in &observed.sources {
                if let crate::fleet::Completeness::Partial { reason }
                | crate::fleet::Completeness::Failed { reason } = source
                {
                    self.count(&format!("errors.{name}"), 1);
                    whole.push(format!("{name}: {reason}"));
                }
            }
            failed(&mut self.world_reads, whole.join("; "), now);
        }
        let refresh = self.head.as_ref().map_or(BUSY_REFRESH, |head| head.controller.refresh);
        let busy = !self.away.is_empty() || self.unseen.missing(&observed).is_some();
        let wait = match self.world_reads.failures {
            0 if busy => BUSY_REFRESH.min(refresh),
            0 => refresh,
            failures => backoff(failures).min(refresh),
        };
        self.world_due = later(now, wait);
        if std::mem::take(&mut self.look_hinted) && self.world_reads.failures == 0 {
            self.world_due = self.world_due.min(self.next_look());
        }
        self.seen = Some(face::seen(&observed));
        self.world = Some(observed);
    }

    /// Returns when the world is looked at again because of a hint: each look serves all that came before it.
    pub(super) fn next_look(&self) -> Timestamp {
        later(self.looked_at, HINTED).max(self.now)
    }

    /// Returns when the repository is read again because of a hint.
    pub(super) fn next_read(&self) -> Timestamp {
        later(self.timing.asked_git_at, HINTED).max(self.now)
    }

    fn signalled(&mut self, signal: Signal, effects: &mut Vec<Effect>) {
        let now = self.now;
        match signal {
            Signal::PodPending => {
                self.batch = Some((self.batch.map_or(now, |(first, _)| first), now));
                self.reaction = self.reaction.or(Some(now));
            }
            // One that is under way may be of before.
            Signal::WorldChanged if self.observing => self.look_hinted = true,
            Signal::WorldChanged => self.world_due = self.world_due.min(self.next_look()),
            Signal::Pushed if self.reading => self.git_hinted = true,
            Signal::Pushed => self.git_due = self.git_due.min(self.next_read()),
            // A step is taken, and that is all.
            Signal::Wake => {}
            Signal::Message(message) => self.was_told(message, effects),
            Signal::Request(request) => self.asked(request),
            Signal::Gained => {
                (self.leader, self.aside.leads_since) = (true, now);
                (self.led_by, self.lent) = (None, false);
                // Whoever led before may have kept something since.
                self.kept = None;
                self.need = self.looks + 1;
                // What was held back because another led is not any more.
                self.replan_at = now;
            }
            Signal::Lost { holder, to_apply } => {
                self.leader = false;
                (self.led_by, self.lent) = (holder, to_apply);
                self.away.clear();
                self.going_no += 1;
                self.leaving_no += 1;
                self.mail.clear();
                self.drop_waiting();
                self.drop_turns(effects);
                effects.push(Effect::Interrupt);
            }
            Signal::Shutdown => {
                self.stopping = true;
                self.drop_waiting();
                self.drop_turns(effects);
                effects.push(Effect::Interrupt);
            }
        }
    }
}

/// Notes a read that failed.
pub(super) fn failed(source: &mut SourceState, why: String, now: Timestamp) {
    source.failures = source.failures.saturating_add(1);
    let since = source.error.as_ref().map_or(now, |(_, since)| *since);
    source.error = Some((why, since));
}
