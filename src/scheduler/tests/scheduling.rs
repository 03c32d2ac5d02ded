//! Complete scheduling runs: order, sampling, ties, nominations, preemption.

use super::*;
use crate::scheduler::node_order::{NodeOrder, nodes_to_find};
use crate::scheduler::{PendingPod, Preemption, queue_order};

#[test]
fn the_queue_is_by_priority_then_arrival() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    let class = cluster.class(&pod("a"));
    let waiting = |priority, queued| PendingPod { class, priority, queued, nominated: None };
    let mut pods = [waiting(0, 1), waiting(5, 9), waiting(-1, 0), waiting(5, 3), waiting(0, 0)];
    queue_order(&mut pods);
    let order: Vec<(i32, u64)> = pods.iter().map(|pod| (pod.priority, pod.queued)).collect();
    assert_eq!(order, [(5, 3), (5, 9), (0, 0), (0, 1), (-1, 0)]);
}

#[test]
fn share_of_nodes_searched_shrinks_with_cluster_size() {
    for (nodes, found) in [
        (0, 0),
        (50, 50),
        (99, 99),
        (100, 100),
        (125, 100),
        (250, 120),
        (1000, 420),
        (2000, 680),
        (5000, 500),
        (6000, 300),
        (20_000, 1000),
    ] {
        assert_eq!(nodes_to_find(nodes), found, "{nodes}");
    }
}

#[test]
fn zones_take_turns_in_the_order_of_nodes() {
    let mut order = NodeOrder::default();
    for (index, zone) in ["a", "a", "a", "b", "c", "b"].into_iter().enumerate() {
        order.add(index, &node("n", zone).labels);
    }
    order.interleave();
    assert_eq!(order.nodes(), [0, 3, 4, 1, 5, 2]);
    order.remove(4);
    order.interleave();
    assert_eq!(order.nodes(), [0, 3, 1, 5, 2]);
    let rotated = |start| order.rotated(start).map(|part| &order.nodes()[part]).concat();
    let start = order.advanced(0, 3);
    assert_eq!(rotated(start), [5, 2, 0, 3, 1]);
    let start = order.advanced(start, 4);
    assert_eq!(rotated(start), [1, 5, 2, 0, 3]);
}

#[test]
fn search_in_a_large_cluster_continues_where_the_last_ended() {
    let nodes: Vec<ScheduleNode> = (0..250).map(|n| node(&format!("n{n}"), "")).collect();
    let mut cluster = Cluster::new(nodes);
    let ClassIndex(class) = cluster.class(&pod("a"));
    let mut windows = Vec::new();
    for _ in 0..3 {
        let mut feasible = FeasibleNodes::default();
        let tried = cluster.0.find_feasible(class, &mut feasible);
        windows.push((feasible.nodes[0], feasible.nodes.len(), tried));
        cluster.0.search_start = cluster.0.order.advanced(cluster.0.search_start, tried);
    }
    assert_eq!(windows, [(0, 120, 120), (120, 120, 120), (240, 120, 120)]);
}

#[test]
fn unfit_nodes_are_skipped_until_enough_nodes_are_found() {
    let mut nodes: Vec<ScheduleNode> = (0..250).map(|n| node(&format!("n{n}"), "")).collect();
    nodes[..60].iter_mut().for_each(|node| node.unschedulable = true);
    let mut cluster = Cluster::new(nodes);
    let ClassIndex(class) = cluster.class(&pod("a"));
    let mut feasible = FeasibleNodes::default();
    let tried = cluster.0.find_feasible(class, &mut feasible);
    assert_eq!((feasible.nodes[0], feasible.nodes.len(), tried), (60, 120, 180));
}

#[test]
fn ties_are_uniform_and_the_seed_decides_only_ties() {
    let mut hits = BTreeMap::new();
    for seed in 0..300 {
        let mut nodes: Vec<ScheduleNode> = (0..3).map(|n| node(&format!("n{n}"), "")).collect();
        nodes[2].allocatable = Resources { pods: 110, ..resources(400, 800) };
        let mut scheduler = Scheduler::new(nodes, &BTreeMap::new(), seed);
        let class = scheduler.class(&Arc::new(pod("a")), None);
        let node = scheduler.schedule(class, None).expect("there is room");
        *hits.entry(scheduler.name(node).to_string()).or_insert(0) += 1;
    }
    assert_eq!(hits.keys().collect::<Vec<_>>(), ["n0", "n1"], "n2 scores less");
    assert!(hits.values().all(|count| (110..=190).contains(count)), "{hits:?}");
}

