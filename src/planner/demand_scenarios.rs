//! Fleet size at the minimum, current and maximum pod counts of the autoscalers.

use super::{Inputs, Scope, assemble_plan, node_count_fixpoint, solver_input};
use crate::demand::{Demand, DemandMode};
use crate::model::plural::count;
use crate::plan::wire::{Decider, Diagnostic, ModeRow, Plan, UnschedulableRow};
use crate::solver::{Input, Purpose, solve};

const MODES: [DemandMode; 3] = [DemandMode::Floor, DemandMode::Live, DemandMode::Ceiling];

/// Returns one row per demand mode, and a warning for each autoscaler whose maximum exceeds the
/// capacity of the pools. Both are empty if every pod count is fixed.
pub(super) fn rows(
    inputs: &Inputs,
    demand: &Demand,
    plan: &Plan,
) -> (Vec<ModeRow>, Vec<Diagnostic>) {
    if !has_open_counts(demand) {
        return (Vec::new(), Vec::new());
    }
    let mut rows: Vec<ModeRow> = Vec::new();
    let mut found = Vec::new();
    for mode in MODES {
        if plans_same_pods(demand, inputs.demand, mode) && !inputs.scope.is_limited() {
            rows.push(row(mode, plan));
            continue;
        }
        let other = scenario_plan(inputs, mode);
        rows.push(row(mode, &other));
        if mode == DemandMode::Ceiling {
            found = unschedulable_warnings(demand, &other);
        }
    }
    (rows, found)
}

fn has_open_counts(demand: &Demand) -> bool {
    demand.groups.iter().any(|group| group.counts.floor != group.counts.ceiling)
}

/// Returns a warning for each autoscaler whose maximum exceeds the capacity of the pools.
pub(super) fn ceiling_warnings(inputs: &Inputs) -> Vec<Diagnostic> {
    let demand = node_count_fixpoint::demand(inputs, inputs.observed);
    if !has_open_counts(&demand) {
        return Vec::new();
    }
    unschedulable_warnings(&demand, &scenario_plan(inputs, DemandMode::Ceiling))
}

/// Returns a warning for each autoscaler with unschedulable pods in the plan for its maximum.
fn unschedulable_warnings(demand: &Demand, ceiling_plan: &Plan) -> Vec<Diagnostic> {
    let warning = |row: &UnschedulableRow| {
        let group = demand.groups.iter().find(|group| group.workload == row.workload)?;
        let Decider::Autoscaler { autoscaler, origin, .. } = &group.decided_by else { return None };
        let ceiling = group.counts.ceiling;
        let pods = count(ceiling, "pod");
        let placed = ceiling.saturating_sub(row.pods);
        let reasons: Vec<&str> = row.reasons.iter().map(|r| r.detail.as_str()).collect();
        let reason = reasons.first().map(|reason| format!(" ({reason})")).unwrap_or_default();
        Some(
            Diagnostic::warning(
                autoscaler.clone(),
                format!("may scale to {pods}, and {placed} of them are schedulable{reason}"),
            )
            .origin(origin.clone())
            .maybe_hint(row.nearest.clone()),
        )
    };
    ceiling_plan.capacity.unschedulable.iter().filter_map(warning).collect()
}

/// Returns true if both modes plan for the same pods.
fn plans_same_pods(demand: &Demand, planned: DemandMode, mode: DemandMode) -> bool {
    planned == mode
        || demand.groups.iter().all(|group| group.counts.for_mode(mode) == group.counts.planned)
}

/// Returns an estimate of the plan for `mode`, without a limited scope. The fleet is sufficient in
/// every scheduling order, but a large fleet may cost slightly more than a plan.
fn scenario_plan(inputs: &Inputs, mode: DemandMode) -> Plan {
    let inputs = Inputs { demand: mode, scope: Scope::default(), ..inputs.clone() };
    let demand = node_count_fixpoint::estimated_demand(&inputs, inputs.observed);
    let plan_input = solver_input(&inputs, &demand, &[], &[]);
    let solution = solve(&Input { purpose: Purpose::Estimate, ..plan_input });
    assemble_plan(&inputs, &demand, &solution)
}

pub(super) fn row(mode: DemandMode, plan: &Plan) -> ModeRow {
    let states = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
    let (cpu, memory) = states.fold((0_i64, 0_i64), |(cpu, memory), state| {
        let capacity = &state.capacity;
        (cpu.saturating_add(capacity.cpu_milli), memory.saturating_add(capacity.memory_bytes))
    });
    ModeRow {
        mode,
        nodes: plan.summary.nodes.after,
        cpu_milli: cpu,
        memory_bytes: memory,
        pods: plan.capacity.pods.total,
        unschedulable: plan.capacity.pods.unschedulable,
        hourly: plan.capacity.cost.hourly_after,
    }
}
