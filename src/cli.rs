//! The command line: arguments become settings, settings run one command, and its result becomes an
//! exit code.
//!
//! Arguments are read in two stages, as in ripgrep: `args` holds the typed text, `settings` its
//! meaning. Each command is a file with one `run`. This is the only module that wires others
//! together, reads the clock and uses the terminal.
//!
//! Invariants:
//! - Stdout carries results alone.
//! - No question is asked without a terminal.
//! - Each exit has a documented code, see [`Exit`].

mod adopt;
mod apply;
mod apply_embedded;
#[cfg(feature = "cluster")]
mod apply_live;
mod apply_session;
mod approval;
mod args;
mod bootstrap;
mod catalog;
mod cluster_pools;
#[cfg(feature = "live")]
mod comment;
mod completions;
mod console;
mod diff;
mod doctor;
mod drift;
mod embedded;
mod error;
mod exit;
mod explain;
mod files;
mod forecast;
mod help;
mod hints;
mod init;
#[cfg(feature = "cluster")]
mod lease;
#[cfg(feature = "cluster")]
mod live;
mod lock;
mod man;
mod observe;
mod output;
mod plan;
mod plan_origin;
mod planning;
mod policy;
mod policy_process;
#[cfg(feature = "cluster")]
mod preflight;
#[cfg(feature = "page")]
mod preview;
#[cfg(feature = "live")]
mod prices;
mod progress;
mod replan;
mod repository;
mod run;
#[cfg(feature = "sandbox")]
mod sandbox;
mod settings;
mod show;
mod signature_check;
mod similar_path;
mod source_tree;
#[cfg(feature = "live")]
mod sources;
mod top;
mod unknown_address;
mod validate;
mod version;
mod world;
mod world_choice;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;

pub use console::Console;
pub use exit::Exit;

use crate::telemetry::{self, LogLevel, TelemetryConfig, TelemetryGuard};
use args::CliArgs;
use error::CliError;
use settings::{CommandSettings, GlobalSettings};

/// Runs the command of `arguments` (program name first) on the real terminal.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(code) = policy_process::serve(&arguments) {
        return code;
    }
    run(arguments, &mut Console::from_process()).into()
}

/// Runs the command of `arguments` (program name first).
pub fn run(arguments: impl IntoIterator<Item = OsString>, console: &mut Console) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = help::command();
    if let Some(error) = hints::single_dash(&arguments, &command) {
        error.write(console);
        return error.kind;
    }
    let matches = command.try_get_matches_from(arguments);
    let typed = match matches.and_then(|mut matches| CliArgs::from_arg_matches_mut(&mut matches)) {
        Ok(typed) => typed,
        Err(error) => return report_usage(&hints::add(error), console),
    };
    let end =
        settings::resolve(typed).and_then(|(global, command)| dispatch(global, command, console));
    end.unwrap_or_else(|error| {
        error.write(console);
        error.kind
    })
}

/// Returns the definition of the command line, from which the command reference is written.
pub fn definition() -> clap::Command {
    help::command()
}

/// Prints help and version as results, and usage errors as errors. They exit with 1, because 2
/// means changes.
fn report_usage(error: &clap::Error, console: &mut Console) -> Exit {
    if error.use_stderr() {
        console.report_styled(&error.render());
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

/// Sets up logs, and traces of the controller, until the returned value is dropped.
fn init_telemetry(
    loudness: LogLevel,
    command: &CommandSettings,
    console: &Console,
) -> Result<Option<TelemetryGuard>, CliError> {
    if !console.is_real() {
        return Ok(None);
    }
    let format =
        if let CommandSettings::Run(settings) = command { Some(settings.log_format) } else { None };
    let setup = TelemetryConfig {
        level: loudness,
        format: format.unwrap_or_default(),
        terminal: console.is_terminal(),
        color: console.colors_messages(),
        traces: format.is_some(),
    };
    Ok(Some(telemetry::init(setup)?))
}

fn dispatch(
    global: GlobalSettings,
    command: CommandSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    if global.no_color {
        console.disable_color();
    }
    if matches!(global.loudness, LogLevel::Verbose | LogLevel::Debug) {
        console.show_everything();
    }
    let _telemetry = init_telemetry(global.loudness, &command, console)?;
    match command {
        CommandSettings::Plan(settings) => plan::run(&settings, console),
        CommandSettings::Show(settings) => show::run(&settings, console),
        CommandSettings::Apply(settings) => apply::run(&settings, console),
        CommandSettings::Adopt(settings) => adopt::run(&settings, console),
        CommandSettings::Diff(settings) => diff::run(&settings, console),
        CommandSettings::Drift(settings) => drift::run(&settings, console),
        CommandSettings::Approve(settings) => approval::run(&settings, console),
        #[cfg(feature = "live")]
        CommandSettings::Comment(settings) => comment::run(&settings, console),
        CommandSettings::PolicyTest(settings) => policy::test(&settings, console),
        CommandSettings::Observe(settings) => observe::run(&settings, console),
        #[cfg(feature = "cluster")]
        CommandSettings::Preflight(source) => preflight::run(&source, console),
        #[cfg(feature = "sandbox")]
        CommandSettings::Sandbox(settings) => sandbox::run(&settings, console),
        CommandSettings::Top(settings) => top::run(&settings, console),
        CommandSettings::Run(settings) => run::run(&settings, console),
        CommandSettings::Validate(settings) => validate::run(&settings, console),
        CommandSettings::CatalogList(settings) => catalog::list(&settings, console),
        CommandSettings::CatalogExplain(settings) => catalog::explain(&settings, console),
        #[cfg(feature = "live")]
        CommandSettings::CatalogPrices(settings) => prices::run(&settings, console),
        CommandSettings::Forecast(settings) => forecast::run(&settings, console),
        CommandSettings::Explain(settings) => explain::run(&settings, console),
        CommandSettings::Completions(shell) => {
            completions::run(shell, &mut help::command(), console)
        }
        CommandSettings::Init(settings) => init::run(&settings, console),
        CommandSettings::InitMatrix(path) => init::matrix::print(&path, console),
        CommandSettings::Bootstrap(settings) => bootstrap::run(&settings, console),
        #[cfg(feature = "live")]
        CommandSettings::SourcesUpdate(settings) => sources::update(&settings, console),
        CommandSettings::Doctor(settings) => doctor::run(&settings, console),
        CommandSettings::Man(directory) => man::run(directory.as_deref(), console),
        CommandSettings::Version(format) => version::run(format, console),
    }
}

#[cfg(test)]
mod tests;
