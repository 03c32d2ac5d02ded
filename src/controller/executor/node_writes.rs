//! Writes to one node or its instance: cordon, uncordon, evict, terminate, delete.
//!
//! Each write needs the lease, except the cordon of an interrupted node while an apply holds it.

use crate::apply::LeaseGuard;
use crate::apply::ports::{Cloud, Cluster, EvictOutcome, PortError};
use crate::apply::pre_terminate_check::{PodsLeft, termination_blocker};
use crate::controller::event::{Event, TerminateOutcome};
use crate::model::ids::InstanceId;
use crate::model::observed::{CordonReason, Node, Pod};

pub(super) async fn cordon(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    instance: InstanceId,
    node: Box<Node>,
    reason: CordonReason,
) -> Event {
    let result = cluster.cordon(&node, reason.into()).await;
    Event::Cordoned { instance, result }
}

pub(super) async fn uncordon(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    instance: InstanceId,
    node: Box<Node>,
) -> Event {
    let result = cluster.uncordon(&node).await;
    Event::Uncordoned { instance, result }
}

/// Cordons an interrupted node. This is the only write without the lease: any number of replicas
/// may repeat it, and it removes nothing.
pub(super) async fn cordon_without_lease(cluster: &impl Cluster, node: Box<Node>) -> Event {
    let result = cluster.cordon(&node, CordonReason::Interruption.into()).await;
    Event::CordonedWithoutLease { node: node.name, result }
}

pub(super) async fn evict(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    instance: InstanceId,
    pods: Vec<Pod>,
) -> Event {
    let mut results: Vec<Result<EvictOutcome, PortError>> = Vec::new();
    for pod in &pods {
        results.push(cluster.evict(pod).await);
    }
    Event::Evicted { instance, results }
}

/// Terminates an instance if its node is unchanged.
pub(super) async fn terminate_if_unchanged(
    cloud: LeaseGuard<'_, impl Cloud, impl Fn() -> bool>,
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    instance: InstanceId,
    node: Option<Box<Node>>,
) -> Event {
    let obstacle = match &node {
        Some(node) => termination_blocker(&cluster, node, PodsLeft::None).await,
        None => Ok(None),
    };
    let result = match obstacle {
        Ok(None) => cloud.terminate(&instance).await.map(|()| TerminateOutcome::Called),
        Ok(Some(why)) => {
            tracing::info!(%instance, why, "instance not terminated: node changed");
            Ok(TerminateOutcome::NodeChanged)
        }
        Err(error) => Ok(TerminateOutcome::NodeUnreadable(error)),
    };
    Event::TerminateFinished { instance, result }
}

pub(super) async fn delete_node(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    instance: InstanceId,
    node: Box<Node>,
) -> Event {
    let result = cluster.delete_node(&node.name, &node.uid).await;
    Event::NodeDeleted { instance, result }
}
