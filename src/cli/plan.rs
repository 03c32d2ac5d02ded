//! `plan`: compares the repository with the observed world; shows or saves the difference.

use std::path::Path;

use super::error::CliError;
use super::planning::Planned;
use super::settings::{PlanSettings, PlanView};
use super::{Console, Exit, files, output, planning};
use crate::model::shell::quote_word;
use crate::plan::Plan;
use crate::render::{self, LineBreaks, MarkdownStyle, NodeColumns, TextStyle};

pub(super) fn run(settings: &PlanSettings, console: &mut Console) -> Result<Exit, CliError> {
    #[cfg(feature = "page")]
    if let Some(address) = settings.serve {
        return super::preview::serve(address, settings, console);
    }
    let planned = planning::plan_with_facts(&settings.planning, console)?;
    finish(&planned, settings, console)
}

/// Saves and shows a plan. Returns the exit.
pub(super) fn finish(
    Planned { plan, facts }: &Planned,
    settings: &PlanSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    // The plan is saved first, because the reader of the text may stop early.
    files::save_plan(plan, settings.out.as_deref(), settings.saved_rows)?;
    if settings.view == PlanView::Html {
        console.print(&render::html_with_facts(plan, facts))?;
    } else {
        show(plan, settings.view, console)?;
    }
    if let Some(file) = &settings.out {
        let out = file.display();
        console.report(&if planning::is_denied(plan) {
            format!("Saved as {out}. A policy denies it; fleetwright show {out} shows it.")
        } else if !plan.applyable && (plan.errored || planning::has_changes(plan)) {
            format!("Saved as {out}. It cannot be applied; fleetwright show {out} shows it.")
        } else if planning::has_changes(plan) {
            let apply = apply_command(file, &settings.planning.source.path);
            format!("Saved as {out}. To apply it: {apply}")
        } else {
            format!("Saved as {out}. It changes no nodes; fleetwright show {out} shows it.")
        });
    }
    if render::is_errored_by_rules(plan) {
        console.report(
            "The plan breaks rules that every plan must keep: this is a defect of fleetwright.",
        );
    } else if plan.errored {
        console.report("The inputs have errors; the plan shows what could be read.");
    }
    Ok(planning::exit(plan, settings.detailed_exitcode))
}

/// Returns the command that applies the plan in `file` of the repository at `path`. `apply` reads the
/// working directory, unless `--path` names another one.
pub(super) fn apply_command(file: &Path, path: &Path) -> String {
    let shown = |path: &Path| quote_word(&path.display().to_string()).into_owned();
    let file = shown(file);
    match (path.canonicalize(), Path::new(".").canonicalize()) {
        (Ok(planned), Ok(here)) if planned == here => format!("fleetwright apply {file}"),
        _ => format!("fleetwright apply {file} --path {}", shown(path)),
    }
}

/// Writes a plan to stdout, without facts of its repository.
pub(super) fn show(plan: &Plan, view: PlanView, console: &mut Console) -> Result<(), CliError> {
    match view {
        PlanView::Document(format, rows) => {
            console.print(&output::from_json(plan.to_selected_output_json(rows), format)?)
        }
        PlanView::Stream => console.print(&render::stream(plan)),
        PlanView::Markdown => console.print(&render::markdown(plan, MarkdownStyle::default())),
        PlanView::Html => console.print(&render::html(plan)),
        PlanView::Github => console.print(&render::github(plan)),
        PlanView::Text(verbosity) => {
            let style = console.style(verbosity);
            console.print(&render::text(plan, &style))
        }
        PlanView::Wide(verbosity) => {
            let style = TextStyle {
                columns: NodeColumns::Wide,
                breaks: LineBreaks::Keep,
                ..console.style(verbosity)
            };
            console.print(&render::text(plan, &style))
        }
    }
}
