//! The fleet: one line for each node, by pool and zone, with CPU and memory on a true scale.
//!
//! The length of a bar is the allocatable amount, and its filled part is requested. All bars of a
//! page share one scale. Large fleets fold equal nodes into one line, and say how many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::Timestamp;

use super::super::amount::{count, gib, hourly, span};
use super::super::row::{PlanRow, Symbol};
use super::super::table;
use super::escape::{search_text, text};
use super::fleet_bar::{Gauge, Scale};
use crate::model::desired::PoolLimits;
use crate::model::ids::{Address, PoolName};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{Amount, NodeState, PodCounts, ResourceKind, workload_key};

const NAME: usize = 120;
const LINE: usize = 600;
/// Most nodes of a fleet in which each node has a line at once. In a larger fleet, equal nodes of
/// a zone share a line.
const LARGE: usize = 80;
/// Fewest equal nodes that share a line.
const GROUP_MIN: usize = 3;
/// Most lines of nodes inside shared lines.
const INNER_MAX: usize = 600;
/// Most pools that are open.
const OPEN_MAX: usize = 20;
/// Most names listed in a shared line.
const NAMES_MAX: usize = 40;
/// Most workloads listed for a node.
const WORKLOADS_MAX: usize = 40;

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeMark {
    /// Its pods are being evicted.
    Draining,
    /// Its change is in progress.
    Applying,
    /// The plan removes it.
    Removed,
    /// The plan launches it.
    New,
    /// The plan updates it in place.
    Updated,
    /// Its removal is blocked.
    Blocked,
    /// It does not change.
    Kept,
}

impl NodeMark {
    /// Returns the word on the page; empty for an unchanged node.
    fn word(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Applying => "in progress",
            Self::Removed => "remove",
            Self::New => "new",
            Self::Updated => "update",
            Self::Blocked => "blocked",
            Self::Kept => "",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Applying => "applying",
            Self::Removed => "gone",
            Self::New => "new",
            Self::Updated => "chg",
            Self::Blocked => "blocked",
            Self::Kept => "kept",
        }
    }
}

/// A fact about a node that the plan does not have, such as the phase of its drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnnotation {
    /// Replaces the mark of the plan.
    pub mark: NodeMark,
    /// A sentence for the details; outside text is not escaped yet.
    pub note: String,
}

/// Annotations by the address of the row.
pub type NodeAnnotations = BTreeMap<Address, NodeAnnotation>;

/// Rows of nodes. Node groups are left out, because their members have rows.
pub(super) fn nodes<'a, 'p>(rows: &'a [PlanRow<'p>]) -> impl Iterator<Item = &'a PlanRow<'p>> {
    rows.iter().filter(|row| row.resource.kind != ResourceKind::AutoscalingGroup)
}

/// Whether a node exists before and after the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Stays,
    Launched,
    Removed,
}

/// One node, in its state after the plan; a removed node in its state before.
#[derive(Debug, Clone)]
struct FleetNode<'a> {
    row: &'a PlanRow<'a>,
    state: &'a NodeState,
    presence: Presence,
    mark: NodeMark,
    note: Option<&'a str>,
    cpu: Gauge,
    memory: Gauge,
    pods: u32,
    price: Option<MicroUsd>,
}

