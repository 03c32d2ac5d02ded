//! Texts of the reasons that block changes, for operators.

use jiff::{SignedDuration, Timestamp};

use crate::controller::status::{Blocked, BlockedReason};
use crate::model::desired::Mode;
use crate::model::observed::Completeness;
use crate::model::plural::count;
use crate::plan::Plan;
use crate::plan::wire::DiagnosticSeverity;
use crate::render::escape;

fn budget_message(of: &str, most: u32, within: SignedDuration, next: Timestamp) -> String {
    format!("{of} budget: at most {most} within {within:#}; the next {of} is possible at {next:.0}")
}

fn suspension_message(reason: &str, until: Option<Timestamp>) -> String {
    let until = until.map(|until| format!(" until {until:.0}"));
    format!("suspended{}: {reason}", until.unwrap_or_default())
}

fn mode_message(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => {
            "in mode observe, the controller plans and changes nothing; to allow this change, set \
             spec.controller.mode to additive or full"
        }
        Mode::Additive => {
            "in mode additive, the controller removes only interrupted nodes; to allow this change, \
             set spec.controller.mode to full"
        }
        Mode::Full => "mode full does not allow this change",
    }
}

/// Returns the reason with a message for operators.
pub fn with_message(reason: BlockedReason) -> Blocked {
    let at = |at: &Timestamp| format!("{at:.0}");
    let message = match &reason {
        BlockedReason::NotLeader => "another replica is the leader".to_owned(),
        BlockedReason::Mode { mode } => mode_message(*mode).to_owned(),
        BlockedReason::Suspended { reason, until } => suspension_message(reason, *until),
        BlockedReason::NotApplyable { why } => format!("the plan cannot be applied: {why}"),
        BlockedReason::OutsideWindow { opens: Some(opens) } => {
            format!("outside the apply windows; the next window opens at {}", at(opens))
        }
        BlockedReason::OutsideWindow { opens: None } => {
            "outside the apply windows, and no later window opens".to_owned()
        }
        BlockedReason::NotApproved { digest } => format!("plan {digest} is not approved"),
        BlockedReason::NotConfirmed { pool } => {
            format!("pool {pool} requires confirmation of each removal")
        }
        BlockedReason::LaunchBudget { most, within, next } => {
            budget_message("launch", *most, *within, *next)
        }
        BlockedReason::RemovalBudget { most, within, next } => {
            budget_message("removal", *most, *within, *next)
        }
        BlockedReason::MassRemoval { most } => {
            let (nodes, verb) = (count(most, "node"), if *most == 1 { "is" } else { "are" });
            format!("at most {nodes} with pods {verb} removed at once; the others come next")
        }
        BlockedReason::UnexplainedRemoval { until } => {
            format!("no commit explains the removals; the branch is read until {}", at(until))
        }
        BlockedReason::PodsMissing => {
            "its pods do not exist, and no new commit adds them".to_owned()
        }
        BlockedReason::Settling { until } => {
            format!("waits for spec.controller.settle until {}", at(until))
        }
        BlockedReason::ConsolidateAfter { until } => {
            format!(
                "pods came or left within consolidateAfter of the pool; waits until {}",
                at(until)
            )
        }
        BlockedReason::PodsArriving { until } => {
            format!("pods may still be placed on launched nodes; waits until {}", at(until))
        }
        BlockedReason::MassUnready { unready, nodes } => {
            format!("{unready} of {nodes} nodes are not Ready; nothing is removed meanwhile")
        }
        BlockedReason::Breaker { name } => {
            format!("breaker {name} is latched; an operator must reset it")
        }
        BlockedReason::Quarantined { pool, until } => {
            format!(
                "recent launches of pool {pool} did not help; it launches again at {}",
                at(until)
            )
        }
        BlockedReason::GroupBlocked { by } => format!("its group is blocked by {by}"),
        BlockedReason::BackingOff { until } => {
            format!("the last try failed; retried at {}", at(until))
        }
        BlockedReason::LaunchInDoubt { until } => {
            format!("earlier launches have an unknown result; awaited until {}", at(until))
        }
        BlockedReason::InProgress => "in progress".to_owned(),
    };
    Blocked { reason, message }
}

/// Returns the reason why a plan cannot be applied.
pub(super) fn not_applyable_reason(plan: &Plan) -> String {
    if !plan.errored {
        return "policies deny it".to_owned();
    }
    let sources = plan.capacity.base.world.sources.iter();
    let unread = sources.filter(|(_, source)| **source != Completeness::Complete);
    let unread: Vec<&str> = unread.map(|(name, _)| name.as_str()).collect();
    if !unread.is_empty() {
        return format!("{} could not be read in full", unread.join(" and "));
    }
    let mut diagnostics = plan.capacity.diagnostics.iter();
    let error = diagnostics.find(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
    error.map_or_else(
        || "its inputs have errors".to_owned(),
        |error| format!("{}: {}", escape(&error.object), escape(&error.message)),
    )
}
