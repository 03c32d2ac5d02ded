//! The plan: what changes, in which order, with which reasons, under which conditions.
//!
//! The JSON is the plan; [`wire`] is its form, and every view and policy works on that alone. This
//! module knows targets and worlds, and nothing of how the solver works or how anything is carried
//! out. Invariants: equal decisions have equal digests; rows are sorted; nothing here reads a clock.

mod diff;
pub mod wire;

pub use diff::{Parts, diff};
pub use wire::Plan;
