//! The reconcile body: decides when to read, when to plan and what to apply.

mod plan_rows;

pub(super) use plan_rows::{instance_of, launched_rows, retire_reason_label, retired_rows};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::applies::ApplyRun;
use super::contingency::Cover;
use super::counters::Counter;
use super::event::{Effect, PlanScope, Ticket};
use super::gates::{self, GateContext, GateDecision, evaluate_gates};
use super::interruption::{PlannedReplacements, StepScope};
use super::launches_in_progress::expected_instances;
use super::narrow_scope::narrowed_scope;
use super::observation::BUSY_REFRESH;
use super::observation_diff::is_same_world;
use super::persisted_state::{LaunchDemand, launch_digests};
use super::persistence::PERSISTED_BYTES_MAX;
use super::planning::{LastPlanned, PlanningInput, PlanningPass, PlanningRun, first_start_end};
use super::state::{AHEAD_READ_INTERVAL, ControllerState};
use super::status::{ApprovedBy, Blocked, BlockedReason, CompletedApply, ControllerAction};
use super::{contingency, inflight_launches, planning_snapshot};
use crate::model::desired::Mode;
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::{Node, Observed};
use crate::model::saturating_time::later;
use crate::plan::Plan;
use crate::plan::wire::ResourceChange;
use crate::telemetry::histogram::Measurement;

/// Number of times that a plan is narrowed by its blocked changes.
const NARROWING_ROUNDS_MAX: u32 = 3;
/// Longest time with additive plans alone, however many pods arrive.
const ADDITIVE_ONLY_MAX: SignedDuration = SignedDuration::from_mins(1);
/// Time between two plans from an unchanged observation. Time-dependent changes may become due.
pub(super) const REPLAN_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// Time after which an unexplained mass removal is planned again: the branch is read by then.
const UNEXPLAINED_WAIT: SignedDuration = SignedDuration::from_secs(10);
const CONCURRENT_APPLIES_MAX: usize = 4;

impl ControllerState {
    /// Starts everything that is due.
    pub(super) fn advance(&mut self, scope: StepScope, effects: &mut Vec<Effect>) {
        if self.leadership.has_exited() {
            return;
        }
        if let Some(persisted) = &mut self.persistence.loaded {
            persisted.forget(self.now);
            let launching = self.applies.launching_addresses();
            inflight_launches::forget(&mut persisted.in_doubt_launches, &launching, self.now);
        }
        self.advance_interruptions(scope, effects);
        self.start_reads(effects);
        if self.leadership.is_stopping() {
            self.save_if_changed(effects);
            if self.applies.is_empty() && !self.persistence.is_saving() {
                self.leadership.exit();
                effects.push(Effect::Exit);
            } else {
                self.wake_at(later(self.now, BUSY_REFRESH), effects);
            }
            return;
        }
        self.revisions.adopt_waiting(self.persistence.loaded.as_mut(), self.now);
        self.plan_if_due(effects);
        self.open_nodes(effects);
        self.annotate_nodes(effects);
        self.save_if_changed(effects);
        self.drop_blocked_applies();
        if let Some(saved) = &self.persistence.saved {
            self.applies.start_persisted(saved, effects);
        }
        if self.start.once && (self.is_idle() || self.persistence.has_given_up_loading()) {
            self.leadership.exit();
            effects.push(Effect::Exit);
            return;
        }
        self.wake_at(self.next_wakeup(), effects);
    }

    fn wake_at(&mut self, moment: Timestamp, effects: &mut Vec<Effect>) {
        self.wakes_at = Some(moment);
        effects.push(Effect::WakeAt(moment));
    }

    pub(super) fn on_planner_missing(&mut self, ticket: Ticket) {
        if self.planning.run.as_ref().is_some_and(|planning| planning.ticket == ticket) {
            self.planning.run = None;
            self.revisions.reread_served(self.persistence.loaded.as_ref());
            self.planning.replan_at = later(self.now, BUSY_REFRESH);
        }
    }

