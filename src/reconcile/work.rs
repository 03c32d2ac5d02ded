//! From what is known to what is done: when to read, when to plan, what to carry out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::allow::{self, Circumstances, Verdict, allowed};
use super::asked;
use super::away::{Outlook, Turn};
use super::event::{Effect, Limits, Ticket};
use super::kept::{Wanted, later};
use super::looks::is_same;
use super::state::{BUSY_REFRESH, Lane, Pass, Planning, Retry, State};
use super::status::{Deed, Held, HeldBy, KeptNow, Past};
use super::tighten::tightened;
use super::view;
use crate::fleet::{Node, Observed};
use crate::ids::{Address, InstanceId, PoolName};
use crate::manifest::Mode;
use crate::plan::Plan;
use crate::plan::wire::{Action, ResourceChange, RetireReason, WaveStep};

/// Rounds in which a plan is made again without what is held back.
const ROUNDS: u32 = 3;
/// The longest for which only what adds is planned, however many pods come.
const AHEAD_MOST: SignedDuration = SignedDuration::from_mins(1);
/// Between two plans over a world that does not change: what has a time of its own may be due.
pub(super) const REPLAN: SignedDuration = SignedDuration::from_mins(5);
/// Longest text that is kept: the API server takes 256 KiB of annotations.
const KEPT_MAX: usize = 200 << 10;
/// Most plans that are carried out at the same time.
const LANES: usize = 4;

impl State {
    /// Begins whatever is due.
    pub(super) fn advance(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        if self.exited {
            return;
        }
        if let Some(kept) = &mut self.kept {
            kept.forget(self.now);
            let launching = self.lanes.values().filter(|lane| lane.launching);
            let launching: BTreeSet<Address> =
                launching.flat_map(|lane| lane.addresses.clone()).collect();
            asked::forget(&mut kept.asked, &launching, self.now);
        }
        self.advance_away(turn, effects);
        self.read(effects);
        if self.stopping {
            self.save(effects);
            if self.lanes.is_empty() && self.saving.is_none() {
                self.exited = true;
                effects.push(Effect::Exit);
            } else {
                self.wake_at(later(self.now, BUSY_REFRESH), effects);
            }
            return;
        }
        self.adopt_newer();
        self.plan(effects);
        self.steer(effects);
        self.save(effects);
        self.begin_kept(effects);
        if self.start.once && self.is_at_rest() {
            self.exited = true;
            effects.push(Effect::Exit);
            return;
        }
        self.wake_at(self.next_moment(), effects);
    }

    fn wake_at(&mut self, moment: Timestamp, effects: &mut Vec<Effect>) {
        self.wakes_at = Some(moment);
        effects.push(Effect::Wake(moment));
    }

    pub(super) fn was_not_planned(&mut self, ticket: Ticket) {
        if self.planning.as_ref().is_some_and(|planning| planning.ticket == ticket) {
            self.planning = None;
            self.lacks_planner();
            self.replan_at = later(self.now, BUSY_REFRESH);
        }
    }

    fn read(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        if self.kept.is_none() && !self.recalling && now >= self.desk.at {
            self.recalling = true;
            effects.push(Effect::Recall);
        }
        if self.stopping {
            return;
        }
        // What is served depends on what was kept.
        if !self.reading && self.kept.is_some() && now >= self.git_due {
            self.reading = true;
            self.timing.asked_git_at = now;
            effects.push(Effect::ReadHead);
        }
        self.read_former(effects);
        let burst = self.batch_due().is_some_and(|due| now >= due);
        // What was seen before the last write ended, or failed to be seen, does not count.
        let lacks = self.world_no < self.need && self.world_reads.failures == 0;
        if !self.observing && (burst || lacks || now >= self.world_due) {
            if burst {
                self.batch = None;
            }
            self.observing = true;
            self.looks += 1;
            self.looked_at = now;
            effects.push(Effect::Observe);
        }
    }

    /// Returns when the pods that wait are looked at.
    pub(super) fn batch_due(&self) -> Option<Timestamp> {
        let (first, last) = self.batch?;
        let head = self.head.as_ref()?;
        let (idle, most) = (head.controller.batch_idle, head.controller.batch_most);
        Some(later(last, idle).min(later(first, most)))
    }

