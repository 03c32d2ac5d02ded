//! How the loop runs.

use super::planning::{SourceSettings, of_source};
use super::texts::duration;
use crate::cli::args::{LogFormatArg, ModeArg, RunArgs};
use crate::cli::error::CliError;
use crate::cli::world::WorldChoice;
use crate::manifest::Mode;
use crate::telemetry::LogFormat;

/// How the loop runs.
#[derive(Debug, Clone)]
pub(in crate::cli) struct RunSettings {
    pub(in crate::cli) source: SourceSettings,
    /// The world, where it is not that of the repository.
    pub(in crate::cli) world: Option<WorldChoice>,
    /// What it may do, where it is not what the repository says.
    pub(in crate::cli) mode: Option<Mode>,
    /// Whether it ends once nothing is left to do.
    pub(in crate::cli) once: bool,
    /// Where page, metrics and answers to probes are served.
    #[cfg(feature = "page")]
    pub(in crate::cli) listen: Option<std::net::SocketAddr>,
    /// Further names by which they are reached.
    #[cfg(feature = "page")]
    pub(in crate::cli) listen_names: Vec<String>,
    /// What webhooks are signed with, where they are heard.
    #[cfg(feature = "page")]
    pub(in crate::cli) webhook: Option<crate::listen::Secrets>,
    /// How lines on stderr look.
    pub(in crate::cli) log_format: LogFormat,
    /// How many times as fast the time of an embedded world passes.
    pub(in crate::cli) speed: u32,
    /// How long to wait for the lock.
    pub(in crate::cli) lock_timeout: std::time::Duration,
}

/// The variable that may hold the secret of webhooks.
#[cfg(feature = "page")]
const WEBHOOK_VARIABLE: &str = "FLEETWRIGHT_WEBHOOK_SECRET";

/// Reads what webhooks are signed with: of a file, else of a variable, else they are not heard.
#[cfg(feature = "page")]
fn webhook(
    file: Option<&std::path::Path>,
    variable: Option<String>,
) -> Result<Option<crate::listen::Secrets>, CliError> {
    let read = |text: &str, from: &str| {
        crate::listen::Secrets::read(text)
            .map(Some)
            .map_err(|why| CliError::text(format!("{from} cannot be used: {why}")))
    };
    match (file, variable.filter(|text| !text.trim().is_empty())) {
        (Some(file), _) => {
            let name = format!("the secret of webhooks in `{}`", file.display());
            let text = std::fs::read_to_string(file).map_err(|error| {
                CliError::text(format!("{name} cannot be read: {error}"))
                    .hint("name a file that holds the secret, and nothing else")
            })?;
            read(&text, &name)
        }
        (None, Some(text)) => read(&text, &format!("the secret in {WEBHOOK_VARIABLE}")),
        (None, None) => Ok(None),
    }
}

pub(super) fn run(args: RunArgs) -> Result<RunSettings, CliError> {
    let RunArgs {
        path,
        source,
        world,
        mode,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_name,
        #[cfg(feature = "page")]
        webhook_secret,
        log_format,
        speed,
        lock_timeout,
    } = args;
    let mode = mode.map(|mode| match mode {
        ModeArg::Observe => Mode::Observe,
        ModeArg::Additive => Mode::Additive,
        ModeArg::Full => Mode::Full,
    });
    Ok(RunSettings {
        source: of_source(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        mode,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_names: listen_name,
        #[cfg(feature = "page")]
        webhook: webhook(webhook_secret.as_deref(), std::env::var(WEBHOOK_VARIABLE).ok())?,
        log_format: match log_format {
            LogFormatArg::Text => LogFormat::Text,
            LogFormatArg::Json => LogFormat::Json,
        },
        speed,
        lock_timeout: duration("--lock-timeout", &lock_timeout)?,
    })
}
