//! What a change causes, apart from what was pending without it, in words.
//!
//! Invariant: the changes and the dollars of one sentence are of the same thing. What was pending
//! without the change is what the other revision would do, of which this one may take a part back.

use super::amount::{amount, count, signed_dollars};
use super::page::{Page, Span, Tone, Verbosity, plain};
use crate::ids::Address;
use crate::plan::wire::{ComparedWorkload, Comparison, workload_key};
use crate::units::MicroUsd;

/// Most rows, changes taken back and workloads that the text names.
const NAMED_MAX: usize = 20;
/// Hex digits of a commit that tell it apart at a glance.
const COMMIT_SHOWN: usize = 7;

/// Returns what this revision is compared with.
pub(super) fn against(found: &Comparison) -> String {
    let Comparison { revision, commit, .. } = found;
    let commit: String = commit.iter().flat_map(|c| c.chars().take(COMMIT_SHOWN)).collect();
    if commit.is_empty() || revision.starts_with(&commit) {
        return revision.clone();
    }
    format!("{revision}, {commit}")
}

/// Returns how many changes this revision causes, and their price.
pub(super) fn caused(found: &Comparison) -> String {
    let taken_back = match number(found.withdrawn.len()) {
        0 => String::new(),
        n => format!(", {} taken back", count(n, "pending one")),
    };
    let n = count(number(found.caused.len()), "change");
    format!("{n}{taken_back}, {}", monthly(found.hourly_caused))
}

/// Returns how many changes were pending without this revision, their price, and what becomes of
/// them.
pub(super) fn pending(found: &Comparison) -> String {
    let (stay, gone) = (number(found.pending.len()), number(found.withdrawn.len()));
    let all = count(stay.saturating_add(gone), "change");
    let price = monthly(found.hourly_pending);
    match (stay, gone) {
        (_, 0) => format!("{all}, {price}"),
        (0, _) => format!("{all}, {price}; this revision takes all of them back"),
        (_, _) => format!("{all}, {price}; this revision takes {gone} of them back"),
    }
}

/// Returns in what the pods of a workload differ; `arrow` stands between before and after.
pub(super) fn pods(row: &ComparedWorkload, arrow: &str) -> String {
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
pub(super) fn write(page: &mut Page, found: &Comparison, verbosity: Verbosity) {
    page.gap();
    let title = format!("Caused by this change (against {}): ", against(found));
    page.line([Span::new(&title, Tone::Strong), plain(caused(found))]);
    if verbosity == Verbosity::Full {
        names(page, &found.caused);
    }
    if verbosity != Verbosity::Summary {
        for row in found.workloads.iter().take(NAMED_MAX) {
            let place = row.origin.as_ref().map_or_else(String::new, |at| format!("  {at}"));
            page.line([
                plain(format!("  {}: {}", workload_key(&row.workload), pods(row, "->"))),
                Span::new(&place, Tone::Faint),
            ]);
        }
        rest(page, found.workloads.len(), "workload");
    }
    page.text(format!("Pending without it: {}", pending(found)));
    if verbosity == Verbosity::Full {
        names(page, &found.pending);
    }
    if verbosity != Verbosity::Summary {
        for words in found.withdrawn.iter().take(NAMED_MAX) {
            page.text(format!("  taken back: {words}"));
        }
        rest(page, found.withdrawn.len(), "change");
    }
}

fn names(page: &mut Page, rows: &[Address]) {
    if rows.is_empty() {
        return;
    }
    let shown = rows.iter().take(NAMED_MAX).map(|address| plain(address.as_str()));
    page.items(2, shown.collect());
    rest(page, rows.len(), "row");
}

fn rest(page: &mut Page, all: usize, what: &str) {
    if let Some(more) = all.checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        page.text(format!("  and {} more", count(number(more), what)));
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
    use crate::ids::{Origin, WorkloadId, WorkloadKind};
    use crate::plan::Plan;
    use crate::plan::wire::Amount;
    use crate::render::fixture::plan;
    use crate::render::page::TextStyle;

    /// A plan of one caused and one pending change, of which another one was taken back.
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
            hourly_pending: MicroUsd(96_000),
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
    fn every_view_tells_what_the_change_causes_and_names_what_it_takes_back() {
        let plan = compared();
        let caused = "1 change, 1 pending one taken back, -$73.00/mo";
        let pending = "2 changes, +$70.08/mo; this revision takes 1 of them back";
        for verbosity in [Verbosity::Full, Verbosity::Concise, Verbosity::Summary] {
            let text = crate::render::text(&plan, &TextStyle { verbosity, ..TextStyle::default() });
            let title = "Caused by this change (against main, 0123456): ";
            assert!(text.contains(&format!("{title}{caused}\n")), "{text}");
            assert!(text.contains(&format!("Pending without it: {pending}\n")), "{text}");
            let is_long = verbosity != Verbosity::Summary;
            assert_eq!(text.contains("taken back: ec2_instance.x[\"0\"]: launch m5"), is_long);
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
    fn annotations_mark_only_what_the_change_causes() {
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
        let problems = plan.capacity.diagnostics.iter().map(Comparison::problem);
        comparison.problems_pending = problems.collect();
        let errors = plan.capacity.diagnostics.iter().filter(|d| d.severity == "error").count();
        let checks = plan.checks.iter().filter(|check| check.status != "pass").count();
        assert_eq!(marks(&plan), errors + checks, "{}", crate::render::github(&plan));
        plan.capacity.comparison = None;
        assert!(marks(&plan) > errors + checks);
    }
}
