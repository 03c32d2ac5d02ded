//! Budgets: launches, removals, reads and writes over time.

use std::collections::BTreeSet;

use fleetwright::model::desired::RateLimit;
use fleetwright::model::ids::InstanceId;
use jiff::{SignedDuration, Timestamp};

use super::{CallKind, InvariantChecks};

/// Maximum number of reads per minute.
pub(super) const READS_PER_MINUTE: u64 = 240;
/// Maximum number of equal writes within [`REPEAT_WINDOW`].
pub(super) const REPEATS_MAX: usize = 25;
const REPEAT_WINDOW: SignedDuration = SignedDuration::from_mins(5);

impl InvariantChecks {
    /// Returns the maximum number of launches within a window.
    #[must_use]
    pub(crate) fn most_launches(&self, within: SignedDuration) -> usize {
        let moments: Vec<Timestamp> = self.launches.iter().map(|(at, ..)| *at).collect();
        max_within(&moments, within)
    }

    /// Returns the number of terminated instances.
    #[must_use]
    pub(crate) fn removals(&self) -> usize {
        self.terminated.len()
    }

    /// Returns the number of launched instances.
    #[must_use]
    pub(crate) fn launches(&self) -> usize {
        self.launches.len()
    }

    /// I19: equal writes are bounded.
    pub(super) fn check_repeated_writes(&mut self, at: Timestamp, kind: &CallKind) {
        let key = match kind {
            CallKind::Launch(request, _) => format!("launch {}", request.token),
            CallKind::Terminate(ended) => format!("end {}", ended.id),
            CallKind::Cordon { node, on, .. } => format!("cordon {node} {on}"),
            CallKind::Open(node) => format!("open {node}"),
            // Each drain tries its evictions anew.
            CallKind::Evict(..)
            | CallKind::DeletePod(..)
            | CallKind::Acknowledge(..)
            | CallKind::Ended(_)
            | CallKind::Launched(_)
            | CallKind::Pinned(..)
            | CallKind::Serves(_)
            | CallKind::Nominate(..)
            | CallKind::Raise { .. } => return,
        };
        let times = self.writes.entry(key.clone()).or_default();
        times.push(at);
        times.retain(|time| at.duration_since(*time) < REPEAT_WINDOW);
        if times.len() > REPEATS_MAX {
            self.fail(at, &format!("I19: {key}: more than {REPEATS_MAX} times within 5 minutes"));
        }
    }

    /// I19: the rate of reads is bounded under faults. `reads` is the total.
    pub(super) fn check_read_rate(&mut self, reads: u64, now: Timestamp) {
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

    /// Returns whether no clock was changed within the window of a rate limit.
    pub(super) fn is_rate_valid(&self, rate: RateLimit, now: Timestamp) -> bool {
        self.clock_set.is_none_or(|at| now.duration_since(at) >= rate.window)
    }

    /// Returns the maximum number of nodes within a window, and for the time of planning and apply
    /// before it.
    pub(super) fn most_nodes(&self, at: Timestamp, within: SignedDuration) -> u32 {
        let since = at.checked_sub(within).unwrap_or(at);
        let since = since.checked_sub(SignedDuration::from_mins(40)).unwrap_or(since);
        let before = self.nodes.iter().rev().find(|(time, _)| *time <= since);
        let during = self.nodes.iter().rev().take_while(|(time, _)| *time > since);
        during.chain(before).map(|(_, nodes)| *nodes).max().unwrap_or(0)
    }
}

/// Returns the number of changes within the window of a rate limit if it exceeds the limit. A
/// single unit may exceed the limit.
pub(super) fn rate_excess(
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

/// Returns the maximum number of times within a window.
fn max_within(moments: &[Timestamp], within: SignedDuration) -> usize {
    let mut most = 0;
    for (first, at) in moments.iter().enumerate() {
        let until = at.checked_add(within).unwrap_or(Timestamp::MAX);
        most = most.max(moments.iter().skip(first).take_while(|at| **at < until).count());
    }
    most
}
