//! Log of the calls through the ports.

use jiff::Timestamp;

#[cfg(test)]
use crate::apply::ports::LaunchedInstance;
use crate::apply::ports::{EvictOutcome, LaunchOutcome, LaunchRequest};
use crate::model::ids::{GroupName, InstanceId, Namespace, NodeName};

/// A writing call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortCall {
    /// Launch of an instance.
    Launch {
        /// Time of the call.
        at: Timestamp,
        /// The request.
        request: Box<LaunchRequest>,
        /// The outcome, or `None` if the call failed.
        outcome: Option<LaunchOutcome>,
    },
    /// Termination of an instance.
    Terminate {
        /// Time of the call.
        at: Timestamp,
        /// The instance.
        instance: InstanceId,
    },
    /// Increase of a group.
    RaiseGroup {
        /// Time of the call.
        at: Timestamp,
        /// The group.
        group: GroupName,
        /// The requested capacity.
        desired: u32,
    },
    /// Termination of a group member.
    EndMember {
        /// Time of the call.
        at: Timestamp,
        /// The member.
        instance: InstanceId,
    },
    /// Cordon or uncordon of a node.
    Cordon {
        /// Time of the call.
        at: Timestamp,
        /// The node.
        node: NodeName,
        /// The new value.
        unschedulable: bool,
    },
    /// Opening of a closed node.
    Open {
        /// Time of the call.
        at: Timestamp,
        /// The node.
        node: NodeName,
    },
    /// Eviction of a pod.
    Evict {
        /// Time of the call.
        at: Timestamp,
        /// Namespace of the pod.
        namespace: Namespace,
        /// Name of the pod.
        name: String,
        /// The outcome, or `None` if the call failed.
        outcome: Option<EvictOutcome>,
    },
    /// Deletion of a pod, past its disruption budgets.
    DeletePod {
        /// Time of the call.
        at: Timestamp,
        /// Namespace of the pod.
        namespace: Namespace,
        /// Name of the pod.
        name: String,
        /// Time for its containers to stop.
        grace_seconds: u32,
    },
    /// Deletion of a node object.
    DeleteNode {
        /// Time of the call.
        at: Timestamp,
        /// The node.
        node: NodeName,
    },
}

#[cfg(test)]
impl PortCall {
    /// Returns the request and the instance of a successful launch.
    pub(crate) fn launched(&self) -> Option<(&LaunchRequest, &LaunchedInstance)> {
        let Self::Launch { request, outcome: Some(LaunchOutcome::Launched(instance)), .. } = self
        else {
            return None;
        };
        Some((&**request, instance))
    }

    /// Returns the time and the instance of a termination.
    pub(crate) fn terminated(&self) -> Option<(Timestamp, &InstanceId)> {
        let Self::Terminate { at, instance } = self else { return None };
        Some((*at, instance))
    }
}
