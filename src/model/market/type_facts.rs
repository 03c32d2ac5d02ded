//! Instance types as EC2 describes them.

use serde::{Deserialize, Serialize};

/// The description of an instance type by EC2.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of a table of facts")]
pub struct TypeFacts {
    /// Architectures as EC2 spells them (`x86_64`, `arm64`, `arm64_mac`).
    pub architectures: Vec<String>,
    /// vCPUs.
    pub vcpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Manufacturer of the processor, as EC2 spells it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu_manufacturer: String,
    /// Sustained clock speed in MHz; 0 if unknown.
    pub clock_mhz: i64,
    /// `nitro` or `xen`; empty on bare metal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hypervisor: String,
    /// Whether it runs without a hypervisor.
    pub bare_metal: bool,
    /// Whether it supports Nitro Enclaves.
    pub enclaves: bool,
    /// Whether it encrypts traffic in transit within a VPC.
    pub encrypts_in_transit: bool,
    /// Supported usage classes: `on-demand`, `spot`, `capacity-block`.
    pub usage: Vec<String>,
    /// Network interfaces on the default card.
    pub enis: i64,
    /// IPv4 addresses on each of them.
    pub ips_per_eni: i64,
    /// Elastic fabric adapters.
    pub efas: i64,
    /// Baseline network bandwidth in Mbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mbps: Option<i64>,
    /// Maximum EBS bandwidth in Mbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_mbps: Option<i64>,
    /// Whether EBS optimization is always on.
    pub ebs_optimized: bool,
    /// Maximum number of EBS volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_attachments: Option<i64>,
    /// Whether network interfaces and NVMe disks count against that number.
    pub ebs_shared: bool,
    /// Local NVMe storage in GB (10⁹ bytes).
    pub nvme_gb: i64,
    /// GPUs, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<DeviceFacts>,
    /// Devices of AWS Neuron, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub neuron: Vec<DeviceFacts>,
    /// Other accelerators, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<DeviceFacts>,
    /// FPGAs, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fpgas: Vec<DeviceFacts>,
    /// Media accelerators, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<DeviceFacts>,
}

/// A model of device in an instance type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    /// Name.
    pub name: String,
    /// Manufacturer.
    pub manufacturer: String,
    /// Number of devices; 0 for a fraction of one.
    pub count: i64,
    /// Cores of each.
    pub cores: i64,
    /// MiB of each.
    pub memory_mib: i64,
}
