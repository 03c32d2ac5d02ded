//! Nodes that grow with their pods, for pods that keep apart so much that this decides how many
//! nodes there are.
//!
//! Where a cap forces many nodes, their number is given and their size is the question. Pods under
//! that cap come first, each to a node of its own; every other pod goes where it fits into what a
//! node has left, as tightly as possible, or else makes a node larger that holds little, where that
//! costs least. A node is always of the cheapest kind that holds its pods. Work is a few steps for
//! each pod, whatever the number of nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::blank::copies;
use super::bought::Bought;
use super::cluster::is_admitted;
use super::{Market, Pattern};

/// Pods to a node, if there are as many nodes as caps force, up to which caps decide.
const PODS_PER_NODE: u64 = 16;

/// Nodes whose room is tried for a pod, those first that it would leave the least in.
const ROOMS_TRIED: usize = 24;

/// Nodes that are tried to grow for a pod, those first that hold the least.
const GROWTHS_TRIED: usize = 12;

/// Returns nodes for `wanted` pods by class, where a cap decides how many there are.
pub(super) fn grown(market: &Market, wanted: &[u32]) -> Option<Bought> {
    let pods: u64 = wanted.iter().map(|count| u64::from(*count)).sum();
    let forced = (0..market.caps.len()).map(|cap| (nodes_under(market, wanted, cap), Reverse(cap)));
    let (nodes, Reverse(first)) = forced.max()?;
    if nodes.saturating_mul(PODS_PER_NODE) < pods {
        return None;
    }
    let mut nursery = Nursery::of(market, wanted);
    for class in nursery.order(first) {
        nursery.place(class, wanted[class]);
    }
    Some(nursery.bought(wanted))
}

/// The least number of nodes that a cap lets pods share.
fn nodes_under(market: &Market, wanted: &[u32], cap: usize) -> u64 {
    let cap = &market.caps[cap];
    let pods: u64 = cap.members.iter().map(|class| u64::from(wanted[*class])).sum();
    pods.div_ceil(u64::from(cap.most.max(1)))
}

/// Kinds that take the same classes as far as these fit, the cheapest first.
struct Track {
    kinds: Vec<usize>,
    admits: Vec<bool>,
    nodes: u64,
    /// What is sure to come here of the resource that is asked for most, and a share of the rest.
    demand: u128,
    /// For each resource, the nodes by what their kind has left of it.
    rooms: Vec<BTreeSet<(i64, usize)>>,
    /// For each resource, the nodes by what their pods take of it.
    loads: Vec<BTreeSet<(i64, usize)>>,
}

/// A node that may still grow.
struct Node {
    track: usize,
    /// Where its kind is among those of its track.
    at: usize,
    pods: BTreeMap<usize, u32>,
    /// Pods under each cap that concerns some of them.
    under: BTreeMap<usize, u32>,
}

/// Where the search for places for the pods of one class has come to, in each track that admits
/// them.
struct Search {
    class: usize,
    /// The resource that they take the largest share of.
    main: usize,
    /// The next node by what is left of that.
    tightest: Vec<(usize, (i64, usize))>,
    /// The next node by what is taken of it.
    least: Vec<(usize, (i64, usize))>,
}

impl Search {
    fn of(nursery: &Nursery, class: usize) -> Self {
        let (_, main) = nursery.main(class);
        let tracks = nursery.tracks.iter().enumerate();
        let open: Vec<usize> =
            tracks.filter(|(_, track)| track.admits[class]).map(|(index, _)| index).collect();
        let ask = nursery.market.wares[class].ask[main];
        let from = |at: i64| open.iter().map(|track| (*track, (at, 0))).collect();
        Self { class, main, tightest: from(ask), least: from(0) }
    }
}

struct Nursery<'a> {
    market: &'a Market,
    tracks: Vec<Track>,
    nodes: Vec<Node>,
    /// What each node has left, one after the other, and what its pods take: looked at for every pod,
    /// so that it lies side by side.
    room: Vec<i64>,
    load: Vec<i64>,
    /// What all pods together ask for.
    total: Vec<i128>,
    /// The resources that some pods take the largest share of: nodes are ranked by these alone.
    mains: Vec<usize>,
}

