//! Replacements of many nodes with the planner: killed at each write, and finished by a second run.

use std::fs;
use std::path::Path;

use jiff::Timestamp;

use super::run_command;
use crate::adapters::git::read_tree;
use crate::apply::{ApplySettings, ApplyStatus, Event, Replan, apply};
use crate::catalog::Catalog;
use crate::cli::replan::Replanner;
use crate::cli::repository::Repository;
use crate::cli::{Exit, embedded};
use crate::model::desired::RegionPrices;
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::Action;
use crate::simulator::World;
use crate::testing::apply::{Fault, FaultyPorts, all};
use crate::testing::simulator::{poll_while_it_yields, run};

const SETTINGS: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: { name: t }\n\
    spec: { cluster: { name: t, region: us-east-1, zones: [us-east-1a] } }\n";

/// Number of nodes of the fleet, which is more than a batch.
const NODES: u32 = 5;
const BATCH: usize = 3;

/// Returns a pool of one instance type that may replace all its nodes at once.
fn pool(instance_type: &str) -> String {
    format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{ name: web }}\nspec:\n  \
         disruption: {{ budgets: [{{ nodes: 100% }}] }}\n  template:\n    spec:\n      \
         requirements:\n      \
         - {{ key: node.kubernetes.io/instance-type, operator: In, values: [{instance_type}] }}\n      \
         - {{ key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }}\n      \
         nodeClassRef: {{ group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }}\n---\n\
         apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {{ name: web }}\nspec:\n  \
         role: web\n  amiSelectorTerms: [{{ alias: al2023@latest }}]\n  \
         subnetSelectorTerms: [{{ tags: {{ x: z }} }}]\n  \
         securityGroupSelectorTerms: [{{ tags: {{ x: z }} }}]\n"
    )
}

fn workload() -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: a }}\nspec:\n  \
         replicas: {NODES}\n  selector: {{ matchLabels: {{ app: a }} }}\n  template:\n    \
         metadata: {{ labels: {{ app: a }} }}\n    spec:\n      containers: \
         [{{ name: c, image: c, resources: {{ requests: {{ cpu: 1500m, memory: 1Gi }} }} }}]\n"
    )
}

/// A saved plan that replaces all nodes, and what it was made from.
struct Saved {
    tree: tempfile::TempDir,
    plan: Plan,
    repository: Repository,
    catalog: Catalog,
}

impl Saved {
    fn new() -> Self {
        let tree = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(tree.path().join(name), text).expect("written");
        };
        write("fleetwright.yaml", SETTINGS);
        write("pool.yaml", &pool("m5.large"));
        write("a.yaml", &workload());
        let (path, file) = (tree.path().display().to_string(), tree.path().join("p.json"));
        let (sim, file) = (format!("sim:{path}/world"), file.display().to_string());
        let at = ["--at", "2026-09-01T10:00:00Z"];
        let first = [&["apply", &path, "--world", &sim, "--auto-approve"][..], &at].concat();
        let ran = run_command(&first);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        write("pool.yaml", &pool("m6a.large"));
        let ran = run_command(&["plan", &path, "--world", &sim, "--out", &file]);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
        let plan = Plan::from_json(&fs::read_to_string(file).expect("saved")).expect("a plan");
        assert_eq!(plan.summary.nodes.launch, NODES, "every node is replaced");
        assert_eq!(plan.summary.nodes.terminate, NODES, "every node is replaced");
        let repository = Repository::read(&read_tree(tree.path()).expect("a tree"));
        let catalog = Catalog::load(&repository.fleet.region, &repository.fleet.zones);
        Self { plan, repository, catalog: catalog.expect("a catalog"), tree }
    }

    /// Returns a copy of the world that the plan is for.
    fn world(&self) -> World {
        let directory: &Path = &self.tree.path().join("world");
        let at = self.plan.capacity.base.world.taken_at;
        embedded::copy(&self.repository, Some(directory), at).expect("a world")
    }

    /// Returns the catalog after a rise of the price of the new nodes. They now cost more than the old
    /// nodes, and less than the highest approved price.
    fn dearer_catalog(&self) -> Catalog {
        let fleet = &self.repository.fleet;
        let prices = RegionPrices {
            format_version: 1,
            region: fleet.region.clone(),
            version: "1".to_owned(),
            published: Timestamp::UNIX_EPOCH,
            currency: "USD".to_owned(),
            hourly: [("m5.large", 96_000), ("m6a.large", 100_000)]
                .map(|(name, price)| (name.into(), MicroUsd(price)))
                .into(),
        };
        let catalog = Catalog::load_with_prices(&fleet.region, &fleet.zones, Some(&prices));
        catalog.expect("a catalog")
    }

    /// Applies the plan, and kills the apply after write `at`. Returns true if it was killed.
    fn is_killed(&self, world: &World, at: usize) -> bool {
        self.is_killed_with(&self.catalog, world, at)
    }

    fn is_killed_with(&self, catalog: &Catalog, world: &World, at: usize) -> bool {
        let replanner = Replanner::new(&self.repository, catalog);
        let settings = ApplySettings {
            catalog: Some(catalog),
            ..ApplySettings::new(world.cluster(), &replanner)
        };
        let faulty = FaultyPorts::new(world, at, Fault::CrashAfter);
        let mut silent = |_: &Event| {};
        let ports = all(&faulty);
        let applying = apply(&self.plan, &ports, &settings, &mut silent);
        let Some(receipt) = poll_while_it_yields(applying) else { return true };
        let receipt = receipt.expect("the plan is not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
        false
    }

    /// Returns true if a new plan for the world changes nothing.
    fn is_at_rest(&self, world: &World) -> bool {
        let replanner = Replanner::new(&self.repository, &self.catalog);
        let now = run(replanner.replan(&self.plan, &world.observed())).current;
        now.resource_changes.iter().all(|row| row.change.actions == [Action::NoOp])
    }
}

/// Returns the largest number of nodes that ran at once since the plan.
fn peak(world: &World, before: usize) -> usize {
    let (mut running, mut peak) = (before, before);
    for call in world.calls() {
        running += usize::from(call.launched().is_some());
        running -= usize::from(call.terminated().is_some());
        peak = peak.max(running);
    }
    peak
}

#[test]
fn killed_replacement_is_finished_and_at_rest() {
    let saved = Saved::new();
    let nodes = saved.world().observed().nodes.len();
    let mut at = 0;
    loop {
        let world = saved.world();
        let killed = saved.is_killed(&world, at);
        assert!(peak(&world, nodes) <= nodes + BATCH, "killed at {at}");
        if killed {
            assert!(!saved.is_killed(&world, usize::MAX), "the same plan finishes");
            assert!(peak(&world, nodes) <= nodes + BATCH, "killed at {at}");
        }
        assert!(saved.is_at_rest(&world), "killed at {at}");
        if !killed {
            break;
        }
        at += 1;
    }
    assert!(at >= 4 * nodes, "{at} writes");
}

#[test]
fn price_that_rises_between_two_batches_changes_no_batch() {
    let saved = Saved::new();
    let dearer = saved.dearer_catalog();
    let nodes = saved.world().observed().nodes.len();
    // The first batch writes 3 launches, 3 openings and at least 4 calls for each node.
    for at in [12, 20, 24] {
        let world = saved.world();
        assert!(saved.is_killed(&world, at), "killed at {at}");
        assert!(!saved.is_killed_with(&dearer, &world, usize::MAX), "the same plan finishes");
        assert!(peak(&world, nodes) <= nodes + BATCH, "killed at {at}");
        assert!(saved.is_at_rest(&world), "killed at {at}");
    }
}
