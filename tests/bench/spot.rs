//! Spot nodes in drawn markets: how much capacity ends at once, and what the distribution over
//! offerings costs.
//!
//! Each market has a price, a number of free instances and a daily chance of a reclaim for each
//! offering (instance type and zone). Offerings with few free instances are reclaimed more often. A
//! reclaim ends all nodes of the offering. The model of `price-capacity-optimized` is: of the
//! offerings of a launch with at least half of the most free instances, the cheapest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use fleetwright::catalog::Catalog;
use fleetwright::model::market::{CapacityType, ZoneSetting};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::Plan;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::run;

const MARKETS: u32 = 50;
const DAYS: u32 = 20;
const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
const SHARES: [u32; 4] = [100, 50, 34, 25];

const POOL: &str = "apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: spot }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: spot }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [spot] }
        - { key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r] }
        - { key: karpenter.k8s.aws/instance-generation, operator: Gt, values: [\"4\"] }
        - { key: karpenter.k8s.aws/instance-cpu, operator: Lt, values: [\"9\"] }
        - { key: kubernetes.io/arch, operator: In, values: [amd64] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: spot }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: spot
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
";

/// An instance type and a zone.
type Offering = (String, String);

/// A drawn market.
struct Market {
    catalog: Catalog,
    prices: BTreeMap<Offering, MicroUsd>,
    /// Number of free instances.
    free: BTreeMap<Offering, u32>,
}

/// How a launch gets its offering.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The planned offering, which is the cheapest.
    Planned,
    /// EC2 chooses among the planned offering and its Spot alternatives.
    Ec2,
}

/// Sums over all days.
#[derive(Default)]
struct Outcome {
    /// Price of all fleets.
    hourly: MicroUsd,
    nodes: u32,
    ended: u32,
    /// Share of the vCPUs in the largest offering, in percent, for each fleet.
    largest: Vec<u64>,
    /// Share of the vCPUs that the largest reclaim of a day ends, in percent.
    at_once: Vec<u64>,
}

/// Prints a row for each share.
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<28} {:>7} {:>8} {:>9} {:>9} {:>9} {:>10} {:>11}",
        format!("spot, {} days", MARKETS * DAYS),
        "nodes",
        "$/h",
        "largest",
        "lost p95",
        "lost p99",
        "half lost",
        "ended/day"
    );
    let mut outcomes: BTreeMap<(u32, bool), Outcome> = BTreeMap::new();
    let root = tempfile::tempdir()?;
    for seed in 0..MARKETS {
        let mut rng = Pcg64::seed_from_u64(seed.into());
        let market = Market::draw(&mut rng)?;
        write_tree(root.path(), &mut rng)?;
        // The same reclaims happen in every fleet.
        let reclaims: Vec<BTreeSet<Offering>> =
            (0..DAYS).map(|_| market.reclaims(&mut rng)).collect();
        for share in SHARES {
            write_settings(root.path(), share)?;
            let plan = run(root.path(), Some(&market.catalog), &mut BTreeMap::new())?;
            for choice in [Choice::Planned, Choice::Ec2] {
                let outcome = outcomes.entry((100 - share, choice == Choice::Ec2)).or_default();
                outcome.add(&market, &market.fleet(&plan, choice), &reclaims);
            }
        }
    }
    let first = outcomes.values().next().map_or(MicroUsd(1), |outcome| outcome.hourly);
    for ((rest, is_ec2), outcome) in &mut outcomes {
        let who = if *is_ec2 { "EC2 chooses" } else { "as planned" };
        outcome.print(&format!("share {} %, {who}", 100 - rest), first);
    }
    Ok(())
}

impl Market {
    fn draw(rng: &mut Pcg64) -> anyhow::Result<Self> {
        let zones = ZONES.map(|name| ZoneSetting { name: name.into(), id: None });
        let mut catalog = Catalog::load(&"us-east-1".into(), &zones)?;
        let (mut prices, mut free) = (BTreeMap::new(), BTreeMap::new());
        for (name, kind) in &mut catalog.types {
            let full = kind
                .offerings
                .iter()
                .find(|offering| offering.capacity_type == CapacityType::OnDemand)
                .and_then(|offering| offering.price);
            let Some(full) = full else { continue };
            let level = rng.random_range(28..55);
            for offering in &mut kind.offerings {
                if offering.capacity_type.is_spot() {
                    let percent = level + rng.random_range(-4..=4);
                    let price = MicroUsd(full.0 * percent / 100);
                    (offering.price, offering.estimated) = (Some(price), false);
                    let key = (name.to_string(), offering.zone.to_string());
                    prices.insert(key.clone(), price);
                    free.insert(key, 2_u32.pow(rng.random_range(2..9)));
                }
            }
        }
        Ok(Self { catalog, prices, free })
    }

    /// Draws the offerings that EC2 reclaims on one day: 3 % a day with 256 free instances, and
    /// 25 % with four.
    fn reclaims(&self, rng: &mut Pcg64) -> BTreeSet<Offering> {
        let chance = |free: u32| 0.5 / f64::from(free).sqrt();
        let reclaimed = self.free.iter().filter(|(_, free)| rng.random_bool(chance(**free)));
        reclaimed.map(|(offering, _)| offering.clone()).collect()
    }

