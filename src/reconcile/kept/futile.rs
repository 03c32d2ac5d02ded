//! Launches that were of no use, and what follows: a pool that launches nothing for a while, and a breaker.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Kept, Launched, MOVES_MAX, READY_WITHIN, doubled, earlier, later};
use crate::fleet::Observed;
use crate::ids::{Address, InstanceId, PoolName, WorkloadId};
use crate::plan::Plan;
use crate::reconcile::status::Breaker;
use crate::reconcile::view::is_waiting;
use crate::reconcile::work::{instance, launched};

/// How long a pool launches nothing whose machines did not help, for the first time, and at most.
const QUARANTINE_FIRST: SignedDuration = SignedDuration::from_mins(5);
pub(super) const QUARANTINE_MOST: SignedDuration = SignedDuration::from_hours(1);

/// How long a node may be Ready beside pods that wait, and be passed over.
const USED_WITHIN: SignedDuration = SignedDuration::from_secs(45);
/// How far back machines count that were of no use, and how many of a pool are enough to stop it.
const FUTILE_SPAN: SignedDuration = SignedDuration::from_mins(30);
const FUTILE_MOST: usize = 3;
/// How many of all pools within the time that is remembered latch a breaker.
const FUTILE_LATCH: usize = 10;

/// A pool that launches nothing for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Until when.
    pub until: Timestamp,
    /// How often in a row.
    pub times: u32,
    /// Why, with numbers.
    pub why: String,
}

/// What a plan launches for, and which machines it has no pod on.
///
/// That a node stands empty says nothing by itself: a pool may be of fixed size, a buffer kept free, a commit not
/// delivered yet. It is of no use where pods wait beside it, and more is launched for them.
#[derive(Debug, Default)]
pub(in crate::reconcile) struct Wanted {
    /// Pools in which it launches, and since when the first of the pods waits that it launches for there.
    pub(super) pools: BTreeMap<PoolName, Option<Timestamp>>,
    /// Machines that are there, and have no pod in the plan but those of `DaemonSet`s.
    idle: BTreeSet<InstanceId>,
}

impl Wanted {
    /// Returns that a plan launches in pools, where pods wait since then for it, and has no pod on `idle`.
    #[cfg(test)]
    pub(super) fn with(pools: &[(&str, Option<Timestamp>)], idle: &[&str]) -> Self {
        let pools = pools.iter().map(|(pool, since)| ((*pool).into(), *since)).collect();
        Self { pools, idle: idle.iter().map(|id| (*id).into()).collect() }
    }

    /// Returns what `plan` wants, made over `world`.
    pub(in crate::reconcile) fn of(plan: &Plan, world: &Observed) -> Self {
        let waits = placed_since(plan, world);
        let mut used: BTreeMap<&Address, Option<Timestamp>> = BTreeMap::new();
        for placed in plan.capacity.placements.iter().filter(|placed| placed.pods > 0) {
            let since = waits.get(&placed.workload).copied();
            let first = used.entry(&placed.address).or_default();
            *first = sooner(*first, since);
        }
        let mut wanted = Self::default();
        for row in launched(plan) {
            let Some(pool) = row.change.after.as_ref().and_then(|after| after.pool.clone()) else {
                continue;
            };
            let since = used.get(&row.address).copied().flatten();
            let first = wanted.pools.entry(pool).or_default();
            *first = sooner(*first, since);
        }
        let idle = plan.resource_changes.iter().filter(|row| !used.contains_key(&row.address));
        wanted.idle = idle.filter_map(instance).collect();
        wanted
    }

    /// Returns whether a machine is passed over: pods have waited beside its node for a while, no place on it is
    /// planned for any, and its pool is to have another one for them.
    fn passes_over(&self, launch: &Launched, now: Timestamp) -> bool {
        let waits = self.pools.get(&launch.pool).copied().flatten();
        let (Some(ready), Some(waits)) = (launch.ready_at, waits) else { return false };
        self.idle.contains(&launch.instance) && later(ready.max(waits), USED_WITHIN) <= now
    }
}

