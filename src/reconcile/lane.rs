//! What comes back from a plan that is carried out.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::event::{Ticket, sold_out};
use super::kept::{Launched, Removed};
use super::state::State;
use super::status::Status;
use super::work;
use crate::apply::{Event, Outcome, Receipt, Step, Verdict};
use crate::ids::{Address, InstanceId};
use crate::plan::Plan;
use crate::plan::wire::{Reason, WaveStep};

impl State {
    /// Notes what happened in an apply: what it did is done, whether or not it is seen yet.
    pub(super) fn progressed(&mut self, ticket: Ticket, event: &Event) {
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&ticket) else { return };
        let plan = Arc::clone(&lane.plan);
        match &event.step {
            Step::Launched { instance_id, .. } | Step::Joined { instance_id } => {
                self.count("launches.done", 1);
                self.was_launched(&plan, event.address.as_ref(), instance_id);
            }
            Step::NoCapacity { .. } => {
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
                }
            }
            Step::Terminating { instance_id } => {
                self.unseen.end(instance_id, now);
                if let Some(kept) = &mut self.kept {
                    kept.removed.push(Removed { instance: instance_id.clone(), at: now });
                    kept.confirmed.remove(instance_id);
                }
                let why = event.address.as_ref().map_or("unknown", |at| reason(&plan, at));
                self.count(&format!("terminations.{why}"), 1);
            }
            Step::Evicted { pods, .. } => {
                self.count("evictions.done", u64::try_from(*pods).unwrap_or(u64::MAX));
            }
            Step::Blocked { .. } => self.count("evictions.blocked", 1),
            Step::Retrying { .. } => self.count("errors.ec2", 1),
            Step::Checked { .. }
            | Step::Wave { step: WaveStep::Launch, .. }
            | Step::Raised { .. }
            | Step::Found { .. }
            | Step::Unreadable
            | Step::Ready { .. }
            | Step::Waiting { .. }
            | Step::Cordoned { .. }
            | Step::Uncordoned { .. }
            | Step::Finished { .. } => {}
        }
    }

    fn was_launched(&mut self, plan: &Plan, address: Option<&Address>, instance: &InstanceId) {
        let now = self.now;
        self.unseen.launch(instance, now);
        let mut rows = plan.resource_changes.iter();
        let row = rows.find(|row| Some(&row.address) == address);
        let pool = row.and_then(|row| row.change.after.as_ref()?.pool.clone());
        let (Some(kept), Some(pool)) = (&mut self.kept, pool) else { return };
        let instance = instance.clone();
        kept.launched.push(Launched { instance, pool, at: now, ready_at: None, helped: false });
    }

    pub(super) fn was_applied(&mut self, ticket: Ticket, end: Result<Box<Receipt>, String>) {
        let Some(mut lane) = self.lanes.remove(&ticket) else { return };
        let now = self.now;
        self.need = self.looks + 1;
        let took = now.duration_since(lane.past.started_at).as_millis();
        self.count("apply_millis", u64::try_from(took).unwrap_or(0));
        lane.past.ended_at = now;
        let worked = match end {
            Ok(receipt) => {
                let name = match receipt.verdict {
                    Verdict::Applied => "reconciles.applied",
                    Verdict::Partly => "reconciles.partly",
                    Verdict::Interrupted => "reconciles.interrupted",
                };
                self.count(name, 1);
                self.count_outcomes(&receipt);
                lane.past.outcomes = outcomes(&receipt);
                let worked = receipt.verdict != Verdict::Partly;
                lane.past.receipt = Some(*receipt);
                worked
            }
            Err(why) => {
                self.count("reconciles.refused", 1);
                lane.past.refused = Some(why);
                false
            }
        };
        let retry = if lane.removes { &mut self.removes } else { &mut self.launches };
        if worked {
            retry.worked(now);
        } else {
            retry.failed(now);
        }
        self.replan_at = retry.at;
        self.history.insert(0, Arc::new(lane.past));
        self.history.truncate(Status::PAST_MAX);
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
}

fn outcomes(receipt: &Receipt) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for change in &receipt.outcomes {
        let name = match change.outcome {
            Outcome::Done => "done",
            Outcome::AlreadyDone => "already-done",
            Outcome::Dropped { .. } => "dropped",
            Outcome::Skipped { .. } => "skipped",
            Outcome::GivenUp { .. } => "given-up",
            Outcome::Failed { .. } => "failed",
        };
        *counts.entry(name.to_owned()).or_insert(0) += 1;
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
