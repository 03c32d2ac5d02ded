//! Offerings for which EC2 had no capacity. Plans exclude them, and longer after each repetition.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::observed::Exclusion;
use super::saturating_time::{earlier, later};

/// Exclusion times, and the maximum number of entries.
#[derive(Debug, Clone, Copy)]
pub struct ExclusionLimits {
    /// First exclusion time of an offering.
    pub first: SignedDuration,
    /// Longest exclusion time.
    pub longest: SignedDuration,
    /// Maximum number of entries. Those with the latest end are kept.
    pub entries: usize,
}

impl ExclusionLimits {
    /// Limits of applies. Karpenter retries after 3 minutes, but launches within seconds of a
    /// decision, whereas a plan is reviewed first.
    pub const APPLY: Self = Self {
        first: SignedDuration::from_mins(15),
        longest: SignedDuration::from_hours(4),
        entries: 200,
    };
    /// Limits of the controller, which decides within seconds, as Karpenter does.
    pub const CONTROLLER: Self = Self {
        first: SignedDuration::from_mins(3),
        longest: SignedDuration::from_hours(1),
        entries: 100,
    };
}

/// An offering without capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The offering, and the end of its exclusion.
    #[serde(flatten)]
    exclusion: Exclusion,
    /// Length of the exclusion, in seconds.
    seconds: i64,
}

impl Entry {
    fn length(&self) -> SignedDuration {
        SignedDuration::from_secs(self.seconds)
    }

    fn is_of(&self, offering: &Exclusion) -> bool {
        Exclusion { until: offering.until, ..self.exclusion.clone() } == *offering
    }
}

/// Offerings without capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnavailableOfferings(Vec<Entry>);

impl UnavailableOfferings {
    /// Returns the number of entries, including those whose exclusion has ended.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the exclusions in effect at `now`.
    pub fn exclusions(&self, now: Timestamp) -> Vec<Exclusion> {
        self.exclusions_found_before(Timestamp::MAX, now)
    }

    /// Returns the exclusions in effect at `now` that began before `moment`.
    pub fn exclusions_found_before(&self, moment: Timestamp, now: Timestamp) -> Vec<Exclusion> {
        let is_listed = |entry: &&Entry| {
            let until = entry.exclusion.until;
            now < until && earlier(until, entry.length()) < moment
        };
        self.0.iter().filter(is_listed).map(|entry| entry.exclusion.clone()).collect()
    }

    /// Adds an offering without capacity at `now` and sets its `until`. The exclusion time doubles
    /// if an earlier exclusion is in effect, or ended less than its own length ago.
    pub fn record(&mut self, offering: Exclusion, now: Timestamp, limits: ExclusionLimits) {
        let ExclusionLimits { first, longest, entries } = limits;
        self.forget(now);
        let before = self.0.iter().position(|entry| entry.is_of(&offering));
        let before = before.map(|at| self.0.remove(at));
        let seconds =
            before.as_ref().map_or(first.as_secs(), |before| before.seconds.saturating_mul(2));
        let seconds = seconds.clamp(first.as_secs(), longest.as_secs());
        let until = later(now, SignedDuration::from_secs(seconds));
        let until = before.map_or(until, |before| until.max(before.exclusion.until));
        self.0.push(Entry { exclusion: Exclusion { until, ..offering }, seconds });
        self.keep_latest(entries);
    }

    /// Adds the exclusions of `more` that are in effect. Of two exclusions of an offering, the one
    /// that ends later is kept. No exclusion lasts longer than `limits` allow.
    pub fn merge(&mut self, more: &Self, now: Timestamp, limits: ExclusionLimits) {
        for entry in more.0.iter().filter(|entry| now < entry.exclusion.until) {
            let mut entry = entry.clone();
            entry.exclusion.until = entry.exclusion.until.min(later(now, limits.longest));
            entry.seconds = entry.seconds.clamp(0, limits.longest.as_secs());
            match self.0.iter_mut().find(|known| known.is_of(&entry.exclusion)) {
                Some(known) if known.exclusion.until >= entry.exclusion.until => {}
                Some(known) => *known = entry,
                None => self.0.push(entry),
            }
        }
        self.keep_latest(limits.entries);
    }

