//! The command line: from arguments to settings, from settings to one command, from its end to an
//! exit code.
//!
//! Arguments are read in two stages, as ripgrep does: `args` is what was typed, `settings` is
//! what it means. Each command is a file with one `run`. This is the only module that wires others
//! together, reads the clock, and talks to the terminal. Invariants: results go to stdout and
//! nothing else does; nothing asks a question without a terminal; every end has a documented code,
//! see [`Exit`].

mod adopt;
mod apply;
mod approval;
mod args;
mod catalog;
#[cfg(feature = "live")]
mod comment;
mod completions;
mod console;
mod diff;
mod drift;
mod embedded;
mod error;
mod exit;
mod explain;
mod files;
mod forecast;
#[cfg(feature = "cluster")]
mod live;
mod lock;
mod observe;
mod plan;
mod planning;
mod policy;
#[cfg(feature = "cluster")]
mod preflight;
#[cfg(feature = "page")]
mod preview;
mod progress;
mod replan;
mod repository;
mod run;
#[cfg(feature = "sandbox")]
mod sandbox;
mod settings;
mod show;
mod signers;
mod validate;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

pub use console::Console;
pub use exit::Exit;

use crate::telemetry::{self, Loudness, Setup, Telemetry};
use args::Typed;
use error::CliError;
use settings::{Common, Task};

/// Runs the command that `arguments` (the program's name first) ask for, on the real terminal.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(arguments, &mut Console::real()).into()
}

/// Runs the command that `arguments` (the program's name first) ask for.
pub fn run(arguments: impl IntoIterator<Item = OsString>, console: &mut Console) -> Exit {
    let typed = match Typed::try_parse_from(arguments) {
        Ok(typed) => typed,
        Err(error) => return usage(&error, console),
    };
    let end = settings::meaning(typed).and_then(|(common, task)| start(common, task, console));
    end.unwrap_or_else(|error| {
        error.write(console);
        error.kind
    })
}

/// Shows help and version as results, and usage errors as errors: with code 1, as 2 means changes.
fn usage(error: &clap::Error, console: &mut Console) -> Exit {
    if error.use_stderr() {
        console.say_styled(&error.render());
        return Exit::Failed;
    }
    match console.print_styled(&error.render()) {
        Ok(()) => Exit::Done,
        Err(error) => {
            error.write(console);
            Exit::Failed
        }
    }
}

/// Sets up logs, and traces of the loop, until what is returned is dropped.
fn logs(loudness: Loudness, task: &Task, console: &Console) -> Result<Option<Telemetry>, CliError> {
    if !console.is_real() {
        return Ok(None);
    }
    let format = if let Task::Run(settings) = task { Some(settings.log_format) } else { None };
    let setup = Setup {
        loudness,
        format: format.unwrap_or_default(),
        terminal: console.is_terminal(),
        color: console.colors_messages(),
        traces: format.is_some(),
    };
    Ok(Some(telemetry::init(setup)?))
}

fn start(common: Common, task: Task, console: &mut Console) -> Result<Exit, CliError> {
    if common.no_color {
        console.without_color();
    }
    let _telemetry = logs(common.loudness, &task, console)?;
    match task {
        Task::Plan(settings) => plan::run(&settings, console),
        Task::Show(settings) => show::run(&settings, console),
        Task::Apply(settings) => apply::run(&settings, console),
        Task::Adopt(settings) => adopt::run(&settings, console),
        Task::Diff(settings) => diff::run(&settings, console),
        Task::Drift(settings) => drift::run(&settings, console),
        Task::Approve(settings) => approval::run(&settings, console),
        #[cfg(feature = "live")]
        Task::Comment(settings) => comment::run(&settings, console),
        Task::PolicyTest(settings) => policy::test(&settings, console),
        Task::Observe(settings) => observe::run(&settings, console),
        #[cfg(feature = "cluster")]
        Task::Preflight(source) => preflight::run(&source, console),
        #[cfg(feature = "sandbox")]
        Task::Sandbox(settings) => sandbox::run(&settings, console),
        Task::Run(settings) => run::run(&settings, console),
        Task::Validate(settings) => validate::run(&settings, console),
        Task::CatalogList(settings) => catalog::list(&settings, console),
        Task::CatalogExplain(settings) => catalog::explain(&settings, console),
        Task::Forecast(settings) => forecast::run(&settings, console),
        Task::Explain(settings) => explain::run(&settings, console),
        Task::Completions(shell) => completions::run(shell, &mut Typed::command(), console),
    }
}

#[cfg(test)]
mod tests;
