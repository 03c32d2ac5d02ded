//! A small valid plan with every kind of row, and the inputs that give it.
//!
//! Pool `web` has four nodes: `0` is retained, `1` is removed because `shop/api` shrank, `2` is
//! replaced by a cheaper one, and `3` is launched for `shop/batch`. One pod of `shop/batch` exceeds
//! the pool limit. A fifth node is unmanaged.

mod plan_rows;

use plan_rows::node_state;
pub(crate) use plan_rows::plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::catalog::{self, instance_type, offering};
use super::desired::{node_class, pool, requirement};
use super::pods::{self, deployment, no_schedule, pod_group, resources};
use super::world::{self, instance, live_workload, node};
use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings};
use crate::demand::{Daemon, Demand, NodeChoice, PodGroup, PodShape};
use crate::model::desired::{Desired, Generation, NodeClass, Pool, PoolLimits};
use crate::model::ids::{NodeName, Origin, WorkloadId, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::observed::{ClusterIdentity, Instance, LiveWorkload, Node, Observed, Pod, tag};
use crate::model::pod::{Taint, TaintEffect, Toleration, TolerationOperator};
use crate::model::requirement::{Requirements, key, label};
use crate::model::units::{Bytes, MilliCpu, Resources};
use crate::plan::Facts;

/// Owned inputs of the plan.
#[derive(Clone)]
pub(crate) struct Inputs {
    pub(crate) desired: Desired,
    pub(crate) demand: Demand,
    pub(crate) observed: Observed,
    pub(crate) catalog: Catalog,
}

impl Inputs {
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            desired: &self.desired,
            demand: &self.demand,
            observed: &self.observed,
            catalog: &self.catalog,
            allocation,
        }
    }
}

/// Returns the inputs of [`plan`].
pub(crate) fn inputs() -> Inputs {
    Inputs { desired: desired(), demand: demand(), observed: observed(), catalog: catalog() }
}

/// Reserves 100m of CPU and 1 GiB of memory. The rule of the catalog is more complex.
fn allocation(kind: &InstanceType, _: &NodeSettings) -> Allocation {
    let capacity = Resources {
        cpu: MilliCpu(kind.vcpus * 1000),
        memory: Bytes::mib(kind.memory_mib),
        ephemeral_storage: Bytes::gib(20),
        pods: 29,
        extended: BTreeMap::new(),
    };
    let reserved = Resources { cpu: MilliCpu(100), memory: Bytes::gib(1), ..Resources::default() };
    Allocation { allocatable: capacity.minus(&reserved), capacity, ..Allocation::default() }
}

fn at(hour: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + hour * 3600).expect("within range")
}

pub(crate) fn workload(name: &str) -> WorkloadId {
    deployment("shop", name)
}

fn agent() -> WorkloadId {
    WorkloadId { kind: WorkloadKind::DaemonSet, ..workload("agent") }
}

fn starting() -> Taint {
    Taint { key: "starting".into(), value: "".into(), effect: TaintEffect::NoExecute }
}

const ZONES: [(&str, &str); 2] = [("us-east-1a", "use1-az1"), ("us-east-1b", "use1-az2")];

fn catalog() -> Catalog {
    let kinds = [
        kind("c5.large", 2, 4096, 85_000),
        kind("m5.large", 2, 8192, 96_000),
        kind("m5.xlarge", 4, 16384, 192_000),
    ];
    catalog::catalog("us-east-1", &ZONES, kinds)
}

fn kind(name: &str, vcpus: i64, memory_mib: i64, price: i64) -> InstanceType {
    let (arch, cpu) = ((key::ARCH, "amd64"), vcpus.to_string());
    let labels = [arch, ("karpenter.k8s.aws/instance-cpu", &cpu)];
    InstanceType {
        offerings: ZONES.map(|(zone, id)| offering(zone, id, price)).into(),
        ..instance_type(name, vcpus, memory_mib, &labels)
    }
}

