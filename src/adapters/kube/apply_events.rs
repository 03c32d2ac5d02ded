//! Side output of an apply: Kubernetes events and unavailable offerings.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedReceiver;

use super::client::Kubernetes;
use super::events::{EventSubject, KubernetesEvent};
use crate::apply::{Event, Step};
use crate::model::event_reason::EventReason;
use crate::model::observed::Exclusion;
use crate::model::plural::count;

/// Maximum wait for the remaining events after an apply.
pub const EVENTS_FLUSH_MAX: Duration = Duration::from_secs(5);

/// The side output of one apply.
#[derive(Debug)]
pub struct ApplyEvents<'p> {
    plan_id: &'p str,
    kubernetes: &'p Kubernetes,
    unavailable: RefCell<Vec<Exclusion>>,
}

impl<'p> ApplyEvents<'p> {
    /// Returns an empty output.
    pub fn new(plan_id: &'p str, kubernetes: &'p Kubernetes) -> Self {
        Self { plan_id, kubernetes, unavailable: RefCell::default() }
    }

    /// Writes an event for each step that concerns a node. A failed write is dropped.
    pub async fn write(&self, mut events: UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            let Some(event) = apply_event(self.plan_id, &event) else { continue };
            if let Err(error) = self.kubernetes.record_event(&event).await {
                tracing::warn!(%error, about = %event.subject, "cannot record event");
            }
        }
    }

    /// Records an unavailable offering.
    pub fn remember_unavailable(&self, event: &Event) {
        if let Step::InsufficientCapacity { instance_type, zone, capacity_type } = &event.step {
            self.unavailable.borrow_mut().push(Exclusion {
                instance_type: Some(instance_type.clone()),
                zone: Some(zone.clone()),
                capacity_type: Some(*capacity_type),
                until: event.at,
            });
        }
    }

    /// Returns the unavailable offerings without duplicates.
    pub fn unavailable_offerings(&self) -> BTreeSet<Exclusion> {
        let all = self.unavailable.borrow();
        all.iter().map(|one| Exclusion { until: Timestamp::UNIX_EPOCH, ..one.clone() }).collect()
    }
}

/// Returns the Kubernetes event for a step of an apply, if the step concerns a node.
pub fn apply_event(plan: &str, event: &Event) -> Option<KubernetesEvent> {
    let (node, reason, message) = match &event.step {
        Step::Ready { node } => (node, EventReason::Ready, "the node is ready".to_owned()),
        Step::Cordoned { node } => {
            (node, EventReason::Cordoned, "no new pods are scheduled".to_owned())
        }
        Step::Uncordoned { node } => {
            let why = match event.address {
                Some(_) => "the drain was abandoned, and pods can be scheduled again",
                None => {
                    "pods can be scheduled again: an interrupted drain had left the node cordoned"
                }
            };
            (node, EventReason::Uncordoned, why.to_owned())
        }
        Step::Evicted { node, pods } => {
            (node, EventReason::Evicting, format!("evicting {}", count(pods, "pod")))
        }
        Step::PodsDeleted { node, pods } => {
            let pods = count(pods, "pod");
            let what = format!("deleted {pods}: the termination grace period ends");
            (node, EventReason::PodsDeleted, what)
        }
        Step::Checked { .. }
        | Step::Wave { .. }
        | Step::Launched { .. }
        | Step::InsufficientCapacity { .. }
        | Step::Withdrawn { .. }
        | Step::Raised { .. }
        | Step::Joined { .. }
        | Step::Found { .. }
        | Step::InProgress { .. }
        | Step::Retrying { .. }
        | Step::Unanswered
        | Step::Unreadable
        | Step::Waiting { .. }
        | Step::Blocked { .. }
        | Step::Nominated { .. }
        | Step::NodeWriteFailed { .. }
        | Step::Terminating { .. }
        | Step::Finished { .. } => return None,
    };
    let address = event.address.as_ref().map(|address| format!("{address} of "));
    let address = address.unwrap_or_default();
    Some(KubernetesEvent {
        subject: EventSubject::Node(node.clone()),
        reason,
        message: format!("{message}: {address}plan {plan}"),
        at: event.at,
    })
}
