//! The words of the loop as labels and columns spell them.

use serde_json::Value as Json;

use crate::reconcile::{AwayPhase, Deed, Failure, Held};

/// Returns how far a machine that goes has come.
pub(super) fn phase(phase: AwayPhase) -> &'static str {
    match phase {
        AwayPhase::Noted => "noted",
        AwayPhase::Replacing => "replacing",
        AwayPhase::Draining => "draining",
        AwayPhase::Ending => "ending",
    }
}

/// Returns what fails, and of which object, as the beginning of a sentence.
pub(super) fn failing(deed: Deed, failure: &Failure) -> String {
    let of = &failure.of;
    match deed {
        Deed::Recall => "Reading what was kept".to_owned(),
        Deed::Save => "Keeping what is to survive".to_owned(),
        Deed::Cordon => format!("Cordoning the node of {of}"),
        Deed::Evict => format!("Asking pods to leave {of}"),
        Deed::End => format!("Telling {of} to end"),
        Deed::DeleteNode => format!("Removing the node of {of}"),
        Deed::Acknowledge => "Taking messages off the queue".to_owned(),
        Deed::Nominate => format!("Nominating pod {of}"),
        Deed::Apply => format!("Applying {of}"),
    }
}

/// Returns what keeps a change back as the wire spells it, such as `not-approved`.
pub(super) fn held(why: &Held) -> String {
    let tagged = serde_json::to_value(why).unwrap_or_default();
    tagged.get("held").and_then(Json::as_str).unwrap_or("unknown").to_owned()
}
