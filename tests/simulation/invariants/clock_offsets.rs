//! Clock offsets of replicas: a wait may be shorter by at most this much.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// By how much the clocks of replicas were wrong, from when on.
#[derive(Default)]
pub(super) struct ClockOffsets(BTreeMap<usize, Vec<(Timestamp, SignedDuration)>>);

impl ClockOffsets {
    /// Notes that the clock of a replica is wrong by so much from now on.
    pub(super) fn set(&mut self, replica: usize, now: Timestamp, by: SignedDuration) {
        self.0.entry(replica).or_default().push((now, by));
    }

    /// Returns by how much more time may seem to have passed since `at` than has, whoever began to count and whoever ends.
    pub(super) fn apart_since(&self, at: Timestamp) -> SignedDuration {
        let held = self.0.values().flat_map(|all| {
            let before = all.iter().take_while(|(from, _)| *from <= at).count();
            all.iter().skip(before.saturating_sub(1)).map(|(_, by)| *by)
        });
        let (least, most) = (held.clone().min(), held.max());
        most.zip(least).map_or(SignedDuration::ZERO, |(most, least)| most - least)
    }
}
