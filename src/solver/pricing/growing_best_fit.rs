//! Best fit with growing nodes, for pods whose caps decide the number of nodes.
//!
//! Where a cap forces many nodes, their number is fixed and only their sizes are open. Pods under
//! that cap come first, each on a node of its own. Every other pod goes to the node where it fits
//! most tightly. If it fits on none, a lightly used node grows where that costs least. Each node
//! always has the cheapest offering that holds its pods. Work is a few steps per pod, whatever the
//! number of nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::class_clusters::is_admitted;
use super::empty_pattern::copies;
use super::purchase::Purchase;
use super::{BinPackingProblem, Pattern};

/// Maximum pods per forced node up to which caps decide.
const PODS_PER_NODE: u64 = 16;

/// Maximum nodes whose room is tried for a pod, the tightest fit first.
const FITS_TRIED: usize = 24;

/// Maximum nodes whose growth is tried for a pod, the least used first.
const GROWTHS_TRIED: usize = 12;

/// Returns a purchase for `wanted` pods by class, or `None` if no cap decides the number of nodes.
pub(super) fn growing_best_fit(problem: &BinPackingProblem, wanted: &[u32]) -> Option<Purchase> {
    let pods: u64 = wanted.iter().map(|count| u64::from(*count)).sum();
    let forced =
        (0..problem.caps.len()).map(|cap| (nodes_forced_by(problem, wanted, cap), Reverse(cap)));
    let (nodes, Reverse(first)) = forced.max()?;
    if nodes.saturating_mul(PODS_PER_NODE) < pods {
        return None;
    }
    let mut fleet = GrowingFleet::new(problem, wanted);
    for class in fleet.order(first) {
        fleet.place(class, wanted[class]);
    }
    Some(fleet.into_purchase(wanted))
}

/// Returns the minimum number of nodes that a cap forces.
fn nodes_forced_by(problem: &BinPackingProblem, wanted: &[u32], cap: usize) -> u64 {
    let cap = &problem.caps[cap];
    let pods: u64 = cap.members.iter().map(|class| u64::from(wanted[*class])).sum();
    pods.div_ceil(u64::from(cap.max_pods.max(1)))
}

/// Offerings that admit the same classes if these fit, the cheapest first. A node grows along its
/// ladder.
struct OfferingLadder {
    offerings: Vec<usize>,
    admits: Vec<bool>,
    nodes: u64,
    /// Expected demand: the dominant share of pods that only fit here, and an equal part of the
    /// others.
    demand: u128,
    /// For each resource, the nodes ordered by the remaining room of their offering.
    by_room: Vec<BTreeSet<(i64, usize)>>,
    /// For each resource, the nodes ordered by the requests of their pods.
    by_load: Vec<BTreeSet<(i64, usize)>>,
}

/// A node whose offering may still grow.
struct GrowingNode {
    ladder: usize,
    /// Position of its offering in its ladder.
    at: usize,
    pods: BTreeMap<usize, u32>,
    /// Pods under each cap that applies to the node.
    pods_by_cap: BTreeMap<usize, u32>,
}

/// Progress of the search for room for one class, in each ladder that admits it.
struct PlacementCursor {
    class: usize,
    /// The dominant resource of the class.
    dominant: usize,
    /// Next node in the order of remaining room.
    tightest: Vec<(usize, (i64, usize))>,
    /// Next node in the order of load.
    least: Vec<(usize, (i64, usize))>,
}

impl PlacementCursor {
    fn new(fleet: &GrowingFleet, class: usize) -> Self {
        let (_, dominant) = fleet.dominant_resource(class);
        let ladders = fleet.ladders.iter().enumerate();
        let open: Vec<usize> =
            ladders.filter(|(_, ladder)| ladder.admits[class]).map(|(index, _)| index).collect();
        let request = fleet.problem.classes[class].requests[dominant];
        let from = |at: i64| open.iter().map(|ladder| (*ladder, (at, 0))).collect();
        Self { class, dominant, tightest: from(request), least: from(0) }
    }
}

struct GrowingFleet<'a> {
    problem: &'a BinPackingProblem,
    ladders: Vec<OfferingLadder>,
    nodes: Vec<GrowingNode>,
    /// Remaining room and load of all nodes, node after node. Both are read for every pod, so they
    /// lie in contiguous memory.
    room: Vec<i64>,
    load: Vec<i64>,
    /// Total requests of all pods.
    total: Vec<i128>,
    /// The dominant resources of all classes. Nodes are ordered by these only.
    dominant_resources: Vec<usize>,
}

