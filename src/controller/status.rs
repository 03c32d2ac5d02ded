//! Snapshot of the controller: plain values for metrics, page and Kubernetes objects.

mod blocked;
mod completed_apply;

pub use blocked::{Blocked, BlockedReason};
pub use completed_apply::{ApprovedBy, CompletedApply, PlanTotals};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::counters::Counters;
use crate::model::commit::CommitOrigin;
use crate::model::desired::{Mode, PoolLimits};
use crate::model::ids::{Address, Digest, InstanceId, NodeName, PlanId, PoolName};
use crate::model::observed::{ClusterIdentity, Completeness, Exclusion};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::telemetry::histogram::Histograms;

/// Published status of the controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Time of the snapshot.
    pub now: Timestamp,
    /// Start time of the process.
    pub started_at: Timestamp,
    /// Version of the program.
    pub version: String,
    /// Name of this replica, as holder of the lease.
    pub identity: String,
    /// True if this replica is the leader.
    pub is_leader: bool,
    /// Holder of the lease, if it is another process.
    pub lease_holder: Option<String>,
    /// True while an apply holds the lease, as far as this replica knows.
    pub is_lease_held_by_apply: bool,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// Effective mode.
    pub mode: Mode,
    /// Suspension by an operator: nothing new is started.
    pub suspended: Option<Suspension>,
    /// Active break-glass: approvals, windows and CI are bypassed.
    pub break_glass: Option<Suspension>,
    /// Latched breakers.
    pub breakers: Vec<Breaker>,
    /// The repository.
    pub repository: RepositoryStatus,
    /// Last observation; absent before the first.
    pub world: Option<WorldStatus>,
    /// Current full plan; absent before the first.
    pub plan: Option<PublishedPlan>,
    /// Changes in progress by plan, and their start time.
    pub in_progress: BTreeMap<PlanId, (Vec<Address>, Timestamp)>,
    /// Rows of the applies in progress that are finished.
    pub finished_changes: BTreeSet<Address>,
    /// Approval of the current plan, while it is being applied.
    #[serde(skip)]
    pub current_approval: Option<ApprovedBy>,
    /// Applies in progress that are not the current plan, such as an additive plan.
    pub partial_applies: Vec<PartialApply>,
    /// Completed applies, newest first; at most [`Status::HISTORY_MAX`]. The controller lists its
    /// own, and the status writer adds those recovered from Kubernetes objects.
    pub history: Vec<Arc<CompletedApply>>,
    /// Hourly cost of the fleet over time, as this process observed it; newest last.
    pub hourly_costs: Vec<(Timestamp, MicroUsd)>,
    /// Plans that were superseded before anything was applied, newest first; at most
    /// [`Status::SUPERSEDED_MAX`]. The status writer adds those of other processes.
    pub superseded: Vec<SupersededPlan>,
    /// Reason why the history of other processes may be missing.
    pub history_error: Option<String>,
    /// Instances that an external event terminates or is about to terminate.
    pub interrupted: Vec<InterruptionStatus>,
    /// Pools whose broken instances are not replaced, because too many of the pool are broken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withheld_repairs: Vec<WithheldRepair>,
    /// Nodes that an abandoned drain left cordoned and that this process uncordoned, newest first;
    /// at most [`Status::UNCORDONED_MAX`].
    pub uncordoned: Vec<UncordonedNode>,
    /// Offerings excluded for insufficient capacity, with the end of each exclusion.
    pub unavailable_offerings: Vec<Exclusion>,
    /// Quarantined pools, with the reason and the end.
    pub quarantined: BTreeMap<PoolName, (String, Timestamp)>,
    /// Last error of each action that currently fails. Failed reads are part of
    /// [`Status::repository`] and [`Status::world`].
    pub failing_actions: BTreeMap<ControllerAction, ActionFailure>,
    /// Size of the last persisted state.
    pub persisted_state: PersistedStateSize,
    /// Description of a competing autoscaler. While it runs, the controller only plans.
    pub competing_autoscaler: Option<String>,
    /// Counters of this process.
    pub counters: Counters,
    /// Durations since the start of the process.
    #[serde(skip)]
    pub durations: Histograms,
    /// Next wake-up of the controller.
    pub wakes_at: Option<Timestamp>,
}

