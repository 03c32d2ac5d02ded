//! `diff`: compares two saved plans.

use super::error::CliError;
use super::settings::{DiffSettings, Format};
use super::{Console, Exit, files, output};
use crate::plan::difference;
use crate::render::{Verbosity, difference_text};

pub(super) fn run(settings: &DiffSettings, console: &mut Console) -> Result<Exit, CliError> {
    let a = files::saved_plan(&settings.a, console)?;
    let b = files::saved_plan(&settings.b, console)?;
    let found = difference(&a, &b);
    let text = match settings.format {
        Format::Text => difference_text(&found, &console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&found, format)?,
    };
    console.print(&text)?;
    let changed = settings.detailed_exitcode && !found.same_decisions;
    Ok(if changed { Exit::Changes } else { Exit::Done })
}
