//! Counters of the controller.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// A counter of the controller. No counter decreases while the process lives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Completed reads of the repository.
    RepositoryReadsDone,
    /// Failed reads of the repository.
    RepositoryReadsFailed,
    /// Reads that found the followed reference missing.
    RepositoryReadsRefMissing,
    /// Complete observations of the cluster.
    ClusterReadsDone,
    /// Incomplete observations of the cluster.
    ClusterReadsPartial,
    /// Observations that lack every managed node that had joined.
    ClusterReadsNoManagedNodes,
    /// Plans.
    PlansMade,
    /// Plans with another digest than the previous one.
    PlansChanged,
    /// Plans without changes.
    ReconcilesNoChanges,
    /// Plans whose changes are all blocked.
    ReconcilesBlocked,
    /// Applied plans.
    ReconcilesApplied,
    /// Partly applied plans.
    ReconcilesPartlyApplied,
    /// Plans that were refused before the first change.
    ReconcilesRefused,
    /// Interrupted applies.
    ReconcilesInterrupted,
    /// Requested launches.
    LaunchesRequested,
    /// Launched instances.
    LaunchesDone,
    /// Failed launches.
    LaunchesFailed,
    /// Launch attempts without capacity in EC2.
    LaunchesInsufficientCapacity,
    /// Instances that could not be terminated.
    TerminationsFailed,
    /// Evicted pods.
    EvictionsDone,
    /// Pods deleted at the end of a termination grace period.
    EvictionsForced,
    /// Evictions that a disruption budget refused.
    EvictionsBlocked,
    /// Interruption messages deleted from the queue.
    MessagesAcknowledged,
    /// Interruption messages left in the queue because too many were pending.
    MessagesDeferred,
    /// Drains that did not finish in time.
    DrainsAbandoned,
    /// Nodes that an abandoned drain left cordoned, and that the plan keeps.
    NodesUncordoned,
    /// Closed nodes that were opened.
    NodesOpened,
    /// Nominations of pods.
    NominationsMade,
    /// Nominations that the API server rejected.
    NominationsRefused,
    /// Nominations whose pod was bound to the nominated node.
    NominationsHonored,
    /// Nominations whose pod was bound to another node, or deleted.
    NominationsDropped,
    /// Terminated instances, by reason, such as `empty` or `not-ready`.
    Terminations(String),
    /// Interruption messages, by kind.
    Messages(&'static str),
    /// Errors, by source, such as `repository`, `queue`, `state`, `ec2` or `kubernetes`.
    Errors(String),
}

impl Counter {
    /// Counters without data of their own, in the order of the declaration.
    pub const FIXED: [Self; 31] = [
        Self::RepositoryReadsDone,
        Self::RepositoryReadsFailed,
        Self::RepositoryReadsRefMissing,
        Self::ClusterReadsDone,
        Self::ClusterReadsPartial,
        Self::ClusterReadsNoManagedNodes,
        Self::PlansMade,
        Self::PlansChanged,
        Self::ReconcilesNoChanges,
        Self::ReconcilesBlocked,
        Self::ReconcilesApplied,
        Self::ReconcilesPartlyApplied,
        Self::ReconcilesRefused,
        Self::ReconcilesInterrupted,
        Self::LaunchesRequested,
        Self::LaunchesDone,
        Self::LaunchesFailed,
        Self::LaunchesInsufficientCapacity,
        Self::TerminationsFailed,
        Self::EvictionsDone,
        Self::EvictionsForced,
        Self::EvictionsBlocked,
        Self::MessagesAcknowledged,
        Self::MessagesDeferred,
        Self::DrainsAbandoned,
        Self::NodesUncordoned,
        Self::NodesOpened,
        Self::NominationsMade,
        Self::NominationsRefused,
        Self::NominationsHonored,
        Self::NominationsDropped,
    ];

