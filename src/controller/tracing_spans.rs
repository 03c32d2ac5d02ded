//! Tracing spans of a reconcile.
//!
//! A trace starts with an `observe`, a `read` of the repository, or a signal. Each `step` of the
//! state machine (fields `event`, `effects`) has the spans of its effects as children: `plan`
//! (fields `commit`, `plan`), `apply` (`commit`, `plan`), and `effect` (field `action`, and
//! `object`). The step that handles the end of an effect is a child of that effect. All spans have
//! one target, so a subscriber can select them; without a subscriber they cost nothing.

use tracing::Span;
use tracing::field::Empty;

use super::event::{Effect, Event, Signal};

/// Returns the span of a step, below the span that caused its event.
pub(super) fn step(event: &Event, cause: &Span) -> Span {
    let event = event_name(event);
    tracing::info_span!(target: "fleetwright::trace", parent: cause, "step", event, effects = Empty)
}

/// Returns the span of an effect, below the step that started it.
pub(super) fn effect(effect: &Effect, step: &Span) -> Span {
    let span = |action: &str, object: &str| tracing::info_span!(target: "fleetwright::trace", parent: step, "effect", action, object);
    match effect {
        Effect::Observe => {
            tracing::info_span!(target: "fleetwright::trace", parent: None, "observe")
        }
        Effect::ReadBranch { .. } => {
            tracing::info_span!(target: "fleetwright::trace", parent: None, "read")
        }
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
        Effect::LoadState => span("load-state", ""),
        Effect::SaveState(_) => span("save-state", ""),
        Effect::Cordon { instance, .. } => span("cordon", instance.as_str()),
        Effect::Uncordon { instance, .. } => span("uncordon", instance.as_str()),
        Effect::CordonWithoutLease { node, .. } => span("cordon-without-lease", node.name.as_str()),
        Effect::Evict { instance, .. } => span("evict", instance.as_str()),
        Effect::Terminate { instance, .. } => span("terminate", instance.as_str()),
        Effect::DeleteNode { instance, .. } => span("delete-node", instance.as_str()),
        Effect::Acknowledge { .. } => span("acknowledge", ""),
        Effect::NominatePods { .. } => span("nominate-pods", ""),
        Effect::OpenNodes { nodes, .. } => {
            span("open-nodes", nodes.first().map_or("", |node| node.name.as_str()))
        }
        Effect::AnswerOfferingAttempt { .. }
        | Effect::InterruptApplies
        | Effect::WakeAt(_)
        | Effect::Exit => Span::none(),
    }
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::StateLoaded(_) => "state-loaded",
        Event::StateSaved(_) => "state-saved",
        Event::BranchRead(_) => "branch-read",
        Event::CommitRead { .. } => "commit-read",
        Event::Observed(_) => "observed",
        Event::PlannerMissing { .. } => "planner-missing",
        Event::Planned { .. } => "planned",
        Event::ApplyProgressed { .. } => "apply-progressed",
        Event::OfferingAttemptRequested { .. } => "offering-attempt-requested",
        Event::ApplyFinished { .. } => "apply-finished",
        Event::Cordoned { .. } => "cordoned",
        Event::Uncordoned { .. } => "uncordoned",
        Event::CordonedWithoutLease { .. } => "cordoned-without-lease",
        Event::Evicted { .. } => "evicted",
        Event::TerminateFinished { .. } => "terminate-finished",
        Event::NodeDeleted { .. } => "node-deleted",
        Event::Acknowledged { .. } => "acknowledged",
        Event::PodsNominated(_) => "pods-nominated",
        Event::NodesOpened(_) => "nodes-opened",
        Event::Signal(signal) => match signal {
            Signal::Wake => "wake",
            Signal::PodPending => "pod-pending",
            Signal::RepositoryChanged => "repository-changed",
            Signal::WorldChanged => "world-changed",
            Signal::Message(_) => "message",
            Signal::Request(_) => "request",
            Signal::LeaseGained => "lease-gained",
            Signal::LeaseLost { .. } => "lease-lost",
            Signal::Shutdown => "shutdown",
        },
        Event::Timer => "timer",
    }
}
