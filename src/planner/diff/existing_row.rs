//! Decisions about existing nodes.

use super::action_reason;
use crate::model::ids::NodeName;
use crate::plan::wire::{Action, Reason};
use crate::solver::{Retire, TargetFleet};

/// The decision about an existing node that no launch replaces in the same row.
pub(super) struct ExistingRow {
    pub action: Action,
    pub reason: Reason,
    pub batch: Option<usize>,
    pub action_reason: &'static str,
}

impl ExistingRow {
    /// Returns `None` if the target neither keeps nor retires the node.
    pub(super) fn new(target: &TargetFleet, node: &NodeName) -> Option<Self> {
        if let Some(Retire { reason, batch }) = target.retires.get(node) {
            return Some(Self {
                action: Action::Delete,
                reason: Reason::Retire { because: reason.clone() },
                batch: *batch,
                action_reason: action_reason::retire(reason),
            });
        }
        let reason = target.keeps.get(node)?;
        Some(Self {
            action: Action::NoOp,
            reason: Reason::Keep { because: reason.clone() },
            batch: None,
            action_reason: action_reason::keep(reason),
        })
    }
}
