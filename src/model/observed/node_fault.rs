//! Node faults, reported as conditions by an agent other than the kubelet. A faulty node may be
//! Ready.
//!
//! The EKS node monitoring agent sets these conditions. It checks accelerators, disks, the network,
//! the kernel and the container runtime. Karpenter's node repair uses the same conditions.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A faulty component of a node: its condition is `False`. The status `Unknown` does not count as a
/// fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeFault {
    /// Fault of a GPU or another accelerator.
    #[serde(rename = "AcceleratedHardwareReady")]
    AcceleratedHardware,
    /// Fault of a disk or file system.
    #[serde(rename = "StorageReady")]
    Storage,
    /// Fault of a network interface or its configuration.
    #[serde(rename = "NetworkingReady")]
    Networking,
    /// Fault of the kernel, such as an unkillable process.
    #[serde(rename = "KernelReady")]
    Kernel,
    /// Fault of the container runtime.
    #[serde(rename = "ContainerRuntimeReady")]
    ContainerRuntime,
}

impl NodeFault {
    /// All faults.
    pub const ALL: [Self; 5] = [
        Self::AcceleratedHardware,
        Self::Storage,
        Self::Networking,
        Self::Kernel,
        Self::ContainerRuntime,
    ];

    /// Returns the type of the node condition.
    pub const fn condition(self) -> &'static str {
        match self {
            Self::AcceleratedHardware => "AcceleratedHardwareReady",
            Self::Storage => "StorageReady",
            Self::Networking => "NetworkingReady",
            Self::Kernel => "KernelReady",
            Self::ContainerRuntime => "ContainerRuntimeReady",
        }
    }

    /// Returns the repair reason in counters and messages.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::AcceleratedHardware => "accelerated-hardware-not-ready",
            Self::Storage => "storage-not-ready",
            Self::Networking => "networking-not-ready",
            Self::Kernel => "kernel-not-ready",
            Self::ContainerRuntime => "container-runtime-not-ready",
        }
    }

    /// Returns the toleration duration of Karpenter's node repair. It is shorter for accelerators,
    /// because they do not recover by themselves.
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
