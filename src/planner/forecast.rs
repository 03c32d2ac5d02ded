//! Forecast of the required fleet over time, based on schedules.
//!
//! Each phase is packed from scratch, except for members of Auto Scaling groups. A forecast shows
//! the required capacity and ignores retained nodes. Invariant: phases are contiguous, and
//! consecutive phases differ.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::node_count_fixpoint::{self, without_running_pods};
use super::scheduled_actions::{ActionTimeline, GroupSizes, add_group_members};
use super::{
    Inputs, assemble_plan, diagnostics, freeze_reason, solver_input, with_effective_inputs,
};
use crate::demand::{Demand, DemandQuery, ScheduledChange, scheduled_changes};
use crate::model::observed::Observed;
use crate::model::units::MicroUsd;
use crate::plan::forecast::{FORECAST_VERSION, Forecast, ForecastEvent, Phase};
use crate::plan::wire::{Diagnostic, DiagnosticSeverity, ModeRow, Plan};
use crate::solver::{Input, Purpose, Solution, TargetFleet, solve};

/// Work limits of a forecast. A forecast that exceeds a limit is cut.
struct ForecastLimits {
    /// Maximum number of times at which demand changes: one every four minutes for two months.
    times: usize,
    /// Maximum number of packed fleets. Times with equal demand share a fleet.
    fleets: usize,
}

const LIMITS: ForecastLimits = ForecastLimits { times: 25_000, fleets: 500 };

/// Returns a warning if nodes take longer to register than the configured lead time.
///
/// The median ignores nodes that registered again, whose registration appears to take days.
fn slow_registration_warning(inputs: &Inputs) -> Option<Diagnostic> {
    let Inputs { observed, desired, .. } = *inputs;
    let durations = observed.nodes.values().filter_map(|node| {
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        Some(node.created_at.duration_since(instance.launched_at))
    });
    let mut durations: Vec<SignedDuration> = durations.collect();
    durations.sort_unstable();
    let median = *durations.get(durations.len() / 2)?;
    let seconds = |span: SignedDuration| span.as_secs();
    (median > desired.lead_time).then(|| {
        Diagnostic::warning(
            "lead",
            format!(
                "half of the existing nodes took {} s or more from launch to registration, but \
             capacity is requested {} s before it is needed",
                seconds(median),
                seconds(desired.lead_time)
            ),
        )
        .hint("raise `spec.demand.lead` of fleetwright.yaml")
    })
}

/// Scheduled demand, and sizes of Auto Scaling groups.
type ScheduledState = (Vec<u32>, GroupSizes);

/// Pod counts at a time, and the fleet that they require.
type PackedFleet = (Vec<u32>, FleetNeed);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FleetNeed {
    row: ModeRow,
    types: BTreeMap<crate::model::ids::InstanceTypeName, u32>,
}

/// Returns the forecast from `inputs.at` to `to`.
pub fn forecast(inputs: &Inputs, to: Timestamp) -> Forecast {
    with_effective_inputs(inputs, |inputs| forecast_within(inputs, to, &LIMITS))
}

