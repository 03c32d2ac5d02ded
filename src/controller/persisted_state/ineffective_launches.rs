//! Ineffective launches and their consequences: quarantine of a pool, and a breaker.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{LaunchRecord, MOVES_MAX, PersistedState, READY_WITHIN};
use crate::apply::is_pending;
use crate::controller::reconcile::{instance_of, launched_rows};
use crate::controller::status::Breaker;
use crate::model::ids::{Address, InstanceId, PoolName, WorkloadId, workload_key};
use crate::model::observed::Observed;
use crate::model::saturating_time::{doubling_delay, earlier, later};
use crate::plan::Plan;
use crate::plan::canonical::short_digest;

/// First and longest quarantine of a pool with ineffective launches.
const QUARANTINE_FOR: SignedDuration = SignedDuration::from_mins(5);
pub(super) const QUARANTINE_FOR_MAX: SignedDuration = SignedDuration::from_hours(1);

/// A node may be Ready beside pending pods this long before it counts as passed over.
const PASSED_OVER_AFTER: SignedDuration = SignedDuration::from_secs(45);
/// Longest time until the next plan evaluates a node that counts as passed over.
const EVALUATION_DELAY_MAX: SignedDuration = SignedDuration::from_secs(15);
/// Window in which ineffective launches count, and the number that stops their pool.
const INEFFECTIVE_WINDOW: SignedDuration = SignedDuration::from_mins(30);
const INEFFECTIVE_PER_POOL: usize = 3;
/// Ineffective launches of all stored ones that latch the breaker.
const INEFFECTIVE_TO_LATCH: usize = 10;

/// A pool that launches nothing for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// End of the quarantine.
    pub until: Timestamp,
    /// Number of earlier quarantines in a row.
    pub times: u32,
    /// Reason, with numbers.
    pub why: String,
}

/// Demand behind the launches of a plan, and the instances that the plan leaves empty.
///
/// An empty node alone says nothing: a pool may have a fixed size, a buffer may be reserved, or a
/// commit may not be delivered yet. A node is of no use if pods wait beside it and more is launched
/// for them.
#[derive(Debug, Default)]
pub(in crate::controller) struct LaunchDemand {
    /// Pools in which the plan launches, and since when the first pod placed there waits, by the
    /// digests of [`LaunchRecord::launched_for`].
    pub(super) pools: BTreeMap<PoolName, BTreeMap<String, Timestamp>>,
    /// Existing instances without a pod in the plan other than pods of a `DaemonSet`.
    idle: BTreeSet<InstanceId>,
}

impl LaunchDemand {
    /// Returns the demand of launches in `pools`, for pods that wait since then, with no pod on
    /// `idle`.
    #[cfg(test)]
    pub(super) fn for_test(pools: &[(&str, Option<Timestamp>)], idle: &[&str]) -> Self {
        let waits = |since: &Option<Timestamp>| {
            since.iter().map(|since| ("pods".to_owned(), *since)).collect()
        };
        let pools = pools.iter().map(|(pool, since)| ((*pool).into(), waits(since))).collect();
        Self { pools, idle: idle.iter().map(|id| (*id).into()).collect() }
    }

    /// Returns the demand of `plan`, made over `world`.
    pub(in crate::controller) fn from_plan(plan: &Plan, world: &Observed) -> Self {
        let oldest = oldest_placeable_pods(plan, world);
        let digests = PodDigests::new(plan, world);
        let mut used: BTreeMap<&Address, BTreeMap<String, Timestamp>> = BTreeMap::new();
        for placed in plan.capacity.placements.iter().filter(|placed| placed.pods > 0) {
            let waits = used.entry(&placed.address).or_default();
            if let Some(since) = oldest.get(&placed.workload) {
                add_waits(waits, digests.of(&placed.workload).map(|digest| (digest, *since)));
            }
        }
        let mut demand = Self::default();
        for row in launched_rows(plan) {
            let Some(pool) = row.change.after.as_ref().and_then(|after| after.pool.clone()) else {
                continue;
            };
            let waits = demand.pools.entry(pool).or_default();
            add_waits(waits, used.get(&row.address).cloned().unwrap_or_default());
        }
        let idle = plan.resource_changes.iter().filter(|row| !used.contains_key(&row.address));
        demand.idle = idle.filter_map(instance_of).collect();
        demand
    }

