//! Launches that were of no use, and what follows: a pool that launches nothing for a while, and a breaker.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Kept, Launched, MOVES_MAX, READY_WITHIN, doubled, earlier, later};
use crate::fleet::{Instance, Observed};
use crate::ids::{InstanceId, PoolName};
use crate::reconcile::status::Breaker;

/// How long a pool launches nothing whose machines did not help, for the first time, and at most.
const QUARANTINE_FIRST: SignedDuration = SignedDuration::from_mins(5);
pub(super) const QUARANTINE_MOST: SignedDuration = SignedDuration::from_hours(1);

/// How long a node that is Ready may be without the pods that it was launched for.
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

impl Launched {
    /// Returns whether it was of no use: Ready for a while and never a pod on it, though some were to come, or never
    /// Ready.
    pub(super) fn is_futile(&self, now: Timestamp) -> bool {
        let since = self.ready_at.map_or(later(self.at, READY_WITHIN), |at| later(at, USED_WITHIN));
        let awaited = self.ready_at.is_some() && !self.in_place_of.is_empty();
        !self.helped && !awaited && now >= since
    }

    /// Notes which of the machines have gone that it was launched in place of, whoever had them go: once all have, pods
    /// are to come to it.
    pub(super) fn take_over_from_what_went(&mut self, observed: &Observed, now: Timestamp) {
        if self.in_place_of.is_empty() {
            return;
        }
        let runs = |id: &InstanceId| observed.instances.get(id).is_some_and(Instance::is_active);
        self.in_place_of.retain(runs);
        if self.in_place_of.is_empty() {
            self.ready_at = self.ready_at.map(|at| at.max(now));
        }
    }
}

impl Kept {
    /// Judges launches by what they were good for: a pool of which several lately were of no use is to
    /// launch nothing for a while, and many of any pool latch a breaker.
    pub(in crate::reconcile) fn judge_launches(
        &mut self,
        wanted: &BTreeSet<PoolName>,
        now: Timestamp,
    ) {
        let since = self.forgiven.unwrap_or(Timestamp::MIN);
        let futile = |launch: &&Launched| launch.at > since && launch.is_futile(now);
        let all: Vec<Launched> = self.launched.iter().filter(futile).cloned().collect();
        // Of more than are known one by one nobody knows whether they were of use.
        let launches = self.came().count().min(MOVES_MAX);
        if all.len() >= FUTILE_LATCH && all.len() * 2 > launches {
            let why = format!("{} of {launches} machines were of no use", all.len());
            self.latch(crate::reconcile::allow::LAUNCHES, (why, None), now);
        }
        for pool in wanted {
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