    /// Has a plan made where there is reason to.
    fn plan(&mut self, effects: &mut Vec<Effect>) {
        let (Some(head), Some(seen)) = (self.head.clone(), self.world.clone()) else { return };
        let fresh =
            self.world_no >= self.need && self.world_no == self.looks - u64::from(self.observing);
        let launching = self.lanes.values().any(|lane| lane.launching);
        if self.planning.is_some() || self.kept.is_none() || launching || !fresh {
            return;
        }
        let waits = self.uncordons.are_under_way() || self.unseen.missing(&seen).is_some();
        if self.lanes.len() >= LANES || waits {
            return;
        }
        let same = self.planned.as_ref().is_some_and(|(world, commit)| {
            *commit == head.commit && (Arc::ptr_eq(world, &seen) || is_same(world, &seen))
        });
        if let Some((world, _)) = self.planned.as_mut().filter(|_| same) {
            // Looked at once is enough.
            *world = Arc::clone(&seen);
        }
        let known = self.settled.is_none_or(|known| known == self.going_no);
        if same && known && self.now < self.replan_at {
            return;
        }
        let going = self.replaced_here();
        let sold_out = self.kept.as_ref().map(|kept| {
            let turning = asked::turning_since(&kept.asked).unwrap_or(Timestamp::MAX);
            kept.exclusions_before(turning, self.now)
        });
        let world = view::planned_over(&seen, &self.unseen, &going, sold_out.unwrap_or_default());
        let pass = if self.is_pressed_anew(&seen) { Pass::Ahead } else { Pass::Round(0) };
        if pass == Pass::Ahead {
            self.ahead_since.get_or_insert(self.now);
        }
        let mut limits = self.widest();
        // While a plan removes, what it is about is left to it; what is needed beside it is launched.
        if !self.lanes.is_empty() || pass == Pass::Ahead {
            limits.only = Some(BTreeSet::new());
        }
        self.planned = Some((seen, head.commit.clone()));
        self.replan_at = later(self.now, REPLAN);
        (self.settled, self.covered) = (None, None);
        self.begin_plan((world, going), limits, pass, effects);
    }

    /// Returns the limits of the plan that is shown: where nothing may be removed, it only adds. Whoever approves it approves
    /// what is carried out then; a plan that removes as well would have to be made again without that, as another one.
    fn widest(&self) -> Limits {
        let running = self.has_stand_in();
        let adds = running || self.mode() == Mode::Additive;
        if adds { Limits { running, ..Limits::adds() } } else { Limits::default() }
    }

    /// Returns whether what only adds is to be planned first: pods wait that did not when it was planned last, and a plan of
    /// everything takes several times as long. What goes is left to the plan after it, and so is everything where a plan
    /// of everything may spare a launch, or where nobody has seen one yet.
    fn is_pressed_anew(&self, seen: &Observed) -> bool {
        let (Some(head), Some((planned, commit))) = (&self.head, &self.planned) else {
            return false;
        };
        let cordoned = |node: &Node| node.cordoned_for().is_some();
        *commit == head.commit
            && !self.start.once
            && self.may_act()
            && self.lanes.is_empty()
            && self.widest().is_none()
            && self.current.is_some()
            && self.ahead_since.is_none_or(|since| self.now < later(since, AHEAD_MOST))
            && !seen.nodes.values().any(cordoned)
            && view::has_new_waiting(planned, seen)
    }

    fn begin_plan(
        &mut self,
        (world, going): (Arc<Observed>, BTreeSet<InstanceId>),
        limits: Limits,
        pass: Pass,
        effects: &mut Vec<Effect>,
    ) {
        let Some(head) = &self.head else { return };
        let commit = head.commit.clone();
        let ticket = self.ticket();
        let need = self.need;
        let planning = Planning {
            ticket,
            world: Arc::clone(&world),
            whole: limits == self.widest() && self.lanes.is_empty() && pass != Pass::Ahead,
            limits: limits.clone(),
            pass,
            going,
            going_no: self.going_no,
            ended_no: self.unseen.all_ended(),
            need,
        };
        self.planning = Some(planning);
        effects.push(Effect::Plan { ticket, commit, world, limits });
    }