    /// Removes the entries whose exclusion ended at least its own length ago.
    pub fn forget(&mut self, now: Timestamp) {
        self.0.retain(|entry| now < later(entry.exclusion.until, entry.length()));
    }

    /// Lets no exclusion end after `latest`.
    pub fn end_by(&mut self, latest: Timestamp) {
        for entry in &mut self.0 {
            entry.exclusion.until = entry.exclusion.until.min(latest);
        }
    }

    fn keep_latest(&mut self, entries: usize) {
        if self.0.len() > entries {
            self.0.sort_by_key(|entry| std::cmp::Reverse(entry.exclusion.until));
            self.0.truncate(entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLY: ExclusionLimits = ExclusionLimits::APPLY;
    const CONTROLLER: ExclusionLimits = ExclusionLimits::CONTROLLER;

    fn offering(kind: &str) -> Exclusion {
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

    fn is_excluded(offerings: &UnavailableOfferings, at: i64) -> bool {
        !offerings.exclusions(minutes(at)).is_empty()
    }

    #[test]
    fn repeated_exclusion_doubles_and_expires() {
        for (limits, first, longest) in [(APPLY, 15, 240), (CONTROLLER, 3, 60)] {
            let mut offerings = UnavailableOfferings::default();
            offerings.record(offering("m5.large"), minutes(0), limits);
            assert!(is_excluded(&offerings, first - 1) && !is_excluded(&offerings, first));
            let again = 2 * first - 1;
            offerings.record(offering("m5.large"), minutes(again), limits);
            let end = again + 2 * first;
            assert!(is_excluded(&offerings, end - 1) && !is_excluded(&offerings, end));
            let rested = end + 2 * first;
            offerings.record(offering("m5.large"), minutes(rested), limits);
            assert!(!is_excluded(&offerings, rested + first), "it begins anew");
            for _ in 0..20 {
                offerings.record(offering("m5.large"), minutes(rested), limits);
            }
            let end = rested + longest;
            assert!(is_excluded(&offerings, end - 1) && !is_excluded(&offerings, end));
            assert_eq!(offerings.len(), 1);
            offerings.forget(minutes(end + longest));
            assert!(offerings.is_empty());
        }
    }

    #[test]
    fn merged_exclusion_keeps_the_later_end() {
        let mut applies = UnavailableOfferings::default();
        applies.record(offering("m5.large"), minutes(0), APPLY);
        let mut offerings = UnavailableOfferings::default();
        offerings.merge(&applies, minutes(1), APPLY);
        assert!(is_excluded(&offerings, 14) && !is_excluded(&offerings, 15), "15 minutes stay");
        // An exclusion that ends earlier shortens nothing, and none is added twice.
        offerings.merge(&applies, minutes(2), APPLY);
        let mut controller = UnavailableOfferings::default();
        controller.record(offering("m5.large"), minutes(5), CONTROLLER);
        offerings.merge(&controller, minutes(5), APPLY);
        assert!(is_excluded(&offerings, 14) && offerings.len() == 1);
        controller.merge(&offerings, minutes(5), APPLY);
        assert!(is_excluded(&controller, 14) && controller.len() == 1);
        controller.record(offering("m5.large"), minutes(6), CONTROLLER);
        assert!(is_excluded(&controller, 14), "a repetition does not shorten it");
        // An exclusion that has ended, or that nothing would have written, does not count.
        let mut late = UnavailableOfferings::default();
        late.merge(&applies, minutes(15), APPLY);
        assert!(late.is_empty());
        let mut forged = applies;
        forged.0[0].exclusion.until = Timestamp::MAX;
        forged.0[0].seconds = i64::MAX;
        late.merge(&forged, minutes(15), APPLY);
        assert!(!is_excluded(&late, 15 + 240));
    }

    #[test]
    fn unavailable_offerings_are_bounded() {
        let mut offerings = UnavailableOfferings::default();
        for n in 0..500 {
            offerings.record(offering(&n.to_string()), minutes(0), APPLY);
        }
        assert_eq!(offerings.exclusions(minutes(1)).len(), APPLY.entries);
    }
}
