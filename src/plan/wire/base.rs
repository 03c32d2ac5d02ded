//! What a plan was made from, what must still hold, and in which order it is carried out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, Diagnostic};
use crate::demand::DemandMode;
use crate::fleet::{ClusterIdentity, Completeness};
use crate::ids::{Address, Digest, GroupName, InstanceId, Origin, PoolName, Uid, WorkloadId};
use crate::units::MicroUsd;

/// What one revision changes against another, both planned over the same world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The revision compared with, as the user named it.
    pub revision: String,
    /// Its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of the plan that it would give.
    pub digest: Digest,
    /// Changes of this plan that the other revision would not make.
    pub caused: Vec<Address>,
    /// Changes of this plan that the other revision would make just the same.
    pub pending: Vec<Address>,
    /// Changes that the other revision would make and this plan does not, in words of one line.
    pub withdrawn: Vec<String>,
    /// Price per hour once the other revision's plan were applied.
    pub hourly_after: MicroUsd,
    /// What this revision adds to the price per hour.
    pub hourly_caused: MicroUsd,
    /// What was pending anyway adds to the price per hour.
    pub hourly_pending: MicroUsd,
    /// Workloads whose planned pods differ.
    #[serde(default)]
    pub workloads: Vec<ComparedWorkload>,
    /// Workloads of which the other revision leaves at least as many pods without a place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced_pending: Vec<WorkloadId>,
    /// Problems of the inputs that the other revision has as well, as object and message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems_pending: Vec<String>,
}

impl Comparison {
    /// Returns what tells a problem apart, wherever it stands in its file.
    #[must_use]
    pub fn problem(diagnostic: &Diagnostic) -> String {
        format!("{}: {}", diagnostic.object, diagnostic.message)
    }
}

/// A workload whose planned pods differ between two revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedWorkload {
    /// Workload.
    pub workload: WorkloadId,
    /// Where this revision declares it; absent where it no longer does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Pods that the other revision plans.
    pub before: u32,
    /// Pods that this revision plans.
    pub after: u32,
    /// What each pod asks for in the other revision; absent where both agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_before: Option<Amount>,
    /// What each pod asks for in this revision; absent where both agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_after: Option<Amount>,
}

/// Where the settings and policies that guard an apply were read, where that is not the tree that
/// was planned: a pull request must not loosen the rules that it is judged by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Guard {
    /// The revision, as the user named it.
    pub revision: String,
    /// Its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the planned tree has other settings or policies than the guarding one.
    pub changed: bool,
}

/// A file that judged a plan: a policy, or data of policies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct JudgedBy {
    /// Its path, as messages name it.
    pub path: String,
    /// SHA-256 of its text, 64 hex digits.
    pub sha256: String,
}

/// What a plan was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Base {
    /// The path that was planned, as the user named it.
    pub path: String,
    /// The same path below the root of its repository, empty for the root; absent outside of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// URL of the repository's `origin` without credentials; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Commit; absent outside a Git work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// SHA-256 over paths and contents of the files read.
    pub tree: String,
    /// Whether the work tree differs from the commit.
    #[serde(default)]
    pub dirty: bool,
    /// What tools made of the files, by the path that was rendered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rendered: Vec<RenderedRow>,
    /// The world.
    pub world: BaseWorld,
    /// Which of a workload's counts the plan is made for.
    pub demand: DemandMode,
    /// What must still hold when the plan is applied.
    pub preconditions: Vec<Precondition>,
    /// Where guarding settings and policies were read, where that is another revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// What judged the plan; the same files judge it again before it is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged_by: Vec<JudgedBy>,
}

/// A directory that a tool made manifests of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct RenderedRow {
    /// The directory below the path that was planned; empty for that path itself.
    pub path: String,
    /// The tool and its version.
    pub tool: String,
    /// SHA-256 over settings and files that it was made from.
    pub inputs: String,
}

/// The world a plan was made over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BaseWorld {
    /// `empty`, `live`, `file:NAME` or `sim:DIR`, as the user named it.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// When it was observed.
    pub taken_at: Timestamp,
    /// How complete each source is.
    pub sources: BTreeMap<String, Completeness>,
}

/// Something that must still hold when a change is applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Precondition {
    /// The row it belongs to.
    pub address: Address,
    /// What must hold.
    #[serde(flatten)]
    pub condition: Condition,
}

/// A condition on the world.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum Condition {
    /// The instance exists, is ours, and its node is this one.
    InstanceIs {
        /// Instance id.
        instance_id: InstanceId,
        /// UID of its node; absent where none had joined.
        node_uid: Option<Uid>,
    },
    /// The group is to have as many members as it had.
    GroupIs {
        /// The Auto Scaling group.
        group: GroupName,
        /// Its desired size.
        desired: u32,
    },
    /// No instance of ours has this key in this pool.
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
        /// The most.
        replicas: u32,
    },
}

/// Changes that may go on at the same time; the next wave waits for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wave {
    /// What the wave does.
    pub step: WaveStep,
    /// The rows it does it to.
    pub addresses: Vec<Address>,
}

/// What a wave does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WaveStep {
    /// Launch, and wait until Ready.
    Launch,
    /// Cordon, drain, terminate.
    Retire,
}
