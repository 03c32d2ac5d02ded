//! Blocked changes and the reasons that block them.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::model::desired::Mode;
use crate::model::ids::{Address, Digest, PoolName};

/// A reason that blocks a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// Typed reason.
    pub reason: BlockedReason,
    /// Message for operators.
    pub message: String,
}

/// Reason why a change is blocked. The comments are the meanings on the reference page
/// `events.md`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "blocked", rename_all = "kebab-case")]
pub enum BlockedReason {
    /// This replica is not the leader.
    NotLeader,
    /// The mode does not allow the change.
    Mode {
        /// The mode.
        mode: Mode,
    },
    /// An operator suspended the controller, until a time or until an operator resumes it.
    Suspended {
        /// Reason of the operator.
        reason: String,
        /// End of the suspension.
        until: Option<Timestamp>,
    },
    /// The inputs have errors, or a policy denies the plan.
    NotApplyable {
        /// Reason.
        why: String,
    },
    /// No apply window is open, until the next one opens.
    OutsideWindow {
        /// Start of the next window.
        opens: Option<Timestamp>,
    },
    /// No operator has approved the digest.
    NotApproved {
        /// Digest to approve.
        digest: Digest,
    },
    /// The pool requires that an operator confirms each removal.
    NotConfirmed {
        /// The pool.
        pool: PoolName,
    },
    /// The launch budget is used up, until a period of it ends.
    LaunchBudget {
        /// Maximum number of launches.
        most: u32,
        /// Period of the budget.
        within: SignedDuration,
        /// Time of the next launch.
        next: Timestamp,
    },
    /// The removal budget is used up, until a period of it ends.
    RemovalBudget {
        /// Maximum number of removals.
        most: u32,
        /// Period of the budget.
        within: SignedDuration,
        /// Time of the next removal.
        next: Timestamp,
    },
    /// The plan removes more nodes with pods than `spec.controller.massRemoval` allows at once.
    MassRemoval {
        /// Maximum number of such removals.
        most: u32,
    },
    /// No commit explains a mass removal. The branch is read before the breaker latches.
    UnexplainedRemoval {
        /// Time until which the read is awaited.
        until: Timestamp,
    },
    /// The pods of the launch exist only in the repository, and the cluster had them before.
    PodsMissing,
    /// The removal has been planned for less than `spec.controller.settle`.
    Settling {
        /// Time when it has.
        until: Timestamp,
    },
    /// A pod came to or left the node within `consolidateAfter` of its pool.
    ConsolidateAfter {
        /// End of that time.
        until: Timestamp,
    },
    /// kube-scheduler may still place the pods of the launch on nodes that were launched for them.
    PodsArriving {
        /// End of that time.
        until: Timestamp,
    },
    /// More than 3 nodes, and more than 45 % of them, are not Ready.
    MassUnready {
        /// Number of unready nodes.
        unready: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// A breaker is latched, until an operator resets it.
    Breaker {
        /// Name of the breaker.
        name: String,
    },
    /// Recent launches of the pool did not help, and its quarantine has not ended.
    Quarantined {
        /// The pool.
        pool: PoolName,
        /// End of the quarantine.
        until: Timestamp,
    },
    /// Another change of the same group is blocked.
    GroupBlocked {
        /// Address of the other change.
        by: Address,
    },
    /// The last try failed, and its retry is not due.
    BackingOff {
        /// Time of the retry.
        until: Timestamp,
    },
    /// The results of earlier launch calls are unknown, and their instances may be starting.
    LaunchInDoubt {
        /// Time until which they are awaited.
        until: Timestamp,
    },
    /// The change, or one that it depends on, is in progress.
    InProgress,
}
