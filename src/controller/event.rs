//! Events that the controller reacts to, and effects that it requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::interruption_message::InterruptionMessage;
use super::operator_requests::AuthorizedRequest;
use super::persisted_state::{PersistedState, VerifiedCommit};
use crate::apply::ports::{CordonOutcome, EvictOutcome, PortError};
use crate::apply::{
    self, NominationAnswer, OpenedBatch, OpeningAnnotations, PodNomination, Receipt,
};
use crate::model::commit::CommitOrigin;
use crate::model::desired::{ApplyConditions, ControllerSettings, PoolLimits, UnresolvedPolicy};
use crate::model::ids::{Address, InstanceId, Namespace, NodeName, PoolName};
use crate::model::observed::{CordonReason, Exclusion, Instance, Node, Observed, Pod};
use crate::plan::Plan;

/// A revision of the repository: its commit and the settings of the controller in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The commit; outside Git, the hash of the tree.
    pub commit: String,
    /// Author and pull request of the commit.
    pub origin: Option<CommitOrigin>,
    /// Limits of the pools that have any.
    pub pool_limits: BTreeMap<PoolName, PoolLimits>,
    /// Settings of the controller.
    pub controller: ControllerSettings,
    /// Apply windows and guards.
    pub guard: ApplyConditions,
    /// `consolidateAfter` of each pool.
    pub consolidate_after: BTreeMap<PoolName, SignedDuration>,
    /// Number of errors in the repository.
    pub error_count: u32,
    /// True if the revision declares neither a workload nor a pool, which indicates a failed render.
    pub is_empty: bool,
    /// Namespaces of competing node autoscalers, if declared.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// True if EKS reports that Auto Mode launches instances for pending pods.
    pub auto_mode: bool,
    /// Hashes of the policies that judge its plans.
    pub policies: BTreeSet<String>,
    /// Treatment of sources that are not read.
    pub unresolved: UnresolvedPolicy,
    /// Digest of everything that the commit declares besides its rules.
    pub fleet_digest: String,
    /// Digest of the pools of the cluster, if the commit reads them from there.
    pub cluster_pools: Option<String>,
    /// The commit itself, if commits must be signed and it was verified.
    pub verified: Option<VerifiedCommit>,
}

/// Reason why a commit could not be read by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevisionError {
    /// The commit does not exist, for example after a force push. A retry cannot succeed.
    NotFound(String),
    /// The read failed, so the commit may exist.
    Unreadable(String),
}

/// Limits of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanScope {
    /// Existing nodes that may change; `None` for all of them.
    pub changeable_nodes: Option<BTreeSet<NodeName>>,
    /// Addresses that must not change.
    pub excluded_addresses: Vec<Address>,
    /// True to plan only for pods that exist, and ignore the rest of the declared demand.
    pub running_pods_only: bool,
    /// True to leave out the fleets of the demand modes, which no decision needs.
    pub skips_demand_scenarios: bool,
}

impl PlanScope {
    /// Returns the scope of a plan that only launches.
    pub fn additive() -> Self {
        Self { changeable_nodes: Some(BTreeSet::new()), ..Self::default() }
    }

    /// Returns true if the scope limits nothing.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// The pods that a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodScope {
    /// All declared demand.
    Declared,
    /// Only pods that exist.
    RunningOnly,
}

/// Identifies a planning run or an apply.
pub type Ticket = u64;

/// Result of an attempt to terminate an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminateOutcome {
    /// EC2 was asked to terminate the instance.
    Called,
    /// Not terminated: the node has changed since it was observed.
    NodeChanged,
    /// Not terminated: the node could not be read.
    NodeUnreadable(PortError),
}

