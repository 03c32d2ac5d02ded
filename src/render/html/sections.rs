//! The sections of the page except the charts; a section without content is empty.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::amount::{amount, count, hourly};
use super::super::reason::{decider, rejection};
use super::super::row::{PlanRow, Symbol, count as counted};
use super::super::text_page::{TextPage, TextStyle};
use super::super::{comparison as words, detail, table};
use super::chart::nodes;
use super::escape::text;
use crate::plan::Plan;
use crate::plan::wire::{
    CheckStatus, ComparedWorkload, CostRow, DiagnosticSeverity, WorkloadKey, workload_key,
};

const NAME: usize = 120;
const LINE: usize = 600;
/// Most rows with details on the page; the plan file has all of them.
const DETAILS_MAX: usize = 300;
/// Most unchanged rows in the table; more of them are only counted.
const UNCHANGED_MAX: u32 = 200;
/// Most dots in the map of a zone.
const DOTS_MAX: usize = 200;
const DOTS_IN_LINE: usize = 20;

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
    let back = found.withdrawn.iter().take(100);
    let back = back.map(|said| format!("<li>withdrawn: {}</li>\n", text(said, LINE)));
    let items = |items: String| {
        if items.is_empty() { items } else { format!("<ul>\n{items}</ul>\n") }
    };
    format!(
        "<h2>Caused by this change</h2>\n<p><strong>{}</strong> against <code>{}</code>: {}</p>\n{}\
         <p class=\"dim\">Pending without it: {} {}</p>\n{}",
        text(&words::caused_text(found), LINE),
        text(&words::compared_with(found), NAME),
        list(&found.caused),
        items(pods.collect()),
        text(&words::pending_text(found), LINE),
        list(&found.pending),
        items(back.collect())
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
        let said = check.problems.iter().chain(&check.exceptions);
        let said: Vec<String> = said.map(|problem| text(problem, LINE)).collect();
        format!(
            "<tr><td class=\"{class}\">{}</td><td><code>{}</code></td><td>{}</td></tr>\n",
            text(check.status.as_str(), 20),
            text(&check.name, NAME),
            said.join("<br>")
        )
    };
    let rows: String = plan.checks.iter().map(row).collect();
    format!(
        "<h2>Policies</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>verdict</th><th>rule</th>\
         <th>finding</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// Returns the table of rows: changed, blocked, and a limited number of unchanged ones.
pub(in crate::render) fn changes(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    let unchanged = counted(rows, Symbol::Keep);
    let unchanged_nodes = nodes(rows).filter(|row| row.symbol == Symbol::Keep).count();
    let mut body = String::new();
    let mut details = 0;
    for row in rows.iter().filter(|row| row.symbol != Symbol::Keep || unchanged <= UNCHANGED_MAX) {
        details += usize::from(row.symbol.is_change());
        body.push_str(&line(plan, row, details <= DETAILS_MAX));
    }
    let more = if unchanged > UNCHANGED_MAX {
        format!(
            "<p class=\"dim\">{} unchanged; the plan's file has each.</p>\n",
            count(u32::try_from(unchanged_nodes).unwrap_or(u32::MAX), "node")
        )
    } else {
        String::new()
    };
    if body.is_empty() {
        return format!("<h2 id=\"changes\">Changes</h2>\n<p>Nothing changes.</p>\n{more}");
    }
    format!(
        "<h2 id=\"changes\">Changes</h2>\n<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th></th><th>node</th><th>type</th>\
         <th>zone</th><th>bought</th><th class=\"n\">pods</th><th class=\"n\">$/h</th><th>why</th></tr></thead>\n\
         <tbody>\n{body}</tbody></table></div>\n{more}"
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
    let pods = row.explain.iter().flat_map(|e| e.pods.keys()).take(20);
    let pods: Vec<&str> = pods.map(WorkloadKey::as_str).collect();
    let node = row.resource.change.before.as_ref();
    let node = node.and_then(|s| s.node.as_ref()).map(ToString::to_string).unwrap_or_default();
    let (kind, zone, bought) = (table::kind(row), table::zone(row), table::bought(row));
    let found = format!("{} {node} {kind} {zone} {bought} {pods:?}", row.resource.address);
    let why = text(&table::why(row), LINE);
    let why = if with_details && row.symbol.is_change() {
        let mut page = TextPage::new(&TextStyle { width: 100, ..TextStyle::default() });
        detail::write_block(&mut page, plan, &[row]);
        let block = page
            .finish()
            .lines()
            .map(|l| format!("{}\n", text(l, 240)))
            .collect::<Vec<_>>()
            .concat();
        format!("<details><summary>{why}</summary><pre>{block}</pre></details>")
    } else {
        why
    };
    format!(
        "<tr data-text=\"{}\"><td class=\"{class} mono\"><abbr title=\"{}\">{}</abbr></td><td class=\"mono\">{}</td>\
         <td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{why}</td></tr>\n",
        text(&found, LINE),
        row.symbol.meaning(),
        row.symbol.as_str(),
        text(row.resource.address.as_str(), NAME),
        text(&kind, NAME),
        text(&zone, NAME),
        text(&bought, NAME),
        table::pods(row),
        text(&table::price(row), NAME),
    )
}

/// Returns the unschedulable pods, each with the nearest remedy.
pub(in crate::render) fn unschedulable(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    if capacity.unschedulable.is_empty() && capacity.unresolved.is_empty() {
        return String::new();
    }
    let mut html = "<h2>Unschedulable pods</h2>\n<ul>\n".to_owned();
    for row in capacity.unschedulable.iter().take(500) {
        let place = row.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let reasons = row
            .reasons
            .iter()
            .take(8)
            .map(|reason| format!("<li>{}</li>", text(&rejection(reason), LINE)))
            .collect::<Vec<_>>()
            .concat();
        let nearest = row.nearest.as_ref().map(|n| format!("<p>Nearest: {}</p>", text(n, LINE)));
        let _ = writeln!(
            html,
            "<li data-text=\"{name}\"><strong>{name} ×{}</strong> <code>{}</code><ul>{reasons}</ul>{}</li>",
            row.pods,
            text(&place, NAME),
            nearest.unwrap_or_default(),
            name = text(&workload_key(&row.workload), NAME),
        );
    }
    for row in capacity.unresolved.iter().take(500) {
        let _ = writeln!(
            html,
            "<li>size not known: <strong>{}</strong> <code>{}</code> {}</li>",
            text(&row.object, NAME),
            text(&row.origin.to_string(), NAME),
            text(&row.reason, LINE)
        );
    }
    html.push_str("</ul>\n");
    html
}

/// Returns the cost by pool, zone and capacity type, and its scope.
pub(in crate::render) fn cost(plan: &Plan) -> String {
    let parts = &plan.capacity.cost.breakdown;
    if parts.is_empty() {
        return String::new();
    }
    let mut html = "<h2>Cost</h2>\n<div class=\"two\">\n".to_owned();
    for (title, rows) in [
        ("By pool", &parts.by_pool),
        ("By zone", &parts.by_zone),
        ("By capacity type", &parts.by_capacity_type),
    ] {
        html.push_str(&cost_table(title, rows));
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

fn cost_table(title: &str, rows: &[CostRow]) -> String {
    let most = rows.iter().map(|row| row.hourly_before.max(row.hourly_after).0).max().unwrap_or(0);
    let width = |price: crate::model::units::MicroUsd| {
        i128::from(price.0.max(0)) * 100 / i128::from(most.max(1))
    };
    let line = |row: &CostRow| {
        format!(
            "<tr><td>{}</td><td class=\"n\">{} → {}</td><td class=\"n\">{} → {}</td><td>\
             <svg class=\"share\" viewBox=\"0 0 100 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect class=\"before\" y=\"1\" width=\"{}\" height=\"5\"/><rect class=\"after\" y=\"8\" width=\"{}\" height=\"5\"/>\
             </svg></td></tr>\n",
            text(if row.name.is_empty() { "—" } else { &row.name }, NAME),
            row.nodes_before,
            row.nodes_after,
            hourly(row.hourly_before),
            hourly(row.hourly_after),
            width(row.hourly_before),
            width(row.hourly_after)
        )
    };
    let body: String = rows.iter().take(200).map(line).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>{title}</th><th class=\"n\">nodes</th>\
         <th class=\"n\">price</th><th>before, after</th></tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Returns a map of the zones, with a dot for each node.
pub(in crate::render) fn zones(rows: &[PlanRow<'_>]) -> String {
    let mut zones: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for row in nodes(rows) {
        let change = &row.resource.change;
        let name = |state: Option<&crate::plan::wire::NodeState>| {
            state.and_then(|s| s.zone.as_ref()).map(ToString::to_string)
        };
        let (before, after) = (name(change.before.as_ref()), name(change.after.as_ref()));
        let replaced = matches!(row.symbol, Symbol::TerminateFirst | Symbol::LaunchFirst);
        if before == after && !replaced {
            zones.entry(before.unwrap_or_default()).or_default().push("");
            continue;
        }
        for (zone, class) in [(before, "gone"), (after, "new")] {
            if let Some(zone) = zone {
                zones.entry(zone).or_default().push(class);
            }
        }
    }
    if zones.is_empty() {
        return String::new();
    }
    let map: String = zones.into_iter().map(|(zone, dots)| zone_map(&zone, dots)).collect();
    format!("<h2>Zones</h2>\n<div class=\"zones\">\n{map}</div>\n")
}

fn zone_map(zone: &str, mut dots: Vec<&'static str>) -> String {
    dots.sort_unstable();
    let of = |class: &str| {
        u32::try_from(dots.iter().filter(|dot| **dot == class).count()).unwrap_or(u32::MAX)
    };
    let (stay, new, removed) = (of(""), of("new"), of("gone"));
    // A dot stands for several nodes if there are many.
    let each = dots.len().div_ceil(DOTS_MAX).max(1);
    let drawn: Vec<&&str> = dots.iter().step_by(each).collect();
    let lines = drawn.len().div_ceil(DOTS_IN_LINE).max(1);
    let mut circles = String::new();
    for (index, class) in drawn.iter().enumerate() {
        let (x, y) = (index % DOTS_IN_LINE * 12 + 6, index / DOTS_IN_LINE * 12 + 6);
        let _ = write!(circles, "<circle class=\"dot {class}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>");
    }
    let scale = if each > 1 { format!(", a dot for {each}") } else { String::new() };
    let zone = if zone.is_empty() { "no zone" } else { zone };
    format!(
        "<div class=\"zone\"><strong>{}</strong><svg width=\"240\" height=\"{}\" role=\"img\">\
         <title>{stay} stay, {new} new, {removed} removed</title>{circles}</svg><span class=\"dim\">{} → {}\
         {scale}</span> <span class=\"add\">+{new}</span> <span class=\"del\">−{removed}</span></div>\n",
        text(zone, NAME),
        lines * 12,
        stay + removed,
        count(stay + new, "node")
    )
}

/// Returns the workloads, folded.
pub(in crate::render) fn demand(plan: &Plan) -> String {
    let line = |row: &crate::plan::wire::DemandRow| {
        let place = row.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let name = workload_key(&row.workload);
        format!(
            "<tr data-text=\"{0}\"><td>{0}</td><td class=\"n\">{1}</td><td class=\"n\">{2}</td><td>{3}</td>\
             <td>{4}</td><td><code>{5}</code></td></tr>\n",
            text(&name, NAME),
            row.counts.live,
            row.counts.planned,
            text(&amount(&row.requests), NAME),
            text(&decider(&row.decided_by), NAME),
            text(&place, NAME)
        )
    };
    let rows = &plan.capacity.demand;
    if rows.is_empty() {
        return String::new();
    }
    let body: String = rows.iter().take(2_000).map(line).collect();
    format!(
        "<h2>Workloads</h2>\n<details><summary>{}</summary><div class=\"scroll\" tabindex=\"0\"><table>\
         <thead><tr><th>workload</th><th class=\"n\">live</th><th class=\"n\">planned</th><th>requests of each</th>\
         <th>decided by</th><th>place</th></tr></thead><tbody>\n{body}</tbody></table></div></details>\n",
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
            text(&d.message, LINE),
            hint.unwrap_or_default()
        )
    };
    let rows = &plan.capacity.diagnostics;
    if rows.is_empty() {
        return String::new();
    }
    let items: String = rows.iter().take(500).map(line).collect();
    format!("<h2>Problems and notes</h2>\n<ul>\n{items}</ul>\n")
}

/// Returns the origin and the expiry of the plan.
pub(in crate::render) fn footer(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let base = &capacity.base;
    let commit = base.commit.as_deref().unwrap_or("no commit");
    format!(
        "</main>\n<footer><p>Plan <code>{}</code> of <code>{}</code>{}, made for {} over world <code>{}</code>, \
         observed {:.0}. It may be applied until {}.</p>\n<p>Simulated in {} scheduling orders. {} of {}, {}.</p></footer>\n",
        text(capacity.digest.as_str(), 80),
        text(commit, 60),
        if base.dirty { " with local changes" } else { "" },
        plan.timestamp,
        text(&base.world.name, NAME),
        base.world.taken_at,
        capacity.expires_at,
        capacity.placement.orders.len(),
        text(&capacity.cost.prices.source, NAME),
        text(&capacity.cost.prices.region.to_string(), NAME),
        text(&capacity.cost.prices.date, NAME)
    )
}
