//! Rows of the valid plan, as they follow from the inputs.

use super::{agent, allocation, at, catalog, demand, observed, starting, workload};
use crate::catalog::NodeSettings;
use crate::demand::PodGroup;
use crate::model::ids::Origin;
use crate::model::market::CapacityType;
use crate::model::reason::{Alternative, BlockReason, KeepReason, LaunchReason, RetireReason};
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{
    AlternativesRow, Amount, Capacity, Condition, Cost, DaemonRow, DemandRow, ExplainRow,
    NodeState, NodeTotals, Placement, PlacementRow, PodTotals, Reason, ResourceChange,
    ResourceKind, Summary, UnschedulableRow, WaveStep,
};
use crate::testing::plan::{self, address, demand_row, rejection, unschedulable};
use crate::testing::pods::{no_schedule, resources};

/// Returns the state of a node to launch.
pub(crate) fn node_state(key: &str, kind: &str) -> NodeState {
    let fact = &catalog().types[kind];
    let allocation = allocation(fact, &NodeSettings::default());
    let mut labels = fact.labels.clone();
    labels.extend([
        label("team", "web"),
        label(key::NODEPOOL, "web"),
        label(key::ZONE, "us-east-1a"),
        label(key::ZONE_ID, "use1-az1"),
        label(key::CAPACITY_TYPE, "on-demand"),
        label(crate::model::observed::KEY_LABEL, key),
    ]);
    NodeState {
        labels,
        taints: vec![no_schedule("dedicated", "web")],
        startup_taints: vec![starting()],
        capacity: Amount::from(&allocation.capacity),
        allocatable: Amount::from(&allocation.allocatable),
        spec_digest: Some("5bec".to_owned()),
        ..plan::node_state("web", kind, ("us-east-1a", "use1-az1"))
    }
}

/// Returns the state of an existing node.
fn live_state(key: &str, kind: &str) -> NodeState {
    let state = NodeState { startup_taints: Vec::new(), ..node_state(key, kind) };
    state.running_as(&format!("i-{key}"), &format!("n{key}"), &format!("uid-{key}"))
}

fn rows() -> Vec<ResourceChange> {
    let unmanaged = live_state("9", "m5.large");
    let foreign = NodeState {
        capacity: unmanaged.capacity,
        allocatable: unmanaged.allocatable,
        node: unmanaged.node,
        node_uid: unmanaged.node_uid,
        ..NodeState::empty()
    };
    let (before, after) = (live_state("2", "m5.xlarge"), node_state("2", "c5.large"));
    let mut replacement = ResourceChange::replacement("web", "2", before, after);
    replacement.change.after_unknown = [("node".to_owned(), true)].into();
    vec![
        ResourceChange::retained("web", "0", live_state("0", "m5.large")),
        ResourceChange::removal("web", "1", live_state("1", "m5.large")),
        replacement,
        ResourceChange::launch("web", "3", node_state("3", "m5.xlarge")),
        ResourceChange {
            address: "kubernetes_node.n9".into(),
            kind: ResourceKind::KubernetesNode,
            name: "n9".to_owned(),
            index: None,
            ..ResourceChange::retained("web", "9", foreign)
        },
    ]
}

fn explain() -> Vec<ExplainRow> {
    let usd = |micros: i64| (micros > 0).then_some(MicroUsd(micros));
    let row = |key: &str, reason, before, after, pods: &[(&str, u32)]| ExplainRow {
        hourly_before: usd(before),
        hourly_after: usd(after),
        pods: pods.iter().map(|(name, n)| (format!("shop/Deployment/{name}").into(), *n)).collect(),
        daemons: Amount::from(&resources(100, 128)),
        ..ExplainRow::new(address(key), reason)
    };
    let saved =
        RetireReason::Underutilized { saves_hourly: MicroUsd(107_000), moves: 1, payback_hours: 1 };
    let keep = |because| Reason::Keep { because };
    let removal =
        Reason::Retire { because: RetireReason::Empty { saves_hourly: MicroUsd(96_000) } };
    let replacement = Reason::Launch {
        because: LaunchReason::Consolidation { saves_hourly: MicroUsd(107_000), moves: 1 },
    };
    let launch = Reason::Launch {
        because: LaunchReason::Demand { pods: [("shop/Deployment/batch".to_owned(), 2)].into() },
    };
    vec![
        row(
            "0",
            keep(KeepReason::Needed { pods: 2, within_budget: false }),
            96_000,
            96_000,
            &[("api", 2)],
        ),
        ExplainRow { daemons: Amount::default(), ..row("1", removal, 96_000, 0, &[]) },
        ExplainRow {
            retire_reason: Some(saved),
            ..row("2", replacement, 192_000, 85_000, &[("api", 1)])
        },
        row("3", launch, 0, 192_000, &[("batch", 2)]),
        ExplainRow {
            address: "kubernetes_node.n9".into(),
            daemons: Amount::default(),
            ..row("9", keep(KeepReason::Blocked { by: BlockReason::NotTargeted }), 0, 0, &[])
        },
    ]
}

