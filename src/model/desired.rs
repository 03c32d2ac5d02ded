//! Desired state of a repository: pools, node classes, workloads, autoscalers and settings.

mod autoscaler;
mod disruption_budget;
mod instance_settings;
mod learned_nodes;
mod node_group;
mod pool;
mod render_request;
mod schedule;
mod settings;

pub use autoscaler::{
    Behavior, ContainerPolicy, CronTrigger, EventDriven, Fallback, Horizontal, Ladder, Linear,
    Metric, MetricSource, MetricTarget, PauseMode, Proportional, ProportionalMode, ScaleTarget,
    Scaler, ScalerRule, ScalingPolicy, ScalingRules, SelectPolicy, UpdateMode, VerticalScaler,
};
pub use disruption_budget::pods_to_keep;
pub use instance_settings::{
    BlockDevice, Ec2Selector, Identity, ImageTerm, InstanceSettings, MetadataOptions, UserData,
    describe_selectors,
};
pub use learned_nodes::{FORMAT as LEARNED_FORMAT, LEARNED_FILE, LearnedNode, LearnedNodes};
pub use node_group::{DISCOVERY_PREFIX, DISCOVERY_TAG, GroupKind, NodeGroup};
pub use pool::{
    AmiFamily, Budget, Consolidation, Expiry, Generation, KubeletSettings, MinValuesPolicy,
    NodeClass, NodeOverlay, Pool, PoolLimits, PoolRequirement, PriceChange, ReservationTerm,
    ReservedAmount,
};
pub use render_request::{
    Layer, Recipe, Release, RenderRequest, RenderResults, Rendered, RepositoryLocation, SetValue,
    Values,
};
pub use schedule::Schedule;
pub use settings::{
    AppliedBy, ApprovalRule, Autoscaled, ClusterSettings, CommitmentKind, ConsolidationSettings,
    ControllerSettings, CountOrShare, DeliverySettings, DemandSettings, DomainShares,
    FailureDomains, Fleet, GuardSettings, Mode, PricingCommitment, RateLimit, Renderer, Signer,
    SignerKey, Source, TrustedKey, Window,
};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::fargate::{FargateProfile, Rates};
use crate::model::ids::{Labels, Namespace, NodeClassName, Origin, PoolName, WorkloadId};
use crate::model::pod::{PodTemplate, ResourceList, Selector, Toleration, TopologySpread};
use crate::model::requirement::Operator;
use crate::model::storage::{Claim, PersistentVolume, StorageClass};

/// The files of a repository at one moment: the input of `manifest`.
///
/// Paths are relative to the root, with `/`, and ascending. Reading them (from a directory, or from
/// the objects of a commit) is the task of the `git` adapter.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// The files, by path.
    pub files: Vec<TreeFile>,
}

/// One file of a [`Tree`].
#[derive(Debug, Clone)]
pub struct TreeFile {
    /// Path below the root, with `/` between its parts.
    pub path: Arc<str>,
    /// The bytes, or why they could not be read (an error of the run, not an empty file).
    pub content: Result<Arc<[u8]>, String>,
}

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Planning continues; the plan may differ from the author's intent.
    Warning,
    /// Planning is impossible: the plan is `errored`.
    Error,
}

/// A problem of an object, with its origin and a hint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// File and line.
    pub origin: Origin,
    /// Severity.
    pub severity: Severity,
    /// The object, such as `Deployment web/api`; empty for the file as a whole.
    pub object: String,
    /// What is wrong: lowercase, with the value, without a final period.
    pub message: String,
    /// How to fix it, if known.
    pub hint: Option<String>,
}

/// A file or document that is not an input, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Skipped {
    /// File and line.
    pub origin: Origin,
    /// Why, as a short constant phrase such as `no kind` or `kind ConfigMap`.
    pub reason: String,
}

