//! The observed state: instances, nodes and pods at one moment.
//!
//! An [`Observed`] is also the world file: versioned JSON that `observe` writes, that `plan --world
//! FILE` reads, and that the simulator stores. It holds names, labels and amounts, never secrets.
//! Invariant: a source that could not be read is marked in `sources`, never silently omitted.

mod capacity;
mod cordon;
mod difference;
mod file;
#[cfg(test)]
pub(crate) mod fixture;
mod group;
mod node_fault;
mod removal;
mod resolved;
mod scaling;

pub use capacity::{Exclusion, MatchCriteria, Reservation, ReservationKind, ReservationState};
pub use cordon::{CORDONED_ANNOTATION, CordonReason, CordonState};
pub use difference::{Difference, Disagreement};
pub use file::{WorldError, read_world, template_key, write_world};
pub use group::{Group, Membership, ScheduledSize};
pub use node_fault::NodeFault;
pub use resolved::{
    Accelerator, Arch, Hardware, ImageChoice, LaunchedWith, NodeClassField, Resolved,
    UnresolvedTerm,
};
pub use scaling::{
    LiveEvents, LiveHorizontal, LiveMetric, LiveScale, LiveVertical, Recommendation, Scaling,
};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::fargate;
use crate::model::ids::{
    GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, Namespace, NodeName, Region,
    ReservationId, Tags, Uid, WorkloadId, WorkloadKind, ZoneName,
};
use crate::model::market::{CapacityType, Market};
use crate::model::pod::{PodTemplate, ResourceList, Taint};
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// The version of the world file that this program writes.
pub const FORMAT_VERSION: &str = "1.0";

/// Tags of the instances that this program manages; the launch call itself sets all of them.
pub mod tag {
    /// Name of the cluster the instance belongs to.
    pub const CLUSTER: &str = "fleetwright.dev/cluster";
    /// Pool the instance was launched for.
    pub const POOL: &str = "fleetwright.dev/pool";
    /// Key of the instance within its pool: the index of its address.
    pub const KEY: &str = "fleetwright.dev/key";
    /// Change that launched the instance.
    pub const CHANGE: &str = "fleetwright.dev/change";
    /// Digest of the node class and pool template the instance was launched with.
    pub const SPEC: &str = "fleetwright.dev/spec";
    /// Prefix of the tags that record labels whose value the pool leaves open; the label key follows.
    pub const LABEL_PREFIX: &str = "fleetwright.dev/label/";
    /// Maximum length of a tag key in EC2.
    pub const KEY_CHARS_MAX: usize = 128;
}

/// Label of managed nodes: the key of the instance within its pool.
pub const KEY_LABEL: &str = "fleetwright.dev/key";

/// Annotation that excludes a node from the scale-down of Cluster Autoscaler.
pub const SCALE_DOWN_DISABLED_ANNOTATION: &str =
    "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// Everything observed at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Version of the format, `major.minor`.
    pub format_version: String,
    /// The cluster's identity.
    pub cluster: ClusterIdentity,
    /// When the reads began.
    pub taken_at: Timestamp,
    /// How complete each source is, by name (`ec2`, `kubernetes`).
    pub sources: BTreeMap<String, Completeness>,
    /// Instances, by id.
    #[serde(default)]
    pub instances: BTreeMap<InstanceId, Instance>,
    /// Nodes, by name.
    #[serde(default)]
    pub nodes: BTreeMap<NodeName, Node>,
    /// Workloads in the cluster, by `namespace/kind/name`.
    #[serde(default)]
    pub workloads: Vec<LiveWorkload>,
    /// Pod templates that pods and workloads refer to, by content key. A template names a node only
    /// if the pod was created with it, not if a scheduler bound it.
    #[serde(default)]
    pub templates: BTreeMap<String, Arc<PodTemplate>>,
    /// Pods, by namespace and name; successive observations share unchanged pods.
    #[serde(default)]
    pub pods: Vec<Arc<Pod>>,
    /// Storage classes, volumes, claims and attach limits. A file without this key has no storage
    /// data; see [`Storage`].
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    pub storage: Storage,
    /// Offerings that EC2 recently had no capacity for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<Exclusion>,
    /// Capacity reservations that the account can use, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// Auto Scaling groups of the cluster, by name; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, Group>,
    /// Fargate profiles of the cluster, by name; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fargate_profiles: BTreeMap<String, fargate::FargateProfile>,
    /// The offerings of EC2. If the key is absent, the embedded catalog is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// Images, subnets and security groups that node classes resolved to; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Resolved::is_empty")]
    pub resolved: Resolved,
    /// The last metrics and decisions of autoscalers; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Scaling::is_empty")]
    pub scaling: Scaling,
}

