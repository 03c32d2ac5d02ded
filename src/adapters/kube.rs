//! Kubernetes adapter: implements the port [`Cluster`](crate::apply::ports::Cluster) for a real
//! cluster.
//!
//! This module contains the API requests and the parsing of objects. Types of the client library
//! stay inside it. It makes no decisions and retries no write: a failed verb reports whether a
//! retry may help.
//!
//! Invariants: every list is a consistent read to its last page, or the whole read fails.
//! Unreadable objects are errors, never a smaller cluster. Each write names the UID of its object,
//! so that a new object of the same name is left alone.

#[cfg(doc)]
#[doc = include_str!("../adr/0010-insufficient-capacity.md")]
pub mod adr_0010 {}

#[cfg(doc)]
#[doc = include_str!("../adr/0013-controller-runtime.md")]
pub mod adr_0013 {}

mod apply_events;
mod apply_objects;
mod autoscalers;
mod cached_object;
mod client;
mod cluster_identity;
mod cluster_objects;
mod cluster_pools;
mod events;
mod far_times;
mod lease;
mod list;
mod node;
mod node_opening;
mod node_writes;
mod owner_references;
mod pod;
mod preflight;
mod queued_workloads;
mod resource_slices;
mod token_review;
mod watch;

pub use apply_events::{ApplyEvents, EVENTS_FLUSH_MAX, apply_event};
pub use client::{ConnectError, Kubernetes};
pub use cluster_identity::{ExpectedCluster, OtherCluster};
pub use events::{EventSubject, KubernetesEvent};
pub use lease::{
    APPLY_RENEW_INTERVAL, HeldLease, LEASE_NAME, LEASE_NAMESPACE, LEASE_POLL, LeaseClient,
    LeaseError, LeaseRecord,
};
pub use preflight::{PreflightSettings, SteeringObstacle};
pub use watch::{ClusterChange, WatchedCluster};

use ::kube::Error;

use crate::apply::ports::{CallEffect, PortError, with_causes};

/// Converts a client error to a port error.
///
/// Only the message of the server is kept, because bodies of objects may contain secrets.
fn port_error(verb: &str, error: &Error) -> PortError {
    let (reason, transient) = if let Error::Api(status) = error {
        let code = status.code;
        (format!("{} ({code})", status.message), code == 429 || code >= 500)
    } else if matches!(error, Error::HyperError(_) | Error::Service(_)) {
        (format!("the API server cannot be reached: {}", with_causes(error)), true)
    } else {
        (error.to_string(), false)
    };
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::from_transience(transient) }
}
