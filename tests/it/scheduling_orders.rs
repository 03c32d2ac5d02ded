//! Plans of the examples and of a tree of the benchmark, held in orders of our own.
//!
//! The other trees of the benchmark take minutes without optimization: `cargo bench --bench plan --
//! trees` holds each of the six in the same orders and prints what is left over.

use std::path::{Path, PathBuf};

use fleetwright::adapters::git::read_tree;
use fleetwright::catalog::Catalog;
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::market::ZoneSetting;
use fleetwright::model::observed::{ClusterIdentity, Observed, read_world};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Base, BaseWorld};
use fleetwright::planner::{Inputs, Scope, plan};
use fleetwright::solver::Settings;

use crate::scheduling_replay::{
    PlanInputs, PodSequence, REPLAY_VARIANTS, ReplayVariant, SchedulerRules, UNSEEN,
};

/// What is read without being rendered: kubectl and helm are not everywhere.
const RENDERED: &str = "overlays";

/// Ways in which the larger tree is held; all of them would take minutes.
const FEW: usize = 4;

/// Returns the plan for the world that the tree names, and how many pods of each way are left over.
fn replayed(root: &Path, ways: &[ReplayVariant]) -> (Plan, Vec<usize>) {
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
    let cast = PlanInputs { desired: &desired, demand: &demand, observed: &observed };
    let left = ways.iter().map(|way| cast.left_over(&plan, *way)).collect();
    (plan, left)
}

fn left_over(root: &Path, ways: &[ReplayVariant]) -> Vec<usize> {
    replayed(root, ways).1
}

fn root(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

#[test]
fn examples_place_all_pods_in_any_order() {
    let examples = std::fs::read_dir(root("examples")).expect("there are examples");
    let paths = examples.map(|entry| entry.expect("listed").path());
    let (mut tried, mut wrong) = (0, Vec::new());
    for path in paths.filter(|path| path.is_dir() && !path.ends_with(RENDERED)) {
        let ways = [&REPLAY_VARIANTS[..], &UNSEEN].concat();
        let left = left_over(&path, &ways);
        tried += 1;
        if left.iter().any(|count| *count > 0) {
            wrong.push(format!("{}: {left:?} of {ways:?}", path.display()));
        }
    }
    assert!(wrong.is_empty() && tried >= 10, "{tried} tried: {wrong:#?}");
}

#[test]
fn tree_of_2000_pods_places_all_pods() {
    let left = left_over(&root("tests/bench/trees/web"), &REPLAY_VARIANTS[..FEW]);
    assert_eq!(left, [0; FEW]);
}

/// Before fleets were drawn again and mended, 8 of these 25 left a pod of this tree over.
#[test]
fn constrained_tree_places_all_pods_for_any_seed() {
    let ways: Vec<ReplayVariant> = (50_000..50_025)
        .map(|seed| (PodSequence::Shuffled, SchedulerRules::Drawn136, seed))
        .collect();
    let left = left_over(&root("tests/bench/trees/harsh"), &ways);
    assert_eq!(left, [0; 25]);
}

/// Its pods that must share a zone find room in it only if the first of them goes to the right one.
#[test]
fn unfixable_pods_are_reported() {
    let (plan, _) = replayed(&root("tests/bench/trees/shared"), &[]);
    let told =
        plan.capacity.diagnostics.iter().filter(|told| told.message.contains("further samples"));
    assert_eq!(told.count(), 1, "{:#?}", plan.capacity.diagnostics);
}
