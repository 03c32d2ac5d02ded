//! A plan as one page of HTML that needs nothing else: no network, no other file, and no script for
//! what matters.
//!
//! This module knows the wire form and a browser. Invariants: every text from outside is escaped;
//! the page's own policy lets nothing run or load but the style and the script that stand in it; the
//! page stays small enough to open at once, because nodes that are alike share a picture and rows
//! that do not change are counted.

mod chart;
pub(super) mod parts;
mod safe;

use std::fmt::Write as _;

use super::amount::{count, signed_dollars};
use super::row::{Row, Symbol, count as counted, rows};
use super::{head, last_line};
use crate::plan::Plan;
pub(super) use chart::pictures;
use parts::{changes, checks, comparison, cost, demand, footer, problems, unschedulable, zones};
pub use safe::{hash_source, text};

/// Style of the page.
pub const STYLE: &str = include_str!("html/style.css");
/// Script of the page: search, and dark or light.
pub const SCRIPT: &str = include_str!("html/script.js");

/// Returns the plan as a page of HTML, with a final line feed.
#[must_use]
pub fn html(plan: &Plan) -> String {
    let rows = rows(plan);
    let cluster = text(&plan.capacity.base.world.cluster.name, 80);
    let policy = format!(
        "default-src 'none'; img-src data:; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        hash_source(STYLE),
        hash_source(SCRIPT)
    );
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>Plan for {cluster}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#changes\">Skip to the changes</a>\n"
    );
    page.push_str(&header(plan, &rows));
    for section in [
        comparison(plan),
        checks(plan),
        pictures(plan, &rows),
        changes(plan, &rows),
        unschedulable(plan),
        cost(plan),
        zones(&rows),
        demand(plan),
        problems(plan),
        footer(plan),
    ] {
        page.push_str(&section);
    }
    let _ = write!(page, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn header(plan: &Plan, rows: &[Row<'_>]) -> String {
    let base = &plan.capacity.base;
    let cluster = &base.world.cluster;
    let mut html = format!(
        "<header>\n<div class=\"top\"><h1>Plan for {} <span class=\"dim\">{}</span></h1>\n\
         <div><button id=\"theme\" type=\"button\" data-script hidden>Dark or light</button></div></div>\n\
         <p><strong>{}</strong></p>\n",
        text(&cluster.name, 80),
        text(&cluster.region, 40),
        text(&last_line(plan), 200)
    );
    for line in head::standing(plan) {
        let _ = writeln!(html, "<p class=\"alert\">{}</p>", text(&line, 400));
    }
    let gone = counted(rows, Symbol::Terminate);
    if gone > 0 {
        let verb = if gone == 1 { "is" } else { "are" };
        let _ = writeln!(
            html,
            "<p class=\"alert\"><strong>{} {verb} removed</strong>; {} that run move.</p>",
            count(gone, "node"),
            count(plan.capacity.pods.moved, "pod")
        );
    }
    html.push_str(&tiles(plan));
    html.push_str(
        "<p data-script hidden><label>Search <input id=\"search\" type=\"search\" \
         placeholder=\"node, pool, type, zone, workload ( / )\"></label> \
         <span id=\"found\" class=\"dim\" role=\"status\"></span></p>\n</header>\n<main>\n",
    );
    html
}

fn tiles(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let (nodes, pods, cost) = (&plan.summary.nodes, &capacity.pods, &capacity.cost);
    let [before, after] = head::sums(plan);
    let gib = super::amount::gib;
    let monthly = |price: crate::units::MicroUsd| super::amount::dollars(price.per_month(), 0);
    let mut tiles = vec![
        ("nodes", format!("{} → {}", nodes.before, nodes.after)),
        ("vCPU", format!("{} → {}", before.0, after.0)),
        ("memory, GiB", format!("{} → {}", gib(before.1), gib(after.1))),
        ("pods placed", format!("{} of {}", pods.placed, pods.total)),
        ("a month", format!("{} → {}", monthly(cost.hourly_before), monthly(cost.hourly_after))),
        ("difference", format!("{}/mo", signed_dollars(cost.monthly_delta, 2))),
    ];
    if cost.lower_bound_hourly.0 > 0 {
        tiles.push(("above the lower bound", format!("{} %", cost.gap_percent)));
    }
    let tile = |(name, value): (&str, String)| {
        format!(
            "<div class=\"tile\"><b>{}</b><span class=\"dim\">{name}</span></div>\n",
            text(&value, 60)
        )
    };
    let tiles: String = tiles.into_iter().map(tile).collect();
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

#[cfg(test)]
mod tests;