/// A source of workloads of unknown size: it is counted and named, never treated as empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unresolved {
    /// File and line.
    pub origin: Origin,
    /// The object or source, such as `HelmRelease web/shop`.
    pub object: String,
    /// Why its size is unknown.
    pub reason: String,
}

/// The desired state of a repository.
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
    /// Policy for a pool's `minValues` that cannot be met.
    pub min_values_policy: MinValuesPolicy,
    /// The namespaces of competing autoscalers, if declared.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// The scheduler's default spread constraints, if configured.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Failure domain limits by pool.
    pub failure_domains: BTreeMap<PoolName, FailureDomains>,
    /// Labels of namespaces that the repository declares.
    pub namespaces: BTreeMap<Namespace, Labels>,
    /// Priority classes, by name.
    pub priority_classes: BTreeMap<String, PriorityClass>,
    /// Overhead, node selector and tolerations of runtime classes.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// Limit ranges, by namespace.
    pub limit_ranges: BTreeMap<Namespace, Vec<LimitRangeItem>>,
    /// Quotas, by namespace and name.
    pub quotas: Vec<ResourceQuota>,
    /// Disruption budgets.
    pub disruption_budgets: Vec<DisruptionBudget>,
    /// Storage classes, by name.
    pub storage_classes: BTreeMap<String, StorageClass>,
    /// Persistent volumes, by name.
    pub volumes: BTreeMap<String, PersistentVolume>,
    /// Claims, by namespace and name.
    pub claims: BTreeMap<(Namespace, String), VolumeClaim>,
    /// Node groups, by name; the pool of that name describes their nodes.
    pub node_groups: BTreeMap<PoolName, NodeGroup>,
    /// Groups that only the settings name: whether they are resized, and the origin of the setting.
    pub external_groups: BTreeMap<PoolName, (bool, Origin)>,
    /// Fargate profiles, by name.
    pub fargate_profiles: BTreeMap<String, FargateProfile>,
    /// Prices of Fargate, if the settings have them.
    pub fargate_rates: Option<Rates>,
    /// Autoscalers of replicas.
    pub scalers: Vec<Scaler>,
    /// Autoscalers of requests.
    pub vertical_scalers: Vec<VerticalScaler>,
    /// Capacity that former nodes reported.
    pub learned_nodes: Vec<LearnedNode>,
    /// How long before demand arises its capacity must be ready.
    pub lead_time: SignedDuration,
    /// Sources of workloads of unknown size.
    pub unresolved: Vec<Unresolved>,
    /// Files and documents that are not inputs.
    pub skipped: Vec<Skipped>,
    /// Problems, by file and line.
    pub problems: Vec<Problem>,
}

impl Desired {
    /// Returns whether a node class launches into capacity reservations.
    #[must_use]
    pub fn uses_reservations(&self) -> bool {
        self.node_classes.values().any(|class| !class.reservations.is_empty())
    }
}

/// A workload: its identity, its number of pods, and their template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Identity.
    pub id: WorkloadId,
    /// File and line.
    pub origin: Origin,
    /// Number of pods.
    pub scale: Scale,
    /// Pod template.
    pub template: Arc<PodTemplate>,
    /// The number of the first pod of a `StatefulSet` (`ordinals.start`).
    pub first_ordinal: u32,
}

/// The number of pods that a workload wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scale {
    /// A fixed number.
    Replicas(u32),
    /// One on every node that admits it.
    PerNode,
    /// A number of pods at a time until the job is complete; none while suspended.
    Job {
        /// Pods at a time.
        pods: u32,
        /// Required completions; `None` for a work queue, which completes with its first success.
        completions: Option<u32>,
        /// Whether the job is suspended.
        suspended: bool,
    },
    /// A job at each time of a schedule.
    CronJob {
        /// Pods of one run.
        pods: u32,
        /// Whether the schedule is suspended.
        suspended: bool,
        /// When it runs.
        schedule: CronSchedule,
    },
    /// Jobs that KEDA creates on demand.
    ScaledJob(JobScaling),
    /// Spare capacity for future pods.
    Buffer(BufferScaling),
}

