//! The part of a page that needs an operator: errors, limitations, unschedulable pods, unread
//! sources and blocked removals. Nothing is rendered for what is in order.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::amount::count;
use super::super::findings::{growth, list};
use super::super::reason::rejection;
use super::super::row::{PlanRow, Symbol};
use super::super::{header, table, unread};
use super::escape::{search_text, text};
use crate::model::code::Code;
use crate::plan::Plan;
use crate::plan::wire::{
    AutoscalerGrowthRow, Completeness, Diagnostic, DiagnosticSeverity, UnresolvedRow,
    UnschedulableRow, workload_key,
};

const NAME: usize = 120;
const LINE: usize = 600;
/// Most rows listed of one kind; more of them are only counted.
const LISTED_MAX: usize = 100;
/// Most objects listed for one reason.
const OBJECTS_MAX: usize = 20;
/// Most reasons of an unschedulable workload.
const REASONS_MAX: usize = 8;

/// Returns everything of the plan that needs an operator.
pub(in crate::render) fn attention(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    [errors(plan), gaps(plan), unschedulable(plan), served(plan), not_counted(plan), blocked(rows)]
        .concat()
}

/// Returns a heading with a count, and a list.
fn section(id: &str, title: &str, items: &str) -> String {
    format!("<h2 id=\"{id}\">{title}</h2>\n<ul class=\"todo\">\n{items}</ul>\n")
}

/// Returns a line for the items that are not listed.
fn unlisted(all: usize, listed: usize) -> String {
    match all.saturating_sub(listed) {
        0 => String::new(),
        more => format!("<li class=\"dim\">and {more} more</li>\n"),
    }
}

fn errors(plan: &Plan) -> String {
    let is_error = |row: &&Diagnostic| row.severity == DiagnosticSeverity::Error;
    let rows: Vec<&Diagnostic> = plan.capacity.diagnostics.iter().filter(is_error).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut items = String::new();
    for row in rows.iter().take(LISTED_MAX) {
        let place = row.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let hint = row.hint.as_ref().map(|hint| format!("<p>{}</p>", text(hint, LINE)));
        let _ = writeln!(
            items,
            "<li><strong>{}</strong> {} <code>{}</code>{}</li>",
            text(&row.object, NAME),
            text(&row.message, LINE),
            text(&place, NAME),
            hint.unwrap_or_default()
        );
    }
    items.push_str(&unlisted(rows.len(), LISTED_MAX));
    section("errors", &heading(rows.len(), "error"), &items)
}

/// Returns `3 errors`.
fn heading(n: usize, noun: &str) -> String {
    count(u32::try_from(n).unwrap_or(u32::MAX), noun)
}

/// Returns the limitations of the plan that neither the verdict nor another section has: nominated
/// nodes, contingency, failure domains, sources that were not read in full, and a partial scope.
fn gaps(plan: &Plan) -> String {
    let mut lines = Vec::new();
    let placement = &plan.capacity.placement;
    // Without pending pods, the plan does not depend on nominations.
    let unsteered = placement.unsteered.filter(|without| without.pending > 0);
    lines.extend(unsteered.map(|without| header::steering_text(plan, &without)));
    lines.extend(placement.contingency.as_ref().map(header::contingency_text));
    let exceeded = placement.failure_domains.iter().flat_map(|domains| &domains.beyond);
    lines.extend(exceeded.map(header::failure_domain_excess));
    for (source, completeness) in &plan.capacity.base.world.sources {
        match completeness {
            Completeness::Complete => {}
            Completeness::Partial { reason } => {
                lines.push(format!("Only a part of {source} was read: {reason}"));
            }
            Completeness::Failed { reason } => {
                lines.push(format!("{source} could not be read: {reason}"));
            }
        }
    }
    if !plan.complete {
        lines.push(
            "This plan covers a part of the fleet (--target, --exclude, or the scope of the \
             controller)."
                .to_owned(),
        );
    }
    let line = |line: &String| format!("<p class=\"alert\">{}</p>\n", text(line, LINE));
    lines.iter().map(line).collect()
}

fn unschedulable(plan: &Plan) -> String {
    let rows = &plan.capacity.unschedulable;
    if rows.is_empty() {
        return String::new();
    }
    let mut items: String = rows.iter().take(LISTED_MAX).map(unschedulable_item).collect();
    items.push_str(&unlisted(rows.len(), LISTED_MAX));
    let pods = rows.iter().fold(0_u32, |sum, row| sum.saturating_add(row.pods));
    let title = format!("Unschedulable pods <span class=\"dim\">{pods}</span>");
    section("unschedulable", &title, &items)
}

fn served(plan: &Plan) -> String {
    let rows = &plan.capacity.cluster_autoscaler;
    if rows.is_empty() {
        return String::new();
    }
    let item = |row: &AutoscalerGrowthRow| {
        let name = text(row.address.as_str(), NAME);
        let (grows, pods) = (text(&growth(row), LINE), text(&list(&row.pods), LINE));
        let found = search_text([row.address.as_str()]);
        format!("<li data-text=\"{found}\"><strong>{name}</strong> {grows}<p>{pods}</p></li>\n")
    };
    let mut items: String = rows.iter().take(LISTED_MAX).map(item).collect();
    items.push_str(&unlisted(rows.len(), LISTED_MAX));
    let pods = plan.capacity.pods.served_by_cluster_autoscaler;
    let title = format!("Served by cluster-autoscaler <span class=\"dim\">{pods}</span>");
    section("served", &title, &items)
}

