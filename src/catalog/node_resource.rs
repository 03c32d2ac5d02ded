//! The resources of a node, from its capacity to its allocatable.

use crate::model::units::{Bytes, MilliCpu, ResourceName, Resources};

/// From an instance's capacity to the resources that its pods may use.
///
/// For a measured node only the two ends are known: the whole difference counts as reserved for
/// Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// Capacity that the node reports.
    pub capacity: Resources,
    /// Reserved for Kubernetes.
    pub kube_reserved: Resources,
    /// Reserved for the system.
    pub system_reserved: Resources,
    /// Reserved by the eviction threshold.
    pub eviction: Resources,
    /// Memory reserved as huge pages.
    pub huge_pages: Resources,
    /// Resources left for pods, DaemonSets included.
    pub allocatable: Resources,
}

/// The part of an [`Allocation`] that a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocationPart {
    /// Capacity that the node reports.
    Capacity,
    /// Reserved for Kubernetes.
    KubeReserved,
    /// Reserved for the system.
    SystemReserved,
    /// Reserved by the eviction threshold.
    Eviction,
    /// Memory reserved as huge pages.
    HugePages,
    /// Resources left for pods.
    Allocatable,
}

impl AllocationPart {
    /// Returns the part's name for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::KubeReserved => "kube-reserved",
            Self::SystemReserved => "system-reserved",
            Self::Eviction => "eviction threshold",
            Self::HugePages => "huge pages",
            Self::Allocatable => "allocatable",
        }
    }
}

/// A resource that a step adds to or subtracts from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeResource {
    /// CPU, in thousandths of a core.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// Ephemeral storage, in bytes.
    EphemeralStorage,
    /// Number of pods.
    Pods,
    /// An extended resource, in whole units.
    Extended(ResourceName),
}

impl NodeResource {
    /// Returns the Kubernetes name of the resource.
    pub fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Pods => "pods",
            Self::Extended(name) => name.as_str(),
        }
    }

    /// Formats `amount` of the resource as Kubernetes does.
    pub fn format_amount(&self, amount: i64) -> String {
        match self {
            Self::Cpu => MilliCpu(amount).to_string(),
            Self::Memory | Self::EphemeralStorage => Bytes(amount).to_string(),
            Self::Pods | Self::Extended(_) => amount.to_string(),
        }
    }

    pub(super) fn amount_in(&self, resources: &Resources) -> i64 {
        match self {
            Self::Cpu => resources.cpu.0,
            Self::Memory => resources.memory.0,
            Self::EphemeralStorage => resources.ephemeral_storage.0,
            Self::Pods => resources.pods,
            Self::Extended(name) => resources.extended(name),
        }
    }

    pub(super) fn amount_mut<'a>(&self, resources: &'a mut Resources) -> &'a mut i64 {
        match self {
            Self::Cpu => &mut resources.cpu.0,
            Self::Memory => &mut resources.memory.0,
            Self::EphemeralStorage => &mut resources.ephemeral_storage.0,
            Self::Pods => &mut resources.pods,
            Self::Extended(name) => resources.extended.entry(name.clone()).or_default(),
        }
    }
}
