//! `explain`: the reasons for a pod, a node or a pool of a plan.

use super::error::CliError;
use super::settings::{ExplainSettings, Format, PlanSource, SourceSettings};
use super::{Console, Exit, files, output, planning, source_tree};
use crate::adapters::git::RemoteRepository;
use crate::plan::Plan;
use crate::render::{ExplainError, Explanation, Verbosity, explain};

pub(super) fn run(settings: &ExplainSettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.plan {
        PlanSource::Saved(path) => files::saved_plan(path, console)?,
        PlanSource::Fresh(settings) => planning::plan(settings, console)?,
    };
    let repository;
    let found = match explain(&plan, None, &settings.what) {
        // Limits of pools are in the repository, not in the plan.
        Ok(Explanation::Pool(_)) | Err(ExplainError::Unknown { .. }) => {
            repository = source(settings, &plan)
                .and_then(|source| source_tree::read_planned(&plan, &source).ok());
            let desired = repository.as_ref().map(|repository| &repository.desired);
            explain(&plan, desired, &settings.what)?
        }
        other => other?,
    };
    let text = match settings.format {
        Format::Text => found.text(&console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&found.json(), format)?,
    };
    console.print(&text)?;
    Ok(Exit::Done)
}

/// Returns the place of the plan's files, unless only the plan names a URL: it is not fetched.
fn source(settings: &ExplainSettings, plan: &Plan) -> Option<SourceSettings> {
    match &settings.plan {
        PlanSource::Fresh(planning) => Some(planning.source.clone()),
        PlanSource::Saved(_) => {
            let path = &plan.capacity.base.path;
            let source = SourceSettings { path: path.into(), revision: None };
            RemoteRepository::parse(path).is_none().then_some(source)
        }
    }
}
