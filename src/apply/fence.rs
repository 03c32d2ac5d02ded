//! Writes only while the lock is held.
//!
//! A process that was paused may wake up after another took over. Each write asks first whether the
//! lock is still certain; one that is not made is an error of that verb, which the change reports, and
//! the same plan run again finishes it.

use crate::fleet::{CordonedFor, Node, Pod};
use crate::ids::{GroupName, InstanceId, NodeName, Uid};
use crate::port::{
    Cloud, Cluster, ClusterObjects, CordonOutcome, EvictOutcome, Fate, Holdings, LaunchOutcome,
    LaunchRequest, NodeNow, PortError,
};

/// A port whose writes need a lock.
pub struct Fenced<'a, P> {
    port: &'a P,
    is_held: &'a dyn Fn() -> bool,
}

impl<'a, P> Fenced<'a, P> {
    /// Returns `port`, which writes only while `is_held`.
    #[must_use]
    pub fn new(port: &'a P, is_held: &'a dyn Fn() -> bool) -> Self {
        Self { port, is_held }
    }

    /// Returns whether a write may be made.
    ///
    /// # Errors
    /// When it is not certain that the lock is held.
    pub fn check(&self, verb: &str) -> Result<(), PortError> {
        if (self.is_held)() {
            return Ok(());
        }
        let reason = "the lock of this apply is no longer certain to be held".to_owned();
        Err(PortError { verb: verb.to_owned(), reason, fate: Fate::Refused })
    }
}

impl<P> std::fmt::Debug for Fenced<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fenced").finish_non_exhaustive()
    }
}

impl<P: Cloud> Cloud for Fenced<'_, P> {
    async fn holdings(&self) -> Result<Holdings, PortError> {
        self.port.holdings().await
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.check("launch instance")?;
        self.port.launch(request).await
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.check("raise group")?;
        self.port.raise_group(group, desired).await
    }

    async fn end_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.check("end member of group")?;
        self.port.end_member(id).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.check("terminate instance")?;
        self.port.terminate(id).await
    }
}

impl<P: Cluster> Cluster for Fenced<'_, P> {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.port.objects().await
    }

    async fn node(&self, name: &NodeName) -> Result<NodeNow, PortError> {
        self.port.node(name).await
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        self.check("cordon node")?;
        self.port.cordon(node, mark).await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        self.check("evict pod")?;
        self.port.evict(pod).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.check("delete node")?;
        self.port.delete_node(node, uid).await
    }
}
