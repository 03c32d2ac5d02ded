//! `explain`: the reasons for a pod or a node of a plan.

use super::error::CliError;
use super::settings::{ExplainSettings, Format, PlanSource};
use super::{Console, Exit, files, planning};
use crate::plan::canonical;
use crate::render::{Verbosity, explain};

pub(super) fn run(settings: &ExplainSettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.plan {
        PlanSource::Saved(path) => files::saved_plan(path, console)?,
        PlanSource::Fresh(settings) => planning::plan(settings, console)?,
    };
    let found = explain(&plan, &settings.what)?;
    let text = match settings.format {
        Format::Text => found.text(&console.style(Verbosity::Full)),
        Format::Json => canonical::pretty(&found.json()).map_err(CliError::new)?,
    };
    console.print(&text)?;
    Ok(Exit::Done)
}
