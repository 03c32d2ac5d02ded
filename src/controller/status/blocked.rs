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

/// Blocks that end within this time are waited for.
const SHORT_WAIT_MAX: SignedDuration = SignedDuration::from_mins(1);

impl BlockedReason {
    /// Returns the time at which the block ends or is checked once more, if it is known.
    pub(in crate::controller) const fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::OutsideWindow { opens: until } | Self::Suspended { until, .. } => *until,
            Self::LaunchBudget { next: until, .. }
            | Self::RemovalBudget { next: until, .. }
            | Self::Settling { until }
            | Self::ConsolidateAfter { until }
            | Self::PodsArriving { until }
            | Self::UnexplainedRemoval { until }
            | Self::BackingOff { until }
            | Self::Quarantined { until, .. }
            | Self::LaunchInDoubt { until } => Some(*until),
            Self::NotLeader
            | Self::Mode { .. }
            | Self::NotApplyable { .. }
            | Self::NotApproved { .. }
            | Self::NotConfirmed { .. }
            | Self::MassRemoval { .. }
            | Self::PodsMissing
            | Self::MassUnready { .. }
            | Self::Breaker { .. }
            | Self::GroupBlocked { .. }
            | Self::InProgress => None,
        }
    }

    /// Returns true if the block lasts until an operator acts.
    pub(in crate::controller) const fn needs_operator(&self) -> bool {
        match self {
            Self::Mode { .. }
            | Self::NotApplyable { .. }
            | Self::NotApproved { .. }
            | Self::NotConfirmed { .. }
            | Self::Breaker { .. } => true,
            Self::Suspended { until, .. } => until.is_none(),
            Self::OutsideWindow { opens } => opens.is_none(),
            // A budget of zero never frees a place.
            Self::LaunchBudget { most, .. } | Self::RemovalBudget { most, .. } => *most == 0,
            Self::NotLeader
            | Self::MassRemoval { .. }
            | Self::UnexplainedRemoval { .. }
            | Self::PodsMissing
            | Self::Settling { .. }
            | Self::ConsolidateAfter { .. }
            | Self::PodsArriving { .. }
            | Self::MassUnready { .. }
            | Self::Quarantined { .. }
            | Self::GroupBlocked { .. }
            | Self::BackingOff { .. }
            | Self::LaunchInDoubt { .. }
            | Self::InProgress => false,
        }
    }

    /// Returns true if a removal may stay blocked for hours or until an operator acts. Short blocks
    /// are waited for, so that nothing is launched that the removal would make unnecessary.
    pub(in crate::controller) fn delays_removal_for_long(&self, now: Timestamp) -> bool {
        match self {
            Self::Mode { .. }
            | Self::NotConfirmed { .. }
            | Self::Breaker { .. }
            | Self::MassUnready { .. }
            | Self::MassRemoval { .. }
            | Self::UnexplainedRemoval { .. }
            | Self::RemovalBudget { .. } => true,
            Self::Settling { until }
            | Self::ConsolidateAfter { until }
            | Self::BackingOff { until } => until.duration_since(now) > SHORT_WAIT_MAX,
            Self::NotLeader
            | Self::Suspended { .. }
            | Self::NotApplyable { .. }
            | Self::OutsideWindow { .. }
            | Self::NotApproved { .. }
            | Self::LaunchBudget { .. }
            | Self::PodsArriving { .. }
            | Self::PodsMissing
            | Self::Quarantined { .. }
            | Self::GroupBlocked { .. }
            | Self::LaunchInDoubt { .. }
            | Self::InProgress => false,
        }
    }

    /// Returns true if a launch may stay blocked for hours or until an operator acts. A block on
    /// removals of the same change says nothing about the launch, and may itself wait until
    /// interrupted instances are gone.
    pub(in crate::controller) const fn prevents_launch_for_long(&self) -> bool {
        match self {
            Self::NotLeader
            | Self::Mode { .. }
            | Self::Suspended { .. }
            | Self::NotApplyable { .. }
            | Self::OutsideWindow { .. }
            | Self::NotApproved { .. }
            | Self::Breaker { .. }
            | Self::LaunchBudget { most: 0, .. }
            | Self::Quarantined { .. } => true,
            Self::NotConfirmed { .. }
            | Self::LaunchBudget { .. }
            | Self::RemovalBudget { .. }
            | Self::MassUnready { .. }
            | Self::Settling { .. }
            | Self::ConsolidateAfter { .. }
            | Self::PodsArriving { .. }
            | Self::PodsMissing
            | Self::MassRemoval { .. }
            | Self::UnexplainedRemoval { .. }
            | Self::GroupBlocked { .. }
            | Self::BackingOff { .. }
            | Self::LaunchInDoubt { .. }
            | Self::InProgress => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment() -> Timestamp {
        "2026-11-01T10:00:00Z".parse().expect("a moment")
    }

    #[test]
    fn blocks_that_never_end_need_an_operator() {
        let (until, within) = (moment(), SignedDuration::from_hours(1));
        let reason = || "upgrade".to_owned();
        for (blocked, expected) in [
            (BlockedReason::OutsideWindow { opens: None }, true),
            (BlockedReason::OutsideWindow { opens: Some(until) }, false),
            (BlockedReason::LaunchBudget { most: 0, within, next: until }, true),
            (BlockedReason::LaunchBudget { most: 5, within, next: until }, false),
            (BlockedReason::RemovalBudget { most: 0, within, next: until }, true),
            (BlockedReason::RemovalBudget { most: 5, within, next: until }, false),
            (BlockedReason::Suspended { reason: reason(), until: None }, true),
            (BlockedReason::Suspended { reason: reason(), until: Some(until) }, false),
            (BlockedReason::Quarantined { pool: "web".into(), until }, false),
            (BlockedReason::NotConfirmed { pool: "web".into() }, true),
            (BlockedReason::InProgress, false),
        ] {
            assert_eq!(blocked.needs_operator(), expected, "{blocked:?}");
        }
    }

    #[test]
    fn only_long_blocks_delay_a_removal_for_long() {
        let now = moment();
        for (minutes, expected) in [(0, false), (1, false), (2, true), (600, true)] {
            let until = now + SignedDuration::from_mins(minutes);
            let waits = [
                BlockedReason::Settling { until },
                BlockedReason::ConsolidateAfter { until },
                BlockedReason::BackingOff { until },
            ];
            for blocked in waits {
                assert_eq!(blocked.delays_removal_for_long(now), expected, "{blocked:?}");
            }
        }
        let unready = BlockedReason::MassUnready { unready: 3, nodes: 4 };
        assert!(unready.delays_removal_for_long(now));
        assert!(!BlockedReason::InProgress.delays_removal_for_long(now));
    }
}
