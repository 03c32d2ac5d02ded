//! Controller state that must survive a restart and that neither EC2 nor Kubernetes holds by
//! itself.
//!
//! It is stored in the cluster, beside the lease, so it is bounded. Every entry is either a hint,
//! whose loss costs another attempt, or an operator's request. Budgets do not depend on it alone:
//! [`PersistedState::merge_observed`] adds the instances that exist.

mod ineffective_launches;
mod records;
mod trust;

pub use ineffective_launches::Quarantine;
pub(super) use ineffective_launches::{LaunchDemand, launch_digests};
pub(super) use records::RepairRecord;
pub use records::{
    Announcement, ApprovalRecord, CiApply, InterruptionRecord, LaunchRecord, RemovalRecord,
    VerifiedCommit,
};

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::inflight_launches::InDoubtLaunches;
use super::mass_removal::FleetBaseline;
use super::move_history::MoveHistory;
use super::served_rules::ServedRules;
use super::status::{Breaker, Suspension};
use crate::apply::Bounds;
use crate::model::desired::RateLimit;
use crate::model::ids::{Address, InstanceId, PoolName};
use crate::model::observed::{Instance, InstanceState, Observed, tag};
use crate::model::saturating_time::{earlier, later};
use crate::model::unavailable_offerings::UnavailableOfferings;
use crate::plan::{Plan, canonical};

/// Most launches and most removals that are stored one by one; of older ones only their times
/// remain.
pub(super) const MOVES_MAX: usize = 400;
/// Most launches that any budget allows. The ids of this many are stored, so that none counts
/// twice.
pub(super) const LAUNCHES_MAX: usize = 4_000;
/// Most interruptions that are stored.
pub(super) const INTERRUPTIONS_MAX: usize = 400;
/// Most approvals that are stored.
const APPROVALS_MAX: usize = 20;
/// Most confirmations that are stored, the newest: as many removals as a page asks about.
const CONFIRMED_MAX: usize = 200;
/// Most approvals whose rows are stored, and most rows of one: a larger plan is approved as a whole
/// or not at all.
const APPROVALS_WITH_ROWS_MAX: usize = 3;
const APPROVED_ROWS_MAX: usize = 500;
/// Stored digits of the digest of an approved change.
const CHANGE_DIGEST_LENGTH: usize = 20;
/// Number of steps in which launches are compacted until the state fits; each step measures the
/// size once.
const COMPACTION_STEPS: usize = 8;
/// Launches and removals are stored this long: the longest window of any budget.
const MOVE_RETENTION: SignedDuration = RateLimit::WINDOW_MAX;
/// An instance replaced for a fault counts as broken this long. If its replacement fails too, as
/// with a faulty agent, its pool loses no more than its share in that time.
const REPAIR_COUNTS_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Most instances replaced for a fault within that time: each is stored.
pub(super) const REPAIRS_MAX: usize = 400;
/// An approval is valid this long.
const APPROVAL_TTL: SignedDuration = SignedDuration::from_hours(24);

/// Largest clock error: EC2 refuses requests signed by a clock that is further off. EC2 reports
/// times by its own clock.
pub(super) const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_mins(5);
/// Largest difference between the clocks of two processes.
pub(super) const CLOCK_DIFFERENCE_MAX: SignedDuration =
    SignedDuration::from_secs(CLOCK_SKEW_MAX.as_secs() * 2);

/// Time until the node of an instance must be Ready, as in an apply.
pub(super) const READY_WITHIN: SignedDuration = Bounds::DEFAULT.ready;

