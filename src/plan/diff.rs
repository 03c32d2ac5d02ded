//! Target against world → rows, reasons, waves, conditions and totals.
//!
//! Nothing is decided here: the target says which nodes come, stay and go. This module names them,
//! pairs what replaces each other, and counts.

mod address;
mod fargate;
mod groups;
mod rows;
mod rules;
mod totals;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::demand::Demand;
use crate::fargate::Rates;
use crate::fleet::Observed;
use crate::ids::{Address, WorkloadId};
use crate::manifest::Desired;
use crate::plan::wire::{Action, Amount, FORMAT_VERSION};
use crate::plan::wire::{
    AlternativesRow, Base, Capacity, DaemonRow, DemandRow, Diagnostic, EvictionRow, Plan,
    ResourceChange, UnresolvedRow, UnschedulableRow, Wave, WaveStep,
};
use crate::solve::Solution;

/// What a plan is put together from.
pub struct Parts<'a> {
    /// What the repository declares.
    pub desired: &'a Desired,
    /// What runs.
    pub observed: &'a Observed,
    /// What has to be placed.
    pub demand: &'a Demand,
    /// What there should be.
    pub solution: &'a Solution,
    /// What can be had.
    pub catalog: &'a Catalog,
    /// What the plan is made from; its conditions are added here.
    pub base: Base,
    /// The moment planned for.
    pub at: Timestamp,
    /// Whether the inputs had errors.
    pub errored: bool,
    /// Whether the plan covers everything.
    pub complete: bool,
    /// Rows of launches that the user left out, by address.
    pub left_out: &'a dyn Fn(&Address) -> bool,
    /// Problems of the inputs.
    pub diagnostics: Vec<Diagnostic>,
    /// What Fargate costs, where that is known.
    pub rates: Option<Rates>,
}

/// How long a plan that removes something may be applied.
const DESTRUCTIVE_EXPIRY: jiff::SignedDuration = jiff::SignedDuration::from_mins(30);

/// How long a plan that only adds may be applied.
const ADDITIVE_EXPIRY: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);

/// Returns the plan, without digest and plan id.
#[must_use]
pub fn diff(parts: Parts) -> Plan {
    let mut rows = rows::Rows::of(&parts);
    groups::add(&mut rows, &parts);
    let Parts {
        desired: _,
        observed: _,
        demand,
        solution,
        catalog,
        mut base,
        at,
        errored,
        complete,
        left_out: _,
        diagnostics,
        rates,
    } = parts;
    base.preconditions = rows.preconditions;
    let summary = totals::summary(&rows.changes, rows.blocked);
    let expiry = if summary.destructive { DESTRUCTIVE_EXPIRY } else { ADDITIVE_EXPIRY };
    let unschedulable = without_place(demand, solution, rows.left_out_pods);
    let mut cost =
        totals::cost(&rows.explain, solution.target.lower_bound, &catalog.prices, rows.estimated);
    cost.fargate = fargate::cost(demand, rates);
    let applyable = !errored && base.world.name != "empty";
    let mut plan = Plan {
        format_version: FORMAT_VERSION.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        timestamp: at,
        applyable,
        complete,
        errored,
        summary,
        resource_drift: Vec::new(),
        checksum: None,
        checks: Vec::new(),
        capacity: Capacity {
            digest: "".into(),
            plan_id: "".into(),
            base,
            expires_at: at.checked_add(expiry).unwrap_or(at),
            waves: waves(&rows.changes),
            pods: totals::pods(demand, &unschedulable, rows.moved),
            placement: crate::plan::wire::Placement {
                mode: if solution.target.unsteered.is_some() { "steered" } else { "unsteered" }
                    .to_owned(),
                orders: solution.target.orders.clone(),
                packed_hourly: solution.target.packed,
                unsteered: solution.target.unsteered,
                failure_domains: solution.target.failure_domains.clone(),
            },
            placements: rows.placements,
            unschedulable,
            unresolved: unresolved(demand),
            demand: demand_rows(demand, &solution.target.elsewhere),
            // The engine knows what other counts would need.
            modes: Vec::new(),
            daemons: daemon_rows(demand),
            cost,
            alternatives: rows.alternatives,
            explain: rows.explain,
            diagnostics,
            disruption_budgets: Vec::new(),
            comparison: None,
        },
        resource_changes: rows.changes,
    };
    plan.capacity.cost.breakdown = super::breakdown(&plan, &[]);
    plan
}

