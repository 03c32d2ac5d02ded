//! The typed catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::market::Places;
use super::measured::Measured;
use super::quota::Quotas;
use crate::ids::{InstanceTypeName, Labels, Region, ZoneId, ZoneName};
use crate::manifest::{AmiFamily, KubeletSettings, NodeClass, Pool};
use crate::requirement::key;
use crate::units::{MicroUsd, Resources};

/// What one region offers, and at what price.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// The region.
    pub region: Region,
    /// The zones that may be used, by name.
    pub zones: Vec<Zone>,
    /// Instance types offered in at least one of the zones, by name.
    pub types: BTreeMap<InstanceTypeName, InstanceType>,
    /// Where the prices come from.
    pub prices: PriceSource,
    /// What a reader of a plan should know: stand-in prices, assumed zone ids, types unpriced.
    pub warnings: Vec<String>,
    /// What nodes that run were seen to offer; empty until somebody looked.
    pub measured: Measured,
    /// What the account may run at once; `None`: not known.
    pub quotas: Option<Quotas>,
    /// Zones in which EC2 offers a type, as it said; `None`: nobody asked it.
    pub offered: Option<Arc<Places<BTreeSet<ZoneName>>>>,
}

/// An availability zone: the account's name for it, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Zone {
    /// Name, such as `us-east-1a`.
    pub name: ZoneName,
    /// Id, such as `use1-az6`.
    pub id: ZoneId,
    /// Whether the id was taken from the snapshot's account instead of being declared.
    pub assumed: bool,
}

/// A zone that a cluster may use, as its owner states it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneSetting {
    /// Name, such as `us-east-1a`.
    pub name: ZoneName,
    /// Id, such as `use1-az6`; `None`: as in the account the snapshot was taken in.
    pub id: Option<ZoneId>,
}

/// Where prices come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PriceSource {
    /// What the list is, such as `embedded list prices`.
    pub source: String,
    /// The region the prices are for.
    pub region: Region,
    /// The day the list was made.
    pub date: String,
    /// Whether they stand in for another region's.
    pub stand_in: bool,
}

/// How capacity is bought.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// At list price, until terminated.
    OnDemand,
    /// At the spot price, until reclaimed.
    Spot,
    /// From a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Returns the value of the label `karpenter.sh/capacity-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::Reserved => "reserved",
        }
    }
}

impl std::fmt::Display for CapacityType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// An instance type: the facts that labels and allocatable follow from.
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
    /// IPv4 addresses on each of them.
    pub ips_per_eni: i64,
    /// Local NVMe storage in GB (10⁹ bytes); 0 where there is none.
    pub local_nvme_gb: i64,
    /// Most EBS volumes, and whether network interfaces and NVMe disks count against it.
    pub ebs_attachments: Option<(i64, bool)>,
    /// Extended resources of a node of this type (`nvidia.com/gpu` and its like).
    pub extended: BTreeMap<crate::units::ResourceName, i64>,
    /// Whether it runs without a hypervisor.
    pub bare_metal: bool,
    /// Whether it has hardware that costs money and that most pods do not use (GPUs, accelerators).
    pub has_accelerator: bool,
    /// Labels that each node of the type has (architecture, type, `karpenter.k8s.aws/instance-…`).
    pub labels: Labels,
    /// Where and how it can be bought, by zone name and capacity type.
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
    /// Price per hour; `None`: not known, and such an offering is never launched.
    pub price: Option<MicroUsd>,
    /// Whether the price stands in for one that is not known (spot at its on-demand price).
    pub estimated: bool,
}

impl Offering {
    /// Returns whether the price stands in for the one that a node with these labels costs: list
    /// prices are those of Linux, and leave out the licence of Windows.
    #[must_use]
    pub fn is_estimate_for(&self, labels: &Labels) -> bool {
        let windows = labels.get(key::OS).is_some_and(|os| os.as_str() == "windows");
        self.estimated || windows && self.capacity_type != CapacityType::Reserved
    }
}

/// What a pool and its node class decide about a node's allocatable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeSettings {
    /// AMI family.
    pub family: AmiFamily,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// Bytes of the volume that holds the kubelet's data; `None`: the family's default.
    pub ephemeral_storage: Option<i64>,
    /// Whether instance-store disks hold the kubelet's data.
    pub instance_store_raid0: bool,
    /// Whether pods get addresses from prefixes of 16.
    pub prefix_delegation: bool,
    /// Digests of the class' specification: nodes of another image, or with other user data, tell
    /// nothing about these.
    pub class_digests: Arc<BTreeMap<String, Arc<str>>>,
}

