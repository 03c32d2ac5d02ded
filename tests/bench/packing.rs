//! The solver without a proof, for the diverse pod mix and for many pod classes over the whole
//! catalog.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fleetwright::adapters::git::read_tree;
use fleetwright::catalog::Catalog;
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::desired::Desired;
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{ClusterIdentity, Observed};
use fleetwright::model::units::MicroUsd;
use fleetwright::solver::{Input, PackedFleet, Proof, Purpose, Settings, packing};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::standing_fleets::write_deployment;
use crate::{diverse_pods, mix};

const RUNS: usize = 3;
const SEED: u64 = 42;

/// Pods of the diverse mix. Karpenter's `Solve` plans 280 to 380 of them per second.
const MIX: [usize; 5] = [1_000, 5_000, 10_000, 100_000, 1_000_000];

/// Number of pods and of classes.
const MANY: [(usize, usize); 2] = [(100_000, 1_000), (1_000_000, 1_000)];

const FLEET: &str = "apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: many }
spec:
  cluster: { name: many, region: us-east-1, zones: [us-east-1a, us-east-1b, us-east-1c] }
";

const POOL: &str = "apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: default }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: many }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: many }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: many
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
";

struct PackingInputs {
    desired: Desired,
    observed: Observed,
    catalog: Catalog,
    demand: Demand,
}

impl PackingInputs {
    fn read(root: &Path, catalog: Catalog) -> anyhow::Result<Self> {
        let files = read_tree(root)?;
        let (fleet, _) = read_fleet(&files.tree);
        let desired = read(&files.tree, &fleet);
        let cluster = ClusterIdentity {
            name: fleet.cluster.name.clone(),
            region: fleet.cluster.region.to_string(),
            ..ClusterIdentity::default()
        };
        let observed = Observed::empty(cluster, "2026-11-01T00:00:00Z".parse()?);
        let demand = Demand::build(&desired, &observed, DemandMode::Live);
        Ok(Self { desired, observed, catalog, demand })
    }

    fn packed(&self, proof: Option<Proof>) -> PackedFleet {
        let Self { desired, observed, catalog, demand } = self;
        let input = Input {
            desired,
            demand,
            observed,
            catalog,
            at: observed.taken_at,
            frozen: None,
            replace: &[],
            untouched: &[],
            needed: &[],
            settings: Settings::default(),
            purpose: Purpose::Plan,
        };
        packing(&input, proof)
    }
}

/// Prints a row for each size of both inputs.
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<28} {:>8} {:>7} {:>8} {:>8} {:>10} {:>10} {:>12} {:>7} {:>8}",
        "solving alone",
        "pods",
        "groups",
        "nodes",
        "left",
        "ms",
        "pods/s",
        "USD/h",
        "gap %",
        "peak MB"
    );
    for count in MIX {
        let root = tempfile::tempdir()?;
        mix::write_tree(root.path(), &diverse_pods::pods(count, SEED))?;
        row("diverse mix", count, &PackingInputs::read(root.path(), mix::catalog())?)?;
    }
    for (pods, classes) in MANY {
        let root = tempfile::tempdir()?;
        write_many(root.path(), pods, classes)?;
        row("catalog, random spot", pods, &PackingInputs::read(root.path(), with_spot()?)?)?;
    }
    Ok(())
}

fn row(name: &str, pods: usize, world: &PackingInputs) -> anyhow::Result<()> {
    let (mut times, mut last) = (Vec::new(), None);
    for _ in 0..RUNS {
        let begun = Instant::now();
        last = Some(world.packed(None));
        times.push(begun.elapsed());
    }
    let packed = last.expect("at least one run");
    times.sort();
    let seconds = times[RUNS / 2].max(Duration::from_micros(1)).as_secs_f64();
    let peak = peak_megabytes();
    let bound = world.packed(Some(Proof::Thorough)).lower_bound;
    println!(
        "{:<28} {:>8} {:>7} {:>8} {:>8} {:>10.1} {:>10.0} {:>12} {:>7.2} {:>8}",
        name,
        pods,
        world.demand.groups.len(),
        packed.nodes,
        packed.left_over,
        seconds * 1000.0,
        f64::from(u32::try_from(pods)?) / seconds,
        packed.hourly.rounded(2),
        gap(packed.hourly, bound),
        peak,
    );
    Ok(())
}

/// Returns the distance of a price from a bound in percent.
fn gap(price: MicroUsd, bound: MicroUsd) -> f64 {
    let micro = |price: MicroUsd| i32::try_from(price.0 / 1000).map_or(f64::NAN, f64::from);
    (micro(price) / micro(bound) - 1.0) * 100.0
}

/// Returns the peak memory of this process in MiB, or 0 if the system does not report it.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}

/// Writes Deployments with random requests whose replicas follow a Zipf distribution.
pub(crate) fn write_many(root: &Path, pods: usize, classes: usize) -> anyhow::Result<()> {
    let mut rng = Pcg64::seed_from_u64(SEED);
    let harmonic: f64 = (1..=u32::try_from(classes)?).map(|rank| 1.0 / f64::from(rank)).sum();
    let mut text = String::new();
    for rank in 1..=u32::try_from(classes)? {
        let share = f64::from(u32::try_from(pods)?) / (harmonic * f64::from(rank));
        let replicas = format!("{:.0}", share.max(1.0)).parse()?;
        let cpu = 50 * rng.random_range(1..=80);
        let memory = cpu * rng.random_range(1..=8);
        write_deployment(&mut text, &format!("many-{rank}"), replicas, cpu, memory)?;
    }
    std::fs::write(root.join("fleetwright.yaml"), FLEET)?;
    std::fs::write(root.join("pool.yaml"), POOL)?;
    std::fs::write(root.join("pods.yaml"), text)?;
    Ok(())
}

/// Returns the catalog with random spot prices of 28 to 60 percent of on-demand, by type and zone.
fn with_spot() -> anyhow::Result<Catalog> {
    let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
    let setting =
        |name: &&str| fleetwright::model::market::ZoneSetting { name: (*name).into(), id: None };
    let zones: Vec<_> = zones.iter().map(setting).collect();
    let mut catalog = Catalog::load(&"us-east-1".into(), &zones)?;
    let mut rng = Pcg64::seed_from_u64(SEED);
    for kind in catalog.types.values_mut() {
        let on_demand: BTreeMap<_, _> = kind
            .offerings
            .iter()
            .filter(|offering| offering.capacity_type == CapacityType::OnDemand)
            .map(|offering| (offering.zone.clone(), offering.price))
            .collect();
        for offering in &mut kind.offerings {
            if offering.capacity_type == CapacityType::Spot {
                let percent = rng.random_range(28..=60);
                let price = on_demand.get(&offering.zone).copied().flatten();
                offering.price = price.map(|price| MicroUsd(price.0 * percent / 100));
                offering.estimated = false;
            }
        }
    }
    Ok(catalog)
}
