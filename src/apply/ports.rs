//! Ports: the operations that observation and apply need from external systems.
//!
//! The production adapters (`aws`, `kube`) and the simulator implement the same traits, and callers
//! do not depend on the implementation. Operations are idempotent where the external system allows
//! it, and their outcome states the effect. They do not wait, retry or decide.

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
    UnreadObject,
};
use crate::model::pod::{PodTemplate, Taint};
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// Error of a port operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{verb} failed: {reason}")]
pub struct PortError {
    /// Name of the operation, such as `launch instance`.
    pub verb: String,
    /// Reason without secrets.
    pub reason: String,
    /// Effect of the call.
    pub effect: CallEffect,
}

impl PortError {
    /// Returns true if a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.effect != CallEffect::Refused
    }
}

/// Returns the error and its sources on one line, without repeated texts.
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only the adapters use it"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Effect of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEffect {
    /// The call had no effect, and the same call fails again.
    Refused,
    /// The call had no effect, for example because of throttling. A retry may succeed.
    NotApplied,
    /// The effect is unknown. A retry may succeed.
    Unknown,
}

impl CallEffect {
    /// Returns the effect of a failed call if only its transience is known.
    #[must_use]
    pub fn from_transience(transient: bool) -> Self {
        if transient { Self::Unknown } else { Self::Refused }
    }
}

/// A complete launch request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// Client token. EC2 launches at most one instance for a token.
    pub token: String,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Availability zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Capacity reservation that the instance must use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Image as stated in the node class.
    pub image: String,
    /// Tags, set by the launch call itself.
    pub tags: BTreeMap<String, String>,
    /// Labels at registration.
    pub labels: Labels,
    /// Permanent taints at registration.
    pub taints: Vec<Taint>,
    /// Startup taints at registration, removed once the node is initialized.
    pub startup_taints: Vec<Taint>,
    /// Expected capacity of the node. Simulated nodes report exactly this capacity.
    pub capacity: Resources,
    /// Expected allocatable resources of the node.
    pub allocatable: Resources,
    /// Further offerings of the same capacity type. EC2 chooses one offering of the request. It
    /// weighs price and capacity of Spot offerings, and takes the first available offering
    /// otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<LaunchOffering>,
}

impl LaunchRequest {
    /// Returns a request for each offering alone, the preferred offering first.
    pub fn offerings(&self) -> impl Iterator<Item = Self> + '_ {
        let alone = |offering: &LaunchOffering| {
            let LaunchOffering { instance_type, zone, labels, capacity, allocatable } =
                offering.clone();
            let alternatives = Vec::new();
            let tags = self.tags.clone();
            Self {
                instance_type,
                zone,
                labels,
                capacity,
                allocatable,
                alternatives,
                tags,
                token: self.token.clone(),
                capacity_type: self.capacity_type,
                reservation: self.reservation.clone(),
                image: self.image.clone(),
                taints: self.taints.clone(),
                startup_taints: self.startup_taints.clone(),
            }
        };
        let preferred = Self { alternatives: Vec::new(), ..self.clone() };
        std::iter::once(preferred).chain(self.alternatives.iter().map(alone))
    }
}

/// An offering of a launch request, and the node that it provides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOffering {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Availability zone.
    pub zone: ZoneName,
    /// Labels at registration.
    pub labels: Labels,
    /// Expected capacity of the node.
    pub capacity: Resources,
    /// Expected allocatable resources of the node.
    pub allocatable: Resources,
}

/// Outcome of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// The instance was launched by this call or by an earlier one with the same token.
    Launched(LaunchedInstance),
    /// No offering of the request has capacity now.
    InsufficientCapacity {
        /// Message of EC2.
        reason: String,
    },
}

/// A launched instance, and the offering that EC2 chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchedInstance {
    /// ID of the instance.
    pub id: InstanceId,
    /// Index of the chosen offering in the request. The preferred offering has index 0.
    pub offering: usize,
    /// Indexes of the offerings that EC2 reported without capacity.
    pub unavailable: Vec<usize>,
}

impl From<InstanceId> for LaunchedInstance {
    /// Returns an instance of the preferred offering.
    fn from(id: InstanceId) -> Self {
        Self { id, offering: 0, unavailable: Vec::new() }
    }
}

/// Outcome of a cordon or uncordon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonOutcome {
    /// The node was written.
    Written,
    /// Nothing was written: the node was replaced, or another client changed its cordon or its
    /// annotation since the observation. The caller must observe again.
    Outdated,
}

/// Outcome of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is terminating or deleted.
    Evicted,
    /// A PodDisruptionBudget blocks the eviction now.
    Blocked {
        /// The budget, as `namespace/name`.
        budget: String,
    },
}

