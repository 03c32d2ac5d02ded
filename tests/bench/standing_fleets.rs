//! Existing fleets: consolidation of a fragmented one, and a plan after a small change of a large
//! one.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use fleetwright::adapters::git::read_tree;
use fleetwright::catalog::Catalog;
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::desired::Desired;
use fleetwright::model::ids::NodeName;
use fleetwright::model::market::ZoneSetting;
use fleetwright::model::observed::Observed;
use fleetwright::model::units::Resources;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Base, BaseWorld};
use fleetwright::planner::{Inputs, Scope, plan};
use fleetwright::solver::Settings;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::packing::write_many;
use crate::world::{add_node, bind, carried_out, empty};

const SEED: u64 = 42;
const NODES: usize = 1_000;
const PODS: usize = 30_000;
const REPLICAS: usize = 100;
const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
const TYPES: [&str; 4] = ["m5.2xlarge", "c5.2xlarge", "r5.2xlarge", "m6i.4xlarge"];

/// Number of pods and workloads of the large world.
const MANY: (usize, usize) = (100_000, 1_000);

pub(crate) const FLEET: &str = "apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: standing }
spec:
  cluster: { name: standing, region: us-east-1, zones: [us-east-1a, us-east-1b, us-east-1c] }
";

pub(crate) const POOL: &str = "apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: default }
spec:
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 0s
    budgets: [{ nodes: \"100%\" }]
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: default }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
        - { key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r] }
        - { key: karpenter.k8s.aws/instance-generation, operator: Gt, values: [\"4\"] }
        - { key: kubernetes.io/arch, operator: In, values: [amd64] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: default }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: standing
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
";

/// Replaces the categories of the pool: nodes for few pods, so that there are thousands.
const SMALL: &str = "values: [m] }
        - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.8xlarge]";

pub(crate) struct StandingInputs {
    desired: Desired,
    catalog: Catalog,
    pub(crate) world: Observed,
}

impl StandingInputs {
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let files = read_tree(root)?;
        let (fleet, _) = read_fleet(&files.tree);
        let desired = read(&files.tree, &fleet);
        let zone = |name: &str| ZoneSetting { name: name.into(), id: None };
        let catalog = Catalog::load(&"us-east-1".into(), &ZONES.map(zone))?;
        let world = empty(&fleet)?;
        Ok(Self { desired, catalog, world })
    }

    /// Returns the plan and its duration.
    pub(crate) fn planned(&self) -> (Plan, Duration) {
        let Self { desired, catalog, world } = self;
        let base = Base::new("", "", BaseWorld::new("bench", world), DemandMode::Live);
        let inputs = Inputs {
            desired,
            observed: world,
            catalog,
            base,
            at: world.taken_at,
            demand: DemandMode::Live,
            is_forecast: false,
            scope: Scope::default(),
            settings: Settings::default(),
        };
        let begun = Instant::now();
        let plan = plan(&inputs);
        (plan, begun.elapsed())
    }

    pub(crate) fn carry_out(&mut self, plan: &Plan) {
        self.world = carried_out(&self.world, plan, &self.desired);
    }
}

/// Prints a row for each step.
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<34} {:>7} {:>6} {:>7} {:>10} {:>7} {:>10} {:>10} {:>8}",
        "existing fleets", "pods", "nodes", "launch", "terminate", "after", "USD/h", "before", "ms"
    );
    fragmented()?;
    replanned("from nothing", POOL)?;
    replanned("small nodes", &POOL.replace("values: [c, m, r]", SMALL))
}

fn row(name: &str, plan: &Plan, took: Duration) {
    let (nodes, cost) = (&plan.summary.nodes, &plan.capacity.cost);
    println!(
        "{:<34} {:>7} {:>6} {:>7} {:>10} {:>7} {:>10} {:>10} {:>8}",
        name,
        plan.capacity.pods.total,
        nodes.before,
        nodes.launch,
        nodes.terminate,
        nodes.after,
        cost.hourly_after.rounded(2),
        cost.hourly_before.rounded(2),
        took.as_millis(),
    );
}

