//! A plan as one self-contained HTML page: no network, no other file, and no script for essential
//! content.
//!
//! This module knows the wire form and HTML. Invariants: outside text is escaped; the content
//! security policy allows only the embedded style and script; the page stays small, because similar
//! nodes share a picture and unchanged rows are counted.

mod chart;
mod escape;
pub(super) mod sections;

use std::fmt::Write as _;

use super::amount::{count, signed_dollars};
use super::row::{PlanRow, Symbol, count as counted, rows};
use super::{header, last_line};
use crate::plan::Plan;
pub(super) use chart::pictures;
pub use escape::{hash_source, text};
use sections::{changes, checks, comparison, cost, demand, footer, problems, unschedulable, zones};

/// The style of the page.
pub const STYLE: &str = include_str!("html/style.css");
/// The script of the page: search, and dark or light mode.
pub const SCRIPT: &str = include_str!("html/script.js");

/// Returns the plan as an HTML page, with a final line feed.
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

fn header(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
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
    for line in header::limitations(plan) {
        let _ = writeln!(html, "<p class=\"alert\">{}</p>", text(&line, 400));
    }
    let removed = counted(rows, Symbol::Terminate);
    if removed > 0 {
        let verb = if removed == 1 { "is" } else { "are" };
        let _ = writeln!(
            html,
            "<p class=\"alert\"><strong>{} {verb} removed</strong>; {} move.</p>",
            count(removed, "node"),
            count(plan.capacity.pods.moved, "running pod")
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
    let [before, after] = header::capacity_totals(plan);
    let gib = super::amount::gib;
    let monthly =
        |price: crate::model::units::MicroUsd| super::amount::dollars(price.per_month(), 0);
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
