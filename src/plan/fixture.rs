//! A small valid plan with every kind of row, and the inputs that give it.
//!
//! Pool `web` has four nodes: `0` is retained, `1` is removed because `shop/api` shrank, `2` is
//! replaced by a cheaper one, and `3` is launched for `shop/batch`. One pod of `shop/batch` exceeds
//! the pool limit. A fifth node is not ours.

mod plan_rows;

use plan_rows::node_state;
pub(super) use plan_rows::{plan, sealed};

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::identity::seal;
use super::verify::Facts;
use super::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Capacity, Change, Condition, Cost, DaemonRow,
    DemandRow, ExplainRow, FORMAT_VERSION, NodeState, NodeTotals, Placement, PlacementRow, Plan,
    PodCounts, PodTotals, Precondition, Reason, ResourceChange, ResourceKind, Summary,
    UnschedulableRow, Wave, WaveStep,
};
use crate::catalog::{
    Allocation, Catalog, InstanceType, MeasuredNodes, NodeSettings, Offering, PriceSource, Zone,
};
use crate::demand::{Counts, Daemon, Decider, Demand, DemandMode, NodeChoice, PodGroup, PodShape};
use crate::model::desired::{
    AmiFamily, Consolidation, Desired, Expiry, Generation, KubeletSettings, NodeClass, Pool,
    PoolLimits, PoolRequirement,
};
use crate::model::ids::{Address, Labels, NodeName, Origin, WorkloadId, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::observed::{
    ClusterIdentity, Instance, InstanceState, LaunchedWith, LiveWorkload, Node, Observed, Pod,
    PodPhase, tag,
};
use crate::model::pod::{PodAffinity, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::model::reason::{
    Alternative, BlockReason, KeepReason, LaunchReason, Rejection, RetireReason,
};
use crate::model::requirement::{Operator, Requirements, key, label};
use crate::model::units::{Bytes, MicroUsd, MilliCpu, Resources};

/// Owned inputs of the plan.
#[derive(Clone)]
pub(super) struct Inputs {
    pub(super) desired: Desired,
    pub(super) demand: Demand,
    pub(super) observed: Observed,
    pub(super) catalog: Catalog,
}

impl Inputs {
    pub(super) fn facts(&self) -> Facts<'_> {
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
pub(super) fn inputs() -> Inputs {
    Inputs { desired: desired(), demand: demand(), observed: observed(), catalog: catalog() }
}

/// Reserves a tenth of a core and 1 GiB, a simpler rule than the catalog's.
fn allocation(kind: &InstanceType, _: &NodeSettings) -> Allocation {
    let capacity = Resources {
        cpu: MilliCpu(kind.vcpus * 1000),
        memory: Bytes::mib(kind.memory_mib),
        ephemeral_storage: Bytes::gib(20),
        pods: 29,
        extended: BTreeMap::new(),
    };
    let kept = Resources { cpu: MilliCpu(100), memory: Bytes::gib(1), ..Resources::default() };
    Allocation { allocatable: capacity.minus(&kept), capacity, ..Allocation::default() }
}

fn at(hour: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + hour * 3600).unwrap()
}

pub(super) fn address(key: &str) -> Address {
    format!("ec2_instance.web[\"{key}\"]").into()
}

pub(super) fn workload(name: &str) -> WorkloadId {
    WorkloadId { namespace: "shop".into(), name: name.into(), kind: WorkloadKind::Deployment }
}

fn agent() -> WorkloadId {
    WorkloadId { kind: WorkloadKind::DaemonSet, ..workload("agent") }
}

fn dedicated() -> Taint {
    Taint { key: "dedicated".into(), value: "web".into(), effect: TaintEffect::NoSchedule }
}

fn starting() -> Taint {
    Taint { key: "starting".into(), value: "".into(), effect: TaintEffect::NoExecute }
}

fn resources(cpu: i64, memory_mib: i64) -> Resources {
    Resources {
        cpu: MilliCpu(cpu),
        memory: Bytes::mib(memory_mib),
        pods: 1,
        ..Resources::default()
    }
}

// --- inputs ---

fn catalog() -> Catalog {
    let kinds = [
        kind("c5.large", 2, 4096, 85_000),
        kind("m5.large", 2, 8192, 96_000),
        kind("m5.xlarge", 4, 16384, 192_000),
    ];
    let zone = |name: &str, id: &str| Zone { name: name.into(), id: id.into(), assumed: true };
    Catalog {
        region: "us-east-1".into(),
        zones: vec![zone("us-east-1a", "use1-az1"), zone("us-east-1b", "use1-az2")],
        types: kinds.into_iter().map(|kind| (kind.name.clone(), kind)).collect(),
        prices: PriceSource {
            source: "embedded list prices".to_owned(),
            region: "us-east-1".into(),
            date: "2026-09-01".to_owned(),
            stand_in: false,
        },
        warnings: Vec::new(),
        measured: MeasuredNodes::default(),
        quotas: None,
        offered: None,
    }
}

fn kind(name: &str, vcpus: i64, memory_mib: i64, price: i64) -> InstanceType {
    let offering = |zone: &str, id: &str| Offering {
        zone: zone.into(),
        zone_id: id.into(),
        capacity_type: CapacityType::OnDemand,
        price: Some(MicroUsd(price)),
        estimated: false,
    };
    InstanceType {
        name: name.into(),
        arch: "amd64".to_owned(),
        vcpus,
        memory_mib,
        enis: 3,
        ips_per_eni: 10,
        local_nvme_gb: 0,
        ebs_attachments: None,
        extended: BTreeMap::new(),
        bare_metal: false,
        has_accelerator: false,
        labels: [
            label(key::INSTANCE_TYPE, name),
            label(key::ARCH, "amd64"),
            label("karpenter.k8s.aws/instance-cpu", &vcpus.to_string()),
        ]
        .into(),
        offerings: vec![offering("us-east-1a", "use1-az1"), offering("us-east-1b", "use1-az2")],
    }
}

fn desired() -> Desired {
    let requirement = |key: &str, values: &[&str]| PoolRequirement {
        key: key.into(),
        operator: Operator::In,
        values: values.iter().map(|value| (*value).into()).collect(),
        min_values: None,
    };
    let origin = Origin::new("pools.yaml", 1);
    let pool = Pool {
        name: "web".into(),
        origin: origin.clone(),
        generation: Generation::V1,
        node_class: Some("default".into()),
        labels: [label("team", "web")].into(),
        annotations: BTreeMap::new(),
        requirements: vec![
            requirement(key::INSTANCE_TYPE, &["c5.large", "m5.large", "m5.xlarge"]),
            requirement(key::CAPACITY_TYPE, &["on-demand"]),
        ],
        taints: vec![dedicated()],
        startup_taints: vec![starting()],
        kubelet: None,
        limits: PoolLimits { resources: [("cpu".into(), 14_000)].into(), nodes: Some(5) },
        weight: 0,
        replicas: None,
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: None,
        budgets: Vec::new(),
        expire_after: Expiry::Never,
        unreadable: None,
    };
    let class = NodeClass {
        name: "default".into(),
        origin,
        generation: Generation::V1,
        ami_family: AmiFamily::Al2023,
        image: "al2023@latest".to_owned(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: None,
        instance_store_raid0: false,
        reservations: Vec::new(),
        prefix_delegation: false,
        user_data_digest: None,
        tags: BTreeMap::new(),
        instance_settings: crate::model::desired::InstanceSettings::default(),
        spec_digests: std::sync::Arc::new([("userData".to_owned(), "c1a55".into())].into()),
        unreadable: None,
    };
    Desired {
        pools: [(pool.name.clone(), pool)].into(),
        node_classes: [(class.name.clone(), class)].into(),
        ..Desired::default()
    }
}

fn shape(requests: Resources) -> PodShape {
    PodShape {
        namespace: "shop".into(),
        labels: Labels::new(),
        requests,
        nodes: NodeChoice {
            any_of: vec![Requirements::from_labels(&[label("team", "web")].into())],
            ..NodeChoice::default()
        },
        tolerations: vec![Toleration {
            key: "dedicated".to_owned(),
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        }],
        host_ports: Vec::new(),
        spread: Vec::new(),
        affinity: PodAffinity::default(),
        anti_affinity: PodAffinity::default(),
        volumes: Vec::new(),
        priority: 0,
        preempts: true,
        do_not_disrupt: false,
        presumed: Resources::default(),
        unsupported: Vec::new(),
        default_spread: None,
    }
}

fn demand() -> Demand {
    let group = |name: &str, requests, planned, running: &[(&str, u32)]| PodGroup {
        workload: workload(name),
        origin: Some(Origin::new("shop.yaml", 1)),
        shape: Arc::new(shape(requests)),
        counts: Counts { floor: planned, live: planned, ceiling: planned, planned },
        decided_by: Decider::Git,
        running: running.iter().map(|(node, pods)| (NodeName::from(*node), *pods)).collect(),
        partitions: Vec::new(),
    };
    Demand {
        sizings: BTreeMap::new(),
        groups: vec![
            group("api", resources(800, 1024), 3, &[("n0", 2), ("n2", 1)]),
            group("batch", resources(1800, 1024), 3, &[]),
        ],
        daemons: vec![Daemon {
            workload: agent(),
            origin: None,
            shape: Arc::new(shape(resources(100, 128))),
        }],
        fargate: Vec::new(),
        unresolved: Vec::new(),
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
        world.instances.insert(instance.id.clone(), instance);
        world.nodes.insert(node.name.clone(), node);
    }
    let (_, mut foreign) = live("9", "m5.large");
    foreign.instance = None;
    foreign.labels = Labels::new();
    foreign.taints = Vec::new();
    world.nodes.insert(foreign.name.clone(), foreign);
    let pods = [("a", "n0"), ("b", "n0"), ("c", "n1"), ("d", "n2")];
    world.pods = pods.iter().map(|(name, node)| pod(name, node).into()).collect();
    world.workloads = vec![LiveWorkload {
        id: workload("api"),
        replicas: 4,
        first_ordinal: 0,
        delivered: true,
        template: None,
    }];
    world
}

fn live(key: &str, kind: &str) -> (Instance, Node) {
    let state = node_state(key, kind);
    let instance = Instance {
        id: format!("i-{key}").as_str().into(),
        instance_type: kind.into(),
        zone: "us-east-1a".into(),
        capacity_type: CapacityType::OnDemand,
        state: InstanceState::Running,
        launched_at: at(-100),
        image: "al2023@latest".to_owned(),
        launched_with: LaunchedWith::default(),
        tags: [
            (tag::CLUSTER.to_owned(), "prod".to_owned()),
            (tag::POOL.to_owned(), "web".to_owned()),
            (tag::KEY.to_owned(), key.to_owned()),
        ]
        .into(),
        reservation: None,
        group: None,
    };
    let kinds = catalog().types;
    let allocation = allocation(&kinds[kind], &NodeSettings::default());
    let node = Node {
        name: format!("n{key}").as_str().into(),
        uid: format!("uid-{key}").as_str().into(),
        instance: Some(instance.id.clone()),
        labels: state.labels,
        annotations: BTreeMap::new(),
        taints: state.taints,
        capacity: allocation.capacity,
        allocatable: allocation.allocatable,
        ready: true,
        faults: [].into(),
        unschedulable: false,
        created_at: at(-100),
    };
    (instance, node)
}

fn pod(name: &str, node: &str) -> Pod {
    Pod {
        namespace: "shop".into(),
        name: name.into(),
        uid: name.into(),
        owner: Some(workload("api")),
        template: "api".to_owned(),
        node: Some(node.into()),
        phase: PodPhase::Running,
        created_at: at(-50),
        terminating: false,
        mirror: false,
        started_at: None,
        granted: [].into(),
    }
}

// --- the plan ---
