//! Feasibility and cost → [`Target`]: which nodes there should be, and which pods go where.
//!
//! This module knows pods, nodes, offerings and pools. It knows nothing of files, time, plans or
//! how anything is carried out; it does not log. Invariants: same inputs, same target; "cannot be
//! placed" is an answer with its reasons, not an error.

mod target;

pub use target::{
    Alternative, BlockReason, KeepReason, Launch, LaunchReason, NewNode, Place, Rejection, Retire,
    RetireReason, Target, Unplaced, workload_key,
};
