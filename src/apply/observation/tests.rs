//! Tests that unknown is not empty.

use super::*;
use crate::apply::ports::{
    CallEffect, CordonOutcome, EvictOutcome, LaunchOutcome, LaunchRequest, NodeAndPods,
};
use crate::model::ids::{GroupName, InstanceId, NodeName, Uid, WorkloadKind};
use crate::model::observed::{CordonReason, Node, tag, write_world};
use crate::testing::simulator::{cluster, launch, request, run, world};
use crate::simulator::{Delivery, World};

/// A simulated world with reads that fail or lag.
struct FaultyPorts {
    world: World,
    fails_ec2: bool,
    fails_kubernetes: bool,
    is_lagging: bool,
}

fn failed(verb: &str) -> PortError {
    PortError { verb: verb.into(), reason: "connection reset".into(), effect: CallEffect::Unknown }
}

impl Cloud for FaultyPorts {
    async fn holdings(&self) -> Result<CloudInventory, PortError> {
        if self.fails_ec2 {
            return Err(failed("read account"));
        }
        let mut holdings = self.world.holdings().await?;
        if self.is_lagging {
            holdings.instances.pop();
        }
        Ok(holdings)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.world.launch(request).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.world.terminate(id).await
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.world.raise_group(group, desired).await
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.world.terminate_member(id).await
    }
}

impl Cluster for FaultyPorts {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        if self.fails_kubernetes {
            return Err(failed("read cluster"));
        }
        let mut objects = self.world.objects().await?;
        if self.is_lagging {
            objects.templates.clear();
        }
        Ok(objects)
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        self.world.node(name).await
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonReason>,
    ) -> Result<CordonOutcome, PortError> {
        self.world.cordon(node, mark).await
    }

    async fn evict(&self, pod: &crate::model::observed::Pod) -> Result<EvictOutcome, PortError> {
        self.world.evict(pod).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.world.delete_node(node, uid).await
    }
}

fn faulty() -> FaultyPorts {
    let world = world();
    let mut request = request("a");
    request.labels.insert(KEY_LABEL.into(), "0".into());
    request.tags.insert(tag::KEY.into(), "0".into());
    launch(&world, &request);
    world
        .deliver(&Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100))
        .expect("kept in memory");
    world.settle(jiff::SignedDuration::from_mins(5)).expect("kept in memory");
    FaultyPorts { world, fails_ec2: false, fails_kubernetes: false, is_lagging: false }
}

fn observe_through(faulty: &FaultyPorts) -> Observed {
    run(observe(faulty, faulty, &faulty.world, cluster()))
}

#[test]
fn complete_reads_match_the_world() {
    let faulty = faulty();
    let observed = observe_through(&faulty);
    assert!(observed.is_complete());
    assert_eq!(write_world(&observed), write_world(&faulty.world.observed()));
    assert_eq!((observed.nodes.len(), observed.pods.len()), (1, 2));
}

#[test]
fn failed_read_is_marked_and_the_other_is_kept() {
    let mut faulty = faulty();
    faulty.fails_ec2 = true;
    let observed = observe_through(&faulty);
    assert!(!observed.is_complete());
    let reason = "read account failed: connection reset".to_owned();
    assert_eq!(observed.sources[EC2], Completeness::Failed { reason });
    assert_eq!(observed.sources[KUBERNETES], Completeness::Complete);
    assert_eq!(observed.nodes.len(), 1);
    faulty.fails_kubernetes = true;
    let observed = observe_through(&faulty);
    assert!(matches!(observed.sources[KUBERNETES], Completeness::Failed { .. }));
}

#[test]
fn contradictory_reads_are_partial() {
    let mut faulty = faulty();
    faulty.is_lagging = true;
    let observed = observe_through(&faulty);
    for source in [EC2, KUBERNETES] {
        assert!(matches!(observed.sources[source], Completeness::Partial { .. }), "{source}");
    }
}
