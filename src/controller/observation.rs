//! The last observation of the cluster, its schedule, and its age in comparison to own changes.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::planning_snapshot::UnobservedChanges;
use super::retry::{ReadSchedule, backoff};
use super::status::WorldStatus;
use crate::apply::waits_for_node;
use crate::model::desired::ControllerSettings;
use crate::model::observed::{Completeness, Observed};
use crate::model::saturating_time::later;

/// Time between two observations while work is in progress.
pub(super) const BUSY_REFRESH: SignedDuration = SignedDuration::from_secs(5);

/// First and last pending pod of a burst.
#[derive(Debug, Clone, Copy)]
struct PodBurst {
    first: Timestamp,
    last: Timestamp,
}

/// The last observation, and when the next one is due.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    pub(super) latest: Option<Arc<Observed>>,
    /// Summary of `latest`.
    pub(super) summary: Option<WorldStatus>,
    pub(super) reads: ReadSchedule,
    /// Number of the observation started last.
    last_number: u64,
    /// Number of the last complete observation.
    pub(super) number: u64,
    /// Number of the first observation that counts.
    required: u64,
    pub(super) unobserved: UnobservedChanges,
    burst: Option<PodBurst>,
    /// When the first pod of the next plan's burst was seen.
    reaction_started_at: Option<Timestamp>,
}

impl Observation {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            latest: None,
            summary: None,
            reads: ReadSchedule::new(now),
            last_number: 0,
            number: 0,
            required: 1,
            unobserved: UnobservedChanges::default(),
            burst: None,
            reaction_started_at: None,
        }
    }

    pub(super) fn on_clock_set_back(&mut self, now: Timestamp) {
        self.reads.due = now;
        self.burst = self.burst.map(|_| PodBurst { first: now, last: now });
    }

    /// Starts an observation if one is due; returns whether it started.
    pub(super) fn start_if_due(
        &mut self,
        settings: Option<&ControllerSettings>,
        now: Timestamp,
    ) -> bool {
        let burst = self.burst_due(settings).is_some_and(|due| now >= due);
        // Observations that started before the last write ended, or that failed, do not count.
        let lacks = !self.is_sufficient() && !self.reads.has_failed();
        if self.reads.is_running || !(burst || lacks || self.reads.is_due(now)) {
            return false;
        }
        if burst {
            self.burst = None;
        }
        self.last_number += 1;
        self.reads.start(now);
        true
    }

    /// Returns when the pending pods of a burst are planned.
    pub(super) fn burst_due(&self, settings: Option<&ControllerSettings>) -> Option<Timestamp> {
        let (PodBurst { first, last }, settings) = (self.burst?, settings?);
        Some(later(last, settings.batch_idle).min(later(first, settings.batch_max)))
    }

    pub(super) fn note_pending_pod(&mut self, now: Timestamp) {
        let first = self.burst.map_or(now, |burst| burst.first);
        self.burst = Some(PodBurst { first, last: now });
        self.reaction_started_at.get_or_insert(now);
    }

    /// Returns true while pending pods wait for an observation or a plan.
    pub(super) fn has_waiting_pods(&self) -> bool {
        self.burst.is_some() || self.reaction_started_at.is_some()
    }

    /// Ends the reaction to a burst; returns when its first pod was seen.
    pub(super) fn finish_reaction(&mut self) -> Option<Timestamp> {
        self.reaction_started_at.take()
    }

    /// Returns the number of the next observation to start.
    pub(super) fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Returns the number of the observation started last.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Returns the number of the first observation that counts.
    pub(super) fn required(&self) -> u64 {
        self.required
    }

    /// Discards the observations started so far: an own change has just ended.
    pub(super) fn require_next(&mut self) {
        self.required = self.next_number();
    }

    #[cfg(test)]
    pub(super) fn require_none(&mut self) {
        self.required = 0;
    }

    /// Returns whether the last complete observation counts.
    pub(super) fn is_sufficient(&self) -> bool {
        self.number >= self.required
    }

    /// Returns whether the last observation counts, is complete, and no later one has ended.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_sufficient() && self.number == self.last_number - u64::from(self.reads.is_running)
    }

    /// Makes an observation due [`BUSY_REFRESH`] after the start of the last one.
    pub(super) fn observe_soon(&mut self, now: Timestamp) {
        self.reads.bring_forward_after(BUSY_REFRESH, now);
    }

    /// Returns the last observation if it is complete.
    pub(super) fn complete(&self) -> Option<&Arc<Observed>> {
        self.latest.as_ref().filter(|_| !self.reads.has_failed())
    }

    /// Records a complete observation.
    pub(super) fn accept(&mut self, observed: &Arc<Observed>, now: Timestamp) {
        self.reads.record_success(now);
        // The burst ended by itself: its pods have nodes, or are deleted.
        if self.burst.is_none() && !observed.pods.iter().any(|pod| waits_for_node(pod, observed)) {
            self.reaction_started_at = None;
        }
        self.unobserved.forget_expired(now);
        self.unobserved.note_recent_instances(self.latest.as_deref(), observed, now);
    }

    /// Records an observation that lacks a source.
    pub(super) fn reject(&mut self, observed: &Observed, now: Timestamp) {
        let missing = observed.sources.iter().filter_map(|(name, source)| match source {
            Completeness::Partial { reason } | Completeness::Failed { reason } => {
                Some(format!("{name}: {reason}"))
            }
            Completeness::Complete => None,
        });
        let why = missing.collect::<Vec<_>>().join("; ");
        self.reads.record_failure(why, now);
    }

    /// Schedules the next observation.
    pub(super) fn schedule(&mut self, refresh: SignedDuration, is_busy: bool, now: Timestamp) {
        match self.reads.result.failures {
            0 => {
                self.reads.schedule(if is_busy { BUSY_REFRESH.min(refresh) } else { refresh }, now);
            }
            failures => {
                self.reads.forget_hint();
                self.reads.schedule_retry(backoff(failures).min(refresh), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::controller::{at, world};
    use crate::testing::world::pod;

    #[test]
    fn burst_that_ends_by_itself_has_no_reaction_time() {
        let reaction_after = |world: Observed| {
            let mut observation = Observation::new(at(0));
            observation.note_pending_pod(at(0));
            observation.burst = None;
            observation.accept(&Arc::new(world), at(1));
            observation.finish_reaction()
        };
        assert_eq!(reaction_after(world(1)), None, "the pods are gone");
        assert_eq!(reaction_after(world(1).with_pods([pod("a")])), Some(at(0)));
    }
}
