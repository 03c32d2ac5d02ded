//! One step of the arithmetic from capacity to allocatable: its amount, and the formula behind it.
//!
//! A formula carries the numbers behind its amount. It explains and decides nothing; the text is
//! built only when it is displayed.

use std::fmt;

use super::node_resource::{AllocationPart, NodeResource};
use crate::model::desired::AmiFamily;
use crate::model::ids::NodeName;
use crate::model::units::Bytes;

/// Memory overhead assumed for the hypervisor, in thousandths of the memory (Karpenter's default).
pub(super) const VM_OVERHEAD_PER_MILLE: i64 = 75;

/// MiB that Graviton instances reserve for contiguous allocation.
pub(super) const GRAVITON_RESERVED_MIB: i64 = 64;

/// Number of IPv4 addresses in one delegated prefix.
pub(super) const PREFIX_ADDRESSES: i64 = 16;

/// Memory that Kubernetes reserves on every node, and for each pod the node may run, in MiB.
pub(super) const KUBE_MEMORY_BASE_MIB: i64 = 255;
pub(super) const KUBE_MEMORY_POD_MIB: i64 = 11;

/// One step of the arithmetic: the amount by which a part of the allocation grows or shrinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationStep {
    /// The part.
    pub part: AllocationPart,
    /// The resource.
    pub resource: NodeResource,
    /// The amount; negative where it reduces an earlier step of the same part.
    pub amount: i64,
    /// The source of the amount.
    pub formula: Formula,
}

/// The number of pods that a reservation is sized for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodCount {
    /// The number of network addresses, regardless of `maxPods`.
    Eni(i64),
    /// The node's pod limit.
    Actual(i64),
}

impl PodCount {
    /// Returns the number of pods.
    pub fn pods(self) -> i64 {
        match self {
            Self::Eni(pods) | Self::Actual(pods) => pods,
        }
    }
}

/// The source of an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Formula {
    /// vCPUs of the type.
    Vcpus(i64),
    /// Memory of the type, in MiB.
    StatedMemory {
        /// MiB.
        mib: i64,
    },
    /// Memory that Graviton instances reserve.
    Graviton,
    /// Memory overhead assumed for the hypervisor.
    VmOverhead {
        /// MiB before the overhead.
        of_mib: i64,
    },
    /// NVMe disks as RAID 0.
    InstanceStore {
        /// GB (10⁹ bytes) of all disks.
        gb: i64,
    },
    /// The volume that the node class declares.
    DeclaredVolume,
    /// The volume of the AMI family.
    FamilyVolume(AmiFamily),
    /// Pods that network addresses allow.
    EniPods {
        /// Interfaces on the default card.
        enis: i64,
        /// IPv4 addresses on each.
        ips_per_eni: i64,
    },
    /// Pods that delegated prefixes allow.
    PrefixPods {
        /// Interfaces on the default card.
        enis: i64,
        /// Prefixes on each; one address is the interface's own.
        ips_per_eni: i64,
        /// Maximum that EKS recommends for this number of vCPUs.
        most: i64,
    },
    /// `maxPods` as declared.
    MaxPods(u32),
    /// Pods of a family that does not count addresses.
    FamilyPods(AmiFamily),
    /// `podsPerCore` allows fewer.
    PodsPerCore {
        /// Pods for each core.
        per_core: u32,
        /// vCPUs.
        vcpus: i64,
    },
    /// EKS allows fewer in a managed node group.
    EksPods {
        /// Maximum number of pods.
        most: i64,
        /// vCPUs.
        vcpus: i64,
    },
    /// Interfaces of the default card that are adapters have no addresses for pods.
    AdapterPods {
        /// Maximum number of pods.
        most: i64,
        /// Adapters on the default card.
        adapters: i64,
    },
    /// Number of devices of the type.
    Devices(i64),
    /// Number of adapters that the node class declares.
    DeclaredAdapters(i64),
    /// Addresses that a Windows node assigns to pods.
    PrivateIpv4 {
        /// IPv4 addresses on each interface.
        ips_per_eni: i64,
    },
    /// CPU that Kubernetes reserves in each band of cores, in thousandths of a core.
    KubeCpu([i64; 4]),
    /// Memory that Kubernetes reserves for the node and its pods.
    KubeMemory(PodCount),
    /// Disk that Kubernetes reserves.
    KubeStorage,
    /// Huge pages preconfigured on nodes of the type.
    HugePages,
    /// Amounts that running nodes report.
    Measured {
        /// A node that reports the amount.
        node: NodeName,
        /// Number of nodes observed.
        nodes: u32,
        /// The amount that the formulas give.
        model: String,
    },
    /// `kubeReserved` as declared.
    KubeReserved,
    /// `systemReserved` as declared.
    SystemReserved,
    /// The kubelet's default memory threshold.
    EvictionMemory,
    /// The kubelet's default disk threshold.
    EvictionStorage {
        /// Bytes that the share applies to.
        of: i64,
    },
    /// `evictionHard` as declared, as an amount.
    EvictionAmount,
    /// `evictionHard` as declared, as a share.
    EvictionShare {
        /// Thousandths of a percent.
        milli_percent: u32,
        /// Bytes that the share applies to.
        of: i64,
    },
    /// `evictionHard` of 100 %, which the kubelet reads as "never".
    EvictionDisabled,
    /// Capacity minus reservations.
    Remainder {
        /// Capacity.
        capacity: String,
        /// Reserved amounts by part, without zeros.
        reserved: Vec<(AllocationPart, String)>,
        /// The reservations exceed the capacity.
        overdrawn: bool,
    },
}

