//! The face of continuous mode: metrics, health, objects and page, all of them views of what the loop
//! published.
//!
//! This module knows [`Status`](crate::reconcile::Status), the plan in it, and the words of those who
//! look: Prometheus, Kubernetes, a browser. It refuses to know a port, a socket or a clock: the moment
//! is an argument. Invariants: the same status gives the same bytes; what the loop does not know is
//! left out or said, never shown as nothing.

#[cfg(test)]
pub(crate) mod fixture;
mod health;
pub mod metrics;
pub mod object;
pub mod page;
mod words;

pub use health::{Health, health, readiness};
