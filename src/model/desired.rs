//! Desired state of a repository: pools, node classes, workloads, autoscalers and settings.

mod autoscaler;
mod device_claim;
mod disruption_budget;
mod external_source;
mod hook;
mod instance_settings;
mod learned_nodes;
mod node_group;
mod pool;
mod region_prices;
mod render_request;
mod schedule;
mod settings;

pub use autoscaler::{
    Behavior, ContainerPolicy, CronTrigger, EventDriven, Fallback, FallbackBehavior, Horizontal,
    Ladder, Linear, Metric, MetricSource, MetricTarget, PauseMode, Proportional, ProportionalMode,
    ScaleTarget, Scaler, ScalerRule, ScalingPolicy, ScalingRules, SelectPolicy, UpdateMode,
    VerticalScaler,
};
pub use device_claim::{DeviceAmount, DeviceClaim, DeviceRequest};
pub use disruption_budget::pods_to_keep;
pub use external_source::{
    EXTERNAL_DIRECTORY, ExternalSource, ExternalSources, LockedSource, SOURCE_LOCK_FILE,
    SOURCE_LOCK_FORMAT, SourceKind, SourceLock, SourceRequests, TAG_RANGE_PREFIX, is_external,
};
pub use hook::{Hook, HookPhase};
pub use instance_settings::{
    BlockDevice, ConnectionTracking, Ec2Selector, Identity, ImageTerm, InstanceSettings,
    MetadataOptions, NetworkInterface, PlacementGroupSelector, UserData, describe_selectors,
};
pub use learned_nodes::{FORMAT as LEARNED_FORMAT, LEARNED_FILE, LearnedNode, LearnedNodes};
pub use node_group::{
    DISCOVERY_PREFIX, EKS_GROUP_TAG, ExternalGroup, GroupKind, NodeGroup, discovery_tags,
};
pub use pool::{
    AmiFamily, AutoModePool, Budget, BudgetNodes, Consolidation, EfaCount, EfaInterfaces, Expiry,
    FAMILY_WITHOUT_AL2023, Generation, KubeletSettings, MinValuesPolicy, NodeClass, NodeOverlay,
    Pool, PoolLimits, PoolRequirement, PriceChange, ReservationTerm, ReservedAmount,
};
pub use region_prices::{
    PRICE_CURRENCY, PRICE_FILE, PRICE_FILE_FORMAT, RegionPrices, check_price, is_price_list_version,
};
pub use render_request::{
    CommonLabels, Layer, Recipe, Release, RenderRequest, RenderResults, Rendered,
    RepositoryLocation, SetValue, Values,
};
pub use schedule::Schedule;
pub use settings::{
    AppliedBy, ApplyConditions, ApprovalRule, AssumedPods, ClusterSettings, CommitmentKind,
    ConsolidationSettings, ControllerSettings, CountOrShare, DeliverySettings, DemandMode,
    DemandSettings, FLEET_FILE, FailureDomains, Fleet, MaxShares, Mode, PoolSource,
    PricingCommitment, RateLimit, Renderer, Signer, SignerKey, Source, TrustedKey,
    UnresolvedPolicy, Window, WorstCase, is_settings_file,
};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::code::Code;
use crate::model::expander_priorities::ExpanderPriorities;
use crate::model::fargate::{FargateProfile, Rates};
use crate::model::ids::{Labels, Namespace, NodeClassName, Origin, PoolName, WorkloadId};
use crate::model::job::JobRetries;
use crate::model::pod::{PodTemplate, ResourceList, Selector, Toleration, TopologySpread};
use crate::model::requirement::Operator;
use crate::model::storage::{Claim, PersistentVolume, StorageClass};

/// Snapshot of the files of a repository, as input of `manifest`.
///
/// Paths are relative to the root, use `/`, and are in ascending order. The `git` adapter reads
/// them from a directory or from the objects of a commit.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// Files, in ascending order of their paths.
    pub files: Vec<TreeFile>,
}