#[test]
fn a_nominated_node_is_tried_first_and_only_first() {
    let mut cluster = Cluster::new(vec![node("full", ""), node("empty", "")]);
    cluster.run(&PodShape { requests: resources(2000, 4096), ..pod("u") }, "full");
    let class = cluster.class(&PodShape { requests: resources(2000, 2048), ..pod("a") });
    let (full, empty) = (cluster.index("full"), cluster.index("empty"));
    assert_eq!(cluster.0.clone().schedule(class, None), Ok(empty));
    assert_eq!(cluster.0.schedule(class, Some(full)), Ok(full));
    assert_eq!(cluster.0.schedule(class, Some(full)), Ok(empty), "it is full now");
}

#[test]
fn removing_a_node_returns_its_pods_and_drops_its_domain() {
    let mut cluster = Cluster::new(vec![node("a1", "a"), node("b1", "b"), node("c1", "c")]);
    let asks = PodShape { spread: vec![topology_spread(key::ZONE, 1, "s")], ..pod("s") };
    cluster.run_all(&asks, &[("a1", 1), ("b1", 1)]);
    assert_eq!(cluster.fitting(&asks), ["c1"]);
    let gone = cluster.index("c1");
    assert_eq!(cluster.0.remove_node(gone), []);
    assert_eq!(cluster.fitting(&asks), ["a1", "b1"]);
    let first = cluster.index("a1");
    let class = cluster.class(&asks);
    assert_eq!(cluster.0.remove_node(first), [class]);
    assert_eq!(cluster.fitting(&asks), ["b1"]);
    assert_eq!(cluster.0.remove_node(first), [], "twice is once");
    assert_eq!(cluster.0.node(&"a1".into()), None);
    assert!(cluster.0.fits(class, first).is_err(), "nothing fits on a node that is gone");
    let again = cluster.0.add_node(node("a1", "a"));
    assert_ne!(again, first);
    assert_eq!(cluster.fitting(&asks), ["a1"], "a new domain without pods is the least");
}

#[test]
fn daemon_pods_barely_disturb_the_rotation() {
    let nodes: Vec<ScheduleNode> = (0..150).map(|n| node(&format!("n{n}"), "")).collect();
    let mut cluster = Cluster::new(nodes);
    let choice = NodeChoice { name: Some("n7".into()), ..pod("a").nodes };
    let named = PodShape { nodes: choice, ..pod("d") };
    assert_eq!(cluster.schedule(&named), Some("n7".into()));
    assert_eq!(cluster.0.search_start, 1, "one node was tried");
}

fn with_priority(app: &str, priority: i32, cpu: i64) -> PodShape {
    PodShape { priority, requests: resources(cpu, 100), ..pod(app) }
}

impl Cluster {
    fn preempt(&mut self, shape: &PodShape) -> Option<(String, Vec<String>)> {
        let class = self.class(shape);
        let Preemption { node, victims } = self.0.preempt(class)?;
        let app = |class| self.0.shape(class).labels.get("app").expect("labelled").to_string();
        Some((self.0.name(node).to_string(), victims.into_iter().map(app).collect()))
    }
}

#[test]
fn preemption_evicts_as_little_as_possible() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    for (app, priority, cpu) in
        [("low", 1, 1000), ("mid", 2, 1000), ("high", 3, 1000), ("vip", 9, 900)]
    {
        cluster.run(&with_priority(app, priority, cpu), "n");
    }
    for (priority, cpu, victims) in [
        // 100m are free. In each case the most important pods that may stay do stay.
        (5, 1000, Some(vec!["low"])),
        (5, 1500, Some(vec!["mid", "low"])),
        (5, 3100, Some(vec!["high", "mid", "low"])),
        (5, 3101, None),
        (3, 2000, Some(vec!["mid", "low"])),
        (3, 2101, None),
        (1, 200, None),
    ] {
        let asks = with_priority("new", priority, cpu);
        let before = format!("{:?}", cluster.0.usage[0].pods());
        let found = cluster.preempt(&asks);
        let expected = victims.map(|v| ("n".to_owned(), v.into_iter().map(String::from).collect()));
        assert_eq!(found, expected, "priority {priority}, {cpu}m");
        assert_eq!(format!("{:?}", cluster.0.usage[0].pods()), before, "everything is back");
    }
}

