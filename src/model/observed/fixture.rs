//! Minimal instances, nodes and pods for tests; each test sets only the fields that it is about.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Instance, InstanceState, LaunchedWith, Node, Pod, PodPhase, tag};
use crate::model::market::CapacityType;
use crate::model::units::Resources;

/// Returns a running instance that this program does not manage.
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

/// Returns a managed instance in pool `web` of `cluster`.
pub(crate) fn managed_instance(id: &str, cluster: &str) -> Instance {
    let tags = [(tag::CLUSTER, cluster), (tag::POOL, "web"), (tag::KEY, "0")];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Instance { tags: tags.into(), ..instance(id) }
}

/// Returns a Ready node without an instance; its UID is its name.
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
        unschedulable: false,
        created_at: Timestamp::UNIX_EPOCH,
    }
}

/// Returns an unbound pod in namespace `web`; its UID is its name.
pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        namespace: "web".into(),
        name: Arc::from(name),
        uid: name.into(),
        owner: None,
        template: "t".to_owned(),
        node: None,
        phase: PodPhase::Pending,
        created_at: Timestamp::UNIX_EPOCH,
        terminating: false,
        mirror: false,
        started_at: None,
        granted: [].into(),
    }
}
