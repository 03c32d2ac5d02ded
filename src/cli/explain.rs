//! `explain`: the reasons for a pod, a node or a pool of a plan.

use super::error::CliError;
use super::settings::{ExplainSettings, Format, PlanSource};
use super::{Console, Exit, files, output, planning, source_tree};
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
            repository = source_tree::read_planned(&plan).ok();
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
