//! Logs on stderr, separate from results on stdout, and the export of traces.
//!
//! Results, progress and errors of a command are not logs; the command line writes them.
//! `FLEETWRIGHT_LOG` overrides the level with filter directives such as
//! `fleetwright::solver=debug`. If the environment declares an OpenTelemetry collector, spans with
//! the target [`TRACE_TARGET`] are exported to it. Such spans are never logged.

pub mod histogram;
mod json_lines;
mod repeated_warnings;
#[cfg(feature = "live")]
mod traces;

use std::env::VarError;
use std::io::{self, Write};
use std::time::Instant;

use thiserror::Error;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use repeated_warnings::RepeatedWarnings;

pub(crate) use json_lines::json_line;

/// Target of exported spans.
pub const TRACE_TARGET: &str = "fleetwright::trace";

/// Environment variable that overrides the log level.
pub const LOG_VARIABLE: &str = "FLEETWRIGHT_LOG";

/// Log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Errors only.
    Quiet,
    /// Warnings and errors.
    #[default]
    Normal,
    /// As `Normal`, with the steps of the program.
    Verbose,
    /// As `Verbose`, with debugging details.
    Debug,
}

impl LogLevel {
    fn directives(self) -> &'static str {
        // Fleetwright reports errors of the Kubernetes client and of AWS credentials itself. Only
        // `default_provider` logs what no error has: invalid settings.
        match self {
            Self::Quiet => "error,kube_client=off,aws_config=off",
            Self::Normal => "warn,kube_client=off,aws_config=off,aws_config::default_provider=warn",
            Self::Verbose => {
                "warn,kube_client=off,aws_config=off,aws_config::default_provider=warn,\
                 fleetwright=info"
            }
            Self::Debug => "info,fleetwright=debug",
        }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Configuration of logs and traces.
#[derive(Debug, Clone, Copy, Default)]
pub struct TelemetryConfig {
    /// Log level.
    pub level: LogLevel,
    /// Format of log lines.
    pub format: LogFormat,
    /// True if stderr is a terminal. Lines are then shorter.
    pub terminal: bool,
    /// True if lines are colored.
    pub color: bool,
    /// True if traces are exported to the collector in the environment, if any.
    pub traces: bool,
}

/// Writes lines of text without commands of CI systems, which run anywhere in a log.
struct EscapedLog<W>(W);

impl<W: Write> Write for EscapedLog<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        self.0.write_all(crate::render::escape_commands(&line).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Guard of the trace export. Dropping it flushes queued spans.
#[derive(Debug, Default)]
pub struct TelemetryGuard {
    #[cfg(feature = "live")]
    _exporter: Option<traces::ExporterThread>,
}

/// An invalid log filter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{directives}` in {LOG_VARIABLE} is not a log filter: {reason}")]
pub struct TelemetryError {
    /// Value of the variable.
    pub directives: String,
    /// Reason of the error.
    pub reason: String,
}

/// Starts logging to stderr, and exports traces until the returned guard is dropped. A second call
/// has no effect.
///
/// Lines have a timestamp, except on a terminal. Repeated warnings are dropped.
///
/// # Errors
/// When `FLEETWRIGHT_LOG` is not a valid filter.
pub fn init(setup: TelemetryConfig) -> Result<TelemetryGuard, TelemetryError> {
    let filter = filter(setup.level, std::env::var(LOG_VARIABLE))?;
    let filter = filter
        .and(filter_fn(|metadata| metadata.target() != TRACE_TARGET))
        .and(RepeatedWarnings::new(Instant::now));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(setup.color)
        .with_target(false);
    let lines = match (setup.format, setup.terminal) {
        (LogFormat::Json, _) => lines.event_format(json_lines::JsonLines).boxed(),
        (LogFormat::Text, true) => {
            lines.compact().without_time().with_writer(|| EscapedLog(io::stderr())).boxed()
        }
        (LogFormat::Text, false) => {
            lines.compact().with_writer(|| EscapedLog(io::stderr())).boxed()
        }
    };
    let logs = tracing_subscriber::registry().with(lines.with_filter(filter));
    #[cfg(feature = "live")]
    {
        let collector = traces::Collector::from_env(|name| std::env::var(name).ok());
        let collector = collector.filter(|_| setup.traces);
        // Ignore the error: traces are optional, and the command may still succeed.
        let exporter = collector.and_then(|collector| traces::SpanExporter::new(collector).ok());
        let (traces, exporter) = exporter.unzip();
        let is_trace =
            filter_fn(|metadata| metadata.is_span() && metadata.target() == TRACE_TARGET);
        let installed = logs.with(traces.map(|traces| traces.with_filter(is_trace))).try_init();
        // An embedding program may have initialized logging already. Its setup is kept.
        Ok(TelemetryGuard { _exporter: exporter.filter(|_| installed.is_ok()) })
    }
    #[cfg(not(feature = "live"))]
    {
        drop(logs.try_init());
        Ok(TelemetryGuard::default())
    }
}

fn filter(
    level: LogLevel,
    variable: Result<String, VarError>,
) -> Result<EnvFilter, TelemetryError> {
    let directives = match variable {
        Ok(directives) if !directives.trim().is_empty() => directives,
        Ok(_) | Err(VarError::NotPresent) => return Ok(EnvFilter::new(level.directives())),
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
        let directives = |variable| filter(LogLevel::Verbose, variable).map(|f| f.to_string());
        assert_eq!(
            directives(Ok("fleetwright::solver=trace".into())),
            Ok("fleetwright::solver=trace".into())
        );
        for unset in [Err(VarError::NotPresent), Ok(String::new())] {
            let found = directives(unset).expect("a filter");
            assert!(found.contains("kube_client=off") && found.contains("fleetwright=info"));
        }
    }

    /// A writer that keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("one thread").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_lines_run_no_command_of_ci_systems() {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt::layer().compact().with_ansi(false);
        let lines = lines.with_writer(move || EscapedLog(writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::warn!(pod = "##vso[task.x]y", "##[set-env name=A]b");
        });
        let text = String::from_utf8(kept.0.lock().expect("one thread").clone()).expect("UTF-8");
        assert!(text.contains("[set-env") && text.contains("vso[task"), "{text}");
        assert!(!text.contains("##"), "{text}");
    }

    #[test]
    fn errors_of_credentials_are_logged_only_for_debugging() {
        let logged = |level| {
            let kept = Kept::default();
            let writer = kept.clone();
            let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
            let filter = filter(level, Err(VarError::NotPresent)).expect("a filter");
            let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "aws_config::imds::region", "no region");
                tracing::warn!(target: "aws_config::meta::credentials::chain", "no provider");
                tracing::warn!(target: "aws_config::default_provider::use_fips", "invalid value");
            });
            let bytes = kept.0.lock().expect("one thread").clone();
            String::from_utf8(bytes).expect("UTF-8").lines().count()
        };
        assert_eq!(logged(LogLevel::Quiet), 0);
        assert_eq!(logged(LogLevel::Normal), 1, "an invalid setting");
        assert_eq!(logged(LogLevel::Verbose), 1);
        assert_eq!(logged(LogLevel::Debug), 3);
    }

    #[test]
    fn invalid_filter_error_names_the_variable() {
        let error =
            filter(LogLevel::Normal, Ok("fleetwright=loud".into())).expect_err("an invalid level");
        assert!(error.to_string().starts_with("`fleetwright=loud` in FLEETWRIGHT_LOG"));
    }
}