/// Who a cluster is: a plan is applied to the cluster it was made for, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClusterIdentity {
    /// Name.
    pub name: String,
    /// Region.
    pub region: String,
    /// AWS account.
    pub account: String,
    /// UID of the namespace `kube-system`.
    pub uid: String,
}

/// How much of a source was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Completeness {
    /// All of it.
    Complete,
    /// A part of it.
    Partial {
        /// What is missing, and why.
        reason: String,
    },
    /// Nothing.
    Failed {
        /// Why.
        reason: String,
    },
}

/// An EC2 instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Id.
    pub id: InstanceId,
    /// Type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// State.
    pub state: InstanceState,
    /// When it was launched.
    pub launched_at: Timestamp,
    /// Image as the node class names it.
    #[serde(default)]
    pub image: String,
    /// The image, subnet and security groups it was launched with.
    #[serde(rename = "made_with", default, skip_serializing_if = "LaunchedWith::is_empty")]
    pub launched_with: LaunchedWith,
    /// Tags.
    #[serde(default)]
    pub tags: Tags,
    /// The capacity reservation it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// The Auto Scaling group that it is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Membership>,
}

impl Instance {
    /// Returns the labels that were fixed at launch because the pool leaves them open.
    #[must_use]
    pub fn open_labels(&self) -> Labels {
        let labels = self.tags.iter().filter_map(|(key, value)| {
            Some((LabelKey::from(key.strip_prefix(tag::LABEL_PREFIX)?), value.as_str().into()))
        });
        labels.collect()
    }

    /// Returns whether this program manages the instance for `cluster`, by its tags.
    #[must_use]
    pub fn is_managed_by(&self, cluster: &str) -> bool {
        self.tags.get(tag::CLUSTER).is_some_and(|name| name == cluster)
            && self.tags.contains_key(tag::POOL)
    }

    /// Returns the first of `tags` that the instance has with another value, and that value.
    #[must_use]
    pub fn conflicting_tag<'a>(
        &'a self,
        tags: &'a BTreeMap<String, String>,
    ) -> Option<(&'a str, &'a str)> {
        let held = tags.iter().filter_map(|(key, value)| Some((key, value, self.tags.get(key)?)));
        let mut others = held.filter(|(_, value, held)| value != held);
        others.next().map(|(key, _, held)| (key.as_str(), held.as_str()))
    }

    /// Returns whether the instance is pending or running.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.state, InstanceState::Pending | InstanceState::Running)
    }
}

/// The state of an instance, as EC2 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// Launched, not yet running.
    Pending,
    /// Running.
    Running,
    /// About to stop.
    Stopping,
    /// Stopped.
    Stopped,
    /// About to be terminated.
    ShuttingDown,
    /// Gone.
    Terminated,
}