/// Controller state that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistedState {
    /// Commit that plans are made from while the controller waits for CI.
    #[serde(rename = "served")]
    pub served_commit: Option<String>,
    /// The last commit whose signatures were verified, if commits must be signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerifiedCommit>,
    /// The rules that were served last, which the next commit is judged by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<ServedRules>,
    /// Until when a newer commit waits for CI.
    #[serde(rename = "waitsUntil")]
    pub ci_wait_until: Option<Timestamp>,
    /// Last commit that a CI apply completed.
    #[serde(rename = "applied")]
    pub ci_apply: Option<CiApply>,
    /// Launched instances, the oldest first.
    #[serde(rename = "launched")]
    pub launches: Vec<LaunchRecord>,
    /// Instances removed by a decision of the controller, the oldest first.
    #[serde(rename = "removed")]
    pub removals: Vec<RemovalRecord>,
    /// Times of further launches and removals.
    #[serde(skip_serializing_if = "MoveHistory::is_empty")]
    pub moves: MoveHistory,
    /// Commit and pods at the last plan that was no mass removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<FleetBaseline>,
    /// Latched breakers.
    pub breakers: Vec<Breaker>,
    /// Suspension: no new change begins.
    pub suspended: Option<Suspension>,
    /// Break-glass: approvals and windows are bypassed.
    pub break_glass: Option<Suspension>,
    /// Approved digests.
    #[serde(rename = "approved")]
    pub approvals: Vec<ApprovalRecord>,
    /// Instances whose removal was confirmed, in the order of the confirmations.
    #[serde(rename = "confirmed")]
    pub confirmed_removals: Vec<InstanceId>,
    /// Ineffective launches before this time are forgiven.
    #[serde(rename = "forgiven")]
    pub forgiven_before: Option<Timestamp>,
    /// Pools that launch nothing for a while.
    pub quarantine: BTreeMap<PoolName, Quarantine>,
    /// Offerings without capacity.
    pub unavailable_offerings: UnavailableOfferings,
    /// Instances that terminate for a reason outside of plans.
    pub interruptions: Vec<InterruptionRecord>,
    /// Instances replaced lately for a fault, the oldest first.
    #[serde(rename = "repaired", skip_serializing_if = "Vec::is_empty")]
    pub repairs: Vec<RepairRecord>,
    /// Requested launches whose result is unknown.
    pub in_doubt_launches: Vec<InDoubtLaunches>,
    /// Number of entries dropped from the written state so that it fits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_entries: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl PersistedState {
    /// Adds our recently launched instances that exist, whether or not a process recorded them.
    /// Corrects launch times by the clock of EC2 where the recording clock was behind. Records
    /// which instances run a pod other than a daemon.
    pub fn merge_observed(&mut self, observed: &Observed, now: Timestamp) {
        let known: BTreeSet<InstanceId> =
            self.launches.iter().map(|launch| launch.instance.clone()).collect();
        let since = earlier(now, MOVE_RETENTION);
        let counted = self.moves.launches.known_instances();
        let mut new = Vec::new();
        for instance in observed.instances.values() {
            let ours =
                instance.is_managed_by(&observed.cluster.name) && instance.launched_at > since;
            let Some(pool) = instance.tags.get(tag::POOL).filter(|_| ours) else { continue };
            let launched_at = instance.launched_at.min(now);
            let is_counted =
                counted.contains(&instance.id) || self.moves.has_counted_all_of(launched_at);
            // A clock that is ahead may have placed the launch earlier than it was.
            let at = later(launched_at, CLOCK_SKEW_MAX).min(now);
            if !known.contains(&instance.id) && !is_counted {
                new.push(LaunchRecord {
                    instance: instance.id.clone(),
                    pool: pool.as_str().into(),
                    at,
                    ready_at: None,
                    useful: false,
                    from_start: instance.state == InstanceState::Pending,
                    passed_over: false,
                    launched_for: None,
                });
            }
        }
        self.launches.extend(new);
        let busy = instances_with_workload_pods(observed);
        let ready: BTreeSet<&InstanceId> = observed
            .nodes
            .values()
            .filter(|node| node.ready)
            .filter_map(|node| node.instance.as_ref())
            .collect();
        for launch in &mut self.launches {
            let found = observed.instances.get(&launch.instance);
            // A launch time in the future is ignored: it would move with each observation.
            let launched_at = found.map(|instance| instance.launched_at).filter(|at| *at <= now);
            launch.at = launched_at.map_or(launch.at, |at| launch.at.max(at));
            let runs = found.is_some_and(Instance::is_active);
            // An instance that ended early says nothing about its usefulness.
            let ended_early = !runs && !launch.is_ineffective(now);
            launch.useful |= busy.contains(&launch.instance) || ended_early;
            if launch.ready_at.is_none() && ready.contains(&launch.instance) {
                launch.ready_at = Some(now);
            }
        }
        self.launches.sort_by(|a, b| (a.at, &a.instance).cmp(&(b.at, &b.instance)));
    }

    /// Drops expired entries and entries beyond their limits.
    pub fn forget(&mut self, now: Timestamp) {
        let since = earlier(now, MOVE_RETENTION);
        self.launches.retain(|launch| launch.at > since);
        self.removals.retain(|removal| removal.at > since);
        self.approvals.retain(|approval| approval.at > earlier(now, APPROVAL_TTL));
        self.moves.forget(since, now);
        self.compact_launches(self.launches.len().saturating_sub(MOVES_MAX));
        // A pending removal may still be released, so it stays.
        let more = self.removals.len().saturating_sub(MOVES_MAX);
        for removal in self.removals.extract_if(.., |removal| !removal.pending).take(more) {
            self.moves.removals.add(removal.at, None);
        }
        self.repairs.retain(|repaired| now < later(repaired.at, REPAIR_COUNTS_FOR));
        keep_newest(&mut self.approvals, APPROVALS_MAX);
        let bare = self.approvals.len().saturating_sub(APPROVALS_WITH_ROWS_MAX);
        for approval in self.approvals.iter_mut().take(bare) {
            approval.rows.clear();
            approval.drop_contingency();
        }
        keep_newest(&mut self.confirmed_removals, CONFIRMED_MAX);
        let is_over = |request: &Option<Suspension>| {
            request.as_ref().is_some_and(|request| request.until.is_some_and(|until| until <= now))
        };
        if is_over(&self.suspended) {
            self.suspended = None;
        }
        self.expire_break_glass(now);
        // After a quarantine the pool is on probation for as long again.
        self.quarantine.retain(|_, quarantine| {
            now < later(
                quarantine.until,
                ineffective_launches::quarantine_duration(quarantine.times).saturating_mul(2),
            )
        });
        self.unavailable_offerings.forget(now);
    }

    /// Ends break-glass once its time is over. Break-glass without an end is not valid.
    pub(super) fn expire_break_glass(&mut self, now: Timestamp) {
        let is_active = |request: &mut Suspension| request.until.is_some_and(|until| now < until);
        self.break_glass.take_if(|request| !is_active(request));
    }

    /// Keeps only the time and id of this many launches. The oldest useful launches come first:
    /// their outcome is settled.
    fn compact_launches(&mut self, mut count: usize) {
        for settled in [true, false] {
            let applies = |launch: &mut LaunchRecord| !settled || launch.useful;
            let compacted: Vec<LaunchRecord> =
                self.launches.extract_if(.., applies).take(count).collect();
            count -= compacted.len();
            for LaunchRecord { instance, at, .. } in compacted {
                self.moves.record_launch(at, &instance);
            }
        }
    }

    /// Returns the time of every launch.
    pub(super) fn launch_times(&self) -> impl Iterator<Item = Timestamp> {
        self.launches.iter().map(|launch| launch.at).chain(self.moves.launches.times())
    }

    /// Returns the time of every removal, including pending ones.
    pub(super) fn removal_times(&self) -> impl Iterator<Item = Timestamp> {
        self.removals.iter().map(|removal| removal.at).chain(self.moves.removals.times())
    }

    /// Returns how many more removals may be pending at the same time.
    pub(super) fn pending_removal_room(&self) -> u32 {
        let pending = self.removals.iter().filter(|removal| removal.pending).count();
        u32::try_from(MOVES_MAX.saturating_sub(pending)).unwrap_or(0)
    }

    /// Returns the state to write, in at most `most` bytes where that is possible. Entries are
    /// dropped in this order, the cheapest loss first:
    ///
    /// 1. Rows and contingencies of approvals, the oldest approval first. Its plan is then approved
    ///    as a whole or not at all, and further launches need an approval.
    /// 2. Details of single launches, the oldest useful ones first. Budgets still count them, and
    ///    existing instances restore them.
    /// 3. Offerings without capacity. They are tried once more.
    /// 4. Digests of requested launches, the oldest first. Their results are awaited, and the
    ///    launches are not requested again.
    /// 5. Changes that were announced during an interruption. After a restart, their pods are not
    ///    evicted early.
    ///
    /// Removals, interruptions, repairs and operators' requests are never dropped. The caller
    /// compares the result with its limit ([`PersistedState::size`]).
    #[must_use]
    pub fn fit_within(&self, most: usize) -> Self {
        let mut state = self.clone();
        state.dropped_entries = 0;
        let mut size = state.size();
        for n in 0..state.approvals.len() {
            if size <= most {
                return state;
            }
            state.dropped_entries += std::mem::take(&mut state.approvals[n].rows).len();
            state.dropped_entries += usize::from(state.approvals[n].drop_contingency());
            size = state.size();
        }
        while size > most && !state.launches.is_empty() {
            let count = state.launches.len().div_ceil(COMPACTION_STEPS);
            state.dropped_entries += count;
            state.compact_launches(count);
            size = state.size();
        }
        if size > most {
            state.dropped_entries += std::mem::take(&mut state.unavailable_offerings).len();
            size = state.size();
        }
        for n in 0..state.in_doubt_launches.len() {
            if size <= most {
                return state;
            }
            state.dropped_entries += state.in_doubt_launches[n].forget_rows();
            size = state.size();
        }
        if size > most {
            let announced = state.interruptions.iter_mut().filter_map(|of| of.announced.take());
            state.dropped_entries += announced.count();
        }
        state
    }

    /// Returns the length of the state as JSON, in bytes.
    pub fn size(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |text| text.len())
    }

    /// Stores the change digests of a plan whose digest is approved, so that a part of it is
    /// approved as well.
    pub(super) fn record_approved_rows(&mut self, plan: &Plan) {
        self.record_approved_contingency(plan);
        let digest = &plan.capacity.digest;
        let newest = self.approvals.iter_mut().rev().take(APPROVALS_WITH_ROWS_MAX);
        for approval in newest.filter(|a| a.digest == *digest && a.rows.is_empty()) {
            approval.rows = change_digests(plan).map(|(_, digest)| digest).collect();
            if approval.rows.len() > APPROVED_ROWS_MAX {
                approval.rows.clear();
            }
        }
    }

    /// Counts instances as removed before a plan removes them: a process that dies in between has
    /// then counted them.
    pub(super) fn reserve_removals(&mut self, instances: &BTreeSet<InstanceId>, now: Timestamp) {
        self.removals.retain(|removal| !instances.contains(&removal.instance));
        let new = instances.iter().cloned();
        let reserved =
            |instance| RemovalRecord { instance, at: now, pending: true, first_noted_at: None };
        self.removals.extend(new.map(reserved));
    }

    /// Records that the termination of instances was requested.
    pub(super) fn record_removals(&mut self, instances: &BTreeSet<InstanceId>, now: Timestamp) {
        self.reserve_removals(instances, now);
        let terminated = |removal: &&mut RemovalRecord| instances.contains(&removal.instance);
        self.removals.iter_mut().filter(terminated).for_each(|removal| removal.pending = false);
    }

    /// Takes over the removals of an earlier process. Pending ones count from now on: they may have
    /// been carried out at any time. Recorded ones count as if the earlier clock had been as far
    /// behind as possible. Every process repeats that from the first recorded time: an earlier
    /// process never moved it beyond its own time.
    pub(super) fn take_over(&mut self, now: Timestamp) {
        for removal in &mut self.removals {
            if removal.pending {
                (removal.at, removal.pending) = (now, false);
            } else {
                let noted = *removal.first_noted_at.get_or_insert(removal.at);
                removal.at = removal.at.max(later(noted, CLOCK_DIFFERENCE_MAX).min(now));
            }
        }
    }

    /// Removes the reservations of instances whose termination was not requested.
    pub(super) fn release_removals(&mut self, instances: &BTreeSet<InstanceId>) {
        self.removals.retain(|removal| !instances.contains(&removal.instance));
    }

    /// Returns whether all these instances are counted as removed or pending.
    pub(super) fn has_reserved_removals(&self, instances: &BTreeSet<InstanceId>) -> bool {
        let counted = self.removals.iter().filter(|removal| instances.contains(&removal.instance));
        counted.count() >= instances.len()
    }

    /// Returns how many more moves a budget of `most` in a window allows now, and when the next one
    /// is allowed.
    pub(super) fn budget_room(
        times: impl Iterator<Item = Timestamp>,
        most: u32,
        within: SignedDuration,
        now: Timestamp,
    ) -> (u32, Timestamp) {
        let since = earlier(now, within);
        let mut recent: Vec<Timestamp> = times.filter(|at| *at > since).collect();
        recent.sort_unstable();
        let used = u32::try_from(recent.len()).unwrap_or(u32::MAX);
        let left = most.saturating_sub(used);
        // The move whose expiry frees the next place.
        let over = usize::try_from(used.saturating_sub(most)).unwrap_or(usize::MAX);
        // A budget of zero never frees a place: only another setting helps.
        let free = if left == 0 { later(now, within) } else { now };
        let next = recent.get(over).map_or(free, |at| later(*at, within));
        (left, next)
    }
}

