//! A hand-built plan with a row of every kind, for the tests of all views.

use std::collections::BTreeMap;

use crate::catalog::PriceSource;
use crate::demand::{Counts, Decider, DemandMode};
use crate::model::ids::{Address, Labels, Origin, WorkloadId, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::pod::{Taint, TaintEffect};
use crate::model::reason::{
    Alternative, BlockReason, KeepReason, LaunchReason, Rejection, RetireReason,
};
use crate::model::requirement::label;
use crate::model::units::{Bytes, MicroUsd};
use crate::plan::Plan;
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Capacity, Change, ClusterIdentity,
    Completeness, Condition, Cost, DaemonRow, DemandRow, Diagnostic, DiagnosticSeverity,
    EvictionRow, ExplainRow, KEY_LABEL, NodeState, NodeTotals, Placement, PlacementMode, PodCounts,
    PodTotals, Precondition, Reason, ResourceChange, ResourceKind, Summary, UnresolvedRow,
    UnschedulableRow, Wave, WaveStep,
};

/// The time of the plan.
const NOW: &str = "2026-09-01T10:02:00Z";

/// Returns an empty plan without changes.
pub(crate) fn nothing() -> Plan {
    let world = BaseWorld {
        name: "sim:world".into(),
        cluster: ClusterIdentity {
            name: "prod-eu1".into(),
            region: "eu-west-1".into(),
            account: "123456789012".into(),
            uid: "6f1c".into(),
        },
        taken_at: "2026-09-01T10:00:00Z".parse().expect("a time"),
        sources: BTreeMap::from([
            ("ec2".to_owned(), Completeness::Complete),
            ("kubernetes".to_owned(), Completeness::Complete),
        ]),
    };
    let base = Base {
        path: "clusters/prod".into(),
        directory: None,
        repository: Some("github.com/acme/fleet".into()),
        commit: Some("4f2c9a1d5e6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d".into()),
        tree: format!("sha256:{}", "7".repeat(64)),
        dirty: false,
        rendered: Vec::new(),
        world,
        demand: DemandMode::Live,
        preconditions: Vec::new(),
        guard: None,
        judged_by: Vec::new(),
    };
    Plan {
        format_version: crate::plan::wire::FORMAT_VERSION.into(),
        tool_version: "0.1.0".into(),
        timestamp: NOW.parse().expect("a time"),
        applyable: false,
        complete: true,
        errored: false,
        resource_changes: Vec::new(),
        resource_drift: Vec::new(),
        checksum: None,
        checks: Vec::new(),
        summary: Summary::default(),
        capacity: capacity(base),
    }
}

fn capacity(base: Base) -> Capacity {
    Capacity {
        digest: format!("sha256:9b1e02c4d5f6{}", "0".repeat(52)).into(),
        plan_id: "p".into(),
        base,
        expires_at: "2026-09-01T10:32:00Z".parse().expect("a time"),
        waves: Vec::new(),
        pods: PodTotals::default(),
        placement: Placement {
            mode: PlacementMode::Unsteered,
            orders: Vec::new(),
            packed_hourly: MicroUsd::ZERO,
            unsteered: None,
            failure_domains: None,
        },
        placements: Vec::new(),
        unschedulable: Vec::new(),
        unresolved: Vec::new(),
        demand: Vec::new(),
        modes: Vec::new(),
        daemons: Vec::new(),
        cost: cost(0, 0),
        alternatives: Vec::new(),
        explain: Vec::new(),
        diagnostics: Vec::new(),
        disruption_budgets: Vec::new(),
        comparison: None,
    }
}

fn cost(before: i64, after: i64) -> Cost {
    Cost {
        currency: "USD".into(),
        hourly_before: MicroUsd(before),
        hourly_after: MicroUsd(after),
        hourly_delta: MicroUsd(after - before),
        monthly_delta: MicroUsd(after - before).per_month(),
        lower_bound_hourly: MicroUsd::ZERO,
        gap_percent: "0.00".into(),
        prices: PriceSource {
            source: "embedded list prices".into(),
            region: "us-east-1".into(),
            date: "2026-05-01".into(),
            stand_in: true,
        },
        estimated: 0,
        unpriced: 0,
        fargate: None,
        breakdown: crate::plan::wire::CostBreakdown::default(),
    }
}

