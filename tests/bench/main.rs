//! Measures planning: `cargo bench --bench plan [-- PART… | DIRECTORY…]`.
//!
//! The parts are
//! - `trees`: cost and bounds,
//! - `luck`: pods left over under other tie-breaking, of these trees or of the named directories,
//! - `few`: the plans of few pods against an exhaustive search,
//! - `alone`: the solver without a proof,
//! - `plans`: the examples, two synthetic trees, or the named directories,
//! - `mix`: the pod mix of Karpenter's benchmark,
//! - `standing`: consolidation and repeated planning of existing fleets,
//! - `scale`: plans of standing fleets of 500 to 50,000 nodes,
//! - `spot`: Spot nodes in drawn markets,
//! - `bytes`: the plan on one core and on all cores,
//! - `scheduler`: the scheduler model alone,
//! - `views`: the output formats,
//! - `repository`: 20,000 manifests and 500 overlays.
//!
//! Without arguments it runs all parts.
//!
//! `plans` prints the medians of several runs for each tree: the time to read it, to load the
//! catalog and to plan in this process, and the time of the whole `fleetwright plan` process. It
//! also prints the price of the fleet against its lower bound. The two synthetic trees have 10,000
//! pods each: one in 2,000 manifests, one in 1,000 manifests on some 2,000 small nodes. The
//! benchmark asserts no time.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

#[expect(dead_code, reason = "the tests do more in a browser than open a page")]
#[path = "../it/browser.rs"]
mod browser;
mod bytes;
mod curves;
mod diverse_pods;
mod large;
#[path = "../it/missing_tool.rs"]
mod missing_tool;
mod mix;
#[path = "../it/optimality.rs"]
mod optimality;
mod packing;
mod repository;
mod scale;
mod scheduler;
mod scheduling_replay;
mod spot;
mod standing_fleets;
mod tie_breaking;
mod trees;
mod views;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright::adapters::git::read_tree;
use fleetwright::catalog::{Catalog, allocation};
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::market::ZoneSetting;
use fleetwright::model::observed::{ClusterIdentity, Observed};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::wire::{Base, BaseWorld, DiagnosticSeverity};
use fleetwright::plan::{Facts, Plan, verify};
use fleetwright::planner::{Inputs, Scope, plan};
use fleetwright::solver::Settings;

const RUNS: usize = 5;

/// Names of the parts.
const PARTS: [&str; 13] = [
    "trees",
    "luck",
    "few",
    "alone",
    "plans",
    "mix",
    "standing",
    "scale",
    "spot",
    "bytes",
    "scheduler",
    "views",
    "repository",
];

/// A synthetic tree of Deployments whose requests rarely repeat.
#[derive(Clone, Copy)]
struct SyntheticTree {
    /// Number of Deployments.
    count: usize,
    /// Pods of each Deployment.
    replicas: usize,
    /// Minimum CPU request of a pod in millicores.
    cpu: usize,
    /// Exclusive upper limit of the vCPUs of a node.
    below_vcpus: usize,
}

const SYNTHETIC: [(&str, SyntheticTree); 2] = [
    ("made-manifests", SyntheticTree { count: 2_000, replicas: 5, cpu: 50, below_vcpus: 1_000 }),
    ("made-nodes", SyntheticTree { count: 1_000, replicas: 10, cpu: 300, below_vcpus: 5 }),
];

fn main() -> anyhow::Result<()> {
    let named: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).map(PathBuf::from).collect();
    let (parts, named): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|arg| PARTS.iter().any(|part| arg == Path::new(part)));
    let all = parts.is_empty() && named.is_empty();
    let wanted = |part: &str| all || parts.iter().any(|wanted| wanted == Path::new(part));
    println!("{} cores, medians of {RUNS} runs", std::thread::available_parallelism()?);
    if wanted("trees") {
        trees::rows()?;
    }
    if wanted("few") {
        few();
    }
    if wanted("alone") {
        packing::rows()?;
    }
    let ties = wanted("luck");
    if ties {
        tie_breaking::rows(&named)?;
    }
    if wanted("plans") || !named.is_empty() && !ties {
        plans(named)?;
    }
    if wanted("mix") {
        mix::rows()?;
    }
    if wanted("standing") {
        standing_fleets::rows()?;
    }
    if wanted("scale") {
        scale::rows()?;
    }
    if wanted("spot") {
        spot::rows()?;
    }
    if wanted("bytes") {
        bytes::rows()?;
    }
    if wanted("scheduler") {
        scheduler::rows();
    }
    if wanted("views") {
        views::rows()?;
    }
    if wanted("repository") {
        repository::rows()?;
    }
    Ok(())
}

