//! The fleet that is needed, phase by phase, as far as the clock decides.
//!
//! Each phase is packed from nothing: a forecast says what is needed, not what is kept of what runs.
//! Invariant: phases follow each other without a gap, and two in a row differ.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::size::{self, nowhere};
use super::{Inputs, as_measured, diagnostics, frozen, input, put_together};
use crate::demand::{Demand, Tick, moments};
use crate::fleet::Observed;
use crate::plan::forecast::{Event, FORECAST_VERSION, Forecast, Phase};
use crate::plan::wire::{ModeRow, Plan};
use crate::solve::{Input, Purpose, Solution, Target, solve};
use crate::units::MicroUsd;

/// Most moments that are looked at; a window a minute for a day.
const MOMENTS_MAX: usize = 1_500;

/// What one demand comes to.
#[derive(Clone)]
struct Need {
    row: ModeRow,
    types: BTreeMap<crate::ids::InstanceTypeName, u32>,
}

/// Returns the forecast from `inputs.at` to `to`.
#[must_use]
pub fn forecast(inputs: &Inputs, to: Timestamp) -> Forecast {
    as_measured(inputs, |inputs| forecast_with(inputs, to))
}

fn forecast_with(inputs: &Inputs, to: Timestamp) -> Forecast {
    let Inputs { desired, at: from, .. } = *inputs;
    let all = moments(desired, (from, to));
    let changing = |ticks: &Vec<Tick>| ticks.iter().any(|tick| tick.changes_fleet);
    let mut times: Vec<Timestamp> = vec![from];
    times.extend(all.iter().filter(|(_, ticks)| changing(ticks)).map(|(at, _)| *at));
    times.retain(|at| *at < to);
    let is_cut = times.len() > MOMENTS_MAX;
    times.truncate(MOMENTS_MAX);
    let mut known: BTreeMap<Vec<u32>, Need> = BTreeMap::new();
    let mut phases: Vec<(Vec<u32>, Phase)> = Vec::new();
    let mut found = Demand::default();
    let bare = bare(inputs.observed);
    for at in times {
        let inputs = Inputs { at, is_forecast: true, ..inputs.clone() };
        let demand = size::demand(&inputs, &bare);
        found.problems.extend(demand.problems.iter().cloned());
        found.unresolved.extend(demand.unresolved.iter().cloned());
        let wants: Vec<u32> = demand.groups.iter().map(|group| group.counts.planned).collect();
        if phases.last().is_some_and(|(before, _)| *before == wants) {
            continue;
        }
        let need = known.entry(wants.clone()).or_insert_with(|| need(&inputs, &bare, &demand));
        let because = all.get(&at).into_iter().flatten().filter(|tick| tick.changes_fleet);
        let because = because.map(|tick| event(at, tick)).collect();
        phases.push((wants, phase(at, need, because)));
    }
    let mut phases: Vec<Phase> = phases.into_iter().map(|(_, phase)| phase).collect();
    close(&mut phases, to);
    let quiet = |(at, ticks): (&Timestamp, &Vec<Tick>)| -> Vec<Event> {
        let ticks = ticks.iter().filter(|tick| !tick.changes_fleet);
        ticks.map(|tick| event(*at, tick)).collect()
    };
    found.unresolved.sort();
    found.unresolved.dedup();
    let none = Solution { target: Target::default(), standing: Vec::new(), refusals: Vec::new() };
    let frozen = frozen(inputs, &found);
    let mut diagnostics = diagnostics(inputs, &found, &none);
    diagnostics.retain(|diagnostic| diagnostic.severity == "error" || frozen.is_some());
    Forecast {
        format_version: FORECAST_VERSION.to_owned(),
        cluster: inputs.observed.cluster.name.clone(),
        from,
        to,
        lead_seconds: desired.lead.as_secs(),
        is_cut,
        total: phases.iter().map(|phase| phase.cost).sum(),
        phases,
        events: all.iter().flat_map(quiet).collect(),
        unresolved: found.unresolved.into_iter().map(|source| source.object).collect(),
        diagnostics,
    }
}

/// Returns the world without its nodes: what is needed is packed from nothing.
fn bare(observed: &Observed) -> Observed {
    let mut bare = Observed::empty(observed.cluster.clone(), observed.taken_at);
    bare.sources.clone_from(&observed.sources);
    bare.storage.clone_from(&observed.storage);
    bare.storage.attach_limits.clear();
    bare.exclusions.clone_from(&observed.exclusions);
    bare.reservations.clone_from(&observed.reservations);
    bare
}

fn need(inputs: &Inputs, bare: &Observed, demand: &Demand) -> Need {
    let demand = nowhere(demand);
    let inputs = Inputs { observed: bare, ..inputs.clone() };
    let of_plan = input(&inputs, &demand, &[], &[]);
    let solution = solve(&Input { purpose: Purpose::Estimate, ..of_plan });
    let plan: Plan = put_together(&inputs, &demand, &solution);
    let mut types = BTreeMap::new();
    let states = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
    for name in states.filter_map(|state| state.instance_type.clone()) {
        *types.entry(name).or_insert(0) += 1;
    }
    Need { row: super::modes::row(inputs.demand, &plan), types }
}

fn event(at: Timestamp, tick: &Tick) -> Event {
    let Tick { object, origin, what, changes_fleet: _ } = tick.clone();
    Event { at, object, origin, what }
}

fn phase(at: Timestamp, need: &Need, because: Vec<Event>) -> Phase {
    let Need { row, types } = need;
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

/// Lets each phase end where the next begins, and prices it.
fn close(phases: &mut [Phase], to: Timestamp) {
    let mut end = to;
    for phase in phases.iter_mut().rev() {
        phase.to = end;
        let seconds = end.duration_since(phase.from).max(SignedDuration::ZERO).as_secs();
        phase.cost = MicroUsd(phase.hourly.0.saturating_mul(seconds) / 3_600);
        end = phase.from;
    }
}
