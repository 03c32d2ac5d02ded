//! Plans of the examples and of a tree of the benchmark, held in orders of our own.
//!
//! The other trees of the benchmark take minutes without optimization: `cargo bench --bench plan --
//! trees` holds each of the six in the same orders and prints what is left over.

use std::path::{Path, PathBuf};

use fleetwright::catalog::{Catalog, ZoneSetting};
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::engine::{Inputs, Scope, plan};
use fleetwright::fleet::{ClusterIdentity, Observed, read_world};
use fleetwright::git::read_tree;
use fleetwright::manifest::{read, read_fleet};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Base, BaseWorld};
use fleetwright::solve::Settings;

use crate::replay::{Cast, Order, Rules, UNSEEN, WAYS, Way};

/// What is read without being rendered: kubectl and helm are not everywhere.
const RENDERED: &str = "overlays";

/// Ways in which the larger tree is held; all of them would take minutes.
const FEW: usize = 4;

/// Returns the plan for the world that the tree names, and how many pods of each way are left over.
fn replayed(root: &Path, ways: &[Way]) -> (Plan, Vec<usize>) {
    let files = read_tree(root).expect("the tree is readable");
    let (fleet, _) = read_fleet(&files.tree);
    let desired = read(&files.tree, &fleet);
    let setting =
        |(name, id): (&_, &Option<_>)| ZoneSetting { name: Clone::clone(name), id: id.clone() };
    let zones: Vec<ZoneSetting> = fleet.cluster.zones.iter().map(setting).collect();
    let catalog = Catalog::load(&fleet.cluster.region, &zones).expect("the region is embedded");
    let at = "2026-11-01T00:00:00Z".parse().expect("a time");
    let world = root.join("world/world.json");
    let observed = match std::fs::read(&world) {
        Ok(text) => read_world(&text).expect("the world is readable"),
        Err(_) => Observed::empty(ClusterIdentity::default(), at),
    };
    let base = Base {
        path: root.display().to_string(),
        repository: None,
        commit: None,
        tree: files.base.tree.clone(),
        dirty: false,
        directory: None,
        rendered: Vec::new(),
        world: BaseWorld {
            name: "replayed".to_owned(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        },
        demand: DemandMode::Live,
        preconditions: Vec::new(),
        guard: None,
        judged_by: Vec::new(),
    };
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
    assert!(plan.capacity.pods.placed > 0, "{} places pods", root.display());
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    let cast = Cast { desired: &desired, demand: &demand, observed: &observed };
    let left = ways.iter().map(|way| cast.left_over(&plan, *way)).collect();
    (plan, left)
}

fn left_over(root: &Path, ways: &[Way]) -> Vec<usize> {
    replayed(root, ways).1
}

fn root(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

#[test]
fn no_example_leaves_a_pod_over_in_any_order() {
    let examples = std::fs::read_dir(root("examples")).expect("there are examples");
    let paths = examples.map(|entry| entry.expect("listed").path());
    let (mut tried, mut wrong) = (0, Vec::new());
    for path in paths.filter(|path| path.is_dir() && !path.ends_with(RENDERED)) {
        let ways = [&WAYS[..], &UNSEEN].concat();
        let left = left_over(&path, &ways);
        tried += 1;
        if left.iter().any(|count| *count > 0) {
            wrong.push(format!("{}: {left:?} of {ways:?}", path.display()));
        }
    }
    assert!(wrong.is_empty() && tried >= 10, "{tried} tried: {wrong:#?}");
}

#[test]
fn a_tree_of_two_thousand_pods_leaves_none_over() {
    let left = left_over(&root("tests/bench/trees/web"), &WAYS[..FEW]);
    assert_eq!(left, [0; FEW]);
}

/// Before fleets were drawn again and mended, 8 of these 25 left a pod of this tree over.
#[test]
fn a_small_tree_of_many_rules_leaves_none_over_whatever_is_drawn() {
    let ways: Vec<Way> =
        (50_000..50_025).map(|seed| (Order::Shuffled, Rules::Drawn136, seed)).collect();
    let left = left_over(&root("tests/bench/trees/harsh"), &ways);
    assert_eq!(left, [0; 25]);
}

/// Its pods that must share a zone find room in it only if the first of them goes to the right one.
#[test]
fn what_no_node_mends_is_told() {
    let (plan, _) = replayed(&root("tests/bench/trees/shared"), &[]);
    let told =
        plan.capacity.diagnostics.iter().filter(|told| told.message.contains("further draws"));
    assert_eq!(told.count(), 1, "{:#?}", plan.capacity.diagnostics);
}
