//! Replays plans of the examples and of benchmark repositories in many scheduling orders.
//!
//! The other repositories of the benchmark take minutes without optimization. `cargo bench --bench
//! plan -- trees` replays all six and prints the number of unschedulable pods.

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

/// Example that needs renderers. It is skipped, since kubectl and helm may be missing.
const RENDERED: &str = "overlays";

/// Number of replays of the larger repository. All replays would take minutes.
const FEW: usize = 4;

/// Returns the plan of a repository, and the number of unschedulable pods in each replay.
fn replayed(root: &Path, variants: &[ReplayVariant]) -> (Plan, Vec<usize>) {
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
    let (path, world) = (root.display().to_string(), BaseWorld::new("replayed", &observed));
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
    assert!(plan.capacity.pods.placed > 0, "{} places pods", root.display());
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    let inputs = PlanInputs { desired: &desired, demand: &demand, observed: &observed };
    let left = variants.iter().map(|variant| inputs.left_over(&plan, *variant)).collect();
    (plan, left)
}

fn unschedulable(root: &Path, variants: &[ReplayVariant]) -> Vec<usize> {
    replayed(root, variants).1
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
        let variants = [&REPLAY_VARIANTS[..], &UNSEEN].concat();
        let left = unschedulable(&path, &variants);
        tried += 1;
        if left.iter().any(|count| *count > 0) {
            wrong.push(format!("{}: {left:?} of {variants:?}", path.display()));
        }
    }
    assert!(wrong.is_empty() && tried >= 10, "{tried} tried: {wrong:#?}");
}

#[test]
fn tree_of_2000_pods_places_all_pods() {
    let left = unschedulable(&root("tests/bench/trees/web"), &REPLAY_VARIANTS[..FEW]);
    assert_eq!(left, [0; FEW]);
}

/// Without repair of the fleet, 8 of these 25 orders leave a pod unschedulable.
#[test]
fn constrained_tree_places_all_pods_for_any_seed() {
    let variants: Vec<ReplayVariant> = (50_000..50_025)
        .map(|seed| ReplayVariant::new(PodSequence::Shuffled, SchedulerRules::Drawn136, seed))
        .collect();
    let left = unschedulable(&root("tests/bench/trees/harsh"), &variants);
    assert_eq!(left, [0; 25]);
}

/// Pods with zone affinity fit only if the first pod is placed in the right zone.
#[test]
fn unfixable_pods_are_reported() {
    let (plan, _) = replayed(&root("tests/bench/trees/shared"), &[]);
    let diagnostics = plan
        .capacity
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.message.contains("further samples"));
    assert_eq!(diagnostics.count(), 1, "{:#?}", plan.capacity.diagnostics);
}