impl FleetNode<'_> {
    fn is_new(&self) -> bool {
        self.presence == Presence::Launched
    }

    fn is_removed(&self) -> bool {
        self.presence == Presence::Removed
    }

    fn kind(&self) -> String {
        let kind = self.state.instance_type.as_ref().map(ToString::to_string);
        let capacity_type = self.state.capacity_type.map(|kind| kind.to_string());
        let parts: Vec<String> = [kind, capacity_type].into_iter().flatten().collect();
        parts.join(" ")
    }

    /// Returns the node name up to its first dot; without a node, pool and key.
    fn name(&self) -> String {
        let resource = self.row.resource;
        let node = self.state.node.as_ref().filter(|_| !self.is_new()).map(ToString::to_string);
        match (node, &resource.index) {
            (Some(node), _) => node.split('.').next().unwrap_or_default().to_owned(),
            (None, Some(key)) => format!("{}[\"{key}\"]", resource.name),
            (None, None) => resource.name.clone(),
        }
    }

    /// Returns the state in words; empty for an unchanged node.
    fn state_word(&self) -> &'static str {
        match (self.mark, self.presence) {
            (NodeMark::Blocked, Presence::Launched) => "new, blocked",
            (NodeMark::Blocked, Presence::Removed) => "remove, blocked",
            (NodeMark::Applying, Presence::Launched) => "launching",
            (NodeMark::Applying, Presence::Removed) => "removing",
            (mark, _) => mark.word(),
        }
    }

    /// Returns the address, the node name and the instance ID.
    fn names(&self) -> Vec<String> {
        let node = self.state.node.as_ref().map(ToString::to_string);
        let instance = self.state.instance_id.as_ref().map(ToString::to_string);
        [Some(self.row.resource.address.to_string()), node, instance]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Nodes of a pool by zone.
type Zones<'a> = BTreeMap<String, Vec<FleetNode<'a>>>;

/// Renders the nodes by pool and zone. Ages refer to `now`.
pub(in crate::render) fn fleet(
    plan: &Plan,
    rows: &[PlanRow<'_>],
    annotations: &NodeAnnotations,
    limits: &BTreeMap<PoolName, PoolLimits>,
    now: Timestamp,
) -> String {
    let requests: BTreeMap<String, &Amount> = plan
        .capacity
        .demand
        .iter()
        .map(|row| (workload_key(&row.workload), &row.requests))
        .collect();
    let mut pools: BTreeMap<String, Zones<'_>> = BTreeMap::new();
    for row in nodes(rows) {
        for node in states(row, annotations, &requests) {
            let zone = node.state.zone.as_ref().map(ToString::to_string).unwrap_or_default();
            let pool = row.resource.name.clone();
            pools.entry(pool).or_default().entry(zone).or_default().push(node);
        }
    }
    if pools.is_empty() {
        return String::new();
    }
    let all = || pools.values().flat_map(BTreeMap::values).flatten();
    let scale = Scale::of(all().map(|node| (node.cpu.whole, node.memory.whole)));
    let is_large = all().count() > LARGE;
    let mut page = FleetPage { scale, now, limits, is_large, inner_left: INNER_MAX, folded: 0 };
    let is_changed = |zones: &Zones<'_>| zones.values().flatten().any(|n| n.mark != NodeMark::Kept);
    let changed = pools.values().filter(|zones| is_changed(zones)).count();
    let is_open =
        |zones: &Zones<'_>| pools.len() <= OPEN_MAX || changed <= OPEN_MAX && is_changed(zones);
    let body: String =
        pools.iter().map(|(pool, zones)| page.pool(pool, zones, is_open(zones))).collect();
    let folded = match page.folded {
        0 => String::new(),
        n => format!(
            "<p class=\"dim\">{n} nodes have no line of their own: they are counted in the lines marked ×, and the plan file has each.</p>\n"
        ),
    };
    format!(
        "<h2 id=\"nodes\">Nodes</h2>\n<p class=\"dim legend\"><span>Length: size, the full width is {} vCPU and {} GiB.</span>\
         <span>Filled: requested by pods.</span><span>Gray: requested by DaemonSets.</span></p>\n{folded}{body}",
        cores(scale.cpu),
        gib(scale.memory),
    )
}

/// Returns the states of a row that the page shows: a replacement has two.
fn states<'a>(
    row: &'a PlanRow<'a>,
    annotations: &'a NodeAnnotations,
    requests: &BTreeMap<String, &Amount>,
) -> Vec<FleetNode<'a>> {
    let change = &row.resource.change;
    let annotation = annotations.get(&row.resource.address);
    let removed = change.before.as_ref().map(|state| (state, Presence::Removed, NodeMark::Removed));
    let launched = change.after.as_ref().map(|state| (state, Presence::Launched, NodeMark::New));
    let stays = |mark| change.after.as_ref().map(|state| (state, Presence::Stays, mark));
    let shown = match row.symbol {
        Symbol::Terminate => [removed, None],
        Symbol::TerminateFirst | Symbol::LaunchFirst => [removed, launched],
        Symbol::Launch => [launched, None],
        Symbol::Update => [stays(NodeMark::Updated), None],
        Symbol::Blocked => [stays(NodeMark::Blocked), None],
        Symbol::Keep => [stays(NodeMark::Kept), None],
    };
    let mut nodes = Vec::new();
    for (state, presence, mark) in shown.into_iter().flatten() {
        // An annotation of a replacement is about the node that exists.
        let annotation = annotation.filter(|_| nodes.is_empty());
        nodes.push(FleetNode {
            mark: annotation.map_or(mark, |annotation| annotation.mark),
            note: annotation.map(|annotation| annotation.note.as_str()),
            ..fleet_node(row, state, presence, requests)
        });
    }
    nodes
}

