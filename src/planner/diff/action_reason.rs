//! Words of `action_reason`, after those of Terraform.

use crate::model::reason::{KeepReason, LaunchReason, RetireReason};

/// Word of a node that a rule protects, and for which no change is due.
pub(super) const PROTECTED: &str = "noop_because_no_change_is_due";

/// Returns the word of a launch; `retire` is the reason to retire the node that it replaces.
pub(super) fn launch(reason: &LaunchReason, retire: Option<&RetireReason>) -> &'static str {
    match (reason, retire) {
        (_, Some(RetireReason::Requested)) => "replace_by_request",
        (_, Some(RetireReason::Drifted { .. })) => "replace_because_drifted",
        (_, Some(RetireReason::Expired { .. })) => "replace_because_expired",
        (_, Some(_)) => "replace_because_underutilized",
        (LaunchReason::Demand { .. }, None) => "create_for_pending_pods",
        (LaunchReason::Consolidation { .. }, None) => "create_for_consolidation",
        (LaunchReason::Replacement { .. }, None) => "create_for_replacement",
        (LaunchReason::Static { .. }, None) => "create_for_static_pool",
    }
}

/// Returns the word of a retirement.
pub(super) fn retire(reason: &RetireReason) -> &'static str {
    match reason {
        RetireReason::Empty { .. } => "delete_because_empty",
        RetireReason::Underutilized { .. } => "delete_because_underutilized",
        RetireReason::Surplus { .. } => "delete_because_surplus",
        RetireReason::PoolRemoved => "delete_because_no_resource_config",
        RetireReason::Drifted { .. } => "delete_because_drifted",
        RetireReason::Expired { .. } => "delete_because_expired",
        RetireReason::Requested => "delete_by_request",
    }
}

/// Returns the word of a node that stays.
pub(super) fn keep(reason: &KeepReason) -> &'static str {
    match reason {
        KeepReason::Needed { .. } => "noop_because_needed",
        KeepReason::NeededForRescheduling { .. } => "noop_because_needed_for_rescheduling",
        KeepReason::NotWorthMoving { .. } => "noop_because_not_worth_moving",
        KeepReason::Blocked { .. } => "noop_because_blocked",
        KeepReason::NotOurs => "noop_because_not_ours",
    }
}