/// A file of a [`Tree`].
#[derive(Debug, Clone)]
pub struct TreeFile {
    /// Path relative to the root, with `/` separators.
    pub path: Arc<str>,
    /// Content, or the reason of the read error. A read error fails the run; it is not treated as
    /// an empty file.
    pub content: Result<Arc<[u8]>, String>,
}

/// Reason for a file that a sparse checkout does not have on disk.
pub const SPARSE_REASON: &str = "a sparse checkout lacks it: run `git sparse-checkout disable`, or \
                                 read the commit with `--ref HEAD`";

impl TreeFile {
    /// Returns true if a sparse checkout lacks the file. Git lists it, so it is no directory.
    pub fn is_sparse(&self) -> bool {
        self.content.as_ref().is_err_and(|reason| reason == SPARSE_REASON)
    }
}

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Planning continues, but the plan may differ from the author's intent.
    Warning,
    /// Planning is impossible, and the plan is `errored`.
    Error,
}

/// A problem in an object or file, with its origin and a hint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// Source file and line.
    pub origin: Origin,
    /// Severity.
    pub severity: Severity,
    /// Affected object, such as `Deployment web/api`; empty for a whole file.
    pub object: String,
    /// Description of the problem: lowercase, with the value, without a final period.
    pub message: String,
    /// Suggested fix, if known.
    pub hint: Option<String>,
    /// Class of the problem, if it has one.
    pub code: Option<Code>,
    /// Source of the other object, if two objects contradict each other.
    pub other: Option<Origin>,
}

impl Problem {
    /// Returns a problem without hint and code.
    pub fn new(
        severity: Severity,
        origin: Origin,
        object: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let (object, message) = (object.into(), message.into());
        Self { origin, severity, object, message, hint: None, code: None, other: None }
    }

    /// Returns an error.
    pub fn error(origin: Origin, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, origin, object, message)
    }

    /// Returns a warning.
    pub fn warning(origin: Origin, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, origin, object, message)
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        self.maybe_hint(Some(hint.into()))
    }

    /// Sets the suggested fix, if it is known.
    #[must_use]
    pub fn maybe_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    /// Sets the class.
    #[must_use]
    pub fn code(self, code: impl Into<Option<Code>>) -> Self {
        Self { code: code.into(), ..self }
    }

    /// Sets the source of the other object.
    #[must_use]
    pub fn other(self, origin: Origin) -> Self {
        Self { other: Some(origin), ..self }
    }
}

/// Beginning of the reason to skip an object of a kind that is not known. Its controller may make
/// pods.
pub const CUSTOM_KIND: &str = "custom kind ";

/// Beginning of the reason to skip an object of a known kind that is not an input.
pub const OTHER_KIND: &str = "kind ";

/// A file or document that is not used as an input, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Skipped {
    /// Source file and line.
    pub origin: Origin,
    /// Reason, as a short phrase such as `no kind` or `kind ConfigMap`.
    pub reason: String,
}

/// A source of workloads of unknown size. Plans count and name it, and never treat it as empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unresolved {
    /// Source file and line.
    pub origin: Origin,
    /// Object or source, such as `HelmRelease web/shop`.
    pub object: String,
    /// Reason for the unknown size.
    pub reason: String,
}

