//! Which state of an object a look showed.

use std::sync::Arc;

/// The version that an object had when it was read, as its API server names it; nothing where nobody does. A write that
/// names it is refused where somebody wrote the object since.
///
/// Any two are equal: heartbeats raise it, and two looks that differ in nothing else show the same. Whoever has to tell
/// two of them apart asks [`ResourceVersion::is_same`].
#[derive(Debug, Clone, Default)]
pub struct ResourceVersion(Option<Arc<str>>);

impl ResourceVersion {
    /// Returns the version of that name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(Some(Arc::from(name)))
    }

    /// Returns its name, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns whether both are the same one, or neither is known.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl PartialEq for ResourceVersion {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ResourceVersion {}
