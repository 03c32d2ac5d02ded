//! The nouns: quantities, identifiers, label requirements, pods, storage, desired state and
//! observed state.
//!
//! It imports nothing of ours, reads no files and decides nothing.

pub mod competing_autoscaler;
pub mod desired;
pub mod duration;
pub mod fargate;
pub mod ids;
pub mod market;
pub mod observed;
pub mod pod;
pub mod reason;
pub mod requirement;
pub mod storage;
pub mod units;
