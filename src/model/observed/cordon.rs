//! Cordons of nodes, and their reasons.

use super::Node;
use crate::model::ids::Uid;

/// Annotation of a node that this program cordoned, with a [`CordonReason`]. Only such a node is ever
/// uncordoned: an operator who cordoned a node had another reason.
pub const CORDONED_ANNOTATION: &str = "fleetwright.dev/cordoned";

/// Why this program cordoned a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonReason {
    /// The drain of an apply, which uncordons the node if it fails.
    Drain,
    /// An interruption of its instance, which the controller tracks.
    Interruption,
}

impl CordonReason {
    /// Returns the value of the annotation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Interruption => "leaving",
        }
    }
}

/// The fields of a node that a cordon or uncordon is decided by. A write is valid only while they are
/// unchanged; other changes, such as reports of the kubelet, do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CordonState {
    /// UID of the node.
    pub uid: Uid,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Value of [`CORDONED_ANNOTATION`], if present.
    pub annotation: Option<String>,
}

impl Node {
    /// Returns the present state of the cordon.
    #[must_use]
    pub fn cordon_state(&self) -> CordonState {
        let mark = self.annotations.get(CORDONED_ANNOTATION).cloned();
        CordonState { uid: self.uid.clone(), unschedulable: self.unschedulable, annotation: mark }
    }

    /// Returns why this program cordoned the node; `None` without its annotation. An unknown value,
    /// from another version, counts as [`CordonReason::Interruption`], which is undone last.
    #[must_use]
    pub fn cordon_reason(&self) -> Option<CordonReason> {
        let mark = self.annotations.get(CORDONED_ANNOTATION)?;
        let is_drain = mark == CordonReason::Drain.as_str();
        Some(if is_drain { CordonReason::Drain } else { CordonReason::Interruption })
    }
}
