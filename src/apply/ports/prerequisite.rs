//! Prerequisites of planning or applying, as `preflight` lists them.

/// A prerequisite of planning or applying, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prerequisite {
    /// Name of the prerequisite, such as `node class web: subnets`.
    pub name: String,
    /// State of the prerequisite.
    pub state: PrerequisiteState,
}

/// State of a prerequisite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrerequisiteState {
    /// The prerequisite is met.
    Met {
        /// Description of the found object.
        detail: String,
    },
    /// The prerequisite is not met.
    Missing {
        /// Reason why it is not met.
        why: String,
        /// Suggested change.
        remedy: String,
    },
    /// The prerequisite was not checked, because another one is missing.
    Unknown {
        /// Missing prerequisite.
        why: String,
    },
}

impl Prerequisite {
    /// Returns a prerequisite that is met if `found` is `Ok`, and missing otherwise.
    pub fn from_result(name: &str, found: Result<String, String>, remedy: &str) -> Self {
        let state = match found {
            Ok(detail) => PrerequisiteState::Met { detail },
            Err(why) => PrerequisiteState::Missing { why, remedy: remedy.to_owned() },
        };
        Self { name: name.to_owned(), state }
    }
}