    /// Returns whether an instance is passed over: pods that it was launched for have waited beside
    /// its Ready node, the plan places none on it, and its pool launches more for them.
    ///
    /// Other pods say nothing about it: a tenant may delete pods while their nodes start.
    fn is_passed_over(&self, launch: &LaunchRecord, now: Timestamp) -> bool {
        let waits = self.pools.get(&launch.pool).into_iter().flatten();
        let is_for = |digest: &String| {
            launch.launched_for.as_ref().is_none_or(|digests| digests.contains(digest))
        };
        let waiting_since = waits.filter(|(digest, _)| is_for(digest)).map(|(_, since)| *since);
        let (Some(ready), Some(since)) = (launch.ready_at, waiting_since.min()) else {
            return false;
        };
        self.idle.contains(&launch.instance) && later(ready.max(since), PASSED_OVER_AFTER) <= now
    }
}

/// Maximum number of digests of a launch, and their length.
const LAUNCHED_FOR_MAX: usize = 16;
const POD_DIGEST_LENGTH: usize = 12;

/// Digests that identify the pods of workloads: of the workload if the repository declares it, else
/// of the templates of its active pods. A tenant may give a workload other pods at any time.
struct PodDigests(BTreeMap<WorkloadId, BTreeSet<String>>);

impl PodDigests {
    fn new(plan: &Plan, world: &Observed) -> Self {
        let digest = |text: &str| short_digest(text, POD_DIGEST_LENGTH);
        let rows = plan.capacity.demand.iter().filter(|row| row.origin.is_some());
        let mut digests: BTreeMap<WorkloadId, BTreeSet<String>> = rows
            .map(|row| (row.workload.clone(), [digest(&workload_key(&row.workload))].into()))
            .collect();
        let declared: BTreeSet<WorkloadId> = digests.keys().cloned().collect();
        for (workload, pods) in world.pod_runs() {
            if !declared.contains(&workload) {
                let active = pods.iter().filter(|pod| pod.is_active());
                let templates: BTreeSet<&str> = active.map(|pod| &*pod.template).collect();
                let all = templates.into_iter().map(digest);
                digests.entry(workload).or_default().extend(all);
            }
        }
        Self(digests)
    }

    fn of(&self, workload: &WorkloadId) -> impl Iterator<Item = String> {
        self.0.get(workload).into_iter().flatten().cloned()
    }
}

/// Returns the digests of the pods that each launch of a plan is for, as
/// [`LaunchRecord::launched_for`] has them. A launch for unknown pods has none: all pending pods
/// count. Of many digests the first are enough: if the node is of no use, the pods of each wait.
pub(in crate::controller) fn launch_digests(
    plan: &Plan,
    world: &Observed,
) -> BTreeMap<Address, Vec<String>> {
    let digests = PodDigests::new(plan, world);
    let mut launches: BTreeMap<Address, BTreeSet<String>> =
        launched_rows(plan).map(|row| (row.address.clone(), BTreeSet::new())).collect();
    for placed in plan.capacity.placements.iter().filter(|placed| placed.pods > 0) {
        if let Some(launch) = launches.get_mut(&placed.address) {
            launch.extend(digests.of(&placed.workload));
        }
    }
    launches.retain(|_, digests| !digests.is_empty());
    let first = |all: BTreeSet<String>| all.into_iter().take(LAUNCHED_FOR_MAX).collect();
    launches.into_iter().map(|(address, all)| (address, first(all))).collect()
}

/// Adds waiting times, and keeps the earlier one of a digest.
fn add_waits(
    waits: &mut BTreeMap<String, Timestamp>,
    more: impl IntoIterator<Item = (String, Timestamp)>,
) {
    for (digest, since) in more {
        waits.entry(digest).and_modify(|first| *first = since.min(*first)).or_insert(since);
    }
}

/// Returns since when the first placeable pod of each workload waits. Pods that wait for a gate, a
/// volume or an unavailable offering are not helped by a launch. The plan does not name them, so
/// those that have waited longest count as such.
fn oldest_placeable_pods(plan: &Plan, world: &Observed) -> BTreeMap<WorkloadId, Timestamp> {
    let mut waits: BTreeMap<WorkloadId, Vec<Timestamp>> = BTreeMap::new();
    for pod in world.pods.iter().filter(|pod| is_pending(pod)) {
        waits.entry(pod.workload()).or_default().push(pod.created_at);
    }
    let mut placed: BTreeMap<&WorkloadId, usize> = BTreeMap::new();
    for row in &plan.capacity.placements {
        let pods = usize::try_from(row.pods).unwrap_or(usize::MAX);
        let all = placed.entry(&row.workload).or_default();
        *all = all.saturating_add(pods);
    }
    let mut stuck: BTreeMap<String, usize> = BTreeMap::new();
    let unschedulable = plan.capacity.unschedulable.iter();
    let unschedulable = unschedulable.map(|row| (workload_key(&row.workload), row.pods));
    let served = plan.capacity.cluster_autoscaler.iter().flat_map(|row| &row.pods);
    for (workload, pods) in unschedulable.chain(served.map(|(key, pods)| (key.clone(), *pods))) {
        let all = stuck.entry(workload).or_default();
        *all = all.saturating_add(usize::try_from(pods).unwrap_or(usize::MAX));
    }
    let first = |(workload, mut times): (WorkloadId, Vec<Timestamp>)| {
        times.sort_unstable();
        let placed = placed.get(&workload).copied().unwrap_or(0);
        let without = stuck.get(&workload_key(&workload)).copied().unwrap_or(0);
        let skipped = times.len().saturating_sub(placed).max(without);
        times.get(skipped).map(|since| (workload, *since))
    };
    waits.into_iter().filter_map(first).collect()
}

