//! What was asked of the world through its ports.

use jiff::Timestamp;

use crate::ids::{GroupName, InstanceId, Namespace, NodeName};
use crate::port::{EvictOutcome, LaunchOutcome, LaunchRequest};

/// A writing call, in the words of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// An instance was asked for.
    Launch {
        /// When.
        at: Timestamp,
        /// What was asked for.
        request: Box<LaunchRequest>,
        /// How it ended; `None` where the call failed.
        outcome: Option<LaunchOutcome>,
    },
    /// An instance was to go.
    Terminate {
        /// When.
        at: Timestamp,
        /// The instance.
        instance: InstanceId,
    },
    /// A group was to grow.
    RaiseGroup {
        /// When.
        at: Timestamp,
        /// The group.
        group: GroupName,
        /// The size asked for.
        desired: u32,
    },
    /// A member of a group was to go.
    EndMember {
        /// When.
        at: Timestamp,
        /// The member.
        instance: InstanceId,
    },
    /// A node was cordoned or uncordoned.
    Cordon {
        /// When.
        at: Timestamp,
        /// The node.
        node: NodeName,
        /// What it was set to.
        unschedulable: bool,
    },
    /// A pod was to move.
    Evict {
        /// When.
        at: Timestamp,
        /// Its namespace.
        namespace: Namespace,
        /// Its name.
        name: String,
        /// How it ended; `None` where the call failed.
        outcome: Option<EvictOutcome>,
    },
    /// A node object was to go.
    DeleteNode {
        /// When.
        at: Timestamp,
        /// The node.
        node: NodeName,
    },
}