impl<'a> GrowingFleet<'a> {
    fn new(problem: &'a BinPackingProblem, wanted: &[u32]) -> Self {
        let mut by_admission: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for (index, offering) in problem.offerings.iter().enumerate() {
            let classes = problem.classes.iter().enumerate();
            let admits =
                classes.map(|(class, demand)| is_admitted(demand, offering, class)).collect();
            by_admission.entry(admits).or_default().push(index);
        }
        let mut total = vec![0; problem.resources()];
        for (demand, count) in problem.classes.iter().zip(wanted) {
            for (sum, request) in total.iter_mut().zip(&demand.requests) {
                *sum += i128::from(*request) * i128::from(*count);
            }
        }
        let ladder = |(admits, mut offerings): (Vec<bool>, Vec<usize>)| {
            offerings.sort_by_key(|offering| (problem.offerings[*offering].price, *offering));
            let none = vec![BTreeSet::new(); problem.resources()];
            OfferingLadder {
                offerings,
                admits,
                nodes: 0,
                demand: 0,
                by_room: none.clone(),
                by_load: none,
            }
        };
        let ladders = by_admission.into_iter().map(ladder).collect();
        let (nodes, room, load, dominant_resources) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut fleet = Self { problem, ladders, nodes, room, load, total, dominant_resources };
        let dominant_resources: BTreeSet<usize> =
            (0..problem.classes.len()).map(|class| fleet.dominant_resource(class).1).collect();
        fleet.dominant_resources = dominant_resources.into_iter().collect();
        fleet.estimate_demand(wanted);
        fleet
    }

    /// Estimates the demand on each ladder. Pods with several ladders count in equal parts.
    fn estimate_demand(&mut self, wanted: &[u32]) {
        for (class, count) in wanted.iter().enumerate() {
            let admit = || self.ladders.iter().filter(|ladder| ladder.admits[class]).count();
            let parts = u128::try_from(admit()).unwrap_or(1).max(1);
            // In millionths of the total requests of its dominant resource.
            let (share, _) = self.dominant_resource(class);
            let share = share * u128::from(*count) / parts;
            for ladder in self.ladders.iter_mut().filter(|ladder| ladder.admits[class]) {
                ladder.demand += share;
            }
        }
    }

    /// Returns the largest share of the total requests that a pod takes, in 10⁻¹², and its
    /// resource.
    fn dominant_resource(&self, class: usize) -> (u128, usize) {
        const FIXED_POINT_ONE: i128 = 1_000_000_000_000;
        let requests = self.problem.classes[class].requests.iter().zip(&self.total);
        let share = |(request, total): (&i64, &i128)| {
            i128::from(*request) * FIXED_POINT_ONE / (*total).max(1)
        };
        let shares = requests.map(share).zip(0..);
        let most = shares.max_by_key(|(share, resource)| (*share, Reverse(*resource)));
        most.map_or((0, 0), |(share, resource)| (u128::try_from(share).unwrap_or(0), resource))
    }

