//! Who keeps pods from a node, and what for.

use super::Node;
use crate::ids::Uid;

/// Annotation of a node that we cordoned, for what [`CordonedFor`] names: only such a node is ever uncordoned,
/// since whoever else cordoned a node had a reason of their own.
pub const CORDONED_ANNOTATION: &str = "fleetwright.dev/cordoned";

/// What we cordon a node for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonedFor {
    /// A drain of an apply, which takes it back where it gives up.
    Drain,
    /// Its machine goes by itself, as one that EC2 takes back does: the loop knows how that stands.
    Leaving,
}

impl CordonedFor {
    /// Returns it as the annotation has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Leaving => "leaving",
        }
    }
}

/// What it is decided from that a node is cordoned or uncordoned, and what of it nobody may have changed when that is
/// written. What else is written of a node, such as what its kubelet reports, changes nothing about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cordon {
    /// UID of the node.
    pub uid: Uid,
    /// Whether no pods come to it.
    pub unschedulable: bool,
    /// What its annotation [`CORDONED_ANNOTATION`] says, where it has one.
    pub mark: Option<String>,
}

impl Node {
    /// Returns how it stands.
    #[must_use]
    pub fn cordon(&self) -> Cordon {
        let mark = self.annotations.get(CORDONED_ANNOTATION).cloned();
        Cordon { uid: self.uid.clone(), unschedulable: self.unschedulable, mark }
    }

    /// Returns what we cordoned the node for, or nothing where the mark of it is not ours. What the mark of another
    /// version says is taken for what is undone last.
    #[must_use]
    pub fn cordoned_for(&self) -> Option<CordonedFor> {
        let mark = self.annotations.get(CORDONED_ANNOTATION)?;
        let is_drain = mark == CordonedFor::Drain.as_str();
        Some(if is_drain { CordonedFor::Drain } else { CordonedFor::Leaving })
    }
}
