//! Settings and operator decisions: modes, windows, suspensions, approvals, merges, nominations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fleetwright::controller::{AuthorizedRequest, Effect};
use fleetwright::model::desired::{AppliedBy, ApprovalRule, Mode};
use fleetwright::model::ids::{Digest, InstanceId, NodeName, Uid};
use fleetwright::model::observed::Node;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{CheckStatus, ResourceChange, WaveStep};
use jiff::{SignedDuration, Timestamp};

use super::{CallKind, InvariantChecks, PersistedState, RecordedCall, ReplicaStep, rows};
use crate::simulation::environment::ServedCommitChange;
use crate::simulation::repository::SimulatedCommit;

/// Time after its opening for which a node may still be nominated: an observation may be old, and
/// a second round of nominations follows the first.
const NOMINATED_AFTER_OPENING_MAX: SignedDuration = SignedDuration::from_mins(1);
/// Nominations that began before the observe-only mode end within this time.
const NOMINATIONS_END_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// Time for which a plan with unresolved terms does not end a confirmation. The controller retains
/// confirmations for 15 minutes from the first such observation, which precedes the plan.
const UNRESOLVED_FOR: SignedDuration = SignedDuration::from_mins(20);

/// Settings and operator decisions.
#[derive(Default)]
pub(super) struct OperatorDecisions {
    /// Commits in order.
    commits: Vec<MergedCommit>,
    /// Approved plans.
    approved: Vec<(Digest, Arc<Plan>)>,
    /// Instances whose removal was confirmed.
    confirmed: BTreeSet<InstanceId>,
    /// Confirmed instances that a later plan of the leader retained, by leader. Another reason for
    /// their removal requires another confirmation.
    lapsed: BTreeMap<usize, BTreeSet<InstanceId>>,
    last_plan: BTreeMap<usize, Arc<Plan>>,
    /// Start of the observe-only mode without applies in progress, by replica.
    observe_only_since: BTreeMap<usize, Timestamp>,
    /// Time at which each node was opened first.
    opened: BTreeMap<NodeName, Timestamp>,
}

struct MergedCommit {
    name: String,
    at: Timestamp,
    by: AppliedBy,
    ci_timeout: SignedDuration,
}

impl OperatorDecisions {
    /// Forgets the decisions of a process that has ended.
    pub(super) fn record_restart(&mut self, replica: usize) {
        self.observe_only_since.remove(&replica);
        self.lapsed.remove(&replica);
        self.last_plan.remove(&replica);
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.commits.iter().position(|commit| commit.name == name)
    }
}

impl InvariantChecks {
    pub(crate) fn record_commit(&mut self, files: &SimulatedCommit, at: Timestamp) {
        let controller = &files.fleet.controller;
        let (by, ci_timeout) = (controller.applied_by, controller.ci_timeout);
        let periods = files.desired.pools.values().filter_map(|pool| pool.termination_grace_period);
        self.grace_periods.extend(periods);
        self.decisions.commits.push(MergedCommit { name: files.name.clone(), at, by, ci_timeout });
    }

    /// Records an operator request, and the plan that the operator saw.
    pub(crate) fn record_request(&mut self, request: &AuthorizedRequest, plan: Option<&Arc<Plan>>) {
        self.has_requests = true;
        match request {
            AuthorizedRequest::Approve { digest, .. } => {
                let seen = plan.filter(|plan| plan.capacity.digest == *digest);
                self.decisions.approved.extend(seen.map(|plan| (digest.clone(), Arc::clone(plan))));
            }
            AuthorizedRequest::Confirm { instance, .. } => {
                self.decisions.confirmed.insert(instance.clone());
                self.decisions.lapsed.values_mut().for_each(|lapsed| {
                    lapsed.remove(instance);
                });
            }
            AuthorizedRequest::Suspend { .. }
            | AuthorizedRequest::Resume { .. }
            | AuthorizedRequest::BreakGlass { .. }
            | AuthorizedRequest::EndBreakGlass { .. }
            | AuthorizedRequest::Reset { .. } => {}
        }
    }