impl LaunchRecord {
    /// Returns whether the launch was of no use: passed over without a pod, or never Ready.
    pub(super) fn is_ineffective(&self, now: Timestamp) -> bool {
        let never = self.ready_at.is_none() && now >= later(self.at, READY_WITHIN);
        !self.useful && (self.passed_over || never)
    }
}

impl PersistedState {
    /// Evaluates launches by their use. Several ineffective launches of one pool quarantine the
    /// pool; many of any pool latch a breaker.
    pub(in crate::controller) fn evaluate_launches(
        &mut self,
        demand: &LaunchDemand,
        now: Timestamp,
    ) {
        for launch in &mut self.launches {
            launch.passed_over |= demand.is_passed_over(launch, now);
        }
        let since = self.forgiven_before.unwrap_or(Timestamp::MIN);
        let is_counted = |launch: &&LaunchRecord| launch.at > since && launch.is_ineffective(now);
        let all: Vec<LaunchRecord> = self.launches.iter().filter(is_counted).cloned().collect();
        // Beyond the stored launches the use is unknown.
        let launches = self.launch_times().count().min(MOVES_MAX);
        if all.len() >= INEFFECTIVE_TO_LATCH && all.len() * 2 > launches {
            let why = format!("{} of {launches} launched instances were of no use", all.len());
            self.latch(crate::controller::gates::INEFFECTIVE_LAUNCHES_BREAKER, why, None, now);
        }
        for pool in demand.pools.keys() {
            let quarantine = self.quarantine.get(pool);
            if quarantine.is_some_and(|quarantine| now < quarantine.until) {
                continue;
            }
            // Launches before the last quarantine do not count again.
            let from =
                quarantine.map_or(earlier(now, INEFFECTIVE_WINDOW), |quarantine| quarantine.until);
            // On probation one ineffective launch is enough.
            let enough = if quarantine.is_some() { 1 } else { INEFFECTIVE_PER_POOL };
            let count = all.iter().filter(|l| l.pool == *pool && l.at >= from).count();
            if count >= enough {
                let why = format!("{count} instances launched in pool {pool} were of no use");
                self.quarantine(pool, why, now);
            }
        }
    }

    /// Quarantines a pool, for longer each time in a row.
    pub(in crate::controller) fn quarantine(
        &mut self,
        pool: &PoolName,
        why: String,
        now: Timestamp,
    ) {
        let times =
            self.quarantine.get(pool).map_or(0, |quarantine| quarantine.times.saturating_add(1));
        let until = later(now, quarantine_duration(times));
        self.quarantine.insert(pool.clone(), Quarantine { until, times, why });
    }

    /// Returns when an unused launch is evaluated, if its instance is not evaluated yet.
    pub(in crate::controller) fn launch_judged_at(&self, id: &InstanceId) -> Option<Timestamp> {
        let launch = self.launches.iter().find(|launch| launch.instance == *id)?;
        let ready = launch.ready_at.filter(|_| !launch.useful && !launch.passed_over)?;
        Some(later(ready, PASSED_OVER_AFTER + EVALUATION_DELAY_MAX))
    }

    /// Returns the quarantine of a pool that is active at `now`.
    pub(in crate::controller) fn active_quarantine(
        &self,
        pool: &PoolName,
        now: Timestamp,
    ) -> Option<&Quarantine> {
        self.quarantine.get(pool).filter(|quarantine| now < quarantine.until)
    }

    /// Latches a breaker; returns whether it was not latched before.
    pub(in crate::controller) fn latch(
        &mut self,
        name: &str,
        why: String,
        removes: Option<u32>,
        now: Timestamp,
    ) -> bool {
        if self.breakers.iter().any(|breaker| breaker.name == name) {
            return false;
        }
        self.breakers.push(Breaker { name: name.to_owned(), since: now, why, removes });
        true
    }
}

/// Returns the quarantine length after `times` in a row.
pub(super) fn quarantine_duration(times: u32) -> SignedDuration {
    doubling_delay(QUARANTINE_FOR, times, QUARANTINE_FOR_MAX)
}
