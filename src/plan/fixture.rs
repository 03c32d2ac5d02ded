//! A small valid plan with every kind of row, and the inputs it follows from.
//!
//! One pool, `web`, with four nodes: `0` stays, `1` goes because `shop/api` shrank, `2` is replaced
//! by a cheaper one, `3` is launched for `shop/batch`, of which one pod finds the pool's limit
//! reached. A fifth node is not ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::check::Facts;
use super::identity::seal;
use super::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Capacity, Change, Condition, Cost, DaemonRow,
    DemandRow, ExplainRow, FORMAT_VERSION, NodeState, NodeTotals, Placement, PlacementRow, Plan,
    PodCounts, PodTotals, Precondition, Reason, ResourceChange, ResourceKind, Summary,
    UnschedulableRow, Wave, WaveStep,
};
use crate::catalog::{
    Allocation, CapacityType, Catalog, InstanceType, Measured, NodeSettings, Offering, PriceSource,
    Zone,
};
use crate::demand::{Counts, Daemon, Decider, Demand, DemandMode, NodeChoice, PodGroup, PodShape};
use crate::fleet::{
    ClusterIdentity, Instance, InstanceState, LiveWorkload, MadeWith, Node, Observed, Pod,
    PodPhase, tag,
};
use crate::ids::{Address, Labels, NodeName, Origin, WorkloadId, WorkloadKind};
use crate::manifest::{
    AmiFamily, Consolidation, Desired, Expiry, Generation, KubeletSettings, NodeClass, Pool,
    PoolLimits, PoolRequirement,
};
use crate::pod::{PodAffinity, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::requirement::{Operator, Requirements, key, label};
use crate::solve::{Alternative, BlockReason, KeepReason, LaunchReason, Rejection, RetireReason};
use crate::units::{Bytes, MicroUsd, MilliCpu, Resources};

/// The inputs of the plan, owned.
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

/// Returns the inputs that [`plan`] follows from.
pub(super) fn inputs() -> Inputs {
    Inputs { desired: desired(), demand: demand(), observed: observed(), catalog: catalog() }
}

/// A simpler rule than the catalogue's: a tenth of a core and 1 GiB are kept back.
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
        measured: Measured::default(),
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
        machine: crate::manifest::Machine::default(),
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
        pinned: false,
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
        parts: Vec::new(),
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
        made_with: MadeWith::default(),
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

/// Returns the state of a node that is still to come.
fn node_state(key: &str, kind: &str) -> NodeState {
    let fact = &catalog().types[kind];
    let allocation = allocation(fact, &NodeSettings::default());
    let mut labels = fact.labels.clone();
    labels.extend([
        label("team", "web"),
        label(key::NODEPOOL, "web"),
        label(key::ZONE, "us-east-1a"),
        label(key::ZONE_ID, "use1-az1"),
        label(key::CAPACITY_TYPE, "on-demand"),
        label(crate::fleet::KEY_LABEL, key),
    ]);
    NodeState {
        pool: Some("web".into()),
        instance_type: Some(kind.into()),
        zone: Some("us-east-1a".into()),
        zone_id: Some("use1-az1".into()),
        capacity_type: Some(CapacityType::OnDemand),
        image: Some("al2023@latest".to_owned()),
        labels,
        taints: vec![dedicated()],
        startup_taints: vec![starting()],
        capacity: Amount::from(&allocation.capacity),
        allocatable: Amount::from(&allocation.allocatable),
        reservation: None,
        open_labels: Vec::new(),
        spec_digest: Some("5bec".to_owned()),
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        group: None,
    }
}

/// Returns the state of a node that is there.
fn live_state(key: &str, kind: &str) -> NodeState {
    NodeState {
        startup_taints: Vec::new(),
        instance_id: Some(format!("i-{key}").into()),
        node: Some(format!("n{key}").into()),
        node_uid: Some(format!("uid-{key}").into()),
        ..node_state(key, kind)
    }
}

fn row(
    key: &str,
    actions: &[Action],
    before: Option<NodeState>,
    after: Option<NodeState>,
) -> ResourceChange {
    ResourceChange {
        address: address(key),
        kind: ResourceKind::Ec2Instance,
        name: "web".to_owned(),
        index: Some(key.to_owned()),
        change: Change { actions: actions.to_vec(), before, after, after_unknown: BTreeMap::new() },
        action_reason: None,
    }
}

fn rows() -> Vec<ResourceChange> {
    let kept = live_state("0", "m5.large");
    let foreign = NodeState {
        pool: None,
        instance_type: None,
        zone: None,
        zone_id: None,
        capacity_type: None,
        image: None,
        labels: Labels::new(),
        taints: Vec::new(),
        spec_digest: None,
        instance_id: None,
        ..live_state("9", "m5.large")
    };
    let mut replace = row(
        "2",
        &[Action::Create, Action::Delete],
        Some(live_state("2", "m5.xlarge")),
        Some(node_state("2", "c5.large")),
    );
    replace.change.after_unknown = [("node".to_owned(), true)].into();
    vec![
        row("0", &[Action::NoOp], Some(kept.clone()), Some(kept)),
        row("1", &[Action::Delete], Some(live_state("1", "m5.large")), None),
        replace,
        row("3", &[Action::Create], None, Some(node_state("3", "m5.xlarge"))),
        ResourceChange {
            address: "kubernetes_node.n9".into(),
            kind: ResourceKind::KubernetesNode,
            name: "n9".to_owned(),
            index: None,
            ..row("9", &[Action::NoOp], Some(foreign.clone()), Some(foreign))
        },
    ]
}

fn explain() -> Vec<ExplainRow> {
    let usd = |micros: i64| (micros > 0).then_some(MicroUsd(micros));
    let row = |key: &str, reason, before, after, pods: &[(&str, u32)]| ExplainRow {
        address: address(key),
        group: None,
        reason,
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: usd(before),
        hourly_after: usd(after),
        pods: pods.iter().map(|(name, n)| (format!("shop/Deployment/{name}"), *n)).collect(),
        pods_before: PodCounts::default(),
        daemons: Amount::from(&resources(100, 128)),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    };
    let saved =
        RetireReason::Underutilized { saves_hourly: MicroUsd(107_000), moves: 1, payback_hours: 1 };
    let keep = |because| Reason::Keep { because };
    let gone = Reason::Retire { because: RetireReason::Empty { saves_hourly: MicroUsd(96_000) } };
    let swap = Reason::Launch {
        because: LaunchReason::Consolidation { saves_hourly: MicroUsd(107_000), moves: 1 },
    };
    let grow = Reason::Launch {
        because: LaunchReason::Demand { pods: [("shop/Deployment/batch".to_owned(), 2)].into() },
    };
    vec![
        row("0", keep(KeepReason::Needed { pods: 2 }), 96_000, 96_000, &[("api", 2)]),
        ExplainRow { daemons: Amount::default(), ..row("1", gone, 96_000, 0, &[]) },
        ExplainRow { retire_reason: Some(saved), ..row("2", swap, 192_000, 85_000, &[("api", 1)]) },
        row("3", grow, 0, 192_000, &[("batch", 2)]),
        ExplainRow {
            address: "kubernetes_node.n9".into(),
            daemons: Amount::default(),
            ..row("9", keep(KeepReason::Blocked { by: BlockReason::NotTargeted }), 0, 0, &[])
        },
    ]
}

fn preconditions() -> Vec<Precondition> {
    let is = |key: &str| Precondition {
        address: address(key),
        condition: Condition::InstanceIs {
            instance_id: format!("i-{key}").into(),
            node_uid: Some(format!("uid-{key}").into()),
        },
    };
    let shrunk = |key: &str| Precondition {
        address: address(key),
        condition: Condition::ReplicasAtMost { workload: workload("api"), replicas: 3 },
    };
    let unused = Precondition {
        address: address("3"),
        condition: Condition::KeyUnused { pool: "web".into(), key: "3".to_owned() },
    };
    vec![is("1"), shrunk("1"), is("2"), shrunk("2"), unused]
}

fn base() -> Base {
    let Observed { cluster, taken_at, sources, .. } = observed();
    Base {
        path: ".".to_owned(),
        repository: None,
        commit: Some("4f2c9a1".to_owned()),
        tree: "7ee0".to_owned(),
        dirty: false,
        directory: None,
        rendered: Vec::new(),
        world: BaseWorld { name: "sim:world".to_owned(), cluster, taken_at, sources },
        demand: DemandMode::Live,
        preconditions: preconditions(),
        guard: None,
        judged_by: Vec::new(),
    }
}

fn demand_rows(demand: &Demand) -> Vec<DemandRow> {
    let row = |group: &PodGroup| DemandRow {
        workload: group.workload.clone(),
        origin: group.origin.clone(),
        counts: group.counts,
        decided_by: group.decided_by.clone(),
        requests: Amount::from(&group.shape.requests),
        fargate: None,
        sized_by: None,
        rules: Vec::new(),
        elsewhere: Vec::new(),
    };
    demand.groups.iter().map(row).collect()
}

fn cost() -> Cost {
    Cost {
        currency: "USD".to_owned(),
        hourly_before: MicroUsd(384_000),
        hourly_after: MicroUsd(373_000),
        hourly_delta: MicroUsd(-11_000),
        monthly_delta: MicroUsd(-8_030_000),
        lower_bound_hourly: MicroUsd(300_000),
        gap_percent: "24.33".to_owned(),
        prices: catalog().prices,
        estimated: 0,
        unpriced: 1,
        fargate: None,
        breakdown: crate::plan::wire::CostBreakdown::default(),
    }
}

fn alternatives() -> Vec<AlternativesRow> {
    let offering = |kind: &str, zone: &str, hourly| Alternative {
        instance_type: kind.into(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        hourly: MicroUsd(hourly),
    };
    vec![
        AlternativesRow {
            address: address("2"),
            offerings: vec![
                offering("c5.large", "us-east-1b", 85_000),
                offering("m5.large", "us-east-1a", 96_000),
            ],
        },
        AlternativesRow {
            address: address("3"),
            offerings: vec![offering("m5.xlarge", "us-east-1b", 192_000)],
        },
    ]
}

fn capacity() -> Capacity {
    let place = |name: &str, key: &str, pods| PlacementRow {
        workload: workload(name),
        address: address(key),
        pods,
    };
    let wave = |step, keys: &[&str]| Wave {
        step,
        addresses: keys.iter().map(|key| address(key)).collect(),
    };
    let (demand, cost) = (demand(), cost());
    Capacity {
        digest: "".into(),
        plan_id: "".into(),
        base: base(),
        expires_at: at(1),
        waves: vec![wave(WaveStep::Launch, &["2", "3"]), wave(WaveStep::Retire, &["1", "2"])],
        pods: PodTotals {
            total: 6,
            placed: 5,
            unschedulable: 1,
            fargate: 0,
            unresolved: 0,
            moved: 1,
        },
        placement: Placement {
            mode: "unsteered".to_owned(),
            orders: Vec::new(),
            packed_hourly: MicroUsd(373_000),
            unsteered: None,
            failure_domains: None,
        },
        placements: vec![place("api", "2", 1), place("batch", "3", 2)],
        unschedulable: vec![UnschedulableRow {
            workload: workload("batch"),
            origin: Some(Origin::new("shop.yaml", 1)),
            pods: 1,
            offerings: 6,
            reasons: vec![Rejection {
                reason: "limit-reached".to_owned(),
                detail: "pool web: cpu 8 of 8".to_owned(),
                count: 6,
            }],
            nearest: None,
            eviction: None,
            displaces: BTreeMap::new(),
        }],
        unresolved: Vec::new(),
        demand: demand_rows(&demand),
        modes: Vec::new(),
        daemons: vec![DaemonRow {
            workload: agent(),
            origin: None,
            requests: Amount::from(&demand.daemons[0].shape.requests),
        }],
        cost,
        alternatives: alternatives(),
        explain: explain(),
        diagnostics: Vec::new(),
        disruption_budgets: Vec::new(),
        comparison: None,
    }
}

/// Returns `plan` with the digest and identity of its contents.
pub(super) fn sealed(mut plan: Plan) -> Plan {
    seal(&mut plan);
    plan
}

/// Returns the plan.
pub(super) fn plan() -> Plan {
    sealed(Plan {
        format_version: FORMAT_VERSION.to_owned(),
        tool_version: "0.1.0".to_owned(),
        timestamp: at(0),
        applyable: true,
        complete: true,
        errored: false,
        resource_changes: rows(),
        resource_drift: Vec::new(),
        checksum: None,
        checks: Vec::new(),
        summary: Summary {
            add: 2,
            change: 0,
            destroy: 2,
            replace: 1,
            blocked: 1,
            destructive: true,
            nodes: NodeTotals { before: 4, launch: 2, terminate: 2, after: 4 },
        },
        capacity: capacity(),
    })
}
