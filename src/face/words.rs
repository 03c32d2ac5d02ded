//! The words of the loop as labels and columns spell them.

use serde_json::Value as Json;

use crate::reconcile::{AwayPhase, Held};

/// Returns how far a machine that goes has come.
pub(super) fn phase(phase: AwayPhase) -> &'static str {
    match phase {
        AwayPhase::Noted => "noted",
        AwayPhase::Replacing => "replacing",
        AwayPhase::Draining => "draining",
        AwayPhase::Ending => "ending",
    }
}

/// Returns what keeps a change back as the wire spells it, such as `not-approved`.
pub(super) fn held(why: &Held) -> String {
    let tagged = serde_json::to_value(why).unwrap_or_default();
    tagged.get("held").and_then(Json::as_str).unwrap_or("unknown").to_owned()
}