    /// Returns the classes under cap `first`, then the others by descending size. Among equals,
    /// classes with the fewest ladders come first, because a cap can close them.
    fn order(&self, first: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.problem.classes.len()).collect();
        let is_later = |class: &usize| !self.problem.caps_of_class[*class].contains(&first);
        let places =
            |class: usize| self.ladders.iter().filter(|ladder| ladder.admits[class]).count();
        let is_capped = |class: usize| !self.problem.caps_of_class[class].is_empty();
        order.sort_by_cached_key(|class| {
            let open = if is_capped(*class) { places(*class) } else { usize::MAX };
            (is_later(class), Reverse(self.dominant_resource(*class).0), open, *class)
        });
        order
    }

    fn amounts_range(&self, node: usize) -> std::ops::Range<usize> {
        let resources = self.problem.resources();
        node * resources..(node + 1) * resources
    }

    fn place(&mut self, class: usize, count: u32) {
        let mut cursor = PlacementCursor::new(self, class);
        for _ in 0..count {
            let found =
                self.tightest_fit(&mut cursor).or_else(|| self.cheapest_growth(&mut cursor));
            match found.or_else(|| self.open(class)) {
                Some(node) => self.add_pod(class, node),
                None => return,
            }
        }
    }

    /// Returns the node with the least room of the dominant resource that still holds the pod.
    fn tightest_fit(&self, cursor: &mut PlacementCursor) -> Option<usize> {
        let (class, dominant) = (cursor.class, cursor.dominant);
        let request = &self.problem.classes[class].requests;
        let fits = |node: usize| copies(request, &self.room[self.amounts_range(node)], 1) == 1;
        let mut best: Option<(i64, usize)> = None;
        for (ladder, from) in &mut cursor.tightest {
            // A node that rejects this pod rejects the next pods of the class too.
            let tightest = self.ladders[*ladder].by_room[dominant].range(*from..).take(FITS_TRIED);
            for ranked in tightest.copied() {
                *from = ranked;
                if fits(ranked.1) && self.is_within_caps(ranked.1, class) {
                    best = Some(best.map_or(ranked, |best| best.min(ranked)));
                    break;
                }
            }
        }
        best.map(|(_, node)| node)
    }

    /// Returns the lightly used node whose growth for the pod costs least.
    fn cheapest_growth(&self, cursor: &mut PlacementCursor) -> Option<usize> {
        let (class, dominant) = (cursor.class, cursor.dominant);
        let mut best: Option<(i64, i64, usize)> = None;
        for (ladder, from) in &mut cursor.least {
            let least = || self.ladders[*ladder].by_load[dominant].range(*from..).copied();
            let first = least().find(|(_, node)| self.is_within_caps(*node, class));
            // A node whose caps reject this pod reject the next pods of the class too.
            *from = first.unwrap_or((i64::MAX, usize::MAX));
            for (load, node) in
                self.ladders[*ladder].by_load[dominant].range(*from..).take(GROWTHS_TRIED)
            {
                if !self.is_within_caps(*node, class) {
                    continue;
                }
                let growth =
                    self.grown_offering(*node, class).map(|(_, increase)| (increase, *load, *node));
                best = best.into_iter().chain(growth).min();
            }
        }
        best.map(|(_, _, node)| node)
    }

    /// Returns the offering of a node after it receives a pod, and the price increase.
    fn grown_offering(&self, node: usize, class: usize) -> Option<(usize, i64)> {
        let (GrowingNode { ladder, at, .. }, load) =
            (&self.nodes[node], &self.load[self.amounts_range(node)]);
        let (offerings, request) =
            (&self.ladders[*ladder].offerings, &self.problem.classes[class].requests);
        let holds = |at: &usize| {
            let room = &self.problem.offerings[offerings[*at]].room;
            let needs = load.iter().zip(request).map(|(load, request)| load + request);
            needs.zip(room).all(|(needs, room)| needs <= *room)
        };
        let larger = (*at..offerings.len()).find(holds)?;
        let price = |at: usize| self.problem.offerings[offerings[at]].price;
        Some((larger, price(larger) - price(*at)))
    }

    /// Opens the cheapest node for a pod, in the ladder with the fewest nodes for its demand.
    fn open(&mut self, class: usize) -> Option<usize> {
        let cheapest = |ladder: &OfferingLadder| {
            (0..ladder.offerings.len())
                .find(|at| self.problem.offerings[ladder.offerings[*at]].admits[class])
        };
        let ladders = self.ladders.iter().enumerate().filter(|(_, ladder)| ladder.admits[class]);
        let able = ladders.filter_map(|(index, ladder)| Some((index, cheapest(ladder)?)));
        let price = |ladder: usize, at: usize| {
            self.problem.offerings[self.ladders[ladder].offerings[at]].price
        };
        let emptiest = |(ladder, at): &(usize, usize)| {
            let OfferingLadder { nodes, demand, .. } = &self.ladders[*ladder];
            (
                u128::from(*nodes) * 1_000_000_000 / (*demand / 1_000).max(1),
                price(*ladder, *at),
                *ladder,
            )
        };
        let (ladder, at) = able.min_by_key(emptiest)?;
        let room = &self.problem.offerings[self.ladders[ladder].offerings[at]].room;
        self.room.extend(room);
        self.load.extend(std::iter::repeat_n(0, room.len()));
        let (pods, pods_by_cap) = (BTreeMap::new(), BTreeMap::new());
        self.ladders[ladder].nodes += 1;
        self.nodes.push(GrowingNode { ladder, at, pods, pods_by_cap });
        let node = self.nodes.len() - 1;
        self.index_node(node);
        Some(node)
    }

    fn add_pod(&mut self, class: usize, node: usize) {
        self.unindex_node(node);
        let grown = self.grown_offering(node, class).map(|(at, _)| at);
        let range = self.amounts_range(node);
        let of = &mut self.nodes[node];
        of.at = grown.unwrap_or(of.at);
        let whole = &self.problem.offerings[self.ladders[of.ladder].offerings[of.at]].room;
        let (load, room) = (&mut self.load[range.clone()], &mut self.room[range]);
        for (at, request) in self.problem.classes[class].requests.iter().enumerate() {
            load[at] += request;
            room[at] = whole[at] - load[at];
        }
        *of.pods.entry(class).or_insert(0) += 1;
        for cap in &self.problem.caps_of_class[class] {
            *of.pods_by_cap.entry(*cap).or_insert(0) += 1;
        }
        self.index_node(node);
    }

    fn is_within_caps(&self, node: usize, class: usize) -> bool {
        self.problem.caps_of_class[class].iter().all(|cap| {
            let here = self.nodes[node].pods_by_cap.get(cap).copied().unwrap_or(0);
            here < self.problem.caps[*cap].max_pods
        })
    }

    fn index_node(&mut self, node: usize) {
        let range = self.amounts_range(node);
        let (room, load) = (&self.room[range.clone()], &self.load[range]);
        let ladder = &mut self.ladders[self.nodes[node].ladder];
        for dominant in &self.dominant_resources {
            ladder.by_room[*dominant].insert((room[*dominant], node));
            ladder.by_load[*dominant].insert((load[*dominant], node));
        }
    }

    fn unindex_node(&mut self, node: usize) {
        let range = self.amounts_range(node);
        let (room, load) = (&self.room[range.clone()], &self.load[range]);
        let ladder = &mut self.ladders[self.nodes[node].ladder];
        for dominant in &self.dominant_resources {
            ladder.by_room[*dominant].remove(&(room[*dominant], node));
            ladder.by_load[*dominant].remove(&(load[*dominant], node));
        }
    }

    fn into_purchase(self, wanted: &[u32]) -> Purchase {
        let mut purchase = Purchase::empty(wanted);
        for GrowingNode { ladder, at, pods, .. } in self.nodes {
            let offering = self.ladders[ladder].offerings[at];
            purchase.buy(&Pattern { offering, pods: pods.into_iter().collect() }, 1);
        }
        purchase
    }
}

