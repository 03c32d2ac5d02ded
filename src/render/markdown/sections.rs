//! The sections of a comment. Each is built for its budget; a section without content is empty.

use std::fmt::Write as _;

use super::super::amount::{count, dollars, gib, hourly, signed_dollars};
use super::super::reason::cause;
use super::super::row::{PlanRow, Symbol, count as counted, displaced_text};
use super::super::text_page::{TextPage, TextStyle};
use super::super::{
    comparison as words, detail, findings, header, is_errored_by_rules, open_points,
    overlay_prices, unread,
};
use super::escape::{code, fence, prose};
use super::length;
use super::row_groups::{sign, table};
use crate::plan::wire::{Check, CheckStatus, CostRow, DiagnosticSeverity, workload_key};
use crate::plan::{Plan, is_incomplete};

const NAME_WIDTH: usize = 80;
const LINE_WIDTH: usize = 300;
/// Displayed characters of a digest.
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

/// Returns the heading: cluster and changes.
pub(super) fn title(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    let cluster = code(&plan.capacity.base.world.cluster.name, NAME_WIDTH);
    let counts: Vec<String> = Symbol::ALL
        .into_iter()
        .filter(|symbol| symbol.is_change() && counted(rows, *symbol) > 0)
        .map(|symbol| {
            let text = format!("{} to {}", counted(rows, symbol), symbol.verb());
            if is_removal(symbol) { format!("**{text}**") } else { text }
        })
        .collect();
    let changes = match (counts.is_empty(), plan.complete) {
        (true, true) => "no changes".to_owned(),
        (true, false) => "no changes in this part".to_owned(),
        (false, _) => counts.join(" · "),
    };
    let changes = match (open_points(plan), is_incomplete(plan)) {
        (None, _) => changes,
        (Some(open), true) if counts.is_empty() => format!("incomplete ({open})"),
        (Some(open), true) => format!("incomplete, {changes} ({open})"),
        (Some(open), false) => format!("{changes} ({open})"),
    };
    format!("### Fleetwright plan for {cluster}: {changes}\n")
}

fn is_removal(symbol: Symbol) -> bool {
    matches!(symbol, Symbol::Terminate | Symbol::TerminateFirst | Symbol::LaunchFirst)
}

