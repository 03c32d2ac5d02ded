//! Nodes that stand cordoned though nothing that is known asks for it, and that the plan keeps.

use std::collections::BTreeSet;

use super::Inputs;
use crate::fleet::{CORDONED_ANNOTATION, CordonedFor};
use crate::ids::InstanceId;
use crate::plan::wire::{Action, Diagnostic, Plan};
use crate::plan::{StaleCordon, stale_cordons};

/// Returns a warning for each of them: until it takes pods again, its free room counts for nothing.
pub(super) fn stale(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let rows = plan.resource_changes.iter();
    let goes = rows.filter(|row| row.change.actions.contains(&Action::Delete));
    let goes: BTreeSet<InstanceId> =
        goes.filter_map(|row| row.change.before.as_ref()?.instance_id.clone()).collect();
    let stale = stale_cordons(plan, inputs.observed, &goes).into_iter();
    stale.filter(|cordon| cordon.node.unschedulable).map(|cordon| warning(&cordon)).collect()
}

fn warning(cordon: &StaleCordon<'_>) -> Diagnostic {
    let name = &cordon.node.name;
    let message = match cordon.mark {
        CordonedFor::Drain => {
            "it takes no pods: an apply cordoned it to drain it, and ended early, unless one is under way"
        }
        CordonedFor::Leaving => {
            "it takes no pods: it was cordoned because its machine goes by itself, or by an earlier version"
        }
    };
    let whoever = match cordon.mark {
        _ if !cordon.ours => "",
        CordonedFor::Drain => {
            "the loop, and any apply that changes something, uncordons it; so does "
        }
        CordonedFor::Leaving => {
            "the loop uncordons it once it hears no more of that for ten minutes; if nothing takes the machine back, so \
             does "
        }
    };
    Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: format!("node {name}"),
        message: message.to_owned(),
        hint: Some(format!(
            "{whoever}`kubectl uncordon {name}`, after which `kubectl annotate node {name} \
             {CORDONED_ANNOTATION}-` takes our mark off"
        )),
    }
}
