//! `forecast`: the moments at which the needed fleet changes.

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::repository::Repository;
use super::settings::{ForecastSettings, Format};
use super::{Console, Exit, planning, world};
use crate::engine::{self, Inputs, Scope};
use crate::manifest::GuardSettings;
use crate::plan::canonical;
use crate::plan::forecast::{Event, Forecast};
use crate::render::{Verbosity, forecast_text};

/// The span that is looked at unless one is named.
const SPAN: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The longest span: two months hold every weekly and monthly window.
const SPAN_MAX: SignedDuration = SignedDuration::from_hours(62 * 24);

pub(super) fn run(settings: &ForecastSettings, console: &mut Console) -> Result<Exit, CliError> {
    let forecast = of(settings, console)?;
    let text = match settings.format {
        Format::Text => forecast_text(&forecast, &console.style(Verbosity::Full)),
        Format::Json => canonical::pretty(&forecast).map_err(CliError::new)?,
    };
    console.print(&text)?;
    let has_errors = forecast.diagnostics.iter().any(|found| found.severity == "error");
    Ok(if has_errors { Exit::Failed } else { Exit::Done })
}

/// Returns what the clock will bring within a week, over the same world as a plan.
#[cfg(feature = "page")]
pub(super) fn of_a_week(
    planning: &super::settings::PlanningSettings,
    console: &Console,
) -> Result<Forecast, CliError> {
    let super::settings::PlanningSettings { source, world, at, demand, .. } = planning;
    let (source, world) = (source.clone(), world.clone());
    let format = Format::Json;
    of(&ForecastSettings { source, world, from: *at, to: None, demand: *demand, format }, console)
}

fn of(settings: &ForecastSettings, console: &Console) -> Result<Forecast, CliError> {
    let ForecastSettings { source, world: asked, from, to, demand, format: _ } = settings;
    let read = planning::read(source)?;
    let repository = Repository::read(&read);
    let choice = planning::choice(asked.as_ref(), source, &repository)?;
    let observed = world::observe(&choice, &repository, *from, console)?;
    let from = world::moment(&choice, *from, &observed, console);
    let to = to.or_else(|| from.checked_add(SPAN).ok()).unwrap_or(Timestamp::MAX);
    if to <= from || to.duration_since(from) > SPAN_MAX {
        return Err(CliError::text(format!("from {from} to {to} is no span of at most 62 days"))
            .hint("let --to come after --from"));
    }
    let fleet = &repository.fleet;
    let region = if fleet.is_declared { fleet.region.clone() } else { observed.region() };
    let market = world::market(&choice, &repository, &observed);
    let catalog = planning::catalog(&region, &fleet.zones, market.as_ref())?;
    let demand = demand.unwrap_or(fleet.demand);
    let mut forecast = engine::forecast(
        &Inputs {
            desired: &repository.desired,
            observed: &observed,
            catalog: &catalog,
            base: planning::base_of(source, &repository, &choice, &observed, demand),
            at: from,
            demand,
            is_forecast: true,
            scope: Scope::default(),
            settings: fleet.solve,
        },
        to,
    );
    forecast.events.extend(windows(&fleet.guard, (from, to)));
    forecast.events.sort();
    Ok(forecast)
}

/// Returns when plans may be applied and when no more, as events.
pub(super) fn windows(guard: &GuardSettings, span: (Timestamp, Timestamp)) -> Vec<Event> {
    let Some(origin) = &guard.windows_at else { return Vec::new() };
    let event = |(at, open)| {
        let (object, origin) = ("spec.apply.windows".to_owned(), origin.clone());
        let what = if open { "plans may be applied" } else { "plans may no longer be applied" };
        Event { at, object, origin, what: what.to_owned() }
    };
    guard.changes(span).into_iter().map(event).collect()
}
