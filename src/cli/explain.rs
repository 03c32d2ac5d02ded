//! `explain`: the reasons for a pod or a node of a plan.

use super::error::CliError;
use super::settings::{ExplainSettings, Format, PlanSource};
use super::{Console, Exit, files, output, planning};
use crate::render::{Verbosity, explain};

pub(super) fn run(settings: &ExplainSettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.plan {
        PlanSource::Saved(path) => files::saved_plan(path, console)?,
        PlanSource::Fresh(settings) => planning::plan(settings, console)?,
    };
    let found = explain(&plan, &settings.what)?;
    let text = match settings.format {
        Format::Text => found.text(&console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&found.json(), format)?,
    };
    console.print(&text)?;
    Ok(Exit::Done)
}