fn fleet_node<'a>(
    row: &'a PlanRow<'a>,
    state: &'a NodeState,
    presence: Presence,
    requests: &BTreeMap<String, &Amount>,
) -> FleetNode<'a> {
    let none = PodCounts::default();
    let is_removed = presence == Presence::Removed;
    let pods =
        row.explain.map_or(&none, |why| if is_removed { &why.pods_before } else { &why.pods });
    let sum = |of: fn(&Amount) -> i64| {
        pods.iter().fold(0_i64, |sum, (name, n)| {
            let each = requests.get(name.as_str()).map_or(0, |amount| of(amount));
            sum.saturating_add(each.saturating_mul(i64::from(*n)))
        })
    };
    let gauge = |of: fn(&Amount) -> i64| Gauge {
        whole: of(&state.allocatable),
        pods: sum(of),
        daemons: row.explain.map_or(0, |why| of(&why.daemons)),
    };
    FleetNode {
        row,
        state,
        presence,
        mark: NodeMark::Kept,
        note: None,
        cpu: gauge(|amount| amount.cpu_milli),
        memory: gauge(|amount| amount.memory_bytes),
        pods: pods.values().fold(0, |sum, n| sum.saturating_add(*n)),
        price: row
            .explain
            .and_then(|why| if is_removed { why.hourly_before } else { why.hourly_after }),
    }
}

struct FleetPage<'a> {
    scale: Scale,
    now: Timestamp,
    limits: &'a BTreeMap<PoolName, PoolLimits>,
    /// True if equal nodes share a line.
    is_large: bool,
    /// Nodes of shared lines that still get a line of their own inside.
    inner_left: usize,
    /// Nodes without a line of their own.
    folded: usize,
}

