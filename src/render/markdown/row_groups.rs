//! Rows one by one if they fit, otherwise in groups as fine as possible.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::amount::dollars;
use super::super::reason::row_reason_once;
use super::super::row::{PlanRow, Symbol};
use super::super::table;
use super::escape::{code, prose};
use super::length;
use crate::model::units::MicroUsd;

/// Most addresses that a group lists.
const FIRST_SHOWN: usize = 3;
const NAME_WIDTH: usize = 60;
const REASON_WIDTH: usize = 110;

/// Groupings of rows, finest first.
const GROUPINGS: [Grouping; 5] =
    [Grouping::Rows, Grouping::Alike, Grouping::Type, Grouping::Pool, Grouping::All];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grouping {
    Rows,
    /// Pool, type, zone and reason.
    Alike,
    /// Pool and type.
    Type,
    Pool,
    All,
}

/// Returns a table of `rows` of at most `room` characters. Every row is in it, alone or in a group.
pub(super) fn table(rows: &[&PlanRow<'_>], room: usize) -> String {
    let mut last = String::new();
    for grouping in GROUPINGS {
        last = if grouping == Grouping::Rows {
            one_by_one(rows, room)
        } else {
            group_rows(rows, grouping)
        };
        if !last.is_empty() && length(&last) <= room {
            break;
        }
    }
    last
}

/// Returns a table with a line for each row; empty if it is much longer than `room`.
fn one_by_one(rows: &[&PlanRow<'_>], room: usize) -> String {
    let mut text = "| | node | type | zone | capacity type | pods | $/h | why |\n".to_owned();
    text.push_str("|---|---|---|---|---|--:|--:|---|\n");
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            sign(row.symbol),
            code(row.resource.address.as_str(), NAME_WIDTH),
            prose(&table::kind(row), NAME_WIDTH),
            prose(&table::zone(row), NAME_WIDTH),
            prose(&table::capacity_type(row), NAME_WIDTH),
            table::pods(row),
            prose(&table::price(row), NAME_WIDTH),
            prose(&row_reason_once(row), REASON_WIDTH),
        );
        if text.len() > room.saturating_mul(4) {
            return String::new();
        }
    }
    text
}

/// Several rows as one line.
#[derive(Default)]
struct RowGroup {
    rows: u32,
    pods: u32,
    hourly: MicroUsd,
    is_estimated: bool,
    first: Vec<String>,
    reason: String,
}

fn group_rows(rows: &[&PlanRow<'_>], grouping: Grouping) -> String {
    let mut groups: BTreeMap<(Symbol, [String; 4]), RowGroup> = BTreeMap::new();
    for row in rows {
        let group = groups.entry((row.symbol, key(row, grouping))).or_default();
        if group.rows == 0 {
            group.reason = table::why(row);
        }
        group.rows += 1;
        group.pods = group.pods.saturating_add(table::pods(row));
        let explain = row.explain;
        group.hourly += explain.and_then(|e| e.hourly_after).unwrap_or_default()
            - explain.and_then(|e| e.hourly_before).unwrap_or_default();
        group.is_estimated |= explain.is_some_and(|e| e.estimated);
        if group.first.len() < FIRST_SHOWN {
            group.first.push(row.resource.address.to_string());
        }
    }
    let mut text =
        "| | nodes | pool | type | zone | pods | $/h | first | why, of the first |\n".to_owned();
    text.push_str("|---|--:|---|---|---|--:|--:|---|---|\n");
    for ((symbol, [pool, kind, zone, _]), group) in groups {
        let first: Vec<String> = group.first.iter().map(|id| code(id, NAME_WIDTH)).collect();
        let mark =
            if group.is_estimated { format!(" {}", table::ESTIMATED) } else { String::new() };
        let more =
            if usize::try_from(group.rows).is_ok_and(|n| n > FIRST_SHOWN) { ", …" } else { "" };
        let _ = writeln!(
            text,
            "| {} | **{}** | {} | {} | {} | {} | {}{mark} | {}{more} | {} |",
            sign(symbol),
            group.rows,
            prose(&pool, NAME_WIDTH),
            prose(&kind, NAME_WIDTH),
            prose(&zone, NAME_WIDTH),
            group.pods,
            dollars(group.hourly, 4).replace('$', ""),
            first.join(", "),
            prose(&group.reason, REASON_WIDTH),
        );
    }
    text
}

/// Returns the key of the group; parts that the grouping ignores are "any".
fn key(row: &PlanRow<'_>, grouping: Grouping) -> [String; 4] {
    let any = || "any".to_owned();
    let pool = row.resource.name.clone();
    let hint = row.resource.action_reason.clone().unwrap_or_default();
    match grouping {
        Grouping::Rows => [row.resource.address.to_string(), any(), any(), any()],
        Grouping::Alike => [pool, table::kind(row), table::zone(row), hint],
        Grouping::Type => [pool, table::kind(row), any(), any()],
        Grouping::Pool => [pool, any(), any(), any()],
        Grouping::All => [any(), any(), any(), any()],
    }
}

/// Returns the symbol of a row, escaped for Markdown.
pub(super) fn sign(symbol: Symbol) -> String {
    format!("`{}`", symbol.as_str())
}
