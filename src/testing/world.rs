//! The builder of worlds: `Observed::empty` starts one, and `with_*` methods add to it.
//!
//! Functions return minimal parts of a world. Each test sets only its relevant fields.

use std::sync::Arc;

use jiff::Timestamp;

use crate::model::ids::WorkloadId;
use crate::model::market::CapacityType;
use crate::model::observed::{
    ClusterIdentity, Group, Instance, InstanceState, LaunchedWith, LiveWorkload, Node, Observed,
    Pod, PodPhase, tag,
};
use crate::model::units::Resources;

impl Observed {
    /// Returns an empty world of a cluster of this name.
    pub(crate) fn of_cluster(name: &str, taken_at: Timestamp) -> Self {
        let cluster = ClusterIdentity { name: name.to_owned(), ..ClusterIdentity::default() };
        Self::empty(cluster, taken_at)
    }

    pub(crate) fn with_instance(mut self, instance: Instance) -> Self {
        self.instances.insert(instance.id.clone(), instance);
        self
    }

    pub(crate) fn with_node(mut self, node: Node) -> Self {
        self.nodes.insert(node.name.clone(), node);
        self
    }

    pub(crate) fn with_pods(mut self, pods: impl IntoIterator<Item = Pod>) -> Self {
        self.pods.extend(pods.into_iter().map(Arc::new));
        self
    }

    pub(crate) fn with_workload(mut self, workload: LiveWorkload) -> Self {
        self.workloads.push(workload);
        self
    }
}

/// Returns a running, unmanaged instance.
pub(crate) fn instance(id: &str) -> Instance {
    Instance {
        id: id.into(),
        instance_type: "m5.large".into(),
        zone: "us-east-1a".into(),
        capacity_type: CapacityType::Spot,
        state: InstanceState::Running,
        launched_at: Timestamp::UNIX_EPOCH,
        image: String::new(),
        launched_with: LaunchedWith::default(),
        tags: [].into(),
        reservation: None,
        group: None,
    }
}

/// Returns a managed instance in pool `web` of `cluster`, with key `0`.
pub(crate) fn managed_instance(id: &str, cluster: &str) -> Instance {
    instance(id).with_tags(&[(tag::CLUSTER, cluster), (tag::POOL, "web"), (tag::KEY, "0")])
}

impl Instance {
    /// Adds tags to the instance.
    pub(crate) fn with_tags(mut self, tags: &[(&str, &str)]) -> Self {
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.tags.extend(tags);
        self
    }
}

/// Returns a Ready node without an instance. Its UID equals its name.
pub(crate) fn node(name: &str) -> Node {
    Node {
        name: name.into(),
        uid: name.into(),
        instance: None,
        labels: [].into(),
        annotations: [].into(),
        taints: Vec::new(),
        capacity: Resources::default(),
        allocatable: Resources::default(),
        ready: true,
        faults: [].into(),
        was_ready: false,
        unschedulable: false,
        created_at: Timestamp::UNIX_EPOCH,
    }
}

/// Returns an unbound pod in namespace `web`. Its UID equals its name.
pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        namespace: "web".into(),
        name: name.into(),
        uid: name.into(),
        owner: None,
        template: "t".into(),
        node: None,
        nominated: None,
        phase: PodPhase::Pending,
        created_at: Timestamp::UNIX_EPOCH,
        terminating: false,
        mirror: false,
        started_at: None,
        ready_at: None,
        deletion_cost: 0,
        granted: [].into(),
    }
}

impl Pod {
    /// Returns the pod as a running pod of `owner`, in its namespace.
    pub(crate) fn owned_by(self, owner: &WorkloadId) -> Self {
        let namespace = owner.namespace.clone();
        Self { namespace, owner: Some(owner.clone()), phase: PodPhase::Running, ..self }
    }

    /// Returns the pod, bound to a node and running.
    pub(crate) fn on(self, node: &str) -> Self {
        Self { node: Some(node.into()), phase: PodPhase::Running, ..self }
    }
}

/// Returns the controller of a workload that was not delivered from the repository.
pub(crate) fn live_workload(id: &WorkloadId, replicas: u32) -> LiveWorkload {
    let id = id.clone();
    LiveWorkload { id, replicas, first_ordinal: 0, delivered: false, template: None, job: None }
}

/// Returns an Auto Scaling group of one to nine instances.
pub(crate) fn group(name: &str, desired: u32) -> Group {
    Group {
        name: name.into(),
        min: 1,
        max: 9,
        desired,
        types: Vec::new(),
        zones: Vec::new(),
        tags: [].into(),
        mix: None,
        suspended: Vec::new(),
        schedules: Vec::new(),
        schedules_unread: None,
        node_group: None,
        template_unread: None,
    }
}
