//! Text about changes that a revision causes, and about changes that were pending without it.
//!
//! Invariant: the changes and the dollars of one sentence concern the same rows. Pending changes
//! are those of the other revision; this revision may withdraw a part of them.

use super::amount::{amount, count, signed_dollars};
use super::overlay_prices;
use super::text_page::{StyledText, TextPage, Tone, Verbosity, plain};
use crate::model::ids::Address;
use crate::model::units::MicroUsd;
use crate::plan::wire::{ComparedWorkload, Comparison, workload_key};

/// Most rows, withdrawn changes and workloads in the text.
const NAMED_MAX: usize = 20;
/// Displayed hex digits of a commit.
const COMMIT_SHOWN: usize = 7;

/// Returns the revision that this one is compared with.
pub(super) fn compared_with(found: &Comparison) -> String {
    compared_names(found).join(", ")
}

/// Returns the name of the revision that this one is compared with, and its commit unless that is
/// the name.
pub(super) fn compared_names(found: &Comparison) -> Vec<String> {
    let Comparison { revision, commit, .. } = found;
    let commit: String = commit.iter().flat_map(|c| c.chars().take(COMMIT_SHOWN)).collect();
    if commit.is_empty() || revision.starts_with(&commit) {
        return vec![revision.clone()];
    }
    vec![revision.clone(), commit]
}

/// Returns the number of changes that this revision causes, and their price.
pub(super) fn caused_text(found: &Comparison) -> String {
    let taken_back = match number(found.withdrawn.len()) {
        0 => String::new(),
        n => format!(", {} withdrawn", count(n, "pending change")),
    };
    let n = count(number(found.caused.len()), "change");
    format!("{n}{taken_back}, {}", monthly(found.hourly_caused))
}

/// Returns the words before [`pending_text`], for a revision in the form of the view.
pub(super) fn pending_title(revision: &str) -> String {
    format!("Already planned on {revision}, not applied yet")
}

/// Returns the number of changes that were pending without this revision, their price, and how many
/// are withdrawn.
pub(super) fn pending_text(found: &Comparison) -> String {
    let (stay, withdrawn) = (number(found.pending.len()), number(found.withdrawn.len()));
    let all = count(stay.saturating_add(withdrawn), "change");
    let price = monthly(found.hourly_pending);
    match (stay, withdrawn) {
        (_, 0) => format!("{all}, {price}"),
        (0, _) => format!("{all}, {price}; this change makes all of them unnecessary"),
        (_, _) => format!("{all}, {price}; this change makes {withdrawn} of them unnecessary"),
    }
}

/// Returns the difference in the pods of a workload; `arrow` separates before and after.
pub(super) fn pods_text(row: &ComparedWorkload, arrow: &str) -> String {
    let ComparedWorkload { before, after, requests_before, requests_after, .. } = row;
    let number = if before == after {
        count(*after, "pod")
    } else {
        format!("{before} {arrow} {}", count(*after, "pod"))
    };
    match (requests_before, requests_after) {
        (Some(before), Some(after)) => {
            format!("{number}, each asks for {} {arrow} {}", amount(before), amount(after))
        }
        (_, _) => number,
    }
}

/// Writes the comparison.
pub(super) fn write(page: &mut TextPage, found: &Comparison, verbosity: Verbosity) {
    page.gap();
    let title = format!("Caused by this change (against {}): ", compared_with(found));
    page.line([StyledText::new(&title, Tone::Strong), plain(caused_text(found))]);
    if let Some(overlays) = overlay_prices::comparison_text(found) {
        page.text(format!("  {overlays}"));
    }
    if verbosity.has_details() {
        write_addresses(page, &found.caused);
    }
    if verbosity != Verbosity::Summary {
        for row in found.workloads.iter().take(NAMED_MAX) {
            let place = row.origin.as_ref().map_or_else(String::new, |at| format!("  {at}"));
            page.line([
                plain(format!("  {}: {}", workload_key(&row.workload), pods_text(row, "->"))),
                StyledText::new(&place, Tone::Faint),
            ]);
        }
        write_rest(page, found.workloads.len(), "workload");
    }
    let title = pending_title(&found.revision);
    page.text(format!("{title}: {}", pending_text(found)));
    if verbosity.has_details() {
        write_addresses(page, &found.pending);
    }
    if verbosity != Verbosity::Summary {
        for words in found.withdrawn.iter().take(NAMED_MAX) {
            page.text(format!("  withdrawn: {words}"));
        }
        write_rest(page, found.withdrawn.len(), "change");
    }
}

fn write_addresses(page: &mut TextPage, rows: &[Address]) {
    if rows.is_empty() {
        return;
    }
    let shown = rows.iter().take(NAMED_MAX).map(|address| plain(address.as_str()));
    page.items(2, shown.collect());
    write_rest(page, rows.len(), "row");
}

