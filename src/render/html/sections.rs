//! The sections of the page except the charts; a section without content is empty.

use std::fmt::Write as _;

use super::super::amount::{amount, count, hourly};
use super::super::problems::with_code;
use super::super::reason::{decider, row_reason_once};
use super::super::row::{PlanRow, Symbol, pods_before};
use super::super::text_page::{TextPage, TextStyle};
use super::super::{comparison as words, detail, overlay_prices, table};
use super::escape::{search_text, text};
use super::fleet::nodes;
use crate::plan::Plan;
use crate::plan::wire::{
    CheckStatus, ComparedWorkload, CostRow, DiagnosticSeverity, WorkloadKey, workload_key,
};

const NAME: usize = 120;
const LINE: usize = 600;
/// Most rows with details on the page; the plan file has all of them.
const DETAILS_MAX: usize = 300;
/// Most changes that are all shown. Of more changes, the first ones are, and the rest is folded.
const UNFOLDED_MAX: usize = 40;
const FIRST_CHANGES: usize = 20;

/// Returns the changes that this revision causes, and those that were pending.
pub(in crate::render) fn comparison(plan: &Plan) -> String {
    let Some(found) = &plan.capacity.comparison else { return String::new() };
    let list = |addresses: &[crate::model::ids::Address]| -> String {
        let shown =
            addresses.iter().take(30).map(|a| format!("<code>{}</code> ", text(a.as_str(), NAME)));
        shown.collect()
    };
    let place = |row: &ComparedWorkload| {
        let place = row.origin.as_ref().map(ToString::to_string);
        place.map_or_else(String::new, |at| format!(" <code>{}</code>", text(&at, NAME)))
    };
    let pods = found.workloads.iter().take(100).map(|row| {
        let name = text(&workload_key(&row.workload), NAME);
        format!("<li>{name}: {}{}</li>\n", text(&words::pods_text(row, "→"), LINE), place(row))
    });
    let withdrawn = found.withdrawn.iter().take(100);
    let withdrawn = withdrawn.map(|change| format!("<li>withdrawn: {}</li>\n", text(change, LINE)));
    let items = |items: String| {
        if items.is_empty() { items } else { format!("<ul>\n{items}</ul>\n") }
    };
    let against = words::compared_names(found);
    let against: Vec<String> =
        against.iter().map(|name| format!("<code>{}</code>", text(name, NAME))).collect();
    let overlays = overlay_prices::comparison_text(found)
        .map_or_else(String::new, |line| format!("<p>{}.</p>\n", text(&line, LINE)));
    format!(
        "<h2>Caused by this change</h2>\n<p><strong>{}</strong> against {}: {}</p>\n{overlays}{}\
         <p class=\"dim\">{}: {} {}</p>\n{}",
        text(&words::caused_text(found), LINE),
        against.join(", "),
        list(&found.caused),
        items(pods.collect()),
        words::pending_title(&format!("<code>{}</code>", text(&found.revision, NAME))),
        text(&words::pending_text(found), LINE),
        list(&found.pending),
        items(withdrawn.collect())
    )
}

