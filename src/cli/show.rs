//! `show`: displays a saved plan.

use super::error::CliError;
use super::settings::ShowSettings;
use super::{Console, Exit, files, plan};

pub(super) fn run(settings: &ShowSettings, console: &mut Console) -> Result<Exit, CliError> {
    let saved = files::saved_plan(&settings.plan, console)?;
    plan::show(&saved, settings.view, console)?;
    Ok(Exit::Done)
}
