//! Rows of a plan by the step that applies them.

use std::collections::BTreeSet;

use crate::model::ids::{Address, InstanceId};
use crate::plan::Plan;
use crate::plan::wire::{Action, ResourceChange, RetireReason, WaveStep};

fn rows_of_step(plan: &Plan, step: WaveStep) -> impl Iterator<Item = &ResourceChange> {
    let waves = plan.capacity.waves.iter().filter(move |wave| wave.step == step);
    let addresses: BTreeSet<&Address> = waves.flat_map(|wave| &wave.addresses).collect();
    plan.resource_changes.iter().filter(move |row| addresses.contains(&row.address))
}

/// Returns the rows of a plan that launch an instance.
pub(in crate::controller) fn launched_rows(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    rows_of_step(plan, WaveStep::Launch).filter(|row| row.change.actions.contains(&Action::Create))
}

/// Returns the rows of a plan that terminate an instance.
pub(in crate::controller) fn retired_rows(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    rows_of_step(plan, WaveStep::Retire)
}

/// Returns the current instance of a row.
pub(in crate::controller) fn instance_of(row: &ResourceChange) -> Option<InstanceId> {
    row.change.before.as_ref()?.instance_id.clone()
}

/// Returns a retire reason as counters and labels spell it.
pub(in crate::controller) fn retire_reason_label(because: &RetireReason) -> &'static str {
    match because {
        RetireReason::Empty { .. } => "empty",
        RetireReason::Underutilized { .. } => "underutilized",
        RetireReason::Surplus { .. } => "surplus",
        RetireReason::PoolRemoved => "pool-removed",
        RetireReason::Drifted { .. } => "drifted",
        RetireReason::Expired { .. } => "expired",
        RetireReason::Requested => "requested",
    }
}