    fn start_reads(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        if self.persistence.start_load_if_due(now) {
            effects.push(Effect::LoadState);
        }
        if self.leadership.is_stopping() {
            return;
        }
        // The revision to serve depends on the persisted state.
        if self.persistence.loaded.is_some() && self.revisions.reads.is_due(now) {
            self.revisions.reads.start(now);
            let persisted = self.persistence.loaded.as_ref();
            let verified = persisted.and_then(|persisted| persisted.verified.clone());
            effects.push(Effect::ReadBranch { verified });
        }
        self.revisions.read_required(effects, now);
        if self.observation.start_if_due(self.revisions.settings(), now) {
            effects.push(Effect::Observe);
        }
    }

    fn plan_if_due(&mut self, effects: &mut Vec<Effect>) {
        let (Some(revision), Some(seen)) =
            (self.revisions.served.clone(), self.observation.latest.clone())
        else {
            return;
        };
        if !self.may_plan(&seen) {
            return;
        }
        let is_same_input = self.planning.last.as_ref().is_some_and(|last| {
            let world = &last.world;
            last.commit == revision.commit
                && last.cluster_pools == revision.cluster_pools
                && (Arc::ptr_eq(world, &seen) || is_same_world(world, &seen))
        });
        if is_same_input && let Some(last) = &mut self.planning.last {
            // An equal observation needs no second comparison.
            last.world = Arc::clone(&seen);
        }
        let has_same_interruptions = self
            .planning
            .settled_version
            .is_none_or(|settled| settled == self.interruptions.version());
        if is_same_input && has_same_interruptions && self.now < self.planning.replan_at {
            return;
        }
        if !self.needs_plan_beside_launches(&seen) {
            return;
        }
        let Some(persisted) = &self.persistence.loaded else { return };
        let requests = self.applies.current_requests();
        let fallback_since =
            inflight_launches::fallback_since(&persisted.in_doubt_launches, &requests)
                .unwrap_or(Timestamp::MAX);
        let launches = self.applies.launches_in_progress(&seen, &self.observation.unobserved);
        let launches_in_progress = launches.instances.clone();
        let mut interrupted = self.interruptions.planned_as_gone();
        interrupted.extend(self.young_instances_without_node(&seen));
        let world = planning_snapshot::planning_snapshot(
            &seen,
            &self.observation.unobserved,
            &interrupted,
            persisted.unavailable_offerings.exclusions_found_before(fallback_since, self.now),
            &self.planning.planned_pods,
            launches,
        );
        let pass = if self.needs_additive_plan_first(&seen) {
            PlanningPass::AdditiveFirst
        } else {
            PlanningPass::Narrowed(0)
        };
        if pass == PlanningPass::AdditiveFirst {
            self.planning.additive_only_since.get_or_insert(self.now);
        }
        let mut limits = self.widest_scope();
        limits.skips_demand_scenarios = pass == PlanningPass::AdditiveFirst;
        // While a removal is being applied, plan launches only, and leave its nodes alone.
        if !self.applies.is_empty() || pass == PlanningPass::AdditiveFirst {
            limits.changeable_nodes = Some(BTreeSet::new());
        }
        let start_end = first_start_end(&seen, self.now).unwrap_or(Timestamp::MAX);
        self.planning.last = Some(LastPlanned {
            world: seen,
            commit: revision.commit.clone(),
            cluster_pools: revision.cluster_pools.clone(),
        });
        self.planning.replan_at = later(self.now, REPLAN_INTERVAL).min(start_end);
        (self.planning.settled_version, self.planning.covered_version) = (None, None);
        self.planning.interruptions_version = self.interruptions.version();
        let input = PlanningInput { world, interrupted, launches_in_progress };
        self.start_planning(input, limits, pass, effects);
    }

    /// Returns true if nothing in progress would make a plan from this observation outdated.
    fn may_plan(&self, seen: &Observed) -> bool {
        self.planning.run.is_none()
            && self.persistence.loaded.is_some()
            && self.observation.is_fresh()
            && self.applies.runs.len() < CONCURRENT_APPLIES_MAX
            && !self.interruptions.uncordons.has_in_progress()
            && self.are_launches_counted(seen)
    }

