//! What EC2 had no capacity for lately, kept with the lock of applies. See ADR 10.
//!
//! Whoever plans next leaves such offerings out for a while, and for longer each time they were sold
//! out again. The memory is a hint: one that is lost costs another try, and one that cannot be read
//! is none.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fleet::Exclusion;

/// Annotation of the lease that holds the memory.
pub(super) const ANNOTATION: &str = "fleetwright.dev/no-capacity";

/// How long an offering is left out that was sold out for the first time. Karpenter tries again after
/// 3 minutes, but launches within seconds of a decision; a plan is reviewed first.
const FIRST_MINUTES: i64 = 15;

/// The longest that an offering is left out.
const MINUTES_MAX: i64 = 240;

/// Most offerings that are remembered; the ones that end last are kept.
const ENTRIES_MAX: usize = 200;

/// An offering that was sold out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    exclusion: Exclusion,
    /// For how long it was left out.
    minutes: i64,
}

/// Offerings that were sold out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memory(Vec<Entry>);

impl Memory {
    /// Reads a memory as it is kept; what cannot be read is nothing.
    pub(super) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the memory as it is kept.
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns what is left out at `now`.
    #[must_use]
    pub fn exclusions(&self, now: Timestamp) -> Vec<Exclusion> {
        let holds = |entry: &&Entry| now < entry.exclusion.until;
        self.0.iter().filter(holds).map(|entry| entry.exclusion.clone()).collect()
    }

    /// Adds an offering that was sold out at `now`; its `until` is set here. One that is remembered
    /// still, or was until as long ago as it had been left out, is left out for twice as long.
    pub fn note(&mut self, sold_out: Exclusion, now: Timestamp) {
        let span = |minutes: i64| SignedDuration::from_mins(minutes);
        let after =
            |at: Timestamp, minutes| at.checked_add(span(minutes)).unwrap_or(Timestamp::MAX);
        self.0.retain(|entry| now < after(entry.exclusion.until, entry.minutes));
        let same = |entry: &Entry| {
            Exclusion { until: sold_out.until, ..entry.exclusion.clone() } == sold_out
        };
        let before = self.0.iter().position(same).map(|at| self.0.remove(at).minutes);
        let minutes = before.map_or(FIRST_MINUTES, |minutes| minutes.saturating_mul(2));
        let minutes = minutes.clamp(FIRST_MINUTES, MINUTES_MAX);
        let until = after(now, minutes);
        self.0.push(Entry { exclusion: Exclusion { until, ..sold_out }, minutes });
        if self.0.len() > ENTRIES_MAX {
            self.0.sort_by_key(|entry| std::cmp::Reverse(entry.exclusion.until));
            self.0.truncate(ENTRIES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sold_out(kind: &str) -> Exclusion {
        Exclusion {
            instance_type: Some(kind.into()),
            zone: Some("us-east-1a".into()),
            capacity_type: None,
            until: Timestamp::UNIX_EPOCH,
        }
    }

    fn minutes(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn what_is_sold_out_again_is_left_out_for_longer_and_what_rests_is_forgotten() {
        let mut memory = Memory::default();
        let left_out = |memory: &Memory, at| !memory.exclusions(minutes(at)).is_empty();
        memory.note(sold_out("m5.large"), minutes(0));
        assert!(left_out(&memory, 14) && !left_out(&memory, 15));
        memory.note(sold_out("m5.large"), minutes(20));
        assert!(left_out(&memory, 49) && !left_out(&memory, 50), "twice as long");
        memory.note(sold_out("c5.large"), minutes(85));
        memory.note(sold_out("m5.large"), minutes(85));
        assert!(!left_out(&memory, 100), "it rested, and begins anew");
        for _ in 0..20 {
            memory.note(sold_out("m5.large"), minutes(90));
        }
        assert!(!left_out(&memory, 90 + MINUTES_MAX), "there is a longest");
        assert_eq!(memory.exclusions(minutes(91)).len(), 2);
    }

    #[test]
    fn a_memory_survives_being_kept_and_what_cannot_be_read_is_none() {
        let mut memory = Memory::default();
        memory.note(sold_out("m5.large"), minutes(0));
        assert_eq!(Memory::read(&memory.text()), memory);
        assert_eq!(Memory::read("{"), Memory::default());
    }

    #[test]
    fn a_memory_is_bounded() {
        let mut memory = Memory::default();
        for n in 0..500 {
            memory.note(sold_out(&n.to_string()), minutes(0));
        }
        assert_eq!(memory.exclusions(minutes(1)).len(), ENTRIES_MAX);
    }
}
