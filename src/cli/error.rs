//! Errors for users: cause, context, and hint.

use std::path::Path;

use crate::adapters::git::{GitError, GitErrorKind};
use crate::catalog::CatalogError;
use crate::model::desired::Problem;
use crate::model::requirement::ParseRequirementsError;
use crate::plan::ReadPlanError;
use crate::render::{ExplainError, escape};
use crate::telemetry::TelemetryError;

use super::{Console, Exit, similar_path};

/// The error of a command.
#[derive(Debug)]
pub(super) struct CliError {
    /// The exit of the process.
    pub(super) kind: Exit,
    /// The error with its causes.
    source: anyhow::Error,
    /// Hints about the remedy.
    hints: Vec<String>,
}

impl CliError {
    /// Returns an error that exits with 1.
    pub(super) fn new(source: impl Into<anyhow::Error>) -> Self {
        Self { kind: Exit::Failed, source: source.into(), hints: Vec::new() }
    }

    /// Returns an error with this text that exits with 1.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::new(anyhow::Error::msg(text.into()))
    }

    /// Returns the error of a file that cannot be used.
    pub(super) fn from_problem(problem: &Problem) -> Self {
        let error = Self::text(format!("{}: {}", problem.origin, problem.message));
        problem.hint.iter().fold(error, |error, hint| error.hint(hint.clone()))
    }

    pub(super) fn kind(self, kind: Exit) -> Self {
        Self { kind, ..self }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns whether the cause is a missing commit.
    pub(super) fn is_unknown_revision(&self) -> bool {
        let git = self.source.downcast_ref::<GitError>();
        git.is_some_and(|error| matches!(error.kind, GitErrorKind::UnknownRevision { .. }))
    }

    /// Adds the context of the failed operation.
    pub(super) fn context(self, context: String) -> Self {
        Self { source: self.source.context(context), ..self }
    }

    /// Returns all hints in one text.
    pub(super) fn hint_text(&self) -> Option<String> {
        (!self.hints.is_empty()).then(|| self.hints.join("; "))
    }

    /// Writes the error, its causes and its hints to stderr.
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
        console.report_raw(&text);
    }
}

/// Formats the error and its causes on one line.
impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.source)
    }
}

impl From<GitError> for CliError {
    fn from(error: GitError) -> Self {
        let similar = (error.kind == GitErrorKind::Missing)
            .then(|| similar_path::find(Path::new(&error.path)))
            .flatten()
            .map(|path| format!("did you mean `{}`?", path.display()));
        let hint = similar.or_else(|| error.hint());
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
        Self::new(error).hint("write a level such as `debug`, or `fleetwright::solver=trace`")
    }
}
