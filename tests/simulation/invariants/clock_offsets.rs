//! Clock offsets of replicas: a wait may be shorter by at most this much.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// Clock offsets of each replica, with the time of each change.
#[derive(Clone, Default)]
pub(super) struct ClockOffsets(BTreeMap<usize, Vec<(Timestamp, SignedDuration)>>);

impl ClockOffsets {
    /// Records the clock offset of a replica from now on.
    pub(super) fn set(&mut self, replica: usize, now: Timestamp, by: SignedDuration) {
        self.0.entry(replica).or_default().push((now, by));
    }

    /// Returns how far the clock of a replica was set forward since `at`, at most.
    pub(super) fn set_forward_since(&self, replica: usize, at: Timestamp) -> SignedDuration {
        let all = self.0.get(&replica).map(Vec::as_slice).unwrap_or_default();
        let (before, since) = all.split_at(all.partition_point(|(from, _)| *from <= at));
        let then = before.last().map_or(SignedDuration::ZERO, |(_, by)| *by);
        since.iter().map(|(_, by)| *by - then).max().unwrap_or_default().max(SignedDuration::ZERO)
    }

    /// Returns the largest difference between two clock offsets since `at`. A time span measured by
    /// two replicas may be wrong by this much.
    pub(super) fn max_difference_since(&self, at: Timestamp) -> SignedDuration {
        let held = self.0.values().flat_map(|all| {
            let before = all.iter().take_while(|(from, _)| *from <= at).count();
            all.iter().skip(before.saturating_sub(1)).map(|(_, by)| *by)
        });
        let (least, most) = (held.clone().min(), held.max());
        most.zip(least).map_or(SignedDuration::ZERO, |(most, least)| most - least)
    }
}
