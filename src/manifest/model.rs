//! The typed form of a repository, and what is said about the parts that could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::cron::Schedule;
use super::fleet::FailureDomains;
use super::group::NodeGroup;
use super::learned::LearnedNode;
use super::pool::{MinValuesPolicy, NodeClass, Overlay, Pool};
use super::scaling::{ScaleTarget, Scaler, VerticalScaler};
use crate::fargate::{Profile, Rates};
use crate::ids::{Labels, Namespace, NodeClassName, Origin, PoolName, WorkloadId};
use crate::pod::{Amounts, PodTemplate, Selector, Toleration, TopologySpread};
use crate::requirement::Operator;
use crate::storage::{Claim, PersistentVolume, StorageClass};

/// The files of a repository at one moment, already read: what `manifest` works on.
///
/// Paths are relative to the root, with `/`, and ascending. Reading them (from a directory, or from
/// the objects of a commit) is the business of the `git` adapter.
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
    /// The bytes, or why they could not be read (which is an error of the run, not an empty file).
    pub content: Result<Arc<[u8]>, String>,
}

/// How grave a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The run goes on; the plan may differ from what the author meant.
    Warning,
    /// What was read cannot be planned from: the plan is `errored`.
    Error,
}

/// Something wrong with an object, in a place, with a way out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// File and line.
    pub origin: Origin,
    /// How grave it is.
    pub severity: Severity,
    /// The object, such as `Deployment web/api`; empty where the file as a whole is meant.
    pub object: String,
    /// What is wrong: lowercase, with the value, without a final period.
    pub message: String,
    /// What to do about it, where something can be said.
    pub hint: Option<String>,
}

/// A file or document that is no input of ours, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Skipped {
    /// File and line.
    pub origin: Origin,
    /// Why, as a short constant phrase such as `no kind` or `kind ConfigMap`.
    pub reason: String,
}

/// A source of workloads whose size is not known: counted, named, never taken for none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unresolved {
    /// File and line.
    pub origin: Origin,
    /// The object or source, such as `HelmRelease web/shop`.
    pub object: String,
    /// Why its size is not known.
    pub reason: String,
}

/// Everything that a repository asks for.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    /// Workloads, by id.
    pub workloads: BTreeMap<WorkloadId, Workload>,
    /// Pools, by name.
    pub pools: BTreeMap<PoolName, Pool>,
    /// Node classes, by name.
    pub node_classes: BTreeMap<NodeClassName, NodeClass>,
    /// Node overlays, by name.
    pub overlays: BTreeMap<String, Overlay>,
    /// What to do where a pool's `minValues` cannot be met.
    pub min_values_policy: MinValuesPolicy,
    /// The namespaces in which other autoscalers of nodes live, where that is declared.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// What pods that ask for no spreading are spread by, where the scheduler was told so.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// How much may go down with one node or one zone, by pool.
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
    /// Node groups, by name; what their nodes are like stands in the pool of that name.
    pub node_groups: BTreeMap<PoolName, NodeGroup>,
    /// Groups that the settings name and no file describes: whether they are resized, and where the
    /// settings say so.
    pub groups_elsewhere: BTreeMap<PoolName, (bool, Origin)>,
    /// Fargate profiles, by name.
    pub fargate_profiles: BTreeMap<String, Profile>,
    /// What Fargate costs, where the settings say so.
    pub fargate_rates: Option<Rates>,
    /// What decides the number of pods of workloads.
    pub scalers: Vec<Scaler>,
    /// What decides what the pods of workloads ask for.
    pub verticals: Vec<VerticalScaler>,
    /// What nodes reported that ran once.
    pub learned: Vec<LearnedNode>,
    /// How long before it is needed capacity is to be there.
    pub lead: SignedDuration,
    /// Sources of workloads whose size is not known.
    pub unresolved: Vec<Unresolved>,
    /// Files and documents that are no input.
    pub skipped: Vec<Skipped>,
    /// What is wrong, in the order of files and lines.
    pub problems: Vec<Problem>,
}