    /// Records the settings of the commit that a replica serves.
    pub(super) fn record_settings(&mut self, step: &ReplicaStep<'_>) {
        let is_observe_only =
            step.settings.mode == Mode::Observe && step.status.in_progress.is_empty();
        if is_observe_only {
            self.decisions.observe_only_since.entry(step.replica).or_insert(step.now);
        } else {
            self.decisions.observe_only_since.remove(&step.replica);
        }
        for effect in step.effects {
            let (nominations, nodes): (_, &[Node]) =
                if let Effect::NominatePods { nominations } = effect {
                    (nominations, &[])
                } else if let Effect::OpenNodes { nominations, nodes, .. } = effect {
                    (nominations, nodes)
                } else {
                    continue;
                };
            if !nominations.is_empty() && !step.settings.nominates_pods() {
                self.fail(step.now, "I25: pods are nominated without the setting");
            }
            let is_open = |node: &NodeName| {
                let opened = self.decisions.opened.get(node);
                opened.is_some_and(|at| step.now.duration_since(*at) > NOMINATED_AFTER_OPENING_MAX)
            };
            if nominations.iter().any(|nomination| is_open(&nomination.node)) {
                self.fail(step.now, "I25: a pod is nominated to a node that is open");
            }
            if nodes.iter().any(|node| !(node.ready && node.is_closed())) {
                self.fail(step.now, "I25: a node is opened that is not Ready or not closed");
            }
        }
    }

    /// I21 to I24: settings and operators allow each started apply.
    pub(super) fn check_settings(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Apply { plan, commit, .. } = effect else {
            return self.check_observe_only_effect(effect, step);
        };
        let ReplicaStep { now, status, settings, .. } = *step;
        let removes = rows(plan, WaveStep::Retire).next().is_some();
        match settings.mode {
            Mode::Observe => self.fail(now, "I21: an apply starts in mode observe"),
            Mode::Additive if removes => self.fail(now, "I21: a removal starts in mode additive"),
            Mode::Additive | Mode::Full => {}
        }
        if status.suspended.is_some() {
            self.fail(now, "I22: an apply starts during a suspension");
        }
        self.check_confirmations(plan, step);
        // The controller compares windows with its own clock, which may be wrong.
        let clock = status.now;
        if status.break_glass.is_some() {
            return;
        }
        if !step.guard.is_open(clock) {
            self.fail(now, &format!("I22: an apply starts at {clock:.0}, outside of all windows"));
        }
        if !self.is_approved(plan, settings.approval) {
            self.fail(now, "I23: an unapproved plan is applied");
        }
        let Some(from) = step.persisted_state.served_commit.clone() else { return };
        if status.repository.substitute_for.as_ref() == Some(&from) {
            return self.check_substitute(plan, step);
        }
        let applied = is_applied(step.persisted_state, commit);
        let to = commit.clone();
        self.check_merge_wait(
            now,
            &ServedCommitChange { from, to, applied, break_glass: false, gone: false },
        );
    }

    /// I24: a commit that stands in for the served one launches only for existing pods.
    fn check_substitute(&mut self, plan: &Plan, step: &ReplicaStep<'_>) {
        if rows(plan, WaveStep::Retire).next().is_some() {
            self.fail(step.now, "I24: a substitute commit removes an instance");
        }
        let none = BTreeMap::new();
        let there = self.base_of(step.replica, plan).map_or(&none, |over| &over.pods);
        let more =
            plan.capacity.demand.iter().find(|row| {
                row.counts.planned > there.get(&row.workload).copied().unwrap_or_default()
            });
        if let Some(row) = more {
            let what = format!("{} pods of {}", row.counts.planned, row.workload);
            let what = format!("I24: a substitute commit plans {what}");
            self.fail(step.now, &what);
        }
    }

