//! A hand-built plan with a row of every kind, for the tests of all views.

use std::collections::BTreeMap;

use super::catalog::prices;
use super::plan::{self, address, demand_row, instance_address, node_state, rejection};
use super::pods::{deployment, no_schedule};
use crate::catalog::PriceSource;
use crate::demand::{Counts, Decider};
use crate::model::ids::{Address, Origin, WorkloadId, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::model::reason::{Alternative, BlockReason, KeepReason, LaunchReason, RetireReason};
use crate::model::requirement::label;
use crate::model::units::{Bytes, MicroUsd};
use crate::plan::Plan;
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Capacity, Condition, Cost, DaemonRow, DemandRow, Diagnostic,
    EvictionRow, ExplainRow, KEY_LABEL, NodeState, NodeTotals, PodTotals, Reason, ResourceChange,
    ResourceKind, Summary, UnresolvedRow, UnschedulableRow, WaveStep,
};

/// Returns an empty plan without changes.
pub(crate) fn nothing() -> Plan {
    let cluster = ClusterIdentity {
        name: "prod-eu1".into(),
        region: "eu-west-1".into(),
        account: "123456789012".into(),
        uid: "6f1c".into(),
    };
    let at = |time: &str| format!("2026-09-01T{time}Z").parse().expect("a time");
    let mut plan = Plan::unchanged(&Observed::empty(cluster, at("10:00:00")));
    (plan.timestamp, plan.applyable) = (at("10:02:00"), false);
    let capacity = &mut plan.capacity;
    capacity.digest = format!("sha256:9b1e02c4d5f6{}", "0".repeat(52)).into();
    capacity.plan_id = "p".into();
    capacity.expires_at = at("10:32:00");
    capacity.cost = cost(0, 0);
    let base = &mut capacity.base;
    base.path = "clusters/prod".into();
    base.repository = Some("github.com/acme/fleet".into());
    base.commit = Some("4f2c9a1d5e6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d".into());
    base.tree = format!("sha256:{}", "7".repeat(64));
    plan
}

fn cost(before: i64, after: i64) -> Cost {
    let prices = PriceSource { is_other_region: true, ..prices("us-east-1", "2026-05-01") };
    Cost { prices, ..plan::cost(before, after) }
}

fn amount(cpu_milli: i64, memory_bytes: i64, pods: i64) -> Amount {
    Amount { cpu_milli, memory_bytes, pods, ..Amount::default() }
}

/// Returns a node of `pool` with 2 vCPU and 8 GiB for each `size`.
fn node(pool: &str, key: &str, instance_type: &str, size: i64) -> NodeState {
    NodeState {
        labels: [
            label("team", pool),
            label("kubernetes.io/arch", "amd64"),
            label("karpenter.sh/nodepool", pool),
            label(KEY_LABEL, key),
        ]
        .into(),
        taints: vec![no_schedule("dedicated", pool)],
        capacity: amount(2_000 * size, Bytes::gib(8 * size).0, 29),
        allocatable: amount(1_930 * size, Bytes::mib(7_100 * size).0, 29),
        spec_digest: Some("5d1c".into()),
        ..node_state(pool, instance_type, ("eu-west-1a", "euw1-az2"))
    }
}

/// Returns an existing node.
fn live(pool: &str, key: &str, instance_type: &str, size: i64) -> NodeState {
    let (instance, node_name) = (format!("i-{pool}{key}"), format!("node-{pool}-{key}"));
    node(pool, key, instance_type, size).running_as(&instance, &node_name, &format!("uid-{key}"))
}

/// Returns the row of a launch whose instance and node are unknown.
fn launch(pool: &str, key: &str, after: NodeState) -> ResourceChange {
    let mut row = ResourceChange::launch(pool, key, after);
    row.change.after_unknown = [("instance_id".into(), true), ("node".into(), true)].into();
    row
}

fn explain((pool, key): (&str, &str), reason: Reason, pods: &[(&str, u32)]) -> ExplainRow {
    ExplainRow {
        pods: pods.iter().map(|(name, n)| ((*name).into(), *n)).collect(),
        daemons: amount(150, Bytes::mib(200).0, 2),
        ..ExplainRow::new(instance_address(pool, key), reason)
    }
}

