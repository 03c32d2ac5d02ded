//! Launches and removals that are too many to be stored one by one: their numbers and times.
//!
//! Budgets look back one day at most, and an hour with thousands of launches needs no more than
//! their times. Invariants: a move never counts earlier than it was, so no budget allows more
//! because of it. The buckets are few, whatever the times. A launched instance counts once, however
//! often it is observed.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::persisted_state::LAUNCHES_MAX;
use crate::model::ids::InstanceId;
use crate::model::saturating_time::earlier;

/// Moves of the same minute share a bucket; moves older than an hour share one for ten minutes.
const MINUTE: i64 = 60;
const TEN_MINUTES: i64 = 600;
const MINUTE_BUCKETS_FOR: SignedDuration = SignedDuration::from_hours(1);

/// Stored characters of an instance id: among a few thousand instances two suffixes hardly ever
/// agree.
const SUFFIX_LENGTH: usize = 8;

/// Times of the launches and removals that are not stored one by one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MoveHistory {
    /// Launches.
    pub launches: MoveBuckets,
    /// Removals.
    pub removals: MoveBuckets,
    /// Time up to which the ids of launched instances are dropped because they were too many. All
    /// launches until then are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unnamed_until: Option<Timestamp>,
}

impl MoveHistory {
    pub(super) fn is_empty(&self) -> bool {
        self.launches.0.is_empty() && self.removals.0.is_empty()
    }

    /// Counts a launch at `at`.
    pub(super) fn record_launch(&mut self, at: Timestamp, instance: &InstanceId) {
        self.launches.add(at, Some(instance));
        self.unnamed_until = self.unnamed_until.max(self.launches.drop_oldest_ids());
    }

    /// Returns whether every launch at `at` is counted already. A missed one would change nothing:
    /// more launches than any budget allows came after it.
    pub(super) fn has_counted_all_of(&self, at: Timestamp) -> bool {
        self.unnamed_until.is_some_and(|until| at <= until)
    }

    /// Drops moves before `since`.
    pub(super) fn forget(&mut self, since: Timestamp, now: Timestamp) {
        self.unnamed_until = self.unnamed_until.filter(|until| *until > since);
        for buckets in [&mut self.launches, &mut self.removals] {
            buckets.0.retain(|bucket| bucket.at > since);
            buckets.merge_older_than(earlier(now, MINUTE_BUCKETS_FOR));
        }
    }
}

/// Buckets of moves, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MoveBuckets(Vec<MoveBucket>);

/// Moves at about the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MoveBucket {
    /// Time of the last move.
    at: Timestamp,
    /// Number of moves.
    n: u32,
    /// Concatenated id suffixes of the instances whose ids are kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ids: String,
}

/// Instances, by id suffix.
pub(super) struct KnownInstances<'c>(BTreeSet<&'c [u8]>);

impl KnownInstances<'_> {
    /// Returns whether an instance is among them.
    pub(super) fn contains(&self, instance: &InstanceId) -> bool {
        !self.0.is_empty() && self.0.contains(id_suffix(instance).as_bytes())
    }
}

impl MoveBuckets {
    /// Counts a move at `at`, of an instance that may be observed again.
    pub(super) fn add(&mut self, at: Timestamp, instance: Option<&InstanceId>) {
        let index = self.0.partition_point(|bucket| bucket.at < at);
        let ids = instance.map(id_suffix).unwrap_or_default();
        self.0.insert(index, MoveBucket { at, n: 1, ids });
        self.merge_neighbors(index, MINUTE);
    }

    /// Drops the oldest ids beyond the limit; returns the time of the last dropped one.
    fn drop_oldest_ids(&mut self) -> Option<Timestamp> {
        let mut with_id =
            self.0.iter().map(|bucket| bucket.ids.len() / SUFFIX_LENGTH).sum::<usize>();
        let mut until = None;
        for bucket in self.0.iter_mut().filter(|bucket| !bucket.ids.is_empty()) {
            if with_id <= LAUNCHES_MAX {
                break;
            }
            with_id -= bucket.ids.len() / SUFFIX_LENGTH;
            bucket.ids.clear();
            until = Some(bucket.at);
        }
        until
    }

    /// Merges the bucket at `index` with its neighbors of the same time slot.
    fn merge_neighbors(&mut self, index: usize, seconds: i64) {
        for first in [index, index.wrapping_sub(1)] {
            let Some(next) = first.checked_add(1).filter(|next| *next < self.0.len()) else {
                continue;
            };
            if time_slot(self.0[first].at, seconds) == time_slot(self.0[next].at, seconds) {
                let MoveBucket { n, ids, .. } = self.0.remove(first);
                let into = &mut self.0[first];
                into.n = into.n.saturating_add(n);
                into.ids.push_str(&ids);
            }
        }
    }

