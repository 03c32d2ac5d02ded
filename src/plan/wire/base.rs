//! Sources, preconditions and waves of a plan.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, Diagnostic};
use crate::demand::DemandMode;
use crate::model::desired::UnresolvedPolicy;
use crate::model::ids::{
    Address, Digest, GroupName, InstanceId, Origin, PoolName, Uid, WorkloadId,
};
use crate::model::observed::{ClusterIdentity, Completeness, Observed};
use crate::model::units::MicroUsd;

/// Changes of one revision compared with another, both planned over the same observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The other revision, as the user named it.
    pub revision: String,
    /// Commit of the other revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Digest of the other revision's plan.
    pub digest: Digest,
    /// Changes of this plan that the other revision would not make.
    pub caused: Vec<Address>,
    /// Changes of this plan that the other revision would make as well.
    pub pending: Vec<Address>,
    /// Changes that the other revision would make and this plan does not, one line each.
    pub withdrawn: Vec<String>,
    /// Price per hour after an apply of the other revision's plan.
    pub hourly_after: MicroUsd,
    /// Change of the price per hour that this revision causes.
    pub hourly_caused: MicroUsd,
    /// The same change at list prices; absent unless node overlays set a price of either plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_caused_list: Option<MicroUsd>,
    /// Change of the price per hour that was pending anyway.
    pub hourly_pending: MicroUsd,
    /// Names of the node overlays that set a price of either plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// Workloads whose planned pods differ.
    #[serde(default)]
    pub workloads: Vec<ComparedWorkload>,
    /// Workloads with at least as many unschedulable pods in the other revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced_pending: Vec<WorkloadId>,
    /// Problems of the inputs that the other revision has too, as object and message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems_pending: Vec<String>,
}

impl Comparison {
    /// Returns a key that identifies a problem independently of its place in the file.
    pub fn problem_key(diagnostic: &Diagnostic) -> String {
        format!("{}: {}", diagnostic.object, diagnostic.message)
    }
}

/// A workload whose planned pods differ between two revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedWorkload {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line in this revision; absent if it does not declare the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Pods that the other revision plans.
    pub before: u32,
    /// Pods that this revision plans.
    pub after: u32,
    /// Requests of each pod in the other revision; absent if both agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_before: Option<Amount>,
    /// Requests of each pod in this revision; absent if both agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_after: Option<Amount>,
}

/// Revision of the settings and policies that guard an apply, if it is not the planned tree. A pull
/// request must not loosen the rules that check it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrustedRevision {
    /// The revision, as the user named it.
    pub revision: String,
    /// Commit of the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// True if the planned tree has other settings or policies than the guard.
    pub changed: bool,
}

/// A policy file, or a data file of policies, that checked the plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct JudgedBy {
    /// Path, as in messages.
    pub path: String,
    /// SHA-256 of the text, 64 hex digits.
    pub sha256: String,
}

/// Sources of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Base {
    /// The planned path, as the user named it.
    pub path: String,
    /// The planned path relative to the root of its repository, empty for the root; absent outside
    /// of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// URL of the repository's `origin` without credentials; absent without an `origin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Commit; absent outside a Git work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// SHA-256 over paths and contents of the input files.
    pub tree: String,
    /// True if the work tree differs from the commit.
    #[serde(default)]
    pub dirty: bool,
    /// Manifests that renderers produced, by the rendered path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rendered: Vec<RenderedRow>,
    /// SHA-256 over the node pools and node classes of the cluster; absent if the repository declares
    /// them (`spec.pools`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_pools: Option<String>,
    /// The observation.
    pub world: BaseWorld,
    /// Pod count that the plan is made for.
    pub demand: DemandMode,
    /// True if upcoming runs of CronJobs do not count, because the plan is for no stated time. One
    /// commit then has one plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignores_runs: bool,
    /// True if the whole repository was read, and paths of files are relative to its root
    /// (`spec.wholeRepository`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_repository: bool,
    /// Treatment of the sources that were not read; absent if all were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<UnresolvedPolicy>,
    /// Conditions that must hold at the time of the apply.
    pub preconditions: Vec<Precondition>,
    /// Revision of the guarding settings and policies; absent if it is the planned tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<TrustedRevision>,
    /// Policy files that checked the plan. The same files check it once more before the apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged_by: Vec<JudgedBy>,
}

