//! `validate`: read everything, report every problem.

use jiff::Timestamp;

use super::error::CliError;
use super::repository::Repository;
use super::settings::{Format, ValidateSettings};
use super::world::WorldChoice;
use super::{Console, Exit, planning};
use crate::catalog::{Catalog, CatalogError};
use crate::demand::Demand;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
use crate::ids::{Origin, PoolName};
use crate::lint::{lints, requests};
use crate::manifest::{Problem, Severity, Unresolved};
use crate::plan::canonical;
use crate::plan::wire::Diagnostic;
use crate::render::{Tally, Verbosity, problems_json, problems_text};

pub(super) fn run(settings: &ValidateSettings, console: &mut Console) -> Result<Exit, CliError> {
    let read = planning::read(&settings.source)?;
    let repository = Repository::read(&read);
    let mut problems = problems(&repository);
    problems.extend(beyond(settings, &repository)?);
    problems.sort();
    problems.dedup();
    let desired = &repository.desired;
    let tally = Tally {
        files: count(read.tree.files.len()),
        workloads: count(desired.workloads.len()),
        pools: count(desired.pools.len()),
        unresolved: count(desired.unresolved.len()),
        skipped: desired.skipped.clone(),
    };
    finish(&problems, &tally, settings.format, console)
}

/// Writes problems and counts; an error among them ends with 1.
pub(super) fn finish(
    problems: &[Problem],
    tally: &Tally,
    format: Format,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let text = match format {
        Format::Text => problems_text(problems, tally, &console.style(Verbosity::Full)),
        Format::Json => {
            canonical::pretty(&problems_json(problems, tally)).map_err(CliError::new)?
        }
    };
    console.print(&text)?;
    let has_errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    Ok(if has_errors { Exit::Failed } else { Exit::Done })
}

/// Returns everything that is wrong with a repository, by file and line.
fn problems(repository: &Repository) -> Vec<Problem> {
    let desired = &repository.desired;
    let fleet = &repository.fleet;
    let mut problems = desired.problems.clone();
    // What is unresolved because it could not be read is said by the error.
    let is_said = |unresolved: &&Unresolved| {
        let mut errors = desired.problems.iter().filter(|p| p.severity == Severity::Error);
        errors.any(|p| p.object == unresolved.object && p.origin.file == unresolved.origin.file)
    };
    let unsaid = desired.unresolved.iter().filter(|unresolved| !is_said(unresolved));
    problems.extend(unsaid.map(of_unresolved));
    // Some problems show only once the parts are put together, as every plan does.
    let nothing = Observed::empty(fleet.identity(), Timestamp::UNIX_EPOCH);
    let demand = Demand::build(desired, &nothing, fleet.demand);
    problems.extend(demand.problems.iter().cloned());
    problems.extend(requests(desired));
    problems.extend(desired.groups_elsewhere.iter().map(of_group_elsewhere));
    match Catalog::load(&fleet.region, &fleet.zones) {
        Ok(catalog) => {
            problems.extend(lints(desired, &demand, &catalog));
            problems.extend(catalog.unknown_types(desired));
            problems.extend(catalog.overlay_conflicts(desired));
            problems.extend(catalog.unpriced_licences(desired));
        }
        Err(error) => problems.push(of_catalog(&error)),
    }
    problems.sort();
    problems.dedup();
    problems
}

/// Returns a warning for each autoscaler that may ask for more than the pools have room for.
fn beyond(settings: &ValidateSettings, repository: &Repository) -> Result<Vec<Problem>, CliError> {
    let fleet = &repository.fleet;
    let Ok(catalog) = Catalog::load(&fleet.region, &fleet.zones) else { return Ok(Vec::new()) };
    let nothing = Observed::empty(fleet.identity(), Timestamp::UNIX_EPOCH);
    let world = WorldChoice::parse("empty")?;
    let found = engine::beyond(&Inputs {
        desired: &repository.desired,
        observed: &nothing,
        catalog: &catalog,
        base: planning::base_of(&settings.source, repository, &world, &nothing, fleet.demand),
        at: nothing.taken_at,
        demand: fleet.demand,
        is_forecast: false,
        scope: Scope::default(),
        settings: fleet.solve,
    });
    let warning = |found: Diagnostic| {
        let Diagnostic { severity: _, origin, object, message, hint } = found;
        Some(Problem { origin: origin?, severity: Severity::Warning, object, message, hint })
    };
    Ok(found.into_iter().filter_map(warning).collect())
}

/// Says which groups only the world can tell of: a slip in the name would show in a plan alone.
fn of_group_elsewhere((name, (_, origin)): (&PoolName, &(bool, Origin))) -> Problem {
    Problem {
        origin: origin.clone(),
        severity: Severity::Warning,
        object: "Fleet".to_owned(),
        message: format!(
            "`spec.groups.{name}` names a node group that no ClusterConfig declares: it has to be in \
             the world"
        ),
        hint: Some("`fleetwright plan --world live` says whether it is".to_owned()),
    }
}

fn of_unresolved(unresolved: &Unresolved) -> Problem {
    let Unresolved { origin, object, reason } = unresolved;
    Problem {
        origin: origin.clone(),
        severity: Severity::Warning,
        object: object.clone(),
        message: format!("its size is not known: {reason}"),
        hint: None,
    }
}

fn of_catalog(error: &CatalogError) -> Problem {
    Problem {
        origin: Origin::new("fleetwright.yaml", 0),
        severity: Severity::Error,
        object: "spec.cluster".to_owned(),
        message: error.to_string(),
        hint: error.hint(),
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