    /// I21: a controller in observe-only mode only reverts its earlier actions.
    fn check_observe_only_effect(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let does = match effect {
            Effect::Cordon { .. }
            | Effect::CordonWithoutLease { .. }
            | Effect::Evict { .. }
            | Effect::Terminate { .. }
            | Effect::NominatePods { .. }
            | Effect::Acknowledge { .. } => true,
            // A step finishes terminations before it serves the commit that changes the mode.
            Effect::DeleteNode { .. } => {
                let since = self.decisions.observe_only_since.get(&step.replica);
                since.is_some_and(|since| *since < step.now)
            }
            // A node that was closed before must open.
            Effect::OpenNodes { nominations, .. } => !nominations.is_empty(),
            Effect::Uncordon { .. }
            | Effect::LoadState
            | Effect::SaveState(_)
            | Effect::ReadBranch { .. }
            | Effect::ReadCommit { .. }
            | Effect::Observe
            | Effect::Plan { .. }
            | Effect::Apply { .. }
            | Effect::AnswerOfferingAttempt { .. }
            | Effect::InterruptApplies
            | Effect::WakeAt(_)
            | Effect::Exit => false,
        };
        if does && step.settings.mode == Mode::Observe {
            self.fail(step.now, &format!("I21: mode observe has the effect {effect:?}"));
        }
    }

    /// Records confirmations that lapse because a plan of the leader retains their instances. A
    /// later leader may have received them before.
    pub(super) fn record_lapsed_confirmations(&mut self, step: &ReplicaStep<'_>) {
        let ReplicaStep { replica, status, .. } = *step;
        let held = status.plan.as_ref().map(|now| Arc::clone(&now.plan));
        if !status.is_leader {
            self.decisions.lapsed.remove(&replica);
            self.decisions.last_plan.extend(held.map(|plan| (replica, plan)));
            return;
        }
        let Some(plan) = held else { return };
        let before = self.decisions.last_plan.insert(replica, Arc::clone(&plan));
        let young = |since: &Timestamp| step.now.duration_since(*since) < UNRESOLVED_FOR;
        let unread = self.last_base(replica).is_some_and(|over| over.unread.values().any(young));
        // A plan of a substitute commit or with unresolved terms says nothing about removals.
        if plan.errored
            || unread
            || !plan.complete
            || before.is_some_and(|before| Arc::ptr_eq(&before, &plan))
        {
            return;
        }
        let removed = rows(&plan, WaveStep::Retire);
        let removed = removed.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        let removed: BTreeSet<InstanceId> = removed.collect();
        let stays = self.decisions.confirmed.difference(&removed).cloned();
        self.decisions.lapsed.entry(replica).or_default().extend(stays);
    }

    /// I23: each removal that requires a confirmation has one.
    fn check_confirmations(&mut self, plan: &Plan, step: &ReplicaStep<'_>) {
        let lapsed = self.decisions.lapsed.get(&step.replica);
        let confirmed = |id: &InstanceId| {
            self.decisions.confirmed.contains(id)
                && !lapsed.is_some_and(|lapsed| lapsed.contains(id))
        };
        let asks = |row: &&ResourceChange| {
            let before = row.change.before.as_ref();
            let pool = before.and_then(|before| before.pool.as_ref());
            let known = before.and_then(|before| before.instance_id.as_ref());
            pool.is_some_and(|pool| step.settings.confirm_pools.contains(pool))
                && !known.is_some_and(confirmed)
        };
        if let Some(row) = rows(plan, WaveStep::Retire).find(asks) {
            let what = format!("I23: {} is removed without a confirmation", row.address);
            self.fail(step.now, &what);
        }
    }