impl Formula {
    /// Returns the origin of the formula, such as the AMI family or the kubelet settings.
    pub fn source(&self) -> &'static str {
        match self {
            Self::Vcpus(_)
            | Self::StatedMemory { .. }
            | Self::InstanceStore { .. }
            | Self::EniPods { .. }
            | Self::Devices(_)
            | Self::PrivateIpv4 { .. } => "EC2 instance type",
            Self::Graviton | Self::VmOverhead { .. } => "Karpenter's estimate",
            Self::DeclaredVolume
            | Self::PrefixPods { .. }
            | Self::AdapterPods { .. }
            | Self::DeclaredAdapters(_) => "node class",
            Self::FamilyVolume(_) | Self::FamilyPods(_) => "AMI family",
            Self::KubeCpu(_) | Self::KubeMemory(_) | Self::KubeStorage => "EKS node bootstrap",
            Self::MaxPods(_)
            | Self::PodsPerCore { .. }
            | Self::KubeReserved
            | Self::SystemReserved
            | Self::EvictionAmount
            | Self::EvictionShare { .. }
            | Self::EvictionDisabled => "kubelet settings",
            Self::EvictionMemory | Self::EvictionStorage { .. } => "kubelet default",
            Self::HugePages => "kubelet",
            Self::EksPods { .. } => "EKS",
            Self::Measured { .. } => "observed",
            Self::Remainder { .. } => "the above",
        }
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpus(n) => write!(f, "{n} vCPU"),
            Self::StatedMemory { mib } => write!(f, "{mib} MiB"),
            Self::Graviton => write!(f, "{GRAVITON_RESERVED_MIB} MiB reserved by Graviton"),
            Self::VmOverhead { of_mib } => write!(
                f,
                "hypervisor: {} of {of_mib} MiB, rounded up",
                Percent(VM_OVERHEAD_PER_MILLE * 100)
            ),
            Self::InstanceStore { gb } => write!(f, "instance store as RAID 0: {gb} GB"),
            Self::DeclaredVolume => f.write_str("volume of the kubelet's data"),
            Self::FamilyVolume(family) => write!(f, "default volume of {}", family_name(*family)),
            Self::EniPods { enis, ips_per_eni } => {
                write!(f, "{enis} network interfaces × ({ips_per_eni} addresses − 1) + 2")
            }
            Self::PrefixPods { enis, ips_per_eni, most } => write!(
                f,
                "prefix delegation: {enis} network interfaces × ({ips_per_eni} addresses − 1) × \
                 {PREFIX_ADDRESSES} + 2, at most {most}"
            ),
            Self::MaxPods(n) => write!(f, "maxPods: {n}"),
            Self::FamilyPods(family) => write!(f, "default of {}", family_name(*family)),
            Self::PodsPerCore { per_core, vcpus } => {
                write!(f, "cut to podsPerCore: {per_core} × {vcpus} vCPU")
            }
            Self::EksPods { most, vcpus } => {
                write!(f, "cut to the {most} pods of managed node groups for {vcpus} vCPU")
            }
            Self::AdapterPods { most, adapters } => {
                write!(f, "cut to {most}, without the addresses of EFA interfaces: {adapters}")
            }
            Self::Devices(n) => write!(f, "the type has {n}"),
            Self::DeclaredAdapters(n) => write!(f, "networkInterfaces has {n}"),
            Self::PrivateIpv4 { ips_per_eni } => write!(f, "{ips_per_eni} addresses − 1"),
            Self::KubeCpu(bands) => f.write_str(&kube_cpu_formula(bands)),
            Self::KubeMemory(count) => f.write_str(&kube_memory_formula(*count)),
            Self::KubeStorage => f.write_str("a fixed amount"),
            Self::HugePages => f.write_str("memory that huge pages take"),
            Self::Measured { node, nodes, model } => {
                let plural = if *nodes == 1 { "node" } else { "nodes" };
                write!(f, "minimum of {nodes} {plural}, such as {node}; formula: {model}")
            }
            Self::KubeReserved => f.write_str("kubeReserved"),
            Self::SystemReserved => f.write_str("systemReserved"),
            Self::EvictionMemory => f.write_str("memory.available below a fixed amount"),
            Self::EvictionStorage { of } => {
                write!(f, "nodefs.available below 10 % of {}, rounded up", Bytes(*of))
            }
            Self::EvictionAmount => f.write_str("evictionHard"),
            Self::EvictionShare { milli_percent, of } => write!(
                f,
                "evictionHard: {} of {}, rounded up",
                Percent(i64::from(*milli_percent)),
                Bytes(*of)
            ),
            Self::EvictionDisabled => f.write_str("evictionHard: 100 %, which means never"),
            Self::Remainder { capacity, reserved, overdrawn } => {
                write!(f, "capacity {capacity}")?;
                for (part, amount) in reserved {
                    write!(f, " − {} {amount}", part.as_str())?;
                }
                if *overdrawn { f.write_str(", which leaves nothing") } else { Ok(()) }
            }
        }
    }
}

