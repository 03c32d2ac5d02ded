//! `doctor`: checks this computer and a directory, without network access.

mod environment;

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::error::CliError;
use super::init::detect::Detected;
use super::settings::{DoctorSettings, Format, SourceSettings};
use super::version::BuildInfo;
use super::{Console, Exit, hints, output, source_tree};
use crate::manifest::read_fleet;
use crate::model::desired::{Fleet, Problem, Severity};
use crate::render::escape;

/// The state of a checked part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingState {
    Ok,
    /// Some commands cannot be used.
    Warn,
    /// This directory cannot be planned completely.
    Missing,
}

impl FindingState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// The state of one part, with a remedy unless it is in order.
#[derive(Debug, Serialize)]
struct Finding {
    part: &'static str,
    state: FindingState,
    detail: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(part: &'static str, detail: impl Into<String>) -> Self {
        Self { part, state: FindingState::Ok, detail: detail.into(), remedy: None }
    }

    fn warn(part: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (detail, remedy) = (detail.into(), Some(remedy.into()));
        Self { part, state: FindingState::Warn, detail, remedy }
    }

    fn missing(part: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: FindingState::Missing, ..Self::warn(part, detail, remedy) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
}

pub(super) fn run(settings: &DoctorSettings, console: &mut Console) -> Result<Exit, CliError> {
    let build = BuildInfo::current()?;
    let mut findings = vec![build_finding(&build), cluster_finding(&build)];
    let (directory, fleet, detected) = read_directory(&settings.path);
    findings.extend(environment::tools(&fleet, &detected));
    findings.push(directory);
    findings.extend([environment::aws(), environment::kubeconfig(), environment::cache()]);
    findings.push(Finding::ok(
        "catalog",
        format!("embedded instance types and list prices of {}", build.prices_of),
    ));
    let report = Report { findings };
    match settings.format {
        Format::Document(format) => console.print(&output::document(&report, format)?)?,
        Format::Text => console.print(&text(&report))?,
    }
    let missing = report.findings.iter().any(|finding| finding.state == FindingState::Missing);
    Ok(if missing { Exit::NotApproved } else { Exit::Done })
}

fn build_finding(build: &BuildInfo) -> Finding {
    let commit = build.commit.map_or_else(String::new, |commit| format!(" at {commit}"));
    let features = build.features.join(", ");
    Finding::ok("fleetwright", format!("{}{commit}, features: {features}", build.version))
}

fn cluster_finding(build: &BuildInfo) -> Finding {
    if build.features.contains(&"cluster") {
        return Finding::ok("cluster support", "built in");
    }
    Finding::warn(
        "cluster support",
        "not built in: `--world live` and `preflight` do not work",
        hints::CLUSTER_BUILD,
    )
}

/// Returns the state of the settings, the settings, and what the directory holds.
fn read_directory(path: &Path) -> (Finding, Fleet, Detected) {
    let unread = |why: String, remedy: String| {
        (Finding::missing("settings", why, remedy), Fleet::default(), Detected::default())
    };
    let name_one = "name a directory of manifests that is on this computer".to_owned();
    if !path.is_dir() {
        return unread(format!("`{}` is not a directory", path.display()), name_one);
    }
    let source = SourceSettings { path: path.to_owned(), revision: None };
    let read = match source_tree::read(&source) {
        Ok(read) => read,
        Err(error) => return unread(error.to_string(), error.hint_text().unwrap_or(name_one)),
    };
    let (fleet, problems) = read_fleet(&read.tree);
    let finding = settings_finding(path, &fleet, &problems);
    (finding, fleet, Detected::from_tree(&read.tree))
}

fn settings_finding(path: &Path, fleet: &Fleet, problems: &[Problem]) -> Finding {
    let file = path.join("fleetwright.yaml");
    let error = problems.iter().find(|problem| problem.severity == Severity::Error);
    if let Some(Problem { origin, message, .. }) = error {
        let remedy = format!("correct it, then: fleetwright validate {}", path.display());
        return Finding::missing("settings", format!("{origin}: {message}"), remedy);
    }
    if fleet.origin.is_none() {
        return Finding::warn(
            "settings",
            format!("no {}: defaults apply", file.display()),
            format!("fleetwright init {}", path.display()),
        );
    }
    let (name, region) = (&fleet.cluster.name, &fleet.cluster.region);
    Finding::ok("settings", format!("{}: cluster {name} in {region}", file.display()))
}

/// Returns a line for each part, followed by its remedy.
fn text(report: &Report) -> String {
    let longest = report.findings.iter().map(|f| f.part.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Finding { part, state, detail, remedy } in &report.findings {
        let _ = writeln!(out, "{:7}  {part:longest$}  {}", state.as_str(), escape(detail));
        if let Some(remedy) = remedy {
            let _ = writeln!(out, "{:7}  {:longest$}  -> {}", "", "", escape(remedy));
        }
    }
    let count = |state| report.findings.iter().filter(|f| f.state == state).count();
    let summary = match (count(FindingState::Missing), count(FindingState::Warn)) {
        (0, 0) => "Everything is in order.".to_owned(),
        (missing, warnings) => format!("{missing} missing, {warnings} with a warning."),
    };
    let _ = writeln!(out, "\n{summary}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_is_not_in_order_has_a_remedy() {
        let report = Report {
            findings: vec![
                Finding::ok("git", "2.43.0"),
                Finding::missing("helm", "not on the PATH", "install Helm 3"),
            ],
        };
        assert_eq!(
            text(&report),
            "ok       git   2.43.0\n\
             missing  helm  not on the PATH\n               -> install Helm 3\n\n\
             1 missing, 0 with a warning.\n"
        );
    }
}
