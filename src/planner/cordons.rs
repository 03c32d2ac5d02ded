//! Warnings about stale cordons: nodes cordoned by Fleetwright without a drain in progress.

use std::collections::BTreeSet;

use super::Inputs;
use crate::model::code::Code;
use crate::model::ids::InstanceId;
use crate::model::observed::{CORDONED_ANNOTATION, CordonReason};
use crate::plan::wire::{Action, Diagnostic, Plan};
use crate::plan::{StaleCordon, stale_cordons};

/// Returns a warning for each stale cordon, because the free capacity of a cordoned node is
/// unusable.
pub(super) fn stale_cordon_warnings(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let rows = plan.resource_changes.iter();
    let terminating = rows.filter(|row| row.change.actions.contains(&Action::Delete));
    let terminating: BTreeSet<InstanceId> =
        terminating.filter_map(|row| row.change.before.as_ref()?.instance_id.clone()).collect();
    let stale = stale_cordons(plan, inputs.observed, &terminating).into_iter();
    stale.filter(|cordon| cordon.node.unschedulable).map(|cordon| warning(&cordon)).collect()
}

fn warning(cordon: &StaleCordon<'_>) -> Diagnostic {
    let name = &cordon.node.name;
    let message = match cordon.mark {
        CordonReason::Drain if cordon.may_continue => {
            "it is cordoned: its drain has begun, and continues once a plan removes the node"
        }
        CordonReason::Drain => {
            "it is cordoned: an apply cordoned it for a drain and ended early, unless one is in \
             progress"
        }
        CordonReason::Interruption => "it is cordoned: for an interruption of its instance",
    };
    let automatic = match cordon.mark {
        _ if !cordon.is_ours => "",
        CordonReason::Drain if cordon.may_continue => {
            "the controller uncordons it if no plan removes it for an hour; so does "
        }
        CordonReason::Drain => {
            "the controller, and any apply that changes something, uncordons it; so does "
        }
        CordonReason::Interruption => {
            "the controller uncordons it ten minutes after the last interruption notice; if the \
             instance is not interrupted, so does "
        }
    };
    Diagnostic::warning(format!("node {name}"), message)
        .hint(format!(
            "{automatic}`kubectl uncordon {name}`, after which `kubectl annotate node {name} \
             {CORDONED_ANNOTATION}-` removes our mark"
        ))
        .code(Code::StaleCordon)
}
