//! How long things took: durations counted by buckets, as Prometheus keeps histograms.
//!
//! It knows no clock: whoever measures says how long. The loop keeps a [`Measured`] of its own, made of the moments of its
//! events; adapters that make calls on several threads share a [`Meter`]. Both end in one status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Upper bounds of the buckets of what takes milliseconds to an hour, in milliseconds.
const WAITS: &[u64] = &[
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000,
];
/// The same of what takes minutes to months.
const LIVES: &[u64] = &[
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

/// Most things that are told apart: what is more is not measured, so that no name from outside fills the memory.
const KEYS_MAX: usize = 1_000;

/// What the names of things begin with that are measured in hours.
pub const LIFETIME: &str = "lifetime.";

/// Durations of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Upper bounds of the buckets, in milliseconds, the least first.
    pub bounds: &'static [u64],
    /// How many durations were at most the bound of each bucket, and more than that of the one before; last those
    /// beyond all.
    pub counts: Vec<u64>,
    /// All of them together, in microseconds.
    pub micros: u64,
}

impl Histogram {
    fn of(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], micros: 0 }
    }

    fn add(&mut self, took: Duration) {
        let bucket = self.bounds.partition_point(|bound| Duration::from_millis(*bound) < took);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros = self.micros.saturating_add(micros);
    }

    /// Returns how many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Durations, by name; what follows the first dot tells things of one kind apart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Measured(BTreeMap<String, Histogram>);

impl Measured {
    /// Notes that something took so long; what is negative, because a clock was set back, says nothing.
    pub fn note(&mut self, name: &str, took: impl TryInto<Duration>) {
        let Ok(took) = took.try_into() else { return };
        if let Some(known) = self.0.get_mut(name) {
            return known.add(took);
        }
        if self.0.len() < KEYS_MAX {
            let bounds = if name.starts_with(LIFETIME) { LIVES } else { WAITS };
            self.0.entry(name.to_owned()).or_insert_with(|| Histogram::of(bounds)).add(took);
        }
    }

    /// Returns all, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Histogram)> {
        self.0.iter().map(|(name, histogram)| (name.as_str(), histogram))
    }

    /// Adds what was measured elsewhere, under names of its own.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// A [`Measured`] that several threads add to.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Measured>>);

impl Meter {
    /// Notes that something took so long.
    pub fn note(&self, name: &str, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(name, took);
    }

    /// Returns what was measured until now.
    #[must_use]
    pub fn so_far(&self) -> Measured {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_duration_counts_in_the_bucket_that_it_fits_and_in_the_sum() {
        let mut measured = Measured::default();
        for millis in [0, 5, 6, 3_600_000, 3_600_001] {
            measured.note("x", Duration::from_millis(millis));
        }
        measured.note("x", SignedDuration::from_millis(-1));
        let (_, histogram) = measured.iter().next().expect("one");
        assert_eq!(histogram.count(), 5, "what is before its beginning is none");
        let used = |n: usize| histogram.counts[n];
        assert_eq!((used(0), used(1), used(17), used(18)), (2, 1, 1, 1));
        assert_eq!(histogram.micros, 7_200_012_000);
        assert!([WAITS, LIVES].iter().all(|bounds| bounds.is_sorted()));
    }

    #[test]
    fn so_many_things_are_told_apart_and_no_more() {
        let meter = Meter::default();
        (0..2 * KEYS_MAX).for_each(|n| meter.note(&format!("x.{n:04}"), Duration::from_secs(1)));
        meter.note("x.0000", Duration::from_secs(1));
        let mut measured = meter.so_far();
        assert_eq!(measured.iter().count(), KEYS_MAX);
        assert_eq!(measured.iter().next().map(|(_, first)| first.count()), Some(2));
        let mut other = Measured::default();
        other.note("y", Duration::ZERO);
        measured.extend(other);
        assert_eq!(measured.iter().count(), KEYS_MAX + 1);
    }

    #[test]
    fn what_lives_is_measured_in_hours() {
        let mut measured = Measured::default();
        measured.note("lifetime.web", Duration::from_hours(2));
        let (_, histogram) = measured.iter().next().expect("one");
        assert_eq!((histogram.bounds, histogram.counts[3]), (LIVES, 1));
    }
}