fn forecast_within(inputs: &Inputs, to: Timestamp, limits: &ForecastLimits) -> Forecast {
    let Inputs { desired, at: from, .. } = *inputs;
    let mut all = scheduled_changes(desired, from, to);
    let actions = ActionTimeline::new(inputs.observed, to);
    for (at, ticks) in actions.ticks(desired, inputs.observed, from) {
        all.entry(at).or_default().extend(ticks);
    }
    let changing = |ticks: &Vec<ScheduledChange>| ticks.iter().any(|tick| tick.changes_fleet);
    let mut times: Vec<Timestamp> = vec![from];
    times.extend(all.iter().filter(|(_, ticks)| changing(ticks)).map(|(at, _)| *at));
    times.retain(|at| *at < to);
    let mut cut = times.get(limits.times).copied();
    times.truncate(limits.times);
    let bare = without_nodes(inputs.observed);
    let mut packed = FleetCache { inputs, bare, max_fleets: limits.fleets, known: BTreeMap::new() };
    let mut found = Demand::default();
    let mut phases: Vec<(PackedFleet, Phase)> = Vec::new();
    let sizes = actions.sizes(inputs.observed, &times);
    let states: Vec<ScheduledState> =
        scheduled_demand(inputs, &times).into_iter().zip(sizes).collect();
    let mut before = None;
    let mut notes = actions.warnings;
    notes.extend(slow_registration_warning(inputs));
    for (at, state) in times.into_iter().zip(&states) {
        if before.replace(state) == Some(state) {
            continue;
        }
        let Some(fleet) = packed.at(at, state, &mut found, &mut notes) else {
            cut = Some(at);
            break;
        };
        if phases.last().is_some_and(|(before, _)| before == fleet) {
            continue;
        }
        let because = all.get(&at).into_iter().flatten().filter(|tick| tick.changes_fleet);
        let because = because.map(|tick| event(at, tick)).collect();
        phases.push((fleet.clone(), phase(at, &fleet.1, because)));
    }
    let mut phases: Vec<Phase> = phases.into_iter().map(|(_, phase)| phase).collect();
    // Demand after the cut is unknown, so the last phase and the total end at the cut.
    close_phases(&mut phases, cut.unwrap_or(to));
    let unchanged = |(at, ticks): (&Timestamp, &Vec<ScheduledChange>)| -> Vec<ForecastEvent> {
        let ticks = ticks.iter().filter(|tick| !tick.changes_fleet);
        ticks.map(|tick| event(*at, tick)).collect()
    };
    Forecast {
        format_version: FORECAST_VERSION.to_owned(),
        cluster: inputs.observed.cluster.name.clone(),
        from,
        to,
        lead_seconds: desired.lead_time.as_secs(),
        is_cut: cut.is_some(),
        total: phases.iter().map(|phase| phase.cost).sum(),
        phases,
        events: all.iter().flat_map(unchanged).collect(),
        diagnostics: forecast_diagnostics(inputs, &mut found, notes),
        unresolved: found.unresolved.into_iter().map(|source| source.object).collect(),
    }
}

/// Returns the scheduled demand at each of `times`.
fn scheduled_demand(inputs: &Inputs, times: &[Timestamp]) -> Vec<Vec<u32>> {
    let Inputs { desired, observed, .. } = *inputs;
    let (mode, lead) = (inputs.demand, desired.lead_time);
    let query = DemandQuery { mode, lead, is_forecast: true, ..DemandQuery::default() };
    Demand::replicas_over_time(desired, observed, &query, times)
}

/// Returns the diagnostics of the inputs.
fn forecast_diagnostics(
    inputs: &Inputs,
    found: &mut Demand,
    notes: Vec<Diagnostic>,
) -> Vec<Diagnostic> {
    found.unresolved.sort();
    found.unresolved.dedup();
    let none = Solution {
        target: TargetFleet::default(),
        existing_nodes: Vec::new(),
        refusals: Vec::new(),
    };
    let freeze_reason = freeze_reason(inputs, found);
    let mut diagnostics = diagnostics::of_inputs(inputs, found, &none);
    diagnostics.retain(|diagnostic| {
        diagnostic.severity == DiagnosticSeverity::Error || freeze_reason.is_some()
    });
    diagnostics.extend(notes);
    diagnostics.sort();
    diagnostics.dedup();
    diagnostics
}

/// Cache of packed fleets, by scheduled state.
struct FleetCache<'a> {
    inputs: &'a Inputs<'a>,
    bare: Observed,
    max_fleets: usize,
    known: BTreeMap<ScheduledState, PackedFleet>,
}

impl FleetCache<'_> {
    /// Returns the fleet for a scheduled state; `None` if the limit of fleets is reached.
    fn at(
        &mut self,
        at: Timestamp,
        state: &ScheduledState,
        found: &mut Demand,
        notes: &mut Vec<Diagnostic>,
    ) -> Option<&PackedFleet> {
        if !self.known.contains_key(state) {
            if self.known.len() >= self.max_fleets {
                return None;
            }
            let inputs = Inputs { at, is_forecast: true, ..self.inputs.clone() };
            let mut bare = self.bare.clone();
            notes.extend(add_group_members(&mut bare, inputs.desired, inputs.observed, &state.1));
            let demand = node_count_fixpoint::estimated_demand(&inputs, &bare);
            found.problems.extend(demand.problems.iter().cloned());
            found.unresolved.extend(demand.unresolved.iter().cloned());
            let pods: Vec<u32> = demand.groups.iter().map(|group| group.counts.planned).collect();
            let need = fleet_need(&inputs, &bare, &demand);
            self.known.insert(state.clone(), (pods, need));
        }
        self.known.get(state)
    }
}