/// Returns warnings that a reader must not overlook.
pub(super) fn caution(plan: &Plan, rows: &[PlanRow<'_>], room: usize) -> String {
    let mut lines = Vec::new();
    let removed: Vec<&PlanRow<'_>> =
        rows.iter().filter(|row| row.symbol == Symbol::Terminate).collect();
    if !removed.is_empty() {
        let n = u32::try_from(removed.len()).unwrap_or(u32::MAX);
        let first: Vec<String> =
            removed.iter().take(3).map(|row| code(row.resource.address.as_str(), 60)).collect();
        let more = if removed.len() > first.len() { ", …" } else { "" };
        let are = if n == 1 { "is" } else { "are" };
        lines.push(format!(
            "{} {are} removed: {}{more}; {}.",
            count(n, "node"),
            first.join(", "),
            displaced_text(plan, rows)
        ));
    }
    let standing = header::limitations(plan);
    lines.extend(standing.iter().map(|line| prose(line, LINE_WIDTH)));
    if plan.capacity.base.guard.as_ref().is_some_and(|guard| guard.changed) {
        lines.push(
            "This revision changes settings or policies that guard an apply; those of the base \
             revision were used."
                .to_owned(),
        );
    }
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = lines.into_iter().map(|line| format!("> {line}")).collect();
    format!("> [!CAUTION]\n{}", fit(&lines, room, "> …"))
}

/// Returns the changes that this revision causes, and those that were pending.
pub(super) fn comparison(plan: &Plan, room: usize) -> String {
    let Some(found) = &plan.capacity.comparison else { return String::new() };
    let names = |list: &[crate::model::ids::Address]| {
        let first: Vec<String> = list.iter().take(6).map(|a| code(a.as_str(), 60)).collect();
        let more = if list.len() > first.len() { ", …" } else { "" };
        if first.is_empty() { String::new() } else { format!(": {}{more}", first.join(", ")) }
    };
    let against = words::compared_names(found);
    let against: Vec<String> = against.iter().map(|name| code(name, NAME_WIDTH)).collect();
    let mut lines = vec![format!(
        "**Caused by this change** (against {}): {}{}",
        against.join(", "),
        words::caused_text(found),
        names(&found.caused)
    )];
    let overlays = overlay_prices::comparison_text(found);
    lines.extend(overlays.map(|text| format!("{}.", prose(&text, LINE_WIDTH))));
    lines.push(String::new());
    for row in &found.workloads {
        let place = row
            .origin
            .as_ref()
            .map_or_else(String::new, |o| format!(" {}", code(&o.to_string(), NAME_WIDTH)));
        let name = code(&workload_key(&row.workload), NAME_WIDTH);
        lines.push(format!("* {name} {}{place}", words::pods_text(row, "→")));
    }
    let mut below = vec![format!(
        "{}: {}{}",
        words::pending_title(&code(&found.revision, NAME_WIDTH)),
        words::pending_text(found),
        names(&found.pending)
    )];
    let taken_back = found.withdrawn.iter().take(6);
    below.push(String::new());
    below.extend(taken_back.map(|text| format!("* withdrawn: {}", code(text, LINE_WIDTH))));
    if found.withdrawn.len() > 6 {
        below.push("* …".to_owned());
    }
    let below = format!("{}\n", below.join("\n").trim_end());
    let above = fit(&lines, room.saturating_sub(length(&below)), "* …");
    format!("{}\n\n{below}", above.trim_end())
}

/// Returns the totals before and after.
pub(super) fn effect(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let (nodes, pods, cost) = (&plan.summary.nodes, &capacity.pods, &capacity.cost);
    let [before, after] = header::capacity_totals(plan);
    let monthly = |price: crate::model::units::MicroUsd| dollars(price.per_month(), 2);
    let mut pods_text = format!("{}, {} placed", pods.total, pods.placed);
    for (n, state) in [
        (pods.unschedulable, "unschedulable"),
        (pods.served_by_cluster_autoscaler, "served by cluster-autoscaler"),
        (pods.fargate, "on Fargate"),
        (pods.unresolved, "not counted (sources)"),
    ] {
        if n > 0 {
            let _ = write!(pods_text, ", **{n} {state}**");
        }
    }
    let gap = if cost.hourly_after.0 > 0 && cost.lower_bound_hourly.0 > 0 {
        format!(", {} % above the lower bound", prose(&cost.gap_percent, 20))
    } else {
        String::new()
    };
    let overlays = overlay_prices::cost_text(cost, "→")
        .map_or_else(String::new, |text| format!("\n{}.\n", prose(&text, LINE_WIDTH)));
    format!(
        "| | before | after |\n|---|--:|--:|\n| nodes | {} | {} |\n| vCPU | {} | {} |\n\
         | memory, GiB | {} | {} |\n| per month | {} | {} (**{}**) |\n| per hour | {} | {}{gap} |\n\n\
         Pods: {pods_text}.\n{overlays}",
        nodes.before,
        nodes.after,
        before.0,
        after.0,
        gib(before.1),
        gib(after.1),
        monthly(cost.hourly_before),
        monthly(cost.hourly_after),
        signed_dollars(cost.monthly_delta, 2),
        hourly(cost.hourly_before),
        hourly(cost.hourly_after),
    )
}

/// Returns the findings of policies, denials first.
pub(super) fn policies(plan: &Plan, room: usize) -> String {
    if plan.checks.is_empty() {
        return String::new();
    }
    let with = |status| plan.checks.iter().filter(|c| c.status == status).count();
    let mut lines = vec![
        format!(
            "**Policies**: {} passed, {} denied, {} warned, {} could not be judged",
            with(CheckStatus::Pass),
            with(CheckStatus::Fail),
            with(CheckStatus::Warn),
            with(CheckStatus::Error) + with(CheckStatus::Unknown)
        ),
        String::new(),
    ];
    for status in [CheckStatus::Fail, CheckStatus::Error, CheckStatus::Unknown, CheckStatus::Warn] {
        for check in plan.checks.iter().filter(|check| check.status == status) {
            lines.extend(findings_of(check));
        }
    }
    for check in plan.checks.iter().filter(|check| !check.exceptions.is_empty()) {
        let why = prose(&check.exceptions.join("; "), LINE_WIDTH);
        lines.push(format!("* exception from {}: {why}", code(&check.name, NAME_WIDTH)));
    }
    fit(&lines, room, "* …")
}

fn findings_of(check: &Check) -> Vec<String> {
    let mark = if check.status == CheckStatus::Warn { "⚠️" } else { "❌" };
    let name = code(&check.name, NAME_WIDTH);
    let line = |problem: &String| format!("* {mark} {name}: {}", prose(problem, LINE_WIDTH));
    if check.problems.is_empty() {
        return vec![format!("* {mark} {name}")];
    }
    check.problems.iter().map(line).collect()
}

/// Returns the rows that remove nodes, one by one or grouped.
pub(super) fn removals(rows: &[PlanRow<'_>], room: usize) -> String {
    let rows: Vec<&PlanRow<'_>> = rows.iter().filter(|row| is_removal(row.symbol)).collect();
    section_of("Removed or replaced", &rows, room)
}

/// Returns the rows that add or change nodes, and blocked rows.
pub(super) fn changes(rows: &[PlanRow<'_>], room: usize) -> String {
    let is_other = |row: &&PlanRow<'_>| !is_removal(row.symbol) && row.symbol != Symbol::Keep;
    let others: Vec<&PlanRow<'_>> = rows.iter().filter(is_other).collect();
    let mut text = section_of("Added, changed or blocked", &others, room.saturating_sub(80));
    let unchanged = counted(rows, Symbol::Keep);
    if unchanged > 0 {
        let _ = write!(text, "\n{} {} unchanged.\n", sign(Symbol::Keep), count(unchanged, "node"));
    }
    text
}

fn section_of(title: &str, rows: &[&PlanRow<'_>], room: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading = format!("#### {title}: {}\n\n", rows.len());
    let table = table(rows, room.saturating_sub(length(&heading)));
    format!("{heading}{table}")
}

/// Returns the unschedulable pods, each with the nearest remedy.
pub(super) fn unschedulable(plan: &Plan, room: usize) -> String {
    let capacity = &plan.capacity;
    if capacity.unschedulable.is_empty() {
        return String::new();
    }
    let heading = format!("#### Unschedulable pods: {}\n", capacity.pods.unschedulable);
    let mut lines = vec![heading];
    for row in &capacity.unschedulable {
        let place = row.origin.as_ref().map(|o| format!(" {}", code(&o.to_string(), NAME_WIDTH)));
        let reasons: Vec<String> = row.reasons.iter().take(3).map(cause).collect();
        let nearest = row.nearest.as_ref().map(|text| format!(" Fix: {}.", prose(text, 300)));
        lines.push(format!(
            "* {} × {}{}: {}.{}",
            row.pods,
            code(&workload_key(&row.workload), NAME_WIDTH),
            place.unwrap_or_default(),
            prose(&reasons.join("; "), LINE_WIDTH),
            nearest.unwrap_or_default()
        ));
    }
    fit(&lines, room, "* …")
}

/// Returns the groups that Cluster Autoscaler scales up, each with its pods.
pub(super) fn served(plan: &Plan, room: usize) -> String {
    let capacity = &plan.capacity;
    if capacity.cluster_autoscaler.is_empty() {
        return String::new();
    }
    let pods = capacity.pods.served_by_cluster_autoscaler;
    let mut lines = vec![format!("#### Served by cluster-autoscaler: {pods}\n")];
    lines.extend(capacity.cluster_autoscaler.iter().map(|row| {
        let (grows, pods) = (findings::growth(row), findings::list(&row.pods));
        let group = code(row.address.as_str(), NAME_WIDTH);
        format!("* {group} {}: {}.", prose(&grows, LINE_WIDTH), prose(&pods, LINE_WIDTH))
    }));
    fit(&lines, room, "* …")
}

/// Returns the sources that were not read, folded. The caution counts them.
pub(super) fn not_counted(plan: &Plan, room: usize) -> String {
    let mut text = String::new();
    let groups = unread::by_code(plan);
    let room = room / groups.len().max(1);
    for (kind, rows) in groups {
        let mut lines = vec![format!("{}\n", prose(kind.remedy(), LINE_WIDTH))];
        lines.extend(rows.iter().map(|row| {
            format!(
                "* {} {}: {}",
                code(&row.object, NAME_WIDTH),
                code(&row.origin.to_string(), NAME_WIDTH),
                prose(unread::reason(plan, row), LINE_WIDTH)
            )
        }));
        let title = format!("Not counted: {} [{kind}]", unread::counted(kind, rows.len()));
        text.push_str(&fold(&title, &fit(&lines, room.saturating_sub(160), "* …")));
    }
    text
}

/// Returns the cost by pool, zone and capacity type, folded.
pub(super) fn cost(plan: &Plan, room: usize) -> String {
    let parts = &plan.capacity.cost.breakdown;
    if parts.is_empty() {
        return String::new();
    }
    let mut lines = vec!["| | | nodes | per hour |".to_owned(), "|---|---|--:|--:|".to_owned()];
    for (kind, rows) in [
        ("pool", &parts.by_pool),
        ("zone", &parts.by_zone),
        ("capacity type", &parts.by_capacity_type),
    ] {
        lines.extend(rows.iter().map(|row| cost_row(kind, row)));
    }
    lines.push(String::new());
    if let Some(range) = &parts.range {
        lines.push(format!(
            "Between {} and {} after: {}.",
            hourly(range.hourly_low),
            hourly(range.hourly_high),
            prose(&range.because.join("; "), LINE_WIDTH)
        ));
    }
    if let Some(committed) = &parts.committed {
        lines.push(format!(
            "With commitments: {} → {}.",
            hourly(committed.hourly_before),
            hourly(committed.hourly_after)
        ));
    }
    lines.push(format!("Included: {}.", prose(&parts.included.join("; "), LINE_WIDTH)));
    lines.push(format!("Not included: {}.", prose(&parts.not_included.join("; "), LINE_WIDTH)));
    fold("Cost in parts", &fit(&lines, room.saturating_sub(80), "…"))
}

fn cost_row(kind: &str, row: &CostRow) -> String {
    let CostRow { name, nodes_before, nodes_after, hourly_before, hourly_after } = row;
    let (name, before, after) = (code(name, 60), hourly(*hourly_before), hourly(*hourly_after));
    format!("| {kind} | {name} | {nodes_before} → {nodes_after} | {before} → {after} |")
}

/// Returns problems of the inputs; errors are not folded.
pub(super) fn problems(plan: &Plan, room: usize) -> String {
    let mut errors = Vec::new();
    let mut others = Vec::new();
    for diagnostic in &plan.capacity.diagnostics {
        let place =
            diagnostic.origin.as_ref().map(|o| format!("{} ", code(&o.to_string(), NAME_WIDTH)));
        let text = format!("{} {}", diagnostic.object, diagnostic.message);
        // A finding about the whole plan names no object.
        let text = prose(text.trim_start(), LINE_WIDTH);
        let line = format!(
            "* {}: {}{text}",
            prose(diagnostic.severity.as_str(), 20),
            place.unwrap_or_default()
        );
        let list = if diagnostic.severity == DiagnosticSeverity::Error {
            &mut errors
        } else {
            &mut others
        };
        list.push(line);
    }
    let room = room.saturating_sub(120) / 2;
    let mut text = String::new();
    if !errors.is_empty() {
        let title = if is_errored_by_rules(plan) { "Rules broken" } else { "Errors" };
        let _ = write!(text, "#### {title}\n\n{}", fit(&errors, room, "* …"));
    }
    if !others.is_empty() {
        let title = format!("Warnings and notes: {}", others.len());
        text.push_str(&fold(&title, &fit(&others, room, "* …")));
    }
    text
}

/// Returns the details of as many changes as fit, folded, as a diff.
pub(super) fn details(plan: &Plan, rows: &[PlanRow<'_>], room: usize) -> String {
    let style = TextStyle { width: 100, ..TextStyle::default() };
    let mut body = String::new();
    let mut left_out = 0_u32;
    for row in rows.iter().filter(|row| row.symbol.is_change()) {
        if left_out > 0 {
            left_out += 1;
            continue;
        }
        let mut page = TextPage::new(&style);
        detail::write_block(&mut page, plan, &[row]);
        let block: String = page.finish().lines().map(diff_line).collect();
        if length(&body) + length(&block) + 400 > room {
            left_out = 1;
        } else {
            body.push_str(&block);
        }
    }
    if body.is_empty() {
        return String::new();
    }
    let more = if left_out == 0 {
        String::new()
    } else {
        format!(
            "\n{} more are in the plan's file: `fleetwright show`.\n",
            count(left_out, "change")
        )
    };
    let fence = fence(&body);
    fold("Details", &format!("{fence}diff\n{body}{fence}\n{more}"))
}

/// Moves the symbol of a line to its first column, so that `diff` colors it.
fn diff_line(line: &str) -> String {
    // A plan from outside may hold long values.
    let line = super::super::text_page::shorten(line, 160);
    let rest = line.trim_start();
    if rest.starts_with("+/-") || rest.starts_with("-/+") {
        return format!("!{}\n", line.replacen(' ', "", 1));
    }
    let symbol = match rest.chars().next() {
        Some('+') => '+',
        Some('-') => '-',
        Some('~' | '!') => '!',
        _ => ' ',
    };
    if symbol == ' ' {
        return format!("{line}\n");
    }
    format!("{symbol}{}\n", line.replacen(rest, rest.get(1..).unwrap_or_default(), 1))
}

/// Returns the origin and the expiry of the plan.
pub(super) fn footer(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let base = &capacity.base;
    let commit = match &base.commit {
        Some(commit) if base.dirty => format!("{} with local changes", code(&prefix(commit), 20)),
        Some(commit) => code(&prefix(commit), 20),
        None => format!("{}, no commit", code(&base.path, NAME_WIDTH)),
    };
    let digest: String = capacity.digest.as_str().chars().take(DIGEST_SHOWN).collect();
    format!(
        "<sub>Plan {} of {commit} · world {} observed {:.0} · may be applied until {} · every row is in \
         the plan's file: `fleetwright show`</sub>\n",
        code(&digest, 30),
        code(&base.world.name, NAME_WIDTH),
        base.world.taken_at,
        capacity.expires_at
    )
}

fn prefix(commit: &str) -> String {
    commit.chars().take(10).collect()
}

/// Returns a folded section.
fn fold(title: &str, body: &str) -> String {
    format!("<details><summary>{title}</summary>\n\n{body}\n</details>\n")
}

/// Returns as many lines as fit into `room`; if some do not fit, the last line is `more`.
fn fit(lines: &[String], room: usize, more: &str) -> String {
    let mut text = String::new();
    let mut left = room.saturating_sub(length(more) + 40);
    for (index, line) in lines.iter().enumerate() {
        let length = length(line) + 1;
        if length > left {
            let left = lines[index..].iter().filter(|line| !line.trim().is_empty()).count();
            let _ = writeln!(text, "{more} and {left} more lines");
            return text;
        }
        left -= length;
        text.push_str(line);
        text.push('\n');
    }
    text
}