/// The schedule of a `CronJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSchedule {
    /// When it runs.
    pub schedule: Schedule,
    /// Concurrency policy for overlapping runs.
    pub concurrency: Concurrency,
    /// Longest time that a run may take (`activeDeadlineSeconds`).
    pub deadline: Option<SignedDuration>,
}

/// Concurrency policy for overlapping runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Both run.
    Allow,
    /// The new run is skipped.
    Forbid,
    /// The new run replaces the previous one.
    Replace,
}

/// The number of jobs of a `ScaledJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobScaling {
    /// Pods of one job.
    pub pods: u32,
    /// Fewest jobs.
    pub min: u32,
    /// Most jobs.
    pub max: u32,
    /// How new jobs are counted.
    pub strategy: JobStrategy,
    /// Whether no further jobs are made.
    pub is_paused: bool,
}

/// How a `ScaledJob` counts new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStrategy {
    /// Jobs that the queue requires, less the running ones.
    Default,
    /// As `Default`, less `deduction`, and counting only a share of the running jobs.
    Custom {
        /// Jobs to deduct from the queue length.
        deduction: u32,
        /// The share of running jobs that counts, in thousandths.
        running_milli: u32,
    },
    /// Jobs that the queue requires, less the pending ones.
    Accurate,
    /// The maximum.
    Eager,
}

/// The size of a `CapacityBuffer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferScaling {
    /// Pods, as a number.
    pub replicas: Option<u32>,
    /// Pods, as a share of those of the workload it is for, in percent.
    pub percentage: Option<u32>,
    /// Limit on their total requests.
    pub limits: ResourceList,
    /// The workload it is for.
    pub target: Option<ScaleTarget>,
}

/// The scope of an item of a `LimitRange`.
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
    /// Requests given to containers that state none.
    pub default_request: ResourceList,
    /// Limits given to containers that state none.
    pub default_limit: ResourceList,
    /// Least request and limit.
    pub min: ResourceList,
    /// Most request and limit.
    pub max: ResourceList,
    /// Most that a limit may be, in thousandths of the request.
    pub max_ratio: ResourceList,
}

/// A `ResourceQuota`: a limit on the total requests of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceQuota {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Amounts by the quota's own keys (`requests.cpu`, `pods`): CPU in thousandths, others in
    /// whole units. Keys that count other objects than pods are left out.
    pub hard: ResourceList,
    /// Scopes; a pod counts if every scope holds.
    pub scopes: Vec<QuotaScope>,
}

/// A condition on the pods that a quota counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaScope {
    /// Pods that request and limit neither CPU nor memory.
    BestEffort,
    /// Pods that request or limit CPU or memory.
    NotBestEffort,
    /// Pods whose priority class name satisfies the expression.
    PriorityClass(Operator, Vec<String>),
    /// A scope that cannot be evaluated, by name.
    Unknown(String),
}

/// A `RuntimeClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeClass {
    /// Overhead of each pod.
    pub overhead: ResourceList,
    /// Node selector.
    pub node_selector: Labels,
    /// Tolerations added to its pods.
    pub tolerations: Vec<Toleration>,
}

/// A `PodDisruptionBudget`; amounts as written (`2` or `30%`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionBudget {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// The pods it protects; `None` protects none.
    pub selector: Option<Selector>,
    /// Pods that must remain available.
    pub min_available: Option<String>,
    /// Pods that may be unavailable.
    pub max_unavailable: Option<String>,
}

/// A `PriorityClass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its value; pods of higher priority are scheduled first.
    pub value: i32,
    /// Whether it is the default class.
    pub is_default: bool,
    /// Whether its pods preempt others.
    pub preempts: bool,
}

/// A `PersistentVolumeClaim` of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeClaim {
    /// File and line.
    pub origin: Origin,
    /// The claim as declared, unbound.
    pub claim: Claim,
}