    pub(super) fn was_planned(
        &mut self,
        (ticket, plan): (Ticket, Arc<Plan>),
        took: SignedDuration,
        effects: &mut Vec<Effect>,
    ) {
        let Some(planning) = self.planning.take() else { return };
        self.times_plan(&planning.limits, took);
        let outdated = planning.need != self.need
            || planning.going_no != self.going_no
            || planning.ended_no != self.unseen.all_ended()
            || planning.limits.running != self.has_stand_in();
        if planning.ticket != ticket || outdated || self.kept.is_none() {
            self.replan_at = self.now;
            return;
        }
        let whole = planning.whole;
        if whole {
            self.becomes_current(&plan, planning.limits.running);
        }
        let verdicts = self.judge(&plan, whole);
        // A later round leaves out what is held back.
        if !matches!(planning.pass, Pass::Round(1..)) {
            self.outlook = Outlook::of(&plan, &held_by(&verdicts), planning.going.clone());
        }
        let held: Vec<(Address, Held)> = verdicts
            .iter()
            .filter_map(|(address, verdict)| match verdict {
                Verdict::Go => None,
                Verdict::Hold(held) => Some((address.clone(), held.clone())),
            })
            .collect();
        let round = match planning.pass {
            Pass::Round(round) => round,
            Pass::Ahead if !verdicts.is_empty() && held.is_empty() => {
                return self.begin_apply(plan, planning.going);
            }
            // There is nothing to launch, or not all of it may be: that is for the plan of everything.
            Pass::Ahead => {
                let over = (planning.world, planning.going);
                return self.begin_plan(over, self.widest(), Pass::Round(0), effects);
            }
        };
        self.look_again_at(&held);
        if self.uncordon_stale(&planning, &plan, effects) {
            return;
        }
        if verdicts.is_empty() {
            self.count("reconciles.nothing", 1);
            self.settles(&planning, &plan);
            return;
        }
        if held.is_empty() {
            self.begin_apply(plan, planning.going);
            return;
        }
        let waits = planning.world.pods.iter().any(|pod| view::is_waiting(pod));
        let some_go = held.len() < verdicts.len();
        match tightened(&plan, &planning.limits, &held, self.now) {
            Some(limits) if round < ROUNDS && (some_go || waits) && self.may_act() => {
                let over = (planning.world, planning.going);
                self.begin_plan(over, limits, Pass::Round(round + 1), effects);
            }
            Some(_) | None => {
                self.count("reconciles.held", 1);
                self.settles(&planning, &plan);
            }
        }
    }

    /// Notes that a plan leads to nothing more now; and whether that is because all that it takes is there.
    /// One from which launches were left out, or of which they are held back, does not say so.
    fn settles(&mut self, planning: &Planning, plan: &Plan) {
        self.settled = Some(planning.going_no);
        let whole = planning.limits.exclude.is_empty() && self.outlook.is_open();
        let all = whole && launched(plan).next().is_none();
        self.covered = all.then_some(planning.going_no);
    }

    /// Returns whether it leads, and may do more than plan.
    #[must_use]
    pub fn may_act(&self) -> bool {
        self.leader && self.mode() != Mode::Observe
    }

    /// Judges the changes of a plan, and latches what it has to.
    fn judge(&mut self, plan: &Plan, whole: bool) -> Vec<(Address, Verdict)> {
        let now = self.now;
        if let (Some(kept), Some((world, _))) = (&mut self.kept, &self.planned) {
            kept.judge_launches(&Wanted::of(plan, world), now);
        }
        let Some(with) = self.circumstances() else { return Vec::new() };
        // Where nothing may be removed anyway, nobody is to be called.
        let removes = whole && self.leader && self.mode() == Mode::Full;
        let mass = allow::mass_removal(plan, &with.borrow()).filter(|_| removes);
        if let (Some(why), Some(kept)) = (mass, &mut self.kept) {
            kept.latch(allow::MASS_REMOVAL, (why, Some(allow::lost(plan))), now);
        }
        let Some(with) = self.circumstances() else { return Vec::new() };
        let verdicts = allowed(plan, &with.borrow(), now);
        if let Some(current) = self.current.as_mut().filter(|_| whole) {
            current.held = held_by(&verdicts);
        }
        verdicts
    }