impl Base {
    /// Returns sources outside of a repository, without renderers and policies.
    pub fn new(
        path: impl Into<String>,
        tree: impl Into<String>,
        world: BaseWorld,
        demand: DemandMode,
    ) -> Self {
        Self {
            path: path.into(),
            directory: None,
            repository: None,
            commit: None,
            tree: tree.into(),
            dirty: false,
            rendered: Vec::new(),
            cluster_pools: None,
            world,
            demand,
            ignores_runs: false,
            whole_repository: false,
            unresolved: None,
            preconditions: Vec::new(),
            guard: None,
            judged_by: Vec::new(),
        }
    }
}

/// A directory whose manifests a renderer produced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct RenderedRow {
    /// The directory relative to the root of the planned tree; empty for the root itself.
    pub path: String,
    /// The renderer and its version.
    pub tool: String,
    /// SHA-256 over the settings and files that the renderer read.
    pub inputs: String,
}

/// The observation that a plan is made over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BaseWorld {
    /// `empty`, `live`, `file:NAME` or `sim:DIR`, as the user named it.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// Time of the observation.
    pub taken_at: Timestamp,
    /// Completeness of each source.
    pub sources: BTreeMap<String, Completeness>,
}

impl BaseWorld {
    /// Returns the observation of the world `name`.
    pub fn new(name: impl Into<String>, observed: &Observed) -> Self {
        Self {
            name: name.into(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        }
    }

    /// Returns why no plan over the observation can be applied, as a sentence without an end;
    /// `None` if the cluster can change.
    pub fn unchangeable_reason(&self) -> Option<String> {
        let Self { name, cluster, .. } = self;
        if name == EMPTY_WORLD {
            return Some(format!("world {name} cannot change"));
        }
        let is_unnamed = cluster.account.is_empty() || cluster.uid.is_empty();
        (name.starts_with(FILE_PREFIX) && is_unnamed)
            .then(|| format!("world {name} lacks the account or the UID of its cluster"))
    }
}

/// Name of the world without a cluster.
const EMPTY_WORLD: &str = "empty";

/// Beginning of the name of a saved observation.
const FILE_PREFIX: &str = "file:";

/// A condition that must hold when a change is applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Precondition {
    /// Row of the condition.
    pub address: Address,
    /// The condition.
    #[serde(flatten)]
    pub condition: Condition,
}

/// A condition on the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum Condition {
    /// The instance exists, is managed, and has this node.
    InstanceIs {
        /// Instance id.
        instance_id: InstanceId,
        /// UID of the node; null for an instance that has not joined.
        node_uid: Option<Uid>,
    },
    /// The group still has this desired size.
    GroupIs {
        /// The Auto Scaling group.
        group: GroupName,
        /// Its desired size.
        desired: u32,
    },
    /// No managed instance has this key in this pool.
    KeyUnused {
        /// Pool.
        pool: PoolName,
        /// Key.
        key: String,
    },
    /// The workload's live replicas are at most the planned ones.
    ReplicasAtMost {
        /// Workload.
        workload: WorkloadId,
        /// Maximum number of replicas.
        replicas: u32,
    },
}

/// Changes that may run concurrently. The next wave waits for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wave {
    /// Action of the wave.
    pub step: WaveStep,
    /// Rows of the wave.
    pub addresses: Vec<Address>,
}

/// Action of a wave.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WaveStep {
    /// Launch, and wait until the node is Ready.
    Launch,
    /// Cordon, drain, terminate.
    Retire,
}

impl WaveStep {
    /// Returns the wire word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Retire => "retire",
        }
    }
}
