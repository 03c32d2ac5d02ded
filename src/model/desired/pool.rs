//! One model of pools and node classes for every generation of Karpenter's API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::{InstanceSettings, Schedule};
use crate::model::ids::{LabelKey, LabelValue, Labels, NodeClassName, Origin, PoolName};
use crate::model::pod::{ResourceList, Taint};
use crate::model::requirement::Operator;
use crate::model::units::MicroUsd;

/// The API generation that an object was written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// `karpenter.sh/v1alpha5` with `karpenter.k8s.aws/v1alpha1`.
    V1alpha5,
    /// `karpenter.sh/v1beta1`.
    V1beta1,
    /// `karpenter.sh/v1`.
    V1,
    /// `eksctl.io/v1alpha5`: a node group, whose nodes Auto Scaling launches.
    Eksctl,
}

/// A pool: which nodes may be created, how many, and when they may be disrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: PoolName,
    /// File and line.
    pub origin: Origin,
    /// API generation it was written for.
    pub generation: Generation,
    /// Name of the node class; `None` where a v1alpha5 pool states its provider inline.
    pub node_class: Option<NodeClassName>,
    /// Labels of every node.
    pub labels: Labels,
    /// Annotations of every node.
    pub annotations: BTreeMap<String, String>,
    /// Requirements that every node meets.
    pub requirements: Vec<PoolRequirement>,
    /// Taints of every node.
    pub taints: Vec<Taint>,
    /// Startup taints, which are removed before the node counts as initialized.
    pub startup_taints: Vec<Taint>,
    /// Kubelet settings, if this API generation has them in the pool.
    pub kubelet: Option<KubeletSettings>,
    /// Limits on the total of the pool's nodes.
    pub limits: PoolLimits,
    /// Pools of a higher weight are tried first; 0 to 100.
    pub weight: u32,
    /// A fixed number of nodes (static pool).
    pub replicas: Option<u32>,
    /// Consolidation policy.
    pub consolidation: Consolidation,
    /// How long a node must be consolidatable before it is removed; `None` is never.
    pub consolidate_after: Option<SignedDuration>,
    /// Disruption budgets as declared. Karpenter's default of 10 % is not among them: it is applied
    /// as a separate pace.
    pub budgets: Vec<Budget>,
    /// Maximum age of a node.
    pub expire_after: Expiry,
    /// The first invalid field (empty for the object itself). A pool with one launches no nodes: a
    /// missing requirement or taint would allow nodes that its author excluded. Karpenter rejects
    /// such an object, or reports it as not Ready.
    pub unreadable: Option<String>,
}

/// One requirement of a pool, operator and values validated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolRequirement {
    /// Key, deprecated names already replaced.
    pub key: LabelKey,
    /// Operator.
    pub operator: Operator,
    /// Values.
    pub values: Vec<LabelValue>,
    /// Fewest distinct values that must stay possible.
    pub min_values: Option<u32>,
}

/// Policy for offerings with fewer distinct values than a pool's `minValues` requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinValuesPolicy {
    /// Such offerings are not used.
    #[default]
    Strict,
    /// They are used, and the plan reports the unmet requirement.
    BestEffort,
}

/// A node overlay: prices and capacity that the repository overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOverlay {
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Of several that set the same value, the heaviest wins; 0 to 10000.
    pub weight: u32,
    /// Labels of the nodes that it applies to.
    pub requirements: Vec<PoolRequirement>,
    /// Change of the price.
    pub price: Option<PriceChange>,
    /// Extended resources that the nodes have.
    pub capacity: ResourceList,
}

/// How an overlay changes a price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriceChange {
    /// This price.
    To(MicroUsd),
    /// An adjustment; the result is at least zero.
    By(MicroUsd),
    /// An adjustment in thousandths of a percent.
    ByMilliPercent(i64),
}

/// The consolidation policy of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consolidation {
    /// Only empty nodes are removed.
    WhenEmpty,
    /// Nodes are also removed if their pods fit elsewhere, or replaced by cheaper ones.
    WhenEmptyOrUnderutilized,
    /// As above, if the saving outweighs the disruption (`Balanced`, Karpenter 1.14).
    Balanced,
}

/// Maximum age of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiry {
    /// Nodes do not expire.
    Never,
    /// Age since the launch.
    After(SignedDuration),
}

/// Limits on the total of a pool's nodes, in node capacity (not allocatable).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolLimits {
    /// Maximum by resource, inclusive.
    pub resources: ResourceList,
    /// Number of nodes.
    pub nodes: Option<u32>,
}