fn amount(cpu_milli: i64, memory_bytes: i64, pods: i64) -> Amount {
    Amount { cpu_milli, memory_bytes, pods, ..Amount::default() }
}

/// Returns a node of `pool` with 2 vCPU and 8 GiB for each `size`.
fn node(pool: &str, key: &str, instance_type: &str, size: i64) -> NodeState {
    let labels: Labels = [
        label("team", pool),
        label("kubernetes.io/arch", "amd64"),
        label("karpenter.sh/nodepool", pool),
        label(KEY_LABEL, key),
    ]
    .into();
    NodeState {
        pool: Some(pool.into()),
        instance_type: Some(instance_type.into()),
        zone: Some("eu-west-1a".into()),
        zone_id: Some("euw1-az2".into()),
        capacity_type: Some(CapacityType::OnDemand),
        image: Some("al2023@latest".into()),
        labels,
        taints: vec![Taint {
            key: "dedicated".into(),
            value: pool.into(),
            effect: TaintEffect::NoSchedule,
        }],
        startup_taints: Vec::new(),
        capacity: amount(2_000 * size, Bytes::gib(8 * size).0, 29),
        allocatable: amount(1_930 * size, Bytes::mib(7_100 * size).0, 29),
        reservation: None,
        open_labels: Vec::new(),
        spec_digest: Some("5d1c".into()),
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        group: None,
    }
}

/// Returns an existing node.
fn live(pool: &str, key: &str, instance_type: &str, size: i64) -> NodeState {
    NodeState {
        instance_id: Some(format!("i-{pool}{key}").into()),
        node: Some(format!("node-{pool}-{key}").into()),
        node_uid: Some(format!("uid-{key}").into()),
        ..node(pool, key, instance_type, size)
    }
}

fn address(pool: &str, key: &str) -> Address {
    format!("ec2_instance.{pool}[\"{key}\"]").into()
}

fn row(
    (pool, key): (&str, &str),
    actions: &[Action],
    before: Option<NodeState>,
    after: Option<NodeState>,
) -> ResourceChange {
    let after_unknown = match (&before, &after) {
        (None, Some(_)) => BTreeMap::from([("instance_id".into(), true), ("node".into(), true)]),
        _ => BTreeMap::new(),
    };
    ResourceChange {
        address: address(pool, key),
        kind: ResourceKind::Ec2Instance,
        name: pool.into(),
        index: Some(key.into()),
        change: Change { actions: actions.to_vec(), before, after, after_unknown },
        action_reason: None,
    }
}

fn explain((pool, key): (&str, &str), reason: Reason, pods: &[(&str, u32)]) -> ExplainRow {
    ExplainRow {
        address: address(pool, key),
        group: None,
        reason,
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: None,
        hourly_after: None,
        pods: pods.iter().map(|(name, n)| ((*name).into(), *n)).collect(),
        pods_before: PodCounts::default(),
        daemons: amount(150, Bytes::mib(200).0, 2),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    }
}

fn workload(namespace: &str, name: &str) -> WorkloadId {
    WorkloadId { namespace: namespace.into(), name: name.into(), kind: WorkloadKind::Deployment }
}

const LARGE: MicroUsd = MicroUsd(107_000);
const XLARGE: MicroUsd = MicroUsd(214_000);
const API: &str = "web/Deployment/api";
const QUEUE: &str = "batch/Deployment/queue";

/// Returns a plan with a row of every kind.
pub(crate) fn plan() -> Plan {
    let (resource_changes, explain) =
        [launches(), retirements(), stays()].concat().into_iter().unzip();
    let plan = nothing();
    let mut base = plan.capacity.base.clone();
    base.dirty = true;
    base.preconditions = preconditions();
    let capacity = Capacity {
        base,
        waves: waves(),
        pods: PodTotals {
            total: 44,
            placed: 41,
            unschedulable: 3,
            fargate: 0,
            unresolved: 1,
            moved: 9,
        },
        unschedulable: vec![unschedulable()],
        unresolved: vec![UnresolvedRow {
            object: "HelmRelease web/shop".into(),
            origin: Origin::new("clusters/prod/shop.yaml", 1),
            reason: "charts are not rendered yet".into(),
        }],
        demand: demand(),
        modes: Vec::new(),
        daemons: vec![DaemonRow {
            workload: WorkloadId {
                kind: WorkloadKind::DaemonSet,
                ..workload("kube-system", "cni")
            },
            origin: None,
            requests: amount(150, Bytes::mib(200).0, 1),
        }],
        cost: Cost {
            lower_bound_hourly: MicroUsd(1_050_000),
            gap_percent: "1.90".into(),
            estimated: 1,
            ..cost(1_177_000, 1_070_000)
        },
        alternatives: vec![AlternativesRow {
            address: address("web", "9"),
            offerings: vec![Alternative {
                instance_type: "m5a.large".into(),
                zone: "eu-west-1b".into(),
                capacity_type: CapacityType::Spot,
                hourly: MicroUsd(96_000),
            }],
        }],
        explain,
        diagnostics: diagnostics(),
        ..plan.capacity
    };
    Plan { applyable: true, resource_changes, summary: summary(), capacity, ..plan }
}

