//! What comes back from a plan that is carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::event::{Effect, Ticket, sold_out};
use super::kept::{Launched, later};
use super::state::{Lane, Retry, State};
use super::status::{Part, Status};
use super::{allow, asked, work};
use crate::apply::{Event, Outcome, Receipt, Step, Verdict};
use crate::ids::{Address, InstanceId, PoolName};
use crate::plan::Plan;
use crate::plan::wire::{Reason, WaveStep};

/// How long after its next try would have been a failure counts no more.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(1);

impl State {
    /// Notes what happened in an apply: what it did is done, whether or not it is seen yet.
    pub(super) fn progressed(&mut self, ticket: Ticket, event: &Event) {
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&ticket) else { return };
        let plan = Arc::clone(&lane.plan);
        match &event.step {
            Step::Launched { instance_id, .. } | Step::Joined { instance_id } => {
                self.count("launches.done", 1);
                self.was_answered(ticket, event.address.as_ref());
                self.was_launched(ticket, event.address.as_ref(), instance_id);
            }
            Step::NoCapacity { .. } => {
                lane.unheard.retain(|address| Some(address) != event.address.as_ref());
                self.count("launches.no_capacity", 1);
                if let (Some(kept), Some(exclusion)) = (&mut self.kept, sold_out(event)) {
                    kept.note_sold_out(exclusion, now);
                }
            }
            Step::Wave { step: WaveStep::Retire, .. } | Step::Going { .. } => {
                if lane.launching {
                    lane.launching = false;
                    // What was seen before does not show what was launched.
                    self.need = self.looks + 1;
                    if let Some(kept) = &mut self.kept {
                        asked::heard_last(&mut kept.asked, &lane.unheard, now);
                    }
                }
            }
            Step::Terminating { instance_id } => {
                self.unseen.end(instance_id, now);
                lane.ended.insert(instance_id.clone());
                if let Some(kept) = &mut self.kept {
                    kept.remove(&[instance_id.clone()].into(), now);
                    kept.confirmed.retain(|id| id != instance_id);
                }
                let why = event.address.as_ref().map_or("unknown", |at| reason(&plan, at));
                self.count(&format!("terminations.{why}"), 1);
                self.times_progress(ticket, event, why);
            }
            Step::Evicted { pods, .. } => {
                self.count("evictions.done", u64::try_from(*pods).unwrap_or(u64::MAX));
            }
            Step::Blocked { .. } => self.count("evictions.blocked", 1),
            Step::Found { .. } => self.was_answered(ticket, event.address.as_ref()),
            Step::Unanswered => {
                if lane.launching {
                    lane.unheard.extend(event.address.clone());
                }
            }
            Step::Retrying { .. } => self.count("errors.ec2", 1),
            // A launch that every offering refused is answered too, and holds up no other.
            Step::Finished { .. } if lane.launching => {
                let address = event.address.as_ref();
                if address.is_some_and(|address| !lane.unheard.contains(address)) {
                    self.was_answered(ticket, address);
                }
            }
            Step::Checked { .. }
            | Step::Wave { step: WaveStep::Launch, .. }
            | Step::Raised { .. }
            | Step::Unreadable
            | Step::Ready { .. }
            | Step::Waiting { .. }
            | Step::Finished { .. } => {}
            Step::Cordoned { .. } | Step::Uncordoned { .. } => {
                self.times_progress(ticket, event, "");
            }
        }
    }

    /// Forgets that a launch is awaited.
    fn was_answered(&mut self, ticket: Ticket, address: Option<&Address>) {
        let (Some(address), Some(kept)) = (address, &mut self.kept) else { return };
        asked::answered(&mut kept.asked, address);
        if let Some(lane) = self.lanes.get_mut(&ticket) {
            lane.unheard.remove(address);
        }
    }

    fn was_launched(&mut self, ticket: Ticket, address: Option<&Address>, instance: &InstanceId) {
        let now = self.now;
        self.unseen.launch(instance, now);
        let Some(lane) = self.lanes.get_mut(&ticket) else { return };
        let mut rows = lane.plan.resource_changes.iter();
        let row = rows.find(|row| Some(&row.address) == address);
        let pool = row.and_then(|row| row.change.after.as_ref()?.pool.clone());
        let (Some(kept), Some(pool)) = (&mut self.kept, pool) else { return };
        let instance = instance.clone();
        kept.launched.push(Launched {
            instance,
            pool,
            at: now,
            ready_at: None,
            helped: false,
            from_start: true,
            passed_over: false,
        });
    }

    pub(super) fn was_applied(&mut self, ticket: Ticket, end: Result<Box<Receipt>, String>) {
        let Some(mut lane) = self.lanes.remove(&ticket) else { return };
        let now = self.now;
        self.need = self.looks + 1;
        let took = now.duration_since(lane.past.started_at).as_millis();
        self.count("apply_millis", u64::try_from(took).unwrap_or(0));
        lane.past.ended_at = now;
        self.doubts_cordons_of(&lane);
        let failed = failed_pools(&lane.plan, end.as_deref().ok());
        // How each row ended stands in the history.
        lane.addresses.iter().for_each(|address| self.failing.forget(address.as_str()));
        match end {
            Ok(receipt) => {
                let name = match receipt.verdict {
                    Verdict::Applied => "reconciles.applied",
                    Verdict::Partly => "reconciles.partly",
                    Verdict::Interrupted => "reconciles.interrupted",
                };
                self.count(name, 1);
                self.times("apply", receipt.verdict.as_str(), lane.past.started_at);
                self.count_outcomes(&receipt);
                lane.past.outcomes = outcomes(&receipt);
                self.release(&lane, Some(&receipt));
                lane.past.receipt = Some(*receipt);
            }
            Err(why) => {
                self.count("reconciles.refused", 1);
                lane.past.refused = Some(why);
                self.release(&lane, None);
            }
        }
        let failed = self.backs_off(&lane.plan, &failed);
        self.replan_at = failed.unwrap_or(now);
        self.history.insert(0, Arc::new(lane.past));
        self.history.truncate(Status::PAST_MAX);
    }

    /// Has pools be left alone for a while that something failed of, and only those; returns the first moment
    /// at which one is tried again.
    fn backs_off(&mut self, plan: &Plan, failed: &Failed) -> Option<Timestamp> {
        let now = self.now;
        let touched: BTreeSet<PoolName> =
            work::launched(plan).chain(work::retired(plan)).map(allow::pool).collect();
        let mut first = None;
        for (retries, failed) in
            [(&mut self.launches, &failed.launches), (&mut self.removes, &failed.removes)]
        {
            // What failed long ago says nothing of the next failure.
            retries.retain(|_, retry| now < later(retry.at, FORGOTTEN));
            for pool in &touched {
                if failed.contains(pool) {
                    let retry = retries.entry(pool.clone()).or_insert(Retry::new(now));
                    retry.failed(now);
                    first = first.into_iter().chain([retry.at]).min();
                } else {
                    retries.remove(pool);
                }
            }
        }
        first
    }

    /// Takes back what was counted of machines that are left as they were.
    pub(super) fn release(&mut self, lane: &Lane, receipt: Option<&Receipt>) {
        let is_left = |instance: &&InstanceId| {
            let of = |change: &&crate::apply::ChangeOutcome| {
                change.step == WaveStep::Retire && change.instance_id.as_ref() == Some(*instance)
            };
            let outcome = receipt.and_then(|receipt| receipt.outcomes.iter().find(of));
            // A call that failed may have been heard all the same.
            !lane.ended.contains(*instance)
                && outcome.is_none_or(|change| match change.outcome {
                    Outcome::Dropped { .. } | Outcome::Skipped { .. } | Outcome::GivenUp { .. } => {
                        true
                    }
                    Outcome::Done | Outcome::AlreadyDone | Outcome::Failed { .. } => false,
                })
        };
        let (left, gone): (BTreeSet<&InstanceId>, BTreeSet<&InstanceId>) =
            lane.goes.iter().partition(is_left);
        let all = |ids: BTreeSet<&InstanceId>| ids.into_iter().cloned().collect::<BTreeSet<_>>();
        let now = self.now;
        if let Some(kept) = &mut self.kept {
            asked::ended(&mut kept.asked, &lane.plan, &lane.unheard, now);
            kept.release(&all(left));
            // Of some the answer was lost: that they were told is known only now.
            kept.remove(
                &all(gone.into_iter().filter(|id| !lane.ended.contains(*id)).collect()),
                now,
            );
        }
    }

    /// Begins what waited until its launches and removals were kept, where they are now.
    pub(super) fn begin_kept(&mut self, effects: &mut Vec<Effect>) {
        self.drop_outdated();
        let Some(saved) = &self.saved else { return };
        for (ticket, lane) in &mut self.lanes {
            let turns =
                |address: &Address, turn: &mut u32| asked::has_turned(&saved.asked, address, *turn);
            let turned = lane.turning.extract_if(.., turns);
            effects.extend(turned.map(|(address, _)| Effect::Turn {
                ticket: *ticket,
                address,
                kept: true,
            }));
            // What a plan asks for is told by digests: once it was begun there is nothing to be asked.
            let kept =
                || saved.has_reserved(&lane.goes) && asked::has_asked(&saved.asked, &lane.plan);
            if lane.begins.is_some() && kept() {
                effects.extend(lane.begins.take().map(|effect| *effect));
            }
        }
    }

    /// Has a launch ask for another offering once that is kept; at once not, where nothing is kept any more.
    pub(super) fn turns(
        &mut self,
        ticket: Ticket,
        address: Address,
        turn: u32,
        effects: &mut Vec<Effect>,
    ) {
        let keeps = self.leader && !self.stopping;
        let lane = self.lanes.get_mut(&ticket).filter(|_| keeps);
        if let (Some(lane), Some(kept)) = (lane, &mut self.kept) {
            asked::turned(&mut kept.asked, &address, turn);
            lane.turning.insert(address, turn);
        } else {
            effects.push(Effect::Turn { ticket, address, kept: false });
        }
    }

    /// Has launches ask for no other offering that wait until it is kept which.
    pub(super) fn drop_turns(&mut self, effects: &mut Vec<Effect>) {
        for (ticket, lane) in &mut self.lanes {
            let turns = std::mem::take(&mut lane.turning).into_keys();
            effects.extend(turns.map(|address| Effect::Turn {
                ticket: *ticket,
                address,
                kept: false,
            }));
        }
    }

    /// Gives up what waits until it is kept: nothing of it was begun.
    pub(super) fn drop_waiting(&mut self) {
        let waiting = self.lanes.iter().filter(|(_, lane)| lane.begins.is_some());
        self.drop_lanes(&waiting.map(|(ticket, _)| *ticket).collect::<Vec<_>>());
    }

    /// Gives up what waits and may not be begun any more, and has that planned again.
    fn drop_outdated(&mut self) {
        if self.lanes.values().all(|lane| lane.begins.is_none()) {
            return;
        }
        // What cannot be read now is no ground to change anything.
        let unread = self.world_reads.failures > 0;
        let now = self.now;
        let with = self.circumstances();
        let stands_in = self.has_stand_in();
        let may = |lane: &Lane| {
            // What was planned of a commit that stood in is planned of the one that is served, once that was read.
            let begins = lane.begins.as_deref();
            let stood_in = matches!(begins, Some(Effect::Apply { running: true, .. }));
            let allows = |with: &super::work::Gathered<'_>| {
                allow::may_begin(&lane.plan, &with.borrow(), now)
            };
            stood_in == stands_in && with.as_ref().is_some_and(allows)
        };
        let waiting = self.lanes.iter().filter(|(_, lane)| lane.begins.is_some());
        let outdated: Vec<Ticket> =
            waiting.filter(|(_, lane)| unread || !may(lane)).map(|(ticket, _)| *ticket).collect();
        if !outdated.is_empty() {
            self.drop_lanes(&outdated);
            self.replan_at = now;
        }
    }

    fn drop_lanes(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            let Some(lane) = self.lanes.remove(ticket) else { continue };
            self.release(&lane, None);
            self.count("reconciles.refused", 1);
        }
    }

    fn count_outcomes(&mut self, receipt: &Receipt) {
        for change in &receipt.outcomes {
            let failed = !change.outcome.is_settled();
            match change.step {
                WaveStep::Launch if failed => self.count("launches.failed", 1),
                WaveStep::Retire if failed => self.count("terminations.failed", 1),
                WaveStep::Launch | WaveStep::Retire => {}
            }
        }
    }

    /// Returns what is under way, by plan.
    pub(super) fn applying(&self) -> BTreeMap<crate::ids::PlanId, (Vec<Address>, Timestamp)> {
        let one = |lane: &super::state::Lane| {
            let addresses = lane.addresses.iter().cloned().collect();
            (lane.past.plan_id.clone(), (addresses, lane.past.started_at))
        };
        self.lanes.values().map(one).collect()
    }

    /// Returns what is carried out beside the current plan.
    pub(super) fn parts(&self) -> Vec<Part> {
        let current = self.current.as_ref().map(|current| &current.plan.capacity.digest);
        let parts = self.lanes.values().filter(|lane| Some(&lane.plan.capacity.digest) != current);
        let part = |lane: &super::state::Lane| Part {
            plan: Arc::clone(&lane.plan),
            since: lane.past.started_at,
            approved: lane.past.approved.clone(),
        };
        parts.map(part).collect()
    }
}

