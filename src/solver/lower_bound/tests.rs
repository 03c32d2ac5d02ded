//! Tests the bound against exhaustive search and against packings.

use proptest::prelude::*;

use super::super::pricing::best_purchase::{best_purchase, thorough_purchase};
use super::super::pricing::purchase::Purchase;
use super::super::pricing::{BinPackingProblem, DemandClass, NodeOffering, PodCap};
use super::*;

/// Exhaustive search over all fleets: each pod on each node and on a new node of each offering.
struct Brute<'a> {
    problem: &'a BinPackingProblem,
    pods: Vec<usize>,
    best: Option<i64>,
}

#[derive(Clone)]
struct Node<'a> {
    offering: &'a NodeOffering,
    pods: Vec<usize>,
}

impl<'a> Brute<'a> {
    fn cheapest(problem: &'a BinPackingProblem, wanted: &[u32]) -> Option<i64> {
        let pods = wanted.iter().enumerate().flat_map(|(class, n)| (0..*n).map(move |_| class));
        let mut brute = Self { problem, pods: pods.collect(), best: None };
        brute.place(0, &[], 0);
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
            nodes[index].pods.push(class);
            if self.holds(&nodes[index]) {
                self.place(at + 1, &nodes, price);
            }
        }
        for offering in &self.problem.offerings {
            let node = Node { offering, pods: vec![class] };
            if self.holds(&node) {
                let nodes: Vec<Node> = nodes.iter().cloned().chain([node]).collect();
                self.place(at + 1, &nodes, price + offering.price);
            }
        }
    }

    fn holds(&self, node: &Node) -> bool {
        let under = |cap: &PodCap| {
            let count = node.pods.iter().filter(|class| cap.members.contains(class)).count();
            u32::try_from(count).expect("few pods") <= cap.max_pods
        };
        let asked =
            |r: usize| node.pods.iter().map(|c| self.problem.classes[*c].requests[r]).sum::<i64>();
        node.pods.iter().all(|class| node.offering.admits[*class])
            && node.offering.room.iter().enumerate().all(|(r, room)| asked(r) <= *room)
            && self.problem.caps.iter().all(under)
    }
}

const CLASSES: usize = 3;

fn offerings(most: usize) -> impl Strategy<Value = Vec<NodeOffering>> {
    let admits = proptest::collection::vec(proptest::bool::weighted(0.9), CLASSES);
    let offering = (1_i64..1_000_000, 1_i64..40, 1_i64..40, admits).prop_map(
        |(price, cpu, memory, admits)| NodeOffering {
            price,
            room: vec![cpu, memory << 30, 5],
            admits,
        },
    );
    proptest::collection::vec(offering, 0..=most)
}

fn problems() -> impl Strategy<Value = (BinPackingProblem, Vec<u32>)> {
    let demand = (0_i64..16, 0_i64..16)
        .prop_map(|(cpu, memory)| DemandClass { requests: vec![cpu, memory << 30, 1] });
    let classes = proptest::collection::vec(demand, CLASSES);
    let members = proptest::sample::subsequence((0..CLASSES).collect::<Vec<_>>(), 1..=CLASSES);
    let caps = proptest::collection::vec(
        (members, 1_u32..3).prop_map(|(members, max_pods)| PodCap { members, max_pods }),
        0..2,
    );
    let wanted = proptest::collection::vec(0_u32..3, CLASSES);
    (classes, offerings(4), caps, wanted).prop_map(|(classes, mut offerings, caps, wanted)| {
        let too_small = |offering: &mut NodeOffering| {
            for (class, demand) in classes.iter().enumerate() {
                offering.admits[class] &= demand
                    .requests
                    .iter()
                    .zip(&offering.room)
                    .all(|(request, room)| request <= room);
            }
        };
        offerings.iter_mut().for_each(too_small);
        (BinPackingProblem::new(classes, offerings, caps), wanted)
    })
}