fn preconditions(plan: Plan) -> Plan {
    let is = |key: &str| Condition::InstanceIs {
        instance_id: format!("i-{key}").into(),
        node_uid: Some(format!("uid-{key}").into()),
    };
    let shrunk = || Condition::ReplicasAtMost { workload: workload("api"), replicas: 3 };
    let unused = Condition::KeyUnused { pool: "web".into(), key: "3".to_owned() };
    plan.with_precondition(address("1"), is("1"))
        .with_precondition(address("1"), shrunk())
        .with_precondition(address("2"), is("2"))
        .with_precondition(address("2"), shrunk())
        .with_precondition(address("3"), unused)
}

fn demand_rows(demand: &crate::demand::Demand) -> Vec<DemandRow> {
    let row = |group: &PodGroup| DemandRow {
        origin: group.origin.clone(),
        ..demand_row(group.workload.clone(), group.counts, Amount::from(&group.shape.requests))
    };
    demand.groups.iter().map(row).collect()
}

fn cost() -> Cost {
    Cost {
        lower_bound_hourly: MicroUsd(300_000),
        gap_percent: "24.33".to_owned(),
        consolidation_potential: None,
        unpriced: 1,
        ..plan::cost(384_000, 373_000)
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

fn capacity(unchanged: Capacity) -> Capacity {
    let place = |name: &str, key: &str, pods| PlacementRow {
        workload: workload(name),
        address: address(key),
        pods,
    };
    let demand = demand();
    let reasons = vec![rejection("limit-reached", "pool web: cpu 8 of 8", 6)];
    Capacity {
        expires_at: at(1),
        pods: PodTotals {
            total: 6,
            placed: 5,
            unschedulable: 1,
            served_by_cluster_autoscaler: 0,
            fargate: 0,
            unresolved: 0,
            moved: 1,
        },
        placement: Placement { packed_hourly: MicroUsd(373_000), ..unchanged.placement },
        placements: vec![place("api", "2", 1), place("batch", "3", 2)],
        unschedulable: vec![UnschedulableRow {
            origin: Some(Origin::new("shop.yaml", 1)),
            offerings: 6,
            ..unschedulable(workload("batch"), 1, reasons)
        }],
        demand: demand_rows(&demand),
        daemons: vec![DaemonRow {
            workload: agent(),
            origin: None,
            requests: Amount::from(&demand.daemons[0].shape.requests),
        }],
        cost: cost(),
        alternatives: alternatives(),
        explain: explain(),
        ..unchanged
    }
}

pub(crate) fn plan() -> Plan {
    let mut plan = preconditions(Plan::unchanged(&observed()))
        .with_rows(rows())
        .with_wave(WaveStep::Launch, ["2", "3"].map(address))
        .with_wave(WaveStep::Retire, ["1", "2"].map(address));
    plan.capacity.base.tree = "7ee0".to_owned();
    plan.capacity = capacity(plan.capacity);
    plan.summary = Summary {
        add: 2,
        change: 0,
        destroy: 2,
        replace: 1,
        blocked: 1,
        destructive: true,
        nodes: NodeTotals { before: 4, launch: 2, terminate: 2, after: 4 },
    };
    plan.with_identity()
}
