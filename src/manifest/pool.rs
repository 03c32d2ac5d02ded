//! One model of pools and node classes for every generation of Karpenter's API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::cron::Schedule;
use super::machine::Machine;
use crate::ids::{LabelKey, LabelValue, Labels, NodeClassName, Origin, PoolName};
use crate::pod::{Amounts, Taint};
use crate::requirement::Operator;
use crate::units::MicroUsd;

/// The API generation that an object was written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// `karpenter.sh/v1alpha5` with `karpenter.k8s.aws/v1alpha1`.
    V1alpha5,
    /// `karpenter.sh/v1beta1`.
    V1beta1,
    /// `karpenter.sh/v1`.
    V1,
    /// `eksctl.io/v1alpha5`: a node group, which Auto Scaling makes the nodes of.
    Eksctl,
}

/// A pool: which nodes may be made, how many, and when they may go.
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
    /// Taints that are gone before the node counts as initialized.
    pub startup_taints: Vec<Taint>,
    /// Kubelet settings, where the generation keeps them in the pool.
    pub kubelet: Option<KubeletSettings>,
    /// What the pool's nodes may add up to.
    pub limits: PoolLimits,
    /// Pools of a higher weight are tried first; 0 to 100.
    pub weight: u32,
    /// A fixed number of nodes (static pool).
    pub replicas: Option<u32>,
    /// When nodes may go or be replaced.
    pub consolidation: Consolidation,
    /// How long a node stays without needed pods before it may go; `None` is never.
    pub consolidate_after: Option<SignedDuration>,
    /// How many nodes may go at a time, as far as that is written: the share that Karpenter takes
    /// where nothing is (10 %) is a pace of its own.
    pub budgets: Vec<Budget>,
    /// How old a node may become.
    pub expire_after: Expiry,
    /// The first field found wrong (empty for the object itself). A pool that was not read whole
    /// makes no nodes: a requirement or a taint that is missing would let it make others than its
    /// author meant. Karpenter does not admit such an object, or holds it not Ready.
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

/// What to do where fewer distinct values remain possible than a pool's `minValues` demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinValuesPolicy {
    /// Such offerings are not used.
    #[default]
    Strict,
    /// They are used, and the plan says what is not met.
    BestEffort,
}

/// A node overlay: what the repository states of offerings in the place of the cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Of several that set the same, the heaviest wins; 0 to 10000.
    pub weight: u32,
    /// Labels of the nodes that it is about.
    pub requirements: Vec<PoolRequirement>,
    /// What becomes of the price.
    pub price: Option<PriceChange>,
    /// Extended resources that the nodes have.
    pub capacity: Amounts,
}

/// What an overlay makes of a price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriceChange {
    /// This price.
    To(MicroUsd),
    /// So much more, or less; never less than nothing.
    By(MicroUsd),
    /// So many thousandths of a percent more, or less.
    ByMilliPercent(i64),
}

/// When nodes of a pool may go or be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consolidation {
    /// Only empty nodes go.
    WhenEmpty,
    /// Nodes also go when their pods fit elsewhere, or a cheaper node can take them.
    WhenEmptyOrUnderutilized,
    /// As above, if the saving is worth the moves (`Balanced`, Karpenter 1.14).
    Balanced,
}

/// How old a node may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiry {
    /// As old as it likes.
    Never,
    /// So old, counted from its launch.
    After(SignedDuration),
}

/// What a pool's nodes may add up to, in node capacity (not allocatable).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolLimits {
    /// Amounts by resource; an amount may be reached, not exceeded.
    pub resources: Amounts,
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

/// What an AMI family decides about capacity.
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
    /// Returns the volumes that its images have, with the GiB that they have unless a class says
    /// otherwise; pods use the last. Empty where the image is the user's own.
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

/// A node class: how the machines of a pool are set up.
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
    /// Capacity reservations that may be used; a reservation that one of the terms selects is.
    pub reservations: Vec<ReservationTerm>,
    /// Whether nodes give pods addresses from prefixes of 16 (`fleetwright.dev/prefix-delegation`
    /// of the class): the setting is the network plugin's, so that nothing else of the class tells
    /// it.
    pub prefix_delegation: bool,
    /// SHA-256 of the user data, in hex: user data may hold secrets and is never kept.
    pub user_data_digest: Option<Arc<str>>,
    /// Tags of instances and volumes.
    pub tags: BTreeMap<String, String>,
    /// What a launch needs beside that.
    pub machine: Machine,
    /// SHA-256 of each field of the specification in canonical form, in hex: tell in what a class
    /// changed.
    pub spec_digests: Arc<BTreeMap<String, Arc<str>>>,
    /// The first field found wrong, as with [`Pool::unreadable`].
    pub unreadable: Option<String>,
}

impl NodeClass {
    /// Returns how many EBS volumes an instance has itself: those of its image, which a mapping of
    /// the same name changes, and those that further mappings add. Each takes the place of one that a
    /// pod could attach.
    #[must_use]
    pub fn volumes(&self) -> i64 {
        let of_image = self.ami_family.devices().iter().map(|(name, _)| *name);
        let stated = self.machine.devices.iter().map(|device| device.name.as_str());
        let names: BTreeSet<&str> = of_image.chain(stated).collect();
        // An image of the user's own has one at least.
        i64::try_from(names.len()).unwrap_or(i64::MAX).max(1)
    }
}

/// A term that selects capacity reservations: all that it states must hold.
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

/// Kubelet settings that change what a node offers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KubeletSettings {
    /// Most pods on a node.
    pub max_pods: Option<u32>,
    /// Most pods for each core.
    pub pods_per_core: Option<u32>,
    /// Reserved for Kubernetes, by resource; overrides the family's formula resource by resource.
    pub kube_reserved: Amounts,
    /// Reserved for the system.
    pub system_reserved: Amounts,
    /// Hard eviction thresholds by signal (`memory.available`, `nodefs.available`).
    pub eviction_hard: BTreeMap<String, Reserved>,
}

/// An amount, or a share of the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reserved {
    /// Bytes.
    Bytes(i64),
    /// Thousandths of a percent, so that `7.5%` is 7500.
    MilliPercent(u32),
}