/// A Kubernetes node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name.
    pub name: NodeName,
    /// UID.
    pub uid: Uid,
    /// The instance it runs on, from its provider id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Labels.
    #[serde(default)]
    pub labels: Labels,
    /// Annotations with a meaning for capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Taints, except those that only mirror `unschedulable` or `ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Reported capacity.
    pub capacity: Resources,
    /// Resources available to pods.
    pub allocatable: Resources,
    /// Whether it is Ready.
    pub ready: bool,
    /// Reported faults; a faulty node may still be Ready.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub faults: BTreeSet<NodeFault>,
    /// Whether it is cordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// When it registered.
    pub created_at: Timestamp,
}

impl Node {
    /// Orders the nodes that claim one instance: the greatest is the current one. No two are equal.
    fn node_precedence(&self) -> (bool, Timestamp, Reverse<&NodeName>) {
        (self.ready, self.created_at, Reverse(&self.name))
    }

    /// Returns whether Fargate runs the node: it holds a single pod and is not planned.
    #[must_use]
    pub fn is_fargate(&self) -> bool {
        let label = self.labels.get(fargate::COMPUTE_TYPE);
        is_fargate_name(&self.name) || label.is_some_and(|v| v.as_str() == fargate::FARGATE)
    }

    /// Returns whether EKS Auto Mode manages the node.
    #[must_use]
    pub fn is_auto_mode(&self) -> bool {
        self.labels.get(fargate::COMPUTE_TYPE).is_some_and(|v| v.as_str() == fargate::AUTO)
    }
}

/// Returns whether the name is one that Fargate generates.
#[must_use]
pub fn is_fargate_name(name: &NodeName) -> bool {
    name.as_str().starts_with(fargate::NODE_PREFIX)
}

/// A workload in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LiveWorkload {
    /// Identity.
    #[serde(flatten)]
    pub id: WorkloadId,
    /// Configured replicas.
    pub replicas: u32,
    /// The number of the first pod of a `StatefulSet` (`ordinals.start`).
    #[serde(default, skip_serializing_if = "is_first")]
    pub first_ordinal: u32,
    /// Whether a delivery tool syncs it from this repository, so that a workload missing there will
    /// be deleted. If unknown, it is false and its pods retain their capacity.
    #[serde(default)]
    pub delivered: bool,
    /// Key in [`Observed::templates`] of the controller's pod template, if it was read. Pods that
    /// request more were mutated at admission, or resized since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(ordinal: &u32) -> bool {
    *ordinal == 0
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Uid,
    /// The workload at the top of its chain of owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<WorkloadId>,
    /// Key of its template in [`Observed::templates`].
    pub template: String,
    /// The node it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Phase.
    pub phase: PodPhase,
    /// When it was created.
    pub created_at: Timestamp,
    /// When the kubelet accepted it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Whether it is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// Whether it is a mirror pod, which the kubelet creates from a file on the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Requests by container after an in-place resize: the larger of `allocatedResources` and
    /// `resources` in the status. Empty if they equal those of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub granted: BTreeMap<String, ResourceList>,
}

impl Pod {
    /// Returns the pod's owner, or the pod itself if it has none.
    #[must_use]
    pub fn workload(&self) -> WorkloadId {
        let itself = || WorkloadId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            kind: WorkloadKind::Pod,
        };
        self.owner.clone().unwrap_or_else(itself)
    }

    /// Returns whether the pod needs capacity: it is neither finished nor terminating.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.terminating && matches!(self.phase, PodPhase::Pending | PodPhase::Running)
    }
}

/// The phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not yet bound, or its containers have not started.
    Pending,
    /// Running.
    Running,
    /// Finished successfully.
    Succeeded,
    /// Finished with a failure.
    Failed,
}

