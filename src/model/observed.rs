//! Observed state of a cluster at one time: instances, nodes, pods and further objects.
//!
//! [`Observed`] also defines the world file, a versioned JSON document. `observe` writes it, `plan
//! --world FILE` reads it, and the simulator stores it. It contains names, labels and amounts, but
//! no secrets. Invariant: `sources` marks every source that could not be read completely.

mod capacity;
mod cluster_pools;
mod cordon;
mod deletion_order;
mod difference;
mod file;
mod group;
mod node_fault;
mod pod;
mod queued_workload;
mod removal;
mod resolved;
mod scaling;
mod untagged;

pub use capacity::{Exclusion, MatchCriteria, Reservation, ReservationKind, ReservationState};
pub use cluster_pools::{ClusterPools, PoolMetadata, PoolObject};
pub use cordon::{
    CORDONED_ANNOTATION, CordonMark, CordonReason, CordonState, GRACE_PERIOD_ANNOTATION,
};
pub use deletion_order::{SurplusPod, surplus_pods};
pub use difference::{Difference, Disagreement};
pub use file::{WorldError, read_world, template_key, write_world};
pub use group::{Group, Membership, NodeGroupTemplate, ScheduledSize};
pub use node_fault::NodeFault;
pub use pod::{Pod, PodPhase};
pub use queued_workload::{QueueAdmission, QueueFlavor, QueuedWorkload};
pub use resolved::{
    Accelerator, Arch, Hardware, ImageChoice, LaunchedWith, NodeClassField, Resolved,
    UnresolvedTerm,
};
pub use scaling::{
    LiveEvents, LiveHorizontal, LiveMetric, LiveScale, LiveVertical, Recommendation, Scaling,
};
pub use untagged::UntaggedNode;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::fargate;
use crate::model::ids::{
    GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, NodeName, Region, ReservationId,
    Tags, Uid, WorkloadId, ZoneName,
};
use crate::model::job::JobRetries;
use crate::model::market::{CapacityType, Market};
use crate::model::pod::{OPENING_TAINT, PodTemplate, Taint};
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// Format version of written world files.
pub const FORMAT_VERSION: &str = "1.0";

/// Tags of managed instances. The launch call sets all of them.
pub mod tag {
    /// Cluster of the instance.
    pub const CLUSTER: &str = "fleetwright.dev/cluster";
    /// Pool of the instance.
    pub const POOL: &str = "fleetwright.dev/pool";
    /// Key of the instance within its pool, the index of its address.
    pub const KEY: &str = "fleetwright.dev/key";
    /// ID of the change that launched the instance.
    pub const CHANGE: &str = "fleetwright.dev/change";
    /// Digest of the node class and pool template at launch.
    pub const SPEC: &str = "fleetwright.dev/spec";
    /// Digest of the annotations that the node of the instance is to get.
    pub const ANNOTATIONS: &str = "fleetwright.dev/annotations";
    /// ID of the fleet request that launched the instance. Only EC2 can write it.
    pub const FLEET: &str = "aws:ec2:fleet-id";
    /// Tags that other launchers write on their instances, and our launches never have. Karpenter,
    /// EKS Auto Mode and Auto Scaling groups may launch by fleet requests as well. Node classes
    /// often set `karpenter.sh/discovery`, so that tag says nothing.
    pub const OTHER_LAUNCHERS: [&str; 7] = [
        "aws:autoscaling:groupName",
        "eks:kubernetes-node-pool-name",
        "eks:nodegroup-name",
        "karpenter.k8s.aws/ec2nodeclass",
        "karpenter.sh/nodeclaim",
        "karpenter.sh/nodepool",
        "karpenter.sh/provisioner-name",
    ];
    /// Prefix of tags for labels with a value that the pool leaves open, followed by the label key.
    pub const LABEL_PREFIX: &str = "fleetwright.dev/label/";
    /// Maximum length of a tag key in EC2.
    pub const KEY_CHARS_MAX: usize = 128;
}

/// Label of managed nodes with the key of the instance within its pool.
pub const KEY_LABEL: &str = "fleetwright.dev/key";

