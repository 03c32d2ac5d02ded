//! How long a plan may be applied.

use jiff::{SignedDuration, Timestamp};

use super::wire::Plan;

/// Validity of a plan with removals.
const DESTRUCTIVE: SignedDuration = SignedDuration::from_mins(30);

/// Validity of a plan that only adds nodes.
const ADDITIVE: SignedDuration = SignedDuration::from_hours(24);

/// Returns the time for which a plan may be applied, from its timestamp on.
pub fn validity(is_destructive: bool) -> SignedDuration {
    if is_destructive { DESTRUCTIVE } else { ADDITIVE }
}

/// Returns the expiry time of a plan: the stated one, and no later than that of any such plan.
pub fn expiry(plan: &Plan) -> Timestamp {
    let latest = plan.timestamp.checked_add(validity(plan.summary.destructive));
    latest.map_or(plan.timestamp, |latest| latest.min(plan.capacity.expires_at))
}
