//! What planning again makes of a plan that was approved.

use std::collections::BTreeMap;

use super::wire::Plan;
use crate::ids::Address;

/// An approved plan beside what is needed now.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// The plan that would be made now, bound to nothing: advice, which decides nothing.
    pub now: Plan,
    /// Approved launches that are no longer needed, with the reason.
    pub dropped: BTreeMap<Address, String>,
    /// What is needed beyond the approved nodes, in words.
    pub missing: Vec<String>,
    /// What the nodes that the approved plan removes are needed for now, in words: what is missing
    /// with and without them alike is no reason to keep them.
    pub held: Option<String>,
    /// Why nothing may be removed now, where the approved plan removes something.
    pub frozen: Option<String>,
}

impl Pinned {
    /// Returns an approved plan of which nothing has to be done otherwise, beside the plan of now.
    #[must_use]
    pub fn as_approved(now: Plan) -> Self {
        Self { now, dropped: BTreeMap::new(), missing: Vec::new(), held: None, frozen: None }
    }
}
