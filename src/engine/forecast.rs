//! The fleet that is needed, phase by phase, as far as the clock decides.
//!
//! Each phase is packed from nothing: a forecast says what is needed, not what is kept of what runs.
//! Invariant: phases follow each other without a gap, and two in a row differ.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::size::{self, nowhere};
use super::{Inputs, as_measured, diagnostics, frozen, input, put_together};
use crate::demand::{Asked, Demand, Tick, moments};
use crate::fleet::Observed;
use crate::plan::forecast::{Event, FORECAST_VERSION, Forecast, Phase};
use crate::plan::wire::{Diagnostic, ModeRow, Plan};
use crate::solve::{Input, Purpose, Solution, Target, solve};
use crate::units::MicroUsd;

/// How much a forecast looks at before it is cut.
struct Most {
    /// Moments: for two months, one every four minutes.
    moments: usize,
    /// Fleets that are packed; moments that ask for the same pods share one.
    fleets: usize,
}

const MOST: Most = Most { moments: 25_000, fleets: 500 };

/// What one demand comes to.
struct Need {
    row: ModeRow,
    types: BTreeMap<crate::ids::InstanceTypeName, u32>,
}

/// Returns the forecast from `inputs.at` to `to`.
#[must_use]
pub fn forecast(inputs: &Inputs, to: Timestamp) -> Forecast {
    as_measured(inputs, |inputs| forecast_within(inputs, to, &MOST))
}

fn forecast_within(inputs: &Inputs, to: Timestamp, most: &Most) -> Forecast {
    let Inputs { desired, at: from, .. } = *inputs;
    let all = moments(desired, (from, to));
    let changing = |ticks: &Vec<Tick>| ticks.iter().any(|tick| tick.changes_fleet);
    let mut times: Vec<Timestamp> = vec![from];
    times.extend(all.iter().filter(|(_, ticks)| changing(ticks)).map(|(at, _)| *at));
    times.retain(|at| *at < to);
    let mut cut = times.get(most.moments).copied();
    times.truncate(most.moments);
    let bare = bare(inputs.observed);
    let mut packed = Packed { inputs, bare, most: most.fleets, known: BTreeMap::new() };
    let mut found = Demand::default();
    let mut phases: Vec<(Vec<u32>, Phase)> = Vec::new();
    let clock = by_clock(inputs, &times);
    let mut before = None;
    for (at, clock) in times.into_iter().zip(&clock) {
        if before.replace(clock) == Some(clock) {
            continue;
        }
        let Some((wants, need)) = packed.at(at, clock, &mut found) else {
            cut = Some(at);
            break;
        };
        if phases.last().is_some_and(|(before, _)| before == wants) {
            continue;
        }
        let because = all.get(&at).into_iter().flatten().filter(|tick| tick.changes_fleet);
        let because = because.map(|tick| event(at, tick)).collect();
        phases.push((wants.clone(), phase(at, need, because)));
    }
    let mut phases: Vec<Phase> = phases.into_iter().map(|(_, phase)| phase).collect();
    // What comes after the cut is not known: the last phase ends there, and so does the total.
    close(&mut phases, cut.unwrap_or(to));
    let quiet = |(at, ticks): (&Timestamp, &Vec<Tick>)| -> Vec<Event> {
        let ticks = ticks.iter().filter(|tick| !tick.changes_fleet);
        ticks.map(|tick| event(*at, tick)).collect()
    };
    Forecast {
        format_version: FORECAST_VERSION.to_owned(),
        cluster: inputs.observed.cluster.name.clone(),
        from,
        to,
        lead_seconds: desired.lead.as_secs(),
        is_cut: cut.is_some(),
        total: phases.iter().map(|phase| phase.cost).sum(),
        phases,
        events: all.iter().flat_map(quiet).collect(),
        diagnostics: told(inputs, &mut found),
        unresolved: found.unresolved.into_iter().map(|source| source.object).collect(),
    }
}

