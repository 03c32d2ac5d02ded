//! Histograms of durations, with Prometheus-style buckets.
//!
//! This module reads no clock; callers pass durations. The controller fills its own [`Histograms`]
//! from the times of its events. Adapters that run in several threads use [`SharedHistograms`]. The
//! status combines both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bucket bounds for latencies, in milliseconds: up to an hour.
const LATENCY_BOUNDS: &[u64] = &[
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000,
];
/// Bucket bounds for lifetimes, in milliseconds: minutes to months.
const LIFETIME_BOUNDS: &[u64] = &[
    300_000,
    900_000,
    3_600_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    259_200_000,
    604_800_000,
    1_209_600_000,
    2_592_000_000,
    7_776_000_000,
];

/// Maximum number of histograms. Further ones are ignored, so that names from outside cannot
/// exhaust memory.
const KEYS_MAX: usize = 1_000;

/// A duration that the controller measures, with the labels of its metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measurement {
    /// From an event to its effects.
    Step,
    /// From the start of a read to its result.
    Read {
        /// What was read.
        source: &'static str,
    },
    /// From the start of planning to the plan.
    Plan {
        /// Changes that the plan may contain.
        scope: &'static str,
    },
    /// From the start of an apply to its end.
    Apply {
        /// How it ended.
        verdict: &'static str,
    },
    /// From the first observed pod of a burst to the decision about its launch.
    Reaction,
    /// From the creation of a pod that was observed pending to its observation on a node.
    PodBound,
    /// From the launch of an instance to the observation of its Ready node.
    NodeReady {
        /// Pool of the node.
        pool: String,
    },
    /// From the cordon of a node, or its first eviction, to the termination of its instance.
    Drain {
        /// Reason of the removal.
        reason: String,
    },
    /// From the termination of an instance to the observation of its end.
    Termination,
    /// From the launch of an instance to its termination, or to its end for another reason.
    NodeLifetime {
        /// Pool of the node; empty for members of Auto Scaling groups.
        pool: String,
    },
    /// From the sending of an interruption message to its receipt.
    MessageAge {
        /// Kind of the message.
        kind: &'static str,
    },
    /// From the start of an AWS call to its end, retries included.
    AwsCall {
        /// Service, such as `ec2`.
        service: String,
        /// Name of the call.
        method: String,
        /// How it ended.
        result: &'static str,
    },
}

impl Measurement {
    fn bounds(&self) -> &'static [u64] {
        if matches!(self, Self::NodeLifetime { .. }) { LIFETIME_BOUNDS } else { LATENCY_BOUNDS }
    }
}

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds of the buckets, in milliseconds, ascending.
    pub bounds: &'static [u64],
    /// Number of durations in each bucket (not cumulative). The last bucket is the overflow bucket.
    pub counts: Vec<u64>,
    /// Sum of all durations, in microseconds.
    pub micros: u64,
}

impl Histogram {
    fn with_bounds(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], micros: 0 }
    }

    fn add(&mut self, duration: Duration) {
        let bucket = self.bounds.partition_point(|bound| Duration::from_millis(*bound) < duration);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.micros = self.micros.saturating_add(micros);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Histograms of measured durations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histograms(BTreeMap<Measurement, Histogram>);

impl Histograms {
    /// Records a duration. Negative durations, after a clock was set back, are ignored.
    pub fn note(&mut self, measurement: Measurement, duration: impl TryInto<Duration>) {
        let Ok(duration) = duration.try_into() else { return };
        if self.0.len() < KEYS_MAX || self.0.contains_key(&measurement) {
            let bounds = measurement.bounds();
            let histogram = self.0.entry(measurement);
            histogram.or_insert_with(|| Histogram::with_bounds(bounds)).add(duration);
        }
    }

    /// Returns all histograms, in the order of their measurements.
    pub fn iter(&self) -> impl Iterator<Item = (&Measurement, &Histogram)> {
        self.0.iter()
    }

    /// Adds the histograms of another source, which measures something else.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// [`Histograms`] for recording from several threads.
#[derive(Debug, Clone, Default)]
pub struct SharedHistograms(Arc<Mutex<Histograms>>);

impl SharedHistograms {
    /// Records a duration.
    pub fn note(&self, measurement: Measurement, duration: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(measurement, duration);
    }

    /// Returns a copy of the current histograms.
    pub fn snapshot(&self) -> Histograms {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn duration_is_added_to_its_bucket_and_the_sum() {
        let mut measured = Histograms::default();
        for millis in [0, 5, 6, 3_600_000, 3_600_001] {
            measured.note(Measurement::Step, Duration::from_millis(millis));
        }
        measured.note(Measurement::Step, SignedDuration::from_millis(-1));
        let (_, histogram) = measured.iter().next().expect("one histogram");
        assert_eq!(histogram.count(), 5, "negative durations are ignored");
        let count_of = |n: usize| histogram.counts[n];
        assert_eq!((count_of(0), count_of(1), count_of(17), count_of(18)), (2, 1, 1, 1));
        assert_eq!(histogram.micros, 7_200_012_000);
        assert!([LATENCY_BOUNDS, LIFETIME_BOUNDS].iter().all(|bounds| bounds.is_sorted()));
    }

    #[test]
    fn number_of_histograms_is_limited() {
        let of = |n: usize| Measurement::NodeReady { pool: format!("{n:04}") };
        let meter = SharedHistograms::default();
        (0..2 * KEYS_MAX).for_each(|n| meter.note(of(n), Duration::from_secs(1)));
        meter.note(of(0), Duration::from_secs(1));
        let mut measured = meter.snapshot();
        assert_eq!(measured.iter().count(), KEYS_MAX);
        assert_eq!(measured.iter().next().map(|(_, first)| first.count()), Some(2));
        let mut other = Histograms::default();
        other.note(Measurement::Step, Duration::ZERO);
        measured.extend(other);
        assert_eq!(measured.iter().count(), KEYS_MAX + 1);
    }

    #[test]
    fn lifetimes_use_lifetime_buckets() {
        let mut measured = Histograms::default();
        let lifetime = Measurement::NodeLifetime { pool: "web".to_owned() };
        measured.note(lifetime, Duration::from_hours(2));
        let (_, histogram) = measured.iter().next().expect("one histogram");
        assert_eq!((histogram.bounds, histogram.counts[3]), (LIFETIME_BOUNDS, 1));
    }
}
