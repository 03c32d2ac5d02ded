//! Instance types with their offerings, built from snapshot rows: labels and extended resources.
//!
//! Labels are Karpenter's well-known ones, value for value, because workloads and pools select on
//! them: karpenter-provider-aws, `pkg/providers/instancetype/types.go`. Labels of an offering
//! (zone, zone id, region, capacity type) are not included, because a type has many offerings.

use std::collections::BTreeMap;

use super::snapshot::{DeviceRow, InstanceTypeRow};
use crate::model::ids::{InstanceTypeName, LabelKey, LabelValue, Labels, ZoneId, ZoneName};
use crate::model::market::CapacityType;
use crate::model::requirement::key;
use crate::model::units::{MicroUsd, ResourceName};

/// An instance type: the facts from which labels and allocatable follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceType {
    /// Name.
    pub name: InstanceTypeName,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// vCPUs.
    pub vcpus: i64,
    /// Memory as EC2 states it, in MiB.
    pub memory_mib: i64,
    /// Network interfaces on the default card.
    pub enis: i64,
    /// Network cards; 0 if unknown.
    pub cards: i64,
    /// Number of network interfaces that each further card has at least. For types as EC2 describes
    /// them, the default card counts too, because it may have another index than 0.
    pub enis_of_other_cards: i64,
    /// IPv4 addresses on each interface.
    pub ips_per_eni: i64,
    /// Local NVMe storage in GB (10⁹ bytes); 0 where there is none.
    pub local_nvme_gb: i64,
    /// Maximum number of EBS volumes, and whether network interfaces and NVMe disks count against
    /// it.
    pub ebs_attachments: Option<(i64, bool)>,
    /// Extended resources of a node of this type, such as `nvidia.com/gpu`.
    pub extended: BTreeMap<ResourceName, i64>,
    /// The type runs without a hypervisor.
    pub bare_metal: bool,
    /// The type has costly hardware that most pods do not use (GPUs, accelerators).
    pub has_accelerator: bool,
    /// Labels that each node of the type has (architecture, type, `karpenter.k8s.aws/instance-…`).
    pub labels: Labels,
    /// The ways to buy it, by zone name and capacity type.
    pub offerings: Vec<Offering>,
}

/// One way to buy an instance type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offering {
    /// Zone name.
    pub zone: ZoneName,
    /// Zone id.
    pub zone_id: ZoneId,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Price per hour; `None` if unknown, and then the offering is never launched.
    pub price: Option<MicroUsd>,
    /// The price is an estimate (spot at its on-demand price).
    pub estimated: bool,
}

impl Offering {
    /// Returns whether the price is an estimate for a node with these labels. List prices are those
    /// of Linux, and exclude the Windows license.
    pub fn is_estimate_for(&self, labels: &Labels) -> bool {
        let windows = labels.get(key::OS).is_some_and(|os| os.as_str() == "windows");
        self.estimated || windows && self.capacity_type != CapacityType::Reserved
    }
}

/// Extended resources that nodes of a type report.
pub(super) mod resource {
    /// NVIDIA GPUs.
    pub(in crate::catalog) const NVIDIA_GPU: &str = "nvidia.com/gpu";
    /// AMD GPUs.
    pub(super) const AMD_GPU: &str = "amd.com/gpu";
    /// Gaudi accelerators.
    pub(super) const GAUDI: &str = "habana.ai/gaudi";
    /// Inferentia and Trainium devices.
    pub(super) const NEURON: &str = "aws.amazon.com/neuron";
    /// Cores of those devices.
    pub(super) const NEURON_CORE: &str = "aws.amazon.com/neuroncore";
    /// Elastic fabric adapters.
    pub(in crate::catalog) const EFA: &str = "vpc.amazonaws.com/efa";
    /// Branch interfaces, for security groups for pods.
    pub(super) const POD_ENI: &str = "vpc.amazonaws.com/pod-eni";
    /// Private IPv4 addresses, on Windows.
    pub(in crate::catalog) const PRIVATE_IPV4: &str = "vpc.amazonaws.com/PrivateIPv4Address";
}

/// Shares equal strings between types: a region has some 35,000 labels with few distinct values.
#[derive(Debug, Default)]
pub(super) struct Interner {
    keys: BTreeMap<&'static str, LabelKey>,
    values: BTreeMap<String, LabelValue>,
}

impl Interner {
    fn key(&mut self, suffix: &'static str) -> LabelKey {
        // Suffixes of instance labels contain no slash, so the two kinds of key cannot collide.
        let full = |key: &str| {
            if key.contains('/') {
                key.into()
            } else {
                format!("{}{key}", key::INSTANCE_PREFIX).into()
            }
        };
        self.keys.entry(suffix).or_insert_with(|| full(suffix)).clone()
    }

    fn value(&mut self, text: String) -> LabelValue {
        if let Some(known) = self.values.get(&text) {
            return known.clone();
        }
        let value = LabelValue::from(text.as_str());
        self.values.insert(text, value.clone());
        value
    }