/// Annotation that excludes a node from scale-down by Cluster Autoscaler.
pub const SCALE_DOWN_DISABLED_ANNOTATION: &str =
    "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// State observed at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Format version, as `major.minor`.
    pub format_version: String,
    /// Identity of the cluster.
    pub cluster: ClusterIdentity,
    /// Start time of the reads.
    pub taken_at: Timestamp,
    /// Completeness of each source, by name (`ec2`, `kubernetes`).
    pub sources: BTreeMap<String, Completeness>,
    /// EC2 instances, by ID.
    #[serde(default)]
    pub instances: BTreeMap<InstanceId, Instance>,
    /// Kubernetes nodes, by name.
    #[serde(default)]
    pub nodes: BTreeMap<NodeName, Node>,
    /// Workloads in the cluster, in order of namespace, name and kind.
    #[serde(default)]
    pub workloads: Vec<LiveWorkload>,
    /// Jobs that have not ended, in order of namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<LiveJob>,
    /// Pod templates of pods and workloads, by content key. A template contains a node name only if
    /// the pod was created with it, not if a scheduler bound the pod.
    #[serde(default)]
    pub templates: BTreeMap<String, Arc<PodTemplate>>,
    /// Pods, in order of namespace and name. Successive observations share unchanged pods.
    #[serde(default)]
    pub pods: Vec<Arc<Pod>>,
    /// Storage classes, volumes, claims and attach limits; unknown if the key is absent. See
    /// [`Storage`].
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    pub storage: Storage,
    /// Offerings for which EC2 recently had insufficient capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<Exclusion>,
    /// Capacity reservations that the account can use, by ID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// Auto Scaling groups of the cluster, by name; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, Group>,
    /// Fargate profiles of the cluster, by name; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fargate_profiles: BTreeMap<String, fargate::FargateProfile>,
    /// EC2 offerings. If the key is absent, the embedded catalog is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// Resolved images, subnets and security groups of node classes; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Resolved::is_empty")]
    pub resolved: Resolved,
    /// Latest metrics and decisions of autoscalers; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Scaling::is_empty")]
    pub scaling: Scaling,
    /// Objects that could not be understood. The sources are complete without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<UnreadObject>,
    /// Pods that the last plan places on instances that take no pods yet, by workload. The next plan
    /// places them there again: another packing of the same pods may need another node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub planned_pods: PlannedPods,
    /// Node pools and node classes of the cluster; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Arc<ClusterPools>>,
}

/// An object of a namespace, or a node, that could not be understood. It concerns only the nodes that
/// it names: they are kept as they are, and everything else goes on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct UnreadObject {
    /// Kind, namespace and name, such as `Pod web/api`.
    pub object: String,
    /// Reason, as a phrase.
    pub reason: String,
    /// Nodes that the object may need: the node of a pod, and the nodes with pods of the namespace
    /// for other objects.
    pub nodes: BTreeSet<NodeName>,
    /// True if the free capacity of the nodes is unknown. New pods are not placed on them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_requests: bool,
}

/// Number of pods by instance and workload; workloads are named as in
/// [`crate::plan::wire::workload_key`].
pub type PlannedPods = BTreeMap<InstanceId, BTreeMap<String, u32>>;

/// Identity of a cluster. A plan is applied only to the cluster for which it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClusterIdentity {
    /// Name.
    pub name: String,
    /// Region.
    pub region: String,
    /// AWS account ID.
    pub account: String,
    /// UID of the namespace `kube-system`.
    pub uid: String,
}

/// Completeness of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Completeness {
    /// The source was read completely.
    Complete,
    /// The source was read in part.
    Partial {
        /// Missing data, and the reason.
        reason: String,
    },
    /// The source could not be read.
    Failed {
        /// Reason.
        reason: String,
    },
}

/// An EC2 instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Instance ID.
    pub id: InstanceId,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// State.
    pub state: InstanceState,
    /// Launch time.
    pub launched_at: Timestamp,
    /// Image as declared in the node class.
    #[serde(default)]
    pub image: String,
    /// Image, subnet and security groups at launch.
    #[serde(rename = "made_with", default, skip_serializing_if = "LaunchedWith::is_empty")]
    pub launched_with: LaunchedWith,
    /// Tags.
    #[serde(default)]
    pub tags: Tags,
    /// Capacity reservation of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Membership in an Auto Scaling group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Membership>,
}

impl Instance {
    /// Returns the labels that were chosen at launch because the pool leaves them open.
    pub fn open_labels(&self) -> Labels {
        let labels = self.tags.iter().filter_map(|(key, value)| {
            Some((LabelKey::from(key.strip_prefix(tag::LABEL_PREFIX)?), value.as_str().into()))
        });
        labels.collect()
    }

    /// Returns true if the tags show that Fleetwright manages the instance for `cluster`.
    pub fn is_managed_by(&self, cluster: &str) -> bool {
        self.tags.get(tag::CLUSTER).is_some_and(|name| name == cluster)
            && self.tags.contains_key(tag::POOL)
    }

    /// Returns true if a fleet request launched the instance, as our launches do, and no tag is
    /// that of another launcher. Anyone with `ec2:CreateTags` can write our own tags.
    pub fn is_launched_by_fleet(&self) -> bool {
        self.tags.contains_key(tag::FLEET) && self.other_launcher().is_none()
    }

