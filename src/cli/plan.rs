//! `plan`: compare what the repository asks for with what runs; show or save the difference.

use super::error::CliError;
use super::settings::{PlanSettings, View};
use super::{Console, Exit, files, planning};
use crate::plan::Plan;
use crate::render::{self, MarkdownStyle};

pub(super) fn run(settings: &PlanSettings, console: &mut Console) -> Result<Exit, CliError> {
    #[cfg(feature = "page")]
    if let Some(address) = settings.serve {
        return super::preview::serve(address, settings, console);
    }
    let plan = planning::plan(&settings.planning, console)?;
    finish(&plan, settings, console)
}

/// Saves a plan where that was asked for.
pub(super) fn save(plan: &Plan, settings: &PlanSettings) -> Result<(), CliError> {
    settings.out.as_ref().map_or(Ok(()), |out| files::write(out, &plan.to_json()))
}

/// Saves and shows a plan, and says how it ends.
pub(super) fn finish(
    plan: &Plan,
    settings: &PlanSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    // Saved first: a reader that stops reading the text must not cost the file.
    save(plan, settings)?;
    show(plan, settings.view, console)?;
    if let Some(out) = &settings.out {
        let out = out.display();
        console.say(&format!("Saved as {out}. To carry it out: fleetwright apply {out}"));
    }
    if render::is_errored_by_rules(plan) {
        console.say(
            "The plan breaks rules that every plan must keep: this is a defect of fleetwright.",
        );
    } else if plan.errored {
        console.say("The inputs have errors; the plan shows what could be read.");
    }
    Ok(planning::exit(plan, settings.detailed_exitcode))
}

/// Writes a plan to stdout.
pub(super) fn show(plan: &Plan, view: View, console: &mut Console) -> Result<(), CliError> {
    match view {
        View::Json => console.print(&plan.to_json()),
        View::Stream => console.print(&render::stream(plan)),
        View::Markdown => console.print(&render::markdown(plan, MarkdownStyle::default())),
        View::Html => console.print(&render::html(plan)),
        View::Github => console.print(&render::github(plan)),
        View::Text(verbosity) => {
            let style = console.style(verbosity);
            console.print(&render::text(plan, &style))
        }
    }
}