fn summary() -> Summary {
    Summary {
        add: 4,
        change: 1,
        destroy: 4,
        replace: 1,
        blocked: 1,
        destructive: true,
        nodes: NodeTotals { before: 8, launch: 4, terminate: 4, after: 8 },
    }
}

type ExplainedRows = Vec<(ResourceChange, ExplainRow)>;

fn launches() -> ExplainedRows {
    let demand = || Reason::Launch {
        because: LaunchReason::Demand { pods: BTreeMap::from([(API.into(), 6)]) },
    };
    let launch = |key: &'static str| {
        let at = ("web", key);
        let explain = ExplainRow {
            hourly_after: Some(LARGE),
            rejected: vec![Rejection {
                reason: "dearer".into(),
                detail: "next is m5a.xlarge at $0.1920/h".into(),
                count: 14,
            }],
            ..explain(at, demand(), &[(API, 6)])
        };
        (row(at, &[Action::Create], None, Some(node("web", key, "m5.large", 1))), explain)
    };
    let at = ("web", "1");
    let replaced = row(
        at,
        &[Action::Create, Action::Delete],
        Some(live("web", "1", "m5.xlarge", 2)),
        Some(node("web", "1", "m5.large", 1)),
    );
    let reason =
        Reason::Launch { because: LaunchReason::Consolidation { saves_hourly: LARGE, moves: 4 } };
    let why = ExplainRow {
        retire_reason: Some(RetireReason::Underutilized {
            saves_hourly: LARGE,
            moves: 4,
            payback_hours: 1,
        }),
        hourly_before: Some(XLARGE),
        hourly_after: Some(LARGE),
        ..explain(at, reason, &[(API, 4)])
    };
    vec![launch("10"), launch("9"), (replaced, why)]
}

fn retirements() -> ExplainedRows {
    let retire = |at: (&'static str, &'static str), price, because| {
        let reason = Reason::Retire { because };
        let explain = ExplainRow { hourly_before: Some(price), ..explain(at, reason, &[]) };
        (row(at, &[Action::Delete], Some(live(at.0, at.1, "m5.large", 1)), None), explain)
    };
    let group = |(row, explain): (ResourceChange, ExplainRow)| {
        (row, ExplainRow { group: Some("consolidation-1".into()), ..explain })
    };
    let underutilized = || RetireReason::Underutilized {
        saves_hourly: MicroUsd(7_000),
        moves: 5,
        payback_hours: 2,
    };
    let at = ("batch", "2");
    let reason = Reason::Launch {
        because: LaunchReason::Consolidation { saves_hourly: MicroUsd(7_000), moves: 5 },
    };
    let launch =
        ExplainRow { hourly_after: Some(MicroUsd(207_000)), ..explain(at, reason, &[(QUEUE, 5)]) };
    let launched = row(at, &[Action::Create], None, Some(node("batch", "2", "c5.xlarge", 2)));
    vec![
        retire(("web", "2"), LARGE, RetireReason::Empty { saves_hourly: LARGE }),
        group(retire(("batch", "0"), LARGE, underutilized())),
        group(retire(("batch", "1"), LARGE, underutilized())),
        group((launched, launch)),
    ]
}

