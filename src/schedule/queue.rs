//! Which of the waiting pods comes next.

use std::cmp::Reverse;

use super::{ClassIndex, NodeIndex};

/// A pod that waits for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPod {
    /// What it is.
    pub class: ClassIndex,
    /// Its priority.
    pub priority: i32,
    /// When it joined the queue, in any unit; smaller is earlier.
    pub queued: u64,
    /// The node in `status.nominatedNodeName`.
    pub nominated: Option<NodeIndex>,
}

/// Sorts pods as the scheduling queue does: the highest priority first, then the earliest; pods
/// equal in both keep their order.
///
/// Source: `pkg/scheduler/framework/plugins/queuesort/priority_sort.go`.
pub fn queue_order(pods: &mut [PendingPod]) {
    pods.sort_by_key(|pod| (Reverse(pod.priority), pod.queued));
}