/// Prints the number of cases with the cheapest possible fleet for few pods, and the largest excess
/// price.
fn few() {
    const CASES: u64 = 1_000;
    let found: Vec<optimality::FleetPrices> = (0..CASES).map(optimality::case).collect();
    let line = |name: &str, price: fn(&optimality::FleetPrices) -> MicroUsd| {
        let equal = found.iter().filter(|found| price(found) == found.cheapest).count();
        let over = |found: &optimality::FleetPrices| {
            let cheapest = found.cheapest.0.max(1);
            (price(found).0 - found.cheapest.0) * 10_000 / cheapest
        };
        let worst = found.iter().map(over).max().unwrap_or(0);
        println!(
            "few pods, {name:<10} {equal} of {CASES} cases equal the cheapest fleet, worst {}.{:02} % over",
            worst / 100,
            worst % 100
        );
    };
    line("packed", |found| found.packed);
    line("applied", |found| found.applied);
    let least = found.iter().filter(|found| found.held_for_less.is_none()).count();
    println!(
        "few pods, applied    in {least} of {CASES} cases no fleet that costs less, of all there are, holds the \
         pods in every order"
    );
}

/// Prints a row for each directory, or for the examples and the synthetic trees.
fn plans(named: Vec<PathBuf>) -> anyhow::Result<()> {
    let made = tempfile::tempdir()?;
    let trees = if named.is_empty() {
        for (name, tree) in SYNTHETIC {
            make_tree(&made.path().join(name), tree)?;
        }
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let mut trees: Vec<PathBuf> = std::fs::read_dir(examples)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.is_dir())
            .collect();
        trees.sort();
        trees.extend(SYNTHETIC.map(|(name, _)| made.path().join(name)));
        trees
    } else {
        named
    };
    println!(
        "{:<16} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>7} {:>7}",
        "milliseconds",
        "pods",
        "nodes",
        "unplaced",
        "read",
        "catalog",
        "plan",
        "judge",
        "process",
        "USD/h",
        "packed",
        "gap %",
        "errors"
    );
    for tree in trees {
        row(&tree)?;
    }
    Ok(())
}

fn row(tree: &Path) -> anyhow::Result<()> {
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut last = None;
    for _ in 0..RUNS {
        last = Some(run(tree, None, &mut times)?);
        let begun = Instant::now();
        whole_process(tree)?;
        times.entry("process").or_default().push(begun.elapsed());
    }
    let plan = last.expect("at least one run");
    let capacity = &plan.capacity;
    let errors =
        capacity.diagnostics.iter().filter(|d| d.severity == DiagnosticSeverity::Error).count();
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    println!(
        "{:<16} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>7} {:>7}",
        name,
        capacity.pods.total,
        plan.summary.nodes.after,
        capacity.pods.unschedulable,
        median(&mut times, "read"),
        median(&mut times, "catalog"),
        median(&mut times, "plan"),
        median(&mut times, "judge"),
        median(&mut times, "process"),
        capacity.cost.hourly_after.rounded(4),
        capacity.placement.packed_hourly.rounded(4),
        capacity.cost.gap_percent,
        errors,
    );
    println!("    {}", shapes(&plan));
    for diagnostic in
        capacity.diagnostics.iter().filter(|d| d.severity == DiagnosticSeverity::Error).take(3)
    {
        println!("    {} {}", diagnostic.object, diagnostic.message);
    }
    Ok(())
}

