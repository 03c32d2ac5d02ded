//! The table of rows: one line for each node that changes, and the blocked and unchanged few.

use super::amount::dollars;
use super::page::{Column, Page, Span, Tone, plain};
use super::reason::reason;
use super::row::{Row, Symbol, count};
use crate::plan::wire::{GroupSize, NodeState, ResourceKind};

/// Unchanged rows that are listed; more of them are only counted.
const KEPT_SHOWN_MAX: u32 = 5;
/// Blocked rows that are listed; more of them are only counted.
const BLOCKED_SHOWN_MAX: u32 = 20;

const COLUMNS: [Column; 8] = [
    Column::left("", 3),
    Column::left("node", 44),
    Column::left("type", 28),
    Column::left("zone", 26),
    Column::left("bought", 20),
    Column::right("pods"),
    Column::right("$/h"),
    Column::left("why", 0),
];

/// Writes the legend and the table.
pub(super) fn write(page: &mut Page, rows: &[Row<'_>]) {
    let used: Vec<Symbol> = Symbol::ALL.into_iter().filter(|s| count(rows, *s) > 0).collect();
    let shown: Vec<Vec<Span>> = rows.iter().filter(|row| is_shown(rows, row)).map(cells).collect();
    if shown.is_empty() {
        return;
    }
    page.gap();
    let legend =
        used.iter().map(|s| Span::new(&format!("{} {}", s.as_str(), s.meaning()), s.tone()));
    page.items(0, std::iter::once(plain("Symbols:")).chain(legend).collect());
    page.gap();
    page.table(&COLUMNS, &shown);
    for (symbol, most) in [(Symbol::Blocked, BLOCKED_SHOWN_MAX), (Symbol::Keep, KEPT_SHOWN_MAX)] {
        let n = count(rows, symbol);
        if n > most {
            let text = format!("  {} {n} {} nodes are not listed", symbol.as_str(), symbol.verb());
            page.line([Span::new(&text, Tone::Faint)]);
        }
    }
}

fn is_shown(rows: &[Row<'_>], row: &Row<'_>) -> bool {
    match row.symbol {
        Symbol::Keep => count(rows, Symbol::Keep) <= KEPT_SHOWN_MAX,
        Symbol::Blocked => count(rows, Symbol::Blocked) <= BLOCKED_SHOWN_MAX,
        Symbol::Terminate
        | Symbol::TerminateFirst
        | Symbol::LaunchFirst
        | Symbol::Update
        | Symbol::Launch => true,
    }
}

fn cells(row: &Row<'_>) -> Vec<Span> {
    vec![
        row.symbol.span(),
        plain(row.resource.address.as_str()),
        plain(kind(row)),
        plain(zone(row)),
        plain(bought(row)),
        plain(pods(row).to_string()),
        plain(price(row)),
        plain(why(row)),
    ]
}

fn is_group(row: &Row<'_>) -> bool {
    row.resource.kind == ResourceKind::AutoscalingGroup
}

/// Returns the size of a group, before and after where they differ, with its bounds: what its nodes
/// are stands beside it.
fn size(row: &Row<'_>) -> Option<String> {
    let change = &row.resource.change;
    let before = change.before.as_ref().and_then(|state| state.group.as_ref());
    let after = change.after.as_ref().and_then(|state| state.group.as_ref())?;
    let nodes = |size: &GroupSize| size.desired.to_string();
    let text = arrow(before.map(nodes), Some(nodes(after)));
    Some(format!("{text} of {} to {} nodes", after.min, after.max))
}

/// Returns the instance type, before and after where they differ; so do the next two.
pub(super) fn kind(row: &Row<'_>) -> String {
    if let Some(size) = size(row) {
        return size;
    }
    before_and_after(row, |state| state.instance_type.as_ref().map(ToString::to_string))
}

pub(super) fn zone(row: &Row<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    before_and_after(row, |state| state.zone.as_ref().map(ToString::to_string))
}

pub(super) fn bought(row: &Row<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    before_and_after(row, |state| state.capacity_type.map(|kind| kind.to_string()))
}

/// Returns how many pods are planned on the node.
pub(super) fn pods(row: &Row<'_>) -> u32 {
    row.explain.map_or(0, |e| e.pods.values().fold(0_u32, |n, p| n.saturating_add(*p)))
}

/// Returns why the row is as it is, in one line.
pub(super) fn why(row: &Row<'_>) -> String {
    row.explain.map_or_else(String::new, |explain| reason(&explain.reason))
}

/// Returns a value where both sides agree or one is missing, and both where they differ.
fn before_and_after(row: &Row<'_>, of: fn(&NodeState) -> Option<String>) -> String {
    let side = |state: &Option<NodeState>| state.as_ref().map(|s| of(s).unwrap_or("?".to_owned()));
    arrow(side(&row.resource.change.before), side(&row.resource.change.after))
}

pub(super) fn price(row: &Row<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    let Some(explain) = row.explain else { return "?".to_owned() };
    let change = &row.resource.change;
    let unknown = || "?".to_owned();
    let side = |there: bool, price: Option<_>| {
        there.then(|| price.map_or_else(unknown, |p| dollars(p, 4).replace('$', "")))
    };
    arrow(
        side(change.before.is_some(), explain.hourly_before),
        side(change.after.is_some(), explain.hourly_after),
    )
}

fn arrow(before: Option<String>, after: Option<String>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => String::new(),
    }
}
