//! The table of rows: one line for each changed node, and for a few blocked and unchanged ones.

use jiff::Timestamp;

use super::amount::{count as amount_of, dollars, gib, span};
use super::header::cores;
use super::reason::{row_reason, row_reason_once};
use super::row::{PlanRow, Symbol, count};
use super::text_page::{
    NodeColumns, StyledText, TableColumn, TextPage, TextStyle, Tone, Verbosity, plain,
};
use crate::plan::wire::{GroupSize, NodeState, ResourceKind};

/// Most listed blocked rows; more of them are only counted.
const BLOCKED_SHOWN_MAX: u32 = 20;

const COLUMNS: [TableColumn; 8] = [
    TableColumn::left("", 3),
    TableColumn::left("node", 64),
    TableColumn::left("type", 28),
    TableColumn::left("zone", 26),
    TableColumn::left("capacity type", 24),
    TableColumn::right("pods"),
    TableColumn::right("$/h"),
    TableColumn::last("why"),
];

/// Columns between capacity type and pods that only the wide table has.
const MORE_COLUMNS: [TableColumn; 5] = [
    TableColumn::left("name", 64),
    TableColumn::left("instance", 24),
    TableColumn::right("vCPU"),
    TableColumn::right("GiB"),
    TableColumn::right("age"),
];

/// Index of the column of pods.
const PODS: usize = 5;

