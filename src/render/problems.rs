//! Problems of inputs as lines: severity, location, object, message and hint.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::amount::count;
use super::summary_line::first_line;
use super::text_page::{StyledText, TextPage, TextStyle, Tone, Verbosity, plain};
use crate::model::code::Code;
use crate::model::desired::{CUSTOM_KIND, OTHER_KIND, Problem, Severity, Skipped};
use crate::plan::wire::{Diagnostic, DiagnosticSeverity};
use crate::plan::{Plan, is_incomplete};

/// The level of a line, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProblemLevel {
    Error,
    Warning,
    Note,
}

impl ProblemLevel {
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

/// A problem as a line of text.
#[derive(Debug)]
pub(super) struct ProblemLine {
    pub(super) level: ProblemLevel,
    text: String,
    /// The message without names, by which lines are grouped.
    cause: String,
    code: Option<String>,
    hint: Option<String>,
}

impl From<&Diagnostic> for ProblemLine {
    fn from(diagnostic: &Diagnostic) -> Self {
        let Diagnostic { severity, origin, object, message, hint, code } = diagnostic;
        let level = match severity {
            DiagnosticSeverity::Error => ProblemLevel::Error,
            DiagnosticSeverity::Warning => ProblemLevel::Warning,
            // The set of severities is open; an unknown severity is shown as a note.
            DiagnosticSeverity::Behind
            | DiagnosticSeverity::Note
            | DiagnosticSeverity::Other(_) => ProblemLevel::Note,
        };
        let origin = origin.as_ref().map(ToString::to_string);
        let parts = [origin.as_deref().unwrap_or(""), object, message];
        let (text, cause) = (join(&parts), cause_of(message));
        Self { level, text, cause, code: code.clone(), hint: hint.clone() }
    }
}

impl From<&Problem> for ProblemLine {
    fn from(problem: &Problem) -> Self {
        let Problem { origin, severity, object, message, hint, code, other: _ } = problem;
        let level = match severity {
            Severity::Error => ProblemLevel::Error,
            Severity::Warning => ProblemLevel::Warning,
        };
        let text = join(&[&origin.to_string(), object, message]);
        let (cause, code) = (cause_of(message), code.map(|code| code.to_string()));
        Self { level, text, cause, code, hint: hint.clone() }
    }
}

/// Returns a message without the names and numbers in it: text in backticks, and words with a digit,
/// a slash or a colon.
fn cause_of(message: &str) -> String {
    let outside = message.split('`').step_by(2).collect::<Vec<_>>().join("…");
    let is_name = |word: &str| word.contains(|c: char| c.is_ascii_digit() || "/:".contains(c));
    let words = outside.split_whitespace().map(|word| if is_name(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Most lines of one cause. The others are counted.
const SAME_CAUSE_MAX: usize = 4;

/// Writes problems in their order. Problems of one cause stand together where they are many, with
/// their hint once; `-v` lists all of them.
pub(super) fn write_lines(page: &mut TextPage, lines: &[ProblemLine], verbosity: Verbosity) {
    let mut causes: BTreeMap<(ProblemLevel, &Option<String>, &str), Vec<&ProblemLine>> =
        BTreeMap::new();
    let key = |line| {
        let ProblemLine { level, code, cause, .. }: &ProblemLine = line;
        (*level, code, cause.as_str())
    };
    for line in lines {
        causes.entry(key(line)).or_default().push(line);
    }
    for line in lines {
        let same = causes.get(&key(line)).map(Vec::as_slice).unwrap_or_default();
        if verbosity == Verbosity::Everything || same.len() <= SAME_CAUSE_MAX + 1 {
            write_line(page, line);
            continue;
        }
        // The first line stands for its cause.
        let is_first = same.first().is_some_and(|first| std::ptr::eq(*first, line));
        if !is_first {
            continue;
        }
        for line in &same[..SAME_CAUSE_MAX] {
            write_text(page, line);
        }
        page.text(format!(
            "  and {} more of this cause (listed with -v)",
            same.len() - SAME_CAUSE_MAX
        ));
        for hint in shared_hints(same) {
            write_hint(page, Some(&hint));
        }
    }
}

/// Returns the hints of problems of one cause. Hints about placeholders that differ only in the
/// name of the placeholder are one hint with every name.
fn shared_hints(same: &[&ProblemLine]) -> Vec<String> {
    let is_placeholder =
        |line: &ProblemLine| line.code.as_deref() == Some(Code::PlaceholderUnresolved.as_str());
    if !same.iter().any(|line| is_placeholder(line)) {
        return same.iter().find_map(|line| line.hint.clone()).into_iter().collect();
    }
    let mut names: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for hint in same.iter().filter_map(|line| line.hint.as_deref()) {
        let (before, rest) = hint.split_once('`').unwrap_or((hint, ""));
        let (name, after) = rest.split_once('`').unwrap_or((rest, ""));
        let names = names.entry((before, after)).or_default();
        names.extend(Some(name).filter(|name| !name.is_empty()));
    }
    let hint = |((before, after), names): (&(&str, &str), &BTreeSet<&str>)| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("{before}{}{after}", names.join(", "))
    };
    names.iter().map(hint).collect()
}

/// Returns the first line of an incomplete plan and the errors of its inputs; empty if nothing is
/// missing.
pub fn incompleteness_text(plan: &Plan, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    write_incompleteness(&mut page, plan);
    page.finish()
}

/// Writes the first line of an incomplete plan and the errors of its inputs.
pub(super) fn write_incompleteness(page: &mut TextPage, plan: &Plan) {
    if let Some(line) = first_line(plan).filter(|_| is_incomplete(plan)) {
        page.line([StyledText::new(&line, Tone::Warning)]);
    }
    let errors = plan.capacity.diagnostics.iter();
    let errors = errors.filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
    errors.for_each(|diagnostic| write_line(page, &ProblemLine::from(diagnostic)));
}

fn join(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(": ")
}

/// Returns a message with its code, as `MESSAGE [CODE]`.
pub(super) fn with_code<'a>(message: &'a str, code: Option<&str>) -> Cow<'a, str> {
    code.map_or(Cow::Borrowed(message), |code| Cow::Owned(format!("{message} [{code}]")))
}

/// Writes one problem with its code and hint.
pub(super) fn write_line(page: &mut TextPage, line: &ProblemLine) {
    write_text(page, line);
    write_hint(page, line.hint.as_deref());
}

fn write_text(page: &mut TextPage, line: &ProblemLine) {
    let ProblemLine { level, text, code, .. } = line;
    let text = with_code(text, code.as_deref());
    page.line([StyledText::new(&format!("{}: ", level.as_str()), level.tone()), plain(&text)]);
}

fn write_hint(page: &mut TextPage, hint: Option<&str>) {
    if let Some(hint) = hint {
        page.text(format!("  hint: {hint}"));
    }
}

/// Counts of the content of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepositoryCounts {
    /// Files read.
    pub files: u32,
    /// Workloads found.
    pub workloads: u32,
    /// Pools found.
    pub pools: u32,
    /// True if the pools are in the cluster, and were not read.
    pub has_unread_pools: bool,
    /// Sources of unknown size, as in a plan.
    pub unresolved: u32,
    /// True if no error reports some source of unknown size.
    pub has_unreported: bool,
    /// Files and documents that are not inputs.
    pub skipped: Vec<Skipped>,
}

