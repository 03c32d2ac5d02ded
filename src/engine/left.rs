//! Nodes that a drain left cordoned which ended early, and that the plan keeps.

use std::collections::BTreeSet;

use super::Inputs;
use crate::fleet::{CORDONED_ANNOTATION, CordonedFor, Node};
use crate::ids::NodeName;
use crate::plan::wire::{Action, Diagnostic, Plan};

/// Returns a warning for each of them: until it takes pods again, its free room counts for nothing.
pub(super) fn cordoned(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let rows = plan.resource_changes.iter();
    let going = rows.filter(|row| row.change.actions.contains(&Action::Delete));
    let going: BTreeSet<&NodeName> =
        going.filter_map(|row| row.change.before.as_ref()?.node.as_ref()).collect();
    let is_left = |node: &&Node| {
        node.unschedulable
            && node.cordoned_for() == Some(CordonedFor::Drain)
            && !going.contains(&node.name)
    };
    inputs.observed.nodes.values().filter(is_left).map(warning).collect()
}

fn warning(node: &Node) -> Diagnostic {
    let name = &node.name;
    Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: format!("node {name}"),
        message: "it takes no pods: an apply cordoned it to drain it, and ended early, unless one \
                  is under way"
            .to_owned(),
        hint: Some(format!(
            "the loop, and any apply that changes something, has it take pods again; so does \
             `kubectl uncordon {name}`, after which `kubectl annotate node {name} {CORDONED_ANNOTATION}-` takes \
             our mark off"
        )),
    }
}
