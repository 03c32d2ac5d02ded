//! Progress and results of applies.

mod failed_pools;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::contingency::ContingencyUse;
use super::counters::Counter;
use super::event::{Effect, Ticket, capacity_exclusion};
use super::persisted_state::{LaunchRecord, PersistedState};
use super::retry::Retry;
use super::state::ControllerState;
use super::status::{CompletedApply, PartialApply, Status};
use super::{gates, inflight_launches, reconcile};
use failed_pools::FailedPools;

use crate::apply::{ApplyStatus, ChangeOutcome, Event, Outcome, Receipt, Step};
use crate::model::ids::{Address, Digest, InstanceId, PlanId, PoolName};
use crate::model::observed::Instance;
use crate::model::saturating_time::later;
use crate::model::unavailable_offerings::ExclusionLimits;
use crate::plan::wire::{Reason, ResourceChange, WaveStep};
use crate::plan::{Plan, planned_pods_at};
use crate::telemetry::histogram::Measurement;

/// A failure is forgotten this long after its retry was due.
const FAILURE_MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// An apply that is in progress, or waits for its reservations to be persisted.
#[derive(Debug, Clone)]
pub(super) struct ApplyRun {
    pub(super) plan: Arc<Plan>,
    pub(super) addresses: BTreeSet<Address>,
    pub(super) record: CompletedApply,
    pub(super) is_removing: bool,
    /// True while the apply may still request launches. Their instances are unknown until then.
    pub(super) is_launching: bool,
    /// Instances that the plan removes, and those of them that EC2 was asked to terminate.
    pub(super) removed_instances: BTreeSet<InstanceId>,
    pub(super) terminated_instances: BTreeSet<InstanceId>,
    /// Instances that are removed only while no pod runs on their nodes. The removal budget does
    /// not count them.
    pub(super) uncounted_removals: BTreeSet<InstanceId>,
    /// Instances of the launches without an answer; `None` if groups launch some of them.
    pub(super) expected: Option<BTreeMap<Address, Instance>>,
    /// Launches that EC2 may have received, and whose answer is unknown.
    pub(super) unanswered_launches: BTreeSet<Address>,
    /// Launches that wait until their next offering attempt is persisted.
    pub(super) pending_attempts: BTreeMap<Address, u32>,
    /// Steps that are finished, whatever their outcome.
    pub(super) finished_steps: BTreeSet<(Address, WaveStep)>,
    /// Addresses of the groups that launch nodes in place of existing nodes.
    pub(super) replacing: BTreeSet<Address>,
    /// Instances launched in place of existing nodes, until the apply decides that these end.
    pub(super) undecided_instances: BTreeSet<InstanceId>,
    /// Digests of the pods that each launch is for.
    pub(super) launched_for: BTreeMap<Address, Vec<String>>,
    /// What the apply uses of a contingency.
    pub(super) contingency: Option<ContingencyUse>,
    /// Effect that starts the apply once its launches and removals are persisted.
    pub(super) deferred_start: Option<Box<Effect>>,
}

impl ApplyRun {
    pub(super) fn removes_instance(&self, instance: &InstanceId) -> bool {
        self.removed_instances.contains(instance)
    }

    /// Returns the removed instances that the removal budget counts.
    fn counted_removals(&self) -> BTreeSet<InstanceId> {
        &self.removed_instances - &self.uncounted_removals
    }

    /// Returns the rows whose steps are all finished.
    fn finished_rows(&self) -> impl Iterator<Item = &Address> {
        let is_finished = |address: &&Address| {
            let mut waves = self.plan.capacity.waves.iter();
            waves.all(|wave| {
                !wave.addresses.contains(*address)
                    || self.finished_steps.contains(&((*address).clone(), wave.step))
            })
        };
        let started: BTreeSet<&Address> =
            self.finished_steps.iter().map(|(address, _)| address).collect();
        started.into_iter().filter(is_finished)
    }
}

/// Applies in progress, completed ones, and the retries of pools with failures.
#[derive(Debug, Clone, Default)]
pub(super) struct Applies {
    pub(super) runs: BTreeMap<Ticket, ApplyRun>,
    /// Completed applies, the latest first.
    pub(super) history: Vec<Arc<CompletedApply>>,
    /// Retry time after a failure, by pool.
    removal_retries: BTreeMap<PoolName, Retry>,
    launch_retries: BTreeMap<PoolName, Retry>,
}