fn stays() -> ExplainedRows {
    let stay = |at: (&'static str, &'static str), because, pods| {
        let state = live(at.0, at.1, "m5.large", 1);
        let prices = (Some(LARGE), Some(LARGE));
        let reason = Reason::Keep { because };
        let explain = ExplainRow {
            hourly_before: prices.0,
            hourly_after: prices.1,
            ..explain(at, reason, pods)
        };
        (row(at, &[Action::NoOp], Some(state.clone()), Some(state)), explain)
    };
    let (mut updated, why) = stay(("web", "4"), KeepReason::Needed { pods: 6 }, &[(API, 6)]);
    updated.change.actions = vec![Action::Update];
    if let Some(after) = &mut updated.change.after {
        after.labels.extend([label("team", "shop"), label("tier", "front")]);
    }
    let (mut foreign, not_ours) = stay(("legacy", "7"), KeepReason::NotOurs, &[]);
    foreign.kind = ResourceKind::KubernetesNode;
    let blocked = KeepReason::Blocked { by: BlockReason::DoNotDisrupt };
    vec![
        (updated, why),
        stay(("web", "3"), blocked, &[(API, 1)]),
        stay(("web", "0"), KeepReason::Needed { pods: 18 }, &[(API, 13), (QUEUE, 5)]),
        (foreign, not_ours),
    ]
}

fn preconditions() -> Vec<Precondition> {
    let instance = |key: &str| Precondition {
        address: address("web", key),
        condition: Condition::InstanceIs {
            instance_id: format!("i-web{key}").into(),
            node_uid: Some(format!("uid-{key}").into()),
        },
    };
    let unused = Precondition {
        address: address("web", "9"),
        condition: Condition::KeyUnused { pool: "web".into(), key: "9".into() },
    };
    let replicas = Precondition {
        address: address("web", "2"),
        condition: Condition::ReplicasAtMost { workload: workload("web", "api"), replicas: 36 },
    };
    vec![instance("1"), instance("2"), replicas, unused]
}

fn waves() -> Vec<Wave> {
    let wave = |step, rows: &[(&str, &str)]| Wave {
        step,
        addresses: rows.iter().map(|(pool, key)| address(pool, key)).collect(),
    };
    vec![
        wave(WaveStep::Launch, &[("batch", "2"), ("web", "1"), ("web", "10"), ("web", "9")]),
        wave(WaveStep::Retire, &[("batch", "0"), ("batch", "1"), ("web", "1"), ("web", "2")]),
    ]
}

fn unschedulable() -> UnschedulableRow {
    let rejection = |reason: &str, detail: &str, count| Rejection {
        reason: reason.into(),
        detail: detail.into(),
        count,
    };
    UnschedulableRow {
        workload: workload("ml", "train"),
        origin: Some(Origin::new("clusters/prod/train.yaml", 12)),
        pods: 3,
        offerings: 255,
        reasons: vec![
            rejection("too-small", "memory: needs 96Gi, largest has 61Gi", 212),
            rejection("wrong-zone", "outside eu-west-1a", 40),
            rejection("limit-reached", "pool web: memory 512Gi of 512Gi", 3),
        ],
        nearest: Some("raise spec.limits.memory of NodePool web to 608Gi".into()),
        eviction: Some(EvictionRow {
            lets_in: 1,
            evicts: [("shop/Deployment/web".to_owned(), 2)].into(),
        }),
        displaces: [("shop/Deployment/web".to_owned(), 1)].into(),
    }
}

fn demand() -> Vec<DemandRow> {
    let row = |namespace: &str, name: &str, n: u32, requests| DemandRow {
        workload: workload(namespace, name),
        origin: Some(Origin::new("clusters/prod/apps.yaml", 3)),
        counts: Counts { floor: 2, live: n, ceiling: n + 4, planned: n },
        decided_by: Decider::Git,
        requests,
        fargate: None,
        sized_by: None,
        rules: Vec::new(),
        elsewhere: Vec::new(),
    };
    let scaled = Decider::Autoscaler {
        autoscaler: "HorizontalPodAutoscaler batch/queue".into(),
        origin: Origin::new("clusters/prod/apps.yaml", 40),
        because: "10 pods run; cpu 66% of 60% asks for 11, next step 11".into(),
        next: Some(11),
    };
    vec![
        DemandRow {
            decided_by: scaled,
            ..row("batch", "queue", 10, amount(300, Bytes::gib(1).0, 1))
        },
        row("ml", "train", 3, amount(4_000, Bytes::gib(96).0, 1)),
        row("web", "api", 36, amount(250, Bytes::mib(512).0, 1)),
    ]
}

