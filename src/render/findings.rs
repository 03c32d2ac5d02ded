//! Findings of a plan: unschedulable pods, unresolved sources, policies, diagnostics and prices.

use std::collections::BTreeMap;

use super::amount::{amount, count, dollars, hourly};
use super::problems::{ProblemLine, write_lines};
use super::reason::cause;
use super::text_page::{StyledText, TableColumn, TextPage, Tone, Verbosity, plain};
use super::unread;
use crate::catalog::{TYPES_UNPRICED, ZONES_ASSUMED};
use crate::plan::Plan;
use crate::plan::wire::{
    Amount, AutoscalerGrowthRow, CheckStatus, CostBreakdown, CostRow, DemandRow, Diagnostic,
    DiagnosticSeverity, EvictionRow, FARGATE_REASON, Sizing, UnschedulableRow, workload_key,
};

const PART_COLUMNS: [TableColumn; 4] = [
    TableColumn::left("by", 13),
    TableColumn::left("", 44),
    TableColumn::left("nodes", 12),
    TableColumn::left("$/h", 30),
];

/// Writes unschedulable pods, unresolved sources, findings of policies, diagnostics and prices.
pub(super) fn write(page: &mut TextPage, plan: &Plan, verbosity: Verbosity) {
    match verbosity {
        Verbosity::Everything | Verbosity::Full => {
            unschedulable(page, plan);
            served(page, plan);
            unresolved(page, plan, verbosity);
            checks(page, plan);
            diagnostics(page, plan, verbosity);
            sizes(page, plan);
            parts(page, plan);
            prices(page, plan);
        }
        Verbosity::Concise | Verbosity::Summary => {
            errors(page, plan, verbosity);
            tally(page, plan);
            // A price of another region or an estimate is no detail.
            let cost = &plan.capacity.cost;
            if cost.prices.is_other_region || cost.estimated > 0 || cost.unpriced > 0 {
                prices(page, plan);
            }
        }
    }
}

