//! The plan: what changes, in which order, with which reasons, under which conditions.
//!
//! The JSON is the plan; [`wire`] is its form, and every view and policy works on that alone. This
//! module knows targets and worlds, and nothing of how the solver works or how anything is carried
//! out. Invariants: equal decisions have equal digests; rows are sorted; nothing here reads a clock.

mod approval;
mod breakdown;
pub mod canonical;
pub mod check;
mod checksum;
mod compare;
mod cordons;
mod diff;
mod digest;
mod drift;
#[cfg(test)]
mod fixture;
pub mod forecast;
mod identity;
mod pinned;
mod saved;
mod schema;
pub mod wire;

#[cfg(doc)]
#[doc = include_str!("adr/0004-rows.md")]
pub mod adr_0004 {}

pub use approval::{Approval, ApprovalError, Approvals, approve, verify_approvals};
pub use breakdown::breakdown;
pub use check::{Facts, Violation, check};
pub use compare::{Difference, DifferenceRow, Side, compare, difference};
pub use cordons::{StaleCordon, is_managed_member, left_to_others, stale_cordons};
pub use diff::{Parts, diff};
pub use digest::{digest, is_whole};
pub use drift::{BEHIND, drift, has_drift};
pub use identity::{Source, change_id, client_token, plan_id, seal, totals};
pub use pinned::Pinned;
pub use saved::{PLAN_BYTES_MAX, ReadPlanError, ReadPlanErrorKind, read_plan};
pub use schema::plan_schema;
pub use wire::Plan;
