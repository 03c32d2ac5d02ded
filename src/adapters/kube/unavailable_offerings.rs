//! Offerings without capacity, stored with the apply lease. See ADR 10.
//!
//! Later plans exclude such offerings for a while, and longer after each repeated failure. The
//! record is a hint: a lost record costs one more attempt, and an unreadable record is empty.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::observed::Exclusion;

/// Lease annotation with the record.
pub(super) const ANNOTATION: &str = "fleetwright.dev/insufficient-capacity";

/// First exclusion time of an offering. Karpenter retries after 3 minutes, but launches within
/// seconds of a decision, whereas a plan is reviewed first.
const FIRST_MINUTES: i64 = 15;

/// Longest exclusion time.
const MINUTES_MAX: i64 = 240;

/// Maximum number of entries. Those with the latest end are kept.
const ENTRIES_MAX: usize = 200;

/// An offering without capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OfferingExclusion {
    #[serde(flatten)]
    exclusion: Exclusion,
    /// Exclusion time in minutes.
    minutes: i64,
}

/// Offerings without capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnavailableOfferings(Vec<OfferingExclusion>);

impl UnavailableOfferings {
    /// Parses a stored record. An unreadable record is empty.
    pub(super) fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the exclusions in effect at `now`.
    #[must_use]
    pub fn exclusions(&self, now: Timestamp) -> Vec<Exclusion> {
        let holds = |entry: &&OfferingExclusion| now < entry.exclusion.until;
        self.0.iter().filter(holds).map(|entry| entry.exclusion.clone()).collect()
    }

    /// Adds an offering without capacity at `now` and sets its `until`. The exclusion time doubles
    /// if an earlier exclusion is in effect, or ended less than its own length ago.
    pub fn record(&mut self, sold_out: Exclusion, now: Timestamp) {
        let minutes_span = |minutes: i64| SignedDuration::from_mins(minutes);
        let after = |at: Timestamp, minutes| {
            at.checked_add(minutes_span(minutes)).unwrap_or(Timestamp::MAX)
        };
        self.0.retain(|entry| now < after(entry.exclusion.until, entry.minutes));
        let same = |entry: &OfferingExclusion| {
            Exclusion { until: sold_out.until, ..entry.exclusion.clone() } == sold_out
        };
        let before = self.0.iter().position(same).map(|at| self.0.remove(at).minutes);
        let minutes = before.map_or(FIRST_MINUTES, |minutes| minutes.saturating_mul(2));
        let minutes = minutes.clamp(FIRST_MINUTES, MINUTES_MAX);
        let until = after(now, minutes);
        self.0.push(OfferingExclusion { exclusion: Exclusion { until, ..sold_out }, minutes });
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
    fn repeated_exclusion_doubles_and_expires() {
        let mut offerings = UnavailableOfferings::default();
        let left_out =
            |offerings: &UnavailableOfferings, at| !offerings.exclusions(minutes(at)).is_empty();
        offerings.record(sold_out("m5.large"), minutes(0));
        assert!(left_out(&offerings, 14) && !left_out(&offerings, 15));
        offerings.record(sold_out("m5.large"), minutes(20));
        assert!(left_out(&offerings, 49) && !left_out(&offerings, 50), "twice as long");
        offerings.record(sold_out("c5.large"), minutes(85));
        offerings.record(sold_out("m5.large"), minutes(85));
        assert!(!left_out(&offerings, 100), "it rested, and begins anew");
        for _ in 0..20 {
            offerings.record(sold_out("m5.large"), minutes(90));
        }
        assert!(!left_out(&offerings, 90 + MINUTES_MAX), "there is a longest");
        assert_eq!(offerings.exclusions(minutes(91)).len(), 2);
    }

    #[test]
    fn unavailable_offerings_round_trip_and_default_to_empty() {
        let mut offerings = UnavailableOfferings::default();
        offerings.record(sold_out("m5.large"), minutes(0));
        assert_eq!(UnavailableOfferings::from_json(&offerings.to_json()), offerings);
        assert_eq!(UnavailableOfferings::from_json("{"), UnavailableOfferings::default());
    }

    #[test]
    fn unavailable_offerings_are_bounded() {
        let mut offerings = UnavailableOfferings::default();
        for n in 0..500 {
            offerings.record(sold_out(&n.to_string()), minutes(0));
        }
        assert_eq!(offerings.exclusions(minutes(1)).len(), ENTRIES_MAX);
    }
}
