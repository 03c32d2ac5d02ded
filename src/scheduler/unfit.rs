//! Reasons why nodes do not fit a pod.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::units::ResourceName;

/// Reason why a node does not fit a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnfitReason {
    /// The node is cordoned.
    Unschedulable,
    /// The pod names another node.
    NodeName,
    /// The node has a taint that the pod does not tolerate.
    Taint,
    /// Node selector or required node affinity does not match.
    NodeAffinity,
    /// A host port is in use.
    HostPorts,
    /// The node is at its pod limit.
    TooManyPods,
    /// Too little of a resource is free.
    Insufficient(ResourceName),
    /// A volume is in use by another pod and cannot be shared.
    VolumeInUse,
    /// The node cannot attach that many volumes.
    TooManyVolumes,
    /// A volume cannot be reached from the node.
    VolumeElsewhere,
    /// A volume is not ready.
    VolumeNotReady,
    /// The node lacks the topology key of a `DoNotSchedule` spread constraint.
    SpreadKey,
    /// A spread constraint would be violated.
    Spread,
    /// The node's domain has no pod that required affinity selects.
    PodAffinity,
    /// The node's domain has a pod that required anti-affinity excludes.
    PodAntiAffinity,
    /// A pod in the node's domain excludes this pod by its own required anti-affinity.
    ExistingAntiAffinity,
}

impl fmt::Display for UnfitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unschedulable => "cordoned",
            Self::NodeName => "not the named node",
            Self::Taint => "taint not tolerated",
            Self::NodeAffinity => "node affinity not met",
            Self::HostPorts => "host port in use",
            Self::TooManyPods => "too many pods",
            Self::Insufficient(resource) => return write!(f, "insufficient {resource}"),
            Self::VolumeInUse => "volume in use",
            Self::TooManyVolumes => "too many volumes",
            Self::VolumeElsewhere => "volume not reachable",
            Self::VolumeNotReady => "volume not ready",
            Self::SpreadKey => "topology key of spread constraint missing",
            Self::Spread => "spread constraint not met",
            Self::PodAffinity => "pod affinity not met",
            Self::PodAntiAffinity => "pod anti-affinity not met",
            Self::ExistingAntiAffinity => "pod anti-affinity of a running pod",
        })
    }
}

/// Reasons why no node fits a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of nodes that each reason ruled out. A node that is short of two resources counts in
    /// both.
    pub reasons: BTreeMap<UnfitReason, u32>,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes", self.nodes)?;
        for (index, (reason, nodes)) in self.reasons.iter().enumerate() {
            write!(f, "{} {nodes} {reason}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// A failed filter on a node, and whether evictions from that node might help.
pub(super) struct FilterFailure {
    pub(super) reason: UnfitReason,
    pub(super) evictable: bool,
}
