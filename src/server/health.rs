//! Liveness and readiness probes.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use crate::controller::{ActionFailure, ControllerAction, SourceState, Status, labels};
use crate::render::escape;

/// Time after which an overdue step fails the liveness probe. It exceeds every planning time in the
/// benchmarks by far, because a restart during planning starts over.
const STEP_OVERDUE_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeResult {
    /// True if the probe succeeds.
    pub is_ok: bool,
    /// Failures, one per line, or a success message.
    pub message: String,
}

impl ProbeResult {
    fn from_failures(missing: &[String], well: &str) -> Self {
        let is_well = missing.is_empty();
        Self { is_ok: is_well, message: if is_well { well.to_owned() } else { missing.join("\n") } }
    }
}

/// Returns the liveness of the controller. Only an overdue step fails it: a restart helps a stuck
/// controller, but not an unreachable repository.
pub fn liveness(status: &Status, now: Timestamp) -> ProbeResult {
    let due = status.wakes_at.unwrap_or(status.now).max(status.now);
    let late = now.duration_since(due);
    let mut missing = Vec::new();
    if late > STEP_OVERDUE_MAX {
        missing.push(format!("the controller step is overdue by {} s", late.as_secs()));
    }
    ProbeResult::from_failures(&missing, "the controller is running")
}

/// Returns the readiness of the replica: repository and cluster were read at least once. A later
/// failure only adds to the message, because the page shows it.
pub fn readiness(status: &Status) -> ProbeResult {
    let mut missing = Vec::new();
    if status.repository.commit.is_none() {
        missing.push(not_read_yet("repository", &status.repository.reads));
    }
    if status.world.is_none() {
        missing.push("the cluster was not observed yet".to_owned());
    }
    let mut result = ProbeResult::from_failures(&missing, "repository and cluster were read");
    for note in degradations(status) {
        let _ = write!(result.message, "\n{note}");
    }
    result
}

/// Returns failures that prevent new work, whether or not the replica is ready.
fn degradations(status: &Status) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note_failed_reads = |source: &str, reads: &SourceState| {
        if let (Some((why, since)), Some(_)) = (&reads.error, reads.read_at) {
            notes.push(format!("reads of the {source} fail since {since:.0}: {}", escape(why)));
        }
    };
    note_failed_reads("repository", &status.repository.reads);
    if let Some(world) = &status.world {
        note_failed_reads("cluster", &world.reads);
    }
    // Other failures affect single objects; these two block all work.
    for action in [ControllerAction::LoadState, ControllerAction::SaveState] {
        if let Some(failure) = status.failing_actions.get(&action) {
            let ActionFailure { error, since, count, .. } = failure;
            let action = labels::failing_action(action, failure);
            notes.push(format!(
                "{action} fails since {since:.0} ({count} times): {}",
                escape(error)
            ));
        }
    }
    notes
}

fn not_read_yet(source: &str, reads: &SourceState) -> String {
    let why = reads.error.as_ref().map(|(error, _)| format!(": {}", escape(error)));
    format!("the {source} was not read yet{}", why.unwrap_or_default())
}