/// Returns what the clock alone asks for at each of `times`.
fn by_clock(inputs: &Inputs, times: &[Timestamp]) -> Vec<Vec<u32>> {
    let Inputs { desired, observed, .. } = *inputs;
    let (mode, lead) = (inputs.demand, desired.lead);
    let asked = Asked { mode, lead, is_forecast: true, ..Asked::default() };
    Demand::by_clock(desired, observed, &asked, times)
}

/// Returns what a reader should know of the inputs.
fn told(inputs: &Inputs, found: &mut Demand) -> Vec<Diagnostic> {
    found.unresolved.sort();
    found.unresolved.dedup();
    let none = Solution { target: Target::default(), standing: Vec::new(), refusals: Vec::new() };
    let frozen = frozen(inputs, found);
    let mut diagnostics = diagnostics(inputs, found, &none);
    diagnostics.retain(|diagnostic| diagnostic.severity == "error" || frozen.is_some());
    diagnostics
}

/// The fleets that were packed so far, by what the clock asks for, with the pods of each.
struct Packed<'a> {
    inputs: &'a Inputs<'a>,
    bare: Observed,
    most: usize,
    known: BTreeMap<Vec<u32>, (Vec<u32>, Need)>,
}

impl Packed<'_> {
    /// Returns the pods and the fleet of a moment; `None` where there are too many fleets.
    fn at(
        &mut self,
        at: Timestamp,
        clock: &[u32],
        found: &mut Demand,
    ) -> Option<&(Vec<u32>, Need)> {
        if !self.known.contains_key(clock) {
            if self.known.len() >= self.most {
                return None;
            }
            let inputs = Inputs { at, is_forecast: true, ..self.inputs.clone() };
            let demand = size::demand(&inputs, &self.bare);
            found.problems.extend(demand.problems.iter().cloned());
            found.unresolved.extend(demand.unresolved.iter().cloned());
            let wants: Vec<u32> = demand.groups.iter().map(|group| group.counts.planned).collect();
            let need = need(&inputs, &self.bare, &demand);
            self.known.insert(clock.to_vec(), (wants, need));
        }
        self.known.get(clock)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::base;
    use crate::engine::{DemandMode, Scope, Settings};
    use crate::manifest::{Concurrency, CronSchedule, Scale, Schedule};
    use crate::story::Story;

    /// The forecast of ten hours of a run at the beginning of each, which asks for three pods for ten
    /// minutes.
    fn hourly(most: &Most) -> Forecast {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.desired.lead = SignedDuration::ZERO;
        let due = Schedule::parse("0 * * * *").expect("cron");
        let deadline = Some(SignedDuration::from_mins(10));
        let schedule = CronSchedule { due, concurrency: Concurrency::Forbid, deadline };
        for workload in story.desired.workloads.values_mut() {
            let schedule = schedule.clone();
            workload.scale = Scale::CronJob { pods: 3, suspended: false, schedule };
        }
        let at: Timestamp = "2026-11-01T00:30:00Z".parse().expect("a time");
        let inputs = Inputs {
            desired: &story.desired,
            observed: &story.observed,
            catalog: &story.catalog,
            base: base(&story.observed, "empty"),
            at,
            demand: DemandMode::Live,
            is_forecast: true,
            scope: Scope::default(),
            settings: Settings::default(),
        };
        forecast_within(&inputs, at + SignedDuration::from_hours(10), most)
    }

    #[test]
    fn phases_and_total_end_where_a_forecast_is_cut() {
        let whole = hourly(&MOST);
        assert_eq!((whole.is_cut, whole.phases.len()), (false, 21), "{:#?}", whole.phases);
        let cost = |forecast: &Forecast| forecast.phases.iter().map(|phase| phase.cost).sum();
        assert_eq!(whole.total, cost(&whole));
        for most in [Most { moments: 5, ..MOST }, Most { fleets: 1, ..MOST }] {
            let cut = hourly(&most);
            let end = cut.phases.last().map(|phase| phase.to);
            assert!(cut.is_cut && end < Some(cut.to), "{:#?}", cut.phases);
            assert_eq!(cut.phases[..], whole.phases[..cut.phases.len()]);
            assert_eq!(cut.total, cost(&cut));
        }
        assert!(!hourly(&Most { fleets: 2, ..MOST }).is_cut, "the fleets of all phases are two");
    }
}