/// Consolidates nodes with a load of two fifths, and plans again.
fn fragmented() -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    write_fragmented(root.path())?;
    let mut fleet = StandingInputs::read(root.path())?;
    scatter(&mut fleet);
    let (plan, took) = fleet.planned();
    row("fragmented, consolidated", &plan, took);
    fleet.carry_out(&plan);
    let (plan, took) = fleet.planned();
    row("the same once more", &plan, took);
    Ok(())
}

fn write_fragmented(root: &Path) -> anyhow::Result<()> {
    let mut rng = Pcg64::seed_from_u64(SEED);
    let mut text = String::new();
    for n in 0..PODS / REPLICAS {
        let cpu = 25 * rng.random_range(2..=8);
        let memory = cpu * rng.random_range(1..=6);
        write_deployment(&mut text, &format!("app-{n:03}"), REPLICAS, cpu, memory)?;
    }
    std::fs::write(root.join("fleetwright.yaml"), FLEET)?;
    std::fs::write(root.join("pool.yaml"), POOL)?;
    std::fs::write(root.join("pods.yaml"), text)?;
    Ok(())
}

pub(crate) fn write_deployment(
    text: &mut String,
    name: &str,
    replicas: usize,
    cpu_milli: i64,
    memory_mib: i64,
) -> anyhow::Result<()> {
    write!(
        text,
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name}, namespace: a }}\n\
         spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: {name} }} }}\n  \
         template:\n    metadata: {{ labels: {{ app: {name} }} }}\n    spec:\n      containers:\n        \
         - {{ name: app, image: app, resources: {{ requests: {{ cpu: {cpu_milli}m, memory: {memory_mib}Mi }} }} }}\n"
    )?;
    Ok(())
}

/// Binds each pod to a random node with room.
fn scatter(fleet: &mut StandingInputs) {
    let mut rng = Pcg64::seed_from_u64(SEED);
    let StandingInputs { desired, catalog, world } = fleet;
    let nodes: Vec<NodeName> = (0..NODES)
        .map(|n| add_node(world, desired, catalog, "default", TYPES[n % 4], ZONES[n % 3]))
        .collect();
    let mut used = vec![Resources::default(); NODES];
    for group in Demand::build(desired, world, DemandMode::Live).groups {
        for _ in 0..REPLICAS {
            loop {
                let at = rng.random_range(0..NODES);
                let then = used[at].plus(&group.shape.requests);
                if then.fits(&world.nodes[&nodes[at]].allocatable) {
                    used[at] = then;
                    bind(world, desired, &group.workload, &nodes[at], 1);
                    break;
                }
            }
        }
    }
}

/// Plans a large world, and again after one workload of ten pods is added.
fn replanned(name: &str, pool: &str) -> anyhow::Result<()> {
    let (pods, classes) = MANY;
    let root = tempfile::tempdir()?;
    write_many(root.path(), pods, classes)?;
    std::fs::write(root.path().join("fleetwright.yaml"), FLEET)?;
    std::fs::write(root.path().join("pool.yaml"), pool)?;
    let mut fleet = StandingInputs::read(root.path())?;
    let (plan, took) = fleet.planned();
    row(&format!("many classes, {name}"), &plan, took);
    fleet.carry_out(&plan);
    let (plan, took) = fleet.planned();
    row("the same once more", &plan, took);
    let world = fleet.world;
    let path = root.path().join("pods.yaml");
    let mut text = std::fs::read_to_string(&path)?;
    write_deployment(&mut text, "one-more", 10, 500, 1024)?;
    std::fs::write(&path, text)?;
    let fleet = StandingInputs { world, ..StandingInputs::read(root.path())? };
    let (plan, took) = fleet.planned();
    row("one more workload of ten pods", &plan, took);
    Ok(())
}