fn unschedulable(page: &mut TextPage, plan: &Plan) {
    let rows = &plan.capacity.unschedulable;
    if rows.is_empty() {
        return;
    }
    page.title(format!("Unschedulable: {}", count(plan.capacity.pods.unschedulable, "pod")));
    let mut groups: Vec<Vec<&UnschedulableRow>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| has_same_cause(group[0], row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    for group in groups {
        write_unschedulable(page, plan, &group);
    }
}

/// Returns whether pods of two workloads are unschedulable for the same reasons.
fn has_same_cause(a: &UnschedulableRow, b: &UnschedulableRow) -> bool {
    let alone = |row: &UnschedulableRow| row.eviction.is_none() && row.displaces.is_empty();
    let cause = |row: &UnschedulableRow| (row.offerings, row.reasons.clone(), row.nearest.clone());
    alone(a) && alone(b) && cause(a) == cause(b)
}

/// Writes the unschedulable pods of workloads that have the same cause, and the cause once: how
/// many offerings each reason rejected.
pub(super) fn write_unschedulable(page: &mut TextPage, plan: &Plan, rows: &[&UnschedulableRow]) {
    let Some(UnschedulableRow { offerings, reasons, nearest, eviction, displaces, .. }) =
        rows.first()
    else {
        return;
    };
    for UnschedulableRow { workload, origin, pods, .. } in rows {
        let place = origin.as_ref().map_or_else(String::new, |origin| format!("  {origin}"));
        let demand = plan.capacity.demand.iter().find(|demand| demand.workload == *workload);
        let needs = demand.map_or_else(String::new, |demand| needs(&demand.requests));
        page.line([
            StyledText::new("  ! ", Tone::Warning),
            plain(format!("{} x{pods}{needs}", workload_key(workload))),
            StyledText::new(&place, Tone::Faint),
        ]);
    }
    let (stuck, reasons): (Vec<_>, Vec<_>) =
        reasons.iter().partition(|reason| reason.reason == FARGATE_REASON);
    for reason in &stuck {
        page.text(format!("      no node is planned for them: Fargate {}", reason.detail));
    }
    match (*offerings, stuck.is_empty()) {
        (0, true) if reasons.is_empty() => page.text("      no pool has an offering that fits"),
        (0, true) => page.text("      no pool has an offering that fits:"),
        (0, false) => {}
        (offerings, _) => page.text(format!("      of {}:", count(offerings, "offering"))),
    }
    for reason in reasons {
        page.text(format!("        {}", cause(reason)));
    }
    if let Some(nearest) = nearest {
        page.text(format!("      fix: {nearest}"));
    }
    if let Some(EvictionRow { lets_in, evicts }) = eviction {
        let (lets_in, evicts) = (format!("{lets_in} of them"), list(evicts));
        page.text(format!("      kube-scheduler evicts {evicts} to let {lets_in} in"));
    }
    if !displaces.is_empty() {
        let text =
            format!("      if they are scheduled first, {} stay pending instead", list(displaces));
        page.text(text);
    }
}

/// Writes the groups that Cluster Autoscaler scales up, each with its pods.
fn served(page: &mut TextPage, plan: &Plan) {
    let rows = &plan.capacity.cluster_autoscaler;
    if !rows.is_empty() {
        let pods = count(plan.capacity.pods.served_by_cluster_autoscaler, "pod");
        page.title(format!("Served by cluster-autoscaler: {pods}"));
    }
    for row in rows {
        write_growth(page, row);
    }
}

/// Writes a group that Cluster Autoscaler scales up, with its pods.
pub(super) fn write_growth(page: &mut TextPage, row: &AutoscalerGrowthRow) {
    page.text(format!("  * {} {}", row.address, growth(row)));
    page.text(format!("      for {}", list(&row.pods)));
}

/// Returns how Cluster Autoscaler scales up a group, in words.
pub(super) fn growth(row: &AutoscalerGrowthRow) -> String {
    let AutoscalerGrowthRow { autoscaler, nodes, maximum, hourly: price, .. } = row;
    let price =
        price.map_or_else(|| "price unknown".to_owned(), |price| format!("+{}", hourly(price)));
    let nodes = count(*nodes, "node");
    let others: Vec<String> = row.instead.iter().map(ToString::to_string).collect();
    let instead = if others.is_empty() {
        String::new()
    } else {
        format!("; its expander may choose {} instead", super::amount::list(&others, 3))
    };
    format!(
        "needs {nodes} more, of at most {maximum} ({price}, scaled up by {autoscaler}{instead})"
    )
}

pub(super) fn list(pods: &BTreeMap<String, u32>) -> String {
    let each = pods.iter().map(|(workload, pods)| format!("{workload} x{pods}"));
    each.collect::<Vec<_>>().join(", ")
}

fn needs(requests: &Amount) -> String {
    format!(": needs {}", amount(requests))
}

fn unresolved(page: &mut TextPage, plan: &Plan, verbosity: Verbosity) {
    for (code, rows) in unread::by_code(plan) {
        page.title(format!("Not counted: {} [{code}]", unread::counted(code, rows.len())));
        page.text(format!("  {} {}", unread::treatment(plan), code.remedy()));
        let all = verbosity == Verbosity::Everything || rows.len() <= UNREAD_SHOWN_MAX + 1;
        let shown = if all { rows.len() } else { UNREAD_SHOWN_MAX };
        for row in rows.iter().take(shown) {
            page.line([
                StyledText::new("  ? ", Tone::Warning),
                plain(format!("{}: {}", row.object, unread::reason(plan, row))),
                plain(unread::running(row)),
                StyledText::new(&format!("  {}", row.origin), Tone::Faint),
            ]);
        }
        if rows.len() > shown {
            page.text(format!("  ? and {} more (listed with -v)", rows.len() - shown));
        }
    }
}

/// Most listed sources of one kind.
const UNREAD_SHOWN_MAX: usize = 10;

fn checks(page: &mut TextPage, plan: &Plan) {
    let rows: Vec<_> =
        plan.checks.iter().filter(|check| check.status != CheckStatus::Pass).collect();
    if rows.is_empty() {
        return;
    }
    page.title("Policies");
    for check in rows {
        page.text(format!("  {}: {}", check.status, check.name));
        for problem in &check.problems {
            page.text(format!("    {problem}"));
        }
    }
}

/// Returns whether a note comes in nearly every plan, and does not concern this one.
fn is_standing(diagnostic: &Diagnostic, plan: &Plan) -> bool {
    let cost = &plan.capacity.cost;
    diagnostic.severity == DiagnosticSeverity::Note
        && (diagnostic.message.starts_with(ZONES_ASSUMED)
            || diagnostic.message.contains(TYPES_UNPRICED) && cost.unpriced == 0)
}

/// Returns whether unschedulable pods already name the message as their cause.
fn is_cause(diagnostic: &Diagnostic, plan: &Plan) -> bool {
    let mut causes = plan.capacity.unschedulable.iter().flat_map(|row| &row.reasons);
    diagnostic.severity == DiagnosticSeverity::Warning
        && causes.any(|cause| cause.detail == diagnostic.message)
}

fn diagnostics(page: &mut TextPage, plan: &Plan, verbosity: Verbosity) {
    let all = verbosity == Verbosity::Everything;
    let shown = plan.capacity.diagnostics.iter();
    let shown = shown.filter(|diagnostic| {
        !is_cause(diagnostic, plan) && (all || !is_standing(diagnostic, plan))
    });
    let mut rows: Vec<ProblemLine> = shown.map(ProblemLine::from).collect();
    if rows.is_empty() {
        return;
    }
    // Errors come first; within a level the plan sorts by file and line.
    rows.sort_by_key(|line| line.level);
    page.gap();
    write_lines(page, &rows, verbosity);
}

/// Writes the errors alone, which no view omits: they are why the command fails.
fn errors(page: &mut TextPage, plan: &Plan, verbosity: Verbosity) {
    let all = plan.capacity.diagnostics.iter();
    let errors: Vec<ProblemLine> = all
        .filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error)
        .map(ProblemLine::from)
        .collect();
    if !errors.is_empty() {
        page.gap();
        write_lines(page, &errors, verbosity);
    }
}