/// Desired state declared by a repository.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    /// Workloads, by id.
    pub workloads: BTreeMap<WorkloadId, Workload>,
    /// Pools, by name.
    pub pools: BTreeMap<PoolName, Pool>,
    /// Node classes, by name.
    pub node_classes: BTreeMap<NodeClassName, NodeClass>,
    /// Node overlays, by name.
    pub overlays: BTreeMap<String, NodeOverlay>,
    /// Policy for pools with `minValues` that cannot be met.
    pub min_values_policy: MinValuesPolicy,
    /// Namespaces of competing autoscalers, if declared.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// Default topology spread constraints of kube-scheduler, if configured.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Pools of EKS Auto Mode, by name.
    pub auto_mode_pools: BTreeMap<PoolName, AutoModePool>,
    /// Failure domain limits by pool.
    pub failure_domains: BTreeMap<PoolName, FailureDomains>,
    /// Maximum share of the Spot nodes of a pool in one instance type and zone, in thousandths of a
    /// percent; `None` means no limit.
    pub max_offering_share: Option<u32>,
    /// Labels of the declared namespaces, by namespace.
    pub namespaces: BTreeMap<Namespace, Labels>,
    /// Priority classes, by name.
    pub priority_classes: BTreeMap<String, PriorityClass>,
    /// Runtime classes, by name.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// Templates of device claims, by namespace and name.
    pub claim_templates: BTreeMap<(Namespace, String), DeviceClaim>,
    /// CEL selectors of device classes, by name of the class.
    pub device_classes: BTreeMap<String, Vec<String>>,
    /// Limit ranges, by namespace.
    pub limit_ranges: BTreeMap<Namespace, Vec<LimitRangeItem>>,
    /// Resource quotas, in order of namespace and name.
    pub quotas: Vec<ResourceQuota>,
    /// Pod disruption budgets.
    pub disruption_budgets: Vec<DisruptionBudget>,
    /// Jobs and pods that a delivery tool runs around a sync.
    pub hooks: BTreeMap<WorkloadId, Hook>,
    /// Workloads whose replicas the delivery tool does not apply.
    pub live_replicas: BTreeMap<WorkloadId, LiveReplicas>,
    /// Workloads that stay in the cluster without a declaration: no tool removes or changes them.
    pub retained: BTreeSet<WorkloadId>,
    /// Namespaces of delivery objects that do not remove what the repository no longer declares.
    pub retaining_namespaces: BTreeSet<Namespace>,
    /// Storage classes, by name.
    pub storage_classes: BTreeMap<String, StorageClass>,
    /// Persistent volumes, by name.
    pub volumes: BTreeMap<String, PersistentVolume>,
    /// Persistent volume claims, by namespace and name.
    pub claims: BTreeMap<(Namespace, String), VolumeClaim>,
    /// Node groups, by name. The pool of the same name describes the nodes of the group.
    pub node_groups: BTreeMap<PoolName, NodeGroup>,
    /// Groups that only the settings declare, by name.
    pub external_groups: BTreeMap<PoolName, ExternalGroup>,
    /// Priorities of Cluster Autoscaler's expander, by namespace of their ConfigMap.
    pub expander_priorities: BTreeMap<Namespace, ExpanderPriorities>,
    /// Fargate profiles, by name.
    pub fargate_profiles: BTreeMap<String, FargateProfile>,
    /// Fargate prices, if the settings declare them.
    pub fargate_rates: Option<Rates>,
    /// Autoscalers of replica counts.
    pub scalers: Vec<Scaler>,
    /// Autoscalers of resource requests.
    pub vertical_scalers: Vec<VerticalScaler>,
    /// Capacity reported by former nodes.
    pub learned_nodes: Vec<LearnedNode>,
    /// Lead time: capacity must be ready this long before its demand arises.
    pub lead_time: SignedDuration,
    /// Number of rolling updates that have room at the same time.
    pub rollouts: u32,
    /// Sources of workloads of unknown size.
    pub unresolved: Vec<Unresolved>,
    /// Treatment of sources of unknown size.
    pub unresolved_policy: UnresolvedPolicy,
    /// Workloads that stand in for sources of unknown size where no cluster is observed.
    pub assumed: Vec<Workload>,
    /// Files and documents that are not inputs.
    pub skipped: Vec<Skipped>,
    /// True if the pools are in the cluster, and were not read.
    pub has_unread_pools: bool,
    /// Problems, by file and line.
    pub problems: Vec<Problem>,
}

impl Desired {
    /// Returns true if any node class selects capacity reservations.
    pub fn uses_reservations(&self) -> bool {
        self.node_classes.values().any(|class| !class.reservations.is_empty())
    }

