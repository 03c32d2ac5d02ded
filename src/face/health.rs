//! Whether the process is alive, and whether what it shows may be relied on.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::words;
use crate::reconcile::{Deed, Failure, SourceState, Status};
use crate::render::escape;

/// How long after it was due a step may be missing before the loop counts as stuck. Longer than any
/// plan took in the benchmarks by far; whoever is restarted while it plans plans from the beginning.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// An answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether all is well.
    pub is_well: bool,
    /// What is not, one a line; or what is.
    pub says: String,
}

impl Health {
    fn of(missing: &[String], well: &str) -> Self {
        let is_well = missing.is_empty();
        Self { is_well, says: if is_well { well.to_owned() } else { missing.join("\n") } }
    }
}

/// Returns whether the loop steps. Nothing outside can make it unwell: a restart helps against a loop
/// that is stuck, and not against a repository that cannot be reached.
#[must_use]
pub fn health(status: &Status, now: Timestamp) -> Health {
    let due = status.wakes_at.unwrap_or(status.now).max(status.now);
    let late = now.duration_since(due);
    let mut missing = Vec::new();
    if late > STUCK_AFTER {
        missing.push(format!("the loop has not stepped for {} s after it was due", late.as_secs()));
    }
    Health::of(&missing, "the loop steps")
}

/// Returns whether the replica knows what it shows: the repository and the world were read at least
/// once. That either cannot be read now does not make it unready, since what it shows says so; the text
/// does, and names what keeps the loop from beginning anything.
#[must_use]
pub fn readiness(status: &Status) -> Health {
    let mut missing = Vec::new();
    if status.repository.commit.is_none() {
        missing.push(unread("repository", &status.repository.reads));
    }
    if status.world.is_none() {
        missing.push("no world was read yet".to_owned());
    }
    let mut health = Health::of(&missing, "repository and world were read");
    for note in notes(status) {
        let _ = write!(health.says, "\n{note}");
    }
    health
}

/// Returns what keeps a replica from beginning anything, whether or not it is ready.
fn notes(status: &Status) -> Vec<String> {
    let mut notes = Vec::new();
    let mut reads = |what: &str, reads: &SourceState| {
        if let (Some((why, since)), Some(_)) = (&reads.error, reads.read_at) {
            notes.push(format!("the {what} cannot be read since {since:.0}: {}", escape(why)));
        }
    };
    reads("repository", &status.repository.reads);
    if let Some(world) = &status.world {
        reads("world", &world.reads);
    }
    // Of all that fails these two stop everything.
    for deed in [Deed::Recall, Deed::Save] {
        if let Some(failure) = status.failing.get(&deed) {
            let (what, Failure { why, since, times, .. }) =
                (words::failing(deed, failure), failure);
            notes.push(format!("{what} fails since {since:.0} ({times} times): {}", escape(why)));
        }
    }
    notes
}

fn unread(what: &str, reads: &SourceState) -> String {
    let why = reads.error.as_ref().map(|(error, _)| format!(": {}", escape(error)));
    format!("no {what} was read yet{}", why.unwrap_or_default())
}