/// Most listed reasons; `-v` lists all of them.
const REASONS_MAX: usize = 8;

/// Returns the number of skipped files or documents by reason. Custom kinds come first, because their
/// controllers may make pods; then the most frequent reasons.
fn skipped_line(skipped: &[Skipped], verbosity: Verbosity) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for Skipped { reason, .. } in skipped {
        *counts.entry(reason).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    // The sort is stable: equal counts stay ordered by reason.
    counts.sort_by_key(|(reason, n)| (!reason.starts_with(CUSTOM_KIND), std::cmp::Reverse(*n)));
    let limit = if verbosity == Verbosity::Everything { usize::MAX } else { REASONS_MAX };
    let shown = counts.iter().take(limit).map(|(reason, n)| format!("{n} {reason}"));
    let mut shown: Vec<String> = shown.collect();
    let is_kind = |(reason, _): &(&str, usize)| {
        reason.starts_with(CUSTOM_KIND) || reason.starts_with(OTHER_KIND)
    };
    let (kinds, others): (Vec<_>, Vec<_>) = counts.iter().skip(limit).copied().partition(is_kind);
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let total = |rest: &[(&str, usize)]| number(rest.iter().map(|(_, n)| n).sum());
    if !kinds.is_empty() {
        let (documents, kinds) = (total(&kinds), number(kinds.len()));
        let (documents, kinds) = (count(documents, "document"), count(kinds, "other kind"));
        shown.push(format!("{documents} of {kinds} (listed with -v)"));
    }
    if !others.is_empty() {
        shown.push(format!("{} for other reasons", total(&others)));
    }
    // A skipped file has no line.
    let are_files = skipped.iter().all(|skipped| skipped.origin.line == 0);
    let noun = if are_files { "file" } else { "document" };
    let all = count(number(skipped.len()), noun);
    match counts.as_slice() {
        [(reason, _)] => format!("{all} skipped: {reason}"),
        _ => format!("{all} skipped: {}", shown.join(", ")),
    }
}

