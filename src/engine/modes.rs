//! What the fleet comes to at the least, the present and the most that autoscalers may choose.

use super::{Inputs, Scope, input, put_together, size};
use crate::demand::{Demand, DemandMode};
use crate::plan::wire::{Decider, Diagnostic, ModeRow, Plan, UnschedulableRow};
use crate::solve::{Input, Purpose, solve};

const MODES: [DemandMode; 3] = [DemandMode::Floor, DemandMode::Live, DemandMode::Ceiling];

/// Returns one row for each mode, and a warning for each autoscaler whose most has no place; none
/// where no workload's number is left open.
pub(super) fn rows(
    inputs: &Inputs,
    demand: &Demand,
    plan: &Plan,
) -> (Vec<ModeRow>, Vec<Diagnostic>) {
    if !is_open(demand) {
        return (Vec::new(), Vec::new());
    }
    let mut rows: Vec<ModeRow> = Vec::new();
    let mut found = Vec::new();
    for mode in MODES {
        if is_same(demand, inputs.demand, mode) && !inputs.scope.is_limited() {
            rows.push(row(mode, plan));
            continue;
        }
        let other = planned(inputs, mode);
        rows.push(row(mode, &other));
        if mode == DemandMode::Ceiling {
            found = beyond(demand, &other);
        }
    }
    (rows, found)
}

/// Returns whether the number of any workload's pods is left open.
fn is_open(demand: &Demand) -> bool {
    demand.groups.iter().any(|group| group.counts.floor != group.counts.ceiling)
}

/// Returns a warning for each autoscaler of `inputs` whose most has no place.
pub(super) fn beyond_ceiling(inputs: &Inputs) -> Vec<Diagnostic> {
    let demand = size::demand(inputs, inputs.observed);
    if !is_open(&demand) {
        return Vec::new();
    }
    beyond(&demand, &planned(inputs, DemandMode::Ceiling))
}

/// Returns a warning for each autoscaler that may ask for more pods than there is room for.
fn beyond(demand: &Demand, most: &Plan) -> Vec<Diagnostic> {
    let warning = |row: &UnschedulableRow| {
        let group = demand.groups.iter().find(|group| group.workload == row.workload)?;
        let Decider::Autoscaler { autoscaler, origin, .. } = &group.decided_by else { return None };
        let ceiling = group.counts.ceiling;
        let placed = ceiling.saturating_sub(row.pods);
        let reasons: Vec<&str> = row.reasons.iter().map(|r| r.detail.as_str()).collect();
        let why = reasons.first().map(|why| format!(" ({why})")).unwrap_or_default();
        Some(Diagnostic {
            severity: "warning".to_owned(),
            origin: Some(origin.clone()),
            object: autoscaler.clone(),
            message: format!("may ask for {ceiling} pods, of which {placed} have a place{why}"),
            hint: row.nearest.clone(),
        })
    };
    most.capacity.unschedulable.iter().filter_map(warning).collect()
}

/// Returns whether both modes plan for the same pods.
fn is_same(demand: &Demand, planned: DemandMode, mode: DemandMode) -> bool {
    planned == mode
        || demand.groups.iter().all(|group| group.counts.of(mode) == group.counts.planned)
}

/// Returns about the plan that `mode` would make, with nothing left out of it: it holds in every
/// order as well, and a large one may cost a little more.
fn planned(inputs: &Inputs, mode: DemandMode) -> Plan {
    let inputs = Inputs { demand: mode, scope: Scope::default(), ..inputs.clone() };
    let demand = size::demand(&inputs, inputs.observed);
    let of_plan = input(&inputs, &demand, &[], &[]);
    let solution = solve(&Input { purpose: Purpose::Estimate, ..of_plan });
    put_together(&inputs, &demand, &solution)
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
