//! Times of an interruption: the latest start of its evictions, its end by force, and the end of a
//! drain that is abandoned.
//!
//! Invariant: a message that nothing confirms ends no instance by force. Pods are evicted before
//! its time, and EC2 does the rest if the message is true.

use jiff::{SignedDuration, Timestamp};

use super::state_machine::{EvictionWait, Interruption, Progress};
use crate::apply::Bounds;
use crate::controller::interruption_message::MessageKind;
use crate::controller::persisted_state::{Announcement, CLOCK_SKEW_MAX, InterruptionRecord};
use crate::model::saturating_time::{earlier, later};

/// Evictions start at least this long before the deadline, even without a replacement. About the
/// termination grace period that Kubernetes gives by default, with a margin.
const DRAIN_LEAD: SignedDuration = SignedDuration::from_secs(60);
/// Longest wait for an unblocked replacement, for an instance without a deadline.
const REPLACEMENT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// Longest wait for a plan made since the interruption was known: until then replacements may be
/// blocked. Longer than a drain during which nothing else is planned.
const PLAN_TIMEOUT: SignedDuration = SignedDuration::from_mins(30);
/// Drain time of an instance without a deadline, as in an apply; then the drain is abandoned.
const DRAIN_TIMEOUT: SignedDuration = Bounds::DEFAULT.drain;
/// EC2 may take a group member this long after its deadline; then its node serves again.
pub(super) const RECLAIM_TIMEOUT: SignedDuration = SignedDuration::from_mins(30);

impl Announcement {
    /// Returns the latest start of evictions: pods get the drain time of an apply, and at most half
    /// of the notice.
    fn latest_eviction_start(self) -> Timestamp {
        let half = self.deadline.duration_since(self.since) / 2;
        earlier(self.deadline, half.clamp(DRAIN_LEAD, DRAIN_TIMEOUT))
    }

    /// Returns whether pods are evicted because of the announcement. It says nothing once its time
    /// has passed by any clock.
    fn is_due(self, now: Timestamp) -> bool {
        now >= self.latest_eviction_start() && now < later(self.deadline, CLOCK_SKEW_MAX)
    }
}

impl InterruptionRecord {
    /// Adds another record of the same instance. Of two deadlines the earlier one counts. A time
    /// that nothing confirms no longer counts once it is past and another one is announced. A
    /// message that nothing confirms changes nothing about an interruption that something confirms,
    /// except that pods are evicted before its time. It gives way to any other message.
    pub(in crate::controller) fn absorb(&mut self, other: &Self) {
        let announced = match (self.is_unconfirmed(), other.is_unconfirmed()) {
            (false, true) => other.as_announcement(),
            (true, false) => {
                let announced = self.as_announcement();
                *self = Self { member: self.member, ..other.clone() };
                announced
            }
            (true, true) => {
                let both = [self.deadline, other.deadline].into_iter().flatten();
                self.deadline = both.min_by_key(|at| (other.is_past(*at), *at));
                other.announced
            }
            (false, false) => {
                self.deadline = [self.deadline, other.deadline].into_iter().flatten().min();
                other.announced
            }
        };
        let both = [self.announced, announced].into_iter().flatten();
        self.announced = both.min_by_key(|one| (other.is_past(one.deadline), one.deadline));
    }

    /// Returns whether a time had passed when the interruption became known.
    fn is_past(&self, at: Timestamp) -> bool {
        at <= self.since
    }

    /// Returns the announcement of a record whose deadline lay ahead.
    fn as_announcement(&self) -> Option<Announcement> {
        let deadline = self.deadline.filter(|_| self.is_ahead())?;
        Some(Announcement { since: self.since, deadline })
    }

    /// Turns the record into that of the scheduled change that was announced meanwhile, if its time
    /// lies ahead. Returns whether it does.
    pub(super) fn become_announced(&mut self, now: Timestamp) -> bool {
        let announced = self.announced.take().filter(|announced| now < announced.deadline);
        let Some(Announcement { since, deadline }) = announced else { return false };
        let why = MessageKind::Health.to_string();
        (self.why, self.since, self.deadline) = (why, since, Some(deadline));
        true
    }
}

impl Interruption {
    /// Returns when a deadline that lay ahead at receipt has passed by any clock. One that was past
    /// at receipt comes from a late message and says nothing about now.
    pub(super) fn external_end(&self) -> Option<Timestamp> {
        let ahead = self.record.deadline.filter(|_| self.record.is_ahead());
        ahead.map(|deadline| later(deadline, CLOCK_SKEW_MAX))
    }

    /// Returns when the instance is terminated with its remaining pods. A message that nothing
    /// confirms terminates no pod: if it is true, EC2 ends the instance itself.
    pub(super) fn forced_termination_at(&self) -> Option<Timestamp> {
        self.external_end().filter(|_| !self.record.is_unconfirmed())
    }

    /// Returns when a drain since that time is abandoned with pods left, unless it ends by force.
    pub(super) fn abandoned_at(&self, since: Timestamp) -> Option<Timestamp> {
        match self.external_end() {
            Some(_) if self.forced_termination_at().is_some() => None,
            Some(end) => Some(later(end, RECLAIM_TIMEOUT)),
            None => Some(later(since, DRAIN_TIMEOUT)),
        }
    }

    /// Returns the latest start of evictions before the deadline, unless it was long past at
    /// receipt.
    fn eviction_start_before_deadline(&self) -> Option<Timestamp> {
        let InterruptionRecord { since, deadline, .. } = self.record;
        // A deadline just past by this clock may lie ahead by the clock of EC2.
        let deadline = deadline.filter(|at| later(*at, CLOCK_SKEW_MAX) > since)?;
        Some(Announcement { since, deadline }.latest_eviction_start())
    }

    /// Returns the latest start of evictions, whether or not the replacement is there. Returns
    /// `None` without a deadline while the replacement is blocked or the pods are unknown.
    pub(super) fn latest_eviction_start(&self, observed: bool) -> Option<Timestamp> {
        if let Some(start) = self.eviction_start_before_deadline() {
            return Some(start);
        }
        match self.progress {
            Progress::Noticed { since }
            | Progress::Replacing { wait: EvictionWait::Plan { since } } => {
                Some(later(since, PLAN_TIMEOUT))
            }
            Progress::Replacing { wait: EvictionWait::Launches { since } } => {
                Some(later(since, REPLACEMENT_TIMEOUT))
            }
            Progress::Replacing { wait: EvictionWait::Blocked }
            | Progress::Draining(_)
            | Progress::Terminating { .. } => None,
        }
        .filter(|_| observed)
    }

    /// Returns whether a scheduled change that nothing confirms is so near that pods are evicted. A
    /// start in the past is no reason: EC2 has taken the instance by then, or the message is wrong.
    pub(super) fn is_announced_time_near(&self, now: Timestamp) -> bool {
        let announced = if self.record.is_unconfirmed() {
            self.record.as_announcement()
        } else {
            self.record.announced
        };
        announced.is_some_and(|announced| announced.is_due(now))
    }

    /// Returns when a joined node that is no longer shown counts as lost.
    pub(super) fn node_loss_believed_at(&self) -> Timestamp {
        let most = later(self.record.since, REPLACEMENT_TIMEOUT);
        self.latest_eviction_start(true).map_or(most, |latest| latest.min(most))
    }
}
