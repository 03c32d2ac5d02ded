//! Instance types as described by EC2.

use serde::{Deserialize, Serialize};

/// Description of an instance type by EC2.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of a table of facts")]
pub struct TypeFacts {
    /// Architectures in EC2 spelling (`x86_64`, `arm64`, `arm64_mac`).
    pub architectures: Vec<String>,
    /// Number of vCPUs.
    pub vcpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Manufacturer of the processor, in EC2 spelling.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu_manufacturer: String,
    /// Sustained clock speed in MHz; 0 if unknown.
    pub clock_mhz: i64,
    /// `nitro` or `xen`; empty on bare metal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hypervisor: String,
    /// True for bare metal, without a hypervisor.
    pub bare_metal: bool,
    /// True if Nitro Enclaves are supported.
    pub enclaves: bool,
    /// True if traffic within a VPC is encrypted in transit.
    pub encrypts_in_transit: bool,
    /// Supported usage classes: `on-demand`, `spot`, `capacity-block`.
    pub usage: Vec<String>,
    /// Number of network interfaces on the default network card.
    pub enis: i64,
    /// Number of network cards; 0 if unknown.
    pub cards: i64,
    /// Least number of network interfaces on a network card.
    pub enis_per_card: i64,
    /// Number of IPv4 addresses per network interface.
    pub ips_per_eni: i64,
    /// Number of Elastic Fabric Adapters.
    pub efas: i64,
    /// Baseline network bandwidth in Mbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mbps: Option<i64>,
    /// Maximum EBS bandwidth in Mbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_mbps: Option<i64>,
    /// True if EBS optimization is always on.
    pub ebs_optimized: bool,
    /// Maximum number of EBS volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_attachments: Option<i64>,
    /// True if network interfaces and NVMe disks count against `ebs_attachments`.
    pub ebs_shared: bool,
    /// Local NVMe storage in GB (10⁹ bytes).
    pub nvme_gb: i64,
    /// GPUs, by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<DeviceFacts>,
    /// AWS Neuron devices, by model.
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

/// A device model of an instance type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    /// Name of the model.
    pub name: String,
    /// Manufacturer.
    pub manufacturer: String,
    /// Number of devices; 0 for a fraction of a device.
    pub count: i64,
    /// Cores per device.
    pub cores: i64,
    /// Memory per device in MiB.
    pub memory_mib: i64,
}
