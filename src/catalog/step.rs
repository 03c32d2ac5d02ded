//! One step of an allocation: which part of it, of which resource, by how much, and why.

use super::formula::Formula;
use crate::units::{Bytes, MilliCpu, ResourceName, Resources};

/// Which part of an [`Allocation`](super::Allocation) a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What the node reports as capacity.
    Capacity,
    /// Kept for Kubernetes.
    KubeReserved,
    /// Kept for the system.
    SystemReserved,
    /// Kept below the eviction threshold.
    Eviction,
    /// Memory set aside as huge pages.
    HugePages,
    /// What remains.
    Allocatable,
}

impl Part {
    /// Returns the part in words.
    #[must_use]
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

/// A resource that a step adds to or takes from.
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
    /// Returns the name that Kubernetes gives the resource.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Pods => "pods",
            Self::Extended(name) => name.as_str(),
        }
    }

    /// Writes `amount` of the resource as Kubernetes does.
    #[must_use]
    pub fn show(&self, amount: i64) -> String {
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

/// One step of the arithmetic: an amount that one part of the allocation grows or shrinks by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationStep {
    /// The part.
    pub part: Part,
    /// The resource.
    pub resource: NodeResource,
    /// By how much; negative where an earlier step of the same part is cut.
    pub amount: i64,
    /// Where the amount comes from; shown in words with its numbers.
    pub formula: Formula,
}