/// Returns the address and a short digest of each change of a plan.
pub(super) fn change_digests(plan: &Plan) -> impl Iterator<Item = (&Address, String)> {
    let changes: BTreeSet<_> =
        plan.capacity.waves.iter().flat_map(|wave| &wave.addresses).collect();
    let rows = plan.resource_changes.iter().filter(move |row| changes.contains(&row.address));
    rows.map(|row| {
        // A node that was to go because it was empty is not approved to go with pods.
        let change = (&row.address, &row.change, &row.action_reason);
        (&row.address, canonical::short_digest(&change, CHANGE_DIGEST_LENGTH))
    })
}

/// Returns the instances whose nodes run a pod that does not belong to the node.
fn instances_with_workload_pods(observed: &Observed) -> BTreeSet<InstanceId> {
    let nodes: BTreeSet<_> = observed
        .pods
        .iter()
        .filter(|pod| pod.is_active() && !pod.is_node_bound())
        .filter_map(|pod| pod.node.as_ref())
        .collect();
    let nodes = observed.nodes.values().filter(|node| nodes.contains(&node.name));
    nodes.filter_map(|node| node.instance.clone()).collect()
}

fn keep_newest<T>(list: &mut Vec<T>, most: usize) {
    if let Some(more) = list.len().checked_sub(most) {
        list.drain(..more);
    }
}

#[cfg(test)]
mod tests;