fn write_rest(page: &mut TextPage, all: usize, noun: &str) {
    if let Some(more) = all.checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        page.text(format!("  and {} more", count(number(more), noun)));
    }
}

fn monthly(price: MicroUsd) -> String {
    format!("{}/mo", signed_dollars(price.per_month(), 2))
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::{Origin, WorkloadId, WorkloadKind};
    use crate::plan::Plan;
    use crate::plan::wire::{Amount, CheckStatus, DiagnosticSeverity};
    use crate::render::text_page::TextStyle;
    use crate::testing::sample_plan::plan;

    /// Returns a plan with one caused, one pending and one withdrawn change.
    fn compared() -> Plan {
        let mut plan = plan();
        let rows = &plan.resource_changes;
        let asks = |cpu_milli| Some(Amount { cpu_milli, ..Amount::default() });
        let (namespace, name) = ("web".into(), "api".into());
        plan.capacity.comparison = Some(Comparison {
            revision: "main".into(),
            commit: Some("0123456789".into()),
            digest: plan.capacity.digest.clone(),
            caused: vec![rows[0].address.clone()],
            pending: vec![rows[1].address.clone()],
            withdrawn: vec!["ec2_instance.x[\"0\"]: launch m5.large".into()],
            hourly_after: MicroUsd(0),
            hourly_caused: MicroUsd(-100_000),
            hourly_caused_list: None,
            hourly_pending: MicroUsd(96_000),
            overlays: Vec::new(),
            workloads: vec![ComparedWorkload {
                workload: WorkloadId { namespace, name, kind: WorkloadKind::Deployment },
                origin: Some(Origin::new("api.yaml", 3)),
                before: 5,
                after: 5,
                requests_before: asks(100),
                requests_after: asks(200),
            }],
            unplaced_pending: Vec::new(),
            problems_pending: Vec::new(),
        });
        plan
    }

    #[test]
    fn every_view_has_caused_and_withdrawn_changes() {
        let plan = compared();
        let caused = "1 change, 1 pending change withdrawn, -$73.00/mo";
        let pending = "2 changes, +$70.08/mo; this change makes 1 of them unnecessary";
        for verbosity in [Verbosity::Full, Verbosity::Concise, Verbosity::Summary] {
            let text = crate::render::text(&plan, &TextStyle { verbosity, ..TextStyle::default() });
            let title = "Caused by this change (against main, 0123456): ";
            assert!(text.contains(&format!("{title}{caused}\n")), "{text}");
            assert!(
                text.contains(&format!("Already planned on main, not applied yet: {pending}\n")),
                "{text}"
            );
            let is_long = verbosity != Verbosity::Summary;
            assert_eq!(text.contains("withdrawn: ec2_instance.x[\"0\"]: launch m5"), is_long);
            assert_eq!(
                text.contains("web/Deployment/api: 5 pods, each asks for cpu 100m"),
                is_long
            );
        }
        for view in [
            crate::render::markdown(&plan, crate::render::MarkdownStyle::default()),
            crate::render::html(&plan),
        ] {
            assert!(view.contains(caused) && view.contains(pending), "{view}");
            assert!(view.contains("launch m5.large") && view.contains("5 pods, each asks for"));
        }
        let stream = crate::render::stream(&plan);
        assert!(stream.contains("\"type\":\"comparison\"") && stream.contains(caused), "{stream}");
        let github = crate::render::github(&plan);
        assert!(github.contains(&format!("against main, 0123456): {caused}\n")), "{github}");
    }

    #[test]
    fn annotations_cover_only_caused_changes() {
        let marks = |plan: &Plan| {
            let text = crate::render::github(plan);
            text.lines().filter(|line| line.starts_with("::")).count()
        };
        let mut plan = compared();
        let all = plan.resource_changes.iter().map(|row| row.address.clone()).collect();
        let comparison = plan.capacity.comparison.as_mut().expect("compared");
        (comparison.caused, comparison.pending) = (Vec::new(), all);
        let unplaced = plan.capacity.unschedulable.iter().map(|row| row.workload.clone());
        comparison.unplaced_pending = unplaced.collect();
        let problems = plan.capacity.diagnostics.iter().map(Comparison::problem_key);
        comparison.problems_pending = problems.collect();
        let errors = plan
            .capacity
            .diagnostics
            .iter()
            .filter(|d| d.severity == DiagnosticSeverity::Error)
            .count();
        let checks = plan.checks.iter().filter(|check| check.status != CheckStatus::Pass).count();
        assert_eq!(marks(&plan), errors + checks, "{}", crate::render::github(&plan));
        plan.capacity.comparison = None;
        assert!(marks(&plan) > errors + checks);
    }
}