/// Input of the state machine.
#[derive(Debug, Clone)]
pub enum Event {
    /// The persisted state was loaded.
    StateLoaded(Result<Box<PersistedState>, PortError>),
    /// The state was persisted.
    StateSaved(Result<(), PortError>),
    /// The head of the branch was read.
    BranchRead(Result<Arc<Revision>, String>),
    /// A commit was read by its name.
    CommitRead {
        /// Name of the commit.
        commit: String,
        /// The revision, or the reason why it was not read.
        read: Result<Arc<Revision>, RevisionError>,
    },
    /// The cluster was observed. Its sources report whether the observation is complete.
    Observed(Arc<Observed>),
    /// No plan was made, because the planner of its commit is no longer cached.
    PlannerMissing {
        /// Ticket of the planning run.
        ticket: Ticket,
    },
    /// A plan was made.
    Planned {
        /// Ticket of the planning run.
        ticket: Ticket,
        /// The plan.
        plan: Arc<Plan>,
        /// Planning time.
        took: SignedDuration,
    },
    /// An apply reported progress.
    ApplyProgressed {
        /// The apply.
        ticket: Ticket,
        /// The progress.
        event: apply::Event,
    },
    /// An apply requests the next offering of a launch, and waits until the attempt is persisted.
    OfferingAttemptRequested {
        /// The apply.
        ticket: Ticket,
        /// The launch.
        address: Address,
        /// Index of the offering, from 0.
        attempt: u32,
    },
    /// An apply ended.
    ApplyFinished {
        /// The apply.
        ticket: Ticket,
        /// The receipt, or the reason why the apply was refused.
        result: Result<Box<Receipt>, String>,
    },
    /// An attempt to cordon a node ended.
    Cordoned {
        /// The instance.
        instance: InstanceId,
        /// Result of the call.
        result: Result<CordonOutcome, PortError>,
    },
    /// An attempt to uncordon a node ended.
    Uncordoned {
        /// The instance.
        instance: InstanceId,
        /// Result of the call.
        result: Result<CordonOutcome, PortError>,
    },
    /// An attempt to cordon the node of an interrupted instance ended while an apply held the lease.
    CordonedWithoutLease {
        /// The node.
        node: NodeName,
        /// Result of the call.
        result: Result<CordonOutcome, PortError>,
    },
    /// Evictions of pods on a node were requested.
    Evicted {
        /// The instance.
        instance: InstanceId,
        /// Result for each pod.
        results: Vec<Result<EvictOutcome, PortError>>,
    },
    /// An attempt to terminate an instance ended.
    TerminateFinished {
        /// The instance.
        instance: InstanceId,
        /// Result of the call.
        result: Result<TerminateOutcome, PortError>,
    },
    /// An attempt to delete the node of a terminated instance ended.
    NodeDeleted {
        /// The instance.
        instance: InstanceId,
        /// Result of the call.
        result: Result<(), PortError>,
    },
    /// An attempt to delete a message from its queue ended.
    Acknowledged {
        /// Receipt of the message.
        receipt: String,
        /// Result of the call.
        result: Result<(), PortError>,
    },
    /// An attempt to nominate pods to closed nodes ended.
    PodsNominated(Vec<NominationAnswer>),
    /// An attempt to open a batch of closed nodes ended.
    NodesOpened(OpenedBatch),
    /// A signal arrived.
    Signal(Signal),
    /// The requested wake-up time has passed.
    Timer,
}

/// Input that arrives unrequested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A pod is pending: a hint to observe the cluster.
    PodPending,
    /// Take a step and publish the status.
    Wake,
    /// The repository may have changed: a hint to read it.
    RepositoryChanged,
    /// The cluster changed in another way: a hint to observe it.
    WorldChanged,
    /// An interruption message arrived.
    Message(InterruptionMessage),
    /// An operator sent a request.
    Request(AuthorizedRequest),
    /// This replica acquired the lease.
    LeaseGained,
    /// This replica lost the lease, or another process holds it.
    LeaseLost {
        /// The new holder, if known.
        holder: Option<String>,
        /// True if the holder is an apply. It returns the lease, and handles no interruptions meanwhile.
        to_apply: bool,
    },
    /// The process must exit.
    Shutdown,
}