/// Returns since when the first pod of each workload waits that the plan has a place for: to pods that wait for something
/// else (a gate, a volume, an offering that there is not) no launch is of use. Which of them these are the plan does not
/// tell, so those count as such that have waited longest.
fn placed_since(plan: &Plan, world: &Observed) -> BTreeMap<WorkloadId, Timestamp> {
    let mut waits: BTreeMap<WorkloadId, Vec<Timestamp>> = BTreeMap::new();
    for pod in world.pods.iter().filter(|pod| is_waiting(pod)) {
        waits.entry(pod.workload()).or_default().push(pod.created_at);
    }
    let mut placed: BTreeMap<&WorkloadId, usize> = BTreeMap::new();
    for row in &plan.capacity.placements {
        let pods = usize::try_from(row.pods).unwrap_or(usize::MAX);
        let all = placed.entry(&row.workload).or_default();
        *all = all.saturating_add(pods);
    }
    let mut stuck: BTreeMap<&WorkloadId, usize> = BTreeMap::new();
    for row in &plan.capacity.unschedulable {
        let pods = usize::try_from(row.pods).unwrap_or(usize::MAX);
        let all = stuck.entry(&row.workload).or_default();
        *all = all.saturating_add(pods);
    }
    let first = |(workload, mut moments): (WorkloadId, Vec<Timestamp>)| {
        moments.sort_unstable();
        let placed = placed.get(&workload).copied().unwrap_or(0);
        let without = stuck.get(&workload).copied().unwrap_or(0);
        let skipped = moments.len().saturating_sub(placed).max(without);
        moments.get(skipped).map(|since| (workload, *since))
    };
    waits.into_iter().filter_map(first).collect()
}

/// Returns the earlier of two moments, where there are any.
fn sooner(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

impl Launched {
    /// Returns whether it was of no use: passed over and never a pod on it, or never Ready.
    pub(super) fn is_futile(&self, now: Timestamp) -> bool {
        let never = self.ready_at.is_none() && now >= later(self.at, READY_WITHIN);
        !self.helped && (self.passed_over || never)
    }
}

impl Kept {
    /// Judges launches by what they were good for: a pool of which several lately were of no use is to
    /// launch nothing for a while, and many of any pool latch a breaker.
    pub(in crate::reconcile) fn judge_launches(&mut self, wanted: &Wanted, now: Timestamp) {
        for launch in &mut self.launched {
            launch.passed_over |= wanted.passes_over(launch, now);
        }
        let since = self.forgiven.unwrap_or(Timestamp::MIN);
        let futile = |launch: &&Launched| launch.at > since && launch.is_futile(now);
        let all: Vec<Launched> = self.launched.iter().filter(futile).cloned().collect();
        // Of more than are known one by one nobody knows whether they were of use.
        let launches = self.came().count().min(MOVES_MAX);
        if all.len() >= FUTILE_LATCH && all.len() * 2 > launches {
            let why = format!("{} of {launches} machines were of no use", all.len());
            self.latch(crate::reconcile::allow::LAUNCHES, (why, None), now);
        }
        for pool in wanted.pools.keys() {
            let held = self.quarantine.get(pool);
            if held.is_some_and(|held| now < held.until) {
                continue;
            }
            // What led to the last quarantine is not held against the pool again.
            let from = held.map_or(earlier(now, FUTILE_SPAN), |held| held.until);
            // On probation the first failure is one too many.
            let enough = if held.is_some() { 1 } else { FUTILE_MOST };
            let count = all.iter().filter(|l| l.pool == *pool && l.at >= from).count();
            if count >= enough {
                let why = format!("{count} machines of pool {pool} were launched and of no use");
                self.quarantine(pool, why, now);
            }
        }
    }

    /// Has a pool launch nothing for a while, for longer each time in a row.
    pub(in crate::reconcile) fn quarantine(
        &mut self,
        pool: &PoolName,
        why: String,
        now: Timestamp,
    ) {
        let times = self.quarantine.get(pool).map_or(0, |held| held.times.saturating_add(1));
        let until = later(now, rests_for(times));
        self.quarantine.insert(pool.clone(), Quarantine { until, times, why });
    }

    /// Returns the quarantine of a pool that holds at `now`.
    pub(in crate::reconcile) fn quarantined(
        &self,
        pool: &PoolName,
        now: Timestamp,
    ) -> Option<&Quarantine> {
        self.quarantine.get(pool).filter(|held| now < held.until)
    }

    /// Latches a breaker; returns whether it was open.
    pub(in crate::reconcile) fn latch(
        &mut self,
        name: &str,
        (why, removes): (String, Option<u32>),
        now: Timestamp,
    ) -> bool {
        if self.breakers.iter().any(|breaker| breaker.name == name) {
            return false;
        }
        self.breakers.push(Breaker { name: name.to_owned(), since: now, why, removes });
        true
    }
}

/// Returns how long a pool launches nothing, after so many times in a row.
pub(super) fn rests_for(times: u32) -> SignedDuration {
    doubled(QUARANTINE_FIRST, times, QUARANTINE_MOST)
}