    fn labels(&mut self, pairs: Vec<(&'static str, String)>) -> Labels {
        pairs.into_iter().map(|(k, v)| (self.key(k), self.value(v))).collect()
    }
}

/// Returns the instance type of `row`, without offerings.
pub(super) fn instance_type(row: &InstanceTypeRow<'_>, interner: &mut Interner) -> InstanceType {
    let cards = row.cards.unwrap_or(1);
    InstanceType {
        name: row.name.into(),
        arch: row.arch.to_owned(),
        vcpus: row.vcpu,
        memory_mib: row.mem_mib,
        enis: row.enis,
        cards,
        enis_of_other_cards: (row.enis_total - row.enis).max(0) / (cards - 1).max(1),
        ips_per_eni: row.ips_per_eni,
        local_nvme_gb: row.nvme_gb,
        ebs_attachments: row.ebs_attach.map(|most| (most, row.ebs_attach_kind == "shared")),
        extended: extended(row),
        bare_metal: row.bare_metal,
        has_accelerator: [&row.gpus, &row.neuron, &row.accel, &row.fpgas, &row.media]
            .iter()
            .any(|devices| !devices.is_empty()),
        labels: interner.labels(labels(row)),
        offerings: Vec::new(),
    }
}

/// Returns whether nodes of this type can join a Kubernetes cluster. Mac instances run neither
/// Linux nor Windows.
pub(super) fn runs_kubernetes(row: &InstanceTypeRow<'_>) -> bool {
    !row.raw_arch.iter().any(|arch| arch.ends_with("_mac"))
}

fn labels(row: &InstanceTypeRow<'_>) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        (key::ARCH, row.arch.to_owned()),
        (key::OS, "linux".to_owned()),
        (key::INSTANCE_TYPE, row.name.to_owned()),
        ("karpenter.k8s.aws/nitro-sandbox", row.enclaves.to_string()),
        // Bare metal has no hypervisor; its label has an empty value.
        ("hypervisor", row.hypervisor.to_owned()),
        ("encryption-in-transit-supported", row.encrypt_transit.to_string()),
        ("family", row.family.to_owned()),
        ("size", row.size.to_owned()),
        ("cpu", row.vcpu.to_string()),
        ("cpu-sustained-clock-speed-mhz", row.clock_mhz.to_string()),
        ("memory", row.mem_mib.to_string()),
        ("capability-flex", row.flex.to_string()),
        ("tenancy", "default".to_owned()),
    ];
    let mut known = |key, value: Option<String>| labels.extend(value.map(|value| (key, value)));
    known("category", row.category.map(str::to_owned));
    known("generation", row.generation.map(|n| n.to_string()));
    known("cpu-manufacturer", Some(kebab(row.cpu_mfr)).filter(|mfr| !mfr.is_empty()));
    let optimized = row.ebs_max_mbps.filter(|_| row.ebs_opt == "default");
    known("ebs-bandwidth", optimized.map(|mbps| mbps.to_string()));
    known("network-bandwidth", row.net_mbps.map(|mbps| mbps.to_string()));
    known("local-nvme", Some(row.nvme_gb).filter(|gb| *gb > 0).map(|gb| gb.to_string()));
    // One label cannot describe two models, so a type with two has no GPU labels.
    if let [gpu] = row.gpus.as_slice() {
        known("gpu-name", Some(kebab(gpu.name)));
        known("gpu-manufacturer", Some(kebab(gpu.mfr)));
        known("gpu-count", Some(gpu.count.to_string()));
        known("gpu-memory", Some(gpu.mem_mib.to_string()));
    }
    if let Some((device, maker)) = accelerator(row) {
        known("accelerator-name", Some(kebab(device.name)));
        known("accelerator-manufacturer", Some(kebab(maker)));
        known("accelerator-count", Some(device.count.to_string()));
    }
    labels
}

/// Returns the only accelerator model that is not a GPU, and its manufacturer.
fn accelerator<'a, 'b>(row: &'b InstanceTypeRow<'a>) -> Option<(&'b DeviceRow<'a>, &'b str)> {
    match (row.neuron.as_slice(), row.accel.as_slice()) {
        ([device], _) => Some((device, "aws")),
        ([], [device]) => Some((device, device.mfr)),
        _ => None,
    }
}

fn extended(row: &InstanceTypeRow<'_>) -> BTreeMap<ResourceName, i64> {
    let gpus = |maker: &str| row.gpus.iter().filter(|g| g.mfr == maker).map(|g| g.count).sum();
    let first_cores = row.neuron.first().map_or(0, |device| device.count * device.cores);
    [
        (resource::NVIDIA_GPU, gpus("NVIDIA")),
        (resource::AMD_GPU, gpus("AMD")),
        (resource::GAUDI, gpus("Habana")),
        (resource::NEURON, row.neuron.iter().map(|device| device.count).sum()),
        (resource::NEURON_CORE, first_cores),
        (resource::EFA, row.efas),
        (resource::POD_ENI, row.branch_enis),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| (name.into(), count))
    .collect()
}