    /// Returns whether the rule approves a plan, or operators approved all its changes.
    fn is_approved(&self, plan: &Plan, rule: ApprovalRule) -> bool {
        let by_rule = match rule {
            ApprovalRule::Merge => true,
            ApprovalRule::Digest => false,
            ApprovalRule::Policy => {
                plan.checks.iter().all(|check| check.status == CheckStatus::Pass)
            }
        };
        let changes = |plan: &Plan| {
            let steps = [WaveStep::Launch, WaveStep::Retire];
            let all =
                steps.into_iter().flat_map(|step| rows(plan, step).cloned().collect::<Vec<_>>());
            all.map(|row| (row.address, row.change)).collect::<Vec<_>>()
        };
        let covers = |approved: &Arc<Plan>| {
            let all = changes(approved);
            changes(plan).iter().all(|change| all.contains(change))
        };
        let approved = |(digest, approved): &(Digest, Arc<Plan>)| {
            *digest == plan.capacity.digest || covers(approved)
        };
        by_rule || self.decisions.approved.iter().any(approved)
    }

    /// I21: a replica in observe-only mode writes nothing.
    pub(super) fn check_observe_only_call(&mut self, call: &RecordedCall) {
        let since = self.decisions.observe_only_since.get(&call.replica);
        let writes = match &call.kind {
            CallKind::Launch(..)
            | CallKind::Terminate(_)
            | CallKind::Raise { .. }
            | CallKind::Evict(..)
            | CallKind::DeletePod(..)
            | CallKind::Acknowledge(..)
            | CallKind::Nominate(..) => true,
            CallKind::Cordon { on, .. } => *on,
            CallKind::Open(_)
            | CallKind::Launched(_)
            | CallKind::Ended(_)
            | CallKind::Pinned(..)
            | CallKind::Serves(_) => false,
        };
        let is_nomination = matches!(call.kind, CallKind::Nominate(..));
        let may_end_within =
            if is_nomination { NOMINATIONS_END_WITHIN } else { SignedDuration::ZERO };
        let is_later = |since: &Timestamp| call.began.duration_since(*since) > may_end_within;
        if writes && since.is_some_and(is_later) {
            self.fail(call.at, &format!("I21: mode observe has the call {:?}", call.kind));
        }
    }

    /// I24: a merge waits for the receipt of CI or the CI timeout.
    pub(super) fn check_merge_wait(&mut self, at: Timestamp, served: &ServedCommitChange) {
        let ServedCommitChange { from, to, applied, break_glass, gone } = served;
        let (Some(before), Some(after)) = (self.decisions.index(from), self.decisions.index(to))
        else {
            return;
        };
        let commits = &self.decisions.commits;
        // The wait starts with the first merge after the served commit. Later merges do not extend
        // it.
        let Some(first) = commits.get(before + 1).filter(|_| after > before) else { return };
        let commit = &commits[after];
        let ci_timeout = commit.ci_timeout.min(first.ci_timeout);
        // A clock that is ahead measures a longer wait.
        let ci_timeout = ci_timeout - self.clocks.max_difference_since(first.at);
        let due = first.at.checked_add(ci_timeout).unwrap_or(first.at);
        if commit.by == AppliedBy::Ci && !applied && !break_glass && !gone && at < due {
            let what = format!("I24: a merge is served before {due:.0} without a receipt of CI");
            self.fail(at, &what);
        }
    }

    /// I25: pods are nominated before their node opens, and not long after.
    pub(super) fn check_nomination(&mut self, call: &RecordedCall, pod: &Uid, node: &NodeName) {
        let opened = self.decisions.opened.get(node).copied();
        let is_late = |at: Timestamp| call.began.duration_since(at) > NOMINATED_AFTER_OPENING_MAX;
        if opened.is_some_and(is_late) {
            let why = format!("I25: pod {pod} is nominated to {node}, which is open");
            self.fail(call.at, &why);
        }
    }

    pub(super) fn record_opening(&mut self, node: &NodeName, at: Timestamp) {
        self.decisions.opened.entry(node.clone()).or_insert(at);
    }
}

/// Returns whether CI has left a complete receipt for a commit.
pub(crate) fn is_applied(persisted_state: &PersistedState, commit: &str) -> bool {
    persisted_state
        .ci_apply
        .as_ref()
        .is_some_and(|applied| applied.complete && applied.commit == commit)
}
