//! Settings and operator decisions: modes, windows, suspensions, approvals, merges, nominations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fleetwright::controller::{AuthorizedRequest, Effect};
use fleetwright::model::desired::{AppliedBy, ApprovalRule, Mode};
use fleetwright::model::ids::{Digest, InstanceId, Uid};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{CheckStatus, ResourceChange, WaveStep};
use jiff::{SignedDuration, Timestamp};

use super::{CallKind, InvariantChecks, PersistedState, RecordedCall, ReplicaStep, rows};
use crate::simulation::environment::ServedCommitChange;
use crate::simulation::repository::SimulatedCommit;

/// Most times that a pod is nominated, the least time between two of them, and the most at once.
const NOMINATED_MOST: usize = 3;
const NOMINATED_AGAIN: SignedDuration = SignedDuration::from_secs(10);
const NOMINATED_AT_ONCE: usize = 100;

/// How long nothing is made of it that a plan has an instance stay, since something could not be looked up: confirmations
/// are held for 15 minutes from the first look that says so, which comes before the first plan.
const UNREAD_FOR: SignedDuration = SignedDuration::from_mins(20);

/// What is known of settings and people.
#[derive(Default)]
pub(super) struct OperatorDecisions {
    /// Commits, in order.
    commits: Vec<MergedCommit>,
    /// Plans that somebody approved.
    approved: Vec<(Digest, Arc<Plan>)>,
    /// Machines of which somebody confirmed the removal.
    confirmed: BTreeSet<InstanceId>,
    /// Those of them that a plan of the leader had not go since, by the leader: that they go for another reason is another
    /// question. And the plan that it was last told of by.
    lapsed: BTreeMap<usize, BTreeSet<InstanceId>>,
    told: BTreeMap<usize, Arc<Plan>>,
    /// Since when a replica only looks on, with nothing under way.
    looks_on: BTreeMap<usize, Timestamp>,
    /// When a life nominated each pod.
    nominated: BTreeMap<(usize, Uid), Vec<Timestamp>>,
}

/// A commit.
struct MergedCommit {
    name: String,
    at: Timestamp,
    by: AppliedBy,
    patience: SignedDuration,
}

impl OperatorDecisions {
    /// Forgets what a life did that has ended.
    pub(super) fn restarted(&mut self, replica: usize) {
        self.looks_on.remove(&replica);
        self.lapsed.remove(&replica);
        self.told.remove(&replica);
        self.nominated.retain(|(of, _), _| *of != replica);
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.commits.iter().position(|commit| commit.name == name)
    }
}

impl InvariantChecks {
    /// Notes a commit.
    pub(crate) fn committed(&mut self, files: &SimulatedCommit, at: Timestamp) {
        let controller = &files.fleet.controller;
        let (by, patience) = (controller.applied_by, controller.ci_timeout);
        self.said.commits.push(MergedCommit { name: files.name.clone(), at, by, patience });
    }

