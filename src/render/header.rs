//! The header of a plan: origin, totals, cost and limitations.

use super::amount::{self, dollars, gib, hourly, list, signed_dollars, span};
use super::row::{PlanRow, Symbol, count};
use super::text_page::{StyledText, TextPage, Tone, plain};
use crate::model::ids::WorkloadId;
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{
    Base, BaseWorld, Change, Completeness, ConsolidationPotential, Contingency, DemandMode,
    DomainKind, ExceededLimit, ModeRow, NodeState, PodTotals, PoolContingency, Summary, Unsteered,
};

/// Displayed hex digits of a commit and of a digest.
const COMMIT_SHOWN: usize = 7;
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

/// Writes the header, with the symbols in use.
pub(super) fn write(page: &mut TextPage, plan: &Plan, rows: &[PlanRow<'_>]) {
    page.items(0, origin(plan));
    page.gap();
    let counts: Vec<StyledText> =
        Symbol::ALL.iter().filter_map(|s| count_label(*s, rows)).collect();
    if !counts.is_empty() {
        page.items(2, counts);
    }
    page.items(2, effect(plan));
    page.items(2, money(plan));
    if let Some(overlays) = super::overlay_prices::cost_text(&plan.capacity.cost, "->") {
        page.items(2, vec![plain(overlays)]);
    }
    if let Some(potential) = &plan.capacity.cost.consolidation_potential {
        page.items(2, consolidation_potential(potential));
    }
    if let Some(fargate) = super::fargate::line(&plan.capacity.cost) {
        page.items(2, fargate.iter().map(plain).collect());
    }
    for row in &plan.capacity.modes {
        page.items(2, mode_items(row, plan));
    }
    for line in limitations(plan) {
        page.line([StyledText::new(&line, Tone::Warning)]);
    }
}

fn origin(plan: &Plan) -> Vec<StyledText> {
    let Base { path, commit, dirty, world, .. } = &plan.capacity.base;
    let BaseWorld { name, cluster, taken_at, .. } = world;
    let base = match commit {
        None => format!("base {path}, no commit"),
        Some(commit) => {
            let changed = if *dirty { ", with local changes" } else { "" };
            format!("base {}{changed}", prefix(commit, COMMIT_SHOWN))
        }
    };
    let age = plan.timestamp.duration_since(*taken_at);
    // `--at` may name a time before the observation.
    let observed = if age.is_negative() {
        format!("{} after the time of the plan", span(-age))
    } else {
        format!("{} before", span(age))
    };
    let left = plan.capacity.expires_at.duration_since(plan.timestamp);
    let region =
        if cluster.region.is_empty() { String::new() } else { format!(" ({})", cluster.region) };
    vec![
        StyledText::new(&format!("Cluster {}{region}", cluster.name), Tone::Strong),
        plain(base),
        plain(format!("plan {}", prefix(plan.capacity.digest.as_str(), DIGEST_SHOWN))),
        plain(format!("world {name}, observed {taken_at:.0} ({observed})")),
        plain(format!("expires {} (in {})", plan.capacity.expires_at, span(left))),
    ]
}

/// Returns the first characters of an id; a file from outside may hold any text.
fn prefix(id: &str, chars: usize) -> String {
    id.chars().take(chars).collect()
}

fn count_label(symbol: Symbol, rows: &[PlanRow<'_>]) -> Option<StyledText> {
    match count(rows, symbol) {
        0 => None,
        n => Some(StyledText::new(
            &format!("{} {n} {}", symbol.as_str(), symbol.verb()),
            symbol.tone(),
        )),
    }
}

/// Returns milli-cores and memory bytes of all nodes, before and after.
fn totals(plan: &Plan) -> [(i64, i64); 2] {
    let of = |state: fn(&Change) -> Option<&NodeState>| {
        let states = plan.resource_changes.iter().filter_map(|row| state(&row.change));
        states.fold((0_i64, 0_i64), |(cpu, memory), state| {
            let capacity = &state.capacity;
            (cpu.saturating_add(capacity.cpu_milli), memory.saturating_add(capacity.memory_bytes))
        })
    };
    [of(|change| change.before.as_ref()), of(|change| change.after.as_ref())]
}

/// Returns cores and memory bytes of all nodes, before and after.
pub(super) fn capacity_totals(plan: &Plan) -> [(String, i64); 2] {
    totals(plan).map(|(cpu, memory)| (cores(cpu), memory))
}

fn effect(plan: &Plan) -> Vec<StyledText> {
    let [(cpu, memory), (cpu_after, memory_after)] = totals(plan);
    let nodes = plan.summary.nodes;
    let mut items = vec![
        plain(format!("nodes {} -> {}", nodes.before, nodes.after)),
        plain(format!("vCPU {} -> {}", cores(cpu), cores(cpu_after))),
        plain(format!("memory {} -> {} GiB", gib(memory), gib(memory_after))),
    ];
    items.extend(pods(plan));
    items
}

/// Returns milli-cores as cores, such as `3.5`.
pub(super) fn cores(milli: i64) -> String {
    match (milli / 1000, milli % 1000) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{:03}", rest.abs()).trim_end_matches('0').to_owned(),
    }
}

fn pods(plan: &Plan) -> Vec<StyledText> {
    let PodTotals {
        total,
        placed,
        unschedulable,
        served_by_cluster_autoscaler: served,
        fargate,
        unresolved,
        moved,
    } = plan.capacity.pods;
    let mut items = vec![plain(format!("pods {total}, {placed} placed"))];
    let mut add = |n: u32, state: &str, tone| {
        if n > 0 {
            items.push(StyledText::new(&format!("{n} {state}"), tone));
        }
    };
    add(moved, "moved", Tone::Plain);
    add(fargate, "on Fargate", Tone::Plain);
    add(served, "served by cluster-autoscaler", Tone::Plain);
    add(unschedulable, "unschedulable", Tone::Warning);
    let sources = if unresolved == 1 { "source not counted" } else { "sources not counted" };
    add(unresolved, sources, Tone::Warning);
    items
}

fn money(plan: &Plan) -> Vec<StyledText> {
    let cost = &plan.capacity.cost;
    let monthly = |price: MicroUsd| dollars(price.per_month(), 2);
    let mut items = vec![
        StyledText::new(&format!("{}/mo", signed_dollars(cost.monthly_delta, 2)), Tone::Strong),
        plain(format!("{} -> {}/mo", monthly(cost.hourly_before), monthly(cost.hourly_after))),
        plain(format!("{} -> {}", dollars(cost.hourly_before, 4), hourly(cost.hourly_after))),
    ];
    if cost.lower_bound_hourly != MicroUsd::ZERO {
        items.push(plain(format!("{} % above the lower bound", cost.gap_percent)));
    }
    items.extend(failure_domain_cost(plan));
    items
}

fn consolidation_potential(potential: &ConsolidationPotential) -> Vec<StyledText> {
    let ConsolidationPotential { saves_hourly, needed_hourly, moves, nodes } = potential;
    vec![
        plain(format!(
            "consolidation potential {}, below the minimum of {}",
            hourly(*saves_hourly),
            hourly(*needed_hourly)
        )),
        plain(format!("would replace {}", amount::count(*nodes, "node"))),
        plain(format!("would move {}", amount::count(*moves, "pod"))),
    ]
}

/// Returns the totals of the fleet at one demand mode.
fn mode_items(row: &ModeRow, plan: &Plan) -> Vec<StyledText> {
    let ModeRow { mode, nodes, cpu_milli, memory_bytes, pods, unschedulable, hourly: price } = row;
    let name = match mode {
        DemandMode::Floor => "floor",
        DemandMode::Live => "live",
        DemandMode::Ceiling => "ceiling",
    };
    let here = if plan.capacity.base.demand == *mode { " (planned)" } else { "" };
    let mut items = vec![
        plain(format!("at {name}{here}: pods {pods}")),
        plain(format!("nodes {nodes}")),
        plain(format!("vCPU {}", cores(*cpu_milli))),
        plain(format!("memory {} GiB", gib(*memory_bytes))),
        plain(hourly(*price)),
    ];
    if *unschedulable > 0 {
        items.push(StyledText::new(&format!("{unschedulable} unschedulable"), Tone::Warning));
    }
    items
}

/// Returns the failure domain limit that a node or zone exceeds.
pub(super) fn failure_domain_excess(beyond: &ExceededLimit) -> String {
    let ExceededLimit { pool, workload, domain, holds, of, most } = beyond;
    let whose = workload.as_ref().map_or_else(|| "all pods".to_owned(), WorkloadId::to_string);
    let domain = match domain {
        DomainKind::Node => "one node",
        DomainKind::Zone => "one zone",
    };
    format!(
        "Exceeds spec.failureDomains: {domain} of pool {pool} holds {holds} of {of} pods ({whose}); the limit is {most}."
    )
}

/// Returns the cost of failure domain limits.
fn failure_domain_cost(plan: &Plan) -> Option<StyledText> {
    let failure_domains = plan.capacity.placement.failure_domains.as_ref()?;
    if plan.summary.nodes.after == 0 {
        return None;
    }
    Some(plain(format!("includes {} for failure domain limits", hourly(failure_domains.hourly))))
}

/// Returns the price of a steered plan with and without nominations.
pub(super) fn steering_text(plan: &Plan, without: &Unsteered) -> String {
    let Unsteered { pending, nodes, hourly: price } = without;
    let steered = plan.capacity.cost.hourly_after;
    if *pending == 0 {
        return format!(
            "Steered, at {}. Without nominations, every simulated order schedules all pods as well.",
            hourly(steered)
        );
    }
    let pods = amount::count(*pending, "pod");
    let help = match nodes {
        0 => "no further node would hold all of them".to_owned(),
        // The planned nodes suit nominations. A plan without nominations has other nodes.
        more if more > pending => "a plan without --steer would have room for them".to_owned(),
        more => format!(
            "{} for {} would hold them. A plan without --steer may cost less than this sum",
            amount::count(*more, "more node"),
            hourly(*price)
        ),
    };
    format!(
        "Steered, at {}: the plan relies on nominated nodes. If kube-scheduler ignored them, up to {pods} would stay pending, and {help}.",
        hourly(steered)
    )
}

/// Most instance types of a pool that the contingency names.
const TYPES_SHOWN: usize = 3;

/// Returns the further nodes that an approval of the plan covers.
pub(super) fn contingency_text(contingency: &Contingency) -> String {
    let Contingency { nodes, hourly: price, pods: _, pools } = contingency;
    let (noun, them) = if *nodes == 1 { ("node", "this node") } else { ("nodes", "these nodes") };
    let of_pool = |of: &PoolContingency| {
        let types: Vec<String> = of.instance_types.iter().map(ToString::to_string).collect();
        let types = format!("{} or a cheaper type", list(&types, TYPES_SHOWN));
        if pools.len() == 1 { types } else { format!("{} in pool {}: {types}", of.nodes, of.pool) }
    };
    let pools: Vec<String> = pools.iter().map(of_pool).collect();
    format!(
        "Contingency: at most {nodes} further {noun} ({}), at most {}, for pods that stay pending. Approving the plan also approves {them}.",
        pools.join("; "),
        hourly(*price)
    )
}

/// Returns the limitations of the whole plan: errors, gaps, and reasons why it cannot be applied.
pub(super) fn limitations(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if super::is_errored_by_rules(plan) {
        lines.push("This plan breaks rules of its own check and cannot be applied.".to_owned());
    } else if plan.errored {
        lines.push(
            "The inputs have errors: this plan removes nothing and cannot be applied.".to_owned(),
        );
    }
    let placement = &plan.capacity.placement;
    lines.extend(placement.unsteered.map(|without| steering_text(plan, &without)));
    lines.extend(placement.contingency.as_ref().map(contingency_text));
    let failure_domains = plan.capacity.placement.failure_domains.as_ref();
    lines.extend(
        failure_domains
            .into_iter()
            .flat_map(|failure_domains| &failure_domains.beyond)
            .map(failure_domain_excess),
    );
    for (source, completeness) in &plan.capacity.base.world.sources {
        match completeness {
            Completeness::Complete => {}
            Completeness::Partial { reason } => {
                lines.push(format!("Only a part of {source} could be read: {reason}"));
            }
            Completeness::Failed { reason } => {
                lines.push(format!("{source} could not be read: {reason}"));
            }
        }
    }
    lines.extend(super::unread::sentences(plan));
    if !plan.complete {
        lines.push(
            "This plan covers a part only (--target, --exclude, or the scope of the controller)."
                .to_owned(),
        );
    }
    let denied: Vec<&str> =
        plan.checks.iter().filter(|c| c.status.is_denial()).map(|c| c.name.as_str()).collect();
    if !denied.is_empty() {
        lines.push(format!("Denied by policy: {}", denied.join(", ")));
    } else if !plan.applyable && !plan.errored && has_changes(plan) {
        let world = &plan.capacity.base.world;
        let why = world.unchangeable_reason();
        let why = why.unwrap_or_else(|| format!("world {} cannot change", world.name));
        lines.push(format!(
            "Preview: {why}, so this plan cannot be applied. Use --world live to plan against your cluster."
        ));
    }
    lines
}

fn has_changes(plan: &Plan) -> bool {
    let Summary { add, change, destroy, .. } = plan.summary;
    add + change + destroy > 0
}
