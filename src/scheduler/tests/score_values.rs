//! Scores computed by hand, and the resulting choices.

use super::*;
use crate::scheduler::BalanceScoring;

impl Cluster {
    /// Returns the total scores of all nodes, in the order of their addition.
    fn totals(&mut self, shape: &PodShape, owner: Option<&WorkloadId>) -> Vec<i32> {
        let ClassIndex(class) = self.0.class(&Arc::new(shape.clone()), owner);
        let nodes: Vec<usize> = self.0.nodes().map(|NodeIndex(node)| node).collect();
        self.0.totals(class, &nodes)
    }

    fn level(self) -> Self {
        Self(self.0.with_balance(BalanceScoring::Evenness))
    }
}

/// Returns `shape` with one container without CPU and memory requests.
fn weightless(shape: PodShape) -> PodShape {
    PodShape { requests: resources(0, 0), presumed: resources(100, 200), ..shape }
}

#[test]
fn least_allocated_and_balance_by_hand() {
    // A node of 4000m, 8192Mi. Used (in requests), asked, LeastAllocated, BalancedAllocation when
    // it rewards the level, and when it rewards the change.
    for (used, asked, least, level, change) in [
        // Free 75 and 75; both shares 0.25. Change 50 + (50 + 100 − 100) / 2.
        ((0, 0), (1000, 2048), 75, 100, 75),
        // Free 50 and 75 → 62; shares 0.5 and 0.25 → 87.5 → 87. Change 50 + (50 − 13) / 2 → 68.
        ((0, 0), (2000, 2048), 62, 87, 68),
        // LeastAllocated counts 200Mi for the pod that is there and 100m for the one that comes:
        // free 47.5 → 47 and 47.55 → 47. The balance counts neither: 75 before, 100 after.
        ((2000, 0), (0, 4096), 47, 100, 87),
        // Exactly full.
        ((0, 0), (4000, 8192), 0, 100, 75),
    ] {
        for (balance, expected) in
            [(BalanceScoring::Evenness, level), (BalanceScoring::Improvement, change)]
        {
            let mut cluster = Cluster::new(vec![node("n", "")]);
            cluster.0 = cluster.0.with_balance(balance);
            let asking = |(cpu, mib): (i64, i64)| PodShape {
                requests: resources(cpu, mib),
                presumed: resources(if cpu == 0 { 100 } else { 0 }, if mib == 0 { 200 } else { 0 }),
                ..pod("a")
            };
            if used != (0, 0) {
                cluster.run(&asking(used), "n");
            }
            let asks = asking(asked);
            let found = cluster.totals(&asks, None);
            assert_eq!(found, [least + expected], "{used:?} {asked:?} {balance:?}");
        }
    }
}

#[test]
fn pod_without_requests_scores_as_small_and_ignores_balance() {
    let mut cluster = Cluster::new(vec![node("n", "")]).level();
    let nothing = weightless(pod("a"));
    // (4000 − 100) / 4000 = 97, (8192 − 200) / 8192 = 97.
    assert_eq!(cluster.totals(&nothing, None), [97]);
}

#[test]
fn a_cached_score_follows_the_load() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]).level();
    let asks = PodShape { requests: resources(1000, 2048), ..pod("a") };
    assert_eq!(cluster.totals(&asks, None), [175, 175]);
    cluster.run(&asks, "n1");
    assert_eq!(cluster.totals(&asks, None), [150, 175]);
    let (class, index) = (cluster.class(&asks), cluster.index("n1"));
    cluster.0.unbind(class, index);
    assert_eq!(cluster.totals(&asks, None), [175, 175]);
}

/// The resource part of [`pod`] on an empty node of 4000m, 8192Mi: free 97 and 98 → 97; shares
/// 0.025 and 0.0122… → 99.36 → 99.
const EMPTY: i32 = 97 + 99;

#[test]
fn prefer_no_schedule_taints_lower_the_score_proportionally() {
    let with = |name: &str, taints: &[&str]| {
        let mut tainted = node(name, "");
        tainted.taints =
            taints.iter().map(|key| taint(key, TaintEffect::PreferNoSchedule)).collect();
        tainted
    };
    let nodes = vec![with("n0", &[]), with("n1", &["a"]), with("n3", &["a", "b", "c"])];
    let mut cluster = Cluster::new(nodes).level();
    // 100 − 100 × count / 3, times 3.
    assert_eq!(cluster.totals(&pod("p"), None), [EMPTY + 300, EMPTY + 3 * 67, EMPTY]);
    let all = PodShape { tolerations: vec![tolerates("", None)], ..pod("p") };
    assert_eq!(cluster.totals(&all, None), [EMPTY; 3]);
}