    pub(super) fn circumstances(&self) -> Option<Gathered<'_>> {
        // As the world is now, where all of it could be read: what was planned may wait for a while until it is judged.
        let (planned, _) = self.planned.as_ref()?;
        let seen = self.world.as_ref().filter(|seen| seen.is_complete());
        let world = seen.unwrap_or(planned);
        let left_behind = world.left_behind();
        let counts = |node: &&Node| !node.is_fargate() && !left_behind.contains_key(&node.name);
        let nodes = world.nodes.values().filter(counts);
        let unready = nodes.clone().filter(|node| !node.ready).count();
        Some(Gathered {
            state: self,
            kept: self.kept.as_ref()?,
            head: self.head.as_ref()?,
            nodes: u32::try_from(nodes.count()).unwrap_or(u32::MAX),
            unready: u32::try_from(unready).unwrap_or(u32::MAX),
            under_way: self.lanes.values().flat_map(|lane| lane.addresses.clone()).collect(),
            removes_after: after(&self.removes),
            launches_after: after(&self.launches),
        })
    }

    /// Plans again when the first of the holds ends by itself.
    fn look_again_at(&mut self, held: &[(Address, Held)]) {
        let ends = held.iter().filter_map(|(_, held)| match held {
            Held::Window { opens } => *opens,
            Held::LaunchBudget { next, .. } | Held::RemovalBudget { next, .. } => Some(*next),
            Held::Settling { until }
            | Held::Resting { until }
            | Held::BackingOff { until }
            | Held::Quarantined { until, .. }
            | Held::Unheard { until } => Some(*until),
            Held::Suspended { until, .. } => *until,
            Held::NotLeader
            | Held::Mode { .. }
            | Held::NotApplyable { .. }
            | Held::NotApproved { .. }
            | Held::NotConfirmed { .. }
            | Held::MassUnready { .. }
            | Held::Breaker { .. }
            | Held::Together { .. }
            | Held::UnderWay => None,
        });
        if let Some(first) = ends.min() {
            // Not at once: what is held still would be held again.
            let soonest = later(self.now, SignedDuration::from_secs(1));
            self.replan_at = self.replan_at.min(first.max(soonest));
        }
    }

    /// Carries a plan out once what it asks for is kept, where that is approved and no launch of before is awaited.
    fn begin_apply(&mut self, plan: Arc<Plan>, going: BTreeSet<InstanceId>) {
        let approved = self.circumstances().and_then(|with| allow::approval(&plan, &with.borrow()));
        let (Some(head), Some(approved), false) = (&self.head, approved, self.stopping) else {
            return;
        };
        let past = Past::begun(&plan, &head.commit, approved, self.now);
        let Some(kept) = &mut self.kept else { return };
        let begun = match asked::ask(&mut kept.asked, &plan, self.now) {
            Ok(begun) => begun,
            Err(until) => {
                self.awaits_launches(&plan, until);
                return;
            }
        };
        let goes: BTreeSet<InstanceId> = retired(&plan).filter_map(instance).collect();
        kept.reserve(&goes, self.now);
        self.counts_launches(&plan);
        let ticket = self.ticket();
        let removes = retired(&plan).next().is_some();
        let unheard = begun.keys().cloned().collect();
        let begins = Effect::Apply {
            ticket,
            commit: past.commit.clone(),
            plan: Arc::clone(&plan),
            without: going.into_iter().collect(),
            waits: removes,
            running: self.has_stand_in(),
            begun,
        };
        let waves = plan.capacity.waves.iter();
        let lane = Lane {
            addresses: waves.flat_map(|wave| wave.addresses.clone()).collect(),
            plan,
            past,
            removes,
            launching: true,
            goes,
            ended: BTreeSet::new(),
            unheard,
            turning: BTreeMap::new(),
            begins: Some(Box::new(begins)),
        };
        self.lanes.insert(ticket, lane);
    }

    /// Holds the launches of a plan back until those of before would be shown: machines may be on their way that it does
    /// not count with.
    fn awaits_launches(&mut self, plan: &Plan, until: Timestamp) {
        self.count("reconciles.held", 1);
        if let Some(current) = &mut self.current {
            let why = allow::says(Held::Unheard { until });
            // One that only adds may have something else at the same address.
            let rows = &current.plan.resource_changes;
            let is_shown = |row: &&ResourceChange| {
                let mut same = rows.iter().filter(|of| of.address == row.address);
                same.any(|of| of.change.after == row.change.after)
            };
            let held = launched(plan).filter(is_shown);
            current.held.extend(held.map(|row| (row.address.clone(), why.clone())));
        }
        // Not at once: what is awaited still would be awaited again.
        let soonest = later(self.now, SignedDuration::from_secs(1));
        self.replan_at = until.max(soonest);
    }

    /// Counts what is launched, and how long the first pod has waited for it that it is for.
    fn counts_launches(&mut self, plan: &Plan) {
        let launches = u64::try_from(launched(plan).count()).unwrap_or(u64::MAX);
        self.count("launches.asked", launches);
        if let Some(since) = self.reaction.take().filter(|_| launches > 0) {
            let waited = self.now.duration_since(since).as_millis();
            self.count("pending.reactions", 1);
            self.count("pending.reaction_millis", u64::try_from(waited).unwrap_or(0));
            self.times("reaction", "", since);
        }
    }

    fn save(&mut self, effects: &mut Vec<Effect>) {
        if !self.leader || self.saving.is_some() || self.now < self.desk.at {
            return;
        }
        if self.leaving_kept != Some(self.leaving_no) {
            let going = self.leaving();
            if let Some(kept) = &mut self.kept {
                kept.going = going;
                self.leaving_kept = Some(self.leaving_no);
            }
        }
        let Some(kept) = &self.kept else { return };
        if self.saved.as_ref() != Some(kept) {
            let fitted = kept.fitted(KEPT_MAX);
            let (bytes, shed) = (fitted.size(), fitted.shed);
            self.kept_now = KeptNow { bytes, most: KEPT_MAX, shed };
            if bytes > KEPT_MAX {
                self.cannot_keep(bytes, effects);
                return;
            }
            self.saving = Some(kept.clone());
            effects.push(Effect::Save(Box::new(fitted)));
        }
    }

    /// Notes that what is to survive does not fit with everything left out that may be: the API server would refuse it.
    fn cannot_keep(&mut self, bytes: usize, effects: &mut Vec<Effect>) {
        let now = self.now;
        let why = format!("what is to survive takes {bytes} bytes, and {KEPT_MAX} are the most");
        self.failing.failed(Deed::Save, "", &why, now);
        self.count("errors.record", 1);
        self.desk.failed(now);
        self.drop_waiting();
        self.drop_turns(effects);
        self.replan_at = self.desk.at;
    }
}

