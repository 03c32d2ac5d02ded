//! Pools and node classes, in one representation for all Karpenter API versions.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::{InstanceSettings, Schedule};
use crate::model::ids::{LabelKey, LabelValue, Labels, NodeClassName, Origin, PoolName};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::pod::{ResourceList, Taint};
use crate::model::reason::RetireReason;
use crate::model::requirement::{LabelSet, Operator, Requirements, key};
use crate::model::units::MicroUsd;

/// API version of a declared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// `karpenter.sh/v1alpha5` with `karpenter.k8s.aws/v1alpha1`.
    V1alpha5,
    /// `karpenter.sh/v1beta1`.
    V1beta1,
    /// `karpenter.sh/v1`.
    V1,
    /// `eksctl.io/v1alpha5`: a node group with nodes launched by Auto Scaling.
    Eksctl,
}

impl Generation {
    /// Returns the kind of pools.
    pub const fn pool_kind(self) -> &'static str {
        match self {
            Self::V1alpha5 => "Provisioner",
            Self::V1beta1 | Self::V1 => "NodePool",
            Self::Eksctl => "node group",
        }
    }

    /// Returns the kind of node classes.
    pub const fn class_kind(self) -> &'static str {
        match self {
            Self::V1alpha5 => "AWSNodeTemplate",
            Self::V1beta1 | Self::V1 => "EC2NodeClass",
            Self::Eksctl => "node class",
        }
    }
}

/// A node pool: constraints on its nodes, their number, and their disruption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: PoolName,
    /// Source file and line.
    pub origin: Origin,
    /// API version of the declaration.
    pub generation: Generation,
    /// Name of the node class; `None` for a v1alpha5 pool with an inline provider.
    pub node_class: Option<NodeClassName>,
    /// Labels of every node.
    pub labels: Labels,
    /// Annotations that new nodes get when they are opened.
    pub annotations: NodeAnnotations,
    /// True if its template has the annotation `karpenter.sh/do-not-disrupt`: no node is disrupted.
    pub do_not_disrupt: bool,
    /// Requirements of every node.
    pub requirements: Vec<PoolRequirement>,
    /// Taints of every node.
    pub taints: Vec<Taint>,
    /// Startup taints. They are removed before a node counts as initialized.
    pub startup_taints: Vec<Taint>,
    /// Kubelet settings, if the API version declares them in the pool.
    pub kubelet: Option<KubeletSettings>,
    /// Limits on all nodes of the pool together.
    pub limits: PoolLimits,
    /// Weight, 0 to 100. Pools with a higher weight are tried first.
    pub weight: u32,
    /// Fixed number of nodes (static pool).
    pub replicas: Option<u32>,
    /// Consolidation policy.
    pub consolidation: Consolidation,
    /// Time since the last pod event before a node may be consolidated; `None` means never.
    pub consolidate_after: Option<SignedDuration>,
    /// Disruption budgets. A NodePool without any has Karpenter's default of 10 %.
    pub budgets: Vec<Budget>,
    /// Maximum age of nodes.
    pub expire_after: Expiry,
    /// Time from the cordon of a drifted or expired node until the pods that are still on it are
    /// deleted (`terminationGracePeriod`); `None` means never.
    pub termination_grace_period: Option<SignedDuration>,
    /// First invalid field (empty for the object itself). A pool with an invalid field launches no
    /// nodes, because a missing requirement or taint could allow excluded nodes. Karpenter rejects
    /// such an object, or reports it as not Ready.
    pub unreadable: Option<String>,
}

impl Pool {
    /// Returns the time from the cordon of a node until its drain for `reason` ends by force, if it
    /// does. A static pool replaces one node at a time, so a drain there must not stay in progress.
    pub fn forced_drain_period(&self, reason: &RetireReason) -> Option<SignedDuration> {
        self.termination_grace_period
            .filter(|_| self.replicas.is_none() && reason.ends_drain_by_force())
    }
}

