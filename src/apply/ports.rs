//! The ports: the smallest verbs that observing and applying need of the outside.
//!
//! Production adapters (`aws`, `kube`) and the simulator implement the same traits; whoever drives
//! them cannot tell which. Verbs are idempotent where the outside allows it, and say in their
//! outcome what happened; nothing here waits, retries or decides.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;

use crate::model::fargate::FargateProfile;
use crate::model::ids::{
    GroupName, InstanceId, InstanceTypeName, Labels, NodeName, ReservationId, Uid, ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::observed::{
    CordonReason, Group, Instance, LiveWorkload, Node, Pod, Reservation, Resolved, Scaling,
};
use crate::model::pod::{PodTemplate, Taint};
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// Why a verb failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{verb} failed: {reason}")]
pub struct PortError {
    /// The verb, such as `launch instance`.
    pub verb: String,
    /// Why, without secrets.
    pub reason: String,
    /// What became of the call.
    pub effect: CallEffect,
}

impl PortError {
    /// Returns whether trying again may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.effect != CallEffect::Refused
    }
}

/// Returns an error with everything below it that it does not say itself, on one line.
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only the adapters ask"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        below = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What became of a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEffect {
    /// Nothing was done, and the same call is refused again.
    Refused,
    /// Nothing was done, as where too many calls were made; trying again may help.
    NotApplied,
    /// Nobody knows whether it was done; trying again may help.
    Unknown,
}

impl CallEffect {
    /// Returns the fate of a call of which nobody can say more than whether trying again may help.
    #[must_use]
    pub fn from_transience(transient: bool) -> Self {
        if transient { Self::Unknown } else { Self::Refused }
    }
}

/// What to launch, decided in every part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// Client token: the same token never launches a second instance.
    pub token: String,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// The capacity reservation to launch into; it, and no other capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Image as the node class names it.
    pub image: String,
    /// Tags, set in the launch call itself.
    pub tags: BTreeMap<String, String>,
    /// Labels that the node registers with.
    pub labels: Labels,
    /// Taints that the node registers with and keeps.
    pub taints: Vec<Taint>,
    /// Taints that the node registers with and loses once initialized.
    pub startup_taints: Vec<Taint>,
    /// What the node is expected to report; the simulator's nodes report exactly this.
    pub capacity: Resources,
    /// What its pods may use.
    pub allocatable: Resources,
}

/// How a launch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// An instance was launched, or had been with the same token.
    Launched(InstanceId),
    /// There is no capacity of that type in that zone now.
    InsufficientCapacity {
        /// What EC2 said.
        reason: String,
    },
}

/// How cordoning or uncordoning a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonOutcome {
    /// It was written.
    Written,
    /// Nothing was written: another node has the name, or somebody has cordoned, uncordoned or marked this one since it
    /// was seen. Whoever asked looks again.
    Outdated,
}

/// How an eviction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is on its way out, or gone.
    Evicted,
    /// A disruption budget forbids it now.
    Blocked {
        /// The budget, as `namespace/name`.
        budget: String,
    },
}

/// What the account holds for the cluster, read in one go.
#[derive(Debug, Clone, Default)]
pub struct CloudInventory {
    /// Every instance that carries our cluster tag or is a member of one of the groups, terminated
    /// ones included while EC2 shows them.
    pub instances: Vec<Instance>,
    /// Auto Scaling groups of the cluster.
    pub groups: Vec<Group>,
    /// Capacity reservations that the account can use.
    pub reservations: Vec<Reservation>,
    /// Fargate profiles of the cluster.
    pub fargate_profiles: Vec<FargateProfile>,
    /// What the words of node classes come to, as far as it was looked up.
    pub resolved: Resolved,
    /// What is there, or may be, and could not be read or understood, each with the reason.
    pub unread: Vec<String>,
}

