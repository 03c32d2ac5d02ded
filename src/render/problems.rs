//! Problems of inputs as lines: severity, place, object, what is wrong, what to do.

use serde_json::{Value, json};

use super::amount::count;
use super::page::{Page, Span, TextStyle, Tone, plain};
use crate::manifest::{Problem, Severity};
use crate::plan::wire::Diagnostic;

/// How grave a line is; the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Error,
    Warning,
    Note,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Error => Tone::Delete,
            Self::Warning => Tone::Warning,
            Self::Note => Tone::Faint,
        }
    }
}

/// A problem as it is written.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) level: Level,
    text: String,
    hint: Option<String>,
}

impl From<&Diagnostic> for Line {
    fn from(diagnostic: &Diagnostic) -> Self {
        let Diagnostic { severity, origin, object, message, hint } = diagnostic;
        let level = match severity.as_str() {
            "error" => Level::Error,
            "warning" => Level::Warning,
            // The words are an open set; one that a newer version adds is at least worth a line.
            _ => Level::Note,
        };
        let origin = origin.as_ref().map(ToString::to_string);
        let parts = [origin.as_deref().unwrap_or(""), object, message];
        Self { level, text: join(&parts), hint: hint.clone() }
    }
}

impl From<&Problem> for Line {
    fn from(problem: &Problem) -> Self {
        let Problem { origin, severity, object, message, hint } = problem;
        let level = match severity {
            Severity::Error => Level::Error,
            Severity::Warning => Level::Warning,
        };
        Self { level, text: join(&[&origin.to_string(), object, message]), hint: hint.clone() }
    }
}

fn join(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(": ")
}

/// Writes one problem with its hint.
pub(super) fn write_line(page: &mut Page, line: &Line) {
    let Line { level, text, hint } = line;
    page.line([Span::new(&format!("{}: ", level.as_str()), level.tone()), plain(text)]);
    if let Some(hint) = hint {
        page.text(format!("  hint: {hint}"));
    }
}

/// What a repository was found to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Files read.
    pub files: u32,
    /// Workloads found.
    pub workloads: u32,
    /// Pools found.
    pub pools: u32,
    /// Sources whose size is not known.
    pub unresolved: u32,
    /// Files and documents that are no input.
    pub skipped: u32,
}

/// Returns every problem in the order given, then the counts.
#[must_use]
pub fn problems_text(problems: &[Problem], tally: Tally, style: &TextStyle) -> String {
    let mut page = Page::new(style);
    for problem in problems {
        write_line(&mut page, &Line::from(problem));
    }
    page.gap();
    let Tally { files, workloads, pools, unresolved, skipped } = tally;
    let mut held = vec![count(workloads, "workload"), count(pools, "pool")];
    if unresolved > 0 {
        held.push(format!("{unresolved} unresolved"));
    }
    if skipped > 0 {
        held.push(format!("{skipped} skipped"));
    }
    page.text(format!("{}: {}", count(files, "file"), held.join(", ")));
    let (errors, warnings) = totals(problems);
    let tone = match (errors, warnings) {
        (0, 0) => Tone::Create,
        (0, _) => Tone::Warning,
        _ => Tone::Delete,
    };
    let text = format!("{}, {}.", count(errors, "error"), count(warnings, "warning"));
    page.line([Span::new(&text, tone)]);
    page.finish()
}

/// Returns the problems and counts as JSON.
#[must_use]
pub fn problems_json(problems: &[Problem], tally: Tally) -> Value {
    let Tally { files, workloads, pools, unresolved, skipped } = tally;
    let (errors, warnings) = totals(problems);
    let rows: Vec<Value> = problems.iter().map(problem_json).collect();
    json!({
        "valid": errors == 0,
        "error_count": errors,
        "warning_count": warnings,
        "files": files,
        "workloads": workloads,
        "pools": pools,
        "unresolved": unresolved,
        "skipped": skipped,
        "diagnostics": rows,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let Problem { origin, severity, object, message, hint } = problem;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    json!({
        "severity": severity,
        "file": origin.file,
        "line": origin.line,
        "object": object,
        "message": message,
        "hint": hint,
    })
}

fn totals(problems: &[Problem]) -> (u32, u32) {
    let of = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
    let n = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    (n(of(Severity::Error)), n(of(Severity::Warning)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Origin;

    fn problem(line: u32, severity: Severity, object: &str, hint: Option<&str>) -> Problem {
        Problem {
            origin: Origin::new("clusters/prod/api.yaml", line),
            severity,
            object: object.to_owned(),
            message: "memory request `2G1` is not a quantity".to_owned(),
            hint: hint.map(str::to_owned),
        }
    }

    #[test]
    fn each_problem_has_its_place_and_the_counts_come_last() {
        let problems = [
            problem(31, Severity::Error, "Deployment web/api", Some("write 2Gi or 2G")),
            problem(0, Severity::Warning, "", None),
        ];
        let tally = Tally { files: 2, workloads: 1, pools: 0, unresolved: 0, skipped: 3 };
        insta::assert_snapshot!(problems_text(&problems, tally, &TextStyle::default()), @r"
        error: clusters/prod/api.yaml:31: Deployment web/api: memory request `2G1` is not a quantity
          hint: write 2Gi or 2G
        warning: clusters/prod/api.yaml: memory request `2G1` is not a quantity

        2 files: 1 workload, 0 pools, 3 skipped
        1 error, 1 warning.
        ");
        let json = problems_json(&problems, tally);
        assert_eq!(json["valid"], false);
        assert_eq!(json["diagnostics"][0]["line"], 31);
        assert_eq!(problems_json(&[], tally)["valid"], true);
    }

    #[test]
    fn names_from_a_repository_cannot_add_lines() {
        let hostile = problem(1, Severity::Error, "x\nerror: forged\u{1b}[2K", None);
        let text = problems_text(&[hostile], Tally::default(), &TextStyle::default());
        assert_eq!(text.lines().filter(|line| line.starts_with("error")).count(), 1);
        assert!(!text.contains('\u{1b}'));
    }
}
