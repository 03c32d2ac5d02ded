//! The bound against every fleet there could be, and against packings.

use proptest::prelude::*;

use super::super::market::bought::Bought;
use super::super::market::purchase::{purchase, tightest};
use super::super::market::{Cap, Kind, Market, Single, Ware};
use super::*;

/// Prices of all fleets are looked at: pods one by one, on each node there is and on a new one of
/// each kind.
struct Brute<'a> {
    market: &'a Market,
    pods: Vec<usize>,
    best: Option<i64>,
}

#[derive(Clone)]
struct Node<'a> {
    kind: &'a Kind,
    pods: Vec<usize>,
    paid: bool,
}

impl<'a> Brute<'a> {
    fn cheapest(market: &'a Market, wanted: &[u32]) -> Option<i64> {
        let pods = wanted.iter().enumerate().flat_map(|(class, n)| (0..*n).map(move |_| class));
        let mut brute = Self { market, pods: pods.collect(), best: None };
        let singles = market.singles.iter();
        let nodes: Vec<Node> = singles
            .map(|single| Node { kind: &single.kind, pods: Vec::new(), paid: false })
            .collect();
        brute.place(0, &nodes, 0);
        brute.best
    }

    fn place(&mut self, at: usize, nodes: &[Node<'a>], price: i64) {
        if self.best.is_some_and(|best| price >= best) {
            return;
        }
        let Some(class) = self.pods.get(at).copied() else {
            self.best = Some(price);
            return;
        };
        for index in 0..nodes.len() {
            let mut nodes = nodes.to_vec();
            let cost = if nodes[index].paid { 0 } else { nodes[index].kind.price };
            nodes[index].paid = true;
            nodes[index].pods.push(class);
            let is_single = index < self.market.singles.len();
            if if is_single { self.has_room(&nodes[index]) } else { self.holds(&nodes[index]) } {
                self.place(at + 1, &nodes, price + cost);
            }
        }
        for kind in &self.market.kinds {
            let node = Node { kind, pods: vec![class], paid: true };
            if self.holds(&node) {
                let nodes: Vec<Node> = nodes.iter().cloned().chain([node]).collect();
                self.place(at + 1, &nodes, price + kind.price);
            }
        }
    }

    fn holds(&self, node: &Node) -> bool {
        let under = |cap: &Cap| {
            let count = node.pods.iter().filter(|class| cap.members.contains(class)).count();
            u32::try_from(count).expect("few pods") <= cap.most
        };
        self.has_room(node) && self.market.caps.iter().all(under)
    }

    fn has_room(&self, node: &Node) -> bool {
        let asked = |r: usize| node.pods.iter().map(|c| self.market.wares[*c].ask[r]).sum::<i64>();
        node.pods.iter().all(|class| node.kind.takes[*class])
            && node.kind.room.iter().enumerate().all(|(r, room)| asked(r) <= *room)
    }
}

const CLASSES: usize = 3;

fn kinds(most: usize) -> impl Strategy<Value = Vec<Kind>> {
    let takes = proptest::collection::vec(proptest::bool::weighted(0.9), CLASSES);
    let kind =
        (1_i64..1_000_000, 1_i64..40, 1_i64..40, takes).prop_map(|(price, cpu, memory, takes)| {
            Kind { price, room: vec![cpu, memory << 30, 5], takes }
        });
    proptest::collection::vec(kind, 0..=most)
}

fn markets() -> impl Strategy<Value = (Market, Vec<u32>)> {
    let ware =
        (0_i64..16, 0_i64..16).prop_map(|(cpu, memory)| Ware { ask: vec![cpu, memory << 30, 1] });
    let wares = proptest::collection::vec(ware, CLASSES);
    let members = proptest::sample::subsequence((0..CLASSES).collect::<Vec<_>>(), 1..=CLASSES);
    let caps = proptest::collection::vec(
        (members, 1_u32..3).prop_map(|(members, most)| Cap { members, most }),
        0..2,
    );
    let wanted = proptest::collection::vec(0_u32..3, CLASSES);
    (wares, kinds(4), kinds(1), caps, wanted).prop_map(
        |(wares, mut kinds, mut singles, caps, wanted)| {
            let too_small = |kind: &mut Kind| {
                for (class, ware) in wares.iter().enumerate() {
                    kind.takes[class] &=
                        ware.ask.iter().zip(&kind.room).all(|(ask, room)| ask <= room);
                }
            };
            kinds.iter_mut().chain(&mut singles).for_each(too_small);
            let singles = singles.into_iter().map(|kind| Single { kind, count: 1 }).collect();
            (Market::new(wares, kinds, singles, caps), wanted)
        },
    )
}

/// Bounds by prices alone, with pods cut and then whole.
fn by_prices(market: &Market, wanted: &[u32], steps: u64) -> [i64; 2] {
    let mut pricing = Pricing::of(market, wanted, Effort { steps, ..EFFORT });
    pricing.price_cut();
    let cut = pricing.best().bound;
    pricing.price_whole(&[]);
    [cut, pricing.best().bound]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_fleet_is_cheaper_than_any_bound((market, wanted) in markets()) {
        let optimum = Brute::cheapest(&market, &wanted);
        prop_assert_eq!(cheapest(&market, &wanted).map(|found| found.price), optimum);
        if let Some(optimum) = optimum {
            prop_assert_eq!(bound(&market, &wanted, Proof::Quick), optimum);
            let [cut, whole] = by_prices(&market, &wanted, 2_000);
            prop_assert!(cut <= whole, "{} is above {}", cut, whole);
            prop_assert!(whole <= optimum, "{} is above {}", whole, optimum);
            let [_, hasty] = by_prices(&market, &wanted, 2);
            prop_assert!(hasty <= optimum, "{} is above {}", hasty, optimum);
            prop_assert!(apart(&market, &wanted) <= optimum);
        }
    }

    #[test]
    fn the_cheapest_nodes_hold_the_pods_that_no_single_does((market, wanted) in markets()) {
        if let Some(found) = cheapest(&market, &wanted) {
            let mut left = wanted.clone();
            let mut price = 0;
            for node in &found.nodes {
                let pods = node.pods.iter().flat_map(|(c, n)| (0..*n).map(move |_| *c)).collect();
                let kind = &market.kinds[node.kind];
                let brute = Brute { market: &market, pods: Vec::new(), best: None };
                let holds = brute.holds(&Node { kind, pods, paid: true });
                prop_assert!(holds);
                price += kind.price;
                node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            }
            prop_assert!(price <= found.price);
            prop_assert!(!market.singles.is_empty() || left.iter().all(|n| *n == 0));
        }
    }

    #[test]
    fn one_pod_more_never_costs_less((market, wanted) in markets(), class in 0..CLASSES) {
        let mut more = wanted.clone();
        more[class] += 1;
        if cheapest(&market, &more).is_some() {
            prop_assert!(bound(&market, &wanted, Proof::Quick) <= bound(&market, &more, Proof::Quick));
        }
    }
}

/// Many classes of many pods on few large kinds, each class under a cap of its own with `capped`.
fn large(classes: u32, capped: bool) -> (Market, Vec<u32>) {
    let ware = |n: u32| {
        let (cpu, memory) = (100 + 37 * i64::from(n * 7 % 41), 1 + i64::from(n * 11 % 29));
        Ware { ask: vec![cpu, memory << 28, 0, 1] }
    };
    let kind = |n: i64| Kind {
        price: 40_000 * (1 << n) - 500 * n,
        room: vec![2_000 << n, (4 + 2 * (n % 3)) << (30 + n), 0, 110],
        takes: vec![true; usize::try_from(classes).expect("few")],
    };
    let wares = (0..classes).map(ware).collect();
    let caps = (0..usize::try_from(classes).expect("few")).filter(|_| capped);
    let caps = caps.map(|class| Cap { members: vec![class], most: 1 }).collect();
    let market = Market::new(wares, (4..7).map(kind).collect(), Vec::new(), caps);
    (market, (0..classes).map(|n| 3 + n % 50).collect())
}

/// The price of putting each pod on the first node with room, on the best single kind.
fn first_fit(market: &Market, wanted: &[u32]) -> i64 {
    let prices = market.kinds.iter().map(|kind| {
        let mut nodes: Vec<Node> = Vec::new();
        let brute = Brute { market, pods: Vec::new(), best: None };
        for class in wanted.iter().enumerate().flat_map(|(c, n)| (0..*n).map(move |_| c)) {
            let fits = nodes.iter_mut().any(|node| {
                node.pods.push(class);
                let holds = brute.holds(node);
                if !holds {
                    node.pods.pop();
                }
                holds
            });
            if !fits {
                nodes.push(Node { kind, pods: vec![class], paid: true });
            }
        }
        kind.price * i64::try_from(nodes.len()).expect("few")
    });
    prices.min().expect("some kinds")
}

#[test]
fn many_classes_are_bounded_closely() {
    let (market, wanted) = large(90, false);
    let (bound, packed) = (bound(&market, &wanted, Proof::Quick), first_fit(&market, &wanted));
    assert!(bound <= packed && bound * 100 >= packed * 85, "{bound} and {packed}");
}

#[test]
fn pods_that_keep_apart_raise_the_bound() {
    for classes in [20, 90] {
        let (market, wanted) = large(classes, true);
        let (free, _) = large(classes, false);
        let (bound, without) =
            (bound(&market, &wanted, Proof::Quick), bound(&free, &wanted, Proof::Quick));
        let packed = first_fit(&market, &wanted);
        assert!(without < bound && bound <= packed, "{without}, {bound} and {packed}");
    }
}

#[test]
fn ten_thousand_pods_apart_need_as_many_nodes() {
    let ware = Ware { ask: vec![100, 1 << 28, 0, 1] };
    let (mut market, _) = large(1, false);
    market =
        Market::new(vec![ware], market.kinds, Vec::new(), vec![Cap { members: vec![0], most: 1 }]);
    assert_eq!(bound(&market, &[10_000], Proof::Quick), 10_000 * market.kinds[0].price);
}

#[test]
fn the_same_market_has_the_same_bound() {
    let (market, wanted) = large(90, true);
    assert_eq!(bound(&market, &wanted, Proof::Quick), bound(&market, &wanted, Proof::Quick));
}

/// Nodes that were bought hold their pods, and all pods are on them or left over.
fn assert_sound(market: &Market, wanted: &[u32]) -> (i64, u64) {
    assert_sound_of(market, wanted, &purchase(market, wanted))
}

fn assert_sound_of(market: &Market, wanted: &[u32], bought: &Bought) -> (i64, u64) {
    let brute = Brute { market, pods: Vec::new(), best: None };
    let (mut held, mut price) = (bought.left.clone(), 0);
    for (node, count) in &bought.nodes {
        let pods = node.pods.iter().flat_map(|(c, n)| (0..*n).map(move |_| *c)).collect();
        let kind = &market.kinds[node.kind];
        assert!(brute.holds(&Node { kind, pods, paid: true }), "{node:?}");
        price += kind.price * i64::from(*count);
        node.pods.iter().for_each(|(class, pods)| held[*class] += pods * count);
    }
    assert_eq!(held, wanted);
    (price, bought.left.iter().map(|n| u64::from(*n)).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_handful_of_pods_is_bought_for_at_the_least_price((mut market, wanted) in markets()) {
        market.singles.clear();
        let (price, left) = assert_sound(&market, &wanted);
        if let Some(optimum) = Brute::cheapest(&market, &wanted) {
            prop_assert_eq!((price, left), (optimum, 0));
        }
    }
}

#[test]
fn many_pods_are_bought_for_close_to_the_bound() {
    for (classes, capped, percent) in [(20, false, 115), (20, true, 130), (90, false, 103)] {
        let (market, wanted) = large(classes, capped);
        let (price, left) = assert_sound(&market, &wanted);
        let bound = bound(&market, &wanted, Proof::Quick);
        assert_eq!(left, 0);
        assert!(bound <= price && price * 100 <= bound * percent, "{classes}: {price} and {bound}");
    }
}

#[test]
fn many_classes_are_bought_for_closer_to_the_bound_with_more_work() {
    let (market, wanted) = large(90, false);
    let tight = tightest(&market, &wanted).expect("more classes than are priced one by one");
    let (price, left) = assert_sound_of(&market, &wanted, &tight);
    let bound = bound(&market, &wanted, Proof::Quick);
    assert_eq!(left, 0);
    assert!(bound <= price && price * 100 <= bound * 112, "{price} and {bound}");
    let (few, count) = large(20, false);
    assert!(tightest(&few, &count).is_none(), "few classes are priced one by one");
    let (capped, wanted) = large(90, true);
    let tight = tightest(&capped, &wanted);
    assert!(tight.is_none_or(|tight| assert_sound_of(&capped, &wanted, &tight).1 == 0));
}

#[test]
fn pods_that_fit_nowhere_are_left_over() {
    let (mut market, mut wanted) = large(20, false);
    market.wares[3].ask[0] = i64::MAX / 4;
    market.kinds.iter_mut().for_each(|kind| kind.takes[3] = false);
    wanted[3] = 7;
    assert_eq!(assert_sound(&market, &wanted).1, 7);
}