fn unschedulable_item(row: &UnschedulableRow) -> String {
    let place = row.origin.as_ref().map(ToString::to_string).unwrap_or_default();
    let workload = workload_key(&row.workload);
    let (name, found) = (text(&workload, NAME), search_text([workload.as_str()]));
    let cause = row.nearest.as_ref().map(|fix| format!("<p>Fix: {}</p>", text(fix, LINE)));
    let reasons: Vec<String> = row
        .reasons
        .iter()
        .take(REASONS_MAX)
        .map(|reason| format!("<li>{}</li>", text(&rejection(reason), LINE)))
        .collect();
    let reasons = reasons.concat();
    let details = if reasons.is_empty() {
        reasons
    } else {
        format!(
            "<details><summary>{}</summary><ul>{reasons}</ul></details>",
            count(u32::try_from(row.reasons.len()).unwrap_or(u32::MAX), "reason")
        )
    };
    format!(
        "<li data-text=\"{found}\"><strong>{name}</strong> {} <code>{}</code>{}{details}</li>\n",
        count(row.pods, "pod"),
        text(&place, NAME),
        cause.unwrap_or_default(),
    )
}

/// Returns the sources that were not counted. Sources of one kind with alike reasons share an item.
fn not_counted(plan: &Plan) -> String {
    let kinds = unread::by_code(plan);
    if kinds.is_empty() {
        return String::new();
    }
    let mut groups: BTreeMap<ReasonShape<'_>, Vec<&UnresolvedRow>> = BTreeMap::new();
    for (code, rows) in &kinds {
        for row in rows {
            groups.entry(ReasonShape::of(*code, row)).or_default().push(row);
        }
    }
    let mut items: String = groups
        .iter()
        .take(LISTED_MAX)
        .map(|(shape, rows)| not_counted_item(shape.code, rows))
        .collect();
    items.push_str(&unlisted(groups.len(), LISTED_MAX));
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(code, rows)| format!("{} [{code}]", unread::counted(*code, rows.len())))
        .collect();
    format!(
        "<h2 id=\"unread\">Sources not counted <span class=\"dim\">{}</span></h2>\n<p>{}</p>\n\
         <ul class=\"todo\">\n{items}</ul>\n",
        kinds.join(", "),
        unread::treatment(plan)
    )
}

/// The kind of a source and the form of its reason. Alike reasons differ in names only.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReasonShape<'a> {
    code: Code,
    words: usize,
    first: &'a str,
    last: &'a str,
}

impl<'a> ReasonShape<'a> {
    fn of(code: Code, row: &'a UnresolvedRow) -> Self {
        let words = || row.reason.split(' ');
        Self {
            code,
            words: words().count(),
            first: words().next().unwrap_or_default(),
            last: words().next_back().unwrap_or_default(),
        }
    }
}

fn not_counted_item(code: Code, rows: &[&UnresolvedRow]) -> String {
    let line = |row: &UnresolvedRow, reason: &str| {
        format!(
            "<strong>{}</strong> {} <code>{}</code>",
            text(&row.object, NAME),
            text(reason, LINE),
            text(&row.origin.to_string(), NAME)
        )
    };
    if let [row] = rows {
        return format!("<li>{}</li>\n", line(row, &row.reason));
    }
    let reason = common_words(rows);
    let is_same = rows.iter().all(|row| row.reason == reason);
    let objects: Vec<String> = rows
        .iter()
        .take(OBJECTS_MAX)
        .map(|row| format!("<li>{}</li>\n", line(row, if is_same { "" } else { &row.reason })))
        .collect();
    let objects = objects.concat();
    format!(
        "<li><details><summary><strong>{}</strong>: {}</summary><ul>\n{objects}{}</ul></details></li>\n",
        unread::counted(code, rows.len()),
        text(&reason, LINE),
        unlisted(rows.len(), OBJECTS_MAX)
    )
}

/// Returns the reasons of rows as one, with `…` for the words that differ.
fn common_words(rows: &[&UnresolvedRow]) -> String {
    let Some((first, rest)) = rows.split_first() else { return String::new() };
    let mut words: Vec<&str> = first.reason.split(' ').collect();
    for row in rest {
        for (word, other) in words.iter_mut().zip(row.reason.split(' ')) {
            if *word != other {
                *word = "…";
            }
        }
    }
    words.join(" ")
}

/// Returns the nodes that the plan keeps because their removal is blocked, by reason.
fn blocked(rows: &[PlanRow<'_>]) -> String {
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.symbol == Symbol::Blocked) {
        reasons.entry(table::why(row)).or_default().push(row.resource.address.as_str());
    }
    let nodes: usize = reasons.values().map(Vec::len).sum();
    if nodes == 0 {
        return String::new();
    }
    let mut items = String::new();
    for (reason, addresses) in &reasons {
        let listed: Vec<String> = addresses
            .iter()
            .take(OBJECTS_MAX)
            .map(|address| format!(" <code>{}</code>", text(address, NAME)))
            .collect();
        let listed = listed.concat();
        let more = match addresses.len().saturating_sub(OBJECTS_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = writeln!(
            items,
            "<li><strong>{}</strong> {}{listed}{more}</li>",
            heading(addresses.len(), "node"),
            text(reason, LINE)
        );
    }
    let title = format!("Blocked removals <span class=\"dim\">{}</span>", heading(nodes, "node"));
    section("blocked-removals", &title, &items)
}
