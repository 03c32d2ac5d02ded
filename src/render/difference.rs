//! Text of the difference between two plans, and of drift.

use super::amount::{hourly, signed_dollars};
use super::detail::annotation_value;
use super::overlay_prices;
use super::problems::write_incompleteness;
use super::reason;
use super::row::rows;
use super::text_page::{StyledText, TextPage, TextStyle, Tone, plain};
use crate::model::reason::drifted_field_text;
use crate::plan::wire::{DiagnosticSeverity, DriftedField};
use crate::plan::{
    AnnotationDifference, ConditionDifference, Difference, DifferenceRow, OverlayDifference, Plan,
    PlanOverview, manual_changes,
};

/// Returns the differences between two plans, in the form of `diff`.
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
        found.preconditions.iter().for_each(|row| write_conditions(&mut page, row));
    }
    if !found.annotations.is_empty() {
        page.title("Annotations of new nodes");
        found.annotations.iter().for_each(|row| write_annotations(&mut page, row));
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
    if let Some(overlays) = &found.overlays {
        write_overlays(&mut page, found, overlays);
    }
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

fn write_conditions(page: &mut TextPage, row: &ConditionDifference) {
    page.line([plain(format!("  {}", row.address))]);
    for (conditions, symbol, tone) in [(&row.a, "-", Tone::Delete), (&row.b, "+", Tone::Create)] {
        for condition in conditions {
            let text = reason::condition(condition);
            page.line([StyledText::new(&format!("    {symbol} {text}"), tone)]);
        }
    }
}

fn write_annotations(page: &mut TextPage, row: &AnnotationDifference) {
    let AnnotationDifference { pool, a, b } = row;
    page.line([plain(format!("  pool {pool}"))]);
    for (annotations, symbol, tone) in [(a, "-", Tone::Delete), (b, "+", Tone::Create)] {
        for (key, value) in annotations {
            let text = format!("    {symbol} {key} = {}", annotation_value(value));
            page.line([StyledText::new(&text, tone)]);
        }
    }
}

/// Writes the overlays that set prices of either plan, and the cost without them.
fn write_overlays(page: &mut TextPage, found: &Difference, overlays: &OverlayDifference) {
    let OverlayDifference { a, b, both } = overlays;
    page.text("Prices set by NodeOverlay");
    for (names, symbol, tone) in
        [(a, "-", Tone::Delete), (b, "+", Tone::Create), (both, "=", Tone::Plain)]
    {
        if !names.is_empty() {
            let names = overlay_prices::names(names);
            page.line([StyledText::new(&format!("  {symbol} {names}"), tone)]);
        }
    }
    let (before, after) = (found.a.hourly_list(), found.b.hourly_list());
    let unlisted = match (found.a.unlisted(), found.b.unlisted()) {
        (0, 0) => String::new(),
        (a, b) => format!("   nodes without a list price {a} -> {b}"),
    };
    page.text(format!(
        "  at list prices {} -> {} once applied ({}/mo){unlisted}",
        hourly(before),
        hourly(after),
        signed_dollars((after - before).per_month(), 2)
    ));
}

/// Title of differences with an unknown cause. The cluster does not reveal it.
const DIFFERENT: &str = "Different from the repository: perhaps a commit that is not applied yet, pending pods, or scaling by hand";

/// Returns the changes made outside Git, in the words of Terraform.
pub fn drift_text(report: &Plan, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    write_incompleteness(&mut page, report);
    page.gap();
    let different: Vec<_> = report
        .capacity
        .diagnostics
        .iter()
        .filter(|d| d.severity == DiagnosticSeverity::Behind)
        .collect();
    let drifted = Plan { resource_changes: report.resource_drift.clone(), ..report.clone() };
    let rows = rows(&drifted);
    if rows.is_empty() {
        page.text("No changes. No node or group was changed outside of Git.");
    } else {
        page.line([StyledText::new("Note: Objects have changed outside of Git", Tone::Strong)]);
        page.gap();
    }
    for row in &rows {
        for DriftedField { field, is, declared } in
            row.explain.map(manual_changes).unwrap_or_default()
        {
            let text = drifted_field_text(&field, &is, &declared);
            let why = format!("{}: {text}", row.resource.address);
            page.line([StyledText::new("  ~ ", Tone::Change), plain(why)]);
        }
    }
    if !different.is_empty() {
        page.title(DIFFERENT);
    }
    for diagnostic in different {
        let place = diagnostic.origin.as_ref().map_or_else(String::new, |o| format!("  {o}"));
        page.line([
            plain(format!("    {}: {}", diagnostic.object, diagnostic.message)),
            StyledText::new(&place, Tone::Faint),
        ]);
    }
    page.gap();
    page.text("This is a report: it cannot be applied. `fleetwright plan` shows the changes.");
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::MicroUsd;
    use crate::plan::difference;
    use crate::plan::wire::{Condition, ListCost};
    use crate::testing::sample_plan::plan;

    #[test]
    fn conditions_have_the_words_of_the_plan() {
        let (a, mut b) = (plan(), plan());
        for precondition in &mut b.capacity.base.preconditions {
            if let Condition::KeyUnused { key, .. } = &mut precondition.condition {
                *key = "77".to_owned();
            }
        }
        let text = difference_text(&difference(&a, &b), &TextStyle::default());
        let (_, conditions) = text.split_once("\nConditions\n").expect("conditions differ");
        let (conditions, _) = conditions.split_once("\n\n").expect("totals follow");
        assert_eq!(
            conditions,
            "  ec2_instance.web[\"9\"]\n    - no instance of pool web has key 9\n    + no instance of \
             pool web has key 77"
        );
        let same = difference_text(&difference(&a, &a), &TextStyle::default());
        assert!(!same.contains("Conditions"), "{same}");
    }

    #[test]
    fn different_annotations_are_listed_and_escaped() {
        let annotated = |team: &str| {
            let mut plan = plan();
            let annotations = [("team".to_owned(), team.to_owned())].into();
            plan.capacity.node_annotations.insert("web".into(), annotations);
            plan
        };
        let text = |a: &Plan, b: &Plan| difference_text(&difference(a, b), &TextStyle::default());
        let found = text(&annotated("shop"), &annotated("a\nb"));
        let expected =
            "\nAnnotations of new nodes\n  pool web\n    - team = shop\n    + team = a\\nb\n";
        assert!(found.contains(expected), "{found}");
        // The beginning of a long value is the same, its digest is not.
        let long = |end: &str| annotated(&format!("{}{end}", "x".repeat(200)));
        let found = text(&long("a"), &long("b"));
        let lines: Vec<&str> = found.lines().filter(|line| line.contains(" (SHA-256 ")).collect();
        assert!(lines.len() == 2 && lines[0].len() < 160, "{found}");
        assert_ne!(lines[0].replace("- team", ""), lines[1].replace("+ team", ""));
        assert!(!text(&long("a"), &long("a")).contains("Annotations"));
    }

    #[test]
    fn overlays_of_either_plan_are_named_below_the_cost() {
        let (mut a, mut b) = (plan(), plan());
        let text = |a: &Plan, b: &Plan| difference_text(&difference(a, b), &TextStyle::default());
        assert!(!text(&a, &b).contains("Prices set by"));
        let list = |overlays: &[&str], hourly_after: i64, unlisted: u32| {
            let overlays = overlays.iter().map(|name| (*name).to_owned()).collect();
            let (hourly_before, hourly_after) = (MicroUsd::ZERO, MicroUsd(hourly_after));
            Some(ListCost { hourly_before, hourly_after, overlays, unlisted })
        };
        a.capacity.cost.list = list(&["fuse", "old"], 1_000_000, 0);
        b.capacity.cost.list = list(&["deal", "fuse"], 1_500_000, 1);
        let found = text(&a, &b);
        let expected = "\nPrices set by NodeOverlay\n  - old\n  + deal\n  = fuse\n  at list prices \
                        $1.0000/h -> $1.5000/h once applied (+$365.00/mo)   nodes without a list \
                        price 0 -> 1\n";
        assert!(found.contains(expected), "{found}");
        b.capacity.cost.list = None;
        let found = text(&a, &b);
        assert!(
            found.contains("\nPrices set by NodeOverlay\n  - fuse, old\n  at list prices $1.00"),
            "{found}"
        );
    }
}
