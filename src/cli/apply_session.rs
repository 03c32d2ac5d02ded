//! What applies to the live and the embedded world share: refusals, Ctrl-C, errors, the receipt.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::error::CliError;
use super::progress::ProgressReporter;
use super::{Exit, files, planning};
use crate::apply::{ApplyError, ApplyStatus, Receipt};
use crate::plan::wire::Check;
use crate::plan::{Plan, has_complete_identity};
use crate::render::is_errored_by_rules;

/// Refuses a plan that no approval makes applicable.
pub(super) fn refuse_unapplyable(plan: &Plan) -> Result<(), CliError> {
    if !has_complete_identity(plan) {
        let version = &plan.format_version;
        return Err(CliError::text(format!(
            "the plan has format {version}, whose identity does not cover everything that apply reads"
        ))
        .kind(Exit::UnreadablePlan)
        .hint("plan again, and have the new plan approved"));
    }
    if plan.errored {
        return Err(plan_with_errors(plan));
    }
    if planning::is_denied(plan) {
        return Err(denied(plan));
    }
    if !plan.applyable && planning::has_changes(plan) {
        let world = &plan.capacity.base.world.name;
        return Err(CliError::text(format!("a plan over world `{world}` cannot be applied"))
            .kind(Exit::NotApproved)
            .hint("plan against a world that can change: --world live, or --world sim:DIRECTORY"));
    }
    Ok(())
}

/// Most policies in one refusal.
const POLICIES_MAX: usize = 5;

/// Returns the refusal of a denied plan, with the policies and their first messages.
fn denied(plan: &Plan) -> CliError {
    let cause = |check: &Check| match check.problems.first() {
        Some(problem) => format!("{}: {problem}", check.name),
        None => check.name.clone(),
    };
    let denials = plan.checks.iter().filter(|check| check.status.is_denial());
    let mut causes: Vec<String> = denials.map(cause).collect();
    let rest = causes.len().saturating_sub(POLICIES_MAX);
    causes.truncate(POLICIES_MAX);
    if rest > 0 {
        causes.push(format!("and {rest} more"));
    }
    CliError::text(format!("the plan is denied by policy: {}", causes.join("; ")))
        .kind(Exit::Denied)
}

fn plan_with_errors(plan: &Plan) -> CliError {
    if is_errored_by_rules(plan) {
        return CliError::text(
            "the plan breaks rules that every plan must keep, so it cannot be applied",
        )
        .hint("this is a defect of fleetwright; `fleetwright show` lists the rules");
    }
    CliError::text("the plan was made from inputs with errors, so it cannot be applied")
        .hint("`fleetwright validate` lists them")
}

/// A receipt with the names of those who approved.
#[derive(Serialize)]
struct ApprovedReceipt<'a> {
    #[serde(flatten)]
    receipt: &'a Receipt,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    approved_by: &'a [String],
}

/// Prints the receipt with its approvers, and writes it to `file` if given.
pub(super) fn write_receipt(
    receipt: &Receipt,
    approvers: &[String],
    file: Option<&Path>,
    reporter: &mut ProgressReporter,
) -> Result<Exit, CliError> {
    if let Some(path) = file {
        let approved = ApprovedReceipt { receipt, approved_by: approvers };
        let json = crate::plan::canonical::pretty(&approved).map_err(CliError::new)?;
        // If the file cannot be written, the receipt is still printed.
        files::write(path, &json).or_else(|error| {
            reporter.receipt(receipt, approvers)?;
            Err(error)
        })?;
    }
    reporter.receipt(receipt, approvers)?;
    Ok(receipt_exit(receipt))
}

fn receipt_exit(receipt: &Receipt) -> Exit {
    match receipt.verdict {
        ApplyStatus::Applied => Exit::Done,
        ApplyStatus::Partly => Exit::Partly,
        ApplyStatus::Interrupted => Exit::Interrupted,
    }
}

pub(super) fn apply_error(error: ApplyError) -> CliError {
    let (kind, hint) = match &error {
        ApplyError::OtherCluster { .. } => {
            (Exit::OtherCluster, "name the world that the plan was made over")
        }
        ApplyError::InvalidPlan(_) => (Exit::UnreadablePlan, "make the plan again"),
        ApplyError::NotApproved { .. } => {
            (Exit::Stale, "review the plan and have its digest approved")
        }
        ApplyError::Denied(_) => {
            (Exit::Denied, "change what the policy objects to, and plan again")
        }
        ApplyError::NotApplyable(_) => (Exit::NotApproved, "plan against a world that can change"),
        ApplyError::Expired { .. } => (Exit::Expired, "make the plan again"),
        ApplyError::IncompleteObservation(_) => (Exit::Failed, "try again once it can be read"),
        ApplyError::InputErrors(_) => (Exit::Failed, "`fleetwright validate` lists them"),
        ApplyError::Stale(_)
        | ApplyError::ExceedsApproval(_)
        | ApplyError::OtherFiles(_)
        | ApplyError::Future { .. }
        | ApplyError::Frozen(_) => (Exit::Stale, "make the plan again, and compare"),
        ApplyError::Interrupted => (Exit::Interrupted, "nothing was changed"),
    };
    CliError::new(error).kind(kind).hint(hint)
}

/// Returns a flag that the first Ctrl-C sets. A second Ctrl-C ends the process at once.
pub(super) fn interrupt_flag() -> Result<Arc<AtomicBool>, CliError> {
    use signal_hook::consts::SIGINT;
    let flag = Arc::new(AtomicBool::new(false));
    let code = i32::from(Exit::Interrupted.code());
    signal_hook::flag::register_conditional_shutdown(SIGINT, code, Arc::clone(&flag))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&flag)))
        .map_err(|error| CliError::new(error).context("cannot listen for Ctrl-C".to_owned()))?;
    Ok(flag)
}
