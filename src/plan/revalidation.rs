//! Result of planning again for an approved plan.

use std::collections::BTreeMap;

use super::wire::Plan;
use crate::model::ids::Address;

/// An approved plan compared with the current demand.
#[derive(Debug, Clone)]
pub struct RevalidatedPlan {
    /// The plan for the current inputs. It is advisory.
    pub current: Plan,
    /// Approved launches that are no longer needed, with the reason.
    pub dropped: BTreeMap<Address, String>,
    /// Demand that exceeds the approved nodes, in words.
    pub missing: Vec<String>,
    /// Reason why the cluster still needs nodes that the approved plan removes. Demand that these
    /// nodes cannot serve does not count.
    pub blocked_removal: Option<String>,
    /// Launches whose pool or node class the files declare otherwise than the plan, in words.
    pub undeclared: Vec<String>,
    /// Reason why all removals of the approved plan are blocked now.
    pub frozen: Option<String>,
}

impl RevalidatedPlan {
    /// Creates the result for an approved plan that applies unchanged.
    #[must_use]
    pub fn as_approved(now: Plan) -> Self {
        Self {
            current: now,
            dropped: BTreeMap::new(),
            missing: Vec::new(),
            blocked_removal: None,
            undeclared: Vec::new(),
            frozen: None,
        }
    }
}