#[cfg(test)]
mod tests {
    use super::super::purchase::holds;
    use super::super::{DemandClass, NodeOffering, PodCap};
    use super::*;

    /// Offerings of sizes 1 to 40 at one price per unit, with a tenth of a unit reserved, in two
    /// places.
    fn problem(
        requests: &[(i64, i64)],
        place: impl Fn(usize) -> Option<usize>,
        cap: PodCap,
    ) -> BinPackingProblem {
        let classes = requests
            .iter()
            .map(|(cpu, memory)| DemandClass { requests: vec![*cpu, *memory, 1] })
            .collect();
        let offering = |(size, here): (i64, usize)| {
            let room = vec![1_000 * size - 100, 2_000 * size, 10 * size];
            let fits = |(cpu, memory): &(i64, i64)| *cpu <= room[0] && *memory <= room[1];
            let admits = (0..requests.len()).map(|class| {
                fits(&requests[class]) && place(class).is_none_or(|place| place == here)
            });
            NodeOffering { price: 100 * size, admits: admits.collect(), room }
        };
        let offerings = (1..=40).flat_map(|size| [(size, 0), (size, 1)]).map(offering).collect();
        BinPackingProblem::new(classes, offerings, vec![cap])
    }

    #[test]
    fn all_pods_fit_on_nodes_priced_near_the_lower_bound() {
        let requests: Vec<(i64, i64)> = (0..60)
            .map(|n| ([100, 250, 500, 1000, 1500][n % 5], [100, 512, 1024, 4096][n % 4]))
            .collect();
        let place = |class: usize| (!class.is_multiple_of(3)).then_some(class % 2);
        let cap = PodCap { members: (0..12).collect(), max_pods: 1 };
        let problem = problem(&requests, place, cap);
        let wanted: Vec<u32> = (0..60).map(|n| 3 + n % 7).collect();
        let purchase = growing_best_fit(&problem, &wanted).expect("a cap decides");
        assert_eq!(purchase.left_over(), 0);
        for (node, _) in &purchase.nodes {
            assert!(holds(&problem, &problem.offerings[node.offering], &node.pods), "{node:?}");
        }
        let total = |of: fn(&(i64, i64)) -> i64| -> i64 {
            requests
                .iter()
                .zip(&wanted)
                .map(|(request, count)| of(request) * i64::from(*count))
                .sum()
        };
        let forced: u32 = wanted[..12].iter().sum();
        assert_eq!(purchase.nodes.len(), usize::try_from(forced).expect("few"));
        let cpu = total(|request| request.0) / 10 + 10 * i64::from(forced);
        let least = cpu.max(total(|request| request.1) / 20);
        let price = purchase.price(&problem);
        assert!(price * 100 <= least * 120, "{price} for at least {least}");
    }

    #[test]
    fn without_a_forcing_cap_no_nodes_grow() {
        let requests = vec![(100, 100); 3];
        let problem = problem(&requests, |_| None, PodCap { members: vec![0], max_pods: 1 });
        assert!(growing_best_fit(&problem, &[1, 100, 100]).is_none());
        assert!(
            growing_best_fit(
                &BinPackingProblem::new(problem.classes, problem.offerings, vec![]),
                &[1, 1, 1]
            )
            .is_none()
        );
    }
}
