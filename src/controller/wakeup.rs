//! The idle check, and the time of the next wake-up.

use jiff::{SignedDuration, Timestamp};

use super::reconcile::REPLAN_INTERVAL;
use super::state::ControllerState;
use super::status::BlockedReason;
use crate::model::saturating_time::later;

impl ControllerState {
    /// Returns whether no work remains: everything that was read is planned, and everything allowed
    /// is done.
    pub(super) fn is_idle(&self) -> bool {
        let is_quiescent = self.applies.is_empty()
            && self.planning.run.is_none()
            && !self.observation.reads.is_running
            && self.interruptions.all.is_empty()
            && self.node_health.problems.is_empty()
            && !self.opening.has_closed_nodes()
            && !self.persistence.is_saving();
        // Changes that only wait for a time to pass keep the controller busy.
        let blocked = self.planning.current.iter().flat_map(|current| current.blocked.values());
        let mut blocked = blocked.map(|blocked| &blocked.reason);
        let passes = blocked.any(|blocked| {
            matches!(
                blocked,
                BlockedReason::Settling { .. }
                    | BlockedReason::ConsolidateAfter { .. }
                    | BlockedReason::PodsArriving { .. }
                    | BlockedReason::MassRemoval { .. }
                    | BlockedReason::UnexplainedRemoval { .. }
                    | BlockedReason::RemovalBudget { most: 1.., .. }
                    | BlockedReason::LaunchBudget { most: 1.., .. }
                    | BlockedReason::BackingOff { .. }
                    | BlockedReason::LaunchInDoubt { .. }
            )
        });
        let is_unreadable = self.revisions.reads.result.error.is_some();
        is_quiescent
            && (is_unreadable
                || (self.planning.settled_version.is_some()
                    && self.observation.is_sufficient()
                    && !passes))
    }

    /// Returns the time of the next wake-up without an event.
    pub(super) fn next_wakeup(&self) -> Timestamp {
        let now = self.now;
        let mut next = later(now, REPLAN_INTERVAL);
        if !self.revisions.reads.is_running && self.persistence.loaded.is_some() {
            next = next.min(self.revisions.reads.due);
        }
        if !self.observation.reads.is_running {
            let burst_due = self.observation.burst_due(self.revisions.settings());
            next = next.min(self.observation.reads.due).min(burst_due.unwrap_or(next));
        }
        if self.planning.run.is_none()
            && self.observation.latest.is_some()
            && self.revisions.served.is_some()
        {
            next = next.min(self.planning.replan_at);
        }
        let others = [
            self.persistence.next_try(now),
            self.revisions.next_due(),
            self.interruptions.next_due(),
            self.opening.next_due(),
        ];
        next = others.into_iter().flatten().fold(next, Timestamp::min);
        // A time that has passed without effect would have none again at once.
        if next <= now { later(now, SignedDuration::from_secs(1)) } else { next }
    }
}
