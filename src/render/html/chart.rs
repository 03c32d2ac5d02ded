//! Charts of nodes before and after: one bar per node, filled by the requests of each workload for
//! the scarcer of CPU and memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::amount::count;
use super::super::row::{PlanRow, Symbol};
use super::escape::text;
use crate::plan::Plan;
use crate::plan::wire::{Amount, NodeState, ResourceKind, WorkloadKey, workload_key};

/// Most pictures per side. Beyond that, similar nodes share one.
const PICTURES_MAX: usize = 240;
/// Workloads with a color of their own; the others share one.
const OWN_COLORS: usize = 9;
const WIDTH: u32 = 30;
const HEIGHT: u32 = 96;

/// Returns the section with both sides, by pool.
pub(in crate::render) fn pictures(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    if nodes(rows).next().is_none() {
        return String::new();
    }
    let palette = Palette::from_plan(plan, rows);
    let requests: BTreeMap<String, &Amount> = plan
        .capacity
        .demand
        .iter()
        .map(|row| (workload_key(&row.workload), &row.requests))
        .collect();
    let before = nodes(rows).filter_map(|row| picture(row, PlanSide::Before, &requests));
    let after = nodes(rows).filter_map(|row| picture(row, PlanSide::After, &requests));
    format!(
        "<h2 id=\"nodes\">Nodes before and after</h2>\n{}<div class=\"two\">\n{}{}</div>\n",
        palette.legend(),
        panel("Before", before.collect(), &palette),
        panel("After", after.collect(), &palette)
    )
}

/// Returns the rows of nodes. Node groups are left out, because their members have rows.
pub(super) fn nodes<'a, 'p>(rows: &'a [PlanRow<'p>]) -> impl Iterator<Item = &'a PlanRow<'p>> {
    rows.iter().filter(|row| row.resource.kind != ResourceKind::AutoscalingGroup)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlanSide {
    Before,
    After,
}

/// One node, or several similar nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodePicture {
    pool: String,
    class: &'static str,
    kind: String,
    zone: String,
    /// Workload, number of pods, and their share of the node in thousandths.
    parts: Vec<(String, u32, u32)>,
    daemons: u32,
    /// The scarcer resource: `cpu` or `memory`.
    by: &'static str,
}

fn picture(
    row: &PlanRow<'_>,
    side: PlanSide,
    requests: &BTreeMap<String, &Amount>,
) -> Option<(NodePicture, String)> {
    let change = &row.resource.change;
    let state = match side {
        PlanSide::Before => change.before.as_ref()?,
        PlanSide::After => change.after.as_ref()?,
    };
    let explain = row.explain?;
    let pods = match side {
        PlanSide::Before => &explain.pods_before,
        PlanSide::After => &explain.pods,
    };
    let sum = |of: fn(&Amount) -> i64| -> i64 {
        let requested = pods.iter().map(|(name, n)| {
            requests.get(name.as_str()).map_or(0, |amount| of(amount)).saturating_mul(i64::from(*n))
        });
        requested.fold(0, i64::saturating_add).saturating_add(of(&explain.daemons))
    };
    let (cpu, memory) = (|a: &Amount| a.cpu_milli, |a: &Amount| a.memory_bytes);
    let (cpu_share, memory_share) =
        (share(sum(cpu), cpu(&state.allocatable)), share(sum(memory), memory(&state.allocatable)));
    let (by, of): (_, fn(&Amount) -> i64) =
        if cpu_share >= memory_share { ("cpu", cpu) } else { ("memory", memory) };
    let whole = of(&state.allocatable);
    let part = |(name, n): (&WorkloadKey, &u32)| {
        let requested = requests
            .get(name.as_str())
            .map_or(0, |amount| of(amount))
            .saturating_mul(i64::from(*n));
        (name.to_string(), *n, share(requested, whole))
    };
    let picture = NodePicture {
        pool: row.resource.name.clone(),
        class: class(row.symbol, side),
        kind: name_of(state.instance_type.as_ref()),
        zone: name_of(state.zone.as_ref()),
        parts: pods.iter().map(part).collect(),
        daemons: share(of(&explain.daemons), whole),
        by,
    };
    Some((picture, label(row, state)))
}

fn name_of<T: ToString>(name: Option<&T>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

/// Returns the text that search matches: all names of the node.
fn label(row: &PlanRow<'_>, state: &NodeState) -> String {
    let node = name_of(state.node.as_ref());
    format!("{} {node} {}", row.resource.address, name_of(state.instance_id.as_ref()))
}

/// Returns a share in thousandths, at most 1000.
fn share(part: i64, whole: i64) -> u32 {
    let share = i128::from(part.max(0)) * 1000 / i128::from(whole.max(1));
    u32::try_from(share).unwrap_or(1000).min(1000)
}

fn class(symbol: Symbol, side: PlanSide) -> &'static str {
    match (symbol, side) {
        (Symbol::Terminate | Symbol::TerminateFirst | Symbol::LaunchFirst, PlanSide::Before) => {
            "gone"
        }
        (Symbol::Launch | Symbol::TerminateFirst | Symbol::LaunchFirst, PlanSide::After) => "new",
        (Symbol::Update, _) => "chg",
        (Symbol::Blocked, _) => "blocked",
        (Symbol::Keep, _)
        | (Symbol::Launch, PlanSide::Before)
        | (Symbol::Terminate, PlanSide::After) => "",
    }
}