/// A pool of EKS Auto Mode. Its nodes are not planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoModePool {
    /// Labels of its nodes.
    pub labels: Labels,
    /// Requirements of its nodes.
    pub requirements: Vec<PoolRequirement>,
    /// Taints of its nodes.
    pub taints: Vec<Taint>,
}

/// A requirement of a pool, with validated operator and values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolRequirement {
    /// Label key, with deprecated names already replaced.
    pub key: LabelKey,
    /// Operator.
    pub operator: Operator,
    /// Values.
    pub values: Vec<LabelValue>,
    /// Minimum number of distinct values that must remain possible (`minValues`).
    pub min_values: Option<u32>,
}

/// Policy for offerings that have fewer distinct values than `minValues` requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinValuesPolicy {
    /// Such offerings are not used.
    #[default]
    Strict,
    /// Such offerings are used, and the plan reports the unmet requirement.
    BestEffort,
}

/// A node overlay: overrides of prices and capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOverlay {
    /// Name.
    pub name: String,
    /// Source file and line.
    pub origin: Origin,
    /// Weight, 0 to 10000. If several overlays set the same value, the highest weight wins.
    pub weight: u32,
    /// Requirements on the labels of affected nodes.
    pub requirements: Vec<PoolRequirement>,
    /// Price change.
    pub price: Option<PriceChange>,
    /// Extended resources added to the nodes.
    pub capacity: ResourceList,
}

/// Price change of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriceChange {
    /// Replacement price.
    To(MicroUsd),
    /// Absolute adjustment. The result is at least zero.
    By(MicroUsd),
    /// Relative adjustment in thousandths of a percent.
    ByMilliPercent(i64),
}

/// Consolidation policy of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consolidation {
    /// Only empty nodes are removed.
    WhenEmpty,
    /// Nodes are also removed if their pods fit on other nodes, or replaced by cheaper nodes.
    WhenEmptyOrUnderutilized,
    /// As `WhenEmptyOrUnderutilized`, but only if the saving outweighs the disruption (Karpenter
    /// 1.14).
    Balanced,
}

/// Maximum age of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiry {
    /// Nodes do not expire.
    Never,
    /// Maximum time since the launch.
    After(SignedDuration),
}

/// Limits on all nodes of a pool together, in node capacity (not allocatable resources).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolLimits {
    /// Inclusive maximum by resource.
    pub resources: ResourceList,
    /// Maximum number of nodes.
    pub nodes: Option<u32>,
}

/// Number of nodes that a budget allows to disrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetNodes {
    /// A number of nodes, such as `5`.
    Count(u32),
    /// A percentage of the nodes of the pool, such as `10%`, rounded up.
    Percent(u32),
}

impl BudgetNodes {
    /// Reads a number or a percentage of at most 100.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with('+'));
        match text.strip_suffix('%') {
            Some(share) => number(share).filter(|share| *share <= 100).map(Self::Percent),
            None => number(text).map(Self::Count),
        }
    }
}

impl std::fmt::Display for BudgetNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(nodes) => write!(f, "{nodes}"),
            Self::Percent(share) => write!(f, "{share}%"),
        }
    }
}

/// Limit on concurrently disrupted nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Number of nodes that may be disrupted at a time.
    pub nodes: BudgetNodes,
    /// Disruption reasons (`Underutilized`, `Empty`, `Drifted`); empty means all.
    pub reasons: Vec<String>,
    /// Start times (cron, UTC); `None` means always.
    pub schedule: Option<Schedule>,
    /// Duration from each start.
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
    /// Custom image.
    Custom,
}