impl Applies {
    pub(super) fn on_clock_set_back(&mut self, now: Timestamp) {
        let retries = self.removal_retries.values_mut().chain(self.launch_retries.values_mut());
        retries.for_each(|retry| retry.at = now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns whether an apply may still request launches.
    pub(super) fn is_launching(&self) -> bool {
        self.runs.values().any(|run| run.is_launching)
    }

    pub(super) fn is_removing(&self) -> bool {
        self.runs.values().any(|run| run.is_removing)
    }

    /// Returns whether an apply drains the instance, or is about to.
    pub(super) fn removes_instance(&self, instance: &InstanceId) -> bool {
        self.runs.values().any(|run| run.removes_instance(instance))
    }

    /// Returns true if the instance was launched in place of existing nodes, and its apply has not
    /// decided yet whether these end.
    pub(super) fn is_undecided(&self, instance: &InstanceId) -> bool {
        self.runs.values().any(|run| run.undecided_instances.contains(instance))
    }

    /// Returns the addresses of all changes in progress.
    pub(super) fn addresses(&self) -> BTreeSet<Address> {
        self.runs.values().flat_map(|run| run.addresses.clone()).collect()
    }

    /// Returns the addresses of the applies that may still request launches.
    pub(super) fn launching_addresses(&self) -> BTreeSet<Address> {
        let launching = self.runs.values().filter(|run| run.is_launching);
        launching.flat_map(|run| run.addresses.clone()).collect()
    }

    /// Returns whether any apply started at `at` or later.
    pub(super) fn has_started_since(&self, at: Timestamp) -> bool {
        let running = self.runs.values().map(|run| run.record.started_at);
        let mut all = running.chain(self.history.iter().map(|past| past.started_at));
        all.any(|started| at <= started)
    }

    /// Returns until when the removals of each pool back off.
    pub(super) fn removal_retry_times(&self) -> BTreeMap<PoolName, Timestamp> {
        retry_times(&self.removal_retries)
    }

    /// Returns until when the launches of each pool back off.
    pub(super) fn launch_retry_times(&self) -> BTreeMap<PoolName, Timestamp> {
        retry_times(&self.launch_retries)
    }

    fn deferred(&self) -> impl Iterator<Item = (Ticket, &ApplyRun)> {
        let waiting = self.runs.iter().filter(|(_, run)| run.deferred_start.is_some());
        waiting.map(|(ticket, run)| (*ticket, run))
    }

    fn complete(&mut self, record: CompletedApply) {
        self.history.insert(0, Arc::new(record));
        self.history.truncate(Status::HISTORY_MAX);
    }

    /// Delays retries of pools with failures, and only those. Returns the time of the first retry.
    fn back_off_failed_pools(
        &mut self,
        plan: &Plan,
        failed: &FailedPools,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let touched: BTreeSet<PoolName> = reconcile::launched_rows(plan)
            .chain(reconcile::retired_rows(plan))
            .map(ResourceChange::pool)
            .collect();
        let mut first = None;
        for (retries, failed) in [
            (&mut self.launch_retries, &failed.launches),
            (&mut self.removal_retries, &failed.removals),
        ] {
            // An old failure must not lengthen the next wait.
            retries.retain(|_, retry| now < later(retry.at, FAILURE_MEMORY));
            for pool in &touched {
                if failed.contains(pool) {
                    let retry = retries.entry(pool.clone()).or_insert(Retry::new(now));
                    retry.record_failure(now);
                    first = first.into_iter().chain([retry.at]).min();
                } else {
                    retries.remove(pool);
                }
            }
        }
        first
    }

    /// Starts deferred applies and offering attempts whose records are now persisted.
    pub(super) fn start_persisted(&mut self, saved: &PersistedState, effects: &mut Vec<Effect>) {
        for (ticket, run) in &mut self.runs {
            let is_recorded = |address: &Address, attempt: &mut u32| {
                inflight_launches::has_recorded_attempt(&saved.in_doubt_launches, address, *attempt)
            };
            let recorded = run.pending_attempts.extract_if(.., is_recorded);
            effects.extend(recorded.map(|(address, _)| Effect::AnswerOfferingAttempt {
                ticket: *ticket,
                address,
                is_persisted: true,
            }));
            // Digests identify the requested changes, and an apply that has started needs no check.
            let persisted = || {
                saved.has_reserved_removals(&run.counted_removals())
                    && run.contingency.as_ref().is_none_or(|of| saved.has_counted_use(of))
                    && inflight_launches::has_registered(&saved.in_doubt_launches, &run.plan)
            };
            if run.deferred_start.is_some() && persisted() {
                effects.extend(run.deferred_start.take().map(|effect| *effect));
            }
        }
    }

    /// Refuses all offering attempts that wait to be persisted.
    pub(super) fn refuse_attempts(&mut self, effects: &mut Vec<Effect>) {
        for (ticket, run) in &mut self.runs {
            let refused = std::mem::take(&mut run.pending_attempts).into_keys();
            effects.extend(refused.map(|address| Effect::AnswerOfferingAttempt {
                ticket: *ticket,
                address,
                is_persisted: false,
            }));
        }
    }

    /// Returns the changes in progress, by plan.
    pub(super) fn changes_in_progress(&self) -> BTreeMap<PlanId, (Vec<Address>, Timestamp)> {
        let one = |run: &ApplyRun| {
            let addresses = run.addresses.iter().cloned().collect();
            (run.record.plan_id.clone(), (addresses, run.record.started_at))
        };
        self.runs.values().map(one).collect()
    }

    /// Returns the rows of applies in progress that are finished.
    pub(super) fn finished_changes(&self) -> BTreeSet<Address> {
        self.runs.values().flat_map(ApplyRun::finished_rows).cloned().collect()
    }

    /// Returns the applies in progress that are not the current plan.
    pub(super) fn partial_applies(&self, current: Option<&Digest>) -> Vec<PartialApply> {
        let parts = self.runs.values().filter(|run| Some(&run.plan.capacity.digest) != current);
        let part = |run: &ApplyRun| PartialApply {
            plan: Arc::clone(&run.plan),
            since: run.record.started_at,
            approved: run.record.approved.clone(),
        };
        parts.map(part).collect()
    }
}

fn retry_times(retries: &BTreeMap<PoolName, Retry>) -> BTreeMap<PoolName, Timestamp> {
    retries.iter().map(|(pool, retry)| (pool.clone(), retry.at)).collect()
}

impl ControllerState {
    /// Notes the progress of an apply. Its calls count as done before they are observed.
    pub(super) fn on_apply_progress(&mut self, ticket: Ticket, event: &Event) {
        let Some(run) = self.applies.runs.get_mut(&ticket) else { return };
        self.apply_step = Some((run.record.plan_id.clone(), event.clone()));
        if let (Step::Finished { step, .. }, Some(address)) = (&event.step, &event.address) {
            run.finished_steps.insert((address.clone(), *step));
            run.expected.as_mut().and_then(|expected| expected.remove(address));
        }
        match &event.step {
            Step::Launched { instance_id, offering } => {
                self.note_answer(ticket, event.address.as_ref(), instance_id, offering.as_ref());
                self.on_launched(ticket, event.address.as_ref(), instance_id);
            }
            Step::Joined { instance_id } => {
                self.note_answer(ticket, event.address.as_ref(), instance_id, None);
                self.on_launched(ticket, event.address.as_ref(), instance_id);
            }
            Step::InsufficientCapacity { .. } => {
                run.unanswered_launches.retain(|address| Some(address) != event.address.as_ref());
                self.on_insufficient_capacity(event);
            }
            Step::Wave { step: WaveStep::Retire, .. } | Step::InProgress { .. } => {
                self.on_launches_ended(ticket);
            }
            Step::Terminating { instance_id } => {
                self.on_terminating(ticket, event, instance_id);
            }
            Step::Evicted { pods, .. } => {
                self.counters.add(Counter::EvictionsDone, u64::try_from(*pods).unwrap_or(u64::MAX));
            }
            Step::PodsDeleted { pods, .. } => {
                let pods = u64::try_from(*pods).unwrap_or(u64::MAX);
                self.counters.add(Counter::EvictionsForced, pods);
            }
            Step::Blocked { .. } => self.counters.count(Counter::EvictionsBlocked),
            Step::NodeWriteFailed { .. } => self.counters.count_error("kubernetes"),
            Step::Found { instance_id } => {
                // The apply has observed it; the last observation here may be older.
                self.note_answer(ticket, event.address.as_ref(), instance_id, None);
                self.on_launch_answered(ticket, event.address.as_ref());
            }
            Step::Unanswered => {
                if run.is_launching {
                    run.unanswered_launches.extend(event.address.clone());
                }
            }
            Step::Retrying { .. } => self.counters.count_error("ec2"),
            // A launch that every offering refused is answered too, and delays no other launch.
            Step::Finished { .. } if run.is_launching => {
                let address = event.address.as_ref();
                if address.is_some_and(|address| !run.unanswered_launches.contains(address)) {
                    self.on_launch_answered(ticket, address);
                }
            }
            Step::Checked { .. } => run.undecided_instances.clear(),
            Step::Wave { step: WaveStep::Launch, .. }
            | Step::Withdrawn { .. }
            | Step::Raised { .. }
            | Step::Unreadable
            | Step::Ready { .. }
            | Step::Nominated { .. }
            | Step::Waiting { .. }
            | Step::Finished { .. } => {}
            Step::Cordoned { .. } | Step::Uncordoned { .. } => {
                self.time_apply_event(ticket, event, "");
            }
        }
    }

    /// Excludes the offering for which EC2 has no capacity.
    fn on_insufficient_capacity(&mut self, event: &Event) {
        self.counters.count(Counter::LaunchesInsufficientCapacity);
        if let (Some(persisted), Some(exclusion)) =
            (&mut self.persistence.loaded, capacity_exclusion(event))
        {
            let limits = ExclusionLimits::CONTROLLER;
            persisted.unavailable_offerings.record(exclusion, self.now, limits);
        }
    }

    /// Notes that an apply launches nothing more.
    fn on_launches_ended(&mut self, ticket: Ticket) {
        let Some(run) = self.applies.runs.get_mut(&ticket).filter(|run| run.is_launching) else {
            return;
        };
        run.is_launching = false;
        // Earlier observations do not show the launched instances.
        self.observation.require_next();
        if let Some(persisted) = &mut self.persistence.loaded {
            inflight_launches::restart_wait(
                &mut persisted.in_doubt_launches,
                &run.unanswered_launches,
                self.now,
            );
        }
    }

    fn on_terminating(&mut self, ticket: Ticket, event: &Event, instance: &InstanceId) {
        let now = self.now;
        let Some(run) = self.applies.runs.get_mut(&ticket) else { return };
        let address = event.address.as_ref();
        let why = address.map_or("unknown", |at| removal_reason(&run.plan, at)).to_owned();
        self.observation.unobserved.note_termination(instance, now);
        run.terminated_instances.insert(instance.clone());
        let is_counted = !run.uncounted_removals.contains(instance);
        if let Some(persisted) = &mut self.persistence.loaded {
            if is_counted {
                persisted.record_removals(&[instance.clone()].into(), now);
            }
            persisted.confirmed_removals.retain(|id| id != instance);
        }
        self.counters.count(Counter::Terminations(why.clone()));
        self.time_apply_event(ticket, event, &why);
    }

    /// Removes a launch from the launches in doubt.
    fn on_launch_answered(&mut self, ticket: Ticket, address: Option<&Address>) {
        let (Some(address), Some(persisted)) = (address, &mut self.persistence.loaded) else {
            return;
        };
        inflight_launches::forget_answered(&mut persisted.in_doubt_launches, address);
        if let Some(run) = self.applies.runs.get_mut(&ticket) {
            run.unanswered_launches.remove(address);
            run.expected.as_mut().and_then(|expected| expected.remove(address));
        }
    }

    fn on_launched(&mut self, ticket: Ticket, address: Option<&Address>, instance: &InstanceId) {
        let now = self.now;
        self.counters.count(Counter::LaunchesDone);
        self.on_launch_answered(ticket, address);
        let Some(run) = self.applies.runs.get_mut(&ticket) else { return };
        let mut rows = run.plan.resource_changes.iter();
        let row = rows.find(|row| Some(&row.address) == address);
        let pool = row.and_then(|row| row.change.after.as_ref()?.pool.clone());
        let launched_for = address.and_then(|address| run.launched_for.get(address).cloned());
        if address.is_some_and(|address| run.replacing.contains(address)) {
            run.undecided_instances.insert(instance.clone());
        }
        if let Some(row) = row {
            let pods = planned_pods_at(&run.plan, &row.address);
            self.planning.note_launched_demand(&run.plan, &pods);
            self.planning.note_unplaced(&run.plan, now);
            self.planning.planned_pods.insert(instance.clone(), pods);
        }
        let (Some(persisted), Some(pool)) = (&mut self.persistence.loaded, pool) else { return };
        let instance = instance.clone();
        persisted.launches.push(LaunchRecord {
            instance,
            pool,
            at: now,
            ready_at: None,
            useful: false,
            from_start: true,
            passed_over: false,
            launched_for,
        });
    }

    pub(super) fn on_apply_finished(&mut self, ticket: Ticket, end: Result<Box<Receipt>, String>) {
        let Some(mut run) = self.applies.runs.remove(&ticket) else { return };
        let now = self.now;
        self.observation.require_next();
        run.record.ended_at = now;
        self.opening.add_undecided(std::mem::take(&mut run.undecided_instances));
        self.interruptions.invalidate_cordons_of(&run, self.observation.next_number());
        let failed = FailedPools::new(&run.plan, end.as_deref().ok());
        // The history lists the outcome of each row.
        run.addresses.iter().for_each(|address| self.action_failures.forget(address.as_str()));
        match end {
            Ok(receipt) => {
                self.counters.count(match receipt.verdict {
                    ApplyStatus::Applied => Counter::ReconcilesApplied,
                    ApplyStatus::Partly => Counter::ReconcilesPartlyApplied,
                    ApplyStatus::Interrupted => Counter::ReconcilesInterrupted,
                });
                let verdict = receipt.verdict.as_str();
                self.time_since(Measurement::Apply { verdict }, run.record.started_at);
                self.count_outcomes(&receipt);
                run.record.outcomes = outcome_counts(&receipt);
                self.settle_records(&run, Some(&receipt));
                self.planning.forget_failed_launches(&run.plan, &receipt);
                run.record.receipt = Some(*receipt);
            }
            Err(why) => {
                self.counters.count(Counter::ReconcilesRefused);
                run.record.refused = Some(why);
                self.settle_records(&run, None);
            }
        }
        let failed = self.applies.back_off_failed_pools(&run.plan, &failed, now);
        self.planning.replan_at = failed.unwrap_or(now);
        self.applies.complete(run.record);
    }

    /// Updates the persisted records of an ended apply: launches without an answer stay in doubt,
    /// unused removals are released, and terminations with a lost answer are counted.
    pub(super) fn settle_records(&mut self, run: &ApplyRun, receipt: Option<&Receipt>) {
        let is_untouched = |instance: &InstanceId| {
            let retires_it = |change: &&ChangeOutcome| {
                change.step == WaveStep::Retire && change.instance_id.as_ref() == Some(instance)
            };
            let outcome = receipt.and_then(|receipt| receipt.outcomes.iter().find(retires_it));
            // EC2 may have received a call that failed.
            !run.terminated_instances.contains(instance)
                && outcome.is_none_or(|change| match change.outcome {
                    Outcome::Dropped { .. }
                    | Outcome::Skipped { .. }
                    | Outcome::Abandoned { .. }
                    | Outcome::Continues { .. } => true,
                    Outcome::Done | Outcome::AlreadyDone | Outcome::Failed { .. } => false,
                })
        };
        let (untouched, removed): (BTreeSet<InstanceId>, BTreeSet<InstanceId>) =
            run.counted_removals().into_iter().partition(is_untouched);
        let now = self.now;
        if let Some(persisted) = &mut self.persistence.loaded {
            inflight_launches::forget_apply(
                &mut persisted.in_doubt_launches,
                &run.plan,
                &run.unanswered_launches,
                now,
            );
            persisted.release_removals(&untouched);
            // The answers of some terminations were lost, so they are counted only now.
            persisted.record_removals(&(&removed - &run.terminated_instances), now);
        }
    }

    /// Lets a launch try its next offering once the attempt is persisted. Refuses unless this replica
    /// leads and is not stopping.
    pub(super) fn on_offering_attempt_requested(
        &mut self,
        ticket: Ticket,
        address: Address,
        attempt: u32,
        effects: &mut Vec<Effect>,
    ) {
        let may_record = self.leadership.is_leader() && !self.leadership.is_stopping();
        let run = self.applies.runs.get_mut(&ticket).filter(|_| may_record);
        if let (Some(run), Some(persisted)) = (run, &mut self.persistence.loaded) {
            inflight_launches::record_attempt(&mut persisted.in_doubt_launches, &address, attempt);
            run.note_requested_offering(&address, attempt);
            run.pending_attempts.insert(address, attempt);
        } else {
            effects.push(Effect::AnswerOfferingAttempt { ticket, address, is_persisted: false });
        }
    }

    /// Drops applies that have not started yet.
    pub(super) fn drop_deferred_applies(&mut self) {
        self.drop_applies(&self.applies.deferred().map(|(ticket, _)| ticket).collect::<Vec<_>>());
    }

    /// Drops deferred applies that gates block by now, and plans again.
    pub(super) fn drop_blocked_applies(&mut self) {
        if self.applies.deferred().next().is_none() {
            return;
        }
        // A failed observation is no basis for a change.
        let unread = self.observation.reads.has_failed();
        let now = self.now;
        let context = self.gate_context();
        let serves_substitute = self.revisions.serves_substitute();
        let may_still_start = |run: &ApplyRun| {
            // A plan of the substitute is made again once the served revision was read.
            let start = run.deferred_start.as_deref();
            let is_of_substitute =
                matches!(start, Some(Effect::Apply { running_pods_only: true, .. }));
            is_of_substitute == serves_substitute
                && context.as_ref().is_some_and(|context| {
                    let contingency = run.contingency.as_ref();
                    gates::may_still_start(&run.plan, contingency, context, now)
                })
        };
        let outdated: Vec<Ticket> = self
            .applies
            .deferred()
            .filter(|(_, run)| unread || !may_still_start(run))
            .map(|(ticket, _)| ticket)
            .collect();
        if !outdated.is_empty() {
            self.drop_applies(&outdated);
            self.planning.replan_at = now;
        }
    }

    fn drop_applies(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            let Some(run) = self.applies.runs.remove(ticket) else { continue };
            self.settle_records(&run, None);
            self.counters.count(Counter::ReconcilesRefused);
        }
    }

    fn count_outcomes(&mut self, receipt: &Receipt) {
        for change in &receipt.outcomes {
            let continues = matches!(change.outcome, Outcome::Continues { .. });
            let failed = !change.outcome.is_settled() && !continues;
            match change.step {
                WaveStep::Launch if failed => self.counters.count(Counter::LaunchesFailed),
                WaveStep::Retire if failed => self.counters.count(Counter::TerminationsFailed),
                WaveStep::Launch | WaveStep::Retire => {}
            }
        }
    }
}

fn outcome_counts(receipt: &Receipt) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for change in &receipt.outcomes {
        *counts.entry(change.outcome.as_str().to_owned()).or_insert(0) += 1;
    }
    counts
}

/// Returns the reason for which the plan removes the instance at `address`.
fn removal_reason(plan: &Plan, address: &Address) -> &'static str {
    let mut rows = plan.capacity.explain.iter();
    let Some(row) = rows.find(|row| row.address == *address) else { return "unknown" };
    let because = match (&row.reason, &row.retire_reason) {
        (Reason::Retire { because }, _) | (_, Some(because)) => because,
        (Reason::Resize { .. }, None) => return "resize",
        (Reason::Launch { .. } | Reason::Keep { .. }, None) => return "unknown",
    };
    reconcile::retire_reason_label(because)
}

#[cfg(test)]
mod tests;