    /// Returns the scope of the published plan. It is additive if the mode forbids removals, so
    /// that an approval covers exactly the plan that is applied.
    fn widest_scope(&self) -> PlanScope {
        let running_pods_only = self.revisions.serves_substitute();
        if running_pods_only || self.mode() == Mode::Additive {
            PlanScope { running_pods_only, ..PlanScope::additive() }
        } else {
            PlanScope::default()
        }
    }

    /// Returns true if an additive plan goes first: new pods are pending, and a full plan takes
    /// several times as long. A full plan goes first if it may avoid a launch, or if none exists
    /// yet.
    fn needs_additive_plan_first(&self, seen: &Observed) -> bool {
        let (Some(revision), Some(LastPlanned { world: planned, commit, .. })) =
            (&self.revisions.served, &self.planning.last)
        else {
            return false;
        };
        let cordoned = |node: &Node| node.cordon_reason().is_some();
        *commit == revision.commit
            && !self.start.once
            && self.may_act()
            && self.applies.is_empty()
            && self.widest_scope().is_unlimited()
            && self.planning.current.is_some()
            && self
                .planning
                .additive_only_since
                .is_none_or(|since| self.now < later(since, ADDITIVE_ONLY_MAX))
            && !seen.nodes.values().any(cordoned)
            && planning_snapshot::has_new_pending_pods(planned, seen)
    }

    fn start_planning(
        &mut self,
        input: PlanningInput,
        limits: PlanScope,
        pass: PlanningPass,
        effects: &mut Vec<Effect>,
    ) {
        let Some(revision) = &self.revisions.served else { return };
        let (commit, cluster_pools) = (revision.commit.clone(), revision.cluster_pools.clone());
        let ticket = self.next_ticket();
        let planning = PlanningRun {
            ticket,
            is_published: limits == self.widest_scope()
                && self.applies.is_empty()
                && pass != PlanningPass::AdditiveFirst,
            scope: limits.clone(),
            pass,
            interruptions_version: self.interruptions.version(),
            terminations_version: self.observation.unobserved.terminations(),
            required_observation: self.observation.required(),
            cluster_pools,
            input,
        };
        let world = Arc::clone(&planning.input.world);
        self.planning.run = Some(planning);
        effects.push(Effect::Plan { ticket, commit, world, limits });
    }

    /// Returns true if events since the start of a planning run changed its inputs.
    fn is_outdated(&self, planning: &PlanningRun) -> bool {
        let served = self.revisions.served.as_ref();
        planning.required_observation != self.observation.required()
            || served.is_some_and(|served| served.cluster_pools != planning.cluster_pools)
            || planning.interruptions_version != self.interruptions.version()
            || planning.terminations_version != self.observation.unobserved.terminations()
            || planning.scope.running_pods_only != self.revisions.serves_substitute()
            || self.persistence.loaded.is_none()
    }

    pub(super) fn on_planned(
        &mut self,
        ticket: Ticket,
        plan: Arc<Plan>,
        took: SignedDuration,
        effects: &mut Vec<Effect>,
    ) {
        let Some(planning) = self.planning.run.take() else { return };
        self.time_planning(&planning.scope, took);
        if planning.ticket != ticket || self.is_outdated(&planning) {
            self.planning.replan_at = self.now;
            return;
        }
        let is_published = planning.is_published;
        if is_published {
            // A plan with errors decides about no node.
            if !plan.errored {
                self.opening.note_planned(&planning.input.world);
            }
            self.set_current_plan(&plan, planning.scope.running_pods_only);
        }
        let decisions = self.evaluate_plan(&plan, is_published);
        // Later rounds leave out blocked changes.
        if !matches!(planning.pass, PlanningPass::Narrowed(1..)) {
            self.planning.replacements = PlannedReplacements::from_plan(
                &plan,
                &blocked_by_address(&decisions),
                planning.input.interrupted.clone(),
            );
        }
        let blocked = blocked_changes(&decisions);
        match planning.pass {
            PlanningPass::Narrowed(_) => {}
            PlanningPass::AdditiveFirst if !decisions.is_empty() && blocked.is_empty() => {
                return self.start_apply(plan, planning.input);
            }
            // Nothing to launch, or some launches are blocked: the full plan decides.
            PlanningPass::AdditiveFirst => {
                return self.start_planning(
                    planning.input,
                    self.widest_scope(),
                    PlanningPass::Narrowed(0),
                    effects,
                );
            }
        }
        self.planning.replan_when_unblocked(&blocked, self.now);
        if self.uncordon_stale(&planning, &plan, effects) {
            return;
        }
        if decisions.is_empty() {
            return self.on_nothing_to_change(&planning, &plan);
        }
        if blocked.is_empty() {
            self.start_apply(plan, planning.input);
            return;
        }
        let is_partly_allowed = blocked.len() < decisions.len();
        self.narrow_or_settle(planning, &plan, &blocked, is_partly_allowed, effects);
    }