/// Returns the observation without nodes, instances, workloads and pods.
fn without_nodes(observed: &Observed) -> Observed {
    let mut bare = Observed::empty(observed.cluster.clone(), observed.taken_at);
    bare.sources.clone_from(&observed.sources);
    bare.storage.clone_from(&observed.storage);
    bare.storage.attach_limits.clear();
    bare.exclusions.clone_from(&observed.exclusions);
    bare.reservations.clone_from(&observed.reservations);
    bare
}

fn fleet_need(inputs: &Inputs, bare: &Observed, demand: &Demand) -> FleetNeed {
    let demand = without_running_pods(demand);
    let inputs = Inputs { observed: bare, ..inputs.clone() };
    let plan_input = solver_input(&inputs, &demand, &[], &[]);
    let solution = solve(&Input { purpose: Purpose::Estimate, ..plan_input });
    let plan: Plan = assemble_plan(&inputs, &demand, &solution);
    let mut types = BTreeMap::new();
    let states = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
    for name in states.filter_map(|state| state.instance_type.clone()) {
        *types.entry(name).or_insert(0) += 1;
    }
    FleetNeed { row: super::demand_scenarios::row(inputs.demand, &plan), types }
}

fn event(at: Timestamp, tick: &ScheduledChange) -> ForecastEvent {
    let ScheduledChange { object, origin, description, changes_fleet: _ } = tick.clone();
    ForecastEvent { at, object, origin, what: description }
}

fn phase(at: Timestamp, need: &FleetNeed, because: Vec<ForecastEvent>) -> Phase {
    let FleetNeed { row, types } = need;
    let ModeRow { mode: _, nodes, cpu_milli, memory_bytes, pods, unschedulable, hourly } = row;
    Phase {
        from: at,
        to: at,
        pods: *pods,
        unschedulable: *unschedulable,
        nodes: *nodes,
        types: types.clone(),
        cpu_milli: *cpu_milli,
        memory_bytes: *memory_bytes,
        hourly: *hourly,
        cost: MicroUsd::ZERO,
        because,
    }
}

/// Sets the end of each phase to the start of the next one, and computes its cost.
fn close_phases(phases: &mut [Phase], to: Timestamp) {
    let mut end = to;
    for phase in phases.iter_mut().rev() {
        phase.to = end;
        let seconds = end.duration_since(phase.from).max(SignedDuration::ZERO).as_secs();
        phase.cost = MicroUsd(phase.hourly.0.saturating_mul(seconds) / 3_600);
        end = phase.from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{Concurrency, CronSchedule, Scale, Schedule};
    use crate::testing::Scenario;

    /// Returns a ten-hour forecast of an hourly CronJob that needs three pods for ten minutes.
    fn hourly(limits: &ForecastLimits) -> Forecast {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.desired.lead_time = SignedDuration::ZERO;
        let due = Schedule::parse("0 * * * *").expect("cron");
        let deadline = Some(SignedDuration::from_mins(10));
        let schedule = CronSchedule { schedule: due, concurrency: Concurrency::Forbid, deadline };
        for workload in scenario.desired.workloads.values_mut() {
            let schedule = schedule.clone();
            workload.scale = Scale::CronJob { pods: 3, suspended: false, schedule };
        }
        let at: Timestamp = "2026-11-01T00:30:00Z".parse().expect("a time");
        let inputs = Inputs { at, is_forecast: true, ..scenario.inputs() };
        forecast_within(&inputs, at + SignedDuration::from_hours(10), limits)
    }

    #[test]
    fn cut_forecast_ends_its_phases_and_total() {
        let whole = hourly(&LIMITS);
        assert_eq!((whole.is_cut, whole.phases.len()), (false, 21), "{:#?}", whole.phases);
        let cost = |forecast: &Forecast| forecast.phases.iter().map(|phase| phase.cost).sum();
        assert_eq!(whole.total, cost(&whole));
        for limits in
            [ForecastLimits { times: 5, ..LIMITS }, ForecastLimits { fleets: 1, ..LIMITS }]
        {
            let cut = hourly(&limits);
            let end = cut.phases.last().map(|phase| phase.to);
            assert!(cut.is_cut && end < Some(cut.to), "{:#?}", cut.phases);
            assert_eq!(cut.phases[..], whole.phases[..cut.phases.len()]);
            assert_eq!(cut.total, cost(&cut));
        }
        assert!(
            !hourly(&ForecastLimits { fleets: 2, ..LIMITS }).is_cut,
            "all phases need only two fleets"
        );
    }
}
