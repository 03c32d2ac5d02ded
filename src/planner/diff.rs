//! Converts the target fleet and the observation to plan rows, reasons, waves, preconditions and
//! totals.
//!
//! The target fleet already decides which nodes are launched, retained and retired. This module
//! assigns addresses, pairs replacements and computes totals.

mod action_reason;
mod address;
mod existing_row;
mod fargate;
mod groups;
mod list_cost;
mod node_resolver;
mod pod_rules;
mod rows;
mod totals;
mod unread_sources;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::demand::Demand;
use crate::model::desired::Desired;
use crate::model::fargate::Rates;
use crate::model::ids::{Address, PoolName, WorkloadId};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::Observed;
use crate::model::reason::Rejection;
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Base, Capacity, Contingency, DaemonRow, DemandRow, Diagnostic,
    EvictionRow, FORMAT_VERSION, Placement, PlacementMode, Plan, ResourceChange, UnresolvedRow,
    UnschedulableRow, Wave, WaveStep,
};
use crate::plan::{breakdown, validity};
use crate::solver::{NewNode, Solution, UnschedulablePods};

/// Returns the address of the managed instance in `pool` with `key`.
pub(super) fn instance_address(pool: &str, key: &str) -> Address {
    address::RowIdentity::instance(pool, key).address
}

/// Inputs of a plan document.
pub(super) struct DiffInputs<'a> {
    /// Desired state, from the repository.
    pub desired: &'a Desired,
    /// Observed state of the cluster.
    pub observed: &'a Observed,
    /// Pods to place.
    pub demand: &'a Demand,
    /// Target fleet and placement.
    pub solution: &'a Solution,
    /// Instance types, offerings and prices.
    pub catalog: &'a Catalog,
    /// Sources of the plan. This module adds the preconditions.
    pub base: Base,
    /// Time for which the plan is made.
    pub at: Timestamp,
    /// True if the inputs have errors.
    pub errored: bool,
    /// True if the plan covers all rows.
    pub complete: bool,
    /// Function that returns true if the user excluded the launch at an address.
    pub is_excluded: &'a dyn Fn(&Address) -> bool,
    /// Problems of the inputs.
    pub diagnostics: Vec<Diagnostic>,
    /// Fargate prices, if known.
    pub rates: Option<Rates>,
}

/// Returns the plan, without digest and plan ID.
pub(super) fn diff(inputs: DiffInputs) -> Plan {
    let mut rows = rows::PlanRows::new(&inputs);
    groups::add(&mut rows, &inputs);
    let DiffInputs {
        desired,
        observed,
        demand,
        solution,
        catalog,
        mut base,
        at,
        errored,
        complete,
        is_excluded: _,
        mut diagnostics,
        rates,
    } = inputs;
    base.preconditions = rows.preconditions;
    base.unresolved = (!demand.unresolved.is_empty()).then_some(desired.unresolved_policy);
    let summary = totals::summary(&rows.changes, rows.blocked);
    let expiry = validity(summary.destructive);
    let unschedulable = unschedulable_rows(demand, solution, rows.excluded_pods);
    let cluster_autoscaler = groups::growth_rows(&solution.target.growths);
    let lower_bound = solution.target.lower_bound;
    let mut cost = totals::cost(&rows.explain, lower_bound, &catalog.prices, rows.uncertain_prices);
    cost.fargate = fargate::cost(demand, rates);
    list_cost::add(&mut cost, &mut diagnostics, &rows.changes, &rows.explain, desired, catalog);
    let mut plan = Plan {
        format_version: FORMAT_VERSION.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        timestamp: at,
        applyable: !errored && base.world.unchangeable_reason().is_none(),
        complete,
        errored,
        summary,
        resource_drift: Vec::new(),
        unchanged: Vec::new(),
        planned_values: None,
        prior_state: None,
        checksum: None,
        checks: Vec::new(),
        capacity: Capacity {
            digest: "".into(),
            plan_id: "".into(),
            base,
            expires_at: at.checked_add(expiry).unwrap_or(at),
            waves: waves(&rows.changes),
            pods: totals::pods(demand, &unschedulable, &cluster_autoscaler, rows.moved),
            placement: placement(solution, contingency(solution, &rows.changes)),
            placements: rows.placements,
            unschedulable,
            cluster_autoscaler,
            unresolved: unresolved(demand, observed),
            demand: demand_rows(demand, &solution.target.placement_rejections),
            // The planner adds the fleets for other demand modes.
            modes: Vec::new(),
            daemons: daemon_rows(demand),
            cost,
            alternatives: rows.alternatives,
            node_annotations: node_annotations(desired),
            explain: rows.explain,
            diagnostics,
            disruption_budgets: Vec::new(),
            comparison: None,
        },
        resource_changes: rows.changes,
    };
    plan.capacity.cost.breakdown = breakdown(&plan, &[]);
    plan
}

/// Returns the annotations of new nodes by pool. Pools without a launch are included, because an
/// apply also opens nodes that an earlier one launched.
fn node_annotations(desired: &Desired) -> BTreeMap<PoolName, NodeAnnotations> {
    let annotated = desired.pools.iter().filter(|(_, pool)| !pool.annotations.is_empty());
    annotated.map(|(name, pool)| (name.clone(), pool.annotations.clone())).collect()
}

fn placement(solution: &Solution, contingency: Option<Contingency>) -> Placement {
    let target = &solution.target;
    Placement {
        mode: if target.without_nominations.is_some() {
            PlacementMode::Steered
        } else {
            PlacementMode::Unsteered
        },
        orders: target.simulated_runs.clone(),
        packed_hourly: target.packed_price,
        unsteered: target.without_nominations,
        contingency,
        failure_domains: target.failure_domains.clone(),
    }
}

