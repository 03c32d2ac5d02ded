//! Logs: to stderr, so that results on stdout are never mixed with them.
//!
//! This module knows log levels and formats. Results, progress and errors of a command are not
//! logs; the command line writes those. `FLEETWRIGHT_LOG` overrides the level with filter
//! directives such as `fleetwright::solver=debug`. If the environment names an OpenTelemetry
//! collector, spans of the target [`TRACE_TARGET`] are exported to it and never logged.

pub mod histogram;
mod json_lines;
#[cfg(feature = "live")]
mod traces;

use std::env::VarError;

use thiserror::Error;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub(crate) use json_lines::json_line;

/// The target of spans that are traces.
pub const TRACE_TARGET: &str = "fleetwright::trace";

/// The environment variable that overrides the level.
pub const LOG_VARIABLE: &str = "FLEETWRIGHT_LOG";

/// How much to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Errors only.
    Quiet,
    /// Warnings and errors.
    #[default]
    Normal,
    /// Also each step.
    Verbose,
    /// Also details for debugging.
    Debug,
}

impl LogLevel {
    fn directives(self) -> &'static str {
        match self {
            Self::Quiet => "error,kube_client=off",
            // Errors of the Kubernetes client are reported once, as ours.
            Self::Normal => "warn,kube_client=off",
            Self::Verbose => "warn,kube_client=off,fleetwright=info",
            Self::Debug => "info,fleetwright=debug",
        }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Configuration of logs and traces.
#[derive(Debug, Clone, Copy, Default)]
pub struct TelemetryConfig {
    /// How much to log.
    pub level: LogLevel,
    /// Format of log lines.
    pub format: LogFormat,
    /// Whether stderr is a terminal, so that lines are short.
    pub terminal: bool,
    /// Whether lines are colored.
    pub color: bool,
    /// Whether to export traces if the environment names a collector.
    pub traces: bool,
}

/// Keeps the export of traces running; dropping it flushes queued spans.
#[derive(Debug, Default)]
pub struct TelemetryGuard {
    #[cfg(feature = "live")]
    _sending: Option<traces::ExporterThread>,
}

/// An invalid log filter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{directives}` in {LOG_VARIABLE} is not a log filter: {reason}")]
pub struct TelemetryError {
    /// The value of the variable.
    pub directives: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Starts logging to stderr, and exporting traces while the returned guard lives. A second call has no
/// effect.
///
/// Lines are short on a terminal; elsewhere, as in CI, each has a timestamp.
///
/// # Errors
/// When `FLEETWRIGHT_LOG` is not a valid filter.
pub fn init(setup: TelemetryConfig) -> Result<TelemetryGuard, TelemetryError> {
    let filter = filter(setup.level, std::env::var(LOG_VARIABLE))?;
    let filter = filter.and(filter_fn(|metadata| metadata.target() != TRACE_TARGET));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(setup.color)
        .with_target(false);
    let lines = match (setup.format, setup.terminal) {
        (LogFormat::Json, _) => lines.event_format(json_lines::JsonLines).boxed(),
        (LogFormat::Text, true) => lines.compact().without_time().boxed(),
        (LogFormat::Text, false) => lines.compact().boxed(),
    };
    let logs = tracing_subscriber::registry().with(lines.with_filter(filter));
    #[cfg(feature = "live")]
    {
        let collector = traces::Collector::from_env(|name| std::env::var(name).ok());
        let collector = collector.filter(|_| setup.traces);
        // Ignore the error: a process that cannot start a thread has worse problems than traces.
        let (traces, sending) = collector.and_then(|to| traces::SpanExporter::new(to).ok()).unzip();
        let only = filter_fn(|metadata| metadata.is_span() && metadata.target() == TRACE_TARGET);
        let done = logs.with(traces.map(|traces| traces.with_filter(only))).try_init();
        // An embedding program may have set up its own logging, which stays in place.
        Ok(TelemetryGuard { _sending: sending.filter(|_| done.is_ok()) })
    }
    #[cfg(not(feature = "live"))]
    {
        drop(logs.try_init());
        Ok(TelemetryGuard::default())
    }
}

fn filter(
    loudness: LogLevel,
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
    fn variable_overrides_options_unless_empty() {
        let shown = |variable| filter(LogLevel::Verbose, variable).map(|f| f.to_string());
        assert_eq!(
            shown(Ok("fleetwright::solver=trace".into())),
            Ok("fleetwright::solver=trace".into())
        );
        for unset in [Err(VarError::NotPresent), Ok(String::new())] {
            assert_eq!(shown(unset), Ok("kube_client=off,fleetwright=info,warn".into()));
        }
    }

    #[test]
    fn invalid_filter_error_names_the_variable() {
        let error = filter(LogLevel::Normal, Ok("fleetwright=loud".into())).expect_err("no level");
        assert!(error.to_string().starts_with("`fleetwright=loud` in FLEETWRIGHT_LOG"));
    }
}