    /// Plans again without the blocked changes, if such a plan may start. Otherwise nothing is left
    /// to plan until a wake-up.
    fn narrow_or_settle(
        &mut self,
        planning: PlanningRun,
        plan: &Plan,
        blocked: &[(Address, BlockedReason)],
        is_partly_allowed: bool,
        effects: &mut Vec<Effect>,
    ) {
        let PlanningPass::Narrowed(round) = planning.pass else { return };
        let misses_pods = blocked.iter().any(|(_, reason)| *reason == BlockedReason::PodsMissing);
        if misses_pods && round == 0 {
            // The branch may have a commit that the cluster has applied already.
            self.revisions.reads.bring_forward_after(AHEAD_READ_INTERVAL, self.now);
        }
        let may_start = is_partly_allowed || self.may_start_in_part(blocked, &planning.input);
        match narrowed_scope(plan, &planning.scope, blocked, self.now) {
            Some(limits) if round < NARROWING_ROUNDS_MAX && may_start && self.may_act() => {
                self.start_planning(
                    planning.input,
                    limits,
                    PlanningPass::Narrowed(round + 1),
                    effects,
                );
            }
            Some(_) | None => {
                self.note_inseparable_group();
                self.counters.count(Counter::ReconcilesBlocked);
                self.planning.note_settled(&planning, plan);
            }
        }
    }

    fn on_nothing_to_change(&mut self, planning: &PlanningRun, plan: &Plan) {
        if matches!(planning.pass, PlanningPass::Narrowed(1..)) {
            self.note_inseparable_group();
        }
        self.counters.count(Counter::ReconcilesNoChanges);
        let is_done = planning.scope.is_unlimited() && !plan.errored;
        if is_done && self.revisions.accept_rules_if_done(self.persistence.loaded.as_mut()) {
            self.planning.replan_at = self.now;
        }
        self.planning.note_settled(planning, plan);
    }

    /// Returns true if this replica leads in a mode other than `observe`.
    pub fn may_act(&self) -> bool {
        self.leadership.is_leader() && self.mode() != Mode::Observe
    }

    /// Evaluates the gates of a plan's changes, and latches breakers.
    fn evaluate_plan(&mut self, plan: &Plan, is_published: bool) -> Vec<(Address, GateDecision)> {
        let now = self.now;
        if let (Some(persisted), Some(last)) = (&mut self.persistence.loaded, &self.planning.last) {
            persisted.evaluate_launches(&LaunchDemand::from_plan(plan, &last.world), now);
        }
        if is_published {
            self.update_launches_ahead(plan);
            self.detect_mass_removal(plan);
        }
        let Some(context) = self.gate_context() else { return Vec::new() };
        let decisions = evaluate_gates(plan, &context, now);
        if is_published && let Some(current) = &mut self.planning.current {
            current.blocked = blocked_by_address(&decisions);
        }
        decisions
    }

