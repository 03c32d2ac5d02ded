//! Rows one by one where they fit, else in groups that are as fine as fits.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::amount::dollars;
use super::super::row::{Row, Symbol};
use super::super::table;
use super::length;
use super::safe::{code, prose};
use crate::units::MicroUsd;

/// First rows that a group names.
const FIRST_SHOWN: usize = 3;
const NAME_WIDTH: usize = 60;
const REASON_WIDTH: usize = 110;

/// How finely rows are grouped, from the finest on.
const LEVELS: [Level; 5] = [Level::Rows, Level::Alike, Level::Type, Level::Pool, Level::All];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Rows,
    /// Pool, type, zone and reason.
    Alike,
    /// Pool and type.
    Type,
    Pool,
    All,
}

/// Returns a table of `rows` of at most `room` characters; every row is in it or in a group.
pub(super) fn table(rows: &[&Row<'_>], room: usize) -> String {
    let mut last = String::new();
    for level in LEVELS {
        last = if level == Level::Rows { one_by_one(rows, room) } else { grouped(rows, level) };
        if !last.is_empty() && length(&last) <= room {
            break;
        }
    }
    last
}

/// Returns a table with a line for each row; nothing once it is longer than `room`.
fn one_by_one(rows: &[&Row<'_>], room: usize) -> String {
    let mut text = "| | node | type | zone | bought | pods | $/h | why |\n".to_owned();
    text.push_str("|---|---|---|---|---|--:|--:|---|\n");
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            sign(row.symbol),
            code(row.resource.address.as_str(), NAME_WIDTH),
            prose(&table::kind(row), NAME_WIDTH),
            prose(&table::zone(row), NAME_WIDTH),
            prose(&table::bought(row), NAME_WIDTH),
            table::pods(row),
            prose(&table::price(row), NAME_WIDTH),
            prose(&table::why(row), REASON_WIDTH),
        );
        if text.len() > room.saturating_mul(4) {
            return String::new();
        }
    }
    text
}

/// Rows that are shown as one.
#[derive(Default)]
struct Group {
    rows: u32,
    pods: u32,
    hourly: MicroUsd,
    first: Vec<String>,
    reason: String,
}

fn grouped(rows: &[&Row<'_>], level: Level) -> String {
    let mut groups: BTreeMap<(Symbol, [String; 4]), Group> = BTreeMap::new();
    for row in rows {
        let group = groups.entry((row.symbol, key(row, level))).or_default();
        if group.rows == 0 {
            group.reason = table::why(row);
        }
        group.rows += 1;
        group.pods = group.pods.saturating_add(table::pods(row));
        let explain = row.explain;
        group.hourly += explain.and_then(|e| e.hourly_after).unwrap_or_default()
            - explain.and_then(|e| e.hourly_before).unwrap_or_default();
        if group.first.len() < FIRST_SHOWN {
            group.first.push(row.resource.address.to_string());
        }
    }
    let mut text =
        "| | nodes | pool | type | zone | pods | $/h | first | why, of the first |\n".to_owned();
    text.push_str("|---|--:|---|---|---|--:|--:|---|---|\n");
    for ((symbol, [pool, kind, zone, _]), group) in groups {
        let first: Vec<String> = group.first.iter().map(|id| code(id, NAME_WIDTH)).collect();
        let more =
            if usize::try_from(group.rows).is_ok_and(|n| n > FIRST_SHOWN) { ", …" } else { "" };
        let _ = writeln!(
            text,
            "| {} | **{}** | {} | {} | {} | {} | {} | {}{more} | {} |",
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

/// Returns what rows of one group share; what the level does not look at is "any".
fn key(row: &Row<'_>, level: Level) -> [String; 4] {
    let any = || "any".to_owned();
    let pool = row.resource.name.clone();
    let hint = row.resource.action_reason.clone().unwrap_or_default();
    match level {
        Level::Rows => [row.resource.address.to_string(), any(), any(), any()],
        Level::Alike => [pool, table::kind(row), table::zone(row), hint],
        Level::Type => [pool, table::kind(row), any(), any()],
        Level::Pool => [pool, any(), any(), any()],
        Level::All => [any(), any(), any(), any()],
    }
}

/// Returns the symbol of a row so that Markdown leaves it alone.
pub(super) fn sign(symbol: Symbol) -> String {
    format!("`{}`", symbol.as_str())
}