    /// Returns the name of the counter in the published status.
    pub fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::RepositoryReadsDone => "reads.repository.done",
            Self::RepositoryReadsFailed => "reads.repository.failed",
            Self::RepositoryReadsRefMissing => "reads.repository.ref_missing",
            Self::ClusterReadsDone => "reads.cluster.done",
            Self::ClusterReadsPartial => "reads.cluster.partial",
            Self::ClusterReadsNoManagedNodes => "reads.cluster.no_managed_nodes",
            Self::PlansMade => "plans.made",
            Self::PlansChanged => "plans.changed",
            Self::ReconcilesNoChanges => "reconciles.no_changes",
            Self::ReconcilesBlocked => "reconciles.blocked",
            Self::ReconcilesApplied => "reconciles.applied",
            Self::ReconcilesPartlyApplied => "reconciles.partly",
            Self::ReconcilesRefused => "reconciles.refused",
            Self::ReconcilesInterrupted => "reconciles.interrupted",
            Self::LaunchesRequested => "launches.requested",
            Self::LaunchesDone => "launches.done",
            Self::LaunchesFailed => "launches.failed",
            Self::LaunchesInsufficientCapacity => "launches.insufficient_capacity",
            Self::TerminationsFailed => "terminations.failed",
            Self::EvictionsDone => "evictions.done",
            Self::EvictionsForced => "evictions.forced",
            Self::EvictionsBlocked => "evictions.blocked",
            Self::MessagesAcknowledged => "messages.acknowledged",
            Self::MessagesDeferred => "messages.deferred",
            Self::DrainsAbandoned => "drains.abandoned",
            Self::NodesUncordoned => "nodes.uncordoned",
            Self::NodesOpened => "nodes.opened",
            Self::NominationsMade => "nominations.made",
            Self::NominationsRefused => "nominations.refused",
            Self::NominationsHonored => "nominations.honored",
            Self::NominationsDropped => "nominations.dropped",
            Self::Terminations(reason) => return format!("terminations.{reason}").into(),
            Self::Messages(kind) => return format!("messages.{kind}").into(),
            Self::Errors(source) => return format!("errors.{source}").into(),
        })
    }
}

/// Values of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<Counter, u64>);

impl Counters {
    /// Adds one to a counter.
    pub(super) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds to a counter. A counter exists once it was added to, even by zero.
    pub(super) fn add(&mut self, counter: Counter, by: u64) {
        let count = self.0.entry(counter).or_default();
        *count = count.saturating_add(by);
    }

    /// Counts an error of `source`.
    pub(super) fn count_error(&mut self, source: &str) {
        self.count(Counter::Errors(source.to_owned()));
    }

    /// Counts the error of a call to Kubernetes, if it failed.
    pub(super) fn count_kubernetes<T, E>(&mut self, result: &Result<T, E>) {
        self.add(Counter::Errors("kubernetes".to_owned()), u64::from(result.is_err()));
    }

    /// Returns the value of a counter; zero if nothing was counted.
    pub fn get(&self, counter: &Counter) -> u64 {
        self.0.get(counter).copied().unwrap_or(0)
    }

    /// Returns the number of applies that ended, in any way.
    pub fn completed_applies(&self) -> u64 {
        [
            Counter::ReconcilesApplied,
            Counter::ReconcilesPartlyApplied,
            Counter::ReconcilesRefused,
            Counter::ReconcilesInterrupted,
        ]
        .iter()
        .map(|counter| self.get(counter))
        .sum()
    }

    /// Returns the counters that exist, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&Counter, u64)> {
        self.0.iter().map(|(counter, count)| (counter, *count))
    }
}

impl FromIterator<(Counter, u64)> for Counters {
    fn from_iter<I: IntoIterator<Item = (Counter, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}

/// The counters, sorted by name.
impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by_name: BTreeMap<_, _> =
            self.0.iter().map(|(counter, count)| (counter.name(), count)).collect();
        by_name.serialize(serializer)
    }
}