/// Launches first, retirements last; an empty wave is left out.
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
    let row = |unplaced: &crate::solve::Unplaced| {
        let (group, contest) = (&demand.groups[unplaced.group], &unplaced.contest);
        UnschedulableRow {
            workload: group.workload.clone(),
            origin: group.origin.clone(),
            pods: unplaced.pods,
            offerings: unplaced.offerings,
            reasons: unplaced.rejections.clone(),
            nearest: unplaced.nearest.clone(),
            eviction: (contest.let_in > 0)
                .then(|| EvictionRow { lets_in: contest.let_in, evicts: contest.evicts.clone() }),
            displaces: contest.displaces.clone(),
        }
    };
    solution.target.unplaced.iter().map(row).collect()
}

/// Returns the pods without a place, for whatever reason, by workload.
fn without_place(
    demand: &Demand,
    solution: &Solution,
    left_out: Vec<UnschedulableRow>,
) -> Vec<UnschedulableRow> {
    let leftover = unschedulable(demand, solution).into_iter();
    let mut rows = merged(leftover.chain(left_out));
    rows.extend(fargate::stuck(demand));
    // Pods of one workload that a profile takes have a row of their own, after the others.
    rows.sort_by(|a, b| a.workload.cmp(&b.workload));
    rows
}

/// Returns one row for each workload, in order: pods of one may lack a place for several reasons.
fn merged(rows: impl Iterator<Item = UnschedulableRow>) -> Vec<UnschedulableRow> {
    let mut by_workload: BTreeMap<WorkloadId, UnschedulableRow> = BTreeMap::new();
    for row in rows {
        let Some(known) = by_workload.get_mut(&row.workload) else {
            by_workload.insert(row.workload.clone(), row);
            continue;
        };
        known.pods = known.pods.saturating_add(row.pods);
        known.offerings = known.offerings.max(row.offerings);
        known.reasons.extend(row.reasons);
        known.nearest = known.nearest.take().or(row.nearest);
        known.eviction = known.eviction.take().or(row.eviction);
        for (workload, pods) in row.displaces {
            *known.displaces.entry(workload).or_insert(0) += pods;
        }
    }
    by_workload.into_values().collect()
}

fn unresolved(demand: &Demand) -> Vec<UnresolvedRow> {
    let row = |source: &crate::manifest::Unresolved| UnresolvedRow {
        object: source.object.clone(),
        origin: source.origin.clone(),
        reason: source.reason.clone(),
    };
    demand.unresolved.iter().map(row).collect()
}

fn demand_rows(
    demand: &Demand,
    elsewhere: &BTreeMap<usize, Vec<crate::solve::Rejection>>,
) -> Vec<DemandRow> {
    let row = |(index, group): (usize, &crate::demand::PodGroup)| DemandRow {
        workload: group.workload.clone(),
        origin: group.origin.clone(),
        counts: group.counts,
        decided_by: group.decided_by.clone(),
        requests: Amount::from(&group.shape.requests),
        fargate: None,
        sized_by: demand.sizings.get(&group.workload).cloned(),
        rules: rules::rules(&group.shape),
        elsewhere: elsewhere.get(&index).cloned().unwrap_or_default(),
    };
    let mut rows = demand.groups.iter().enumerate().map(row).collect();
    fargate::join(&mut rows, demand);
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

/// Returns the alternatives row of a launch, where it has any.
fn alternatives_row(address: &Address, node: &crate::solve::NewNode) -> Option<AlternativesRow> {
    let offerings = node.alternatives.clone();
    (!offerings.is_empty()).then(|| AlternativesRow { address: address.clone(), offerings })
}