impl Observed {
    /// Returns the pending and running members of a group.
    pub fn members<'o>(&'o self, group: &'o GroupName) -> impl Iterator<Item = &'o Instance> {
        self.instances.values().filter(move |instance| {
            instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *group)
        })
    }

    /// Marks workloads as delivered from the repository, which the cluster itself does not record.
    /// Those that the repository no longer declares are about to be deleted.
    pub fn mark_delivered(&mut self, workloads: impl IntoIterator<Item = WorkloadId>) {
        for id in workloads {
            if let Some(live) = self.workloads.iter_mut().find(|live| live.id == id) {
                live.delivered = true;
                continue;
            }
            let (replicas, delivered, template, first_ordinal) = (0, true, None, 0);
            let workload = LiveWorkload { id, replicas, first_ordinal, delivered, template };
            self.workloads.push(workload);
        }
    }

    /// Returns an empty world with complete sources.
    #[must_use]
    pub fn empty(cluster: ClusterIdentity, taken_at: Timestamp) -> Self {
        let complete = |name: &str| (name.to_owned(), Completeness::Complete);
        Self {
            format_version: FORMAT_VERSION.to_owned(),
            cluster,
            taken_at,
            sources: [complete("ec2"), complete("kubernetes")].into(),
            instances: BTreeMap::new(),
            nodes: BTreeMap::new(),
            workloads: Vec::new(),
            templates: BTreeMap::new(),
            pods: Vec::new(),
            storage: Storage::default(),
            exclusions: Vec::new(),
            reservations: BTreeMap::new(),
            groups: BTreeMap::new(),
            fargate_profiles: BTreeMap::new(),
            market: None,
            resolved: Resolved::default(),
            scaling: Scaling::default(),
        }
    }

    /// Sorts rows into file order and keys templates by content.
    ///
    /// Equal states become equal values, regardless of the order in which they were read.
    pub fn canonicalize(&mut self) {
        let keys: BTreeMap<String, String> =
            self.templates.iter().map(|(old, t)| (old.clone(), template_key(t))).collect();
        for pod in &mut self.pods {
            if let Some(key) = keys.get(&pod.template).filter(|key| **key != pod.template) {
                Arc::make_mut(pod).template.clone_from(key);
            }
        }
        for workload in &mut self.workloads {
            if let Some(key) = workload.template.as_ref().and_then(|key| keys.get(key)) {
                workload.template = Some(key.clone());
            }
        }
        let templates = std::mem::take(&mut self.templates);
        self.templates = templates.into_values().map(|t| (template_key(&t), t)).collect();
        self.pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.workloads.sort();
        self.exclusions.sort();
        self.scaling.sort();
    }

    /// Returns whether every source was read completely.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sources.values().all(|source| *source == Completeness::Complete)
    }

    /// Returns the node of `instance`. Of several, prefers a Ready node, then the newest: a kubelet
    /// maintains only one.
    #[must_use]
    pub fn node_for_instance(&self, instance: &InstanceId) -> Option<&Node> {
        let of_it = self.nodes.values().filter(|node| node.instance.as_ref() == Some(instance));
        of_it.max_by_key(|node| node.node_precedence())
    }

    /// Returns the node of each instance, as [`Observed::node_for_instance`] selects it.
    #[must_use]
    pub fn nodes_by_instance(&self) -> BTreeMap<&InstanceId, &Node> {
        let mut found: BTreeMap<&InstanceId, &Node> = BTreeMap::new();
        for node in self.nodes.values() {
            let Some(instance) = &node.instance else { continue };
            let best = found.entry(instance).or_insert(node);
            if node.node_precedence() > best.node_precedence() {
                *best = node;
            }
        }
        found
    }

    /// Returns stale nodes, each with the current node of its instance: a renamed kubelet leaves its
    /// old node behind.
    #[must_use]
    pub fn stale_nodes(&self) -> BTreeMap<&NodeName, &Node> {
        let found = self.nodes_by_instance();
        let others = self.nodes.values().filter_map(|node| {
            let other = found.get(node.instance.as_ref()?)?;
            (other.name != node.name).then_some((&node.name, *other))
        });
        others.collect()
    }

    /// Returns the region as an id.
    #[must_use]
    pub fn region(&self) -> Region {
        self.cluster.region.as_str().into()
    }
}
