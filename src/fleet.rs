//! What runs: instances, nodes and pods as they were observed at one moment.
//!
//! An [`Observed`] is also the world file: versioned JSON that `observe` writes, that `plan --world
//! FILE` reads, and that the simulator keeps. It holds names, labels and amounts, never secrets.
//! Invariant: what could not be read is marked in `sources`, never left out in silence.

mod capacity;
mod cordon;
mod difference;
mod fault;
mod file;
#[cfg(test)]
pub(crate) mod fixture;
mod gone;
mod group;
mod resolved;
mod scaling;

pub use capacity::{Exclusion, MatchCriteria, Reservation, ReservationKind, ReservationState};
pub use cordon::{CORDONED_ANNOTATION, Cordon, CordonedFor};
pub use difference::{Difference, Disagreement};
pub use fault::Fault;
pub use file::{WorldError, read_world, template_key, write_world};
pub use group::{Group, Membership, ScheduledSize};
pub use resolved::{Accelerator, Arch, Hardware, ImageChoice, MadeWith, Part, Resolved, Unread};
pub use scaling::{
    LiveEvents, LiveHorizontal, LiveMetric, LiveScale, LiveVertical, Recommendation, Scaling,
};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::{CapacityType, Market};
use crate::fargate;
use crate::ids::{
    GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, Namespace, NodeName, Region,
    ReservationId, Tags, Uid, WorkloadId, WorkloadKind, ZoneName,
};
use crate::pod::{Amounts, PodTemplate, Taint};
use crate::storage::Storage;
use crate::units::Resources;

/// The version of the world file that this program writes.
pub const FORMAT_VERSION: &str = "1.0";

/// Tags that make an instance ours; all are set in the launch call itself.
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
    /// Prefix of one tag for each label whose value the pool leaves open; the label's key follows.
    pub const LABEL_PREFIX: &str = "fleetwright.dev/label/";
    /// Most characters that EC2 takes as the key of a tag.
    pub const KEY_CHARS_MAX: usize = 128;
}

/// Label of a node of ours: the key of its instance within its pool.
pub const KEY_LABEL: &str = "fleetwright.dev/key";

/// Annotation of a node with which Cluster Autoscaler is told to leave it alone.
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
    /// Workloads whose pods are here, by `namespace/kind/name`.
    #[serde(default)]
    pub workloads: Vec<LiveWorkload>,
    /// Pod templates that pods and workloads refer to, by a key of the file's own. A template holds
    /// the name of a node only where the pod was made with it, not where a scheduler bound it.
    #[serde(default)]
    pub templates: BTreeMap<String, Arc<PodTemplate>>,
    /// Pods, by namespace and name; worlds that were seen one after another share those that stayed as they were.
    #[serde(default)]
    pub pods: Vec<Arc<Pod>>,
    /// Storage classes, volumes, claims, and what nodes can attach. A file without this key tells
    /// nothing of storage; see [`Storage`].
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    pub storage: Storage,
    /// Offerings that EC2 had no capacity for lately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<Exclusion>,
    /// Capacity reservations that the account can use, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// Auto Scaling groups of the cluster, by name; a file without this key tells nothing of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, Group>,
    /// Fargate profiles of the cluster, by name; a file without this key tells nothing of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fargate_profiles: BTreeMap<String, fargate::Profile>,
    /// What EC2 offered then. A file without this key tells nothing of it, and what is embedded stands
    /// in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// What the words of node classes came to in EC2 then. A file without this key tells nothing of it.
    #[serde(default, skip_serializing_if = "Resolved::is_empty")]
    pub resolved: Resolved,
    /// What autoscalers last saw and decided. A file without this key tells nothing of it.
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
    /// How it was bought.
    pub capacity_type: CapacityType,
    /// State.
    pub state: InstanceState,
    /// When it was launched.
    pub launched_at: Timestamp,
    /// Image as the node class names it.
    #[serde(default)]
    pub image: String,
    /// What it was made with.
    #[serde(default, skip_serializing_if = "MadeWith::is_empty")]
    pub made_with: MadeWith,
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
    /// Returns the labels that the instance was launched with where its pool leaves them open.
    #[must_use]
    pub fn open_labels(&self) -> Labels {
        let labels = self.tags.iter().filter_map(|(key, value)| {
            Some((LabelKey::from(key.strip_prefix(tag::LABEL_PREFIX)?), value.as_str().into()))
        });
        labels.collect()
    }

    /// Returns whether the instance carries our tag for `cluster`.
    #[must_use]
    pub fn is_ours(&self, cluster: &str) -> bool {
        self.tags.get(tag::CLUSTER).is_some_and(|name| name == cluster)
            && self.tags.contains_key(tag::POOL)
    }

    /// Returns the first of `tags` that the instance carries with another value, and that value.
    #[must_use]
    pub fn disputed<'a>(
        &'a self,
        tags: &'a BTreeMap<String, String>,
    ) -> Option<(&'a str, &'a str)> {
        let held = tags.iter().filter_map(|(key, value)| Some((key, value, self.tags.get(key)?)));
        let mut others = held.filter(|(_, value, held)| value != held);
        others.next().map(|(key, _, held)| (key.as_str(), held.as_str()))
    }

    /// Returns whether the instance runs or is about to.
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
    /// What it reports as capacity.
    pub capacity: Resources,
    /// What its pods may use.
    pub allocatable: Resources,
    /// Whether it is Ready.
    pub ready: bool,
    /// What of it does not work, though it may be Ready.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub faults: BTreeSet<Fault>,
    /// Whether it is cordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// When it registered.
    pub created_at: Timestamp,
}

