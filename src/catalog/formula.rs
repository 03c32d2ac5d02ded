//! Where an amount of an allocation comes from, in words with its numbers.
//!
//! A formula carries the numbers that went into its amount. It explains and decides nothing; words
//! are only made when somebody reads them.

use std::fmt;

use super::allocation::{
    GRAVITON_RESERVED_MIB, KUBE_MEMORY_BASE_MIB, KUBE_MEMORY_POD_MIB, PREFIX_ADDRESSES,
    VM_OVERHEAD_PER_MILLE,
};
use super::step::Part;
use crate::ids::NodeName;
use crate::manifest::AmiFamily;
use crate::units::Bytes;

/// How many pods a reservation is sized for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodCount {
    /// As many as there are network addresses for, whatever `maxPods` says.
    Eni(i64),
    /// As many as the node admits.
    Actual(i64),
}

impl PodCount {
    /// Returns the number.
    #[must_use]
    pub fn pods(self) -> i64 {
        match self {
            Self::Eni(pods) | Self::Actual(pods) => pods,
        }
    }
}

/// Where an amount comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Formula {
    /// vCPUs of the type.
    Vcpus(i64),
    /// Memory of the type, in MiB.
    StatedMemory {
        /// MiB.
        mib: i64,
    },
    /// What Graviton machines set aside.
    Graviton,
    /// What the hypervisor is taken to keep.
    VmOverhead {
        /// MiB before.
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
    /// Pods that prefixes of addresses allow.
    PrefixPods {
        /// Interfaces on the default card.
        enis: i64,
        /// Prefixes on each, and one address of its own.
        ips_per_eni: i64,
        /// Most that EKS advises for so many vCPUs.
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
    /// Devices of the type.
    Devices(i64),
    /// Addresses that a Windows node hands out.
    PrivateIpv4 {
        /// IPv4 addresses on each interface.
        ips_per_eni: i64,
    },
    /// What Kubernetes keeps of each band of cores, in thousandths of a core.
    KubeCpu([i64; 4]),
    /// What Kubernetes keeps for so many pods.
    KubeMemory(PodCount),
    /// What Kubernetes keeps of the disk.
    KubeStorage,
    /// Huge pages that a node of the type comes with.
    HugePages,
    /// What nodes that run report.
    Measured {
        /// A node that reports it.
        node: NodeName,
        /// How many nodes were looked at.
        nodes: u32,
        /// What the rules would have said.
        model: String,
    },
    /// `kubeReserved` as declared.
    KubeReserved,
    /// `systemReserved` as declared.
    SystemReserved,
    /// The kubelet's default threshold of memory.
    EvictionMemory,
    /// The kubelet's default threshold of the disk.
    EvictionStorage {
        /// Bytes it is a share of.
        of: i64,
    },
    /// `evictionHard` as declared, as an amount.
    EvictionAmount,
    /// `evictionHard` as declared, as a share.
    EvictionShare {
        /// Thousandths of a percent.
        milli_percent: u32,
        /// Bytes it is a share of.
        of: i64,
    },
    /// `evictionHard` of 100 %, which the kubelet takes as "never".
    EvictionDisabled,
    /// What remains of the capacity.
    Remainder {
        /// Capacity.
        capacity: String,
        /// What is kept, by part, where it is not nothing.
        kept: Vec<(Part, String)>,
        /// Whether more is kept than there is.
        overdrawn: bool,
    },
}

impl Formula {
    /// Returns who says so.
    #[must_use]
    pub fn source(&self) -> &'static str {
        match self {
            Self::Vcpus(_)
            | Self::StatedMemory { .. }
            | Self::InstanceStore { .. }
            | Self::EniPods { .. }
            | Self::Devices(_)
            | Self::PrivateIpv4 { .. } => "EC2 instance type",
            Self::Graviton | Self::VmOverhead { .. } => "Karpenter's estimate",
            Self::DeclaredVolume | Self::PrefixPods { .. } => "node class",
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
            Self::Graviton => write!(f, "{GRAVITON_RESERVED_MIB} MiB that Graviton sets aside"),
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
            Self::Devices(n) => write!(f, "the type has {n}"),
            Self::PrivateIpv4 { ips_per_eni } => write!(f, "{ips_per_eni} addresses − 1"),
            Self::KubeCpu(bands) => f.write_str(&kept_of_cores(bands)),
            Self::KubeMemory(count) => {
                let (pods, why) = match count {
                    PodCount::Eni(pods) => (pods, "that have an address"),
                    PodCount::Actual(pods) => (pods, "that the node admits"),
                };
                write!(
                    f,
                    "{KUBE_MEMORY_BASE_MIB} MiB + {KUBE_MEMORY_POD_MIB} MiB × {pods} pods {why}"
                )
            }
            Self::KubeStorage => f.write_str("a fixed amount"),
            Self::HugePages => f.write_str("memory that huge pages take"),
            Self::Measured { node, nodes, model } => {
                let plural = if *nodes == 1 { "node" } else { "nodes" };
                write!(f, "the least of {nodes} {plural}, such as {node}; by the rules {model}")
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
            Self::Remainder { capacity, kept, overdrawn } => {
                write!(f, "capacity {capacity}")?;
                for (part, amount) in kept {
                    write!(f, " − {} {amount}", part.as_str())?;
                }
                if *overdrawn { f.write_str(", which leaves nothing") } else { Ok(()) }
            }
        }
    }
}

/// Writes what is kept of each band of cores.
fn kept_of_cores(bands: &[i64; 4]) -> String {
    let shares = ["6 % of core 1", "1 % of core 2", "0.5 % of cores 3 and 4", "0.25 % of the rest"];
    let kept = shares.iter().zip(bands).filter(|(_, milli)| **milli > 0);
    let words: Vec<String> = kept.map(|(share, milli)| format!("{share} ({milli}m)")).collect();
    words.join(" + ")
}

/// Thousandths of a percent, written as a percentage.
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
