//! Failed pods that a Job survives, as its specification states them.

use serde::{Deserialize, Serialize};

/// `backoffLimit` of a Job that states none.
pub const DEFAULT_BACKOFF_LIMIT: u32 = 6;

/// Annotation of a pod with the failures of its index. Only pods of Jobs with
/// `backoffLimitPerIndex` have it.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";

/// Failed pods that a Job survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobRetries {
    /// `backoffLimit`: the Job fails with one failed pod more.
    pub backoff_limit: u32,
    /// `backoffLimitPerIndex`: an index fails with one failed pod more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_index: Option<u32>,
    /// What the eviction of a pod does to the Job.
    #[serde(default)]
    pub on_eviction: OnEviction,
}

/// What the eviction of a pod does to its Job, by the `podFailurePolicy` of the Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnEviction {
    /// The pod counts as failed.
    #[default]
    Counted,
    /// The pod is replaced, and does not count.
    Ignored,
    /// The Job, or the index of the pod, fails at once.
    Fatal,
}