/// Dual bounds only, with fractional pods and then with whole pods.
fn by_prices(problem: &BinPackingProblem, wanted: &[u32], steps: u64) -> [i64; 2] {
    let mut pricing = ColumnGeneration::new(problem, wanted, Effort { steps, ..EFFORT });
    pricing.price_fractional_pods();
    let cut = pricing.best().bound;
    pricing.price_whole_pods(&[]);
    [cut, pricing.best().bound]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_fleet_is_cheaper_than_a_bound((problem, wanted) in problems()) {
        let optimum = Brute::cheapest(&problem, &wanted);
        prop_assert_eq!(exact_purchase(&problem, &wanted).map(|found| found.price), optimum);
        if let Some(optimum) = optimum {
            prop_assert_eq!(bound_micro_usd(&problem, &wanted, Proof::Quick), optimum);
            let [cut, whole] = by_prices(&problem, &wanted, 2_000);
            prop_assert!(cut <= whole, "{} is above {}", cut, whole);
            prop_assert!(whole <= optimum, "{} is above {}", whole, optimum);
            let [_, hasty] = by_prices(&problem, &wanted, 2);
            prop_assert!(hasty <= optimum, "{} is above {}", hasty, optimum);
            prop_assert!(separation_bound(&problem, &wanted) <= optimum);
        }
    }

    #[test]
    fn no_fleet_for_a_part_of_the_pods_is_cheaper_than_their_dual_prices(
        (problem, wanted) in problems(),
        missing in proptest::collection::vec(0_u32..3, CLASSES),
    ) {
        let duals = fractional_duals(&problem, &wanted);
        let part: Vec<u32> =
            wanted.iter().zip(&missing).map(|(pods, fewer)| pods.saturating_sub(*fewer)).collect();
        if let Some(optimum) = Brute::cheapest(&problem, &part) {
            let bound = dual_bound(&duals, &part);
            prop_assert!(bound <= optimum, "{} is above {}", bound, optimum);
        }
    }

    #[test]
    fn exact_purchase_holds_all_pods((problem, wanted) in problems()) {
        if let Some(found) = exact_purchase(&problem, &wanted) {
            let mut left = wanted.clone();
            let mut price = 0;
            for node in &found.nodes {
                let pods = node.pods.iter().flat_map(|(c, n)| (0..*n).map(move |_| *c)).collect();
                let offering = &problem.offerings[node.offering];
                let brute = Brute { problem: &problem, pods: Vec::new(), best: None };
                let holds = brute.holds(&Node { offering, pods });
                prop_assert!(holds);
                price += offering.price;
                node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            }
            prop_assert_eq!(price, found.price);
            prop_assert!(left.iter().all(|n| *n == 0));
        }
    }

    #[test]
    fn bound_grows_with_the_number_of_pods((problem, wanted) in problems(), class in 0..CLASSES) {
        let mut more = wanted.clone();
        more[class] += 1;
        if exact_purchase(&problem, &more).is_some() {
            let bound = |wanted: &[u32]| bound_micro_usd(&problem, wanted, Proof::Quick);
            prop_assert!(bound(&wanted) <= bound(&more));
        }
    }
}

/// Many classes of many pods on a few large offerings. With `capped`, each class has a cap of its
/// own.
fn large(classes: u32, capped: bool) -> (BinPackingProblem, Vec<u32>) {
    let demand = |n: u32| {
        let (cpu, memory) = (100 + 37 * i64::from(n * 7 % 41), 1 + i64::from(n * 11 % 29));
        DemandClass { requests: vec![cpu, memory << 28, 0, 1] }
    };
    let offering = |n: i64| NodeOffering {
        price: 40_000 * (1 << n) - 500 * n,
        room: vec![2_000 << n, (4 + 2 * (n % 3)) << (30 + n), 0, 110],
        admits: vec![true; usize::try_from(classes).expect("few")],
    };
    let demands = (0..classes).map(demand).collect();
    let caps = (0..usize::try_from(classes).expect("few")).filter(|_| capped);
    let caps = caps.map(|class| PodCap { members: vec![class], max_pods: 1 }).collect();
    let problem = BinPackingProblem::new(demands, (4..7).map(offering).collect(), caps);
    (problem, (0..classes).map(|n| 3 + n % 50).collect())
}

/// Price of first fit on the best single offering.
fn first_fit(problem: &BinPackingProblem, wanted: &[u32]) -> i64 {
    let prices = problem.offerings.iter().map(|offering| {
        let mut nodes: Vec<Node> = Vec::new();
        let brute = Brute { problem, pods: Vec::new(), best: None };
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
                nodes.push(Node { offering, pods: vec![class] });
            }
        }
        offering.price * i64::try_from(nodes.len()).expect("few")
    });
    prices.min().expect("some offerings")
}

#[test]
fn bound_is_tight_for_many_classes() {
    let (problem, wanted) = large(90, false);
    let (bound, packed) =
        (bound_micro_usd(&problem, &wanted, Proof::Quick), first_fit(&problem, &wanted));
    assert!(bound <= packed && bound * 100 >= packed * 85, "{bound} and {packed}");
}

