//! The plan: changes, their order, their reasons and their preconditions.
//!
//! The JSON is the plan. [`wire`] defines its form. Views and policies read only this form. This
//! module depends on targets and observations, and neither on the strategies of the solver nor on
//! the execution of a plan. Invariants: equal decisions have equal digests, rows are sorted, and
//! the time is an argument.

mod approval;
mod blocked;
mod breakdown;
pub mod canonical;
mod change_summary;
mod changes_only;
mod checksum;
mod compare;
mod completeness;
mod cordons;
mod derived;
mod difference;
mod digest;
mod drift;
pub mod forecast;
mod identity;
mod launched_instance;
mod planned_pods;
mod revalidation;
mod saved;
mod schema;
mod validity;
pub mod verify;
pub mod wire;

#[cfg(doc)]
#[doc = include_str!("adr/0004-plan-format.md")]
pub mod adr_0004 {}

#[cfg(doc)]
#[doc = include_str!("adr/0014-derived-sections.md")]
pub mod adr_0014 {}

#[cfg(doc)]
#[doc = include_str!("adr/0017-contingency.md")]
pub mod adr_0017 {}

pub use approval::{Approval, ApprovalError, Approvals, approve, verify_approvals};
pub use blocked::is_blocked;
pub use breakdown::breakdown;
pub use changes_only::{RowSelection, UNCHANGED_BYTES_MAX};
pub use compare::compare;
pub use completeness::is_incomplete;
pub use cordons::{StaleCordon, is_managed_member, stale_cordons, unmanaged_instances};
pub use difference::{
    AnnotationDifference, ConditionDifference, Difference, DifferenceRow, OverlayDifference,
    PlanOverview, difference,
};
pub use digest::{digest, has_complete_digest};
pub use drift::{drift, has_drift, manual_changes};
pub use identity::{
    PlanSource, change_id, client_token, has_complete_identity, plan_id, set_identity, totals,
};
pub use launched_instance::launched_instance;
pub use planned_pods::{planned_pods, planned_pods_at, planned_pods_on};
pub use revalidation::{RevalidatedPlan, WithdrawnOffering};
pub use saved::{PLAN_BYTES_MAX, ReadPlanError, ReadPlanErrorKind, read_plan};
pub use schema::plan_schema;
pub use validity::{expiry, validity};
pub use verify::{Facts, LaunchReview, Violation, review_launches, verify};
pub use wire::Plan;
