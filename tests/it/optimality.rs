//! Compares the solver with exhaustive search, for few pods.
//!
//! The benchmark includes this module, and runs more cases.

use std::collections::BTreeMap;

use fleetwright::catalog::{Catalog, SyntheticType};
use fleetwright::demand::{Demand, DemandMode, PodGroup, PodShape};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Fleet, Tree, TreeFile};
use fleetwright::model::observed::{ClusterIdentity, Observed};
use fleetwright::model::requirement::{key, label};
use fleetwright::model::units::{MicroUsd, Resources};
use fleetwright::scheduler::{BalanceScoring, ClassIndex, ScheduleNode, Scheduler};
use fleetwright::solver::{Input, NewNode, Offer, OfferInput, Offers, Purpose, Settings, solve};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const POOL: &str = "apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: few }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: few }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: few }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: few
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
";

/// Prices of the tightest packing, of the planned fleet, and of the cheapest fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FleetPrices {
    pub(crate) packed: MicroUsd,
    pub(crate) applied: MicroUsd,
    pub(crate) cheapest: MicroUsd,
    /// Price of the cheapest fleet below `applied` that fits the pods in every scheduling order.
    /// There should be none.
    pub(crate) held_for_less: Option<MicroUsd>,
}

/// Returns the prices for a random case of `seed` with up to 6 pods and up to 20 types.
pub(crate) fn case(seed: u64) -> FleetPrices {
    let mut rng = Pcg64::seed_from_u64(seed);
    let kinds: i64 = rng.random_range(1..=20);
    let names: Vec<String> = (0..kinds).map(|n| format!("t{n}.x")).collect();
    let types: Vec<SyntheticType<'_>> = names
        .iter()
        .map(|name| {
            let vcpus: i64 = [1, 2, 4, 8, 16][rng.random_range(0..5)];
            let gib = vcpus * [2, 4, 8][rng.random_range(0..3)];
            // The price is not proportional to the size, so that no size is always the best.
            let price = (40_000 * vcpus + 5_000 * gib) * rng.random_range(80..=140) / 100;
            SyntheticType::new(name, vcpus, gib * 1024, MicroUsd(price))
        })
        .collect();
    let catalog = Catalog::synthetic("us-east-1", &["us-east-1a"], &types);
    let mut text = POOL.to_owned();
    let (mut pods, wanted): (i64, i64) = (0, rng.random_range(1..=6));
    while pods < wanted {
        let replicas = rng.random_range(1..=wanted - pods);
        let (cpu, memory) = (100 * rng.random_range(1..=40), 128 * rng.random_range(1..=64));
        text.extend([format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: d{pods}, namespace: a }}\n\
             spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: d{pods} }} }}\n  \
             template:\n    metadata: {{ labels: {{ app: d{pods} }} }}\n    spec:\n      containers:\n        \
             - {{ name: app, image: app, resources: {{ requests: {{ cpu: {cpu}m, memory: {memory}Mi }} }} }}\n"
        )]);
        pods += replicas;
    }
    found(&text, &catalog)
}

fn found(text: &str, catalog: &Catalog) -> FleetPrices {
    let file = TreeFile { path: "few.yaml".into(), content: Ok(text.as_bytes().to_vec().into()) };
    let desired = read(&Tree { files: vec![file] }, &Fleet::default());
    assert_eq!(desired.problems, [], "{text}");
    let cluster = ClusterIdentity { region: "us-east-1".into(), ..ClusterIdentity::default() };
    let at = "2026-11-01T00:00:00Z".parse().expect("a time");
    let observed = Observed::empty(cluster, at);
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    let supply = OfferInput { desired: &desired, catalog, observed: &observed, at };
    let shapes = || demand.groups.iter().map(|group| &*group.shape);
    let offers = Offers::new(&supply, &demand.daemons, shapes()).list;
    let fits =
        |group: &&PodGroup| offers.iter().any(|offer| group.shape.requests.fits(&offer.room));
    let schedulable: Vec<_> = demand.groups.iter().filter(fits).collect();
    let pods =
        schedulable.iter().flat_map(|group| (0..group.counts.planned).map(|_| &*group.shape));
    let target = solve(&Input {
        desired: &desired,
        demand: &demand,
        observed: &observed,
        catalog,
        at,
        frozen: None,
        replace: &[],
        untouched: &[],
        needed: &[],
        settings: Settings::default(),
        purpose: Purpose::Plan,
    })
    .target;
    let applied = target.launches.iter().map(|launch| launch.node.price).sum();
    let cheapest = cheapest(&pods.collect::<Vec<_>>(), &mut Vec::new(), &offers);
    let orders = PodOrders { groups: &schedulable, offers: &offers };
    let held_for_less = (cheapest < applied).then(|| orders.held_below(applied)).flatten();
    FleetPrices { packed: target.packed_price, applied, cheapest, held_for_less }
}

/// Exhaustive search over all scheduling orders and all fleets.
struct PodOrders<'a> {
    groups: &'a [&'a PodGroup],
    offers: &'a [Offer],
}