/// How many nodes may be disrupted at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// A number (`5`) or a share (`10%`, rounded up).
    pub nodes: String,
    /// The reasons it holds for; empty means all (`Underutilized`, `Empty`, `Drifted`).
    pub reasons: Vec<String>,
    /// When it starts to hold (cron, UTC); `None` is always.
    pub schedule: Option<Schedule>,
    /// How long it holds from each start.
    pub duration: Option<SignedDuration>,
}

/// An AMI family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AmiFamily {
    /// Amazon Linux 2.
    Al2,
    /// Amazon Linux 2023.
    Al2023,
    /// Bottlerocket.
    Bottlerocket,
    /// Windows Server.
    Windows,
    /// Ubuntu (up to v1beta1).
    Ubuntu,
    /// An image of the user's own.
    Custom,
}

impl AmiFamily {
    /// Returns the default block devices of its images, with sizes in GiB; pods use the last. Empty
    /// for custom images.
    ///
    /// Source: karpenter-provider-aws, `pkg/providers/amifamily`, default block device mappings.
    #[must_use]
    pub fn devices(self) -> &'static [(&'static str, i32)] {
        match self {
            Self::Al2 | Self::Al2023 => &[("/dev/xvda", 20)],
            Self::Bottlerocket => &[("/dev/xvda", 4), ("/dev/xvdb", 20)],
            Self::Windows => &[("/dev/sda1", 50)],
            Self::Ubuntu => &[("/dev/sda1", 20)],
            Self::Custom => &[],
        }
    }
}

/// A node class: the settings of the instances of pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    /// Name.
    pub name: NodeClassName,
    /// File and line.
    pub origin: Origin,
    /// API generation it was written for.
    pub generation: Generation,
    /// AMI family.
    pub ami_family: AmiFamily,
    /// The image as declared: an alias such as `al2023@latest`, or the selector terms in order.
    pub image: String,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// Size of the volume that holds the kubelet's data, in bytes; `None`: the family's default.
    pub ephemeral_storage: Option<i64>,
    /// Whether instance-store disks hold the kubelet's data (`instanceStorePolicy: RAID0`).
    pub instance_store_raid0: bool,
    /// Selectors of the capacity reservations that may be used.
    pub reservations: Vec<ReservationTerm>,
    /// Whether nodes give pods addresses from prefixes of 16 (`fleetwright.dev/prefix-delegation`
    /// of the class). It is a setting of the network plugin, so no other field implies it.
    pub prefix_delegation: bool,
    /// SHA-256 of the user data, in hex: user data may hold secrets and is not stored.
    pub user_data_digest: Option<Arc<str>>,
    /// Tags of instances and volumes.
    pub tags: BTreeMap<String, String>,
    /// Further settings that a launch needs.
    pub instance_settings: InstanceSettings,
    /// SHA-256 of each field of the canonical specification, in hex: they show which field changed.
    pub spec_digests: Arc<BTreeMap<String, Arc<str>>>,
    /// The first invalid field, as in [`Pool::unreadable`].
    pub unreadable: Option<String>,
}

impl NodeClass {
    /// Returns the number of EBS volumes of an instance: those of its image and those of further
    /// mappings. Each reduces the number that pods can attach.
    #[must_use]
    pub fn volumes(&self) -> i64 {
        let of_image = self.ami_family.devices().iter().map(|(name, _)| *name);
        let stated = self.instance_settings.devices.iter().map(|device| device.name.as_str());
        let names: BTreeSet<&str> = of_image.chain(stated).collect();
        // A custom image has at least one.
        i64::try_from(names.len()).unwrap_or(i64::MAX).max(1)
    }
}

/// Selects capacity reservations: every stated condition must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationTerm {
    /// Id.
    pub id: Option<String>,
    /// Tags; the value `*` means any.
    pub tags: BTreeMap<String, String>,
    /// Account that owns it.
    pub owner: Option<String>,
    /// Whether it is open, or targeted.
    pub targeted: Option<bool>,
}

/// Kubelet settings that affect allocatable resources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KubeletSettings {
    /// Most pods on a node.
    pub max_pods: Option<u32>,
    /// Most pods for each core.
    pub pods_per_core: Option<u32>,
    /// Reserved for Kubernetes, by resource; overrides the family's formula resource by resource.
    pub kube_reserved: ResourceList,
    /// Reserved for the system.
    pub system_reserved: ResourceList,
    /// Hard eviction thresholds by signal (`memory.available`, `nodefs.available`).
    pub eviction_hard: BTreeMap<String, ReservedAmount>,
}

/// An amount, or a share of the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedAmount {
    /// Bytes.
    Bytes(i64),
    /// Thousandths of a percent, so that `7.5%` is 7500.
    MilliPercent(u32),
}