    /// Returns the node class of a pool, if it is declared.
    pub fn class_of(&self, pool: &Pool) -> Option<&NodeClass> {
        self.node_classes.get(pool.node_class.as_ref()?)
    }
}

/// A workload: identity, number of pods, and pod template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Identity.
    pub id: WorkloadId,
    /// Source file and line.
    pub origin: Origin,
    /// Number of pods.
    pub scale: Scale,
    /// Pod template.
    pub template: Arc<PodTemplate>,
    /// Ordinal of the first pod of a `StatefulSet` (`ordinals.start`).
    pub first_ordinal: u32,
    /// Pods that a rolling update creates before it ends old ones.
    pub max_surge: RolloutShare,
    /// `LocalQueue` of Kueue that admits the pods.
    pub queue: Option<String>,
    /// Failed pods that each Job of the workload survives, if it makes Jobs.
    pub retries: Option<JobRetries>,
}

/// How the live number of replicas of a workload counts, if a delivery tool ignores the number that
/// the repository states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LiveReplicas {
    /// It stays, whatever the repository states.
    Stay,
    /// It stays until the next sync, so that the larger of the two numbers counts.
    MayStay,
}

/// A number of pods, or a share of the replicas of a workload: `maxSurge` or `maxUnavailable` of a
/// rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutShare {
    /// A number of pods.
    Pods(u32),
    /// Percent of the replicas.
    Percent(u32),
}

impl RolloutShare {
    /// No pod.
    pub const NONE: Self = Self::Pods(0);
    /// The default of a Deployment.
    pub const DEFAULT: Self = Self::Percent(25);

    /// Returns the number of pods for `replicas`, rounded up like `maxSurge`.
    pub fn rounded_up(self, replicas: u32) -> u32 {
        match self {
            Self::Pods(pods) => pods,
            Self::Percent(percent) => {
                let share = (u64::from(replicas) * u64::from(percent)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }

    /// Returns the number of pods for `replicas`, rounded down like `maxUnavailable`.
    pub fn rounded_down(self, replicas: u32) -> u32 {
        match self {
            Self::Pods(pods) => pods,
            Self::Percent(percent) => {
                let share = u64::from(replicas) * u64::from(percent) / 100;
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }
}

impl Workload {
    /// Returns a workload that creates no pods ahead of a rolling update, with ordinals from zero.
    pub fn new(id: WorkloadId, origin: Origin, scale: Scale, template: Arc<PodTemplate>) -> Self {
        let (max_surge, queue, retries) = (RolloutShare::NONE, None, None);
        Self { id, origin, scale, template, first_ordinal: 0, max_surge, queue, retries }
    }
}

/// Desired number of pods of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scale {
    /// Fixed number of pods.
    Replicas(u32),
    /// One pod on every node that admits it.
    PerNode,
    /// Number of parallel pods until the job is complete; none while suspended.
    Job {
        /// Maximum number of pods that run at the same time.
        pods: u32,
        /// Number of required completions. `None` for a work queue, which completes with the first
        /// successful pod.
        completions: Option<u32>,
        /// True if the job is suspended.
        suspended: bool,
    },
    /// One job at each time of a schedule.
    CronJob {
        /// Number of pods of one run.
        pods: u32,
        /// True if the schedule is suspended.
        suspended: bool,
        /// Schedule of the runs.
        schedule: CronSchedule,
    },
    /// Jobs that KEDA creates on demand.
    ScaledJob(JobScaling),
    /// Spare capacity for future pods.
    Buffer(BufferScaling),
}

/// Schedule of a `CronJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSchedule {
    /// Times of the runs.
    pub schedule: Schedule,
    /// Concurrency policy for overlapping runs.
    pub concurrency: Concurrency,
    /// Maximum duration of a run (`activeDeadlineSeconds`).
    pub deadline: Option<SignedDuration>,
}

/// Concurrency policy for overlapping runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Overlapping runs are allowed.
    Allow,
    /// The new run is skipped.
    Forbid,
    /// The new run replaces the previous one.
    Replace,
}

/// Scaling settings of a KEDA `ScaledJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobScaling {
    /// Number of pods of one job.
    pub pods: u32,
    /// Minimum number of jobs.
    pub min: u32,
    /// Maximum number of jobs.
    pub max: u32,
    /// Strategy that computes the number of new jobs.
    pub strategy: JobStrategy,
    /// True if the creation of jobs is paused.
    pub is_paused: bool,
}

/// Strategy of a `ScaledJob` for the number of new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStrategy {
    /// Jobs required by the queue length, minus running jobs.
    Default,
    /// As `Default`, minus `deduction`, and minus only a share of the running jobs.
    Custom {
        /// Number of jobs deducted from the queue length.
        deduction: u32,
        /// Share of the running jobs that is subtracted, in thousandths.
        running_milli: u32,
    },
    /// Jobs required by the queue length, minus pending jobs.
    Accurate,
    /// As many jobs as the maximum allows.
    Eager,
}