impl NodeSettings {
    /// Returns the settings of `pool` with `class`; the pool's kubelet settings win where stated.
    #[must_use]
    pub fn of(pool: &Pool, class: &NodeClass) -> Self {
        Self {
            family: class.ami_family,
            kubelet: pool.kubelet.clone().unwrap_or_else(|| class.kubelet.clone()),
            ephemeral_storage: class.ephemeral_storage,
            instance_store_raid0: class.instance_store_raid0,
            prefix_delegation: class.prefix_delegation,
            class_digests: class.spec_digests.clone(),
        }
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            family: AmiFamily::Al2023,
            kubelet: KubeletSettings::default(),
            ephemeral_storage: None,
            instance_store_raid0: false,
            prefix_delegation: false,
            class_digests: Arc::default(),
        }
    }
}

/// From what a machine has to what its pods may use.
///
/// Of a measured one only the two ends are known: all that lies between them counts as kept for
/// Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// What the node reports as capacity.
    pub capacity: Resources,
    /// Kept for Kubernetes.
    pub kube_reserved: Resources,
    /// Kept for the system.
    pub system_reserved: Resources,
    /// Kept below the eviction threshold.
    pub eviction: Resources,
    /// Memory set aside as huge pages.
    pub huge_pages: Resources,
    /// What remains for pods, DaemonSets included.
    pub allocatable: Resources,
}

/// Why there is no catalogue for a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CatalogError {
    /// The snapshot has no such region.
    #[error("region `{region}` is not in the embedded catalogue")]
    UnknownRegion {
        /// The region asked for.
        region: Region,
        /// Regions with a similar name, nearest first.
        similar: Vec<Region>,
    },
    /// The region has no such zone.
    #[error("zone `{zone}` is not a zone of region `{region}`")]
    UnknownZone {
        /// The zone asked for.
        zone: ZoneName,
        /// The region.
        region: Region,
        /// The zones it has.
        known: Vec<ZoneName>,
    },
    /// The region has no zone of such an id.
    #[error("zone `{zone}`: `{id}` is not a zone id of region `{region}`")]
    UnknownZoneId {
        /// The zone it was stated for.
        zone: ZoneName,
        /// The id.
        id: ZoneId,
        /// The region.
        region: Region,
        /// The ids it has.
        known: Vec<ZoneId>,
    },
    /// Two names mean the same zone.
    #[error("zones `{first}` and `{second}` are both `{id}`")]
    SharedZoneId {
        /// The first zone.
        first: ZoneName,
        /// The second zone.
        second: ZoneName,
        /// The id of both.
        id: ZoneId,
    },
    /// One name is stated with two ids.
    #[error("zone `{zone}` is stated twice, as `{first}` and as `{second}`")]
    ZoneTwice {
        /// The zone.
        zone: ZoneName,
        /// One id.
        first: ZoneId,
        /// The other.
        second: ZoneId,
    },
    /// More than one of the above.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<CatalogError>),
    /// The embedded snapshot cannot be read: the build is broken.
    #[error("the embedded catalogue cannot be read: {0}")]
    Snapshot(String),
}

impl CatalogError {
    /// Returns what to do about it, where something can be said.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownRegion { similar, .. } => Some(match similar.as_slice() {
                [] => "write a region's name, such as `eu-west-1`".to_owned(),
                similar => format!("did you mean {}?", quoted(similar, " or ")),
            }),
            Self::UnknownZone { known, .. } => {
                Some(format!("its zones are {}", quoted(known, ", ")))
            }
            Self::UnknownZoneId { known, .. } => {
                Some(format!("its zone ids are {}", quoted(known, ", ")))
            }
            Self::SharedZoneId { .. } => Some(
                "state the id of each zone, as `aws ec2 describe-availability-zones` shows it"
                    .to_owned(),
            ),
            Self::ZoneTwice { .. } => Some("keep the right one".to_owned()),
            Self::Several(problems) => {
                let hints: Vec<String> = problems.iter().filter_map(Self::hint).collect();
                Some(hints.join("; "))
            }
            Self::Snapshot(_) => None,
        }
    }
}

/// Writes names in backquotes, with `between` between them.
fn quoted<T: std::fmt::Display>(names: &[T], between: &str) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(between)
}
