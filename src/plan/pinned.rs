//! Result of planning again for an approved plan.

use std::collections::BTreeMap;

use super::wire::Plan;
use crate::model::ids::Address;

/// An approved plan compared with the current demand.
#[derive(Debug, Clone)]
pub struct PinnedPlan {
    /// The plan for the current inputs. It is advice and decides nothing.
    pub current: Plan,
    /// Approved launches that are no longer needed, with the reason.
    pub dropped: BTreeMap<Address, String>,
    /// Demand that exceeds the approved nodes, in words.
    pub missing: Vec<String>,
    /// Reason why nodes that the approved plan removes are needed now. Demand that is missing with
    /// and without these nodes is no such reason.
    pub blocked_removal: Option<String>,
    /// Reason why nothing may be removed now, where the approved plan removes something.
    pub frozen: Option<String>,
}

impl PinnedPlan {
    /// Returns an approved plan that can be applied unchanged, with the current plan.
    #[must_use]
    pub fn as_approved(now: Plan) -> Self {
        Self {
            current: now,
            dropped: BTreeMap::new(),
            missing: Vec::new(),
            blocked_removal: None,
            frozen: None,
        }
    }
}
