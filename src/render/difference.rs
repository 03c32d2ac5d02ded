//! Text of the difference between two plans, and of drift.

use super::amount::{hourly, signed_dollars};
use super::problems::{ProblemLine, write_line};
use super::row::rows;
use super::text_page::{StyledText, TextPage, TextStyle, Tone, plain};
use super::{reason, table};
use crate::plan::wire::DiagnosticSeverity;
use crate::plan::{Difference, DifferenceRow, Plan, PlanOverview};

/// Returns the differences between two plans, in the form of `diff`.
#[must_use]
pub fn difference_text(found: &Difference, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    page.line([StyledText::new(&format!("--- {}", plan_title(&found.a)), Tone::Delete)]);
    page.line([StyledText::new(&format!("+++ {}", plan_title(&found.b)), Tone::Create)]);
    page.gap();
    for row in &found.rows {
        write_row(&mut page, row);
    }
    if !found.preconditions.is_empty() {
        page.title("Conditions");
        found.preconditions.iter().for_each(|row| write_row(&mut page, row));
    }
    page.gap();
    let [add, change, destroy] = found.a.changes;
    let [add_b, change_b, destroy_b] = found.b.changes;
    page.text(format!(
        "to add {add} -> {add_b}   to change {change} -> {change_b}   to destroy {destroy} -> {destroy_b}"
    ));
    let delta = found.b.hourly_after - found.a.hourly_after;
    page.text(format!(
        "{} -> {} once applied ({}/mo)   unschedulable {} -> {}",
        hourly(found.a.hourly_after),
        hourly(found.b.hourly_after),
        signed_dollars(delta.per_month(), 2),
        found.a.unschedulable,
        found.b.unschedulable
    ));
    let verdict = match (found.same_decisions, found.same_plan) {
        (true, true) => "The same plan: an approval of one covers the other.",
        (true, false) => {
            "The same decisions, of another commit or over another world: a digest covers both, a \
             signed approval does not."
        }
        (false, _) => {
            "The plans do not decide the same: an approval of one does not cover the other."
        }
    };
    page.line([StyledText::new(verdict, Tone::Strong)]);
    page.finish()
}

fn plan_title(side: &PlanOverview) -> String {
    let digest: String = side.digest.as_str().chars().take(19).collect();
    let commit = side.commit.as_deref().unwrap_or("no commit");
    format!("plan {digest} of {commit}, made for {}", side.timestamp)
}

fn write_row(page: &mut TextPage, row: &DifferenceRow) {
    page.line([plain(format!("  {}", row.address))]);
    for (text, symbol, tone) in [(&row.a, "-", Tone::Delete), (&row.b, "+", Tone::Create)] {
        let text = text.as_deref().unwrap_or("nothing");
        page.line([StyledText::new(&format!("    {symbol} {text}"), tone)]);
    }
}

/// Returns the changes made outside Git, in the words of Terraform.
#[must_use]
pub fn drift_text(report: &Plan, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    let behind: Vec<_> = report
        .capacity
        .diagnostics
        .iter()
        .filter(|d| d.severity == DiagnosticSeverity::Behind)
        .collect();
    let drifted = Plan { resource_changes: report.resource_drift.clone(), ..report.clone() };
    let rows = rows(&drifted);
    if rows.is_empty() {
        page.text("No changes. Nothing moved outside of Git.");
    } else {
        page.line([StyledText::new("Note: Objects have changed outside of Git", Tone::Strong)]);
        page.gap();
    }
    for row in &rows {
        let why = row.explain.and_then(|row| row.retire_reason.as_ref().or(row.drift.as_ref()));
        let why = why.map(reason::retire);
        let why = why.unwrap_or_else(|| table::why(row));
        page.line([
            StyledText::new("  ~ ", Tone::Change),
            plain(format!("{}: {why}", row.resource.address)),
        ]);
    }
    if !behind.is_empty() {
        page.title("Behind the repository: commits that are not applied yet, and pending pods");
    }
    for diagnostic in behind {
        let place = diagnostic.origin.as_ref().map_or_else(String::new, |o| format!("  {o}"));
        page.line([
            plain(format!("    {}: {}", diagnostic.object, diagnostic.message)),
            StyledText::new(&place, Tone::Faint),
        ]);
    }
    for diagnostic in
        report.capacity.diagnostics.iter().filter(|d| d.severity == DiagnosticSeverity::Error)
    {
        write_line(&mut page, &ProblemLine::from(diagnostic));
    }
    page.gap();
    page.text("This is a report: it cannot be applied. `fleetwright plan` shows the changes.");
    page.finish()
}
