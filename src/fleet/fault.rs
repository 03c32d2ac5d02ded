//! What an agent beside the kubelet says of a node that is Ready.
//!
//! The node monitoring agent of EKS (and whoever else sets these conditions) looks at what the kubelet does not: drivers
//! of accelerators, disks, the network, the kernel, the container runtime. Karpenter repairs by the same conditions.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A part of a node that does not work, by the condition of the node that says so (`False`; `Unknown` says nothing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// A GPU or another accelerator.
    #[serde(rename = "AcceleratedHardwareReady")]
    AcceleratedHardware,
    /// A disk, or a file system on it.
    #[serde(rename = "StorageReady")]
    Storage,
    /// A network interface, or what sets it up.
    #[serde(rename = "NetworkingReady")]
    Networking,
    /// The kernel, or a process that it cannot end.
    #[serde(rename = "KernelReady")]
    Kernel,
    /// Whatever runs containers.
    #[serde(rename = "ContainerRuntimeReady")]
    ContainerRuntime,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::AcceleratedHardware,
        Self::Storage,
        Self::Networking,
        Self::Kernel,
        Self::ContainerRuntime,
    ];

    /// Returns the type of the condition of a node.
    #[must_use]
    pub const fn condition(self) -> &'static str {
        match self {
            Self::AcceleratedHardware => "AcceleratedHardwareReady",
            Self::Storage => "StorageReady",
            Self::Networking => "NetworkingReady",
            Self::Kernel => "KernelReady",
            Self::ContainerRuntime => "ContainerRuntimeReady",
        }
    }

    /// Returns why a machine is replaced that has it, as counters and messages name it.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::AcceleratedHardware => "accelerated-hardware-not-ready",
            Self::Storage => "storage-not-ready",
            Self::Networking => "networking-not-ready",
            Self::Kernel => "kernel-not-ready",
            Self::ContainerRuntime => "container-runtime-not-ready",
        }
    }

    /// Returns for how long it is tolerated at most, as Karpenter has it: an accelerator that fails does not mend itself.
    #[must_use]
    pub const fn tolerated(self) -> SignedDuration {
        match self {
            Self::AcceleratedHardware => SignedDuration::from_mins(10),
            Self::Storage | Self::Networking | Self::Kernel | Self::ContainerRuntime => {
                SignedDuration::from_mins(30)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_written_as_the_condition_that_says_so_and_tolerated_as_karpenter_does() {
        for fault in Fault::ALL {
            let written = serde_json::to_value(fault).expect("it is written");
            assert_eq!(written, fault.condition());
            let minutes = if fault.condition() == "AcceleratedHardwareReady" { 10 } else { 30 };
            assert_eq!(fault.tolerated(), SignedDuration::from_mins(minutes), "{fault:?}");
            assert!(fault.reason().ends_with("-not-ready"), "{fault:?}");
        }
    }
}
