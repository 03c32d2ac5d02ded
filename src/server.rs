//! HTTP surface of the controller: metrics, health, page and webhook.
//! published.
//!
//! All of them are views of the published [`Status`](crate::controller::Status). The views know no
//! port, no socket and no clock: the time is an argument. Invariants: equal statuses give equal
//! bytes; unknown values are omitted or marked, and never shown as zero.

mod health;
#[cfg(feature = "page")]
pub mod http;
pub mod metrics;
pub mod page;

pub use health::{ProbeResult, liveness, readiness};