impl PodOrders<'_> {
    /// Returns the price of the cheapest fleet below a price on which kube-scheduler places all
    /// pods. The fleet must work for all scheduling orders and for both scoring rules.
    fn held_below(&self, below: MicroUsd) -> Option<MicroUsd> {
        let mut fleets = Vec::new();
        let pods: u32 = self.groups.iter().map(|group| group.counts.planned).sum();
        let most = usize::try_from(pods).expect("few pods");
        self.list(&mut Vec::new(), MicroUsd::ZERO, below, most, &mut fleets);
        fleets.sort();
        fleets.into_iter().find(|(_, fleet)| self.holds(fleet)).map(|(price, _)| price)
    }

    /// Lists the fleets with sufficient resources below the price, with their prices.
    fn list(
        &self,
        fleet: &mut Vec<usize>,
        price: MicroUsd,
        below: MicroUsd,
        most: usize,
        found: &mut Vec<(MicroUsd, Vec<usize>)>,
    ) {
        if self.has_room(fleet) {
            found.push((price, fleet.clone()));
        }
        if fleet.len() == most {
            return;
        }
        for offer in fleet.last().copied().unwrap_or(0)..self.offers.len() {
            let next = price + self.offers[offer].node.price;
            if next < below {
                fleet.push(offer);
                self.list(fleet, next, below, most, found);
                fleet.pop();
            }
        }
    }

    fn has_room(&self, fleet: &[usize]) -> bool {
        let room = fleet.iter().map(|offer| &self.offers[*offer].room);
        let room = room.fold(Resources::default(), |sum, room| sum.plus(room));
        let requests = self.groups.iter();
        let requests =
            requests.map(|group| group.shape.requests.times(group.counts.planned.into()));
        requests.fold(Resources::default(), |sum, requests| sum.plus(&requests)).fits(&room)
    }

    fn holds(&self, fleet: &[usize]) -> bool {
        let nodes = fleet.iter().enumerate().map(|(index, offer)| self.node(index, *offer));
        let nodes: Vec<ScheduleNode> = nodes.collect();
        [BalanceScoring::Improvement, BalanceScoring::Evenness].into_iter().all(|balance| {
            let scheduler = Scheduler::new(nodes.clone(), &BTreeMap::new(), 1);
            let mut scheduler = scheduler.with_balance(balance);
            let class = |group: &&PodGroup| scheduler.class(&group.shape, Some(&group.workload));
            let classes: Vec<ClassIndex> = self.groups.iter().map(class).collect();
            let mut left: Vec<u32> = self.groups.iter().map(|group| group.counts.planned).collect();
            in_every_order(&mut scheduler, &classes, &mut left)
        })
    }

    fn node(&self, index: usize, offer: usize) -> ScheduleNode {
        let NewNode { labels, taints, allocatable, .. } = &self.offers[offer].node;
        let name = format!("node-{index}");
        let mut labels = labels.clone();
        labels.extend([label(key::HOSTNAME, &name)]);
        let (taints, allocatable) = (taints.clone(), allocatable.clone());
        ScheduleNode {
            name: name.as_str().into(),
            labels,
            taints,
            allocatable,
            unschedulable: false,
        }
    }
}

/// Returns whether all pods in `left` can be scheduled, in every order.
fn in_every_order(scheduler: &mut Scheduler, classes: &[ClassIndex], left: &mut [u32]) -> bool {
    (0..classes.len()).all(|kind| {
        if left[kind] == 0 {
            return true;
        }
        let Some(node) = scheduler.try_schedule(classes[kind], None) else { return false };
        left[kind] -= 1;
        let holds = in_every_order(scheduler, classes, left);
        left[kind] += 1;
        scheduler.unbind(classes[kind], node);
        holds
    })
}

/// Returns the price of the cheapest partition of the pods. Each pod is added to every part and to
/// a new part in turn.
fn cheapest<'p>(
    pods: &[&'p PodShape],
    parts: &mut Vec<Vec<&'p PodShape>>,
    offers: &[Offer],
) -> MicroUsd {
    let Some((pod, rest)) = pods.split_first() else {
        let price = |part: &Vec<&PodShape>| {
            let requests =
                part.iter().fold(Resources::default(), |sum, pod| sum.plus(&pod.requests));
            let sufficient = offers.iter().filter(|offer| requests.fits(&offer.room));
            sufficient.map(|offer| offer.node.price).min()
        };
        let prices: Option<Vec<MicroUsd>> = parts.iter().map(price).collect();
        return prices.map_or(MicroUsd(i64::MAX), |prices| prices.into_iter().sum());
    };
    let mut best = MicroUsd(i64::MAX);
    for part in 0..=parts.len() {
        if part == parts.len() {
            parts.push(Vec::new());
        }
        parts[part].push(pod);
        best = best.min(cheapest(rest, parts, offers));
        parts[part].pop();
        if parts[part].is_empty() {
            parts.pop();
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #[test]
    fn few_pods_get_the_cheapest_fleet() {
        let cases = std::env::var("FEW_CASES").ok().and_then(|text| text.parse().ok());
        let found: Vec<super::FleetPrices> = (0..cases.unwrap_or(60)).map(super::case).collect();
        for (seed, found) in found.iter().enumerate() {
            assert_eq!(found.packed, found.cheapest, "seed {seed}: {found:?}");
            assert_eq!(found.held_for_less, None, "seed {seed}: {found:?}");
        }
        // A fleet that fits the pods in every scheduling order may need a larger node than the
        // packing.
        let equal = found.iter().filter(|found| found.applied == found.cheapest).count();
        assert!(equal * 100 >= found.len() * 75, "{equal} of {} as applied", found.len());
    }
}
