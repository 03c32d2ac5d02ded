//! `forecast`: the times at which the needed fleet changes.

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::settings::{ForecastSettings, Format};
use super::{Console, Exit, cluster_pools, output, planning, source_tree, world};
use crate::model::desired::ApplyConditions;
use crate::plan::forecast::{Forecast, ForecastEvent};
use crate::plan::wire::{Base, DiagnosticSeverity};
use crate::planner::{self, Inputs};
use crate::render::{Verbosity, forecast_text};

/// The default span.
const HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The longest span: two months hold every weekly and monthly window.
const HORIZON_MAX: SignedDuration = SignedDuration::from_hours(62 * 24);

pub(super) fn run(settings: &ForecastSettings, console: &mut Console) -> Result<Exit, CliError> {
    let forecast = make_forecast(settings, console)?;
    let text = match settings.format {
        Format::Text => forecast_text(&forecast, &console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&forecast, format)?,
    };
    console.print(&text)?;
    let has_errors =
        forecast.diagnostics.iter().any(|found| found.severity == DiagnosticSeverity::Error);
    Ok(if has_errors { Exit::Failed } else { Exit::Done })
}

/// Returns a forecast of one week over the world of a plan.
#[cfg(feature = "page")]
pub(super) fn weekly(
    planning: &super::settings::PlanningSettings,
    console: &mut Console,
) -> Result<Forecast, CliError> {
    let super::settings::PlanningSettings { source, world, at, demand, .. } = planning;
    let (source, world) = (source.clone(), world.clone());
    let format = Format::Text;
    make_forecast(
        &ForecastSettings { source, world, from: *at, to: None, demand: *demand, format },
        console,
    )
}

fn make_forecast(settings: &ForecastSettings, console: &mut Console) -> Result<Forecast, CliError> {
    let ForecastSettings { source, world: requested, from, to, demand, format: _ } = settings;
    let read = source_tree::read(source)?;
    let (repository, choice) = cluster_pools::read_over(&read, requested.as_ref(), source)?;
    let observed = world::observe(&choice, &repository, *from, console)?;
    let from = world::planning_time(&choice, *from, &observed, console);
    let to = to.or_else(|| from.checked_add(HORIZON).ok()).unwrap_or(Timestamp::MAX);
    if to <= from {
        return Err(CliError::text(format!("--to {to} is not after the start, {from}"))
            .hint("choose a later --to, or an earlier --from"));
    }
    if to.duration_since(from) > HORIZON_MAX {
        return Err(CliError::text(format!("the time from {from} to {to} is longer than 62 days"))
            .hint("choose an earlier --to, or forecast in several parts"));
    }
    let fleet = &repository.fleet;
    let region = fleet.region_of(&observed);
    let market = world::market(&choice, &repository, &observed);
    let catalog = planning::catalog(fleet, &region, market.as_ref())?;
    let demand = demand.unwrap_or(fleet.demand);
    let defaults = planning::inputs(source, &repository, &choice, &observed, &catalog);
    let base = Base { demand, ..defaults.base };
    let inputs = Inputs { base, at: from, demand, is_forecast: true, ..defaults };
    let mut forecast = planner::forecast(&inputs, to);
    forecast.events.extend(window_events(&fleet.guard, from, to));
    forecast.events.sort();
    Ok(forecast)
}

/// Returns the opening and closing times of apply windows, as events.
pub(super) fn window_events(
    guard: &ApplyConditions,
    from: Timestamp,
    to: Timestamp,
) -> Vec<ForecastEvent> {
    let Some(origin) = &guard.windows_origin else { return Vec::new() };
    let event = |(at, open)| {
        let (object, origin) = ("spec.apply.windows".to_owned(), origin.clone());
        let what = if open { "plans may be applied" } else { "plans may no longer be applied" };
        ForecastEvent { at, object, origin, what: what.to_owned() }
    };
    guard.window_transitions(from, to).into_iter().map(event).collect()
}