fn panel(title: &str, pictures: Vec<(NodePicture, String)>, palette: &Palette) -> String {
    let nodes = pictures.len();
    let mut alike: BTreeMap<NodePicture, Vec<String>> = BTreeMap::new();
    for (picture, label) in pictures {
        alike.entry(picture).or_default().push(label);
    }
    let shared = nodes > PICTURES_MAX;
    let mut pools: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    let mut drawn = 0;
    for (picture, labels) in alike {
        let pool = pools.entry(picture.pool.clone()).or_default();
        pool.0 += labels.len();
        if drawn >= PICTURES_MAX {
            continue;
        }
        if shared {
            pool.1.push(draw(&picture, &labels, palette));
            drawn += 1;
        } else {
            let each =
                labels.iter().map(|label| draw(&picture, std::slice::from_ref(label), palette));
            pool.1.extend(each);
        }
    }
    let total = count(u32::try_from(nodes).unwrap_or(u32::MAX), "node");
    let mut html = format!("<section class=\"panel\"><h3>{title}: {total}</h3>\n");
    for (pool, (nodes, bars)) in pools {
        let n = u32::try_from(nodes).unwrap_or(u32::MAX);
        let (pool, n) = (text(&pool, 60), count(n, "node"));
        let _ =
            write!(html, "<h3>{pool} <span class=\"dim\">{n}</span></h3>\n<ul class=\"nodes\">\n");
        html.push_str(&bars.concat());
        html.push_str("</ul>\n");
    }
    html.push_str("</section>\n");
    html
}

fn draw(picture: &NodePicture, labels: &[String], palette: &Palette) -> String {
    let NodePicture { pool, class, kind, zone, parts, daemons, by } = picture;
    let mut bars = String::new();
    let mut at = HEIGHT;
    let mut used = 0;
    let mut bar = |share: u32, class: &str| {
        let height = (share * HEIGHT).div_ceil(1000).min(at);
        used += share;
        at -= height;
        if height > 0 {
            let _ = write!(
                bars,
                "<rect class=\"{class}\" x=\"0\" y=\"{at}\" width=\"{WIDTH}\" height=\"{height}\"/>"
            );
        }
    };
    bar(*daemons, "cd");
    for (workload, _, share) in parts {
        bar(*share, palette.class(workload));
    }
    let listed: Vec<String> =
        parts.iter().take(12).map(|(name, n, _)| format!("{name} ×{n}")).collect();
    let first = labels.first().map_or("", String::as_str);
    let address = first.split(' ').next().unwrap_or_default();
    let what = match *class {
        "gone" => ", is removed",
        "new" => ", is new",
        "chg" => ", is changed",
        "blocked" => ", is blocked",
        _ => "",
    };
    let (percent, n) = (used.min(1000) / 10, labels.len());
    let many = if n > 1 { format!(" and {} alike", n - 1) } else { String::new() };
    let title =
        format!("{address}{many}{what}: {kind} {zone}, {percent} % of {by}; {}", listed.join(", "));
    let under =
        if n > 1 { format!("×{n}") } else { text(kind.rsplit('.').next().unwrap_or(kind), 10) };
    let found = text(
        &format!(
            "{} {pool} {kind} {zone} {}",
            labels.iter().take(4).cloned().collect::<Vec<_>>().join(" "),
            listed.join(" ")
        ),
        400,
    );
    format!(
        "<li data-text=\"{found}\"><svg class=\"node {class}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\
         <title>{}</title>{bars}</svg>{under}</li>\n",
        text(&title, 600)
    )
}

/// Colors of workloads: the largest have their own.
struct Palette {
    classes: BTreeMap<WorkloadKey, usize>,
}

const CLASSES: [&str; 10] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c8", "c9", "c7"];

impl Palette {
    fn from_plan(plan: &Plan, rows: &[PlanRow<'_>]) -> Self {
        let mut pods: BTreeMap<&WorkloadKey, u64> = BTreeMap::new();
        for explain in rows.iter().filter_map(|row| row.explain) {
            for (name, n) in explain.pods.iter().chain(&explain.pods_before) {
                *pods.entry(name).or_insert(0) += u64::from(*n);
            }
        }
        let cpu: BTreeMap<String, i64> = plan
            .capacity
            .demand
            .iter()
            .map(|row| (workload_key(&row.workload), row.requests.cpu_milli))
            .collect();
        let weight = |name: &str, n: u64| {
            i128::from(cpu.get(name).copied().unwrap_or(0).max(1)) * i128::from(n)
        };
        let mut largest: Vec<(&WorkloadKey, u64)> = pods.into_iter().collect();
        largest.sort_by_key(|(name, n)| (std::cmp::Reverse(weight(name.as_str(), *n)), *name));
        let own = largest.into_iter().take(OWN_COLORS).enumerate();
        Self { classes: own.map(|(index, (name, _))| (name.clone(), index)).collect() }
    }

    fn class(&self, workload: &str) -> &'static str {
        CLASSES[self.classes.get(workload).copied().unwrap_or(OWN_COLORS)]
    }

    fn legend(&self) -> String {
        let mut own: Vec<(&WorkloadKey, &usize)> = self.classes.iter().collect();
        own.sort_by_key(|(_, index)| **index);
        let square = |class: &str| {
            format!(
                "<svg width=\"11\" height=\"11\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"11\" height=\"11\"/></svg>"
            )
        };
        let mut html = "<p class=\"legend\">".to_owned();
        for (name, index) in own {
            let _ =
                write!(html, "<span>{}{}</span>", square(CLASSES[*index]), text(name.as_str(), 60));
        }
        let _ = writeln!(
            html,
            "<span>{}other workloads</span><span>{}DaemonSets</span>\
             <span class=\"del\">dashed: removed</span><span class=\"add\">green: new</span></p>",
            square(CLASSES[OWN_COLORS]),
            square("cd")
        );
        html
    }
}