/// A workload: who it is, how many pods it wants, and what each of them asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Identity.
    pub id: WorkloadId,
    /// File and line.
    pub origin: Origin,
    /// How many pods it wants.
    pub scale: Scale,
    /// What each pod asks for.
    pub template: Arc<PodTemplate>,
    /// The number of the first pod of a `StatefulSet` (`ordinals.start`).
    pub first_ordinal: u32,
}

/// How many pods a workload wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scale {
    /// So many at any time.
    Replicas(u32),
    /// One on every node that admits it.
    PerNode,
    /// So many at a time until the job is done; suspended jobs want none.
    Job {
        /// Pods at a time.
        pods: u32,
        /// Pods that have to succeed; `None` for a work queue, which ends with its first success.
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
    /// Jobs that KEDA makes as there is work for them.
    ScaledJob(JobScaling),
    /// Room kept for pods to come.
    Buffer(BufferScaling),
}

/// The schedule of a `CronJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSchedule {
    /// When it runs.
    pub due: Schedule,
    /// What becomes of a run where the one before has not ended.
    pub concurrency: Concurrency,
    /// Longest time that a run may take (`activeDeadlineSeconds`).
    pub deadline: Option<SignedDuration>,
}

/// What becomes of a run where the one before has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Both run.
    Allow,
    /// It is left out.
    Forbid,
    /// It takes the place of the one before.
    Replace,
}

/// How many jobs of a `ScaledJob` there are.
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
    /// Those that the queue asks for, less those that run.
    Default,
    /// The same less `deduction`, counting only a share of those that run.
    Custom {
        /// Jobs that the queue is taken to be shorter by.
        deduction: u32,
        /// The share of running jobs that counts, in thousandths.
        running_milli: u32,
    },
    /// Less those that wait.
    Accurate,
    /// As many as there may be.
    Eager,
}

/// How much room a `CapacityBuffer` keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferScaling {
    /// Pods, as a number.
    pub replicas: Option<u32>,
    /// Pods, as a share of those of the workload it is for, in percent.
    pub percentage: Option<u32>,
    /// What all of them may ask for together.
    pub limits: Amounts,
    /// The workload it is for.
    pub of: Option<ScaleTarget>,
}

/// What an item of a `LimitRange` is about.
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
    /// What it is about.
    pub scope: LimitScope,
    /// Requests given to containers that state none.
    pub default_request: Amounts,
    /// Limits given to containers that state none.
    pub default_limit: Amounts,
    /// Least request and limit.
    pub min: Amounts,
    /// Most request and limit.
    pub max: Amounts,
    /// Most that a limit may be, in thousandths of the request.
    pub max_ratio: Amounts,
}

/// A `ResourceQuota`: what all pods of a namespace may ask for together.
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
    pub hard: Amounts,
    /// The pods it counts: those of which every scope holds.
    pub scopes: Vec<QuotaScope>,
}

/// A condition on the pods that a quota counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaScope {
    /// Pods that request and limit neither CPU nor memory.
    BestEffort,
    /// Pods that request or limit CPU or memory.
    NotBestEffort,
    /// Pods whose priority class name is in the state that the expression asks for.
    PriorityClass(Operator, Vec<String>),
    /// A condition that is not told from what is kept of a pod, by its name.
    Unknown(String),
}

/// A `RuntimeClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeClass {
    /// What each pod of the class costs beyond its containers.
    pub overhead: Amounts,
    /// Labels that its nodes have.
    pub node_selector: Labels,
    /// Tolerations that its pods get.
    pub tolerations: Vec<Toleration>,
}

/// A `PodDisruptionBudget`; amounts are kept as written (`2` or `30%`).
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
    /// Pods that must stay.
    pub min_available: Option<String>,
    /// Pods that may go.
    pub max_unavailable: Option<String>,
}

/// A class of priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its value; higher goes first.
    pub value: i32,
    /// Whether pods that name no class have it.
    pub is_default: bool,
    /// Whether its pods have others evicted.
    pub preempts: bool,
}

/// A `PersistentVolumeClaim` of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeClaim {
    /// File and line.
    pub origin: Origin,
    /// What it asks for; as it is written, it is not bound yet.
    pub claim: Claim,
}