    /// Merges buckets before `old` into longer ones.
    fn merge_older_than(&mut self, old: Timestamp) {
        let mut index = 0;
        while index + 1 < self.0.len() && self.0[index + 1].at < old {
            let before = self.0.len();
            if time_slot(self.0[index].at, TEN_MINUTES)
                == time_slot(self.0[index + 1].at, TEN_MINUTES)
            {
                self.merge_neighbors(index, TEN_MINUTES);
            }
            index += usize::from(self.0.len() == before);
        }
    }

    /// Returns the instances whose ids are kept.
    pub(super) fn known_instances(&self) -> KnownInstances<'_> {
        KnownInstances(
            self.0.iter().flat_map(|bucket| bucket.ids.as_bytes().chunks(SUFFIX_LENGTH)).collect(),
        )
    }

    /// Returns one time for each move: that of the last move in its bucket.
    pub(super) fn times(&self) -> impl Iterator<Item = Timestamp> {
        let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        self.0.iter().flat_map(move |bucket| std::iter::repeat_n(bucket.at, count(bucket.n)))
    }
}

/// Returns the number of the time slot of that length.
fn time_slot(at: Timestamp, seconds: i64) -> i64 {
    at.as_second().div_euclid(seconds)
}

/// Returns the last characters of an id, padded where it is short.
fn id_suffix(instance: &InstanceId) -> String {
    let bytes = instance.as_str().as_bytes();
    let last = &bytes[bytes.len().saturating_sub(SUFFIX_LENGTH)..];
    let filled = std::iter::repeat_n(b'-', SUFFIX_LENGTH - last.len()).chain(last.iter().copied());
    // Ids of EC2 are ASCII.
    filled.map(|byte| if byte.is_ascii() { char::from(byte) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_200_000 + seconds).expect("a time")
    }

    fn instance(n: i64) -> InstanceId {
        format!("i-{n:017x}").into()
    }

    #[test]
    fn moves_are_bucketed_and_never_count_earlier() {
        let mut past = MoveHistory::default();
        // Out of order.
        for seconds in [59, 0, 61, 3_000, 30, 62] {
            past.record_launch(at(seconds), &instance(seconds));
        }
        let times = |past: &MoveHistory| past.launches.times().collect::<Vec<_>>();
        let counted = [59, 59, 59, 62, 62, 3_000].map(at);
        assert_eq!(times(&past), counted);
        for seconds in [0, 30, 59, 61, 62, 3_000] {
            assert!(past.launches.known_instances().contains(&instance(seconds)), "{seconds}");
        }
        assert!(!past.launches.known_instances().contains(&instance(31)));
        // An hour later the first two minutes share a bucket.
        past.forget(at(-9), at(3_600 + 100));
        assert_eq!(times(&past), [62, 62, 62, 62, 62, 3_000].map(at));
        past.forget(at(62), at(3_600 + 200));
        assert_eq!(times(&past), [at(3_000)]);
        assert!(!past.launches.known_instances().contains(&instance(61)));
        let text = serde_json::to_string(&past).expect("text");
        assert_eq!(serde_json::from_str::<MoveHistory>(&text).expect("reads"), past);
    }

    #[test]
    fn one_day_of_moves_stays_small() {
        let mut past = MoveHistory::default();
        for n in 0..6_000 {
            let time = at(n * 14);
            past.record_launch(time, &instance(n));
            past.removals.add(time, None);
            past.forget(earlier(time, SignedDuration::from_hours(24)), time);
        }
        let text = serde_json::to_string(&past).expect("text");
        assert!(text.len() < 60_000, "{}", text.len());
        assert_eq!((past.launches.times().count(), past.removals.times().count()), (6_000, 6_000));
        assert!(
            past.launches.known_instances().contains(&instance(5_999))
                && !past.launches.known_instances().contains(&instance(1))
        );
        let last = (0..6_000)
            .rfind(|n| !past.launches.known_instances().contains(&instance(*n)))
            .expect("some");
        assert!(past.has_counted_all_of(at(last * 14)), "launches without ids are counted");
        assert!(
            !past.has_counted_all_of(at((last + 1) * 14)),
            "launches with ids are known one by one"
        );
        past.forget(at(6_000 * 14), at(6_000 * 14));
        assert!(past.is_empty() && !past.has_counted_all_of(at(0)));
    }

    #[test]
    fn any_id_has_a_suffix_of_fixed_length() {
        for id in ["", "i", "i-0123456789abcdef0", "i-ü"] {
            assert_eq!(id_suffix(&id.into()).len(), SUFFIX_LENGTH, "{id}");
        }
    }
}
