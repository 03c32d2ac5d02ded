//! Port writes that require the lease.
//!
//! A paused process may resume after another process has acquired the lease. Each write therefore
//! checks the lease first. A rejected write is an error of its change, and another run of the plan
//! finishes it.

use std::collections::BTreeSet;

use crate::apply::ports::{
    CallEffect, Cloud, CloudInventory, Cluster, ClusterObjects, CordonOutcome, EvictOutcome,
    LaunchOutcome, LaunchRequest, NodeAndPods, PortError,
};
use crate::model::ids::{GroupName, InstanceId, NodeName, Uid};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{CordonMark, Instance, Node, Pod};

/// A port with writes that require the lease.
pub struct LeaseGuard<'a, P, F> {
    port: &'a P,
    is_held: F,
}

impl<'a, P, F: Fn() -> bool> LeaseGuard<'a, P, F> {
    /// Returns a guard of `port` that writes only while `is_held` returns true.
    pub fn new(port: &'a P, is_held: F) -> Self {
        Self { port, is_held }
    }

    /// Checks that a write is allowed: the lease is certainly held.
    fn check(&self, verb: &str) -> Result<(), PortError> {
        if (self.is_held)() {
            return Ok(());
        }
        let reason = "the lease of this apply may have expired".to_owned();
        Err(PortError { verb: verb.to_owned(), reason, effect: CallEffect::Refused })
    }
}

impl<P, F> std::fmt::Debug for LeaseGuard<'_, P, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseGuard").finish_non_exhaustive()
    }
}

impl<P: Cloud, F: Fn() -> bool> Cloud for LeaseGuard<'_, P, F> {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        self.port.inventory().await
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        self.port.find_instances(ids).await
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.check("launch instance")?;
        self.port.launch(request).await
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.check("raise group")?;
        self.port.raise_group(group, desired).await
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.check("terminate group member")?;
        self.port.terminate_member(id).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.check("terminate instance")?;
        self.port.terminate(id).await
    }
}

impl<P: Cluster, F: Fn() -> bool> Cluster for LeaseGuard<'_, P, F> {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.port.objects().await
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        self.port.node(name).await
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        self.check("cordon node")?;
        self.port.cordon(node, mark).await
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        self.check("uncordon node")?;
        self.port.uncordon(node).await
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        self.check("open node")?;
        self.port.open(node, annotations).await
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        self.check("nominate pod")?;
        self.port.nominate(pod, node).await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        self.check("evict pod")?;
        self.port.evict(pod).await
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        self.check("delete pod")?;
        self.port.delete_pod(pod, grace_seconds).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.check("delete node")?;
        self.port.delete_node(node, uid).await
    }
}