/// Returns the most frequent instance types of the plan with their counts.
fn shapes(plan: &Plan) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for state in plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref()) {
        *counts
            .entry(state.instance_type.as_ref().map(ToString::to_string).unwrap_or_default())
            .or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), name.clone()));
    counts
        .iter()
        .take(6)
        .map(|(name, count)| format!("{count} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn median(times: &mut BTreeMap<&str, Vec<Duration>>, step: &str) -> String {
    let list = times.get_mut(step).expect("a step that ran");
    list.sort();
    format!("{:.1}", list[list.len() / 2].as_secs_f64() * 1000.0)
}

/// Runs the `fleetwright plan` process.
fn whole_process(tree: &Path) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(["plan", "--world", "empty", "--at", "2026-11-01T00:00:00Z"])
        .arg(tree)
        .stdout(Stdio::null())
        .status()?;
    anyhow::ensure!(status.success(), "planning {} failed: {status}", tree.display());
    Ok(())
}

/// Plans `tree` from an empty world with `catalog`, or with the catalog of its region.
fn run(
    tree: &Path,
    catalog: Option<&Catalog>,
    times: &mut BTreeMap<&'static str, Vec<Duration>>,
) -> anyhow::Result<Plan> {
    let mut begun = Instant::now();
    let mut lap = |step| {
        times.entry(step).or_default().push(begun.elapsed());
        begun = Instant::now();
    };
    let files = read_tree(tree)?;
    let (fleet, _) = read_fleet(&files.tree);
    let desired = read(&files.tree, &fleet);
    lap("read");
    let zones: Vec<ZoneSetting> = fleet
        .cluster
        .zones
        .iter()
        .map(|(name, id)| ZoneSetting { name: name.clone(), id: id.clone() })
        .collect();
    let region = &fleet.cluster.region;
    let catalog = catalog.map_or_else(|| Catalog::load(region, &zones), |made| Ok(made.clone()))?;
    lap("catalog");
    let cluster = ClusterIdentity {
        name: fleet.cluster.name.clone(),
        region: fleet.cluster.region.to_string(),
        ..ClusterIdentity::default()
    };
    let observed = Observed::empty(cluster, "2026-11-01T00:00:00Z".parse()?);
    let world = BaseWorld::new("empty", &observed);
    let path = tree.display().to_string();
    let base = Base::new(path, files.base.tree.clone(), world, DemandMode::Live);
    let plan = plan(&Inputs {
        desired: &desired,
        observed: &observed,
        catalog: &catalog,
        base,
        at: observed.taken_at,
        demand: DemandMode::Live,
        is_forecast: false,
        scope: Scope::default(),
        settings: Settings::default(),
    });
    lap("plan");
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    lap("demand");
    let (desired, observed, catalog) = (&desired, &observed, &catalog);
    let _ = verify(&plan, &Facts { desired, demand: &demand, observed, catalog, allocation });
    lap("judge");
    Ok(plan)
}

fn make_tree(root: &Path, tree: SyntheticTree) -> anyhow::Result<()> {
    let SyntheticTree { count, replicas, cpu: least, below_vcpus } = tree;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
    for name in ["fleetwright.yaml", "platform/nodepool.yaml", "platform/agent.yaml"] {
        let text = std::fs::read_to_string(example.join(name))?
            .replace("  limits: { cpu: 200 }\n", "")
            .replace("values: [\"17\"]", &format!("values: [\"{below_vcpus}\"]"));
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("below the root"))?;
        std::fs::write(path, text)?;
    }
    for n in 0..count {
        let (cpu, memory) = (least + 25 * (n % 37), 128 + 32 * (n % 53));
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: app-{n}, namespace: team-{} }}\n\
             spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: app-{n} }} }}\n  template:\n    \
             metadata: {{ labels: {{ app: app-{n} }} }}\n    spec:\n      containers:\n        - name: app\n          \
             image: app\n          resources: {{ requests: {{ cpu: {cpu}m, memory: {memory}Mi }} }}\n",
            n % 40
        );
        let dir = root.join(format!("apps/team-{}", n % 40));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("app-{n}.yaml")), text)?;
    }
    Ok(())
}