/// Size of a `CapacityBuffer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferScaling {
    /// Absolute number of pods.
    pub replicas: Option<u32>,
    /// Number of pods as a percentage of the pods of the target workload.
    pub percentage: Option<u32>,
    /// Limit on the total requests of the pods.
    pub limits: ResourceList,
    /// Target workload.
    pub target: Option<ScaleTarget>,
}

/// Scope of an item of a `LimitRange`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitScope {
    /// Each container.
    #[default]
    Container,
    /// All containers of a pod together.
    Pod,
}

/// An item of a `LimitRange` for containers or pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitRangeItem {
    /// Name of the limit range.
    pub range: String,
    /// Scope.
    pub scope: LimitScope,
    /// Default requests of containers.
    pub default_request: ResourceList,
    /// Default limits of containers.
    pub default_limit: ResourceList,
    /// Minimum request and limit.
    pub min: ResourceList,
    /// Maximum request and limit.
    pub max: ResourceList,
    /// Maximum ratio of limit to request, in thousandths.
    pub max_ratio: ResourceList,
}

/// A `ResourceQuota`: a limit on the total requests of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceQuota {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Source file and line.
    pub origin: Origin,
    /// Amounts by the keys of the quota (`requests.cpu`, `pods`): CPU in thousandths of a core,
    /// others in whole units. Keys for objects other than pods are omitted.
    pub hard: ResourceList,
    /// Scopes; a pod counts if it matches every scope.
    pub scopes: Vec<QuotaScope>,
}

/// Condition on the pods that count against a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaScope {
    /// Pods that request and limit neither CPU nor memory.
    BestEffort,
    /// Pods that request or limit CPU or memory.
    NotBestEffort,
    /// Pods whose priority class name satisfies the expression.
    PriorityClass(Operator, Vec<String>),
    /// Name of a scope that cannot be evaluated.
    Unknown(String),
}

/// A `RuntimeClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeClass {
    /// Resource overhead of each pod.
    pub overhead: ResourceList,
    /// Node selector.
    pub node_selector: Labels,
    /// Tolerations added to its pods.
    pub tolerations: Vec<Toleration>,
}

/// A `PodDisruptionBudget`, with amounts as written (`2` or `30%`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionBudget {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Source file and line.
    pub origin: Origin,
    /// Selector of the protected pods; `None` selects no pods.
    pub selector: Option<Selector>,
    /// Minimum number or percentage of available pods.
    pub min_available: Option<String>,
    /// Maximum number or percentage of unavailable pods.
    pub max_unavailable: Option<String>,
}

/// A `PriorityClass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityClass {
    /// Priority value; pods with a higher value are scheduled first.
    pub value: i32,
    /// True for the default class.
    pub is_default: bool,
    /// True if pods of this class may preempt other pods.
    pub preempts: bool,
}

/// A `PersistentVolumeClaim` of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeClaim {
    /// Source file and line.
    pub origin: Origin,
    /// Claim as declared, not bound to a volume.
    pub claim: Claim,
}