fn diagnostics() -> Vec<Diagnostic> {
    vec![
        Diagnostic {
            severity: DiagnosticSeverity::Note,
            origin: None,
            object: String::new(),
            message: "zone ids are those of the snapshot's account".into(),
            hint: None,
        },
        Diagnostic {
            severity: DiagnosticSeverity::Warning,
            origin: Some(Origin::new("clusters/prod/apps.yaml", 31)),
            object: "Deployment batch/queue".into(),
            message: "is scaled by an HPA that is not taken into account yet".into(),
            hint: Some("plan with --demand ceiling for its most".into()),
        },
    ]
}

/// Returns the plan with `name` inserted in every field that can hold outside text.
pub(crate) fn hostile(name: &str) -> Plan {
    hostile_at(&HOSTILE_FIELDS, name)
}

/// Texts of the plan, one in each field that can hold outside text.
const HOSTILE_FIELDS: [&str; 22] = [
    "prod-eu1",
    "clusters/prod",
    "sim:world",
    "m5.large",
    "eu-west-1a",
    "al2023@latest",
    "dedicated",
    "team",
    "HelmRelease",
    "charts are not",
    "i-web",
    "uid-",
    "outside",
    "raise",
    "next is",
    "embedded",
    "is scaled",
    "plan with",
    "4f2c9a1",
    "api",
    "consolidation-1",
    "node-web",
];

/// Returns the plan with `name` appended to each of `originals`.
pub(crate) fn hostile_at(originals: &[&str], name: &str) -> Plan {
    let quoted = serde_json::to_string(name).expect("text is JSON");
    let inner = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let inner = inner.expect("a text has quotes");
    let mut json = serde_json::to_string(&plan()).expect("a plan is JSON");
    for original in originals {
        json = json.replace(original, &format!("{original}{inner}"));
    }
    serde_json::from_str(&json).expect("still a plan")
}

/// Returns a plan over `nodes` nodes in three zones and a few pools; `removed` nodes are removed.
pub(crate) fn large(nodes: u32, removed: u32) -> Plan {
    let mut plan = nothing();
    let kinds = ["m5.large", "m5.xlarge", "c6i.2xlarge", "r7g.4xlarge"];
    for n in 0..nodes {
        let pool = format!("pool-{}", n % 7);
        let (key, kind) = (n.to_string(), kinds[usize::try_from(n % 4).expect("small")]);
        let is_removed = n < removed;
        let saves_hourly = LARGE;
        let reason = if is_removed {
            Reason::Retire { because: RetireReason::Empty { saves_hourly } }
        } else {
            Reason::Keep { because: KeepReason::Needed { pods: 9 } }
        };
        let mut state = live("p", &key, kind, 1);
        state.pool = Some(pool.as_str().into());
        state.zone = Some(
            ["eu-west-1a", "eu-west-1b", "eu-west-1c"][usize::try_from(n % 3).expect("small")]
                .into(),
        );
        let address: Address = format!("ec2_instance.{pool}[\"{key}\"]").into();
        let actions = if is_removed { Action::Delete } else { Action::NoOp };
        plan.resource_changes.push(ResourceChange {
            address: address.clone(),
            name: pool,
            index: Some(key),
            change: Change {
                actions: vec![actions],
                before: Some(state.clone()),
                after: (!is_removed).then_some(state),
                after_unknown: BTreeMap::new(),
            },
            kind: ResourceKind::Ec2Instance,
            action_reason: Some("delete_because_empty".into()),
        });
        let pods: &[(&str, u32)] = if is_removed { &[] } else { &[(API, 6), (QUEUE, 3)] };
        plan.capacity.explain.push(ExplainRow {
            address,
            hourly_before: Some(LARGE),
            hourly_after: (!is_removed).then_some(LARGE),
            ..explain(("", ""), reason, pods)
        });
    }
    plan.summary = Summary {
        destroy: removed,
        destructive: removed > 0,
        nodes: NodeTotals { before: nodes, launch: 0, terminate: removed, after: nodes - removed },
        ..Summary::default()
    };
    plan.capacity.demand = demand();
    plan.capacity.cost = cost(i64::from(nodes) * LARGE.0, i64::from(nodes - removed) * LARGE.0);
    plan.capacity.cost.breakdown = crate::plan::breakdown(&plan, &[]);
    plan
}