fn kebab(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::super::snapshot;
    use super::*;
    use crate::model::requirement::is_well_known;

    /// Returns the labels of the type `name`, instance labels without their prefix.
    fn labels_of(name: &str) -> BTreeMap<String, String> {
        let text = snapshot::types_text().expect("inflates");
        let rows = snapshot::parse_types(&text).expect("parses");
        let row = rows.iter().find(|row| row.name == name).expect("known");
        let labels = instance_type(row, &mut Interner::default()).labels;
        let short = |k: &LabelKey| k.as_str().trim_start_matches(key::INSTANCE_PREFIX).to_owned();
        labels.iter().map(|(k, v)| (short(k), v.to_string())).collect()
    }

    #[test]
    fn labels_are_those_that_karpenter_gives() {
        for (name, expected) in [
            (
                "m5.large",
                "capability-flex=false category=m cpu=2 cpu-manufacturer=intel \
                 cpu-sustained-clock-speed-mhz=3100 ebs-bandwidth=4750 \
                 encryption-in-transit-supported=false family=m5 generation=5 hypervisor=nitro \
                 karpenter.k8s.aws/nitro-sandbox=false kubernetes.io/arch=amd64 \
                 kubernetes.io/os=linux memory=8192 network-bandwidth=750 \
                 node.kubernetes.io/instance-type=m5.large size=large tenancy=default",
            ),
            (
                "c1.medium",
                "capability-flex=false category=c cpu=2 cpu-manufacturer=intel \
                 cpu-sustained-clock-speed-mhz=0 encryption-in-transit-supported=false family=c1 \
                 generation=1 hypervisor=xen karpenter.k8s.aws/nitro-sandbox=false \
                 kubernetes.io/arch=amd64 kubernetes.io/os=linux memory=1740 \
                 node.kubernetes.io/instance-type=c1.medium size=medium tenancy=default",
            ),
            (
                "g6f.large",
                "capability-flex=false category=g cpu=2 cpu-manufacturer=amd \
                 cpu-sustained-clock-speed-mhz=3400 ebs-bandwidth=5000 \
                 encryption-in-transit-supported=true family=g6f generation=6 gpu-count=0 \
                 gpu-manufacturer=nvidia gpu-memory=2861 gpu-name=l4 hypervisor=nitro \
                 karpenter.k8s.aws/nitro-sandbox=false kubernetes.io/arch=amd64 \
                 kubernetes.io/os=linux local-nvme=100 memory=8192 network-bandwidth=1500 \
                 node.kubernetes.io/instance-type=g6f.large size=large tenancy=default",
            ),
        ] {
            let found: Vec<String> =
                labels_of(name).iter().map(|(key, value)| format!("{key}={value}")).collect();
            assert_eq!(found.join(" "), expected);
        }
    }

    #[test]
    fn unusual_names_and_devices_have_their_labels() {
        for (name, key, expected) in [
            ("inf2.xlarge", "category", Some("inf")),
            ("inf2.xlarge", "accelerator-name", Some("inferentia2")),
            ("inf2.xlarge", "accelerator-manufacturer", Some("aws")),
            ("trn2.48xlarge", "accelerator-count", Some("16")),
            ("dl2q.24xlarge", "accelerator-name", Some("qualcomm-ai100")),
            ("dl2q.24xlarge", "accelerator-manufacturer", Some("qualcomm")),
            ("g7e.2xlarge", "gpu-name", Some("rtx-pro-server-6000")),
            ("u-3tb1.56xlarge", "category", Some("u")),
            ("u-3tb1.56xlarge", "generation", Some("1")),
            ("m7i-flex.large", "capability-flex", Some("true")),
            ("m7i-flex.large", "family", Some("m7i-flex")),
            ("m7i-flex.large", "generation", Some("7")),
            ("a1.metal", "hypervisor", Some("")),
            ("f2.6xlarge", "accelerator-name", None),
            ("m5.large", "gpu-name", None),
            ("m5.large", "local-nvme", None),
            ("d2.xlarge", "local-nvme", None),
            ("m1.small", "ebs-bandwidth", None),
        ] {
            let labels = labels_of(name);
            assert_eq!(labels.get(key).map(String::as_str), expected, "{name} {key}");
        }
    }

    #[test]
    fn every_label_is_well_known_with_a_valid_value() {
        let text = snapshot::types_text().expect("inflates");
        let mut interner = Interner::default();
        for row in snapshot::parse_types(&text).expect("parses").iter().filter(|r| !r.partial) {
            for (key, value) in instance_type(row, &mut interner).labels {
                assert!(is_well_known(key.as_str()), "{key}");
                let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                assert!(value.as_str().len() <= 63 && value.as_str().chars().all(fits), "{value}");
            }
        }
    }

    #[test]
    fn devices_mark_a_type_as_accelerated() {
        let text = snapshot::types_text().expect("inflates");
        let rows = snapshot::parse_types(&text).expect("parses");
        for (name, expected) in [
            ("m5.large", false),
            ("g6f.large", true),
            ("inf2.xlarge", true),
            ("f2.6xlarge", true),
            ("vt1.3xlarge", true),
            ("dl2q.24xlarge", true),
        ] {
            let row = rows.iter().find(|row| row.name == name).expect("known");
            let kind = instance_type(row, &mut Interner::default());
            assert_eq!(kind.has_accelerator, expected, "{name}");
        }
    }
}