/// Returns the findings of policies.
pub(in crate::render) fn checks(plan: &Plan) -> String {
    if plan.checks.is_empty() {
        return String::new();
    }
    let row = |check: &crate::plan::wire::Check| {
        let class = match &check.status {
            CheckStatus::Pass => "add",
            CheckStatus::Warn => "warn",
            CheckStatus::Error
            | CheckStatus::Fail
            | CheckStatus::Unknown
            | CheckStatus::Other(_) => "del",
        };
        let lines: Vec<String> = check
            .problems
            .iter()
            .chain(&check.exceptions)
            .map(|problem| text(problem, LINE))
            .collect();
        format!(
            "<tr><td class=\"{class}\">{}</td><td><code>{}</code></td><td>{}</td></tr>\n",
            text(check.status.as_str(), 20),
            text(&check.name, NAME),
            lines.join("<br>")
        )
    };
    let rows: String = plan.checks.iter().map(row).collect();
    format!(
        "<h2>Policies</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table><thead><tr><th scope=\"col\">result</th><th scope=\"col\">rule</th>\
         <th scope=\"col\">finding</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// Returns the table of changed rows.
pub(in crate::render) fn changes(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    let changed: Vec<&PlanRow<'_>> = rows.iter().filter(|row| row.symbol.is_change()).collect();
    let unchanged = nodes(rows).filter(|row| !row.symbol.is_change()).count();
    let unchanged = match u32::try_from(unchanged).unwrap_or(u32::MAX) {
        0 => String::new(),
        n => format!(" {} unchanged.", count(n, "node")),
    };
    if changed.is_empty() {
        return format!("<h2 id=\"changes\">Changes</h2>\n<p>Nothing changes.{unchanged}</p>\n");
    }
    let lines: Vec<String> = changed
        .iter()
        .enumerate()
        .map(|(index, row)| line(plan, row, index < DETAILS_MAX))
        .collect();
    // A long list must not hide the fleet below it.
    let first = if lines.len() > UNFOLDED_MAX { FIRST_CHANGES } else { lines.len() };
    let (first, rest) = lines.split_at(first);
    let more = if rest.is_empty() {
        String::new()
    } else {
        format!(
            "<details><summary>{} more changes</summary>\n{}</details>\n",
            rest.len(),
            changes_table("More changes", &rest.concat())
        )
    };
    let unchanged = match unchanged.as_str() {
        "" => String::new(),
        words => format!("<p class=\"dim\">{}</p>\n", words.trim_start()),
    };
    format!(
        "<h2 id=\"changes\">Changes <span class=\"dim\">{}</span></h2>\n{}{more}{unchanged}",
        changed.len(),
        changes_table("Changes", &first.concat())
    )
}

fn changes_table(name: &str, body: &str) -> String {
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table class=\"changes\">\n<thead><tr>\
         <th scope=\"col\">change</th><th scope=\"col\">node</th><th scope=\"col\">type</th><th scope=\"col\">zone</th>\
         <th scope=\"col\">capacity type</th><th scope=\"col\" class=\"n\">pods</th><th scope=\"col\" class=\"n\">$/h</th>\
         <th scope=\"col\">reason</th></tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )
}

fn line(plan: &Plan, row: &PlanRow<'_>, with_details: bool) -> String {
    let class = match row.symbol {
        Symbol::Terminate => "del",
        Symbol::TerminateFirst | Symbol::LaunchFirst | Symbol::Update => "chg",
        Symbol::Launch => "add",
        Symbol::Blocked => "warn",
        Symbol::Keep => "dim",
    };
    let pods = row.explain.iter().flat_map(|e| e.pods.keys()).map(WorkloadKey::as_str);
    let change = &row.resource.change;
    let node = change.before.as_ref().and_then(|s| s.node.as_ref());
    let node = node.map(ToString::to_string).unwrap_or_default();
    let (kind, zone, bought) = (table::kind(row), table::zone(row), table::capacity_type(row));
    let words = [row.resource.address.as_str(), &node, &kind, &zone, &bought];
    let found = search_text(words.into_iter().chain(pods));
    let why = text(&row_reason_once(row), LINE);
    let why = if with_details {
        let mut page = TextPage::new(&TextStyle { width: 100, ..TextStyle::default() });
        detail::write_block(&mut page, plan, &[row]);
        let lines: Vec<String> =
            page.finish().lines().map(|l| format!("{}\n", text(l, 240))).collect();
        let lines = lines.concat();
        format!("<details><summary>{why}</summary><pre>{lines}</pre></details>")
    } else {
        why
    };
    let arrows = |cell: &str| text(&cell.replace(" -> ", " → "), NAME);
    format!(
        "<tr data-text=\"{found}\" data-pool=\"{}\" data-zone=\"{}\"><td class=\"{class}\"><b aria-hidden=\"true\">{}</b> {}</td>\
         <th scope=\"row\" class=\"mono\">{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td>{why}</td></tr>\n",
        text(&row.resource.name, NAME),
        text(&zones(row).join(" "), NAME),
        row.symbol.as_str(),
        row.symbol.verb(),
        text(row.resource.address.as_str(), NAME),
        arrows(&kind),
        arrows(&zone),
        arrows(&bought),
        pods_cell(row),
        arrows(&table::price(row)),
    )
}

/// Returns the number of pods on the node, before and after where they differ. A plan of an older
/// format does not have the pods before.
fn pods_cell(row: &PlanRow<'_>) -> String {
    let after = table::pods(row).to_string();
    match pods_before(row) {
        0 => after,
        before => arrow(&before.to_string(), &after),
    }
}

/// Returns the zones of a row: a replacement in another zone has two.
fn zones(row: &PlanRow<'_>) -> Vec<String> {
    let change = &row.resource.change;
    let states = [&change.before, &change.after].into_iter().flatten();
    let mut zones: Vec<String> =
        states.filter_map(|state| state.zone.as_ref()).map(ToString::to_string).collect();
    zones.dedup();
    zones
}

/// Returns the cost by pool, zone and capacity type, and its scope.
pub(in crate::render) fn cost(plan: &Plan) -> String {
    let parts = &plan.capacity.cost.breakdown;
    if !parts.by_pool.iter().any(is_nonzero) {
        return String::new();
    }
    let mut html = "<h2>Cost</h2>\n<div class=\"two\">\n".to_owned();
    for (title, rows) in [
        ("By pool", &parts.by_pool),
        ("By zone", &parts.by_zone),
        ("By capacity type", &parts.by_capacity_type),
    ] {
        let rows: Vec<&CostRow> = rows.iter().filter(|row| is_nonzero(row)).collect();
        html.push_str(&cost_table(title, &rows));
    }
    html.push_str("</div>\n");
    if let Some(range) = &parts.range {
        let _ = writeln!(
            html,
            "<p>Between {} and {} after: {}.</p>",
            hourly(range.hourly_low),
            hourly(range.hourly_high),
            text(&range.because.join("; "), LINE)
        );
    }
    if let Some(committed) = &parts.committed {
        let _ = writeln!(
            html,
            "<p>With commitments: {} → {}.</p>",
            hourly(committed.hourly_before),
            hourly(committed.hourly_after)
        );
    }
    for (title, lines) in [("Included", &parts.included), ("Not included", &parts.not_included)] {
        let _ =
            writeln!(html, "<p><strong>{title}:</strong> {}.</p>", text(&lines.join("; "), LINE));
    }
    html
}

fn is_nonzero(row: &CostRow) -> bool {
    row.nodes_before > 0 || row.nodes_after > 0
}

fn cost_table(title: &str, rows: &[&CostRow]) -> String {
    let most = rows.iter().map(|row| row.hourly_before.max(row.hourly_after).0).max().unwrap_or(0);
    let width = |price: crate::model::units::MicroUsd| {
        i128::from(price.0.max(0)) * 100 / i128::from(most.max(1))
    };
    let line = |row: &&CostRow| {
        format!(
            "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td>\
             <svg class=\"share\" viewBox=\"0 0 100 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect class=\"before\" y=\"1\" width=\"{}\" height=\"5\"/><rect class=\"after\" y=\"8\" width=\"{}\" height=\"5\"/>\
             </svg></td></tr>\n",
            text(if row.name.is_empty() { "—" } else { &row.name }, NAME),
            arrow(&row.nodes_before.to_string(), &row.nodes_after.to_string()),
            arrow(&hourly(row.hourly_before), &hourly(row.hourly_after)),
            width(row.hourly_before),
            width(row.hourly_after)
        )
    };
    let body: String = rows.iter().take(200).map(line).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table><thead><tr><th scope=\"col\">{title}</th><th scope=\"col\" class=\"n\">nodes</th>\
         <th scope=\"col\" class=\"n\">price</th><th scope=\"col\">before, after</th></tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Returns both values, or one if they are equal.
fn arrow(before: &str, after: &str) -> String {
    if before == after { after.to_owned() } else { format!("{before} → {after}") }
}

/// Returns the workloads, folded.
pub(in crate::render) fn demand(plan: &Plan) -> String {
    let line = |row: &crate::plan::wire::DemandRow| {
        let place = row.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let name = workload_key(&row.workload);
        format!(
            "<tr data-text=\"{6}\"><td>{0}</td><td class=\"n\">{1}</td><td class=\"n\">{2}</td><td>{3}</td>\
             <td>{4}</td><td><code>{5}</code></td></tr>\n",
            text(&name, NAME),
            row.counts.live,
            row.counts.planned,
            text(&amount(&row.requests), NAME),
            text(&decider(&row.decided_by, plan), NAME),
            text(&place, NAME),
            search_text([name.as_str()])
        )
    };
    let rows = &plan.capacity.demand;
    if rows.is_empty() {
        return String::new();
    }
    let body: String = rows.iter().take(2_000).map(line).collect();
    format!(
        "<h2>Workloads</h2>\n<details><summary>{}</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table>\
         <thead><tr><th scope=\"col\">workload</th><th scope=\"col\" class=\"n\">live</th><th scope=\"col\" class=\"n\">planned</th><th scope=\"col\">requests of each</th>\
         <th scope=\"col\">decided by</th><th scope=\"col\">declared at</th></tr></thead><tbody>\n{body}</tbody></table></div></details>\n",
        count(u32::try_from(rows.len()).unwrap_or(u32::MAX), "workload")
    )
}

/// Returns problems of the inputs, and notes.
pub(in crate::render) fn problems(plan: &Plan) -> String {
    let line = |d: &crate::plan::wire::Diagnostic| {
        let place = d.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let class = match &d.severity {
            DiagnosticSeverity::Error => "del",
            DiagnosticSeverity::Warning => "warn",
            DiagnosticSeverity::Behind
            | DiagnosticSeverity::Note
            | DiagnosticSeverity::Other(_) => "dim",
        };
        let hint = d
            .hint
            .as_ref()
            .map(|hint| format!("<br><span class=\"dim\">{}</span>", text(hint, LINE)));
        format!(
            "<li><span class=\"{class}\">{}</span> <code>{}</code> {} {}{}</li>\n",
            text(d.severity.as_str(), 20),
            text(&place, NAME),
            text(&d.object, NAME),
            text(&with_code(&d.message, d.code.as_deref()), LINE),
            hint.unwrap_or_default()
        )
    };
    // Errors are listed above, with everything that needs an operator.
    let is_other = |row: &&crate::plan::wire::Diagnostic| row.severity != DiagnosticSeverity::Error;
    let rows: Vec<_> = plan.capacity.diagnostics.iter().filter(is_other).collect();
    if rows.is_empty() {
        return String::new();
    }
    let items: String = rows.iter().take(500).copied().map(line).collect();
    format!(
        "<h2 id=\"notes\">Warnings and notes</h2>\n<details><summary>{}</summary><ul>\n{items}</ul></details>\n",
        count(u32::try_from(rows.len()).unwrap_or(u32::MAX), "line")
    )
}

/// Returns the full identity of the plan, its simulation and its prices.
pub(in crate::render) fn footer(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let prices = &capacity.cost.prices;
    let region = text(&capacity.base.world.cluster.region, NAME);
    let stand_in = if prices.is_other_region {
        format!("; standing in for {region}, where prices may differ")
    } else {
        String::new()
    };
    format!(
        "<footer><p>Plan <code>{}</code>, made for {:.0}. Simulated in {} scheduling orders. Prices: {} of {}, {}{stand_in}. \
         Fleetwright {}.</p></footer>\n",
        text(capacity.digest.as_str(), 80),
        plan.timestamp,
        capacity.placement.orders.len(),
        text(&prices.source, NAME),
        text(&prices.region.to_string(), NAME),
        text(&prices.date, NAME),
        text(&plan.tool_version, NAME)
    )
}
