//! Order of the scheduling queue.

use std::cmp::Reverse;

use super::{ClassIndex, NodeIndex};

/// A pending pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPod {
    /// Class of the pod.
    pub class: ClassIndex,
    /// Priority.
    pub priority: i32,
    /// Time at which it joined the queue, in any unit.
    pub queued: u64,
    /// Node in `status.nominatedNodeName`.
    pub nominated: Option<NodeIndex>,
}

/// Sorts pods like the scheduling queue: highest priority first, then earliest. Pods equal in both
/// keep their order.
///
/// Source: `pkg/scheduler/framework/plugins/queuesort/priority_sort.go`.
pub fn queue_order(pods: &mut [PendingPod]) {
    pods.sort_by_key(|pod| (Reverse(pod.priority), pod.queued));
}