/// Output of the state machine.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Load the persisted state.
    LoadState,
    /// Persist the state.
    SaveState(Box<PersistedState>),
    /// Read the head of the branch.
    ReadBranch {
        /// The last commit whose signatures were verified.
        verified: Option<VerifiedCommit>,
    },
    /// Read a commit by its name.
    ReadCommit {
        /// Name of the commit.
        commit: String,
    },
    /// Observe the cluster.
    Observe,
    /// Make a plan.
    Plan {
        /// Ticket of the planning run.
        ticket: Ticket,
        /// The commit.
        commit: String,
        /// The observation to plan from.
        world: Arc<Observed>,
        /// Limits of the plan.
        limits: PlanScope,
    },
    /// Apply a plan.
    Apply {
        /// Ticket of the apply.
        ticket: Ticket,
        /// The commit.
        commit: String,
        /// The plan.
        plan: Arc<Plan>,
        /// Interrupted instances, which replanning before the first write leaves out.
        excluded_instances: Vec<InstanceId>,
        /// Instances that are removed only while no pod runs on their nodes.
        only_if_empty: BTreeSet<InstanceId>,
        /// True to wait until launched instances are Ready.
        wait_until_ready: bool,
        /// True to plan only for pods that exist, and ignore the rest of the declared demand.
        running_pods_only: bool,
        /// Earlier attempts of its launches.
        previous_attempts: BTreeMap<Address, apply::EarlierLaunch>,
        /// Launches of other applies that the plan counts as instances.
        launches_in_progress: Vec<Instance>,
    },
    /// Allow or refuse the next offering of a launch.
    AnswerOfferingAttempt {
        /// The apply.
        ticket: Ticket,
        /// The launch.
        address: Address,
        /// True if the attempt is persisted, so that the apply may proceed.
        is_persisted: bool,
    },
    /// Tell every apply to undo its drains and start nothing new.
    InterruptApplies,
    /// Cordon the node of an instance.
    Cordon {
        /// The instance.
        instance: InstanceId,
        /// The node, as it was observed.
        node: Box<Node>,
        /// Purpose of the cordon.
        reason: CordonReason,
    },
    /// Uncordon the node of an instance.
    Uncordon {
        /// The instance.
        instance: InstanceId,
        /// The node, as it was observed.
        node: Box<Node>,
    },
    /// Cordon the node of an interrupted instance while an apply holds the lease.
    CordonWithoutLease {
        /// The node, as it was observed.
        node: Box<Node>,
    },
    /// Evict pods.
    Evict {
        /// The instance.
        instance: InstanceId,
        /// The pods.
        pods: Vec<Pod>,
    },
    /// Terminate an instance that we own.
    Terminate {
        /// The instance.
        instance: InstanceId,
        /// The observed node, cordoned and empty. If set, terminate only while the node is unchanged.
        node: Option<Box<Node>>,
    },
    /// Delete the node of a terminated instance.
    DeleteNode {
        /// The instance.
        instance: InstanceId,
        /// The node, as it was observed.
        node: Box<Node>,
    },
    /// Delete a message from its queue.
    Acknowledge {
        /// Receipt of the message.
        receipt: String,
    },
    /// Nominate pods to closed nodes that do not open yet.
    NominatePods {
        /// The pods, each with its node.
        nominations: Vec<PodNomination>,
    },
    /// Nominate pods to closed nodes, then open all of these nodes and set their annotations. Open
    /// nodes are only annotated.
    OpenNodes {
        /// The pods, each with its node.
        nominations: Vec<PodNomination>,
        /// The nodes, as they were observed.
        nodes: Vec<Node>,
        /// The annotations of the nodes.
        annotations: OpeningAnnotations,
    },
    /// Wake the controller at this time, and at no other.
    WakeAt(Timestamp),
    /// Exit.
    Exit,
}

/// Returns the exclusion for an offering that EC2 had no capacity for.
pub(super) fn capacity_exclusion(event: &apply::Event) -> Option<Exclusion> {
    let apply::Step::InsufficientCapacity { instance_type, zone, capacity_type } = &event.step
    else {
        return None;
    };
    Some(Exclusion {
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        capacity_type: Some(*capacity_type),
        until: event.at,
    })
}