#[test]
fn preemption_prefers_the_node_with_the_least_loss() {
    let full = |app, priority| with_priority(app, priority, 4000);
    let half = |app, priority| with_priority(app, priority, 2000);
    for (on, expected) in [
        // The highest priority among the victims counts first.
        (vec![("n1", full("a", 4)), ("n2", full("b", 3))], ("n2", vec!["b"])),
        // Then the sum of priorities, which more pods make larger.
        (vec![("n1", half("a", 3)), ("n1", half("b", 1)), ("n2", full("c", 3))], ("n2", vec!["c"])),
        (
            vec![
                ("n1", half("a", 3)),
                ("n1", half("b", 2)),
                ("n2", half("c", 3)),
                ("n2", half("d", 1)),
            ],
            ("n2", vec!["c", "d"]),
        ),
        // Then the pods that run for the shortest time.
        (vec![("n1", full("a", 3)), ("n2", full("b", 3))], ("n2", vec!["b"])),
        (vec![("n2", full("a", 3)), ("n1", full("b", 3))], ("n1", vec!["b"])),
    ] {
        let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
        for (node, shape) in &on {
            cluster.run(shape, node);
        }
        let found = cluster.preempt(&full("new", 9)).expect("lower priorities are there");
        let (node, victims) = expected;
        assert_eq!(found, (node.to_owned(), victims.into_iter().map(String::from).collect()));
    }
}

#[test]
fn preemption_frees_ports_domains_and_skew_but_no_taint() {
    let low = |shape: PodShape| PodShape { priority: -1, ..shape };
    let ports = PodShape { host_ports: vec![host_port(80, "TCP", "")], ..pod("p") };
    let apart =
        PodShape { anti_affinity: required(vec![affinity_term(key::ZONE, "q")]), ..pod("q") };
    for (running, asks) in [(&ports, &ports), (&pod("q"), &apart), (&apart, &pod("q"))] {
        let mut cluster = Cluster::new(vec![node("n", "a")]);
        cluster.run(&low(running.clone()), "n");
        assert!(cluster.fits(asks, "n").is_err());
        assert!(cluster.preempt(asks).is_some(), "{asks:?}");
    }
    let mut tainted = node("n", "a");
    tainted.taints = vec![taint("t", TaintEffect::NoSchedule)];
    let mut cluster = Cluster::new(vec![tainted]);
    cluster.run(&low(pod("p")), "n");
    assert_eq!(cluster.preempt(&pod("p")), None);
    let mut spread_out = Cluster::new(vec![node("a1", "a"), node("b1", "b")]);
    let skewed = PodShape { spread: vec![topology_spread(key::ZONE, 1, "s")], ..pod("s") };
    spread_out.run_all(&low(pod("s")), &[("a1", 1)]);
    spread_out.run(&with_priority("vip", 9, 4000), "b1");
    let found = spread_out.preempt(&skewed);
    assert_eq!(found, Some(("a1".into(), vec!["s".into()])), "the pod that skews has to go");
}

#[test]
fn victim_on_another_node_does_not_help_zone_anti_affinity() {
    let mut cluster = Cluster::new(vec![node("a1", "a"), node("a2", "a")]);
    let low = PodShape { priority: -1, ..pod("q") };
    cluster.run_all(&low, &[("a1", 1), ("a2", 1)]);
    let apart =
        PodShape { anti_affinity: required(vec![affinity_term(key::ZONE, "q")]), ..pod("r") };
    assert_eq!(cluster.preempt(&apart), None, "both nodes hold one; only one node is cleared");
}
