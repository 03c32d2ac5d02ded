//! Settings of `run`.

use super::parse::duration;
use super::planning::{SourceSettings, source_settings};
use crate::cli::args::{LogFormatArg, ModeArg, RunArgs};
use crate::cli::error::CliError;
use crate::cli::world_choice::WorldChoice;
use crate::model::desired::Mode;
use crate::telemetry::LogFormat;

/// Settings of `run`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct RunSettings {
    pub(in crate::cli) source: SourceSettings,
    /// The world, unless the repository names it.
    pub(in crate::cli) world: Option<WorldChoice>,
    /// The mode, unless the repository sets it.
    pub(in crate::cli) mode: Option<Mode>,
    /// The commit from which the first chain of signatures starts.
    pub(in crate::cli) guard_ref: Option<String>,
    /// The file of signers from outside of the repository.
    pub(in crate::cli) signers: Option<std::path::PathBuf>,
    /// The file of the key that authenticates stored decisions.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a live cluster has it"))]
    pub(in crate::cli) state_key: Option<std::path::PathBuf>,
    /// True to stop once nothing is left to do.
    pub(in crate::cli) once: bool,
    /// The address of page, metrics and probes.
    #[cfg(feature = "page")]
    pub(in crate::cli) listen: Option<std::net::SocketAddr>,
    /// The address of metrics and probes, if they have one of their own.
    #[cfg(feature = "page")]
    pub(in crate::cli) listen_metrics: Option<std::net::SocketAddr>,
    /// True to accept tokens for the API server.
    pub(in crate::cli) accepts_api_tokens: bool,
    /// Additional host names of the page.
    #[cfg(feature = "page")]
    pub(in crate::cli) listen_names: Vec<String>,
    /// The webhook secrets, if webhooks are received.
    #[cfg(feature = "page")]
    pub(in crate::cli) webhook: Option<crate::server::http::WebhookSecrets>,
    /// The format of log lines.
    pub(in crate::cli) log_format: LogFormat,
    /// Speed factor of the time of an embedded world.
    pub(in crate::cli) speed: u32,
    /// The longest wait for the lock.
    pub(in crate::cli) lock_timeout: std::time::Duration,
}

/// The variable that may hold the webhook secret.
#[cfg(feature = "page")]
const WEBHOOK_VARIABLE: &str = "FLEETWRIGHT_WEBHOOK_SECRET";

/// Reads the webhook secrets from a file, otherwise from a variable. Without either, webhooks are
/// not received.
#[cfg(feature = "page")]
fn webhook(
    file: Option<&std::path::Path>,
    variable: Option<String>,
) -> Result<Option<crate::server::http::WebhookSecrets>, CliError> {
    let read = |text: &str, from: &str| {
        crate::server::http::WebhookSecrets::parse(text)
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

/// Returns the mode of an argument.
pub(super) fn mode(mode: ModeArg) -> Mode {
    match mode {
        ModeArg::Observe => Mode::Observe,
        ModeArg::Additive => Mode::Additive,
        ModeArg::Full => Mode::Full,
    }
}

pub(super) fn run(args: RunArgs) -> Result<RunSettings, CliError> {
    let RunArgs {
        path,
        source,
        world,
        mode,
        guard_ref,
        signers,
        state_key,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_metrics,
        #[cfg(feature = "page")]
        accept_api_tokens,
        #[cfg(feature = "page")]
        listen_name,
        #[cfg(feature = "page")]
        webhook_secret,
        log_format,
        speed,
        lock_timeout,
    } = args;
    Ok(RunSettings {
        source: source_settings(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        mode: mode.map(self::mode),
        guard_ref,
        signers,
        state_key,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_metrics,
        #[cfg(feature = "page")]
        accepts_api_tokens: accept_api_tokens,
        #[cfg(not(feature = "page"))]
        accepts_api_tokens: false,
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