#[test]
fn preferred_node_affinity_scales_with_the_best_node() {
    let mut cluster =
        Cluster::new(vec![node("n1", "z1"), node("n2", "z2"), node("n3", "")]).level();
    let preferred = vec![
        (30, requires(key::ZONE, "z1")),
        (10, requires(key::ZONE, "z2")),
        (10, requires(key::HOSTNAME, "n2")),
        (99, Requirements::default()),
    ];
    let asks = PodShape { nodes: NodeChoice { preferred, ..pod("a").nodes }, ..pod("a") };
    // 30, 20, 0 → 100, 66, 0, times 2; the term that is empty counts for nothing.
    assert_eq!(cluster.totals(&asks, None), [EMPTY + 200, EMPTY + 132, EMPTY]);
}

#[test]
fn soft_spreading_prefers_the_emptier_domain() {
    let nodes = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("x", "")];
    let mut cluster = Cluster::new(nodes.map(|(name, zone)| node(name, zone)).into()).level();
    let free = weightless(pod("s"));
    cluster.run_all(&free, &[("a1", 2), ("a2", 1), ("b1", 1)]);
    let soft = TopologySpread {
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        ..topology_spread(key::ZONE, 1, "s")
    };
    let asks = weightless(PodShape { spread: vec![soft], ..pod("s") });
    // Two zones weigh ln 4 = 1.386: a 3 × 1.386 = 4.16 → 4, b 1.386 → 1; of 4 + 1 − s over 4:
    // a 25, b 100; x has no zone and scores 0. Resources: 100m and 200Mi for each pod.
    let resource =
        |pods: i32| i32::midpoint((39 - pods) * 10 / 4, (7992 - 200 * pods) * 100 / 8192);
    let expected = [resource(2) + 2 * 25, resource(1) + 2 * 25, resource(1) + 2 * 100, resource(0)];
    assert_eq!(cluster.totals(&asks, None), expected);
}

#[test]
fn spreading_by_an_empty_selector_counts_no_pod() {
    let mut cluster = Cluster::new(vec![node("n1", "a"), node("n2", "b")]).level();
    let rule = |when_unsatisfiable| TopologySpread {
        when_unsatisfiable,
        selector: Some(Selector::default()),
        ..topology_spread(key::ZONE, 1, "s")
    };
    let spread =
        vec![rule(WhenUnsatisfiable::DoNotSchedule), rule(WhenUnsatisfiable::ScheduleAnyway)];
    let asks = PodShape { spread, ..pod("s") };
    cluster.run_all(&asks, &[("n1", 3)]);
    // Both nodes gain the full score of a constraint that finds no pods.
    let bare = cluster.totals(&pod("s"), None);
    assert_eq!(cluster.totals(&asks, None), [bare[0] + 200, bare[1] + 200]);
    let class = cluster.class(&asks);
    assert_eq!(cluster.0.fits(class, cluster.index("n1")), Ok(()));
}

#[test]
fn pods_of_controllers_spread_by_default_over_hosts_and_zones() {
    let nodes = [("a1", "a"), ("a2", "a"), ("b1", "b")];
    let build = || Cluster::new(nodes.map(|(name, zone)| node(name, zone)).into()).level();
    let asks = weightless(pod("s"));
    let owner = deployment("default", "s");
    let place = |cluster: &mut Cluster, owner: Option<&WorkloadId>| {
        let class = cluster.0.class(&Arc::new(asks.clone()), owner);
        let index = cluster.index("a1");
        (0..2).for_each(|_| cluster.0.bind(class, index));
    };
    // Hosts: 3 nodes weigh ln 5 = 1.609, skew 3 adds 2. Zones: 2 weigh ln 4 = 1.386, skew 5 adds 4.
    // a1: 2 × 1.609 + 2 + 2 × 1.386 + 4 = 11.99 → 12; a2: 6 + 2.77 → 9; b1: 6.
    // (12 + 6 − s) / 12: 50, 75, 100.
    let mut spreads = build();
    place(&mut spreads, Some(&owner));
    // Two pods on a1 leave (4000 − 300) / 4000 = 92 and (8192 − 600) / 8192 = 92.
    assert_eq!(spreads.totals(&asks, Some(&owner)), [92 + 100, 97 + 150, 97 + 200]);
    let job = WorkloadId { kind: WorkloadKind::Job, ..owner.clone() };
    for none in [None, Some(&job)] {
        let mut alone = build();
        place(&mut alone, none);
        assert_eq!(alone.totals(&asks, none), [92, 97, 97], "{none:?}");
    }
    let mut others = build();
    place(&mut others, Some(&deployment("default", "t")));
    let even = 2 * 100;
    assert_eq!(
        others.totals(&asks, Some(&owner)),
        [92 + even, 97 + even, 97 + even],
        "equal labels of another workload do not count"
    );
}

