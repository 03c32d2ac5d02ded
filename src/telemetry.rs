//! Logs: to stderr, so that results on stdout are never mixed with them.
//!
//! This module knows how loud to be and how lines look. Results, progress and errors of a command
//! are no logs; the command line writes those. `FLEETWRIGHT_LOG` overrides the level with filter
//! directives such as `fleetwright::solve=debug`.

use std::env::VarError;

use thiserror::Error;
use tracing_subscriber::EnvFilter;

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
            Self::Quiet => "error",
            Self::Normal => "warn",
            Self::Verbose => "warn,fleetwright=info",
            Self::Debug => "info,fleetwright=debug",
        }
    }
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

/// Sends logs to stderr from now on; a second call changes nothing.
///
/// On a terminal (`terminal`) lines are short; elsewhere each has its time, for logs of CI.
///
/// # Errors
/// When `FLEETWRIGHT_LOG` is set to something that is no filter.
pub fn init(loudness: Loudness, terminal: bool, color: bool) -> Result<(), TelemetryError> {
    let filter = filter(loudness, std::env::var(LOG_VARIABLE))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .with_target(false)
        .compact();
    let done = if terminal { lines.without_time().try_init() } else { lines.try_init() };
    // Whoever embeds the library may have set up logs of their own, and those stay.
    drop(done);
    Ok(())
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
            assert_eq!(shown(unset), Ok("fleetwright=info,warn".into()));
        }
    }

    #[test]
    fn a_variable_that_is_no_filter_is_an_error_that_names_it() {
        let error = filter(Loudness::Normal, Ok("fleetwright=loud".into())).expect_err("no level");
        assert!(error.to_string().starts_with("`fleetwright=loud` in FLEETWRIGHT_LOG"));
    }
}