impl FleetPage<'_> {
    fn pool(&mut self, pool: &str, zones: &Zones<'_>, is_open: bool) -> String {
        let all = || zones.values().flatten();
        let mut body = String::new();
        for (zone, nodes) in zones {
            let title = if zone.is_empty() { "no zone" } else { zone };
            let _ = writeln!(
                body,
                "<h4>{} <span class=\"dim\">{}</span></h4>",
                text(title, NAME),
                node_change(nodes.iter())
            );
            body.push_str(&self.zone(pool, zone, nodes));
        }
        let stays = || all().filter(|node| !node.is_removed());
        let (cpu, memory) =
            (Gauge::sum(stays().map(|n| n.cpu)), Gauge::sum(stays().map(|n| n.memory)));
        let price = price_text(stays().map(|node| node.price));
        // A pool that the plan empties has no utilization.
        let use_after = if cpu.whole > 0 {
            format!(
                " <span>CPU <b>{} %</b> of {} vCPU</span> <span>memory <b>{} %</b> of {} GiB</span> <span>{}</span>",
                cpu.percent(),
                cores(cpu.whole),
                memory.percent(),
                gib(memory.whole),
                price
            )
        } else {
            String::new()
        };
        let limits = self.limits.get(pool).map_or_else(String::new, |limits| {
            let stays: Vec<&FleetNode<'_>> = stays().collect();
            limits_text(limits, &stays)
        });
        format!(
            "<details class=\"pool\"{}><summary><h3>{}</h3> <span>{}</span>{use_after}{limits}</summary>\n{body}</details>\n",
            if is_open { " open" } else { "" },
            text(pool, NAME),
            node_change(all()),
        )
    }

    fn zone(&mut self, pool: &str, zone: &str, nodes: &[FleetNode<'_>]) -> String {
        let mut groups: BTreeMap<(NodeMark, String), Vec<&FleetNode<'_>>> = BTreeMap::new();
        for node in nodes {
            groups.entry((node.mark, node.kind())).or_default().push(node);
        }
        let mut html = String::new();
        for ((mark, _), nodes) in &groups {
            let is_busy = matches!(mark, NodeMark::Draining | NodeMark::Applying);
            if self.is_large && nodes.len() >= GROUP_MIN && !is_busy {
                html.push_str(&self.group(pool, zone, nodes));
            } else {
                html.extend(nodes.iter().map(|node| self.single(pool, zone, node)));
            }
        }
        html
    }

    fn single(&self, pool: &str, zone: &str, node: &FleetNode<'_>) -> String {
        self.line(pool, zone, &[node], &details(node))
    }

    /// Renders a line for equal nodes, with a line of each node inside as long as there is room.
    fn group(&mut self, pool: &str, zone: &str, nodes: &[&FleetNode<'_>]) -> String {
        let inside: String = if nodes.len() <= self.inner_left {
            self.inner_left -= nodes.len();
            nodes.iter().map(|node| self.single(pool, zone, node)).collect()
        } else {
            self.folded += nodes.len();
            let names = nodes.iter().take(NAMES_MAX);
            let names: Vec<String> =
                names.map(|node| format!("<li>{}</li>", text(&node.name(), NAME))).collect();
            let names = names.concat();
            format!("<ul class=\"pods mono\">{names}{}</ul>\n", more(nodes.len(), NAMES_MAX))
        };
        self.line(pool, zone, nodes, &inside)
    }

    /// Renders a node, or several equal nodes with their sums.
    fn line(&self, pool: &str, zone: &str, nodes: &[&FleetNode<'_>], inside: &str) -> String {
        let Some(node) = nodes.first() else { return String::new() };
        let n = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let name = if n > 1 { format!("×{n}") } else { node.name() };
        let (cpu, memory) =
            (Gauge::mean(nodes.iter().map(|n| n.cpu)), Gauge::mean(nodes.iter().map(|n| n.memory)));
        let pods = nodes.iter().fold(0_u32, |sum, node| sum.saturating_add(node.pods));
        let price = price_text(nodes.iter().map(|node| node.price));
        let launched = node.state.launched_at.filter(|_| n == 1 && !node.is_new());
        let age = launched
            .map_or_else(String::new, |at| format!("{} old", span(self.now.duration_since(at))));
        let mean = if n > 1 { "mean " } else { "" };
        format!(
            "<details class=\"node {}\" data-text=\"{}\" data-pool=\"{}\" data-zone=\"{}\"><summary>\
             <span class=\"id\"><b class=\"mark\">{}</b> <span class=\"mono\">{}</span></span><span class=\"kind\">{}</span>\
             <span class=\"meter\">{}<span>{mean}{} of {} vCPU, {} %</span></span>\
             <span class=\"meter\">{}<span>{mean}{} of {} GiB, {} %</span></span>\
             <span class=\"n\">{}</span><span class=\"n\">{price}</span><span class=\"n\">{age}</span></summary>\n{inside}</details>\n",
            node.mark.class(),
            found(nodes),
            text(pool, NAME),
            text(zone, NAME),
            node.state_word(),
            text(&name, NAME),
            text(&node.kind(), NAME),
            cpu.bar(self.scale.cpu),
            cores(cpu.used()),
            cores(cpu.whole),
            cpu.percent(),
            memory.bar(self.scale.memory),
            gib(memory.used()),
            gib(memory.whole),
            memory.percent(),
            count(pods, "pod"),
        )
    }
}

/// Returns the use of the limits of a pool by its nodes after the plan.
fn limits_text(limits: &PoolLimits, nodes: &[&FleetNode<'_>]) -> String {
    let sum = |of: &dyn Fn(&Amount) -> i64| {
        let amounts = nodes.iter().map(|node| of(&node.state.capacity));
        amounts.fold(0_i64, i64::saturating_add)
    };
    let mut parts: Vec<String> = limits
        .nodes
        .map(|most| format!("{} of {}", nodes.len(), count(most, "node")))
        .into_iter()
        .collect();
    for (resource, most) in &limits.resources {
        let name = resource.as_str();
        parts.push(match name {
            "cpu" => format!("{} of {} vCPU", cores(sum(&|a| a.cpu_milli)), cores(*most)),
            "memory" => format!("{} of {} GiB", gib(sum(&|a| a.memory_bytes)), gib(*most)),
            "ephemeral-storage" => {
                let used = gib(sum(&|a| a.ephemeral_storage_bytes));
                format!("{used} of {} GiB of ephemeral storage", gib(*most))
            }
            "pods" => format!("{} of {most} pods", sum(&|a| a.pods)),
            _ => {
                let used = sum(&|a| a.extended.get(name).copied().unwrap_or(0));
                format!("{used} of {most} {}", text(name, NAME))
            }
        });
    }
    if parts.is_empty() {
        return String::new();
    }
    format!(" <span>limits: {}</span>", parts.join(", "))
}

/// Returns the price of nodes, and how many of them have none.
fn price_text(prices: impl Iterator<Item = Option<MicroUsd>>) -> String {
    let (known, unknown): (Vec<_>, Vec<_>) = prices.partition(Option::is_some);
    if known.is_empty() && !unknown.is_empty() {
        return "price unknown".to_owned();
    }
    let sum = hourly(known.into_iter().flatten().sum());
    match unknown.len() {
        0 => sum,
        n => format!("{sum} + {n} without a price"),
    }
}

/// Returns the text that the search matches: the names of all nodes, their common type, their
/// states and their workloads.
fn found(nodes: &[&FleetNode<'_>]) -> String {
    let mut words: Vec<String> = nodes.iter().flat_map(|node| node.names()).collect();
    words.extend(nodes.first().map(|node| node.kind()));
    let states: BTreeSet<&str> = nodes.iter().map(|node| node.state_word()).collect();
    let workloads: BTreeSet<&str> =
        nodes.iter().flat_map(|node| listed_pods(node).into_keys()).collect();
    search_text(words.iter().map(String::as_str).chain(states).chain(workloads))
}

/// Returns the pods of a node by workload.
fn listed_pods<'a>(node: &FleetNode<'a>) -> BTreeMap<&'a str, u32> {
    let Some(why) = node.row.explain else { return BTreeMap::new() };
    let pods = if node.is_removed() { &why.pods_before } else { &why.pods };
    pods.iter().map(|(name, n)| (name.as_str(), *n)).collect()
}

/// Returns a list item for the items that are not listed.
fn more(all: usize, listed: usize) -> String {
    match all.saturating_sub(listed) {
        0 => String::new(),
        more => format!("<li>and {more} more</li>"),
    }
}

/// Renders the details of a node: names, reason and pods.
fn details(node: &FleetNode<'_>) -> String {
    let pods = listed_pods(node);
    let state = node.state;
    let known = |name: Option<String>| name.filter(|_| !node.is_new());
    let mut facts = vec![("Address", Some(node.row.resource.address.to_string()))];
    facts.push(("Node", known(state.node.as_ref().map(ToString::to_string))));
    facts.push(("Instance", known(state.instance_id.as_ref().map(ToString::to_string))));
    facts.push(("Image", state.image.clone()));
    facts.push(("Launched", known(state.launched_at.map(super::verdict::minute))));
    facts.push(("Reason", Some(table::why(node.row)).filter(|why| !why.is_empty())));
    facts.push(("Status", node.note.map(str::to_owned)));
    let mut html = "<dl class=\"facts\">".to_owned();
    for (name, value) in facts {
        if let Some(value) = value {
            let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", text(&value, LINE));
        }
    }
    html.push_str("</dl>");
    if pods.is_empty() {
        html.push_str("<p class=\"dim\">No pods except those of DaemonSets.</p>\n");
        return html;
    }
    let listed: Vec<String> = pods
        .iter()
        .take(WORKLOADS_MAX)
        .map(|(name, n)| format!("<li>{} <span class=\"dim\">×{n}</span></li>", text(name, NAME)))
        .collect();
    let listed = listed.concat();
    let _ =
        writeln!(html, "<ul class=\"pods mono\">{listed}{}</ul>", more(pods.len(), WORKLOADS_MAX));
    html
}

/// Returns the number of nodes, before and after where they differ.
fn node_change<'a>(nodes: impl Iterator<Item = &'a FleetNode<'a>>) -> String {
    let (mut stay, mut new, mut removed) = (0_u32, 0_u32, 0_u32);
    for node in nodes {
        match (node.is_removed(), node.is_new()) {
            (true, _) => removed += 1,
            (false, true) => new += 1,
            (false, false) => stay += 1,
        }
    }
    match (new, removed) {
        (0, 0) => count(stay, "node"),
        _ => format!("{} → {}", stay + removed, count(stay + new, "node")),
    }
}

/// Returns cores with at most one decimal.
fn cores(milli: i64) -> String {
    let tenths = (milli.max(0) + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_prices_are_not_zero() {
        let price = Some(MicroUsd(1_500_000));
        for (prices, text) in [
            (vec![price, price], "$3.0000/h"),
            (vec![price, None, None], "$1.5000/h + 2 without a price"),
            (vec![None], "price unknown"),
        ] {
            assert_eq!(price_text(prices.into_iter()), text);
        }
    }
}