    /// Notes what somebody asks for, who sees `plan`.
    pub(crate) fn somebody_asks(&mut self, request: &AuthorizedRequest, plan: Option<&Arc<Plan>>) {
        self.asked = true;
        match request {
            AuthorizedRequest::Approve { digest, .. } => {
                let seen = plan.filter(|plan| plan.capacity.digest == *digest);
                self.said.approved.extend(seen.map(|plan| (digest.clone(), Arc::clone(plan))));
            }
            AuthorizedRequest::Confirm { instance, .. } => {
                self.said.confirmed.insert(instance.clone());
                self.said.lapsed.values_mut().for_each(|lapsed| {
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

    /// Notes what the settings of a replica say, which are those of the commit that it serves.
    pub(super) fn heeds(&mut self, step: &ReplicaStep<'_>) {
        let looks_on = step.settings.mode == Mode::Observe && step.status.in_progress.is_empty();
        if looks_on {
            self.said.looks_on.entry(step.replica).or_insert(step.now);
        } else {
            self.said.looks_on.remove(&step.replica);
        }
        let hints = |effect: &&Effect| matches!(effect, Effect::Nominate { .. });
        let nominated = step.effects.iter().filter(hints).count();
        if nominated > NOMINATED_AT_ONCE {
            self.fail(step.now, &format!("I25: {nominated} pods are nominated at once"));
        }
        if nominated > 0 && !step.settings.nominate_pods {
            self.fail(step.now, "I25: pods are nominated, and nobody asked for that");
        }
    }

    /// I21 to I24: nothing is begun that settings and people do not allow.
    pub(super) fn is_allowed(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Apply { plan, commit, .. } = effect else {
            return self.only_looks(effect, step);
        };
        let ReplicaStep { now, status, settings, .. } = *step;
        let removes = rows(plan, WaveStep::Retire).next().is_some();
        match settings.mode {
            Mode::Observe => self.fail(now, "I21: a plan is begun in mode observe"),
            Mode::Additive if removes => self.fail(now, "I21: a removal is begun in mode additive"),
            Mode::Additive | Mode::Full => {}
        }
        if status.suspended.is_some() {
            self.fail(now, "I22: a plan is begun while somebody has the loop suspended");
        }
        self.is_confirmed(plan, step);
        // By its own clock, which may be wrong.
        let clock = status.now;
        if status.break_glass.is_some() {
            return;
        }
        if !step.guard.is_open(clock) {
            self.fail(now, &format!("I22: a plan is begun at {clock:.0}, outside of every window"));
        }
        if !self.is_approved(plan, settings.approval) {
            self.fail(now, "I23: a plan is begun that nobody has approved");
        }
        let Some(from) = step.kept.served_commit.clone() else { return };
        if status.repository.stands_in_for.as_ref() == Some(&from) {
            return self.stands_in(plan, step);
        }
        let applied = is_applied(step.kept, commit);
        let to = commit.clone();
        self.merge_waits(now, &ServedCommitChange { from, to, applied, glass: false, gone: false });
    }

    /// I24: of a commit that stands in for the one that is served only pods that there are have their instances.
    fn stands_in(&mut self, plan: &Plan, step: &ReplicaStep<'_>) {
        if rows(plan, WaveStep::Retire).next().is_some() {
            self.fail(step.now, "I24: a commit that stands in for another has a machine go");
        }
        let none = BTreeMap::new();
        let there = self.over.get(&step.replica).map_or(&none, |over| &over.pods);
        let more =
            plan.capacity.demand.iter().find(|row| {
                row.counts.planned > there.get(&row.workload).copied().unwrap_or_default()
            });
        if let Some(row) = more {
            let what = format!("{} pods of {}", row.counts.planned, row.workload);
            let what =
                format!("I24: {what} are planned for by a commit that stands in for another");
            self.fail(step.now, &what);
        }
    }

    /// I21: who looks on only does nothing but take back what it did before.
    fn only_looks(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let does = match effect {
            Effect::Cordon { mark, .. } => mark.is_some(),
            Effect::CordonWithoutLease { .. }
            | Effect::Evict { .. }
            | Effect::Terminate { .. }
            | Effect::DeleteNode { .. }
            | Effect::Acknowledge { .. }
            | Effect::Nominate { .. } => true,
            Effect::LoadState
            | Effect::SaveState(_)
            | Effect::ReadBranch
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
            self.fail(step.now, &format!("I21: in mode observe there is {effect:?}"));
        }
    }

    /// Notes which confirmations have lapsed, because a plan of the one that leads has their instances stay. Whoever leads
    /// after it may have been told of them before that was kept.
    pub(super) fn confirmations_lapse(&mut self, step: &ReplicaStep<'_>) {
        let ReplicaStep { replica, status, .. } = *step;
        let held = status.plan.as_ref().map(|now| Arc::clone(&now.plan));
        if !status.is_leader {
            self.said.lapsed.remove(&replica);
            self.said.told.extend(held.map(|plan| (replica, plan)));
            return;
        }
        let Some(plan) = held else { return };
        let before = self.said.told.insert(replica, Arc::clone(&plan));
        let young = |since: &Timestamp| step.now.duration_since(*since) < UNREAD_FOR;
        let unread = self.over.get(&replica).is_some_and(|over| over.unread.values().any(young));
        // One of a commit that stands in says nothing of what is to go, nor does one that could not look everything up.
        if plan.errored
            || unread
            || !plan.complete
            || before.is_some_and(|before| Arc::ptr_eq(&before, &plan))
        {
            return;
        }
        let goes = rows(&plan, WaveStep::Retire);
        let goes = goes.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        let goes: BTreeSet<InstanceId> = goes.collect();
        let stays = self.said.confirmed.difference(&goes).cloned();
        self.said.lapsed.entry(replica).or_default().extend(stays);
    }

    /// I23: what asks for a confirmation has it.
    fn is_confirmed(&mut self, plan: &Plan, step: &ReplicaStep<'_>) {
        let lapsed = self.said.lapsed.get(&step.replica);
        let confirmed = |id: &InstanceId| {
            self.said.confirmed.contains(id) && !lapsed.is_some_and(|lapsed| lapsed.contains(id))
        };
        let asks = |row: &&ResourceChange| {
            let before = row.change.before.as_ref();
            let pool = before.and_then(|before| before.pool.as_ref());
            let known = before.and_then(|before| before.instance_id.as_ref());
            pool.is_some_and(|pool| step.settings.confirm_pools.contains(pool))
                && !known.is_some_and(confirmed)
        };
        if let Some(row) = rows(plan, WaveStep::Retire).find(asks) {
            let what = format!("I23: {} goes, and nobody has confirmed that", row.address);
            self.fail(step.now, &what);
        }
    }

    /// Returns whether a plan is approved: by the rule, or because somebody approved all that it changes.
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
        by_rule || self.said.approved.iter().any(approved)
    }

    /// I21: what a replica writes which only looks on.
    pub(super) fn writes_nothing(&mut self, call: &RecordedCall) {
        let since = self.said.looks_on.get(&call.replica);
        let writes = match &call.what {
            CallKind::Launch(..)
            | CallKind::Terminate(_)
            | CallKind::Raise { .. }
            | CallKind::Evict(_)
            | CallKind::Acknowledge(..)
            | CallKind::Nominate(_) => true,
            CallKind::Cordon { on, .. } => *on,
            CallKind::Launched(_)
            | CallKind::Ended(_)
            | CallKind::Pinned(..)
            | CallKind::Serves(_) => false,
        };
        if writes && since.is_some_and(|since| call.began > *since) {
            self.fail(call.at, &format!("I21: in mode observe it {:?}", call.what));
        }
    }

    /// I24: a merge waits for the receipt of CI, or for as long as CI has.
    pub(super) fn merge_waits(&mut self, at: Timestamp, served: &ServedCommitChange) {
        let ServedCommitChange { from, to, applied, glass, gone } = served;
        let (Some(before), Some(after)) = (self.said.index(from), self.said.index(to)) else {
            return;
        };
        let commits = &self.said.commits;
        // The first that came after what was served: those that come meanwhile do not have it wait for longer.
        let Some(first) = commits.get(before + 1).filter(|_| after > before) else { return };
        let commit = &commits[after];
        let patience = commit.patience.min(first.patience);
        // By clocks of which one is ahead of another it seems longer ago.
        let patience = patience - self.clocks.apart_since(first.at);
        let due = first.at.checked_add(patience).unwrap_or(first.at);
        if commit.by == AppliedBy::Ci && !applied && !glass && !gone && at < due {
            let what =
                format!("I24: a merge is served before {due:.0}, and CI is not done with it");
            self.fail(at, &what);
        }
    }

    /// I25: a pod is nominated a bounded number of times, and not at once again.
    pub(super) fn nominates(&mut self, call: &RecordedCall, pod: &Uid) {
        let times = self.said.nominated.entry((call.replica, pod.clone())).or_default();
        let last = times.last().copied();
        times.push(call.began);
        let count = times.len();
        if count > NOMINATED_MOST {
            self.fail(call.at, &format!("I25: pod {pod} is nominated for the {count}th time"));
        }
        let soon = |last: Timestamp| {
            call.began.duration_since(last) + self.clocks.apart_since(last) < NOMINATED_AGAIN
        };
        if last.is_some_and(soon) {
            self.fail(call.at, &format!("I25: pod {pod} is nominated again at once"));
        }
    }
}

/// Returns whether CI has left a receipt of a commit.
pub(crate) fn is_applied(kept: &PersistedState, commit: &str) -> bool {
    kept.ci_apply.as_ref().is_some_and(|applied| applied.complete && applied.commit == commit)
}
