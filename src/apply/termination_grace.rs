//! The end of a drain by force, after the termination grace period of a pool.
//!
//! The period begins with the cordon of the node, and an annotation records that time. Pods that are still
//! on the node are deleted early enough to stop within it, past their disruption budgets and
//! do-not-disrupt annotations. An apply that ends earlier leaves the node cordoned, and the drain
//! continues with the next one.
//!
//! Source: karpenter core, `pkg/controllers/node/termination`. Differences: only drifted and
//! expired nodes end by force, and a pod that is deleted late still gets half a minute.

use jiff::{SignedDuration, Timestamp};

use super::deadline_after;
use crate::model::observed::{Node, Observed, Pod};

/// Grace period of pods that declare none, in seconds.
const POD_GRACE_SECONDS_DEFAULT: i64 = 30;

/// Least grace period of a pod that is deleted late, in seconds, unless it declares a shorter one.
const LATE_GRACE_SECONDS: i64 = 30;

/// An attempt does not end within this time of the end of the period.
const LAST_WAIT: SignedDuration = SignedDuration::from_mins(2);

/// Longest attempt to continue the drain of an earlier apply. Other changes wait for it.
pub(super) const CONTINUED_DRAIN: SignedDuration = SignedDuration::from_mins(1);

/// A drain that ends by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForcedEnd {
    /// End of the termination grace period.
    pub(super) at: Timestamp,
    /// True if an earlier apply began the drain.
    is_continued: bool,
    /// Time at which this apply deleted the first pod.
    first_deletion: Option<Timestamp>,
}

impl ForcedEnd {
    /// Returns the end of a drain whose period begins at `now`, or began when the annotation of the
    /// node says.
    pub(super) fn new(node: &Node, grace: SignedDuration, now: Timestamp) -> Self {
        let before = node.grace_period_began_at();
        // A time in the future is wrong.
        let start = before.map_or(now, |at| at.min(now));
        Self {
            at: deadline_after(start, grace),
            is_continued: before.is_some(),
            first_deletion: None,
        }
    }

    pub(super) fn is_continued(self) -> bool {
        self.is_continued
    }

    /// Returns the grace period, in seconds, with which to delete a pod now; `None` before its time.
    pub(super) fn deletion_grace(
        self,
        pod: &Pod,
        observed: &Observed,
        now: Timestamp,
    ) -> Option<u32> {
        let template = observed.templates.get(&pod.template);
        let declared = template.and_then(|template| template.spec.termination_grace_seconds);
        let declared = declared.unwrap_or(POD_GRACE_SECONDS_DEFAULT);
        let left = self.at.duration_since(now).as_secs();
        let grace = left.max(declared.min(LATE_GRACE_SECONDS)).max(1);
        (left <= declared).then(|| u32::try_from(grace).unwrap_or(u32::MAX))
    }

    pub(super) fn record_deletion(&mut self, now: Timestamp) {
        self.first_deletion.get_or_insert(now);
    }

    /// Returns true if the instance may be terminated with pods that are stopping.
    pub(super) fn has_ended(self, now: Timestamp) -> bool {
        now >= self.end()
    }

    /// Returns true if the end is so near that an attempt waits for it, beyond its own bound.
    pub(super) fn is_near(self, now: Timestamp) -> bool {
        now.duration_since(self.end()).abs() < LAST_WAIT
    }

    /// Returns the time of the termination. Pods that were deleted late have had their time by then.
    fn end(self) -> Timestamp {
        let late = SignedDuration::from_secs(LATE_GRACE_SECONDS);
        self.first_deletion.map_or(self.at, |first| self.at.max(deadline_after(first, late)))
    }
}