impl Status {
    /// Maximum number of applies in the history.
    pub const HISTORY_MAX: usize = 50;
    /// Maximum number of superseded plans.
    pub const SUPERSEDED_MAX: usize = 5;
    /// Maximum number of listed uncordoned nodes.
    pub const UNCORDONED_MAX: usize = 20;

    /// Returns true once both the repository and the cluster were read.
    pub fn is_ready(&self) -> bool {
        self.repository.commit.is_some() && self.world.is_some()
    }
}

/// Size of the persisted state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PersistedStateSize {
    /// Size of the last persisted state in bytes.
    pub bytes: usize,
    /// Maximum size in bytes.
    pub max_bytes: usize,
    /// Entries that were dropped or shortened to fit.
    pub dropped_entries: usize,
}

/// A suspension or break-glass that an operator requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Reason.
    pub reason: String,
    /// End.
    pub until: Option<Timestamp>,
    /// Start.
    pub since: Timestamp,
    /// Operator.
    pub by: String,
}

/// A latched breaker: it blocks its kind of change until an operator resets it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Breaker {
    /// Name, such as `ineffective-launches`.
    pub name: String,
    /// Latch time.
    pub since: Timestamp,
    /// Cause, with numbers.
    pub why: String,
    /// Number of instances that the plan removes, for a mass removal. A reset approves a plan that
    /// removes no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<u32>,
}

/// State of reads from a source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SourceState {
    /// Time of the last successful read.
    pub read_at: Option<Timestamp>,
    /// Last error and the start of the failures, if the last read failed.
    pub error: Option<(String, Timestamp)>,
    /// Consecutive failures.
    pub failures: u32,
}

/// An action of the controller other than reading the repository and the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControllerAction {
    /// Load the persisted state.
    LoadState,
    /// Persist the state.
    SaveState,
    /// Cordon a node.
    Cordon,
    /// Uncordon a node.
    Uncordon,
    /// Evict pods.
    Evict,
    /// Terminate an instance.
    Terminate,
    /// Delete the node of a terminated instance.
    DeleteNode,
    /// Delete a message from its queue.
    Acknowledge,
    /// Open closed nodes.
    OpenNodes,
    /// Nominate a pod to a node.
    Nominate,
    /// Apply a row of a plan.
    Apply,
}

impl ControllerAction {
    /// Returns the action as labels and logs spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LoadState => "load-state",
            Self::SaveState => "save-state",
            Self::Cordon => "cordon",
            Self::Uncordon => "uncordon",
            Self::Evict => "evict",
            Self::Terminate => "terminate",
            Self::DeleteNode => "delete-node",
            Self::Acknowledge => "acknowledge",
            Self::OpenNodes => "open-nodes",
            Self::Nominate => "nominate",
            Self::Apply => "apply",
        }
    }
}

/// A failure that has not been followed by a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActionFailure {
    /// Id or address of the object; empty if there is only one.
    pub object: String,
    /// Last error.
    pub error: String,
    /// Time of the first failure.
    pub since: Timestamp,
    /// Time of the last failure.
    pub last: Timestamp,
    /// Number of failures.
    pub count: u32,
}