/// Returns all problems in the given order, followed by the counts.
pub fn problems_text(problems: &[Problem], tally: &RepositoryCounts, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    let RepositoryCounts { files, workloads, unresolved, has_unreported, skipped, .. } = tally;
    let unread = (*unresolved > 0).then(|| format!("{} not read", count(*unresolved, "source")));
    // Errors make the result incomplete by themselves.
    let unreported = unread.as_ref().filter(|_| *has_unreported);
    if let Some(unread) = unreported {
        page.line([StyledText::new(&format!("Incomplete: {unread}."), Tone::Warning)]);
    }
    let lines: Vec<ProblemLine> = problems.iter().map(ProblemLine::from).collect();
    write_lines(&mut page, &lines, style.verbosity);
    page.gap();
    let mut totals_text = vec![count(*workloads, "workload"), pools_text(tally)];
    totals_text.extend(unread.clone());
    page.text(format!("{}: {}", count(*files, "file"), totals_text.join(", ")));
    if !skipped.is_empty() {
        page.text(skipped_line(skipped, style.verbosity));
    }
    let (errors, warnings) = totals(problems);
    let tone = match (errors, warnings, unreported) {
        (0, 0, None) => Tone::Create,
        (0, _, _) => Tone::Warning,
        _ => Tone::Delete,
    };
    let mut parts = vec![count(errors, "error"), count(warnings, "warning")];
    parts.extend(unreported.cloned());
    let text = format!("{}.", parts.join(", "));
    page.line([StyledText::new(&text, tone)]);
    page.finish()
}

/// Returns the number of pools that were found, and where the others are.
fn pools_text(tally: &RepositoryCounts) -> String {
    match (tally.pools, tally.has_unread_pools) {
        (pools, false) => count(pools, "pool"),
        (0, true) => "pools in the cluster".to_owned(),
        (pools, true) => format!("{}, and more in the cluster", count(pools, "pool")),
    }
}