    pub(super) fn gate_context(&self) -> Option<GateContext<'_>> {
        // Uses the newest complete observation: a plan may wait before it is evaluated.
        let planned = &self.planning.last.as_ref()?.world;
        let seen = self.observation.latest.as_ref().filter(|seen| seen.is_complete());
        let world = seen.unwrap_or(planned);
        let stale = world.stale_nodes();
        let is_counted = |node: &&Node| !node.is_fargate() && !stale.contains_key(&node.name);
        let nodes = world.nodes.values().filter(is_counted);
        let unready = nodes.clone().filter(|node| !node.ready).count();
        Some(GateContext {
            is_leader: self.leadership.is_leader(),
            mode: self.mode(),
            revision: self.revisions.served.as_ref()?,
            persisted: self.persistence.loaded.as_ref()?,
            planned,
            observed: world,
            nodes: u32::try_from(nodes.count()).unwrap_or(u32::MAX),
            unready: u32::try_from(unready).unwrap_or(u32::MAX),
            in_progress: self.applies.addresses(),
            unanswered_requests: self.applies.unanswered_requests(),
            is_removing: self.applies.is_removing(),
            removal_retry_at: self.applies.removal_retry_times(),
            launch_retry_at: self.applies.launch_retry_times(),
            removal_planned_since: &self.planning.removal_planned_since,
            last_pod_event: self.planning.pod_event_times.last_pod_event(),
            pods_arriving: self.pods_arriving(),
            launches_ahead: &self.planning.launches_ahead,
            inseparable: self.planning.inseparable.as_ref(),
            removals_wait_until: (self.planning.unexplained_since)
                .map(|since| later(since, UNEXPLAINED_WAIT)),
        })
    }

    /// Starts an approved apply once its changes are persisted and no earlier launch is in doubt.
    fn start_apply(&mut self, plan: Arc<Plan>, input: PlanningInput) {
        if self.leadership.is_stopping() {
            return;
        }
        let (Some(revision), Some(PlanApproval { approved_by, cover })) =
            (&self.revisions.served, self.approval_of(&plan))
        else {
            return;
        };
        let plan = match &cover {
            Some(cover) => Arc::new(cover.without_dearer_offerings(&plan)),
            None => plan,
        };
        let world = self.planning.last.as_ref().map(|last| &*last.world);
        let launched_for = world.map(|world| launch_digests(&plan, world)).unwrap_or_default();
        let uncounted_removals = self.uncounted_removals(&plan);
        let record = CompletedApply::started(&plan, &revision.commit, approved_by, self.now);
        let requests = self.applies.current_requests();
        let Some(persisted) = &mut self.persistence.loaded else { return };
        let in_doubt = &mut persisted.in_doubt_launches;
        let registered = inflight_launches::register_launches(in_doubt, &plan, &requests, self.now);
        let previous_attempts = match registered {
            Ok(previous_attempts) => previous_attempts,
            Err(until) => return self.wait_for_inflight_launches(&plan, until),
        };
        let removed: BTreeSet<InstanceId> = retired_rows(&plan).filter_map(instance_of).collect();
        persisted.reserve_removals(&(&removed - &uncounted_removals), self.now);
        let contingency = if let Some(cover) = &cover {
            persisted.use_contingency(cover)
        } else {
            persisted.start_contingency(&plan, &record.commit, self.now);
            None
        };
        self.count_launches(&plan);
        let ticket = self.next_ticket();
        let is_removing = retired_rows(&plan).next().is_some();
        let unanswered_launches = previous_attempts.keys().cloned().collect();
        let PlanningInput { world, interrupted, launches_in_progress } = input;
        let expected = expected_instances(&plan, &previous_attempts, &world.cluster.name, self.now);
        let start = Effect::Apply {
            ticket,
            commit: record.commit.clone(),
            plan: Arc::clone(&plan),
            excluded_instances: interrupted.into_iter().collect(),
            only_if_empty: uncounted_removals.clone(),
            wait_until_ready: is_removing,
            running_pods_only: self.revisions.serves_substitute(),
            previous_attempts,
            launches_in_progress,
        };
        let waves = plan.capacity.waves.iter();
        let run = ApplyRun {
            addresses: waves.flat_map(|wave| wave.addresses.clone()).collect(),
            replacing: gates::replacing_rows(&plan),
            plan,
            record,
            is_removing,
            is_launching: true,
            removed_instances: removed,
            uncounted_removals,
            terminated_instances: BTreeSet::new(),
            expected,
            unanswered_launches,
            pending_attempts: BTreeMap::new(),
            finished_steps: BTreeSet::new(),
            undecided_instances: BTreeSet::new(),
            launched_for,
            contingency,
            deferred_start: Some(Box::new(start)),
        };
        self.applies.runs.insert(ticket, run);
    }

    fn uncounted_removals(&self, plan: &Plan) -> BTreeSet<InstanceId> {
        let context = self.gate_context();
        context.map(|context| gates::removals_without_pods(plan, &context)).unwrap_or_default()
    }

    fn approval_of(&self, plan: &Plan) -> Option<PlanApproval> {
        let context = self.gate_context()?;
        let approved_by = gates::approval(plan, &context, self.now)?;
        let is_covered = matches!(approved_by, ApprovedBy::Contingency { .. });
        let cover = is_covered.then(|| contingency::cover(plan, &context, self.now)).flatten();
        Some(PlanApproval { approved_by, cover })
    }

    /// Blocks the launches of a plan until earlier launches are visible. Instances that the plan
    /// does not count may be starting.
    fn wait_for_inflight_launches(&mut self, plan: &Plan, until: Timestamp) {
        self.counters.count(Counter::ReconcilesBlocked);
        if let Some(current) = &mut self.planning.current {
            let why = gates::with_message(BlockedReason::LaunchInDoubt { until });
            // An additive plan may have another change at the same address.
            let rows = &current.plan.resource_changes;
            let is_shown = |row: &&ResourceChange| {
                let mut at_address = rows.iter().filter(|other| other.address == row.address);
                at_address.any(|other| other.change.after == row.change.after)
            };
            let blocked = launched_rows(plan).filter(is_shown);
            current.blocked.extend(blocked.map(|row| (row.address.clone(), why.clone())));
        }
        // Not immediately: a launch that is still in doubt would block again.
        let soonest = later(self.now, BUSY_REFRESH);
        self.planning.replan_at = until.max(soonest);
    }

    /// Counts launches, and the reaction time of the burst that they serve.
    fn count_launches(&mut self, plan: &Plan) {
        let launches = u64::try_from(launched_rows(plan).count()).unwrap_or(u64::MAX);
        self.counters.add(Counter::LaunchesRequested, launches);
        if launches > 0
            && let Some(since) = self.observation.finish_reaction()
        {
            self.time_since(Measurement::Reaction, since);
        }
    }

    fn save_if_changed(&mut self, effects: &mut Vec<Effect>) {
        let may_save = self.leadership.is_leader() && !self.persistence.is_saving();
        if !may_save || self.now < self.persistence.retry.at {
            return;
        }
        if let Some(persisted) = &mut self.persistence.loaded {
            self.interruptions.update_persisted(persisted);
        }
        match self.persistence.start_save() {
            Ok(saved) => effects.extend(saved.map(Effect::SaveState)),
            Err(bytes) => self.on_state_too_large(bytes, effects),
        }
    }

    /// Handles a state that exceeds the limit with all optional entries dropped. The API server
    /// would reject it.
    fn on_state_too_large(&mut self, bytes: usize, effects: &mut Vec<Effect>) {
        let now = self.now;
        let why = format!(
            "the persisted state takes {bytes} bytes, more than the maximum of {PERSISTED_BYTES_MAX}"
        );
        self.action_failures.record_failure(ControllerAction::SaveState, "", &why, now);
        self.persistence.retry.record_failure(now);
        self.on_state_unsaved(effects);
    }
}

/// How a plan is approved.
struct PlanApproval {
    approved_by: ApprovedBy,
    /// Launches that the contingency of another plan covers, if it is approved by that.
    cover: Option<Cover>,
}

fn blocked_changes(decisions: &[(Address, GateDecision)]) -> Vec<(Address, BlockedReason)> {
    let blocked = decisions.iter().filter_map(|(address, decision)| match decision {
        GateDecision::Allow => None,
        GateDecision::Block(reason) => Some((address.clone(), reason.clone())),
    });
    blocked.collect()
}

fn blocked_by_address(decisions: &[(Address, GateDecision)]) -> BTreeMap<Address, Blocked> {
    let blocked = blocked_changes(decisions).into_iter();
    blocked.map(|(address, reason)| (address, gates::with_message(reason))).collect()
}

#[cfg(test)]
mod tests;