/// Returns what holds back each change that is.
fn held_by(verdicts: &[(Address, Verdict)]) -> BTreeMap<Address, HeldBy> {
    let held = verdicts.iter().filter_map(|(address, verdict)| match verdict {
        Verdict::Go => None,
        Verdict::Hold(held) => Some((address.clone(), allow::says(held.clone()))),
    });
    held.collect()
}

/// What [`Circumstances`] borrow from.
pub(super) struct Gathered<'a> {
    state: &'a State,
    kept: &'a super::kept::Kept,
    head: &'a super::event::Head,
    nodes: u32,
    unready: u32,
    under_way: BTreeSet<Address>,
    removes_after: BTreeMap<PoolName, Timestamp>,
    launches_after: BTreeMap<PoolName, Timestamp>,
}

impl Gathered<'_> {
    pub(super) fn borrow(&self) -> Circumstances<'_> {
        let state = self.state;
        Circumstances {
            leader: state.leader,
            mode: state.mode(),
            head: self.head,
            kept: self.kept,
            nodes: self.nodes,
            unready: self.unready,
            under_way: &self.under_way,
            removing: state.lanes.values().any(|lane| lane.removes),
            removes_after: &self.removes_after,
            launches_after: &self.launches_after,
            planned_since: &state.planned_since,
            quiet_since: state.quiet.since(),
        }
    }
}

/// Returns until when pools are left alone.
fn after(retries: &BTreeMap<PoolName, Retry>) -> BTreeMap<PoolName, Timestamp> {
    retries.iter().map(|(pool, retry)| (pool.clone(), retry.at)).collect()
}

fn of_step(plan: &Plan, step: WaveStep) -> impl Iterator<Item = &ResourceChange> {
    let waves = plan.capacity.waves.iter().filter(move |wave| wave.step == step);
    let addresses: BTreeSet<&Address> = waves.flat_map(|wave| &wave.addresses).collect();
    plan.resource_changes.iter().filter(move |row| addresses.contains(&row.address))
}

/// Returns the rows of a plan that launch something.
pub(super) fn launched(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    of_step(plan, WaveStep::Launch).filter(|row| row.change.actions.contains(&Action::Create))
}

/// Returns the rows of a plan of which something goes.
pub(super) fn retired(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    of_step(plan, WaveStep::Retire)
}

/// Returns the machine that a row stands for now.
pub(super) fn instance(row: &ResourceChange) -> Option<InstanceId> {
    row.change.before.as_ref()?.instance_id.clone()
}

/// Returns a reason to go as counters name it.
pub(super) fn kind_of(because: &RetireReason) -> &'static str {
    match because {
        RetireReason::Empty { .. } => "empty",
        RetireReason::Underutilized { .. } => "underutilized",
        RetireReason::Surplus { .. } => "surplus",
        RetireReason::PoolRemoved => "pool-removed",
        RetireReason::Drifted { .. } => "drifted",
        RetireReason::Expired { .. } => "expired",
        RetireReason::Requested => "requested",
    }
}

#[cfg(test)]
mod tests;
