//! What is told of an apply beside its receipt: events of Kubernetes, and what was sold out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::apply::{Event, Step};
use crate::fleet::Exclusion;
use crate::kube::{About, Kubernetes, Note};
use crate::plan::Plan;

/// Longest wait for events that are still to be written when an apply has ended.
pub(super) const LAST_MAX: Duration = Duration::from_secs(5);

/// What there is to tell of one apply.
pub(super) struct Notes<'p> {
    plan: &'p Plan,
    kubernetes: &'p Kubernetes,
    sold_out: RefCell<Vec<Exclusion>>,
}

impl<'p> Notes<'p> {
    /// Returns that there is nothing to tell yet.
    pub(super) fn new(plan: &'p Plan, kubernetes: &'p Kubernetes) -> Self {
        Self { plan, kubernetes, sold_out: RefCell::default() }
    }

    /// Writes an event for each step that concerns a node; one that cannot be written is passed over.
    pub(super) async fn write(&self, mut events: UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            let Some(note) = self.note(&event) else { continue };
            if let Err(error) = self.kubernetes.note(&note).await {
                tracing::warn!(%error, about = %note.about, "an event was not recorded");
            }
        }
    }

    /// Keeps that an offering was sold out.
    pub(super) fn remember(&self, event: &Event) {
        if let Step::NoCapacity { instance_type, zone, capacity_type } = &event.step {
            self.sold_out.borrow_mut().push(Exclusion {
                instance_type: Some(instance_type.clone()),
                zone: Some(zone.clone()),
                capacity_type: Some(*capacity_type),
                until: event.at,
            });
        }
    }

    /// Returns the offerings that were sold out, each once.
    pub(super) fn sold_out(&self) -> BTreeSet<Exclusion> {
        let all = self.sold_out.borrow();
        all.iter().map(|one| Exclusion { until: Timestamp::UNIX_EPOCH, ..one.clone() }).collect()
    }

    fn note(&self, event: &Event) -> Option<Note> {
        let (node, reason, what) = match &event.step {
            Step::Ready { node } => (node, "Ready", "the node is ready".to_owned()),
            Step::Cordoned { node } => (node, "Cordoned", "no pod may come any more".to_owned()),
            Step::Uncordoned { node } => {
                let why = match event.address {
                    Some(_) => "it could not be drained, and pods may come again",
                    None => "pods may come again: a drain that ended early had left it cordoned",
                };
                (node, "Uncordoned", why.to_owned())
            }
            Step::Evicted { node, pods } => (node, "Evicting", format!("{pods} pods are to leave")),
            Step::Checked { .. }
            | Step::Wave { .. }
            | Step::Launched { .. }
            | Step::NoCapacity { .. }
            | Step::Raised { .. }
            | Step::Joined { .. }
            | Step::Found { .. }
            | Step::Going { .. }
            | Step::Retrying { .. }
            | Step::Unanswered
            | Step::Unreadable
            | Step::Waiting { .. }
            | Step::Blocked { .. }
            | Step::Terminating { .. }
            | Step::Finished { .. } => return None,
        };
        let address = event.address.as_ref().map(|address| format!("{address} of "));
        let address = address.unwrap_or_default();
        let plan = self.plan.capacity.plan_id.as_str();
        Some(Note {
            about: About::Node(node.clone()),
            reason,
            message: format!("{what}: {address}plan {plan}"),
            is_warning: reason == "Uncordoned",
            at: event.at,
        })
    }
}
