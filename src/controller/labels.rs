//! Words of labels and table columns.

use serde_json::Value as Json;

use crate::controller::{ActionFailure, BlockedReason, ControllerAction, InterruptionPhase};

/// Returns the phase of an interruption.
pub(crate) fn phase(phase: InterruptionPhase) -> &'static str {
    match phase {
        InterruptionPhase::Noticed => "noticed",
        InterruptionPhase::Replacing => "replacing",
        InterruptionPhase::Draining => "draining",
        InterruptionPhase::Terminating => "terminating",
    }
}

/// Returns the failing action and its object, as the beginning of a sentence.
pub(crate) fn failing_action(action: ControllerAction, failure: &ActionFailure) -> String {
    let object = &failure.object;
    match action {
        ControllerAction::LoadState => "Loading the persisted state".to_owned(),
        ControllerAction::SaveState => "Persisting the state".to_owned(),
        ControllerAction::Cordon => format!("Cordoning the node of {object}"),
        ControllerAction::Uncordon => format!("Uncordoning the node of {object}"),
        ControllerAction::Evict => format!("Evicting pods from {object}"),
        ControllerAction::Terminate => format!("Terminating {object}"),
        ControllerAction::DeleteNode => format!("Deleting the node of {object}"),
        ControllerAction::Acknowledge => "Deleting messages from the queue".to_owned(),
        ControllerAction::OpenNodes => format!("Opening node {object}"),
        ControllerAction::Nominate => format!("Nominating pod {object}"),
        ControllerAction::Apply => format!("Applying {object}"),
    }
}

/// Returns the tag of a reason, such as `not-approved`.
pub(crate) fn blocked_reason(reason: &BlockedReason) -> String {
    let tagged = serde_json::to_value(reason).unwrap_or_default();
    tagged.get("blocked").and_then(Json::as_str).unwrap_or("unknown").to_owned()
}