/// Returns the contingency of the fleet. A plan without some of its launches has none: its fleet is
/// another one, and its pods are pending anyway.
fn contingency(solution: &Solution, changes: &[ResourceChange]) -> Option<Contingency> {
    let creates = |row: &&ResourceChange| row.change.actions.contains(&Action::Create);
    let is_whole = changes.iter().filter(creates).count() == solution.target.launches.len();
    solution.target.contingency.clone().filter(|_| is_whole)
}

/// Returns the waves: launches first, retirements last, without empty waves.
fn waves(changes: &[ResourceChange]) -> Vec<Wave> {
    let with = |action: Action| -> Vec<Address> {
        let has = |row: &&ResourceChange| row.change.actions.contains(&action);
        changes.iter().filter(has).map(|row| row.address.clone()).collect()
    };
    [(WaveStep::Launch, with(Action::Create)), (WaveStep::Retire, with(Action::Delete))]
        .into_iter()
        .filter(|(_, addresses)| !addresses.is_empty())
        .map(|(step, addresses)| Wave { step, addresses })
        .collect()
}

fn unschedulable(demand: &Demand, solution: &Solution) -> Vec<UnschedulableRow> {
    let row = |unplaced: &UnschedulablePods| {
        let (group, contest) = (&demand.groups[unplaced.group], &unplaced.contention);
        UnschedulableRow {
            workload: group.workload.clone(),
            origin: group.origin.clone(),
            pods: unplaced.pods,
            offerings: unplaced.offerings,
            reasons: unplaced.rejections.clone(),
            nearest: unplaced.suggested_change.clone(),
            eviction: (contest.let_in > 0)
                .then(|| EvictionRow { lets_in: contest.let_in, evicts: contest.evicts.clone() }),
            displaces: contest.displaces.clone(),
        }
    };
    solution.target.unschedulable.iter().map(row).collect()
}

/// Returns the unschedulable pods by workload, including launches that the user excluded and pods
/// that Fargate cannot run.
fn unschedulable_rows(
    demand: &Demand,
    solution: &Solution,
    excluded: Vec<UnschedulableRow>,
) -> Vec<UnschedulableRow> {
    let unplaced = unschedulable(demand, solution).into_iter();
    let mut rows = merge_by_workload(unplaced.chain(excluded));
    rows.extend(fargate::unrunnable(demand));
    // Pods selected by a Fargate profile have a separate row after the other row of the workload.
    rows.sort_by(|a, b| a.workload.cmp(&b.workload));
    rows
}

/// Merges the rows of each workload, in order of workloads. Pods of one workload may be
/// unschedulable for several reasons.
fn merge_by_workload(rows: impl Iterator<Item = UnschedulableRow>) -> Vec<UnschedulableRow> {
    let mut by_workload: BTreeMap<WorkloadId, UnschedulableRow> = BTreeMap::new();
    for row in rows {
        let Some(merged) = by_workload.get_mut(&row.workload) else {
            by_workload.insert(row.workload.clone(), row);
            continue;
        };
        merged.pods = merged.pods.saturating_add(row.pods);
        merged.offerings = merged.offerings.max(row.offerings);
        merged.reasons.extend(row.reasons);
        merged.nearest = merged.nearest.take().or(row.nearest);
        merged.eviction = merged.eviction.take().or(row.eviction);
        for (workload, pods) in row.displaces {
            *merged.displaces.entry(workload).or_insert(0) += pods;
        }
    }
    by_workload.into_values().collect()
}

fn unresolved(demand: &Demand, observed: &Observed) -> Vec<UnresolvedRow> {
    let row = |source: &crate::model::desired::Unresolved| UnresolvedRow {
        running: unread_sources::running_pods(&source.object, observed),
        object: source.object.clone(),
        origin: source.origin.clone(),
        reason: source.reason.clone(),
    };
    demand.unresolved.iter().map(row).collect()
}

fn demand_rows(demand: &Demand, elsewhere: &BTreeMap<usize, Vec<Rejection>>) -> Vec<DemandRow> {
    let row = |(index, group): (usize, &crate::demand::PodGroup)| DemandRow {
        workload: group.workload.clone(),
        origin: group.origin.clone(),
        counts: group.counts,
        decided_by: group.decided_by.clone(),
        requests: Amount::from(&group.shape.requests),
        fargate: None,
        sized_by: demand.sizings.get(&group.workload).cloned(),
        rules: pod_rules::rules(group),
        elsewhere: elsewhere.get(&index).cloned().unwrap_or_default(),
    };
    let mut rows = demand.groups.iter().enumerate().map(row).collect();
    fargate::add_fargate_rows(&mut rows, demand);
    rows
}

fn daemon_rows(demand: &Demand) -> Vec<DaemonRow> {
    let row = |daemon: &crate::demand::Daemon| DaemonRow {
        workload: daemon.workload.clone(),
        origin: daemon.origin.clone(),
        requests: Amount::from(&daemon.shape.requests),
    };
    demand.daemons.iter().map(row).collect()
}

/// Returns the alternatives row of a launch, if it has alternatives.
fn alternatives_row(address: &Address, node: &NewNode) -> Option<AlternativesRow> {
    let offerings = node.alternatives.clone();
    (!offerings.is_empty()).then(|| AlternativesRow { address: address.clone(), offerings })
}
