//! Cordons of nodes, and their reasons.

use jiff::Timestamp;

use super::Node;
use crate::model::ids::Uid;

/// Annotation of nodes cordoned by Fleetwright, with a [`CordonReason`]. Fleetwright uncordons only
/// such nodes, because operators cordon nodes for reasons of their own.
pub const CORDONED_ANNOTATION: &str = "fleetwright.dev/cordoned";

/// Annotation with the time at which the termination grace period of a drain began. It is written
/// and removed with [`CORDONED_ANNOTATION`]. Drains that do not end by force have none.
pub const GRACE_PERIOD_ANNOTATION: &str = "fleetwright.dev/grace-period-began-at";

/// Reason for a cordon by Fleetwright.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonReason {
    /// Drain by an apply. A failed apply uncordons the node.
    Drain,
    /// Interruption of the instance, tracked by the controller.
    Interruption,
}

impl CordonReason {
    /// Returns the value of the annotation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Interruption => "interruption",
        }
    }
}

/// The annotations of a cordon by Fleetwright.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CordonMark {
    /// Reason of the cordon.
    pub reason: CordonReason,
    /// Time at which the termination grace period of the drain began, if it has one.
    pub grace_period_began_at: Option<Timestamp>,
}

impl From<CordonReason> for CordonMark {
    fn from(reason: CordonReason) -> Self {
        Self { reason, grace_period_began_at: None }
    }
}

/// Fields of a node that decide a cordon or uncordon. A write is valid only while these fields are
/// unchanged. Changes of other fields, such as kubelet reports, are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CordonState {
    /// UID of the node.
    pub uid: Uid,
    /// True if the node is cordoned.
    pub unschedulable: bool,
    /// Value of [`CORDONED_ANNOTATION`], if present.
    pub annotation: Option<String>,
}

impl Node {
    /// Returns the current cordon state.
    pub fn cordon_state(&self) -> CordonState {
        let annotation = self.annotations.get(CORDONED_ANNOTATION).cloned();
        CordonState { uid: self.uid.clone(), unschedulable: self.unschedulable, annotation }
    }

    /// Returns the reason of a cordon by Fleetwright; `None` without the annotation. An unknown
    /// value, from another version, counts as [`CordonReason::Interruption`].
    pub fn cordon_reason(&self) -> Option<CordonReason> {
        let annotation = self.annotations.get(CORDONED_ANNOTATION)?;
        let is_drain = annotation == CordonReason::Drain.as_str();
        Some(if is_drain { CordonReason::Drain } else { CordonReason::Interruption })
    }

    /// Returns the time at which the termination grace period of a drain by Fleetwright began.
    pub fn grace_period_began_at(&self) -> Option<Timestamp> {
        if !self.unschedulable || self.cordon_reason() != Some(CordonReason::Drain) {
            return None;
        }
        self.annotations.get(GRACE_PERIOD_ANNOTATION)?.parse().ok()
    }
}
