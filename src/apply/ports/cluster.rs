//! The Kubernetes API: objects, cordons and evictions.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use super::PortError;
use crate::model::ids::{NodeName, Uid};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{
    ClusterPools, CordonMark, LiveJob, LiveWorkload, Node, Pod, Scaling, UnreadObject,
};
use crate::model::pod::PodTemplate;
use crate::model::storage::Storage;

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
    /// Jobs that have not ended.
    pub jobs: Vec<LiveJob>,
    /// Storage classes, volumes, claims, and attach limits of nodes.
    pub storage: Storage,
    /// Observed state of autoscalers.
    pub scaling: Scaling,
    /// Objects of the whole cluster that could not be understood, with the reason. With any of them,
    /// the list is incomplete.
    pub unread: Vec<String>,
    /// Objects of namespaces and nodes that could not be understood.
    pub unread_objects: Vec<UnreadObject>,
    /// Node pools and node classes; `None` if they are unknown.
    pub pools: Option<ClusterPools>,
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
    /// Cordons a node. It writes nothing if the [`crate::model::observed::CordonState`] of the node
    /// changed since the observation.
    ///
    /// The same write sets [`crate::model::observed::CORDONED_ANNOTATION`] and
    /// [`crate::model::observed::GRACE_PERIOD_ANNOTATION`] to the mark.
    fn cordon(
        &self,
        node: &Node,
        mark: CordonMark,
    ) -> impl Future<Output = Result<CordonOutcome, PortError>>;
    /// Uncordons a node, and removes the annotations of [`Cluster::cordon`] with the same write. It
    /// writes nothing if the cordon state of the node changed since the observation.
    fn uncordon(&self, node: &Node) -> impl Future<Output = Result<CordonOutcome, PortError>>;
    /// Opens a closed node: removes the taint [`crate::model::pod::OPENING_TAINT`], and sets the
    /// annotations whose keys the node does not have, with the same write. It succeeds if the node
    /// no longer exists, or was replaced by another of that name.
    ///
    /// A closed node opens without its annotations if a write with them fails. For an open node,
    /// such a failure is an error.
    fn open(
        &self,
        node: &Node,
        annotations: &NodeAnnotations,
    ) -> impl Future<Output = Result<(), PortError>>;
    /// Sets the node that the scheduler tries first for a pending pod. If it fails, the scheduler
    /// chooses freely. It succeeds without a write if the pod is bound already.
    fn nominate(&self, pod: &Pod, node: &NodeName) -> impl Future<Output = Result<(), PortError>>;
    /// Evicts a pod through the Eviction API. A deleted pod counts as evicted.
    fn evict(&self, pod: &Pod) -> impl Future<Output = Result<EvictOutcome, PortError>>;
    /// Deletes a pod, whatever its disruption budgets say. Its containers get `grace_seconds`, at
    /// least one, to stop. It succeeds if the pod no longer exists, or was replaced by another of
    /// that name.
    fn delete_pod(
        &self,
        pod: &Pod,
        grace_seconds: u32,
    ) -> impl Future<Output = Result<(), PortError>>;
    /// Deletes the node object of a terminated instance. It succeeds if the node no longer exists.
    fn delete_node(
        &self,
        node: &NodeName,
        uid: &Uid,
    ) -> impl Future<Output = Result<(), PortError>>;
}
