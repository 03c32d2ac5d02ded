//! Faults that an agent beside the kubelet reports for a node that may be Ready.
//!
//! The node monitoring agent of EKS sets these conditions. It checks accelerators, disks, the network,
//! the kernel and the container runtime. Node repair of Karpenter uses the same conditions.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A faulty part of a node, by the condition that is `False`; `Unknown` is no fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeFault {
    /// A GPU or another accelerator.
    #[serde(rename = "AcceleratedHardwareReady")]
    AcceleratedHardware,
    /// A disk, or a file system on it.
    #[serde(rename = "StorageReady")]
    Storage,
    /// A network interface, or its setup.
    #[serde(rename = "NetworkingReady")]
    Networking,
    /// The kernel, or a process that it cannot kill.
    #[serde(rename = "KernelReady")]
    Kernel,
    /// The container runtime.
    #[serde(rename = "ContainerRuntimeReady")]
    ContainerRuntime,
}

impl NodeFault {
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

    /// Returns the reason for a repair, as counters and messages name it.
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

    /// Returns the toleration duration of Karpenter's node repair. It is shorter for accelerators, which
    /// do not recover by themselves.
    #[must_use]
    pub const fn toleration_duration(self) -> SignedDuration {
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
    fn faults_use_condition_names_and_karpenter_tolerations() {
        for fault in NodeFault::ALL {
            let written = serde_json::to_value(fault).expect("it is written");
            assert_eq!(written, fault.condition());
            let minutes = if fault.condition() == "AcceleratedHardwareReady" { 10 } else { 30 };
            assert_eq!(
                fault.toleration_duration(),
                SignedDuration::from_mins(minutes),
                "{fault:?}"
            );
            assert!(fault.reason().ends_with("-not-ready"), "{fault:?}");
        }
    }
}
