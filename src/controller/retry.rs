//! Retries after failures, and the schedule of repeated reads.

use jiff::{SignedDuration, Timestamp};

use super::status::SourceState;
use crate::model::saturating_time::{doubling_delay, later};

/// Minimum time between two reads that hints trigger.
const HINT_INTERVAL_MIN: SignedDuration = SignedDuration::from_secs(2);
/// First and longest wait after a failure.
const RETRY_WAIT_FIRST: SignedDuration = SignedDuration::from_secs(2);
const RETRY_WAIT_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Consecutive failures, and the time of the next try.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    failures: u32,
    pub(super) at: Timestamp,
}

impl Retry {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { failures: 0, at: now }
    }

    /// Returns the number of consecutive failures.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn record_failure(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.at = later(now, backoff(self.failures));
    }

    pub(super) fn record_success(&mut self, now: Timestamp) {
        *self = Self::new(now);
    }
}

/// Returns the wait after so many consecutive failures.
pub(super) fn backoff(failures: u32) -> SignedDuration {
    doubling_delay(RETRY_WAIT_FIRST, failures.saturating_sub(1), RETRY_WAIT_MAX)
}

/// Repeated reads of a source: the result of the last one, and the time of the next.
#[derive(Debug, Clone)]
pub(super) struct ReadSchedule {
    pub(super) result: SourceState,
    pub(super) due: Timestamp,
    pub(super) is_running: bool,
    /// Start of the last read.
    pub(super) started_at: Timestamp,
    /// True if the source changed again during a read.
    is_hinted: bool,
}

impl ReadSchedule {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            result: SourceState::default(),
            due: now,
            is_running: false,
            started_at: now,
            is_hinted: false,
        }
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        !self.is_running && now >= self.due
    }

    pub(super) fn has_failed(&self) -> bool {
        self.result.failures > 0
    }

    pub(super) fn start(&mut self, now: Timestamp) {
        (self.is_running, self.started_at) = (true, now);
    }

    pub(super) fn record_success(&mut self, now: Timestamp) {
        self.is_running = false;
        self.result = SourceState { read_at: Some(now), error: None, failures: 0 };
    }

    pub(super) fn record_failure(&mut self, why: String, now: Timestamp) {
        self.is_running = false;
        self.result.failures = self.result.failures.saturating_add(1);
        let since = self.result.error.as_ref().map_or(now, |(_, since)| *since);
        self.result.error = Some((why, since));
    }

    /// Schedules the next read `wait` after a success, or earlier for a hint during the read.
    pub(super) fn schedule(&mut self, wait: SignedDuration, now: Timestamp) {
        self.due = later(now, wait);
        if std::mem::take(&mut self.is_hinted) {
            self.bring_forward(now);
        }
    }

    /// Schedules the next read `wait` after a failure.
    pub(super) fn schedule_retry(&mut self, wait: SignedDuration, now: Timestamp) {
        self.due = later(now, wait);
    }

    /// Schedules a read for a change of the source. A read in progress may predate the change.
    pub(super) fn hint(&mut self, now: Timestamp) {
        if self.is_running {
            self.is_hinted = true;
        } else {
            self.bring_forward(now);
        }
    }

    pub(super) fn forget_hint(&mut self) {
        self.is_hinted = false;
    }

    /// Makes the next read due as soon as a hint may trigger one. One read serves all hints before
    /// it.
    pub(super) fn bring_forward(&mut self, now: Timestamp) {
        self.bring_forward_after(HINT_INTERVAL_MIN, now);
    }

    /// Makes the next read due `interval` after the start of the last one.
    pub(super) fn bring_forward_after(&mut self, interval: SignedDuration, now: Timestamp) {
        self.due = self.due.min(later(self.started_at, interval).max(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::controller::at;

    #[test]
    fn hint_during_read_triggers_another_soon() {
        let mut reads = ReadSchedule::new(at(0));
        reads.start(at(0));
        reads.hint(at(1));
        reads.record_success(at(1));
        reads.schedule(SignedDuration::from_mins(1), at(1));
        assert_eq!(reads.due, at(2));
        reads.start(at(2));
        reads.record_success(at(3));
        reads.schedule(SignedDuration::from_mins(1), at(3));
        assert_eq!(reads.due, at(63));
    }

    #[test]
    fn failures_keep_the_time_of_the_first() {
        let mut reads = ReadSchedule::new(at(0));
        for seconds in [5, 9] {
            reads.record_failure("denied".to_owned(), at(seconds));
        }
        assert_eq!(reads.result.error, Some(("denied".to_owned(), at(5))));
        assert_eq!((reads.result.failures, reads.has_failed()), (2, true));
    }
}