fn kube_cpu_formula(bands: &[i64; 4]) -> String {
    let shares = ["6 % of core 1", "1 % of core 2", "0.5 % of cores 3 and 4", "0.25 % of the rest"];
    let reserved = shares.iter().zip(bands).filter(|(_, milli)| **milli > 0);
    let words: Vec<String> = reserved.map(|(share, milli)| format!("{share} ({milli}m)")).collect();
    words.join(" + ")
}

fn kube_memory_formula(count: PodCount) -> String {
    let (pods, why) = match count {
        PodCount::Eni(pods) => (pods, "that have an address"),
        PodCount::Actual(pods) => (pods, "that the node admits"),
    };
    format!("{KUBE_MEMORY_BASE_MIB} MiB + {KUBE_MEMORY_POD_MIB} MiB × {pods} pods {why}")
}

/// A percentage in thousandths of a percent, for display.
struct Percent(i64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:03}", self.0 % 1000);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{} %", self.0 / 1000),
            digits => write!(f, "{}.{digits} %", self.0 / 1000),
        }
    }
}

fn family_name(family: AmiFamily) -> &'static str {
    match family {
        AmiFamily::Al2 => "Amazon Linux 2",
        AmiFamily::Al2023 => "Amazon Linux 2023",
        AmiFamily::Bottlerocket => "Bottlerocket",
        AmiFamily::Windows => "Windows",
        AmiFamily::Ubuntu => "Ubuntu",
        AmiFamily::Custom => "a custom image",
    }
}