/// State of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RepositoryStatus {
    /// The served revision; outside Git, the hash of the tree.
    pub commit: Option<String>,
    /// Author and pull request of that commit.
    pub origin: Option<CommitOrigin>,
    /// Limits of the pools that have any.
    #[serde(skip)]
    pub pool_limits: BTreeMap<PoolName, PoolLimits>,
    /// The revision that should be served, while another one stands in for it.
    pub substitute_for: Option<String>,
    /// Rules that the served revision loosens. Until an approval, the rules before it count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loosened: Vec<String>,
    /// A newer revision that is not served yet, and the reason.
    pub waiting: Option<(String, String)>,
    /// State of reads.
    pub reads: SourceState,
    /// Number of errors in the served revision.
    pub problems: u32,
}

/// Summary of the last observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorldStatus {
    /// Time of the observation.
    pub taken_at: Timestamp,
    /// Age of the observation at [`Status::now`].
    pub age: SignedDuration,
    /// Completeness of each source.
    pub sources: BTreeMap<String, Completeness>,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of Ready nodes.
    pub ready: u32,
    /// Owned instances that run or start.
    pub instances: u32,
    /// Pods that are neither finished nor being deleted.
    pub pods: u32,
    /// Pending pods among them.
    pub pending: u32,
    /// Waiting time of the oldest pending pod.
    pub pending_for: Option<SignedDuration>,
    /// State of reads.
    pub reads: SourceState,
}

/// The current full plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PublishedPlan {
    /// The plan of everything that the repository declares, regardless of gates.
    pub plan: Arc<Plan>,
    /// Since when a plan with this digest is current.
    pub since: Timestamp,
    /// Blocked changes by address. Other changes may be applied.
    pub blocked: BTreeMap<Address, Blocked>,
}

impl PublishedPlan {
    /// Returns the digest of the plan.
    pub fn digest(&self) -> &Digest {
        &self.plan.capacity.digest
    }
}

/// An apply in progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartialApply {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Start.
    pub since: Timestamp,
    /// Approval of the plan.
    pub approved: ApprovedBy,
}

/// A plan that another plan replaced before anything of it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SupersededPlan {
    /// Digest of its decisions.
    pub digest: Digest,
    /// Time of the replacement.
    pub at: Timestamp,
}

/// A node that was found cordoned and was uncordoned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncordonedNode {
    /// The node.
    pub node: NodeName,
    /// Its instance.
    pub instance: InstanceId,
    /// Time of the uncordon.
    pub at: Timestamp,
}

/// An interrupted instance, and the phase of its interruption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterruptionStatus {
    /// The instance.
    pub instance: InstanceId,
    /// Its node, if it has joined.
    pub node: Option<NodeName>,
    /// Reason, such as `spot-interruption`, `rebalance`, `health`, `state-change`, `not-ready`.
    pub reason: String,
    /// Time of the notice.
    pub since: Timestamp,
    /// Time at which EC2 terminates the instance, or that of a scheduled change that was announced
    /// during a repair; absent without a deadline.
    pub deadline: Option<Timestamp>,
    /// Phase of the interruption.
    pub phase: InterruptionPhase,
    /// Reason that blocks its replacement and may last. Its pods stay while the replacement is
    /// blocked, at most until shortly before the deadline.
    pub replacement_blocked: Option<Blocked>,
}

/// A pool whose broken instances are not replaced, because too many of the pool are broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WithheldRepair {
    /// The pool.
    pub pool: PoolName,
    /// Number of broken instances whose replacement is not there.
    pub broken: u32,
    /// Number of instances of the pool.
    pub nodes: u32,
    /// Largest number of broken instances with which one is replaced.
    pub most: u32,
}

impl fmt::Display for WithheldRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, broken, nodes, most } = self;
        write!(
            f,
            "no broken node of pool {pool} is replaced: {broken} of its {nodes} nodes are broken, and \
             at most {most} may be"
        )
    }
}

/// Phase of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptionPhase {
    /// Noticed, and not cordoned yet.
    Noticed,
    /// Cordoned, while capacity for its pods starts.
    Replacing,
    /// Its pods are being evicted.
    Draining,
    /// EC2 was asked to terminate the instance.
    Terminating,
}