impl Node {
    /// Returns by what it is the node of its machine rather than another: the greatest is, and no two are equal.
    fn likeness(&self) -> (bool, Timestamp, Reverse<&NodeName>) {
        (self.ready, self.created_at, Reverse(&self.name))
    }

    /// Returns whether Fargate runs the node: it holds one pod, and is nobody's to plan.
    #[must_use]
    pub fn is_fargate(&self) -> bool {
        let label = self.labels.get(fargate::COMPUTE_TYPE);
        is_fargate_name(&self.name) || label.is_some_and(|v| v.as_str() == fargate::FARGATE)
    }

    /// Returns whether EKS Auto Mode made the node, and removes it.
    #[must_use]
    pub fn is_of_auto_mode(&self) -> bool {
        self.labels.get(fargate::COMPUTE_TYPE).is_some_and(|v| v.as_str() == fargate::AUTO)
    }
}

/// Returns whether Fargate gave the node its name.
#[must_use]
pub fn is_fargate_name(name: &NodeName) -> bool {
    name.as_str().starts_with(fargate::NODE_PREFIX)
}

/// A workload as the cluster has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LiveWorkload {
    /// Identity.
    #[serde(flatten)]
    pub id: WorkloadId,
    /// Replicas it is set to.
    pub replicas: u32,
    /// The number of the first pod of a `StatefulSet` (`ordinals.start`).
    #[serde(default, skip_serializing_if = "is_first")]
    pub first_ordinal: u32,
    /// Whether a delivery tool keeps it equal to this repository, so that a workload missing there
    /// is on its way out. False where nobody knows: then its pods keep their room.
    #[serde(default)]
    pub delivered: bool,
    /// Key, in [`Observed::templates`], of the template that its controller makes pods from, where
    /// it was read: pods that ask for more were changed on their way in, or resized since.
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
    /// When the kubelet of its node took it on, where the world tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Whether it is on its way out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// Whether the kubelet made it from a file of the node (mirror pod).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Requests that the kubelet granted or gave, by container, of a pod that is or was resized in
    /// place: the larger of the status' `allocatedResources` and `resources`. Empty where they are
    /// those of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub granted: BTreeMap<String, Amounts>,
}

impl Pod {
    /// Returns the workload that the pod is of: its owner, or itself where nothing owns it.
    #[must_use]
    pub fn workload(&self) -> WorkloadId {
        let itself = || WorkloadId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            kind: WorkloadKind::Pod,
        };
        self.owner.clone().unwrap_or_else(itself)
    }

    /// Returns whether the pod needs room: it is not finished and not on its way out.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.terminating && matches!(self.phase, PodPhase::Pending | PodPhase::Running)
    }
}

/// The phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodPhase {
    /// Waiting for a node, or for its containers.
    Pending,
    /// Running.
    Running,
    /// Finished well.
    Succeeded,
    /// Finished badly.
    Failed,
}

impl Observed {
    /// Returns the members of a group that run or are about to.
    pub fn members<'o>(&'o self, group: &'o GroupName) -> impl Iterator<Item = &'o Instance> {
        self.instances.values().filter(move |instance| {
            instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *group)
        })
    }

    /// Notes that workloads are delivered from the repository, which nothing in a cluster tells:
    /// where it no longer declares them, they are on their way out.
    pub fn deliver(&mut self, workloads: impl IntoIterator<Item = WorkloadId>) {
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

    /// Returns a world with nothing in it, read completely.
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

    /// Brings rows into the order of the file, and keys templates by their content.
    ///
    /// Equal states become equal values, whatever the order in which they were read.
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

    /// Returns the node that runs on `instance`: of several the one that is Ready, else the one that came last, since a
    /// kubelet keeps one node only.
    #[must_use]
    pub fn node_of(&self, instance: &InstanceId) -> Option<&Node> {
        let of_it = self.nodes.values().filter(|node| node.instance.as_ref() == Some(instance));
        of_it.max_by_key(|node| node.likeness())
    }

    /// Returns the node of each machine that has one, as [`Observed::node_of`] finds it.
    #[must_use]
    pub fn nodes_by_instance(&self) -> BTreeMap<&InstanceId, &Node> {
        let mut found: BTreeMap<&InstanceId, &Node> = BTreeMap::new();
        for node in self.nodes.values() {
            let Some(instance) = &node.instance else { continue };
            let best = found.entry(instance).or_insert(node);
            if node.likeness() > best.likeness() {
                *best = node;
            }
        }
        found
    }

    /// Returns the nodes of whose machine another one is, each with that one: a kubelet that was given another name left
    /// them behind.
    #[must_use]
    pub fn left_behind(&self) -> BTreeMap<&NodeName, &Node> {
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
