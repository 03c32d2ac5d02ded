//! Errors as the user sees them: what failed, why, and what to do.

use crate::catalog::CatalogError;
use crate::git::{GitError, GitErrorKind};
use crate::plan::ReadPlanError;
use crate::render::{ExplainError, escape};
use crate::requirement::ParseRequirementsError;
use crate::telemetry::TelemetryError;

use super::{Console, Exit};

/// Why a command could not do what it was asked for.
#[derive(Debug)]
pub(super) struct CliError {
    /// How the process ends.
    pub(super) kind: Exit,
    /// What failed, with its causes.
    source: anyhow::Error,
    /// What to do about it.
    hints: Vec<String>,
}

impl CliError {
    /// Returns an error that ends with code 1.
    pub(super) fn new(source: impl Into<anyhow::Error>) -> Self {
        Self { kind: Exit::Failed, source: source.into(), hints: Vec::new() }
    }

    /// Returns an error of a text that ends with code 1.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::new(anyhow::Error::msg(text.into()))
    }

    pub(super) fn kind(self, kind: Exit) -> Self {
        Self { kind, ..self }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns whether it is that a repository has no such commit.
    pub(super) fn is_unknown_revision(&self) -> bool {
        let git = self.source.downcast_ref::<GitError>();
        git.is_some_and(|error| matches!(error.kind, GitErrorKind::UnknownRevision { .. }))
    }

    /// Adds what was being done when the error happened.
    pub(super) fn context(self, context: String) -> Self {
        Self { source: self.source.context(context), ..self }
    }

    /// Returns what to do about it, in one text.
    pub(super) fn hint_text(&self) -> Option<String> {
        (!self.hints.is_empty()).then(|| self.hints.join("; "))
    }

    /// Writes the error, its causes and its hints to stderr, once.
    pub(super) fn write(&self, console: &mut Console) {
        let mut causes = self.source.chain();
        let mut text = String::new();
        if let Some(first) = causes.next() {
            text = format!("{} {}\n", console.error_label(), escape(&first.to_string()));
        }
        for cause in causes {
            text = format!("{text}  cause: {}\n", escape(&cause.to_string()));
        }
        for hint in &self.hints {
            text = format!("{text}  hint:  {}\n", escape(hint));
        }
        console.say_raw(&text);
    }
}

/// Error and causes in one line.
impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.source)
    }
}

impl From<GitError> for CliError {
    fn from(error: GitError) -> Self {
        let hint = error.hint();
        let cli = Self::new(error);
        hint.into_iter().fold(cli, Self::hint)
    }
}

impl From<CatalogError> for CliError {
    fn from(error: CatalogError) -> Self {
        let hint = error.hint();
        let cli = Self::new(error);
        hint.into_iter().fold(cli, Self::hint)
    }
}

impl From<ReadPlanError> for CliError {
    fn from(error: ReadPlanError) -> Self {
        let hint = error.hint();
        Self::new(error).kind(Exit::UnreadablePlan).hint(hint)
    }
}

impl From<ParseRequirementsError> for CliError {
    fn from(error: ParseRequirementsError) -> Self {
        let hint = error.hint();
        Self::new(error).hint(hint)
    }
}

impl From<ExplainError> for CliError {
    fn from(error: ExplainError) -> Self {
        let hint = error.hint();
        Self::new(error).hint(hint)
    }
}

impl From<TelemetryError> for CliError {
    fn from(error: TelemetryError) -> Self {
        Self::new(error).hint("write a level such as `debug`, or `fleetwright::solve=trace`")
    }
}
