//! Logs: to stderr, so that results on stdout are never mixed with them.
//!
//! This module knows how loud to be and how lines look. Results, progress and errors of a command
//! are no logs; the command line writes those. `FLEETWRIGHT_LOG` overrides the level with filter
//! directives such as `fleetwright::solve=debug`. Where the environment names a collector of
//! OpenTelemetry, spans of the target [`TRACE`] are sent to it, and are in no log.

mod lines;
#[cfg(feature = "live")]
mod traces;

use std::env::VarError;

use thiserror::Error;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub(crate) use lines::line;

/// The target of spans that are traces.
pub const TRACE: &str = "fleetwright::trace";

/// The environment variable that overrides the level.
pub const LOG_VARIABLE: &str = "FLEETWRIGHT_LOG";

/// How much to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Loudness {
    /// Errors alone.
    Quiet,
    /// Warnings too.
    #[default]
    Normal,
    /// Each step too.
    Verbose,
    /// Everything that helps to find a fault.
    Debug,
}

impl Loudness {
    fn directives(self) -> &'static str {
        match self {
            Self::Quiet => "error,kube_client=off",
            // What the client of Kubernetes finds is told once, as our error.
            Self::Normal => "warn,kube_client=off",
            Self::Verbose => "warn,kube_client=off,fleetwright=info",
            Self::Debug => "info,fleetwright=debug",
        }
    }
}

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object each.
    Json,
}

/// How logs and traces are set up.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    /// How much to log.
    pub loudness: Loudness,
    /// How lines look.
    pub format: LogFormat,
    /// Whether stderr is a terminal: then lines are short.
    pub terminal: bool,
    /// Whether lines have colours.
    pub color: bool,
    /// Whether traces are sent where the environment names a collector.
    pub traces: bool,
}

/// What goes on until it is dropped; traces that wait are sent then.
#[derive(Debug, Default)]
pub struct Telemetry {
    #[cfg(feature = "live")]
    _sending: Option<traces::Sending>,
}

/// Why logging cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{directives}` in {LOG_VARIABLE} is not a log filter: {reason}")]
pub struct TelemetryError {
    /// The value of the variable.
    pub directives: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Sends logs to stderr from now on, and traces for as long as what is returned lives; a second call changes
/// nothing.
///
/// On a terminal lines are short; elsewhere each has its time, for logs of CI.
///
/// # Errors
/// When `FLEETWRIGHT_LOG` is set to something that is no filter.
pub fn init(setup: Setup) -> Result<Telemetry, TelemetryError> {
    let filter = filter(setup.loudness, std::env::var(LOG_VARIABLE))?;
    let filter = filter.and(filter_fn(|metadata| metadata.target() != TRACE));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(setup.color)
        .with_target(false);
    let lines = match (setup.format, setup.terminal) {
        (LogFormat::Json, _) => lines.event_format(lines::Lines).boxed(),
        (LogFormat::Text, true) => lines.compact().without_time().boxed(),
        (LogFormat::Text, false) => lines.compact().boxed(),
    };
    let logs = tracing_subscriber::registry().with(lines.with_filter(filter));
    #[cfg(feature = "live")]
    {
        let collector = traces::Collector::named(|name| std::env::var(name).ok());
        let collector = collector.filter(|_| setup.traces);
        // A process that can start no thread has worse problems than traces.
        let (traces, sending) = collector.and_then(|to| traces::Traces::to(to).ok()).unzip();
        let only = filter_fn(|metadata| metadata.is_span() && metadata.target() == TRACE);
        let done = logs.with(traces.map(|traces| traces.with_filter(only))).try_init();
        // Whoever embeds the library may have set up logs of their own, and those stay.
        Ok(Telemetry { _sending: sending.filter(|_| done.is_ok()) })
    }
    #[cfg(not(feature = "live"))]
    {
        drop(logs.try_init());
        Ok(Telemetry::default())
    }
}

fn filter(
    loudness: Loudness,
    variable: Result<String, VarError>,
) -> Result<EnvFilter, TelemetryError> {
    let directives = match variable {
        Ok(directives) if !directives.trim().is_empty() => directives,
        Ok(_) | Err(VarError::NotPresent) => return Ok(EnvFilter::new(loudness.directives())),
        Err(VarError::NotUnicode(raw)) => raw.to_string_lossy().into_owned(),
    };
    EnvFilter::try_new(&directives)
        .map_err(|error| TelemetryError { directives, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_over_the_options_unless_it_is_empty() {
        let shown = |variable| filter(Loudness::Verbose, variable).map(|f| f.to_string());
        assert_eq!(
            shown(Ok("fleetwright::solve=trace".into())),
            Ok("fleetwright::solve=trace".into())
        );
        for unset in [Err(VarError::NotPresent), Ok(String::new())] {
            assert_eq!(shown(unset), Ok("kube_client=off,fleetwright=info,warn".into()));
        }
    }

    #[test]
    fn a_variable_that_is_no_filter_is_an_error_that_names_it() {
        let error = filter(Loudness::Normal, Ok("fleetwright=loud".into())).expect_err("no level");
        assert!(error.to_string().starts_with("`fleetwright=loud` in FLEETWRIGHT_LOG"));
    }
}