/// AWS resources of the cluster from one read.
#[derive(Debug, Clone, Default)]
pub struct CloudInventory {
    /// Instances that carry the cluster tag or are members of one of the groups, including
    /// terminated instances while EC2 lists them.
    pub instances: Vec<Instance>,
    /// Auto Scaling groups of the cluster.
    pub groups: Vec<Group>,
    /// Capacity reservations that the account can use.
    pub reservations: Vec<Reservation>,
    /// Fargate profiles of the cluster.
    pub fargate_profiles: Vec<FargateProfile>,
    /// Resolved selectors of node classes, as far as they were looked up.
    pub resolved: Resolved,
    /// Resources that could not be read or understood, with the reason.
    pub unread: Vec<String>,
}

/// EC2 and related AWS services.
pub trait Cloud {
    /// Reads instances, groups, reservations, Fargate profiles and resolved selectors.
    fn holdings(&self) -> impl Future<Output = Result<CloudInventory, PortError>>;
    /// Launches one instance of one offering of the request, at most once for each token.
    fn launch(
        &self,
        request: &LaunchRequest,
    ) -> impl Future<Output = Result<LaunchOutcome, PortError>>;
    /// Raises the desired size of a group. It fails if the group would shrink or exceed its
    /// maximum.
    fn raise_group(
        &self,
        group: &GroupName,
        desired: u32,
    ) -> impl Future<Output = Result<(), PortError>>;
    /// Terminates one group member and lowers the desired size by one. It succeeds if the member no
    /// longer exists.
    fn terminate_member(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
    /// Terminates one instance. It succeeds if the instance no longer exists.
    fn terminate(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
}

/// Adoption of instances. It adds tags and changes nothing else.
pub trait Tagger {
    /// Adds tags to an instance, and keeps its other tags. It fails if the instance carries the tag
    /// of another cluster, or one of the tags with another value.
    fn tag(
        &self,
        id: &InstanceId,
        tags: &BTreeMap<String, String>,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// Kubernetes objects of the cluster from one read.
#[derive(Debug, Clone, Default)]
pub struct ClusterObjects {
    /// Nodes of the cluster.
    pub nodes: Vec<Node>,
    /// Pods of the cluster.
    pub pods: Vec<Arc<Pod>>,
    /// Pod templates by key.
    pub templates: BTreeMap<String, Arc<PodTemplate>>,
    /// Workloads of the cluster.
    pub workloads: Vec<LiveWorkload>,
    /// Storage classes, volumes, claims, and attach limits of nodes.
    pub storage: Storage,
    /// Observed state of autoscalers.
    pub scaling: Scaling,
    /// Objects of the whole cluster that could not be understood, with the reason. With any of them,
    /// the list is incomplete.
    pub unread: Vec<String>,
    /// Objects of namespaces and nodes that could not be understood.
    pub unread_objects: Vec<UnreadObject>,
}

/// One node and its pods.
#[derive(Debug, Clone)]
pub struct NodeAndPods {
    /// The node; `None` if it no longer exists.
    pub node: Option<Node>,
    /// Pods bound to the node. The owner of a pod is its direct owner, such as a ReplicaSet.
    pub pods: Vec<Arc<Pod>>,
}

/// The Kubernetes API.
pub trait Cluster {
    /// Reads nodes, pods, workloads, storage and the state of autoscalers.
    fn objects(&self) -> impl Future<Output = Result<ClusterObjects, PortError>>;
    /// Reads one node and then its pods, directly from the API server. [`Cluster::objects`] may
    /// lag. An object that cannot be understood is an error.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<NodeAndPods, PortError>>;
    /// Cordons a node with the reason `mark`, or uncordons it if `mark` is `None`. It writes
    /// nothing if the [`crate::model::observed::CordonState`] of the node changed since the
    /// observation.
    ///
    /// The same write sets or removes [`crate::model::observed::CORDONED_ANNOTATION`].
    fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonReason>,
    ) -> impl Future<Output = Result<CordonOutcome, PortError>>;
    /// Opens a closed node: removes the taint [`crate::model::pod::OPENING_TAINT`]. It succeeds if
    /// the node no longer has the taint, no longer exists, or was replaced by another of that name.
    fn open(&self, node: &Node) -> impl Future<Output = Result<(), PortError>>;
    /// Evicts a pod through the Eviction API. A deleted pod counts as evicted.
    fn evict(&self, pod: &Pod) -> impl Future<Output = Result<EvictOutcome, PortError>>;
    /// Deletes the node object of a terminated instance. It succeeds if the node no longer exists.
    fn delete_node(
        &self,
        node: &NodeName,
        uid: &Uid,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// A prerequisite of planning or applying, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Name of the prerequisite, such as `node class web: subnets`.
    pub what: String,
    /// State of the prerequisite.
    pub state: RequirementState,
}

/// State of a prerequisite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequirementState {
    /// The prerequisite is met.
    Met {
        /// Description of the found object.
        detail: String,
    },
    /// The prerequisite is not met.
    Missing {
        /// Reason why it is not met.
        why: String,
        /// Suggested change.
        remedy: String,
    },
    /// The prerequisite was not checked, because another one is missing.
    Unknown {
        /// Missing prerequisite.
        why: String,
    },
}

impl Requirement {
    /// Returns a prerequisite that is met if `found` is `Ok`, and missing otherwise.
    #[must_use]
    pub fn from_result(what: &str, found: Result<String, String>, remedy: &str) -> Self {
        let state = match found {
            Ok(detail) => RequirementState::Met { detail },
            Err(why) => RequirementState::Missing { why, remedy: remedy.to_owned() },
        };
        Self { what: what.to_owned(), state }
    }
}

/// A status object of the controller in the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// API group and version, such as `fleetwright.dev/v1alpha1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Plural name of the kind, used in the API path.
    pub plural: String,
    /// Name of the object.
    pub name: String,
    /// Spec; `None` to write only the status of an existing object.
    pub spec: Option<Json>,
    /// Short spec for a new object, used if `spec` is `None`.
    pub brief: Option<Json>,
    /// Status of the object.
    pub status: Json,
}

/// Metadata of a stored object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjectHead {
    /// Name of the object.
    pub name: String,
    /// Resource version, which changes with each write.
    pub version: String,
    /// Creation time.
    pub created_at: Timestamp,
}

/// Storage of the controller's status objects.
pub trait ObjectStore {
    /// Writes the spec and the status of an object and replaces its previous content. It sets the
    /// observed generation of the status. Without `spec` and `brief`, it does not create an object.
    fn put(&self, record: &StoredObject) -> impl Future<Output = Result<(), PortError>>;
    /// Returns the metadata of all objects of the kind of `like`.
    fn list(
        &self,
        like: &StoredObject,
    ) -> impl Future<Output = Result<Vec<StoredObjectHead>, PortError>>;
    /// Returns the object `name` of the kind of `like`; `None` if it does not exist.
    fn get(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<Option<StoredObject>, PortError>>;
    /// Deletes the object `name` of the kind of `like`. It succeeds if the object does not exist.
    fn remove(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<(), PortError>>;
}

/// User authenticated by a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User name in Kubernetes.
    pub name: String,
    /// UID of the user.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Additional attributes for authorization.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Authentication and authorization of users.
pub trait Authorizer {
    /// Returns the user of a token; `None` if the token is invalid.
    fn caller(&self, token: &str) -> impl Future<Output = Result<Option<Caller>, PortError>>;
    /// Returns true if the user may do `verb` on the cluster's plans.
    fn may(&self, caller: &Caller, verb: &str) -> impl Future<Output = Result<bool, PortError>>;
}

/// Time source.
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
    /// Waits for `duration`.
    fn sleep(&self, duration: SignedDuration) -> impl Future<Output = ()>;
    /// Lets other tasks run after a long computation. The default implementation does nothing.
    fn yield_now(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeComment {
    /// ID of the comment.
    pub id: u64,
    /// Login of the author.
    pub author: String,
    /// Text of the comment.
    pub body: String,
}

/// State of a commit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitState {
    /// The check passed.
    Success,
    /// The check failed.
    Failure,
}

/// A commit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// Name of the status, such as `fleetwright/plan`.
    pub context: String,
    /// State of the check.
    pub state: CommitState,
    /// Description in one line.
    pub description: String,
}

/// Error of a forge.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ForgeError {
    /// The token is missing, invalid or expired.
    #[error("the forge rejects the token: {0}")]
    Unknown(String),
    /// The token lacks a permission.
    #[error("the forge refuses: {0}")]
    Refused(String),
    /// The object does not exist, or the token cannot read it.
    #[error("not found on the forge: {0}")]
    NotFound(String),
    /// The request is rejected, for example because a comment is too long.
    #[error("the forge rejects the content: {0}")]
    Unprocessable(String),
    /// The forge is unreachable, returns errors or limits the rate, after several attempts.
    #[error("the forge cannot be reached: {0}")]
    Unavailable(String),
}

/// A code review platform, such as GitHub.
pub trait Forge {
    /// Returns the author name of comments written with this token.
    ///
    /// # Errors
    /// If the forge rejects the request or cannot be reached, as for all methods.
    fn author(&self) -> Result<String, ForgeError>;
    /// Returns the comments of a pull request, oldest first.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError>;
    /// Adds a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError>;
    /// Updates a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn update(&self, id: u64, body: &str) -> Result<(), ForgeError>;
    /// Deletes a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn delete(&self, id: u64) -> Result<(), ForgeError>;
    /// Sets a commit status.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError>;
}
