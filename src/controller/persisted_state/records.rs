//! Entries of the persisted state.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::controller::contingency::ApprovedContingency;
use crate::controller::interruption_message::MessageKind;
use crate::model::ids::{Digest, InstanceId, PoolName};

/// A commit whose signatures were verified. The chain of later commits starts at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedCommit {
    /// The commit.
    pub commit: String,
    /// The trusted revision that the controller was started with. With another one, the chain
    /// starts there instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard_ref: Option<String>,
}

/// A completed CI apply, as its record in the cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiApply {
    /// The commit.
    pub commit: String,
    /// End of the apply.
    pub at: Timestamp,
    /// True if every change was carried out.
    pub complete: bool,
}

/// A launched instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// The instance.
    pub instance: InstanceId,
    /// Its pool.
    pub pool: PoolName,
    /// Launch time.
    pub at: Timestamp,
    /// First observation of its node as Ready.
    pub ready_at: Option<Timestamp>,
    /// True once a pod other than a daemon was observed on it.
    pub useful: bool,
    /// True if the instance was known before its node could have joined; otherwise the node may
    /// have joined unnoticed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_start: bool,
    /// True if pods waited beside its node while a plan launched more for them and placed none on
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passed_over: bool,
    /// Digests of the declared workloads and of the templates of other pods that it was launched
    /// for. Absent if another process launched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_for: Option<Vec<String>>,
}

/// A removed instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalRecord {
    /// The instance.
    pub instance: InstanceId,
    /// Removal time; the time of the decision while the removal is pending.
    pub at: Timestamp,
    /// True while a plan is about to remove it and its termination has not been requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending: bool,
    /// Time by the clock of the process that recorded it, where a later process counts it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_noted_at: Option<Timestamp>,
}

/// An instance replaced for a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// The instance.
    pub instance: InstanceId,
    /// Its pool.
    pub pool: PoolName,
    /// Time of the decision.
    pub at: Timestamp,
}

/// An approved digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRecord {
    /// The digest.
    pub digest: Digest,
    /// The approving user.
    pub by: String,
    /// Approval time.
    pub at: Timestamp,
    /// Digest of each change of the plan: a plan with some of these changes and no other is
    /// approved as well.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rows: BTreeSet<String>,
    /// What is left of the contingency of the plan; absent until the plan was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contingency: Option<ApprovedContingency>,
}

/// An interrupted instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptionRecord {
    /// The instance.
    pub instance: InstanceId,
    /// Reason, such as `spot-interruption`.
    pub why: String,
    /// Time at which the interruption became known.
    pub since: Timestamp,
    /// Time at which the instance terminates in any case.
    pub deadline: Option<Timestamp>,
    /// True for a member of a managed group, which replaces it once it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub member: bool,
    /// Scheduled change of an instance that is interrupted for another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Announcement>,
}

/// A scheduled change that only a message announces. Pods are evicted before it, and it ends no
/// instance by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Time at which the announcement became known.
    pub since: Timestamp,
    /// Announced time.
    pub deadline: Timestamp,
}

impl InterruptionRecord {
    /// Returns whether the deadline lay ahead when the interruption became known.
    pub(in crate::controller) fn is_ahead(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline > self.since)
    }

    /// Returns whether only a message says that the instance terminates. EC2 shows no state that
    /// confirms a scheduled event, and anyone who may send to the queue can name one.
    pub(in crate::controller) fn is_unconfirmed(&self) -> bool {
        self.why == MessageKind::Health.as_str()
    }

    /// Returns whether the message is only a reason to observe the instance.
    pub(in crate::controller) fn is_hint(&self) -> bool {
        self.why == MessageKind::StateChange.as_str()
    }
}