/// Returns the problems and counts as JSON.
pub fn problems_json(problems: &[Problem], tally: &RepositoryCounts) -> Value {
    let RepositoryCounts {
        files,
        workloads,
        pools,
        has_unread_pools,
        unresolved,
        has_unreported: _,
        skipped,
    } = tally;
    let (errors, warnings) = totals(problems);
    let rows: Vec<Value> = problems.iter().map(problem_json).collect();
    let left_out = skipped.iter().map(|Skipped { origin, reason }| {
        json!({ "file": origin.file, "line": origin.line, "reason": reason })
    });
    json!({
        "valid": errors == 0,
        "error_count": errors,
        "warning_count": warnings,
        "files": files,
        "workloads": workloads,
        "pools": pools,
        "unread_pools": has_unread_pools,
        "unresolved": unresolved,
        "skipped_count": skipped.len(),
        "skipped": left_out.collect::<Vec<Value>>(),
        "diagnostics": rows,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let Problem { origin, severity, object, message, hint, code, other: _ } = problem;
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
        "code": code.map(Code::as_str),
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
    use crate::model::ids::Origin;

    fn problem(line: u32, severity: Severity, object: &str, hint: Option<&str>) -> Problem {
        Problem::new(
            severity,
            Origin::new("clusters/prod/api.yaml", line),
            object,
            "memory request `2G1` is not a quantity",
        )
        .maybe_hint(hint.map(str::to_owned))
    }

    #[test]
    fn code_follows_the_message() {
        let coded = problem(31, Severity::Error, "Deployment web/api", Some("write 2Gi"))
            .code(Code::InvalidQuantity);
        let (counts, style) = (RepositoryCounts::default(), TextStyle::default());
        let text = problems_text(std::slice::from_ref(&coded), &counts, &style);
        assert!(
            text.contains("is not a quantity [invalid-quantity]\n  hint: write 2Gi\n"),
            "{text}"
        );
        assert_eq!(problem_json(&coded)["code"], "invalid-quantity");
    }

    #[test]
    fn problems_have_locations_and_counts_come_last() {
        let problems = [
            problem(31, Severity::Error, "Deployment web/api", Some("write 2Gi or 2G")),
            problem(0, Severity::Warning, "", None),
        ];
        let skip = |line, reason: &str| Skipped {
            origin: Origin::new("a.yaml", line),
            reason: reason.to_owned(),
        };
        let skipped =
            vec![skip(1, "empty document"), skip(2, "kind ConfigMap"), skip(9, "kind ConfigMap")];
        let tally =
            RepositoryCounts { files: 2, workloads: 1, skipped, ..RepositoryCounts::default() };
        insta::assert_snapshot!(problems_text(&problems, &tally, &TextStyle::default()), @r"
        error: clusters/prod/api.yaml:31: Deployment web/api: memory request `2G1` is not a quantity
          hint: write 2Gi or 2G
        warning: clusters/prod/api.yaml: memory request `2G1` is not a quantity

        2 files: 1 workload, 0 pools
        3 documents skipped: 2 kind ConfigMap, 1 empty document
        1 error, 1 warning.
        ");
        let json = problems_json(&problems, &tally);
        assert_eq!(json["valid"], false);
        assert_eq!(json["diagnostics"][0]["line"], 31);
        assert_eq!(json["skipped_count"], 3);
        assert_eq!(
            json["skipped"][2],
            json!({ "file": "a.yaml", "line": 9, "reason": "kind ConfigMap" })
        );
        assert_eq!(problems_json(&[], &tally)["valid"], true);
    }

    #[test]
    fn every_line_has_the_same_number_of_unread_sources() {
        let lines = |has_unreported| {
            let tally =
                RepositoryCounts { unresolved: 3, has_unreported, ..RepositoryCounts::default() };
            let text = problems_text(&[], &tally, &TextStyle::default());
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let total = "0 files: 0 workloads, 0 pools, 3 sources not read";
        let last = "0 errors, 0 warnings, 3 sources not read.";
        assert_eq!(lines(true), ["Incomplete: 3 sources not read.", total, last]);
        assert_eq!(lines(false), [total, "0 errors, 0 warnings."], "errors report all of them");
    }

    #[test]
    fn problems_of_one_cause_stand_together() {
        let warning = |line: u32| {
            let message = format!("container without requests: c{line} (cpu)");
            let origin = Origin::new("apps/api.yaml", line);
            Problem::warning(origin, format!("Pod web/p{line}"), message).hint("set requests")
        };
        let mut problems: Vec<Problem> = (1..=9).map(warning).collect();
        problems.insert(1, problem(1, Severity::Error, "Pod web/x", None));
        let counts = RepositoryCounts::default();
        let lines = |verbosity| {
            let style = TextStyle { verbosity, ..TextStyle::default() };
            let text = problems_text(&problems, &counts, &style);
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let full = lines(Verbosity::Full);
        assert_eq!(full.iter().filter(|line| line.starts_with("warning: ")).count(), 4, "{full:?}");
        assert_eq!(full[4], "  and 5 more of this cause (listed with -v)");
        assert_eq!(full[5], "  hint: set requests");
        assert!(full[6].starts_with("error: "), "{full:?}");
        let all = lines(Verbosity::Everything);
        assert_eq!(all.iter().filter(|line| line.starts_with("warning: ")).count(), 9);
    }

    #[test]
    fn shared_hint_names_every_placeholder() {
        let missing = |name: &str| {
            let message = format!("`metadata.name` needs `{name}`, which has no value");
            Problem::error(Origin::new("a.yaml", 1), "ConfigMap a", message)
                .hint(format!("give `{name}` a value under `vars`"))
                .code(Code::PlaceholderUnresolved)
        };
        let problems: Vec<Problem> = ["B", "A", "B", "C", "A", "B"].map(missing).into();
        let text = problems_text(&problems, &RepositoryCounts::default(), &TextStyle::default());
        let hints: Vec<&str> = text.lines().filter(|line| line.contains("hint: ")).collect();
        assert_eq!(hints, ["  hint: give `A`, `B`, `C` a value under `vars`"], "{text}");
    }

    #[test]
    fn most_frequent_skip_reasons_are_listed() {
        let skip = |n: u32| Skipped {
            origin: Origin::new("a.yaml", n),
            reason: format!("kind {}", n % 10),
        };
        let mut all: Vec<Skipped> = (0..20).map(skip).collect();
        let line = skipped_line(&all, Verbosity::Full);
        assert!(line.starts_with("20 documents skipped: 2 kind 0, 2 kind 1, "), "{line}");
        let custom = format!("{CUSTOM_KIND}Sandbox");
        all.push(Skipped { origin: Origin::new("a.yaml", 9), reason: custom });
        all.extend((1..=2).map(|n| Skipped {
            origin: Origin::new("b.yaml", n),
            reason: format!("templated {n}"),
        }));
        let line = skipped_line(&all, Verbosity::Full);
        assert!(
            line.starts_with("23 documents skipped: 1 custom kind Sandbox, 2 kind 0"),
            "{line}"
        );
        let end = "2 kind 6, 6 documents of 3 other kinds (listed with -v), 2 for other reasons";
        assert!(line.ends_with(end), "{line}");
        let line = skipped_line(&all, Verbosity::Everything);
        assert!(line.ends_with("2 kind 9, 1 templated 1, 1 templated 2"), "{line}");
        let file = Skipped { origin: Origin::new("p.json", 0), reason: "plan or world".to_owned() };
        assert_eq!(skipped_line(&[file], Verbosity::Full), "1 file skipped: plan or world");
    }

    #[test]
    fn repository_names_cannot_add_lines() {
        let hostile = problem(1, Severity::Error, "x\nerror: forged\u{1b}[2K", None);
        let text = problems_text(&[hostile], &RepositoryCounts::default(), &TextStyle::default());
        assert_eq!(text.lines().filter(|line| line.starts_with("error")).count(), 1);
        assert!(!text.contains('\u{1b}'));
    }
}