/// Pools of which something failed.
#[derive(Default)]
struct Failed {
    launches: BTreeSet<PoolName>,
    removes: BTreeSet<PoolName>,
}

/// Returns the pools of which something failed; all of a plan that was refused.
fn failed_pools(plan: &Plan, receipt: Option<&Receipt>) -> Failed {
    let Some(receipt) = receipt else {
        let removes: BTreeSet<PoolName> = work::retired(plan).map(allow::pool).collect();
        let launches = work::launched(plan).map(allow::pool);
        let launches = if removes.is_empty() { launches.collect() } else { BTreeSet::new() };
        return Failed { launches, removes };
    };
    let mut failed = Failed::default();
    if receipt.verdict != Verdict::Partly {
        return failed;
    }
    let rows: BTreeMap<&Address, PoolName> =
        plan.resource_changes.iter().map(|row| (&row.address, allow::pool(row))).collect();
    for change in receipt.outcomes.iter().filter(|change| !change.outcome.is_settled()) {
        let Some(pool) = rows.get(&change.address).cloned() else { continue };
        match change.step {
            WaveStep::Launch => failed.launches.insert(pool),
            WaveStep::Retire => failed.removes.insert(pool),
        };
    }
    failed
}

fn outcomes(receipt: &Receipt) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for change in &receipt.outcomes {
        *counts.entry(change.outcome.as_str().to_owned()).or_insert(0) += 1;
    }
    counts
}

/// Returns why the plan has the machine at `address` go.
fn reason(plan: &Plan, address: &Address) -> &'static str {
    let mut rows = plan.capacity.explain.iter();
    let Some(row) = rows.find(|row| row.address == *address) else { return "unknown" };
    let because = match (&row.reason, &row.retire_reason) {
        (Reason::Retire { because }, _) | (_, Some(because)) => because,
        (Reason::Resize { .. }, None) => return "resize",
        (Reason::Launch { .. } | Reason::Keep { .. }, None) => return "unknown",
    };
    work::kind_of(because)
}

#[cfg(test)]
mod tests;