const LARGE: MicroUsd = MicroUsd(107_000);
const XLARGE: MicroUsd = MicroUsd(214_000);
const API: &str = "web/Deployment/api";
const QUEUE: &str = "batch/Deployment/queue";

/// Returns a plan with a row of every kind.
pub(crate) fn plan() -> Plan {
    let mut plan = preconditions(waves(nothing()))
        .with_explained_rows([launches(), retirements(), stays()].concat());
    plan.capacity.base.dirty = true;
    let capacity = Capacity {
        pods: PodTotals {
            total: 44,
            placed: 41,
            unschedulable: 3,
            served_by_cluster_autoscaler: 0,
            fargate: 0,
            unresolved: 1,
            moved: 9,
        },
        unschedulable: vec![unschedulable()],
        unresolved: vec![UnresolvedRow {
            running: 0,
            object: "HelmRelease web/shop".into(),
            origin: Origin::new("clusters/prod/shop.yaml", 1),
            reason: "charts are not rendered yet".into(),
        }],
        demand: demand(),
        daemons: vec![DaemonRow {
            workload: WorkloadId {
                kind: WorkloadKind::DaemonSet,
                ..deployment("kube-system", "cni")
            },
            origin: None,
            requests: amount(150, Bytes::mib(200).0, 1),
        }],
        cost: Cost {
            lower_bound_hourly: MicroUsd(1_050_000),
            gap_percent: "1.90".into(),
            consolidation_potential: None,
            estimated: 1,
            ..cost(1_177_000, 1_070_000)
        },
        alternatives: vec![AlternativesRow {
            address: instance_address("web", "9"),
            offerings: vec![Alternative {
                instance_type: "m5a.large".into(),
                zone: "eu-west-1b".into(),
                capacity_type: CapacityType::Spot,
                hourly: MicroUsd(96_000),
            }],
        }],
        diagnostics: diagnostics(),
        ..plan.capacity
    };
    Plan { applyable: true, summary: summary(), capacity, ..plan }
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
    let demanded = |key: &'static str| {
        let at = ("web", key);
        let explain = ExplainRow {
            hourly_after: Some(LARGE),
            rejected: vec![rejection("dearer", "next is m5a.xlarge at $0.1920/h", 14)],
            ..explain(at, demand(), &[(API, 6)])
        };
        (launch("web", key, node("web", key, "m5.large", 1)), explain)
    };
    let at = ("web", "1");
    let (before, after) = (live("web", "1", "m5.xlarge", 2), node("web", "1", "m5.large", 1));
    let replaced = ResourceChange::replacement("web", "1", before, after);
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
    vec![demanded("10"), demanded("9"), (replaced, why)]
}

