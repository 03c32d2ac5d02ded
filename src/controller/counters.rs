//! Counters of the controller.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// A counter of the controller. [`Status`](super::Status) says what each one counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    ReadsGitDone,
    ReadsGitFailed,
    ReadsGitGone,
    ReadsWorldDone,
    ReadsWorldPartial,
    ReadsWorldBlind,
    PlansMade,
    PlansChanged,
    PlanMillis,
    ReconcilesNothing,
    ReconcilesBlocked,
    ReconcilesApplied,
    ReconcilesPartly,
    ReconcilesRefused,
    ReconcilesInterrupted,
    ApplyMillis,
    LaunchesRequested,
    LaunchesDone,
    LaunchesFailed,
    LaunchesNoCapacity,
    TerminationsFailed,
    EvictionsDone,
    EvictionsBlocked,
    MessagesAcknowledged,
    MessagesDeferred,
    DrainsGivenUp,
    NodesUncordoned,
    NominationsMade,
    NominationsRefused,
    NominationsHonoured,
    NominationsDropped,
    Steps,
    StepMicros,
    PendingReactions,
    PendingReactionMillis,
    /// Terminated instances, by reason.
    Terminations(String),
    /// Interruption messages, by kind.
    Messages(&'static str),
    /// Errors, by source.
    Errors(String),
}

impl Counter {
    /// Returns the name of the counter in the published status.
    fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::ReadsGitDone => "reads.git.done",
            Self::ReadsGitFailed => "reads.git.failed",
            Self::ReadsGitGone => "reads.git.gone",
            Self::ReadsWorldDone => "reads.world.done",
            Self::ReadsWorldPartial => "reads.world.partial",
            Self::ReadsWorldBlind => "reads.world.blind",
            Self::PlansMade => "plans.made",
            Self::PlansChanged => "plans.changed",
            Self::PlanMillis => "plan_millis",
            Self::ReconcilesNothing => "reconciles.nothing",
            Self::ReconcilesBlocked => "reconciles.blocked",
            Self::ReconcilesApplied => "reconciles.applied",
            Self::ReconcilesPartly => "reconciles.partly",
            Self::ReconcilesRefused => "reconciles.refused",
            Self::ReconcilesInterrupted => "reconciles.interrupted",
            Self::ApplyMillis => "apply_millis",
            Self::LaunchesRequested => "launches.requested",
            Self::LaunchesDone => "launches.done",
            Self::LaunchesFailed => "launches.failed",
            Self::LaunchesNoCapacity => "launches.no_capacity",
            Self::TerminationsFailed => "terminations.failed",
            Self::EvictionsDone => "evictions.done",
            Self::EvictionsBlocked => "evictions.blocked",
            Self::MessagesAcknowledged => "messages.acknowledged",
            Self::MessagesDeferred => "messages.deferred",
            Self::DrainsGivenUp => "drains.given_up",
            Self::NodesUncordoned => "nodes.uncordoned",
            Self::NominationsMade => "nominations.made",
            Self::NominationsRefused => "nominations.refused",
            Self::NominationsHonoured => "nominations.honoured",
            Self::NominationsDropped => "nominations.dropped",
            Self::Steps => "steps",
            Self::StepMicros => "step_micros",
            Self::PendingReactions => "pending.reactions",
            Self::PendingReactionMillis => "pending.reaction_millis",
            Self::Terminations(reason) => return format!("terminations.{reason}").into(),
            Self::Messages(kind) => return format!("messages.{kind}").into(),
            Self::Errors(source) => return format!("errors.{source}").into(),
        })
    }
}

/// Values of the counters. They never decrease while the process lives.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters(BTreeMap<Counter, u64>);

impl Counters {
    pub(super) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds to a counter. A counter exists once it was added to, even by zero.
    pub(super) fn add(&mut self, counter: Counter, by: u64) {
        let count = self.0.entry(counter).or_default();
        *count = count.saturating_add(by);
    }

    pub(super) fn count_error(&mut self, source: &str) {
        self.count(Counter::Errors(source.to_owned()));
    }

    /// Counts the error of a call to Kubernetes, if it failed.
    pub(super) fn count_kubernetes<T, E>(&mut self, result: &Result<T, E>) {
        self.add(Counter::Errors("kubernetes".to_owned()), u64::from(result.is_err()));
    }

    /// Returns the counters by name.
    pub(super) fn by_name(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(counter, count)| (counter.name().into_owned(), *count)).collect()
    }
}
