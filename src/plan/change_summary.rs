//! Summary of a change in one line. It is a part of the JSON of comparisons and differences, so it
//! has no units, colors or line breaks that depend on a view.

use super::wire::{Action, NodeState, ResourceChange};

/// Returns the summary of a row, without its address.
pub(super) fn change_summary(row: &ResourceChange) -> String {
    let offering = |state: &NodeState| {
        let parts = [
            state.instance_type.as_ref().map(ToString::to_string),
            state.zone.as_ref().map(ToString::to_string),
            state.capacity_type.map(|kind| kind.to_string()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let before = row.change.before.as_ref().map(offering).unwrap_or_default();
    let after = row.change.after.as_ref().map(offering).unwrap_or_default();
    let id = row.change.before.as_ref().and_then(|state| state.instance_id.as_ref());
    let id = id.map_or_else(String::new, |id| format!(" ({id})"));
    match row.change.actions.as_slice() {
        [Action::NoOp] => format!("keep {before}{id}"),
        [Action::Create] => format!("launch {after}"),
        [Action::Delete] => format!("terminate {before}{id}"),
        [Action::Update] => {
            match (group_size(row.change.before.as_ref()), group_size(row.change.after.as_ref())) {
                (Some(before), Some(after)) => format!("resize from {before} to {after}"),
                (_, _) => format!("update {before}{id}"),
            }
        }
        _ => format!("replace {before}{id} by {after}"),
    }
}

/// Returns the desired size of a group; `None` for a state of a node.
fn group_size(state: Option<&NodeState>) -> Option<u32> {
    Some(state?.group.as_ref()?.desired)
}