    /// Returns the key of a tag that another launcher writes, if the instance has one.
    pub fn other_launcher(&self) -> Option<&'static str> {
        tag::OTHER_LAUNCHERS.into_iter().find(|key| self.tags.contains_key(*key))
    }

    /// Returns the key of the first tag whose value on the instance differs from `tags`, and the
    /// value on the instance.
    pub fn conflicting_tag<'a>(
        &'a self,
        tags: &'a BTreeMap<String, String>,
    ) -> Option<(&'a str, &'a str)> {
        let present =
            tags.iter().filter_map(|(key, value)| Some((key, value, self.tags.get(key)?)));
        let mut conflicts = present.filter(|(_, value, actual)| value != actual);
        conflicts.next().map(|(key, _, actual)| (key.as_str(), actual.as_str()))
    }

    /// Returns true if the instance is pending or running.
    pub fn is_active(&self) -> bool {
        matches!(self.state, InstanceState::Pending | InstanceState::Running)
    }

    /// Returns true if the instance is terminated, or is being terminated.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, InstanceState::ShuttingDown | InstanceState::Terminated)
    }
}

/// State of an instance, as in EC2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// The instance is starting.
    Pending,
    /// The instance is running.
    Running,
    /// The instance is stopping.
    Stopping,
    /// The instance is stopped.
    Stopped,
    /// The instance is being terminated.
    ShuttingDown,
    /// The instance is terminated.
    Terminated,
}

/// A Kubernetes node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name.
    pub name: NodeName,
    /// UID.
    pub uid: Uid,
    /// Instance of the node, from its provider ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Labels.
    #[serde(default)]
    pub labels: Labels,
    /// Annotations that affect capacity decisions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Taints, except taints that only mirror `unschedulable` or `ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Capacity reported by the kubelet.
    pub capacity: Resources,
    /// Allocatable resources reported by the kubelet.
    pub allocatable: Resources,
    /// True if the node is Ready.
    pub ready: bool,
    /// True if the node is not Ready although it was before, or if its kubelet reports nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_ready: bool,
    /// Reported faults. A faulty node may still be Ready.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub faults: BTreeSet<NodeFault>,
    /// True if the node is cordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// Registration time.
    pub created_at: Timestamp,
}

impl Node {
    /// Returns the sort key of nodes with the same instance. The greatest is the current node, and
    /// keys are unique.
    fn node_precedence(&self) -> (bool, Timestamp, Reverse<&NodeName>) {
        (self.ready, self.created_at, Reverse(&self.name))
    }

    /// Returns true for a Fargate node. It runs a single pod and is excluded from planning.
    pub fn is_fargate(&self) -> bool {
        let label = self.labels.get(fargate::COMPUTE_TYPE);
        is_fargate_name(&self.name) || label.is_some_and(|v| v.as_str() == fargate::FARGATE)
    }

    /// Returns true if the node keeps pods away until it is opened with the nodes of its batch.
    pub fn is_closed(&self) -> bool {
        self.taints.iter().any(|taint| taint.key.as_str() == OPENING_TAINT)
    }

    /// Returns true if the node of this instance was opened. Only Ready nodes are opened, and each
    /// node that Fleetwright launches registers closed if its image uses our user data.
    pub fn was_opened(&self, instance: &Instance) -> bool {
        instance.tags.contains_key(tag::CHANGE) && !self.is_closed()
    }

    /// Returns true for a node managed by EKS Auto Mode.
    pub fn is_auto_mode(&self) -> bool {
        self.labels.get(fargate::COMPUTE_TYPE).is_some_and(|v| v.as_str() == fargate::AUTO)
    }
}

/// Returns true if the name has the form of a Fargate node name.
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
    /// Ordinal of the first pod of a `StatefulSet` (`ordinals.start`).
    #[serde(default, skip_serializing_if = "is_first")]
    pub first_ordinal: u32,
    /// True if a delivery tool syncs the workload from this repository. It is then deleted once the
    /// repository stops declaring it. If false or unknown, its pods retain their capacity.
    #[serde(default)]
    pub delivered: bool,
    /// Key of the pod template in [`Observed::templates`], if it was read. Pods with larger
    /// requests were mutated at admission, or resized later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Progress of a Job that has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobProgress>,
}

/// Progress of a Job. It outlives the pods of the Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobProgress {
    /// Pods that succeeded, or completed indexes.
    #[serde(default)]
    pub succeeded: u32,
    /// True once the Job is complete or has failed. Its controller then makes no further pods.
    #[serde(default)]
    pub ended: bool,
}

/// A Job that has not ended, whatever owns it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LiveJob {
    /// Identity; its kind is Job.
    #[serde(flatten)]
    pub id: WorkloadId,
    /// Failed pods that it survives.
    #[serde(flatten)]
    pub retries: JobRetries,
    /// Pods that failed so far.
    #[serde(default)]
    pub failed: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(ordinal: &u32) -> bool {
    *ordinal == 0
}