/// Writes the workloads whose requests an autoscaler changed.
fn sizes(page: &mut TextPage, plan: &Plan) {
    let rows = plan.capacity.demand.iter();
    let sized = rows.filter_map(|row| Some((row, row.sized_by.as_ref().filter(|s| s.applied)?)));
    let sized: Vec<(&DemandRow, &Sizing)> = sized.collect();
    if sized.is_empty() {
        return;
    }
    page.title("Requests that autoscalers set:");
    for (row, Sizing { autoscaler, origin, because, .. }) in sized {
        let key = workload_key(&row.workload);
        page.line([
            plain(format!("  {key}{} by {autoscaler} ({because})", needs(&row.requests))),
            StyledText::new(&format!("  {origin}"), Tone::Faint),
        ]);
    }
}

/// Writes the cost by pool, zone and capacity type where there are several.
fn parts(page: &mut TextPage, plan: &Plan) {
    let CostBreakdown { by_pool, by_zone, by_capacity_type, range, committed, .. } =
        &plan.capacity.cost.breakdown;
    let kinds = [("pool", by_pool), ("zone", by_zone), ("capacity type", by_capacity_type)];
    let several = kinds.into_iter().filter(|(_, rows)| rows.len() > 1);
    let row = |kind: &str, row: &CostRow| {
        let CostRow { name, nodes_before, nodes_after, hourly_before, hourly_after } = row;
        let name = if name.is_empty() { "no pool" } else { name };
        [
            kind.to_owned(),
            name.to_owned(),
            format!("{nodes_before} -> {nodes_after}"),
            format!("{} -> {}", dollars(*hourly_before, 4), hourly(*hourly_after)),
        ]
        .map(plain)
        .to_vec()
    };
    let rows: Vec<Vec<StyledText>> =
        several.flat_map(|(kind, rows)| rows.iter().map(move |part| row(kind, part))).collect();
    if !rows.is_empty() {
        page.title("Cost in parts:");
        page.table(&PART_COLUMNS, &rows);
    }
    let mut notes = Vec::new();
    if let Some(range) = range {
        let (low, high) = (dollars(range.hourly_low, 4), hourly(range.hourly_high));
        notes.push(format!("{low} to {high} after: {}", range.because.join("; ")));
    }
    if let Some(committed) = committed {
        let before = dollars(committed.hourly_before, 4);
        let after = hourly(committed.hourly_after);
        notes.push(format!("{before} -> {after} with commitments"));
    }
    for note in notes {
        page.text(format!("  {note}"));
    }
}

fn prices(page: &mut TextPage, plan: &Plan) {
    let cost = &plan.capacity.cost;
    let prices = &cost.prices;
    let mut notes = vec![format!("{} of {}, {}", prices.source, prices.region, prices.date)];
    if prices.is_other_region {
        let region = &plan.capacity.base.world.cluster.region;
        notes.push(format!("standing in for {region}, where prices may differ"));
    }
    if cost.estimated > 0 {
        notes.push(format!("{} at an estimated price", count(cost.estimated, "node")));
    }
    if cost.unpriced > 0 {
        notes
            .push(format!("{} without a known price, counted as $0", count(cost.unpriced, "node")));
    }
    page.gap();
    page.line([StyledText::new(&format!("Prices: {}.", notes.join("; ")), Tone::Faint)]);
}

/// Writes the numbers of findings that a shorter view omits.
fn tally(page: &mut TextPage, plan: &Plan) {
    let capacity = &plan.capacity;
    let of = |n: usize, noun: &str| {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        (n > 0).then(|| count(n, noun))
    };
    let warnings =
        capacity.diagnostics.iter().filter(|found| found.severity == DiagnosticSeverity::Warning);
    let left_out: Vec<String> = [
        of(warnings.count(), "warning"),
        of(capacity.unschedulable.len(), "unschedulable workload"),
        of(capacity.cluster_autoscaler.len(), "cluster-autoscaler group"),
        of(capacity.unresolved.len(), "unresolved source"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !left_out.is_empty() {
        page.gap();
        page.line([StyledText::new(
            &format!("Not shown here: {}.", left_out.join(", ")),
            Tone::Warning,
        )]);
    }
}