#[test]
fn pod_with_own_constraints_is_not_spread_by_default() {
    let mut cluster = Cluster::new(vec![node("n1", "a"), node("n2", "b")]).level();
    let asks = PodShape { spread: vec![topology_spread(key::ZONE, 9, "s")], ..pod("s") };
    let owner = deployment("default", "s");
    let class = cluster.0.class(&Arc::new(asks.clone()), Some(&owner));
    let index = cluster.index("n1");
    cluster.0.bind(class, index);
    let ClassIndex(class) = class;
    assert!(cluster.0.registry.classes[class].soft_spread.is_empty());
}

#[test]
fn pod_affinity_scores_preferences_of_both_sides() {
    let build = || {
        let nodes = [("a1", "a"), ("b1", "b"), ("x", "")];
        Cluster::new(nodes.map(|(name, zone)| node(name, zone)).into()).level()
    };
    // Only the differences between nodes with and without the pod db matter below.
    let used = |pods: i32| if pods == 0 { 97 } else { 95 - i32::from(pods > 1) * 3 };
    let wants = |weight| preferred(vec![(weight, affinity_term(key::ZONE, "db"))]);
    for (asks, runs, expected) in [
        // The pod prefers db near: a is the best, b and x the worst.
        (PodShape { affinity: wants(5), ..pod("a") }, pod("db"), [200, 0, 0]),
        // The pod prefers db far.
        (PodShape { anti_affinity: wants(5), ..pod("a") }, pod("db"), [0, 200, 200]),
        // db prefers the pod near, or far.
        (
            pod("a"),
            PodShape { affinity: preferred(vec![(7, affinity_term(key::ZONE, "a"))]), ..pod("db") },
            [200, 0, 0],
        ),
        (
            pod("a"),
            PodShape {
                anti_affinity: preferred(vec![(7, affinity_term(key::ZONE, "a"))]),
                ..pod("db")
            },
            [0, 200, 200],
        ),
        // Required affinity of db has weight 1: here against a preference of the pod of weight 1.
        (
            PodShape { anti_affinity: wants(1), ..pod("a") },
            PodShape { affinity: required(vec![affinity_term(key::ZONE, "a")]), ..pod("db") },
            [0, 0, 0],
        ),
        // No preferences.
        (pod("a"), pod("db"), [0, 0, 0]),
    ] {
        let mut cluster = build();
        cluster.run(&weightless(runs.clone()), "a1");
        let found = cluster.totals(&weightless(asks.clone()), None);
        let resource = [used(1), used(0), used(0)];
        let expected: Vec<i32> = resource.iter().zip(expected).map(|(r, e)| r + e).collect();
        assert_eq!(found, expected, "{:?} {:?} | {:?}", asks.affinity, asks.anti_affinity, runs);
    }
}

#[test]
fn pod_affinity_between_extremes_is_a_share_of_the_range() {
    let nodes = [("a1", "a"), ("b1", "b"), ("c1", "c")];
    let mut cluster = Cluster::new(nodes.map(|(name, zone)| node(name, zone)).into()).level();
    let db = weightless(pod("db"));
    cluster.run_all(&db, &[("a1", 3), ("b1", 1)]);
    let affinity = preferred(vec![(2, affinity_term(key::ZONE, "db"))]);
    let asks = weightless(PodShape { affinity, ..pod("a") });
    // 6, 2, 0 → 100, 33, 0, times 2; resources 90, 95, 97.
    assert_eq!(cluster.totals(&asks, None), [90 + 200, 95 + 66, 97]);
}

#[test]
fn the_logarithm_agrees_with_the_platform() {
    for n in (1..=6000).chain([65_537, 1_000_000]) {
        let found = super::super::score::logarithm(n);
        let expected = f64::from(u32::try_from(n).expect("small")).ln();
        assert!((found - expected).abs() <= 1e-14 * expected.max(1.0), "ln {n}: {found}");
    }
}
