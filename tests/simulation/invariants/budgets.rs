//! Budgets: launches, removals, reads and writes over time.

use std::collections::BTreeSet;

use fleetwright::model::desired::RateLimit;
use fleetwright::model::ids::InstanceId;
use jiff::{SignedDuration, Timestamp};

use super::{CallKind, InvariantChecks};

/// Most reads a minute of one life.
pub(super) const READS_PER_MINUTE: u64 = 240;
/// Most times that the same thing is written again, and within how long.
pub(super) const SAME_MOST: usize = 25;
const SAME_WITHIN: SignedDuration = SignedDuration::from_mins(5);

impl InvariantChecks {
    /// Returns the most instances that were launched within a time.
    #[must_use]
    pub(crate) fn most_launches(&self, within: SignedDuration) -> usize {
        let moments: Vec<Timestamp> = self.launches.iter().map(|(at, ..)| *at).collect();
        most(&moments, within)
    }

    /// Returns how many instances were told to end.
    #[must_use]
    pub(crate) fn removals(&self) -> usize {
        self.all_ended.len()
    }

    /// Returns how many instances were launched.
    #[must_use]
    pub(crate) fn launches(&self) -> usize {
        self.launches.len()
    }

    /// I19: the same thing is not written over and over.
    pub(super) fn is_polite(&mut self, at: Timestamp, what: &CallKind) {
        let key = match what {
            CallKind::Launch(request, _) => format!("launch {}", request.token),
            CallKind::Terminate(ended) => format!("end {}", ended.id),
            CallKind::Cordon { node, on, .. } => format!("cordon {node} {on}"),
            // Budgets of disruption are asked anew by every drain there is.
            CallKind::Evict(_)
            | CallKind::Acknowledge(..)
            | CallKind::Ended(_)
            | CallKind::Launched(_)
            | CallKind::Pinned(..)
            | CallKind::Serves(_)
            | CallKind::Nominate(_)
            | CallKind::Raise { .. } => return,
        };
        let times = self.writes.entry(key.clone()).or_default();
        times.push(at);
        times.retain(|time| at.duration_since(*time) < SAME_WITHIN);
        if times.len() > SAME_MOST {
            self.fail(at, &format!("I19: {key}: more than {SAME_MOST} times within 5 minutes"));
        }
    }

    /// I19: what a minute costs does not grow with what goes wrong; `reads` were made in all.
    pub(super) fn is_frugal(&mut self, reads: u64, now: Timestamp) {
        let (before, since) = self.reads;
        match since {
            Some(since) if now.duration_since(since) < SignedDuration::from_mins(1) => {}
            Some(_) | None => {
                let more = reads - before;
                if since.is_some() && more > READS_PER_MINUTE {
                    self.fail(now, &format!("I19: {more} reads within a minute"));
                }
                self.reads = (reads, Some(now));
            }
        }
    }

    /// Returns whether no clock was set within the time of a budget.
    pub(super) fn counts(&self, rate: RateLimit, now: Timestamp) -> bool {
        self.clock_set.is_none_or(|at| now.duration_since(at) >= rate.window)
    }

    /// Returns the most nodes that there were within a time, and while the plan was made and carried out.
    pub(super) fn most_nodes(&self, at: Timestamp, within: SignedDuration) -> u32 {
        let since = at.checked_sub(within).unwrap_or(at);
        let since = since.checked_sub(SignedDuration::from_mins(40)).unwrap_or(since);
        let before = self.nodes.iter().rev().find(|(time, _)| *time <= since);
        let during = self.nodes.iter().rev().take_while(|(time, _)| *time > since);
        during.chain(before).map(|(_, nodes)| *nodes).max().unwrap_or(0)
    }
}

/// Returns how many moves there were within the time of a budget, where that is too many. A unit that is
/// larger than its budget may go alone.
pub(super) fn over(
    moves: &[(Timestamp, InstanceId, String)],
    rate: RateLimit,
    now: Timestamp,
    nodes: u32,
) -> Option<usize> {
    let recent = moves.iter().filter(|(at, ..)| now.duration_since(*at) < rate.window);
    let units: BTreeSet<&String> = recent.clone().map(|(.., unit)| unit).collect();
    let count = recent.count();
    let most = usize::try_from(rate.limit_for(nodes)).unwrap_or(usize::MAX);
    (count > most && units.len() > 1).then_some(count)
}

/// Returns the most moments within a time.
fn most(moments: &[Timestamp], within: SignedDuration) -> usize {
    let mut most = 0;
    for (first, at) in moments.iter().enumerate() {
        let until = at.checked_add(within).unwrap_or(Timestamp::MAX);
        most = most.max(moments.iter().skip(first).take_while(|at| **at < until).count());
    }
    most
}
