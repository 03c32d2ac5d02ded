//! Data types shared by all modules: quantities, identifiers, label requirements, pods, storage,
//! desired state and observed state.
//!
//! This module imports no other module of the crate, performs no I/O and makes no decisions.

pub mod cluster_autoscaler;
pub mod code;
pub mod commit;
pub mod competing_autoscaler;
pub mod desired;
pub mod duration;
pub mod event_reason;
pub mod expander_priorities;
pub mod fargate;
pub mod ids;
pub mod job;
pub mod market;
pub mod node_annotations;
pub mod observed;
pub mod plural;
pub mod pod;
pub mod printable_url;
pub mod reason;
pub mod requirement;
pub mod saturating_time;
pub mod shell;
pub mod similar_name;
pub mod storage;
pub mod text;
pub mod unavailable_offerings;
pub mod units;
