//! The controller: observes the repository and the cluster, and reconciles them.
//!
//! `step` holds all decisions. It is a pure function of a state, an event and the time, and returns
//! effects. The executor runs effects through the ports and feeds their results back as events.
//! [`Status`] is a plain snapshot, published after every step. Metrics, page and Kubernetes objects
//! are views of it. Operators send an [`AuthorizedRequest`] to a running controller.
//!
//! Invariants:
//! - No decision uses a read that failed, was partial or is stale.
//! - Interrupted capacity is replaced before it is drained.
//! - Every blocked change carries its reason.

mod applies;
pub mod apply_record;
pub mod authorization;
mod competing_autoscaler;
mod consolidate_after;
mod contingency;
mod cost_history;
mod counters;
mod event;
mod executor;
mod failures;
pub mod gates;
mod inflight_launches;
mod interruption;
mod interruption_message;
mod interruption_queue;
pub(crate) mod labels;
mod launches_ahead;
mod launches_in_progress;
mod leadership;
pub mod mass_removal;
mod move_history;
mod narrow_scope;
mod node_health;
mod nominations;
mod observation;
mod observation_diff;
mod opening;
mod operator_requests;
mod persisted_state;
mod persistence;
mod planning;
mod planning_snapshot;
mod ports;
mod reconcile;
pub mod resources;
mod retry;
mod revisions;
pub mod runtime;
mod served_rules;
mod stale_cordons;
mod state;
#[cfg(feature = "cluster")]
pub(crate) mod state_memory;
#[cfg(feature = "cluster")]
mod state_seal;
mod status;
mod status_snapshot;
pub mod status_writer;
mod timing;
mod tracing_spans;
mod wakeup;

#[cfg(doc)]
#[doc = include_str!("adr/0019-decisions.md")]
pub mod adr_0019 {}

#[cfg(doc)]
#[doc = include_str!("adr/0012-controller.md")]
pub mod adr_0012 {}

pub use counters::{Counter, Counters};

pub use crate::model::desired::Mode;
pub use event::{Effect, Event, PlanScope, PodScope, Revision, RevisionError, Signal, Ticket};
pub use executor::{ExternalPorts, run};
pub use inflight_launches::InDoubtLaunches;
pub use interruption_message::{InterruptionMessage, MessageKind};
pub use move_history::{MoveBuckets, MoveHistory};
pub use operator_requests::AuthorizedRequest;
pub use persisted_state::{
    Announcement, ApprovalRecord, CiApply, InterruptionRecord, LaunchRecord, PersistedState,
    Quarantine, RemovalRecord, VerifiedCommit,
};
pub use planning_snapshot::EC2_VISIBILITY_MAX;
pub use ports::{RevisionPlanner, RevisionSource, SignalSource, StateStore};
pub use state::{ControllerState, StartOptions, step};
#[cfg(feature = "cluster")]
pub use state_seal::StateKeys;
pub use status::{
    ActionFailure, ApprovedBy, Blocked, BlockedReason, Breaker, CompletedApply, ControllerAction,
    InterruptionPhase, InterruptionStatus, PartialApply, PersistedStateSize, PlanTotals,
    PublishedPlan, RepositoryStatus, SourceState, Status, SupersededPlan, Suspension,
    UncordonedNode, WithheldRepair, WorldStatus,
};

/// Prefix of a controller's name as holder of the lease. In a cluster the pod name follows.
pub const LEASE_HOLDER_PREFIX: &str = "run/";

use std::sync::Arc;

use tokio::sync::watch;

/// Publishes the latest [`Status`] and wakes its receivers.
///
/// Wraps a `tokio::sync::watch`: any number of receivers, and a slow receiver skips versions.
#[derive(Debug)]
pub struct StatusPublisher(watch::Sender<Arc<Status>>);

/// Receives from a [`StatusPublisher`], on any thread and in any runtime.
pub type StatusReceiver = watch::Receiver<Arc<Status>>;

impl StatusPublisher {
    /// Returns a publisher of `first` and a receiver. Clone the receiver for more.
    pub fn new(first: Status) -> (Self, StatusReceiver) {
        let (sender, reader) = watch::channel(Arc::new(first));
        (Self(sender), reader)
    }

    /// Replaces the published status.
    pub fn publish(&self, status: Status) {
        // Unlike `send`, this also stores the status for later receivers.
        self.0.send_replace(Arc::new(status));
    }
}