fn retirements() -> ExplainedRows {
    let retire = |at: (&'static str, &'static str), price, because| {
        let reason = Reason::Retire { because };
        let explain = ExplainRow { hourly_before: Some(price), ..explain(at, reason, &[]) };
        (ResourceChange::removal(at.0, at.1, live(at.0, at.1, "m5.large", 1)), explain)
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
    let why =
        ExplainRow { hourly_after: Some(MicroUsd(207_000)), ..explain(at, reason, &[(QUEUE, 5)]) };
    let launched = launch("batch", "2", node("batch", "2", "c5.xlarge", 2));
    vec![
        retire(("web", "2"), LARGE, RetireReason::Empty { saves_hourly: LARGE }),
        group(retire(("batch", "0"), LARGE, underutilized())),
        group(retire(("batch", "1"), LARGE, underutilized())),
        group((launched, why)),
    ]
}

fn stays() -> ExplainedRows {
    let stay = |at: (&'static str, &'static str), because, pods| {
        let explain = ExplainRow {
            hourly_before: Some(LARGE),
            hourly_after: Some(LARGE),
            ..explain(at, Reason::Keep { because }, pods)
        };
        (ResourceChange::retained(at.0, at.1, live(at.0, at.1, "m5.large", 1)), explain)
    };
    let (mut updated, why) = stay(("web", "4"), needed(6), &[(API, 6)]);
    updated.change.actions = vec![Action::Update];
    if let Some(after) = &mut updated.change.after {
        after.labels.extend([label("team", "shop"), label("tier", "front")]);
    }
    let (mut foreign, not_ours) = stay(("legacy", "7"), KeepReason::NotOurs, &[]);
    foreign.kind = ResourceKind::KubernetesNode;
    let blocked = KeepReason::Blocked { by: BlockReason::DoNotDisrupt };
    let (protected, mut why_protected) = stay(("web", "3"), blocked, &[(API, 1)]);
    why_protected.drift = Some(RetireReason::Expired { age_hours: 72, limit_hours: 24 });
    vec![
        (updated, why),
        (protected, why_protected),
        stay(("web", "0"), needed(18), &[(API, 13), (QUEUE, 5)]),
        (foreign, not_ours),
    ]
}

fn needed(pods: u32) -> KeepReason {
    KeepReason::Needed { pods, within_budget: false }
}

fn preconditions(plan: Plan) -> Plan {
    let instance = |key: &str| Condition::InstanceIs {
        instance_id: format!("i-web{key}").into(),
        node_uid: Some(format!("uid-{key}").into()),
    };
    let shrunk = Condition::ReplicasAtMost { workload: deployment("web", "api"), replicas: 36 };
    let unused = Condition::KeyUnused { pool: "web".into(), key: "9".into() };
    plan.with_precondition(address("1"), instance("1"))
        .with_precondition(address("2"), instance("2"))
        .with_precondition(address("2"), shrunk)
        .with_precondition(address("9"), unused)
}

fn waves(plan: Plan) -> Plan {
    let of = |pool: &str, keys: &[&str]| -> Vec<Address> {
        keys.iter().map(|key| instance_address(pool, key)).collect()
    };
    plan.with_wave(WaveStep::Launch, [of("batch", &["2"]), of("web", &["1", "10", "9"])].concat())
        .with_wave(WaveStep::Retire, [of("batch", &["0", "1"]), of("web", &["1", "2"])].concat())
}

fn unschedulable() -> UnschedulableRow {
    let reasons = vec![
        rejection("too-small", "memory: needs 96Gi, largest has 61Gi", 212),
        rejection("wrong-zone", "outside eu-west-1a", 40),
        rejection("limit-reached", "pool web: memory 512Gi of 512Gi", 3),
    ];
    UnschedulableRow {
        origin: Some(Origin::new("clusters/prod/train.yaml", 12)),
        offerings: 255,
        nearest: Some("raise spec.limits.memory of NodePool web to 608Gi".into()),
        eviction: Some(EvictionRow {
            lets_in: 1,
            evicts: [("shop/Deployment/web".to_owned(), 2)].into(),
        }),
        displaces: [("shop/Deployment/web".to_owned(), 1)].into(),
        ..plan::unschedulable(deployment("ml", "train"), 3, reasons)
    }
}

fn demand() -> Vec<DemandRow> {
    let row = |namespace: &str, name: &str, n: u32, requests| DemandRow {
        origin: Some(Origin::new("clusters/prod/apps.yaml", 3)),
        ..demand_row(
            deployment(namespace, name),
            Counts { floor: 2, live: n, ceiling: n + 4, planned: n },
            requests,
        )
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
        Diagnostic::note("", "zone ids are those of the snapshot's account"),
        Diagnostic::warning(
            "Deployment batch/queue",
            "is scaled by an HPA that is not taken into account yet",
        )
        .origin(Origin::new("clusters/prod/apps.yaml", 31))
        .hint("plan with --demand ceiling for its most"),
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
            Reason::Keep { because: needed(9) }
        };
        let mut state = live("p", &key, kind, 1);
        state.pool = Some(pool.as_str().into());
        let zones = ["eu-west-1a", "eu-west-1b", "eu-west-1c"];
        state.zone = Some(zones[usize::try_from(n % 3).expect("small")].into());
        let row = if is_removed {
            ResourceChange::removal(&pool, &key, state)
        } else {
            ResourceChange::retained(&pool, &key, state)
        };
        let pods: &[(&str, u32)] = if is_removed { &[] } else { &[(API, 6), (QUEUE, 3)] };
        plan.capacity.explain.push(ExplainRow {
            hourly_before: Some(LARGE),
            hourly_after: (!is_removed).then_some(LARGE),
            ..explain((&pool, &key), reason, pods)
        });
        let action_reason = Some("delete_because_empty".into());
        plan.resource_changes.push(ResourceChange { action_reason, ..row });
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
