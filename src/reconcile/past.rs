//! Launches and removals that are too many to be remembered one by one: how many there were, and when.
//!
//! Budgets look back for a day at most, and in an hour in which thousands of machines come nobody needs to know
//! more of each than that it came. Invariants: a move is never counted earlier than it was, so that no budget
//! allows more for it; there are few groups, whatever their moments; a machine that was launched counts once,
//! however often it is seen.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::kept::{LAUNCHES_MAX, earlier};
use crate::ids::InstanceId;

/// Moves that are counted together: those of a minute, and of ten where they are older than an hour.
const MINUTE: i64 = 60;
const TEN_MINUTES: i64 = 600;
const YOUNG: SignedDuration = SignedDuration::from_hours(1);

/// Digits of a machine's id that are kept: of a few thousand two are hardly ever the same.
const DIGITS: usize = 8;

/// What is remembered of launches and removals beside those that are known one by one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Past {
    /// Launches.
    pub came: Crowds,
    /// Removals.
    pub went: Crowds,
    /// The moment up to which it is not known any more which machines were launched: they were too many. All
    /// until then are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unnamed_until: Option<Timestamp>,
}

impl Past {
    pub(super) fn is_empty(&self) -> bool {
        self.came.0.is_empty() && self.went.0.is_empty()
    }

    /// Counts a launch of `at`.
    pub(super) fn launched(&mut self, at: Timestamp, machine: &InstanceId) {
        self.came.add(at, Some(machine));
        self.unnamed_until = self.unnamed_until.max(self.came.forget_names());
    }

    /// Returns whether a launch of `at` was so long ago that it counts already, whichever machine it was. One that
    /// was missed would change nothing: more launches than any budget allows came after it.
    pub(super) fn has_counted_all_of(&self, at: Timestamp) -> bool {
        self.unnamed_until.is_some_and(|until| at <= until)
    }

    /// Forgets what was before `since`.
    pub(super) fn forget(&mut self, since: Timestamp, now: Timestamp) {
        self.unnamed_until = self.unnamed_until.filter(|until| *until > since);
        for crowds in [&mut self.came, &mut self.went] {
            crowds.0.retain(|crowd| crowd.at > since);
            crowds.merge(earlier(now, YOUNG));
        }
    }
}

/// Groups of moves, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Crowds(Vec<Crowd>);

/// Moves of about the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Crowd {
    /// When the last of them was.
    at: Timestamp,
    /// How many there were.
    n: u32,
    /// The last digits of the ids of the machines, where they are known, one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ids: String,
}

/// Machines, by the last digits of their ids.
pub(super) struct Known<'c>(BTreeSet<&'c [u8]>);

impl Known<'_> {
    /// Returns whether a machine is among them.
    pub(super) fn contains(&self, machine: &InstanceId) -> bool {
        !self.0.is_empty() && self.0.contains(digits(machine).as_bytes())
    }
}

impl Crowds {
    /// Counts a move of `at`, of a machine that may be seen again.
    pub(super) fn add(&mut self, at: Timestamp, machine: Option<&InstanceId>) {
        let place = self.0.partition_point(|crowd| crowd.at < at);
        let ids = machine.map(digits).unwrap_or_default();
        self.0.insert(place, Crowd { at, n: 1, ids });
        self.merge_around(place, MINUTE);
    }

    /// Forgets which the oldest of too many were; returns when the last of those was.
    fn forget_names(&mut self) -> Option<Timestamp> {
        let mut named = self.0.iter().map(|crowd| crowd.ids.len() / DIGITS).sum::<usize>();
        let mut until = None;
        for crowd in self.0.iter_mut().filter(|crowd| !crowd.ids.is_empty()) {
            if named <= LAUNCHES_MAX {
                break;
            }
            named -= crowd.ids.len() / DIGITS;
            crowd.ids.clear();
            until = Some(crowd.at);
        }
        until
    }

    /// Puts the move at `place` together with its neighbours of the same time.
    fn merge_around(&mut self, place: usize, seconds: i64) {
        for first in [place, place.wrapping_sub(1)] {
            let Some(next) = first.checked_add(1).filter(|next| *next < self.0.len()) else {
                continue;
            };
            if slot(self.0[first].at, seconds) == slot(self.0[next].at, seconds) {
                let Crowd { n, ids, .. } = self.0.remove(first);
                let into = &mut self.0[first];
                into.n = into.n.saturating_add(n);
                into.ids.push_str(&ids);
            }
        }
    }