/// Writes the legend and the table. Unchanged nodes are only counted, unless the style lists them.
/// Ages refer to `now`.
pub(super) fn write(page: &mut TextPage, rows: &[PlanRow<'_>], style: &TextStyle, now: Timestamp) {
    let (verbosity, is_wide) = (style.verbosity, style.columns == NodeColumns::Wide);
    let all = style.lists_unchanged || verbosity == Verbosity::Everything;
    let is_folded = |symbol: Symbol| match symbol {
        Symbol::Keep => !all,
        Symbol::Blocked => !all && count(rows, Symbol::Blocked) > BLOCKED_SHOWN_MAX,
        Symbol::Terminate
        | Symbol::TerminateFirst
        | Symbol::LaunchFirst
        | Symbol::Update
        | Symbol::Launch => false,
    };
    let used = Symbol::ALL.into_iter().filter(|symbol| count(rows, *symbol) > 0);
    let (folded, listed): (Vec<Symbol>, Vec<Symbol>) = used.partition(|symbol| is_folded(*symbol));
    let shown = rows.iter().filter(|row| !is_folded(row.symbol));
    let shown: Vec<Vec<StyledText>> = shown
        .map(|row| {
            let mut cells = cells(row);
            if is_wide {
                cells.splice(PODS..PODS, more_cells(row, now));
            }
            cells
        })
        .collect();
    if !shown.is_empty() {
        page.gap();
        let legend = listed.iter();
        let legend =
            legend.map(|s| StyledText::new(&format!("{} {}", s.as_str(), s.meaning()), s.tone()));
        page.items(0, std::iter::once(plain("Symbols:")).chain(legend).collect());
        page.gap();
        let mut columns = COLUMNS.to_vec();
        if is_wide {
            columns.splice(PODS..PODS, MORE_COLUMNS);
        }
        page.table(&columns, &shown);
    } else if !folded.is_empty() {
        page.gap();
    }
    for symbol in folded {
        let mut of_symbol = rows.iter().filter(|row| row.symbol == symbol);
        let noun = if of_symbol.any(is_group) { "row" } else { "node" };
        let nodes = amount_of(count(rows, symbol), noun);
        let text = format!("  {}  {nodes} {} (listed with -v)", symbol.as_str(), symbol.verb());
        page.line([StyledText::new(&text, Tone::Faint)]);
    }
}

/// The mark of a price that is not known, such as a spot price without a live world.
pub(super) const ESTIMATED: &str = "estimated";

fn cells(row: &PlanRow<'_>) -> Vec<StyledText> {
    vec![
        row.symbol.span(),
        plain(row.resource.address.as_str()),
        plain(kind(row)),
        plain(zone(row)),
        plain(capacity_type(row)),
        plain(pods(row).to_string()),
        plain(price(row)),
        plain(row_reason_once(row)),
    ]
}

/// Returns the cells of [`MORE_COLUMNS`].
fn more_cells(row: &PlanRow<'_>, now: Timestamp) -> [StyledText; 5] {
    let change = &row.resource.change;
    let before = change.before.as_ref().filter(|_| !is_group(row));
    let name = before.and_then(|state| state.node.as_ref()).map(ToString::to_string);
    let instance = before.and_then(|state| state.instance_id.as_ref()).map(ToString::to_string);
    let age = before.and_then(|state| state.launched_at);
    let age = age.map(|launched| span(now.duration_since(launched)));
    let amount = |of: fn(&NodeState) -> String| {
        if is_group(row) { String::new() } else { before_and_after(row, |state| Some(of(state))) }
    };
    [
        plain(name.unwrap_or_default()),
        plain(instance.unwrap_or_default()),
        plain(amount(|state| cores(state.capacity.cpu_milli))),
        plain(amount(|state| gib(state.capacity.memory_bytes))),
        plain(age.unwrap_or_default()),
    ]
}

fn is_group(row: &PlanRow<'_>) -> bool {
    row.resource.kind == ResourceKind::AutoscalingGroup
}

/// Returns the size of a group, before and after where they differ, with its bounds. It replaces
/// the instance type in the table.
fn size(row: &PlanRow<'_>) -> Option<String> {
    let change = &row.resource.change;
    let before = change.before.as_ref().and_then(|state| state.group.as_ref());
    let after = change.after.as_ref().and_then(|state| state.group.as_ref())?;
    let nodes = |size: &GroupSize| size.desired.to_string();
    let text = arrow(before.map(nodes), Some(nodes(after)));
    Some(format!("{text} of {} to {} nodes", after.min, after.max))
}

/// Returns the instance type, before and after where they differ. `zone` and `capacity_type` work
/// alike.
pub(super) fn kind(row: &PlanRow<'_>) -> String {
    if let Some(size) = size(row) {
        return size;
    }
    before_and_after(row, |state| state.instance_type.as_ref().map(ToString::to_string))
}

pub(super) fn zone(row: &PlanRow<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    before_and_after(row, |state| state.zone.as_ref().map(ToString::to_string))
}

pub(super) fn capacity_type(row: &PlanRow<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    before_and_after(row, |state| state.capacity_type.map(|kind| kind.to_string()))
}

/// Returns the number of pods planned on the node.
pub(super) fn pods(row: &PlanRow<'_>) -> u32 {
    row.explain.map_or(0, |e| e.pods.values().fold(0_u32, |n, p| n.saturating_add(*p)))
}

/// Returns the reason of the row, on one line.
pub(super) fn why(row: &PlanRow<'_>) -> String {
    row_reason(row)
}

/// Returns one value if both sides agree or one is missing, otherwise both values.
fn before_and_after(row: &PlanRow<'_>, of: impl Fn(&NodeState) -> Option<String>) -> String {
    let side = |state: &Option<NodeState>| state.as_ref().map(|s| of(s).unwrap_or("?".to_owned()));
    arrow(side(&row.resource.change.before), side(&row.resource.change.after))
}

pub(super) fn price(row: &PlanRow<'_>) -> String {
    if is_group(row) {
        return String::new();
    }
    let Some(explain) = row.explain else { return "?".to_owned() };
    let change = &row.resource.change;
    let unknown = || "?".to_owned();
    let side = |there: bool, price: Option<_>| {
        there.then(|| price.map_or_else(unknown, |p| dollars(p, 4).replace('$', "")))
    };
    let text = arrow(
        side(change.before.is_some(), explain.hourly_before),
        side(change.after.is_some(), explain.hourly_after),
    );
    if explain.estimated { format!("{text} {ESTIMATED}") } else { text }
}

fn arrow(before: Option<String>, after: Option<String>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => String::new(),
    }
}
