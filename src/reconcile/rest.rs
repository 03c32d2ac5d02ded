//! When nothing is left to do, and when something is due next.

use jiff::{SignedDuration, Timestamp};

use super::kept::later;
use super::state::State;
use super::status::Held;
use super::work::REPLAN;

impl State {
    /// Returns whether nothing is left to do: what was read is planned, and what may be done is done.
    pub(super) fn is_at_rest(&self) -> bool {
        let quiet = self.lanes.is_empty()
            && self.planning.is_none()
            && !self.observing
            && self.away.is_empty()
            && self.health.unwell.is_empty()
            && self.saving.is_none();
        // What only waits for a time to pass is waited for.
        let held = self.current.iter().flat_map(|current| current.held.values());
        let mut held = held.map(|held| &held.why);
        let passes = held.any(|held| {
            matches!(
                held,
                Held::Settling { .. }
                    | Held::Resting { .. }
                    | Held::RemovalBudget { most: 1.., .. }
                    | Held::LaunchBudget { most: 1.., .. }
                    | Held::BackingOff { .. }
                    | Held::Unheard { .. }
            )
        });
        let unread = self.git.error.is_some();
        quiet && (unread || (self.settled.is_some() && self.world_no >= self.need && !passes))
    }

    /// Returns when something is due next, whether or not anything happens before.
    pub(super) fn next_moment(&self) -> Timestamp {
        let mut next = later(self.now, REPLAN);
        if !self.reading && self.kept.is_some() {
            next = next.min(self.git_due);
        }
        if !self.observing {
            next = next.min(self.world_due).min(self.batch_due().unwrap_or(next));
        }
        if self.planning.is_none() && self.world.is_some() && self.head.is_some() {
            next = next.min(self.replan_at);
        }
        if (self.kept.is_none() && !self.recalling) || self.desk.at > self.now {
            next = next.min(self.desk.at);
        }
        if let Some((_, until)) = &self.newer {
            next = next.min(*until);
        }
        if self.former.is_some() && !self.reading_former {
            next = next.min(self.former_due.at);
        }
        if !self.away.is_empty() {
            next = next.min(self.away_due);
        }
        // A moment that has passed and led to nothing leads to nothing again at once.
        if next <= self.now { later(self.now, SignedDuration::from_secs(1)) } else { next }
    }
}