    /// Puts more together of what was before `old`.
    fn merge(&mut self, old: Timestamp) {
        let mut place = 0;
        while place + 1 < self.0.len() && self.0[place + 1].at < old {
            let before = self.0.len();
            if slot(self.0[place].at, TEN_MINUTES) == slot(self.0[place + 1].at, TEN_MINUTES) {
                self.merge_around(place, TEN_MINUTES);
            }
            place += usize::from(self.0.len() == before);
        }
    }

    /// Returns the machines of which it is known that they are among them.
    pub(super) fn known(&self) -> Known<'_> {
        Known(self.0.iter().flat_map(|crowd| crowd.ids.as_bytes().chunks(DIGITS)).collect())
    }

    /// Returns the moment of each: that of the last of its group.
    pub(super) fn moments(&self) -> impl Iterator<Item = Timestamp> {
        let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        self.0.iter().flat_map(move |crowd| std::iter::repeat_n(crowd.at, count(crowd.n)))
    }
}

/// Returns which of the spans of so many seconds a moment is in.
fn slot(at: Timestamp, seconds: i64) -> i64 {
    at.as_second().div_euclid(seconds)
}

/// Returns the last digits of an id; a short one is filled up.
fn digits(machine: &InstanceId) -> String {
    let bytes = machine.as_str().as_bytes();
    let last = &bytes[bytes.len().saturating_sub(DIGITS)..];
    let filled = std::iter::repeat_n(b'-', DIGITS - last.len()).chain(last.iter().copied());
    // A byte that is no ASCII is no id of EC2.
    filled.map(|byte| if byte.is_ascii() { char::from(byte) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_200_000 + seconds).expect("a time")
    }

    fn machine(n: i64) -> InstanceId {
        format!("i-{n:017x}").into()
    }

    #[test]
    fn moves_are_counted_by_the_minute_and_never_earlier_than_they_were() {
        let mut past = Past::default();
        // In an order of their own.
        for seconds in [59, 0, 61, 3_000, 30, 62] {
            past.launched(at(seconds), &machine(seconds));
        }
        let moments = |past: &Past| past.came.moments().collect::<Vec<_>>();
        let counted = [59, 59, 59, 62, 62, 3_000].map(at);
        assert_eq!(moments(&past), counted);
        for seconds in [0, 30, 59, 61, 62, 3_000] {
            assert!(past.came.known().contains(&machine(seconds)), "{seconds}");
        }
        assert!(!past.came.known().contains(&machine(31)));
        // An hour later the first two minutes are one group.
        past.forget(at(-9), at(3_600 + 100));
        assert_eq!(moments(&past), [62, 62, 62, 62, 62, 3_000].map(at));
        past.forget(at(62), at(3_600 + 200));
        assert_eq!(moments(&past), [at(3_000)]);
        assert!(!past.came.known().contains(&machine(61)));
        let text = serde_json::to_string(&past).expect("text");
        assert_eq!(serde_json::from_str::<Past>(&text).expect("reads"), past);
    }

    #[test]
    fn a_day_of_moves_is_small_whatever_their_moments() {
        let mut past = Past::default();
        for n in 0..6_000 {
            let moment = at(n * 14);
            past.launched(moment, &machine(n));
            past.went.add(moment, None);
            past.forget(earlier(moment, SignedDuration::from_hours(24)), moment);
        }
        let text = serde_json::to_string(&past).expect("text");
        assert!(text.len() < 60_000, "{}", text.len());
        assert_eq!((past.came.moments().count(), past.went.moments().count()), (6_000, 6_000));
        assert!(
            past.came.known().contains(&machine(5_999)) && !past.came.known().contains(&machine(1))
        );
        let last = (0..6_000).rfind(|n| !past.came.known().contains(&machine(*n))).expect("some");
        assert!(past.has_counted_all_of(at(last * 14)), "what is not named is counted");
        assert!(!past.has_counted_all_of(at((last + 1) * 14)), "what is named may be asked for");
        past.forget(at(6_000 * 14), at(6_000 * 14));
        assert!(past.is_empty() && !past.has_counted_all_of(at(0)));
    }

    #[test]
    fn whatever_an_id_is_it_has_its_digits() {
        for id in ["", "i", "i-0123456789abcdef0", "i-ü"] {
            assert_eq!(digits(&id.into()).len(), DIGITS, "{id}");
        }
    }
}