impl<'a> Nursery<'a> {
    fn of(market: &'a Market, wanted: &[u32]) -> Self {
        let mut by_admission: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for (index, kind) in market.kinds.iter().enumerate() {
            let wares = market.wares.iter().enumerate();
            let admits = wares.map(|(class, ware)| is_admitted(ware, kind, class)).collect();
            by_admission.entry(admits).or_default().push(index);
        }
        let mut total = vec![0; market.resources()];
        for (ware, count) in market.wares.iter().zip(wanted) {
            for (sum, ask) in total.iter_mut().zip(&ware.ask) {
                *sum += i128::from(*ask) * i128::from(*count);
            }
        }
        let track = |(admits, mut kinds): (Vec<bool>, Vec<usize>)| {
            kinds.sort_by_key(|kind| (market.kinds[*kind].price, *kind));
            let none = vec![BTreeSet::new(); market.resources()];
            Track { kinds, admits, nodes: 0, demand: 0, rooms: none.clone(), loads: none }
        };
        let tracks = by_admission.into_iter().map(track).collect();
        let (nodes, room, load, mains) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut nursery = Self { market, tracks, nodes, room, load, total, mains };
        let mains: BTreeSet<usize> =
            (0..market.wares.len()).map(|class| nursery.main(class).1).collect();
        nursery.mains = mains.into_iter().collect();
        nursery.share_demand(wanted);
        nursery
    }

    /// Works out how much each track is sure to get: pods with a choice count in equal parts.
    fn share_demand(&mut self, wanted: &[u32]) {
        for (class, count) in wanted.iter().enumerate() {
            let admit = || self.tracks.iter().filter(|track| track.admits[class]).count();
            let parts = u128::try_from(admit()).unwrap_or(1).max(1);
            // In millionths of all that is asked for of its main resource.
            let (share, _) = self.main(class);
            let share = share * u128::from(*count) / parts;
            for track in self.tracks.iter_mut().filter(|track| track.admits[class]) {
                track.demand += share;
            }
        }
    }

    /// Returns the largest share that a pod takes of what all ask for, in 10⁻¹², and of what.
    fn main(&self, class: usize) -> (u128, usize) {
        const UNIT: i128 = 1_000_000_000_000;
        let asks = self.market.wares[class].ask.iter().zip(&self.total);
        let share = |(ask, total): (&i64, &i128)| i128::from(*ask) * UNIT / (*total).max(1);
        let shares = asks.map(share).zip(0..);
        let most = shares.max_by_key(|(share, resource)| (*share, Reverse(*resource)));
        most.map_or((0, 0), |(share, resource)| (u128::try_from(share).unwrap_or(0), resource))
    }

