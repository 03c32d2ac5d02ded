//! What is traced of a reconcile.
//!
//! A trace begins with a `look` at the world, a `read` of the repository or a signal, and holds what came of
//! it: `step` is a turn of the state machine (fields `event`, `effects`), and under it stands what it began:
//! `plan` (fields `commit`, `plan`), `apply` (`commit`, `plan`), and `effect` (field `deed`, and `instance`
//! or `pod`). The step that hears of the end of one stands under it. Spans are of one target, which
//! whoever sends traces asks for; where nobody does, they cost nothing.

use tracing::Span;
use tracing::field::Empty;

use super::event::{Effect, Event, Signal};

/// The span of a step, under what its event came of.
pub(super) fn step(event: &Event, cause: &Span) -> Span {
    let event = kind(event);
    tracing::info_span!(target: "fleetwright::trace", parent: cause, "step", event, effects = Empty)
}

/// The span of an effect, under the step that began it.
pub(super) fn effect(effect: &Effect, step: &Span) -> Span {
    let one = |deed: &str, of: &str| tracing::info_span!(target: "fleetwright::trace", parent: step, "effect", deed, of);
    match effect {
        Effect::Observe => tracing::info_span!(target: "fleetwright::trace", parent: None, "look"),
        Effect::ReadHead => tracing::info_span!(target: "fleetwright::trace", parent: None, "read"),
        Effect::ReadCommit { commit } => {
            tracing::info_span!(target: "fleetwright::trace", parent: None, "read", commit)
        }
        Effect::Plan { commit, .. } => {
            tracing::info_span!(target: "fleetwright::trace", parent: step, "plan", commit, plan = Empty)
        }
        Effect::Apply { commit, plan, .. } => {
            let plan = plan.capacity.digest.as_str();
            tracing::info_span!(target: "fleetwright::trace", parent: step, "apply", commit, plan)
        }
        Effect::Recall => one("recall", ""),
        Effect::Save(_) => one("save", ""),
        Effect::Cordon { instance, .. } => one("cordon", instance.as_str()),
        Effect::Shield { node, .. } => one("shield", node.name.as_str()),
        Effect::Evict { instance, .. } => one("evict", instance.as_str()),
        Effect::End { instance, .. } => one("end", instance.as_str()),
        Effect::DeleteNode { instance, .. } => one("delete-node", instance.as_str()),
        Effect::Acknowledge { .. } => one("acknowledge", ""),
        Effect::Nominate { pod, .. } => one("nominate", pod.uid.as_str()),
        Effect::Turn { .. } | Effect::Interrupt | Effect::Wake(_) | Effect::Exit => Span::none(),
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Recalled(_) => "recalled",
        Event::Saved(_) => "saved",
        Event::Head(_) => "head",
        Event::Commit { .. } => "commit",
        Event::World(_) => "world",
        Event::Unplanned { .. } => "unplanned",
        Event::Planned { .. } => "planned",
        Event::Progress { .. } => "progress",
        Event::Turning { .. } => "turning",
        Event::Applied { .. } => "applied",
        Event::Cordoned { .. } => "cordoned",
        Event::Shielded { .. } => "shielded",
        Event::Evicted { .. } => "evicted",
        Event::Ended { .. } => "ended",
        Event::NodeDeleted { .. } => "node-deleted",
        Event::Acknowledged { .. } => "acknowledged",
        Event::Nominated { .. } => "nominated",
        Event::Signal(signal) => match signal {
            Signal::Wake => "wake",
            Signal::PodPending => "pod-pending",
            Signal::Pushed => "pushed",
            Signal::WorldChanged => "world-changed",
            Signal::Message(_) => "message",
            Signal::Request(_) => "request",
            Signal::Gained => "gained",
            Signal::Lost { .. } => "lost",
            Signal::Shutdown => "shutdown",
        },
        Event::Timer => "timer",
    }
}
