//! Machines, nodes and pods for tests, as plain as they can be: a test says what matters of one, and no more.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Instance, InstanceState, MadeWith, Node, Pod, PodPhase, tag};
use crate::catalog::CapacityType;
use crate::units::Resources;

/// Returns a machine that runs, of nobody.
pub(crate) fn instance(id: &str) -> Instance {
    Instance {
        id: id.into(),
        instance_type: "m5.large".into(),
        zone: "us-east-1a".into(),
        capacity_type: CapacityType::Spot,
        state: InstanceState::Running,
        launched_at: Timestamp::UNIX_EPOCH,
        image: String::new(),
        made_with: MadeWith::default(),
        tags: [].into(),
        reservation: None,
        group: None,
    }
}

/// Returns one that is ours, in pool `web` of a cluster of that name.
pub(crate) fn ours(id: &str, cluster: &str) -> Instance {
    let tags = [(tag::CLUSTER, cluster), (tag::POOL, "web"), (tag::KEY, "0")];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Instance { tags: tags.into(), ..instance(id) }
}

/// Returns a node that is Ready, of no machine; its UID is its name.
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

/// Returns a pod of namespace `web` that waits for a node; its UID is its name.
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
