//! The builder of plans in wire form: `Plan::unchanged` starts one, and `with_*` methods add to it.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::catalog::prices;
use crate::demand::{Counts, Decider, DemandMode};
use crate::model::ids::{Address, WorkloadId};
use crate::model::market::CapacityType;
use crate::model::observed::Observed;
use crate::model::reason::Rejection;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, Amount, Base, BaseWorld, Capacity, Change, Condition, Cost, CostBreakdown, DemandRow,
    ExplainRow, FORMAT_VERSION, NodeState, Placement, PlacementMode, PodTotals, Precondition,
    ResourceChange, ResourceKind, Summary, UnschedulableRow, Wave, WaveStep,
};
use crate::plan::{Plan, set_identity};

/// Returns the address of an instance.
pub(crate) fn instance_address(pool: &str, key: &str) -> Address {
    format!("ec2_instance.{pool}[\"{key}\"]").into()
}

/// Returns the address of an instance of pool `web`.
pub(crate) fn address(key: &str) -> Address {
    instance_address("web", key)
}

impl Plan {
    /// Returns an applyable plan for this world that changes nothing.
    pub(crate) fn unchanged(observed: &Observed) -> Self {
        Self {
            format_version: FORMAT_VERSION.to_owned(),
            tool_version: "0.1.0".to_owned(),
            timestamp: observed.taken_at,
            applyable: true,
            complete: true,
            errored: false,
            resource_changes: Vec::new(),
            resource_drift: Vec::new(),
            unchanged: Vec::new(),
            planned_values: None,
            prior_state: None,
            checksum: None,
            checks: Vec::new(),
            summary: Summary::default(),
            capacity: capacity(observed),
        }
    }

    pub(crate) fn with_rows(mut self, rows: impl IntoIterator<Item = ResourceChange>) -> Self {
        self.resource_changes.extend(rows);
        self
    }

    /// Adds rows with their explanations.
    pub(crate) fn with_explained_rows(
        mut self,
        rows: impl IntoIterator<Item = (ResourceChange, ExplainRow)>,
    ) -> Self {
        for (row, explain) in rows {
            self.resource_changes.push(row);
            self.capacity.explain.push(explain);
        }
        self
    }

    pub(crate) fn with_wave(
        mut self,
        step: WaveStep,
        addresses: impl IntoIterator<Item = Address>,
    ) -> Self {
        self.capacity.waves.push(Wave { step, addresses: addresses.into_iter().collect() });
        self
    }

    pub(crate) fn with_precondition(mut self, address: Address, condition: Condition) -> Self {
        self.capacity.base.preconditions.push(Precondition { address, condition });
        self
    }

    /// Returns the plan with only the waves of this step.
    pub(crate) fn only(mut self, step: WaveStep) -> Self {
        self.capacity.waves.retain(|wave| wave.step == step);
        self
    }

    pub(crate) fn row_mut(&mut self, address: &Address) -> &mut ResourceChange {
        let mut rows = self.resource_changes.iter_mut();
        rows.find(|row| row.address == *address).expect("a row")
    }

    /// Returns the explanation of a row.
    pub(crate) fn explain_mut(&mut self, address: &Address) -> &mut ExplainRow {
        let mut rows = self.capacity.explain.iter_mut();
        rows.find(|row| row.address == *address).expect("an explained row")
    }

    /// Returns the plan with the digest and the identity of its contents.
    pub(crate) fn with_identity(mut self) -> Self {
        set_identity(&mut self);
        self
    }
}

/// Returns the base of a plan for this world: a clean commit without preconditions.
pub(crate) fn base(observed: &Observed) -> Base {
    let world = BaseWorld::new("sim:world", observed);
    let commit = Some("4f2c9a1".to_owned());
    Base { commit, ..Base::new(".", "0".repeat(64), world, DemandMode::Live) }
}

fn capacity(observed: &Observed) -> Capacity {
    Capacity {
        digest: "".into(),
        plan_id: "".into(),
        base: base(observed),
        expires_at: observed.taken_at + SignedDuration::from_hours(24),
        waves: Vec::new(),
        pods: PodTotals::default(),
        placement: Placement {
            mode: PlacementMode::Unsteered,
            orders: Vec::new(),
            packed_hourly: MicroUsd::ZERO,
            unsteered: None,
            contingency: None,
            failure_domains: None,
        },
        placements: Vec::new(),
        unschedulable: Vec::new(),
        cluster_autoscaler: Vec::new(),
        unresolved: Vec::new(),
        demand: Vec::new(),
        modes: Vec::new(),
        daemons: Vec::new(),
        cost: cost(0, 0),
        alternatives: Vec::new(),
        node_annotations: BTreeMap::new(),
        explain: Vec::new(),
        diagnostics: Vec::new(),
        disruption_budgets: Vec::new(),
        comparison: None,
    }
}