#[test]
fn anti_affinity_raises_the_bound() {
    for classes in [20, 90] {
        let (problem, wanted) = large(classes, true);
        let (free, _) = large(classes, false);
        let (bound, without) = (
            bound_micro_usd(&problem, &wanted, Proof::Quick),
            bound_micro_usd(&free, &wanted, Proof::Quick),
        );
        let packed = first_fit(&problem, &wanted);
        assert!(without < bound && bound <= packed, "{without}, {bound} and {packed}");
    }
}

#[test]
fn ten_thousand_exclusive_pods_need_as_many_nodes() {
    let demand = DemandClass { requests: vec![100, 1 << 28, 0, 1] };
    let (mut problem, _) = large(1, false);
    problem = BinPackingProblem::new(
        vec![demand],
        problem.offerings,
        vec![PodCap { members: vec![0], max_pods: 1 }],
    );
    assert_eq!(
        bound_micro_usd(&problem, &[10_000], Proof::Quick),
        10_000 * problem.offerings[0].price
    );
}

#[test]
fn bound_is_deterministic() {
    let (problem, wanted) = large(90, true);
    assert_eq!(
        bound_micro_usd(&problem, &wanted, Proof::Quick),
        bound_micro_usd(&problem, &wanted, Proof::Quick)
    );
}

/// Checks that each node holds its pods, and that all pods are either placed or left.
fn assert_sound(problem: &BinPackingProblem, wanted: &[u32]) -> (i64, u64) {
    assert_sound_of(problem, wanted, &best_purchase(problem, wanted))
}

fn assert_sound_of(problem: &BinPackingProblem, wanted: &[u32], purchase: &Purchase) -> (i64, u64) {
    let brute = Brute { problem, pods: Vec::new(), best: None };
    let (mut placed, mut price) = (purchase.left.clone(), 0);
    for (node, count) in &purchase.nodes {
        let pods = node.pods.iter().flat_map(|(c, n)| (0..*n).map(move |_| *c)).collect();
        let offering = &problem.offerings[node.offering];
        assert!(brute.holds(&Node { offering, pods }), "{node:?}");
        price += offering.price * i64::from(*count);
        node.pods.iter().for_each(|(class, pods)| placed[*class] += pods * count);
    }
    assert_eq!(placed, wanted);
    (price, purchase.left.iter().map(|n| u64::from(*n)).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn purchase_is_optimal_for_few_pods((problem, wanted) in problems()) {
        let (price, left) = assert_sound(&problem, &wanted);
        if let Some(optimum) = Brute::cheapest(&problem, &wanted) {
            prop_assert_eq!((price, left), (optimum, 0));
        }
    }
}

#[test]
fn purchase_is_close_to_the_bound() {
    for (classes, capped, percent) in [(20, false, 115), (20, true, 130), (90, false, 103)] {
        let (problem, wanted) = large(classes, capped);
        let (price, left) = assert_sound(&problem, &wanted);
        let bound = bound_micro_usd(&problem, &wanted, Proof::Quick);
        assert_eq!(left, 0);
        assert!(bound <= price && price * 100 <= bound * percent, "{classes}: {price} and {bound}");
    }
}

#[test]
fn thorough_purchase_is_closer_to_the_bound() {
    let (problem, wanted) = large(90, false);
    let tight = thorough_purchase(&problem, &wanted).expect("more classes than rows");
    let (price, left) = assert_sound_of(&problem, &wanted, &tight);
    let bound = bound_micro_usd(&problem, &wanted, Proof::Quick);
    assert_eq!(left, 0);
    assert!(bound <= price && price * 100 <= bound * 112, "{price} and {bound}");
    let (few, count) = large(20, false);
    assert!(thorough_purchase(&few, &count).is_none(), "each class has a row");
    let (capped, wanted) = large(90, true);
    let tight = thorough_purchase(&capped, &wanted);
    assert!(tight.is_none_or(|tight| assert_sound_of(&capped, &wanted, &tight).1 == 0));
}

#[test]
fn pods_that_fit_no_offering_remain() {
    let (mut problem, mut wanted) = large(20, false);
    problem.classes[3].requests[0] = i64::MAX / 4;
    problem.offerings.iter_mut().for_each(|offering| offering.admits[3] = false);
    wanted[3] = 7;
    assert_eq!(assert_sound(&problem, &wanted).1, 7);
}
