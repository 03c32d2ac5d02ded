//! The fleet that is needed, phase by phase, as far as the clock decides.
//!
//! Each phase is packed from nothing but the members of groups, which Auto Scaling keeps: a forecast
//! says what is needed, not what is kept of what runs.
//! Invariant: phases follow each other without a gap, and two in a row differ.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::scheduled::{Actions, AllSizes, stand};
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

/// Returns a warning where nodes take longer to be there than capacity is asked for in advance.
///
/// The median counts: a node that registered again looks as if it had taken days.
fn slower_than_lead(inputs: &Inputs) -> Option<Diagnostic> {
    let Inputs { observed, desired, .. } = *inputs;
    let took = observed.nodes.values().filter_map(|node| {
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        Some(node.created_at.duration_since(instance.launched_at))
    });
    let mut took: Vec<SignedDuration> = took.collect();
    took.sort_unstable();
    let median = *took.get(took.len() / 2)?;
    let seconds = |span: SignedDuration| span.as_secs();
    (median > desired.lead).then(|| Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: "lead".to_owned(),
        message: format!(
            "half of the nodes that are there took {} s or more from launch to registration, and \
             capacity is asked for {} s before it is needed",
            seconds(median),
            seconds(desired.lead)
        ),
        hint: Some("raise `spec.demand.lead` of fleetwright.yaml".to_owned()),
    })
}

/// What the clock asks for, and how large groups are.
type State = (Vec<u32>, AllSizes);

/// The pods of a moment, and what they come to.
type Fleet = (Vec<u32>, Need);

/// What one demand comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    let mut all = moments(desired, (from, to));
    let actions = Actions::of(inputs.observed, to);
    for (at, ticks) in actions.ticks(desired, inputs.observed, from) {
        all.entry(at).or_default().extend(ticks);
    }
    let changing = |ticks: &Vec<Tick>| ticks.iter().any(|tick| tick.changes_fleet);
    let mut times: Vec<Timestamp> = vec![from];
    times.extend(all.iter().filter(|(_, ticks)| changing(ticks)).map(|(at, _)| *at));
    times.retain(|at| *at < to);
    let mut cut = times.get(most.moments).copied();
    times.truncate(most.moments);
    let bare = bare(inputs.observed);
    let mut packed = Packed { inputs, bare, most: most.fleets, known: BTreeMap::new() };
    let mut found = Demand::default();
    let mut phases: Vec<(Fleet, Phase)> = Vec::new();
    let sizes = actions.sizes(inputs.observed, &times);
    let states: Vec<State> = by_clock(inputs, &times).into_iter().zip(sizes).collect();
    let mut before = None;
    let mut notes = actions.unread;
    notes.extend(slower_than_lead(inputs));
    for (at, state) in times.into_iter().zip(&states) {
        if before.replace(state) == Some(state) {
            continue;
        }
        let Some(fleet) = packed.at(at, state, (&mut found, &mut notes)) else {
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
        diagnostics: told(inputs, &mut found, notes),
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
fn told(inputs: &Inputs, found: &mut Demand, notes: Vec<Diagnostic>) -> Vec<Diagnostic> {
    found.unresolved.sort();
    found.unresolved.dedup();
    let none = Solution { target: Target::default(), standing: Vec::new(), refusals: Vec::new() };
    let frozen = frozen(inputs, found);
    let mut diagnostics = diagnostics(inputs, found, &none);
    diagnostics.retain(|diagnostic| diagnostic.severity == "error" || frozen.is_some());
    diagnostics.extend(notes);
    diagnostics.sort();
    diagnostics.dedup();
    diagnostics
}

/// The fleets that were packed so far.
struct Packed<'a> {
    inputs: &'a Inputs<'a>,
    bare: Observed,
    most: usize,
    known: BTreeMap<State, Fleet>,
}

impl Packed<'_> {
    /// Returns the fleet of a moment; `None` where there are too many fleets.
    fn at(
        &mut self,
        at: Timestamp,
        state: &State,
        (found, notes): (&mut Demand, &mut Vec<Diagnostic>),
    ) -> Option<&Fleet> {
        if !self.known.contains_key(state) {
            if self.known.len() >= self.most {
                return None;
            }
            let inputs = Inputs { at, is_forecast: true, ..self.inputs.clone() };
            let mut bare = self.bare.clone();
            notes.extend(stand(&mut bare, inputs.desired, inputs.observed, &state.1));
            let demand = size::demand(&inputs, &bare);
            found.problems.extend(demand.problems.iter().cloned());
            found.unresolved.extend(demand.unresolved.iter().cloned());
            let wants: Vec<u32> = demand.groups.iter().map(|group| group.counts.planned).collect();
            let need = need(&inputs, &bare, &demand);
            self.known.insert(state.clone(), (wants, need));
        }
        self.known.get(state)
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