/// Returns the cost of a plan, from the hourly cost before and after it.
pub(crate) fn cost(before: i64, after: i64) -> Cost {
    Cost {
        currency: "USD".to_owned(),
        hourly_before: MicroUsd(before),
        hourly_after: MicroUsd(after),
        hourly_delta: MicroUsd(after - before),
        monthly_delta: MicroUsd(after - before).per_month(),
        lower_bound_hourly: MicroUsd::ZERO,
        gap_percent: "0.00".to_owned(),
        consolidation_potential: None,
        prices: prices("us-east-1", "2026-09-01"),
        list: None,
        estimated: 0,
        unpriced: 0,
        fargate: None,
        breakdown: CostBreakdown::default(),
    }
}

impl ResourceChange {
    /// Returns the row of a launch.
    pub(crate) fn launch(pool: &str, key: &str, after: NodeState) -> Self {
        Self::instance(pool, key, &[Action::Create], [None, Some(after)])
    }

    /// Returns the row of a removal.
    pub(crate) fn removal(pool: &str, key: &str, before: NodeState) -> Self {
        Self::instance(pool, key, &[Action::Delete], [Some(before), None])
    }

    pub(crate) fn replacement(pool: &str, key: &str, before: NodeState, after: NodeState) -> Self {
        let states = [Some(before), Some(after)];
        Self::instance(pool, key, &[Action::Create, Action::Delete], states)
    }

    /// Returns the row of a retained instance.
    pub(crate) fn retained(pool: &str, key: &str, state: NodeState) -> Self {
        Self::instance(pool, key, &[Action::NoOp], [Some(state.clone()), Some(state)])
    }

    fn instance(pool: &str, key: &str, actions: &[Action], states: [Option<NodeState>; 2]) -> Self {
        let [before, after] = states;
        Self {
            address: instance_address(pool, key),
            kind: ResourceKind::Ec2Instance,
            name: pool.to_owned(),
            index: Some(key.to_owned()),
            mode: None,
            provider_name: None,
            change: Change {
                actions: actions.to_vec(),
                before,
                after,
                after_unknown: BTreeMap::new(),
                termination_grace_seconds: None,
            },
            action_reason: None,
        }
    }

    /// Returns the row of an Auto Scaling group that changes its size.
    pub(crate) fn resize(pool: &str, before: NodeState, after: NodeState) -> Self {
        Self {
            address: format!("autoscaling_group.{pool}").into(),
            kind: ResourceKind::AutoscalingGroup,
            index: None,
            ..Self::instance(pool, "", &[Action::Update], [Some(before), Some(after)])
        }
    }
}

/// Returns the state of an on-demand node to launch. Labels and amounts are empty.
pub(crate) fn node_state(pool: &str, instance_type: &str, zone: (&str, &str)) -> NodeState {
    let (zone, zone_id) = zone;
    NodeState {
        pool: Some(pool.into()),
        instance_type: Some(instance_type.into()),
        zone: Some(zone.into()),
        zone_id: Some(zone_id.into()),
        capacity_type: Some(CapacityType::OnDemand),
        image: Some("al2023@latest".to_owned()),
        ..NodeState::empty()
    }
}

impl NodeState {
    /// Returns the state of an existing instance and node.
    pub(crate) fn running_as(self, instance: &str, node: &str, uid: &str) -> Self {
        let instance_id = Some(instance.into());
        Self { instance_id, node: Some(node.into()), node_uid: Some(uid.into()), ..self }
    }
}

/// Returns the row of a workload whose count is declared.
pub(crate) fn demand_row(workload: WorkloadId, counts: Counts, requests: Amount) -> DemandRow {
    DemandRow {
        workload,
        origin: None,
        counts,
        decided_by: Decider::Git,
        requests,
        fargate: None,
        sized_by: None,
        rules: Vec::new(),
        elsewhere: Vec::new(),
    }
}

pub(crate) fn unschedulable(
    workload: WorkloadId,
    pods: u32,
    reasons: Vec<Rejection>,
) -> UnschedulableRow {
    UnschedulableRow {
        workload,
        origin: None,
        pods,
        offerings: 0,
        reasons,
        nearest: None,
        eviction: None,
        displaces: BTreeMap::new(),
    }
}

pub(crate) fn rejection(reason: &str, detail: &str, count: u32) -> Rejection {
    Rejection { reason: reason.to_owned(), detail: detail.to_owned(), count }
}