impl AmiFamily {
    /// Returns the build that nodes of a Windows family report, by a name of the family that has its
    /// year, such as `windows2022@latest` or `WINDOWS_CORE_2022_x86_64`.
    ///
    /// Source: karpenter-provider-aws, `pkg/apis/v1/labels.go`.
    pub fn windows_build(self, name: &str) -> Option<&'static str> {
        const BUILDS: [(&str, &str); 3] =
            [("2019", "10.0.17763"), ("2022", "10.0.20348"), ("2025", "10.0.26100")];
        let mut builds = BUILDS.iter().filter(|_| self == Self::Windows);
        builds.find(|(year, _)| name.contains(year)).map(|(_, build)| *build)
    }

    /// Returns the default block devices of the family's images, with sizes in GiB. Pods use the
    /// last device. The list is empty for custom images.
    ///
    /// Source: karpenter-provider-aws, `pkg/providers/amifamily`, default block device mappings.
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

/// Elastic fabric adapters (EFA) of instances whose type has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum EfaInterfaces {
    /// All of the type.
    #[default]
    All,
    /// Those that running nodes report.
    Reported,
    /// None.
    Absent,
    /// Those that the node class declares.
    Declared(EfaCount),
}

/// Number of elastic fabric adapters that a node class declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EfaCount {
    /// All of them.
    pub all: i64,
    /// Those on the default network card, whose other interfaces have the addresses of pods.
    pub on_default_card: i64,
}

/// A node class: EC2 settings of the instances of pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    /// Name.
    pub name: NodeClassName,
    /// Source file and line.
    pub origin: Origin,
    /// API version of the declaration.
    pub generation: Generation,
    /// AMI family.
    pub ami_family: AmiFamily,
    /// Windows build of the nodes; `None` for other systems.
    pub windows_build: Option<&'static str>,
    /// Image as declared: an alias such as `al2023@latest`, or the selector terms in order.
    pub image: String,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// Size of the volume for kubelet data, in bytes; `None` means the default of the family.
    pub ephemeral_storage: Option<i64>,
    /// True if kubelet data is stored on instance-store disks (`instanceStorePolicy: RAID0`).
    pub instance_store_raid0: bool,
    /// Selectors of usable capacity reservations.
    pub reservations: Vec<ReservationTerm>,
    /// True if pods get addresses from prefixes of 16 addresses, as the annotation
    /// `fleetwright.dev/prefix-delegation` declares. Prefix delegation is a setting of the network
    /// plugin, so no field of the class implies it.
    pub prefix_delegation: bool,
    /// True if EKS caps the pods of a node: it makes the user data of a managed node group whose image
    /// is its own.
    pub eks_caps_pods: bool,
    /// Elastic fabric adapters of the instances.
    pub efa: EfaInterfaces,
    /// SHA-256 of the user data, in hex. User data may contain secrets and is not stored in plans.
    pub user_data_digest: Option<Arc<str>>,
    /// Tags of instances and volumes.
    pub tags: BTreeMap<String, String>,
    /// Further settings for launches.
    pub instance_settings: InstanceSettings,
    /// SHA-256 of each field of the canonical specification, in hex, to identify changed fields.
    pub spec_digests: Arc<BTreeMap<String, Arc<str>>>,
    /// First invalid field, as in [`Pool::unreadable`].
    pub unreadable: Option<String>,
}

/// Family of instance types that Amazon Linux 2023 does not run on.
/// Source: karpenter-provider-aws, `pkg/providers/instancetype/compatibility/compatibility.go`.
pub const FAMILY_WITHOUT_AL2023: &str = "a1";

impl NodeClass {
    /// Returns true if instances of the family [`FAMILY_WITHOUT_AL2023`] do not run the images of
    /// the class. The images of an observed Auto Scaling group are unknown, and have no name.
    pub fn excludes_a1(&self) -> bool {
        self.ami_family == AmiFamily::Al2023 && !self.image.is_empty()
    }

    /// Returns the labels that an instance type needs for the settings and the images of the class.
    pub fn type_requirements(&self) -> Requirements {
        let mut requirements = self.instance_settings.type_requirements();
        if self.excludes_a1() {
            let excluded = LabelSet::one(&FAMILY_WITHOUT_AL2023.into());
            requirements.add(key::INSTANCE_FAMILY.into(), &excluded.complement());
        }
        requirements
    }

