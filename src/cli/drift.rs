//! `drift`: reports changes made outside Git.

use super::error::CliError;
use super::settings::{DriftSettings, Format};
use super::{Console, Exit, observe, output, planning, source_tree};
use crate::plan::{drift, has_drift};
use crate::render::{Verbosity, drift_text};

pub(super) fn run(settings: &DriftSettings, console: &mut Console) -> Result<Exit, CliError> {
    // Before planning, which may take minutes.
    let source = &settings.planning.source;
    match &settings.planning.world {
        Some(world) => world.require_cluster("drift")?,
        None => {
            observe::cluster_of_settings(&source_tree::read(source)?, source, "drift")?;
        }
    }
    let plan = planning::plan(&settings.planning, console)?;
    let report = drift(&plan);
    let text = match settings.format {
        Format::Text => drift_text(&report, &console.style(Verbosity::Full)),
        Format::Document(format) => output::from_json(report.to_json(), format)?,
    };
    console.print(&text)?;
    if plan.errored {
        return Ok(Exit::Failed);
    }
    let moved = settings.detailed_exitcode && has_drift(&report);
    Ok(if moved { Exit::Changes } else { Exit::Done })
}