impl Observed {
    /// Returns the pending and running members of an Auto Scaling group.
    pub fn members<'o>(&'o self, group: &'o GroupName) -> impl Iterator<Item = &'o Instance> {
        self.instances.values().filter(move |instance| {
            instance.is_active()
                && instance.group.as_ref().is_some_and(|membership| membership.name == *group)
        })
    }

    /// Marks workloads as delivered from the repository, because the cluster does not record it.
    /// Adds missing workloads with zero replicas, because they are about to be deleted.
    pub fn mark_delivered(&mut self, workloads: impl IntoIterator<Item = WorkloadId>) {
        for id in workloads {
            if let Some(live) = self.workloads.iter_mut().find(|live| live.id == id) {
                live.delivered = true;
                continue;
            }
            let (replicas, delivered, template, first_ordinal, job) = (0, true, None, 0, None);
            let workload = LiveWorkload { id, replicas, first_ordinal, delivered, template, job };
            self.workloads.push(workload);
        }
    }

    /// Returns true if the instances and other resources of EC2 were read completely.
    pub fn has_ec2(&self) -> bool {
        self.sources.get("ec2") == Some(&Completeness::Complete)
    }

    /// Returns true if the Kubernetes objects were read completely.
    pub fn has_cluster(&self) -> bool {
        self.sources.get("kubernetes") == Some(&Completeness::Complete)
    }

    /// Returns an empty state with complete sources.
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
            jobs: Vec::new(),
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
            unread: Vec::new(),
            planned_pods: BTreeMap::new(),
            pools: None,
        }
    }

    /// Sorts lists into file order, and keys templates by content.
    ///
    /// Equal states become equal values, regardless of the order of the reads.
    pub fn canonicalize(&mut self) {
        let keys: BTreeMap<String, Arc<str>> =
            self.templates.iter().map(|(old, t)| (old.clone(), template_key(t).into())).collect();
        for pod in &mut self.pods {
            if let Some(key) = keys.get(&*pod.template).filter(|key| **key != pod.template) {
                Arc::make_mut(pod).template = Arc::clone(key);
            }
        }
        for workload in &mut self.workloads {
            if let Some(key) = workload.template.as_ref().and_then(|key| keys.get(key)) {
                workload.template = Some(key.to_string());
            }
        }
        let templates = std::mem::take(&mut self.templates);
        self.templates = templates.into_values().map(|t| (template_key(&t), t)).collect();
        self.pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.workloads.sort();
        self.jobs.sort();
        self.exclusions.sort();
        self.scaling.sort();
    }

    /// Returns the pods in runs of one workload. Pods are sorted by name, so a workload has few
    /// runs, and its ID is read once per run.
    pub fn pod_runs(&self) -> impl Iterator<Item = (WorkloadId, &[Arc<Pod>])> {
        let is_same = |a: &Arc<Pod>, b: &Arc<Pod>| a.owner.is_some() && a.owner == b.owner;
        self.pods.chunk_by(is_same).map(|pods| (pods[0].workload(), pods))
    }

    /// Returns true if every source was read completely.
    pub fn is_complete(&self) -> bool {
        self.sources.values().all(|source| *source == Completeness::Complete)
    }

    /// Returns the node of `instance`. If several nodes have this instance, it prefers Ready nodes,
    /// then the newest, because a kubelet maintains only one node.
    pub fn node_for_instance(&self, instance: &InstanceId) -> Option<&Node> {
        let nodes = self.nodes.values().filter(|node| node.instance.as_ref() == Some(instance));
        nodes.max_by_key(|node| node.node_precedence())
    }

    /// Returns the node of each instance, selected as in [`Observed::node_for_instance`].
    pub fn nodes_by_instance(&self) -> BTreeMap<&InstanceId, &Node> {
        let mut found: BTreeMap<&InstanceId, &Node> = BTreeMap::new();
        for node in self.nodes.values() {
            let Some(instance) = &node.instance else { continue };
            let current = found.entry(instance).or_insert(node);
            if node.node_precedence() > current.node_precedence() {
                *current = node;
            }
        }
        found
    }

    /// Returns stale nodes, each with the current node of its instance. A renamed kubelet leaves
    /// its old node behind.
    pub fn stale_nodes(&self) -> BTreeMap<&NodeName, &Node> {
        let found = self.nodes_by_instance();
        let stale = self.nodes.values().filter_map(|node| {
            let current = found.get(node.instance.as_ref()?)?;
            (current.name != node.name).then_some((&node.name, *current))
        });
        stale.collect()
    }

    /// Returns the region of the cluster.
    pub fn region(&self) -> Region {
        self.cluster.region.as_str().into()
    }
}