    /// Classes under `first`, then the others from the largest pod to the smallest; of alike pods
    /// those first that have the fewest places to go to, which a cap may close.
    fn order(&self, first: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.market.wares.len()).collect();
        let is_later = |class: &usize| !self.market.caps_of[*class].contains(&first);
        let places = |class: usize| self.tracks.iter().filter(|track| track.admits[class]).count();
        let is_capped = |class: usize| !self.market.caps_of[class].is_empty();
        order.sort_by_cached_key(|class| {
            let open = if is_capped(*class) { places(*class) } else { usize::MAX };
            (is_later(class), Reverse(self.main(*class).0), open, *class)
        });
        order
    }

    /// Where the amounts of a node are.
    fn of_node(&self, node: usize) -> std::ops::Range<usize> {
        let resources = self.market.resources();
        node * resources..(node + 1) * resources
    }

    fn place(&mut self, class: usize, count: u32) {
        let mut search = Search::of(self, class);
        for _ in 0..count {
            let found = self.with_room(&mut search).or_else(|| self.to_grow(&mut search));
            match found.or_else(|| self.open(class)) {
                Some(node) => self.put(class, node),
                None => return,
            }
        }
    }

    /// The node with the least left of the main resource into which a pod still fits.
    fn with_room(&self, search: &mut Search) -> Option<usize> {
        let (class, main) = (search.class, search.main);
        let ask = &self.market.wares[class].ask;
        let fits = |node: usize| copies(ask, &self.room[self.of_node(node)], 1) == 1;
        let mut best: Option<(i64, usize)> = None;
        for (track, from) in &mut search.tightest {
            // What does not take a pod of the class now takes none of the next ones either.
            let tightest = self.tracks[*track].rooms[main].range(*from..).take(ROOMS_TRIED);
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

    /// The node that becomes dearer by the least if a pod comes, of those that hold little.
    fn to_grow(&self, search: &mut Search) -> Option<usize> {
        let (class, main) = (search.class, search.main);
        let mut best: Option<(i64, i64, usize)> = None;
        for (track, from) in &mut search.least {
            let least = || self.tracks[*track].loads[main].range(*from..).copied();
            let first = least().find(|(_, node)| self.is_within_caps(*node, class));
            // Whoever keeps a pod of the class away keeps the next ones away as well.
            *from = first.unwrap_or((i64::MAX, usize::MAX));
            for (load, node) in self.tracks[*track].loads[main].range(*from..).take(GROWTHS_TRIED) {
                if !self.is_within_caps(*node, class) {
                    continue;
                }
                let growth = self.after(*node, class).map(|(_, dearer)| (dearer, *load, *node));
                best = best.into_iter().chain(growth).min();
            }
        }
        best.map(|(_, _, node)| node)
    }

    /// Returns which kind of its track a node is of once a pod has come, and by how much dearer.
    fn after(&self, node: usize, class: usize) -> Option<(usize, i64)> {
        let (Node { track, at, .. }, load) = (&self.nodes[node], &self.load[self.of_node(node)]);
        let (kinds, ask) = (&self.tracks[*track].kinds, &self.market.wares[class].ask);
        let holds = |at: &usize| {
            let room = &self.market.kinds[kinds[*at]].room;
            let needs = load.iter().zip(ask).map(|(load, ask)| load + ask);
            needs.zip(room).all(|(needs, room)| needs <= *room)
        };
        let larger = (*at..kinds.len()).find(holds)?;
        let price = |at: usize| self.market.kinds[kinds[at]].price;
        Some((larger, price(larger) - price(*at)))
    }

    /// Opens the cheapest node for a pod, in the track that has the fewest for what comes there.
    fn open(&mut self, class: usize) -> Option<usize> {
        let cheapest = |track: &Track| {
            (0..track.kinds.len()).find(|at| self.market.kinds[track.kinds[*at]].takes[class])
        };
        let tracks = self.tracks.iter().enumerate().filter(|(_, track)| track.admits[class]);
        let able = tracks.filter_map(|(index, track)| Some((index, cheapest(track)?)));
        let price = |track: usize, at: usize| self.market.kinds[self.tracks[track].kinds[at]].price;
        let emptiest = |(track, at): &(usize, usize)| {
            let Track { nodes, demand, .. } = &self.tracks[*track];
            (
                u128::from(*nodes) * 1_000_000_000 / (*demand / 1_000).max(1),
                price(*track, *at),
                *track,
            )
        };
        let (track, at) = able.min_by_key(emptiest)?;
        let room = &self.market.kinds[self.tracks[track].kinds[at]].room;
        self.room.extend(room);
        self.load.extend(std::iter::repeat_n(0, room.len()));
        let (pods, under) = (BTreeMap::new(), BTreeMap::new());
        self.tracks[track].nodes += 1;
        self.nodes.push(Node { track, at, pods, under });
        let node = self.nodes.len() - 1;
        self.enlist(node);
        Some(node)
    }

    fn put(&mut self, class: usize, node: usize) {
        self.strike(node);
        let grown = self.after(node, class).map(|(at, _)| at);
        let range = self.of_node(node);
        let of = &mut self.nodes[node];
        of.at = grown.unwrap_or(of.at);
        let whole = &self.market.kinds[self.tracks[of.track].kinds[of.at]].room;
        let (load, room) = (&mut self.load[range.clone()], &mut self.room[range]);
        for (at, ask) in self.market.wares[class].ask.iter().enumerate() {
            load[at] += ask;
            room[at] = whole[at] - load[at];
        }
        *of.pods.entry(class).or_insert(0) += 1;
        for cap in &self.market.caps_of[class] {
            *of.under.entry(*cap).or_insert(0) += 1;
        }
        self.enlist(node);
    }

    fn is_within_caps(&self, node: usize, class: usize) -> bool {
        self.market.caps_of[class].iter().all(|cap| {
            let here = self.nodes[node].under.get(cap).copied().unwrap_or(0);
            here < self.market.caps[*cap].most
        })
    }

    fn enlist(&mut self, node: usize) {
        let range = self.of_node(node);
        let (room, load) = (&self.room[range.clone()], &self.load[range]);
        let track = &mut self.tracks[self.nodes[node].track];
        for main in &self.mains {
            track.rooms[*main].insert((room[*main], node));
            track.loads[*main].insert((load[*main], node));
        }
    }

    fn strike(&mut self, node: usize) {
        let range = self.of_node(node);
        let (room, load) = (&self.room[range.clone()], &self.load[range]);
        let track = &mut self.tracks[self.nodes[node].track];
        for main in &self.mains {
            track.rooms[*main].remove(&(room[*main], node));
            track.loads[*main].remove(&(load[*main], node));
        }
    }

    fn bought(self, wanted: &[u32]) -> Bought {
        let mut bought = Bought::nothing(wanted);
        for Node { track, at, pods, .. } in self.nodes {
            let kind = self.tracks[track].kinds[at];
            bought.buy(&Pattern { kind, pods: pods.into_iter().collect() }, 1);
        }
        bought
    }
}

#[cfg(test)]
mod tests {
    use super::super::bought::holds;
    use super::super::{Cap, Kind, Ware};
    use super::*;

    /// Sizes 1 to 40 at one price for each unit, a tenth of a unit of which is kept; in two places.
    fn market(asks: &[(i64, i64)], place: impl Fn(usize) -> Option<usize>, cap: Cap) -> Market {
        let wares = asks.iter().map(|(cpu, memory)| Ware { ask: vec![*cpu, *memory, 1] }).collect();
        let kind = |(size, here): (i64, usize)| {
            let room = vec![1_000 * size - 100, 2_000 * size, 10 * size];
            let fits = |(cpu, memory): &(i64, i64)| *cpu <= room[0] && *memory <= room[1];
            let takes = (0..asks.len())
                .map(|class| fits(&asks[class]) && place(class).is_none_or(|place| place == here));
            Kind { price: 100 * size, takes: takes.collect(), room }
        };
        let kinds = (1..=40).flat_map(|size| [(size, 0), (size, 1)]).map(kind).collect();
        Market::new(wares, kinds, Vec::new(), vec![cap])
    }

    #[test]
    fn every_pod_has_a_place_on_nodes_that_cost_little_more_than_what_is_asked_for() {
        let asks: Vec<(i64, i64)> = (0..60)
            .map(|n| ([100, 250, 500, 1000, 1500][n % 5], [100, 512, 1024, 4096][n % 4]))
            .collect();
        let place = |class: usize| (!class.is_multiple_of(3)).then_some(class % 2);
        let cap = Cap { members: (0..12).collect(), most: 1 };
        let market = market(&asks, place, cap);
        let wanted: Vec<u32> = (0..60).map(|n| 3 + n % 7).collect();
        let bought = grown(&market, &wanted).expect("a cap decides");
        assert_eq!(bought.left_over(), 0);
        for (node, _) in &bought.nodes {
            assert!(holds(&market, &market.kinds[node.kind], &node.pods), "{node:?}");
        }
        let total = |of: fn(&(i64, i64)) -> i64| -> i64 {
            asks.iter().zip(&wanted).map(|(ask, count)| of(ask) * i64::from(*count)).sum()
        };
        let forced: u32 = wanted[..12].iter().sum();
        assert_eq!(bought.nodes.len(), usize::try_from(forced).expect("few"));
        let cpu = total(|ask| ask.0) / 10 + 10 * i64::from(forced);
        let least = cpu.max(total(|ask| ask.1) / 20);
        let price = bought.price(&market);
        assert!(price * 100 <= least * 120, "{price} for at least {least}");
    }

    #[test]
    fn where_no_cap_forces_many_nodes_nothing_is_grown() {
        let asks = vec![(100, 100); 3];
        let market = market(&asks, |_| None, Cap { members: vec![0], most: 1 });
        assert!(grown(&market, &[1, 100, 100]).is_none());
        assert!(
            grown(&Market::new(market.wares, market.kinds, vec![], vec![]), &[1, 1, 1]).is_none()
        );
    }
}