    /// Returns the offering of each launch of a plan, with its vCPUs.
    fn fleet(&self, plan: &Plan, choice: Choice) -> Vec<(Offering, u64)> {
        let alternatives: BTreeMap<_, _> =
            plan.capacity.alternatives.iter().map(|row| (&row.address, &row.offerings)).collect();
        let mut free = self.free.clone();
        let launches = plan.resource_changes.iter().filter_map(|row| {
            let after = row.change.after.as_ref()?;
            let planned =
                (after.instance_type.as_ref()?.to_string(), after.zone.as_ref()?.to_string());
            let cpus = u64::try_from(after.capacity.cpu_milli / 1_000).ok()?;
            let mut offered = vec![planned.clone()];
            let others = alternatives.get(&row.address).into_iter().flat_map(|of| of.iter());
            offered.extend(
                others
                    .filter(|other| other.capacity_type.is_spot())
                    .map(|other| (other.instance_type.to_string(), other.zone.to_string())),
            );
            let most = offered.iter().filter_map(|offering| free.get(offering)).max()?;
            let deep = |offering: &&Offering| free.get(*offering).is_some_and(|n| n * 2 >= *most);
            let chosen = match choice {
                Choice::Planned => Some(&planned),
                Choice::Ec2 => offered.iter().filter(deep).min_by_key(|of| self.prices.get(*of)),
            };
            let chosen = chosen?.clone();
            let left = free.get_mut(&chosen)?;
            *left = left.saturating_sub(1);
            Some((chosen, cpus))
        });
        launches.collect()
    }
}

impl Outcome {
    fn add(&mut self, market: &Market, fleet: &[(Offering, u64)], reclaims: &[BTreeSet<Offering>]) {
        let mut by_offering: BTreeMap<&Offering, u64> = BTreeMap::new();
        for (offering, cpus) in fleet {
            *by_offering.entry(offering).or_insert(0) += cpus;
            self.hourly += market.prices[offering];
        }
        let all: u64 = by_offering.values().sum();
        let percent = |cpus: u64| cpus * 100 / all.max(1);
        self.nodes += count(fleet.iter());
        self.largest.push(percent(by_offering.values().copied().max().unwrap_or(0)));
        for day in reclaims {
            let ended = by_offering.iter().filter(|(offering, _)| day.contains(**offering));
            self.at_once.push(percent(ended.map(|(_, cpus)| *cpus).max().unwrap_or(0)));
            let nodes = fleet.iter().filter(|(offering, _)| day.contains(offering));
            self.ended += count(nodes);
        }
    }

    fn print(&mut self, name: &str, cheapest: MicroUsd) {
        self.at_once.sort_unstable();
        self.largest.sort_unstable();
        let at = |values: &[u64], percent: usize| {
            values.get((values.len() * percent / 100).min(values.len() - 1)).copied().unwrap_or(0)
        };
        let per_mille = (self.hourly - cheapest).0 * 1_000 / cheapest.0.max(1);
        let change = f64::from(i32::try_from(per_mille).unwrap_or(i32::MAX)) / 10.0;
        let half = self.at_once.iter().filter(|percent| **percent > 50).count();
        let node_days = f64::from(self.nodes.max(1) * DAYS);
        println!(
            "{name:<28} {:>7.1} {change:>+7.1}% {:>8}% {:>8}% {:>8}% {half:>5} days {:>10.1}%",
            f64::from(self.nodes) / f64::from(MARKETS),
            at(&self.largest, 50),
            at(&self.at_once, 95),
            at(&self.at_once, 99),
            f64::from(self.ended) * 100.0 / node_days,
        );
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

fn write_tree(root: &Path, rng: &mut Pcg64) -> anyhow::Result<()> {
    let mut text = String::new();
    for index in 0..20 {
        let (replicas, cpu) = (rng.random_range(2..14), 100 * rng.random_range(1..16));
        let memory = cpu * rng.random_range(1..6);
        write!(
            text,
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: app-{index}, namespace: web }}\n\
             spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: app-{index} }} }}\n  \
             template:\n    metadata: {{ labels: {{ app: app-{index} }} }}\n    spec:\n      containers:\n      \
             - {{ name: main, image: app, resources: {{ requests: {{ cpu: {cpu}m, memory: {memory}Mi }} }} }}\n"
        )?;
    }
    std::fs::write(root.join("pool.yaml"), POOL)?;
    std::fs::write(root.join("pods.yaml"), text)?;
    Ok(())
}

fn write_settings(root: &Path, share: u32) -> anyhow::Result<()> {
    let text = format!(
        "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{ name: spot }}\nspec:\n  \
         cluster: {{ name: spot, region: us-east-1, zones: [us-east-1a, us-east-1b, us-east-1c] }}\n  \
         spot: {{ maxOfferingShare: {share}% }}\n"
    );
    Ok(std::fs::write(root.join("fleetwright.yaml"), text)?)
}