    /// Returns the number of EBS volumes of an instance, from its image and from further mappings.
    /// Each volume reduces the number of volumes that pods can attach.
    pub fn volumes(&self) -> i64 {
        let image_devices = self.ami_family.devices().iter().map(|(name, _)| *name);
        let declared_devices =
            self.instance_settings.devices.iter().map(|device| device.name.as_str());
        let names: BTreeSet<&str> = image_devices.chain(declared_devices).collect();
        // A custom image has at least one volume.
        i64::try_from(names.len()).unwrap_or(i64::MAX).max(1)
    }

    /// Returns the number of network interfaces at the launch of an instance. On some types, each
    /// further one reduces the number of volumes that pods can attach.
    pub fn interfaces(&self) -> i64 {
        let declared = self.instance_settings.network_interfaces.len();
        i64::try_from(declared).unwrap_or(i64::MAX).max(1)
    }
}

/// Selector of capacity reservations; a reservation must match every declared condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationTerm {
    /// Reservation ID.
    pub id: Option<String>,
    /// Tags; the value `*` matches any value.
    pub tags: BTreeMap<String, String>,
    /// Owning account.
    pub owner: Option<String>,
    /// True for targeted reservations, false for open ones; `None` matches both.
    pub targeted: Option<bool>,
}

impl ReservationTerm {
    /// Returns the conditions in words, such as `id cr-1` or `tag team=shop and owner 123456789012`.
    pub fn description(&self) -> String {
        let Self { id, tags, owner, targeted } = self;
        let id = id.iter().map(|id| format!("id {id}"));
        let tags = tags.iter().map(|(key, value)| format!("tag {key}={value}"));
        let owner = owner.iter().map(|owner| format!("owner {owner}"));
        let criteria = targeted.map(|targeted| {
            let criteria = if targeted { "targeted" } else { "open" };
            format!("instanceMatchCriteria {criteria}")
        });
        let all: Vec<String> = id.chain(tags).chain(owner).chain(criteria).collect();
        all.join(" and ")
    }
}

/// Kubelet settings of new nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KubeletSettings {
    /// Maximum number of pods per node.
    pub max_pods: Option<u32>,
    /// Maximum number of pods per core.
    pub pods_per_core: Option<u32>,
    /// Resources reserved for Kubernetes. Each declared resource overrides the formula of the AMI
    /// family.
    pub kube_reserved: ResourceList,
    /// Resources reserved for the operating system.
    pub system_reserved: ResourceList,
    /// Hard eviction thresholds by signal (`memory.available`, `nodefs.available`).
    pub eviction_hard: BTreeMap<String, ReservedAmount>,
    /// Soft eviction thresholds by signal. They reduce no allocatable resource.
    pub eviction_soft: BTreeMap<String, ReservedAmount>,
    /// Time below a soft threshold after which pods are evicted, by signal.
    pub eviction_soft_grace_period: BTreeMap<String, SignedDuration>,
    /// Maximum termination grace period in seconds of pods that a soft threshold evicts.
    pub eviction_max_pod_grace_period: Option<u32>,
    /// Disk use in percent above which unused images are deleted.
    pub image_gc_high_percent: Option<u32>,
    /// Disk use in percent down to which unused images are deleted.
    pub image_gc_low_percent: Option<u32>,
    /// False if CPU limits of containers are not enforced.
    pub cpu_cfs_quota: Option<bool>,
    /// Addresses of the cluster DNS; empty means the address of the cluster.
    pub cluster_dns: Vec<IpAddr>,
}

/// An absolute amount, or a share of the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedAmount {
    /// Amount in bytes.
    Bytes(i64),
    /// Share in thousandths of a percent: `7.5%` is 7500.
    MilliPercent(u32),
}
