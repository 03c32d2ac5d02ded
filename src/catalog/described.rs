//! Instance types as EC2 describes them: those that are newer than the snapshot.
//!
//! The facts are the snapshot's, by the same names. Two of them no API tells, and they count as none:
//! branch interfaces (security groups for pods) and the room that a type's devices leave for others.

use serde::{Deserialize, Serialize};

use super::snapshot::{Device, Row};
use crate::ids::InstanceTypeName;

/// What EC2 says of an instance type.
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
    /// Who makes the processor, as EC2 spells it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu_manufacturer: String,
    /// Sustained clock speed in MHz; 0 where it is not told.
    pub clock_mhz: i64,
    /// `nitro` or `xen`; empty on bare metal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hypervisor: String,
    /// Whether it runs without a hypervisor.
    pub bare_metal: bool,
    /// Whether it has enclaves.
    pub enclaves: bool,
    /// Whether what it sends within a VPC is encrypted.
    pub encrypts_in_transit: bool,
    /// How it is sold: `on-demand`, `spot`, `capacity-block`.
    pub usage: Vec<String>,
    /// Network interfaces on the default card.
    pub enis: i64,
    /// IPv4 addresses on each of them.
    pub ips_per_eni: i64,
    /// Elastic fabric adapters.
    pub efas: i64,
    /// Baseline of its network in Mbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mbps: Option<i64>,
    /// Most of its way to EBS in Mbps, and whether that is always on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_mbps: Option<i64>,
    /// Whether EBS optimization is always on.
    pub ebs_optimized: bool,
    /// Most EBS volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebs_attachments: Option<i64>,
    /// Whether network interfaces and NVMe disks count against them.
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
    /// Who makes it.
    pub manufacturer: String,
    /// How many; 0 for a part of one.
    pub count: i64,
    /// Cores of each.
    pub cores: i64,
    /// MiB of each.
    pub memory_mib: i64,
}

impl TypeFacts {
    /// Returns why nodes of the type cannot be planned; `None` where they can.
    fn lacks(&self) -> Option<&'static str> {
        let Self { vcpus, memory_mib, enis, ips_per_eni, .. } = self;
        [
            (*vcpus > 0, "vCPUs"),
            (*memory_mib > 0, "memory"),
            (*enis > 0 && *ips_per_eni > 0, "network interfaces"),
            (self.arch().is_some(), "an architecture that runs Kubernetes"),
        ]
        .into_iter()
        .find_map(|(is_told, what)| (!is_told).then_some(what))
    }

    fn arch(&self) -> Option<&'static str> {
        let has = |arch: &str| self.architectures.iter().any(|own| own == arch);
        match (has("x86_64"), has("arm64")) {
            (true, _) => Some("amd64"),
            (false, true) => Some("arm64"),
            (false, false) => None,
        }
    }

    /// Returns the facts as the snapshot would state them; `None` where one that decides is missing.
    pub(super) fn row<'a>(&'a self, name: &'a InstanceTypeName) -> Option<Row<'a>> {
        if self.lacks().is_some() {
            return None;
        }
        let name = name.as_str();
        let (family, size) = name.split_once('.')?;
        let (category, generation) = scheme(family);
        let devices = |all: &'a [DeviceFacts]| all.iter().map(DeviceFacts::device).collect();
        Some(Row {
            name,
            family,
            size,
            category,
            generation,
            partial: false,
            flex: family.ends_with("-flex"),
            arch: self.arch()?,
            raw_arch: Vec::new(),
            vcpu: self.vcpus,
            mem_mib: self.memory_mib,
            cpu_mfr: &self.cpu_manufacturer,
            clock_mhz: self.clock_mhz,
            hypervisor: &self.hypervisor,
            bare_metal: self.bare_metal,
            enclaves: self.enclaves,
            encrypt_transit: self.encrypts_in_transit,
            usage: self.usage.iter().map(String::as_str).collect(),
            enis: self.enis,
            ips_per_eni: self.ips_per_eni,
            branch_enis: 0,
            efas: self.efas,
            net_mbps: self.network_mbps,
            ebs_max_mbps: self.ebs_mbps,
            ebs_opt: if self.ebs_optimized { "default" } else { "" },
            ebs_attach: self.ebs_attachments,
            ebs_attach_kind: if self.ebs_shared { "shared" } else { "dedicated" },
            nvme_gb: self.nvme_gb,
            gpus: devices(&self.gpus),
            neuron: devices(&self.neuron),
            accel: devices(&self.accelerators),
            fpgas: devices(&self.fpgas),
            media: devices(&self.media),
        })
    }
}

impl DeviceFacts {
    fn device(&self) -> Device<'_> {
        let Self { name, manufacturer, count, cores, memory_mib } = self;
        Device { name, mfr: manufacturer, count: *count, cores: *cores, mem_mib: *memory_mib }
    }
}

/// Returns category and generation of a family, as Karpenter reads them: the letters in front, and the
/// first number after them, but for that of terabytes (`u-3tb1` is `u` and 1, `p6-b200` is `p` and 6).
fn scheme(family: &str) -> (Option<&str>, Option<i64>) {
    let letters = |text: &str| text.bytes().take_while(u8::is_ascii_lowercase).count();
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (category, rest) = family.split_at(letters(family));
    let terabytes = rest.strip_prefix('-').and_then(|rest| {
        let (number, unit) = rest.split_at(digits(rest));
        if number.is_empty() { None } else { unit.strip_prefix("tb") }
    });
    let rest = terabytes.unwrap_or(rest);
    let generation = rest[..digits(rest)].parse().ok();
    if category.is_empty() || generation.is_none() {
        (None, None)
    } else {
        (Some(category), generation)
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot;
    use super::*;

    #[test]
    fn families_are_read_as_the_snapshot_states_them() {
        let text = snapshot::types_text().expect("inflates");
        let rows = snapshot::parse_types(&text).expect("parses");
        for row in rows.iter().filter(|row| !row.partial) {
            assert_eq!(scheme(row.family), (row.category, row.generation), "{}", row.name);
        }
    }

    #[test]
    fn what_lacks_a_fact_that_decides_is_no_type() {
        let whole = TypeFacts {
            architectures: vec!["i386".into(), "x86_64".into()],
            vcpus: 2,
            memory_mib: 4096,
            enis: 3,
            ips_per_eni: 10,
            ..TypeFacts::default()
        };
        let name = InstanceTypeName::from("z9.large");
        assert!(
            whole.row(&name).is_some_and(|row| row.arch == "amd64" && row.category == Some("z"))
        );
        for broken in [
            TypeFacts { vcpus: 0, ..whole.clone() },
            TypeFacts { memory_mib: 0, ..whole.clone() },
            TypeFacts { ips_per_eni: 0, ..whole.clone() },
            TypeFacts { architectures: vec!["arm64_mac".into()], ..whole.clone() },
        ] {
            assert!(broken.row(&name).is_none(), "{broken:?}");
        }
        assert!(whole.row(&"z9".into()).is_none(), "a name of another form");
    }
}