/// EC2, and what of AWS stands around it.
pub trait Cloud {
    /// Reads instances, groups, reservations and Fargate profiles, and what was looked up of node classes.
    fn holdings(&self) -> impl Future<Output = Result<CloudInventory, PortError>>;
    /// Launches one instance, at most once for each token.
    fn launch(
        &self,
        request: &LaunchRequest,
    ) -> impl Future<Output = Result<LaunchOutcome, PortError>>;
    /// Raises the desired size of a group; fails if it would shrink, or grow above its most.
    fn raise_group(
        &self,
        group: &GroupName,
        desired: u32,
    ) -> impl Future<Output = Result<(), PortError>>;
    /// Ends one member of a group and lowers the group's desired size by one; a member that is gone
    /// is no error.
    fn terminate_member(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
    /// Terminates one instance; an instance that is gone is no error.
    fn terminate(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
}

/// What takes machines over: it adds tags, and changes nothing else.
pub trait Tagger {
    /// Adds tags to an instance; those that it carries already stay. Fails where the instance carries
    /// the tag of another cluster, or one of the tags with another value.
    fn tag(
        &self,
        id: &InstanceId,
        tags: &BTreeMap<String, String>,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// What the cluster holds, read in one go.
#[derive(Debug, Clone, Default)]
pub struct ClusterObjects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Pods.
    pub pods: Vec<Arc<Pod>>,
    /// Templates that the pods refer to.
    pub templates: BTreeMap<String, Arc<PodTemplate>>,
    /// Workloads.
    pub workloads: Vec<LiveWorkload>,
    /// Storage classes, volumes, claims, and what nodes can attach.
    pub storage: Storage,
    /// What autoscalers last saw and decided.
    pub scaling: Scaling,
    /// Objects that are there and could not be understood, each with the reason.
    pub unread: Vec<String>,
}

/// A node by itself.
#[derive(Debug, Clone)]
pub struct NodeAndPods {
    /// The node; `None` where it is gone.
    pub node: Option<Node>,
    /// The pods that are bound to it. Of those that another object owns which is owned itself, the owner is the lower one.
    pub pods: Vec<Arc<Pod>>,
}

/// Kubernetes.
pub trait Cluster {
    /// Reads nodes, pods, workloads, storage and the state of autoscalers.
    fn objects(&self) -> impl Future<Output = Result<ClusterObjects, PortError>>;
    /// Reads one node, and then the pods on it, as they are stored at this moment: what [`Cluster::objects`] shows may lag
    /// behind. What cannot be understood is an error.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<NodeAndPods, PortError>>;
    /// Cordons a node for the reason `mark`, or uncordons it. Writes nothing if the
    /// [`crate::model::observed::CordonState`] of the node changed since the observation.
    ///
    /// The same write sets, or removes, [`crate::model::observed::CORDONED_ANNOTATION`].
    fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonReason>,
    ) -> impl Future<Output = Result<CordonOutcome, PortError>>;
    /// Evicts a pod through the Eviction API; a pod that is gone counts as evicted.
    fn evict(&self, pod: &Pod) -> impl Future<Output = Result<EvictOutcome, PortError>>;
    /// Deletes a node object whose instance is gone; a node that is gone is no error.
    fn delete_node(
        &self,
        node: &NodeName,
        uid: &Uid,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// Something that must be in place before a plan can be made or applied, and whether it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// What it is, such as `node class web: subnets`.
    pub what: String,
    /// Whether it is in place.
    pub state: RequirementState,
}

/// Whether something is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequirementState {
    /// It is.
    Met {
        /// What was found.
        detail: String,
    },
    /// It is not.
    Missing {
        /// What was found instead.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// It was not looked at, because something else is missing.
    Unknown {
        /// What is missing.
        why: String,
    },
}

impl Requirement {
    /// Returns a requirement that is met where `found` is something, and else is missing.
    #[must_use]
    pub fn from_result(what: &str, found: Result<String, String>, remedy: &str) -> Self {
        let state = match found {
            Ok(detail) => RequirementState::Met { detail },
            Err(why) => RequirementState::Missing { why, remedy: remedy.to_owned() },
        };
        Self { what: what.to_owned(), state }
    }
}

/// An object about the loop, for whoever asks the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Group and version, such as `fleetwright.dev/v1alpha1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name of the kind's collection.
    pub plural: String,
    /// Name of the object.
    pub name: String,
    /// What is decided; absent where only the status of an object that is there is written.
    pub spec: Option<Json>,
    /// What is decided, in short: for an object that is not there, where `spec` is absent.
    pub brief: Option<Json>,
    /// What came of it.
    pub status: Json,
}

/// The head of a record that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjectHead {
    /// Name.
    pub name: String,
    /// What changes with each write of it.
    pub version: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Where records are kept.
pub trait ObjectStore {
    /// Writes a record: spec and status as they are said, and nothing else of it remains. The
    /// generation that a status is about is filled in. With neither spec nor brief, an object that is not
    /// there is left so.
    fn put(&self, record: &StoredObject) -> impl Future<Output = Result<(), PortError>>;
    /// Returns the heads of the records of the kind of `like`, whatever it is called.
    fn list(
        &self,
        like: &StoredObject,
    ) -> impl Future<Output = Result<Vec<StoredObjectHead>, PortError>>;
    /// Returns the record of the kind of `like` that is called `name`; nothing where it is gone.
    fn get(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<Option<StoredObject>, PortError>>;
    /// Removes the record of the kind of `like` that is called `name`; one that is gone is no error.
    fn remove(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// Somebody who is known by a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The name by which the cluster knows them.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Whatever else tells what they may do.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Who asks, and what they may.
pub trait Authorizer {
    /// Returns whose token it is; `None` where nobody's.
    fn caller(&self, token: &str) -> impl Future<Output = Result<Option<Caller>, PortError>>;
    /// Returns whether somebody may do `verb` to the plans of the cluster.
    fn may(&self, caller: &Caller, verb: &str) -> impl Future<Output = Result<bool, PortError>>;
}

/// Time.
pub trait Clock {
    /// Returns the current moment.
    fn now(&self) -> Timestamp;
    /// Waits.
    fn sleep(&self, duration: SignedDuration) -> impl Future<Output = ()>;
    /// Lets what goes on beside a long computation catch up; where nothing does, nothing happens.
    fn yield_now(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// A comment of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeComment {
    /// Its number.
    pub id: u64,
    /// Who wrote it.
    pub author: String,
    /// Its text.
    pub body: String,
}

/// What a commit status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitState {
    /// All is well.
    Success,
    /// Something must change first.
    Failure,
}

/// A status of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// Which of a commit's statuses it is, such as `fleetwright/plan`.
    pub context: String,
    /// What it says.
    pub state: CommitState,
    /// The same in a line.
    pub description: String,
}

/// Why a forge did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ForgeError {
    /// The token is none, or no longer one.
    #[error("the forge does not know the token: {0}")]
    Unknown(String),
    /// The token may not do that.
    #[error("the forge refuses: {0}")]
    Refused(String),
    /// There is no such thing, or the token may not see it.
    #[error("the forge knows no such thing: {0}")]
    NotFound(String),
    /// What was sent is not accepted, such as a comment that is too long.
    #[error("the forge does not accept it: {0}")]
    Unprocessable(String),
    /// It cannot be reached, or is not well, or wants to be asked less often; several tries failed.
    #[error("the forge cannot be reached: {0}")]
    Unavailable(String),
}

/// Where changes are reviewed.
pub trait Forge {
    /// Returns who writes what is written here.
    ///
    /// # Errors
    /// When the forge refuses or cannot be reached; so for all others.
    fn author(&self) -> Result<String, ForgeError>;
    /// Returns the comments of a pull request, the oldest first.
    ///
    /// # Errors
    /// As above.
    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError>;
    /// Adds a comment.
    ///
    /// # Errors
    /// As above.
    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError>;
    /// Changes a comment.
    ///
    /// # Errors
    /// As above.
    fn update(&self, id: u64, body: &str) -> Result<(), ForgeError>;
    /// Removes a comment.
    ///
    /// # Errors
    /// As above.
    fn delete(&self, id: u64) -> Result<(), ForgeError>;
    /// Sets a status of a commit.
    ///
    /// # Errors
    /// As above.
    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError>;
}