fn desired() -> Desired {
    let origin = Origin::new("pools.yaml", 1);
    let pool = Pool {
        name: "web".into(),
        origin: origin.clone(),
        generation: Generation::V1,
        labels: [label("team", "web")].into(),
        requirements: vec![
            requirement(key::INSTANCE_TYPE, &["c5.large", "m5.large", "m5.xlarge"]),
            requirement(key::CAPACITY_TYPE, &["on-demand"]),
        ],
        taints: vec![no_schedule("dedicated", "web")],
        startup_taints: vec![starting()],
        limits: PoolLimits { resources: [("cpu".into(), 14_000)].into(), nodes: Some(5) },
        consolidate_after: None,
        ..pool()
    };
    let class = NodeClass {
        origin,
        generation: Generation::V1,
        spec_digests: Arc::new([("userData".to_owned(), "c1a55".into())].into()),
        ..node_class()
    };
    Desired {
        pools: [(pool.name.clone(), pool)].into(),
        node_classes: [(class.name.clone(), class)].into(),
        ..Desired::default()
    }
}

/// Returns the shape of pods that only nodes of pool `web` admit.
fn shape(requests: Resources) -> PodShape {
    let web = Requirements::from_labels(&[label("team", "web")].into());
    let toleration = Toleration {
        key: "dedicated".to_owned(),
        operator: TolerationOperator::Exists,
        ..Toleration::default()
    };
    PodShape {
        requests,
        nodes: NodeChoice { any_of: vec![web], ..NodeChoice::default() },
        tolerations: vec![toleration],
        ..pods::shape("shop")
    }
}

fn demand() -> Demand {
    let group = |name: &str, requests, running: &[(&str, u32)]| PodGroup {
        origin: Some(Origin::new("shop.yaml", 1)),
        running: running.iter().map(|(node, pods)| (NodeName::from(*node), *pods)).collect(),
        ..pod_group(workload(name), shape(requests), 3)
    };
    Demand {
        sizings: BTreeMap::new(),
        groups: vec![
            group("api", resources(800, 1024), &[("n0", 2), ("n2", 1)]),
            group("batch", resources(1800, 1024), &[]),
        ],
        daemons: vec![Daemon {
            workload: agent(),
            origin: None,
            shape: Arc::new(shape(resources(100, 128))),
        }],
        fargate: Vec::new(),
        unresolved: Vec::new(),
        queue_waits: BTreeMap::new(),
        problems: Vec::new(),
    }
}

fn observed() -> Observed {
    let cluster = ClusterIdentity {
        name: "prod".to_owned(),
        region: "us-east-1".to_owned(),
        account: "111122223333".to_owned(),
        uid: "kube-system-uid".to_owned(),
    };
    let mut world = Observed::empty(cluster, at(0));
    for (key, kind) in [("0", "m5.large"), ("1", "m5.large"), ("2", "m5.xlarge")] {
        let (instance, node) = live(key, kind);
        world = world.with_instance(instance).with_node(node);
    }
    let (_, foreign) = live("9", "m5.large");
    let foreign = Node { instance: None, labels: [].into(), taints: Vec::new(), ..foreign };
    let pods = [("a", "n0"), ("b", "n0"), ("c", "n1"), ("d", "n2")];
    let pod = |(name, node): (&str, &str)| Pod {
        template: "api".into(),
        created_at: at(-50),
        ..world::pod(name).owned_by(&workload("api")).on(node)
    };
    world
        .with_node(foreign)
        .with_pods(pods.map(pod))
        .with_workload(LiveWorkload { delivered: true, ..live_workload(&workload("api"), 4) })
}

fn live(key: &str, kind: &str) -> (Instance, Node) {
    let state = node_state(key, kind);
    let tags = [(tag::CLUSTER, "prod"), (tag::POOL, "web"), (tag::KEY, key)];
    let instance = Instance {
        instance_type: kind.into(),
        capacity_type: CapacityType::OnDemand,
        launched_at: at(-100),
        image: "al2023@latest".to_owned(),
        ..instance(&format!("i-{key}")).with_tags(&tags)
    };
    let allocation = allocation(&catalog().types[kind], &NodeSettings::default());
    let node = Node {
        uid: format!("uid-{key}").as_str().into(),
        instance: Some(instance.id.clone()),
        labels: state.labels,
        taints: state.taints,
        capacity: allocation.capacity,
        allocatable: allocation.allocatable,
        created_at: at(-100),
        ..node(&format!("n{key}"))
    };
    (instance, node)
}
