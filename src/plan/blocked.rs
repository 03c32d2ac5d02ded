//! Rows whose change is blocked, in contrast to rows that a rule protects while no change is due.

use super::wire::{BlockReason, ExplainRow, KeepReason, Reason};

/// Returns whether a rule blocks a change of the row that is due now.
///
/// A change is due if the node differs from its pool or has expired, if the planner found the change,
/// or if the node has no pods. Otherwise the rule would block a change, and there is none.
pub fn is_blocked(row: &ExplainRow) -> bool {
    let Reason::Keep { because: KeepReason::Blocked { by } } = &row.reason else { return false };
    if row.drift.is_some() {
        return true;
    }
    match by {
        // The planner found a change, or cannot know whether one is due.
        BlockReason::NoOtherPlace
        | BlockReason::Budget
        | BlockReason::InTurn
        | BlockReason::NodeLimit { .. }
        | BlockReason::PoolLimits { .. }
        | BlockReason::NotTargeted
        | BlockReason::NotReady
        | BlockReason::TagsLost { .. }
        | BlockReason::Unknown { .. } => true,
        // The declared number of nodes includes empty ones.
        BlockReason::StaticPool => false,
        BlockReason::DoNotDisrupt
        | BlockReason::ScaleDownDisabled
        | BlockReason::PinnedPod { .. }
        | BlockReason::ProtectedPod { .. }
        | BlockReason::JobMightFail { .. }
        | BlockReason::UnsupportedPod { .. }
        | BlockReason::PolicyWhenEmpty
        | BlockReason::ConsolidationDisabled
        | BlockReason::ConsolidateAfter { .. }
        | BlockReason::BudgetZero
        | BlockReason::GroupMinimum { .. }
        | BlockReason::GroupObserved { .. } => row.pods.is_empty(),
    }
}
