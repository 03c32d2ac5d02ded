//! The search skips nodes that are known to fail, and finds what a search of each node finds.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::volumes::{attaching, own, shared, with};
use super::*;
use crate::scheduler::node_order::nodes_to_find;

/// Number of random clusters.
const WORLDS: u64 = 60;
/// Number of random clusters of more than 100 nodes, in which a search is partial.
const LARGE_WORLDS: u64 = 4;
/// Number of steps in each cluster.
const STEPS: usize = 150;

/// Returns pods with every kind of filter, those that a bound pod may help included.
fn shapes() -> Vec<PodShape> {
    let requesting = |app, cpu, memory| PodShape { requests: resources(cpu, memory), ..pod(app) };
    let mut gpu = requesting("gpu", 100, 100);
    gpu.requests.extended.insert("gpu".into(), 1);
    let in_zone = NodeChoice { any_of: vec![requires(key::ZONE, "a")], ..NodeChoice::default() };
    let on_node = NodeChoice { name: Some("n1".into()), ..pod("named").nodes };
    vec![
        requesting("none", 0, 0),
        requesting("small", 500, 100),
        requesting("medium", 1500, 100),
        requesting("large", 3500, 100),
        requesting("memory", 100, 4000),
        gpu,
        PodShape { host_ports: vec![host_port(80, "TCP", "")], ..pod("port") },
        PodShape { nodes: in_zone, ..requesting("zonal", 1500, 100) },
        PodShape { nodes: on_node, ..requesting("named", 1500, 100) },
        PodShape { tolerations: vec![tolerates("t", None)], ..requesting("tolerates", 1500, 100) },
        PodShape { priority: 5, ..requesting("important", 1500, 100) },
        PodShape {
            anti_affinity: required(vec![affinity_term(key::HOSTNAME, "apart")]),
            ..pod("apart")
        },
        PodShape {
            affinity: required(vec![affinity_term(key::ZONE, "large")]),
            ..requesting("near", 500, 100)
        },
        PodShape {
            spread: vec![topology_spread(key::ZONE, 1, "even")],
            ..requesting("even", 1500, 100)
        },
        with(vec![own()]),
        with(vec![shared("x")]),
        with(vec![shared("y")]),
    ]
}

/// Returns the nodes to score, and the number of nodes tried, of a search that skips no node.
fn try_each(scheduler: &Scheduler, class: ClassIndex) -> (Vec<usize>, usize) {
    let mut scheduler = scheduler.clone();
    let (nodes, wanted) = if let Some(name) = &scheduler.shape(class).nodes.name {
        let named = scheduler.nodes.by_name.get(name.as_str()).copied();
        (named.into_iter().collect(), 1)
    } else {
        let mut nodes = scheduler.order.nodes().to_vec();
        let start = scheduler.search_start % nodes.len();
        nodes.rotate_left(start);
        let wanted = nodes_to_find(nodes.len());
        (nodes, wanted)
    };
    let (mut feasible, mut tried) = (Vec::new(), 0);
    for node in nodes {
        tried += 1;
        if scheduler.admits(class.0, node) {
            feasible.push(node);
            if feasible.len() == wanted {
                break;
            }
        }
    }
    (feasible, tried)
}

/// A cluster that changes at random.
struct ChangingCluster {
    rng: Pcg64,
    scheduler: Scheduler,
    classes: Vec<ClassIndex>,
    nominations: Vec<(ClassIndex, NodeIndex)>,
    what: String,
}

impl ChangingCluster {
    /// Returns a cluster of this number of nodes, with two pods on each.
    fn new(seed: u64, nodes: usize) -> Self {
        let scheduler = Scheduler::new(Vec::new(), &BTreeMap::new(), seed);
        let (classes, nominations) = (Vec::new(), Vec::new());
        let mut cluster =
            Self { rng: rng(seed), scheduler, classes, nominations, what: String::new() };
        for shape in shapes() {
            let class = cluster.scheduler.class(&Arc::new(shape), None);
            cluster.classes.push(class);
        }
        for _ in 0..nodes {
            let node = cluster.add_node();
            for _ in 0..2 {
                let class = cluster.class();
                cluster.scheduler.bind(class, node);
            }
        }
        cluster
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    fn class(&mut self) -> ClassIndex {
        let at = self.below(self.classes.len());
        self.classes[at]
    }

    fn add_node(&mut self) -> NodeIndex {
        let name = format!("n{}", self.scheduler.usage.len());
        let zone = ["a", "b", "c"][self.below(3)];
        let mut node = attaching(&name, zone, 1);
        node.allocatable.pods = [3, 110][self.below(2)];
        node.allocatable.extended.insert("gpu".into(), self.rng.random_range(0..2));
        if self.below(6) == 0 {
            node.taints.push(taint("t", TaintEffect::NoSchedule));
        }
        node.unschedulable = self.below(8) == 0;
        self.scheduler.add_node(node)
    }

    fn step(&mut self) {
        let class = self.class();
        let nodes: Vec<NodeIndex> = self.scheduler.nodes().collect();
        let node = nodes[self.below(nodes.len())];
        match self.below(20) {
            0 => self.scheduler.bind(class, node),
            1..=3 => self.unbind_from(node),
            4 => {
                let is_cordoned = self.scheduler.nodes.nodes[node.0].unschedulable;
                self.scheduler.set_unschedulable(node, !is_cordoned);
            }
            5 if self.below(4) == 0 => {
                self.add_node();
            }
            6 if self.below(4) == 0 && nodes.len() > 1 => {
                self.scheduler.remove_node(node);
            }
            7 => {
                self.scheduler.nominate(class, node);
                self.nominations.push((class, node));
            }
            8 => {
                if let Some((class, node)) = self.nominations.pop() {
                    assert!(self.scheduler.withdraw_nomination(class, node));
                }
            }
            9 => {
                self.scheduler.preempt(class);
            }
            _ => self.schedule(class),
        }
    }

    /// Unbinds a pod of a node, if it has any.
    fn unbind_from(&mut self, node: NodeIndex) {
        let pods: Vec<ClassIndex> = self.scheduler.pods_on(node).collect();
        if !pods.is_empty() {
            let pod = pods[self.below(pods.len())];
            assert!(self.scheduler.unbind(pod, node));
        }
    }

    /// Checks that a search finds the nodes that a search of each node finds, and schedules a pod.
    fn schedule(&mut self, class: ClassIndex) {
        let expected = try_each(&self.scheduler, class);
        let mut feasible = FeasibleNodes::default();
        let tried = self.scheduler.find_feasible(class.0, &mut feasible);
        assert_eq!((feasible.nodes, tried), expected, "{}", self.what);
        // A clone knows of no node that fails.
        let mut plain = self.scheduler.clone();
        let host = self.scheduler.try_schedule(class, None);
        assert_eq!(host, plain.try_schedule(class, None), "{}", self.what);
        let state = |s: &Scheduler| (s.search_start, s.tries, s.rng.clone());
        assert_eq!(state(&self.scheduler), state(&plain), "{}", self.what);
    }
}

#[test]
fn search_finds_what_a_search_of_each_node_finds() {
    let small = (0..WORLDS).map(|seed| (seed, 1 + usize::try_from(seed % 9).expect("small")));
    let large = (WORLDS..WORLDS + LARGE_WORLDS).map(|seed| (seed, 260));
    for (seed, nodes) in small.chain(large) {
        let mut cluster = ChangingCluster::new(seed, nodes);
        for step in 0..STEPS {
            cluster.what = format!("world {seed}, step {step}");
            cluster.step();
        }
    }
}

#[test]
fn full_nodes_are_skipped_until_a_pod_is_unbound() {
    let large = PodShape { requests: resources(3000, 100), ..pod("a") };
    let mut cluster = Cluster::new((0..200).map(|n| node(&format!("n{n}"), "")).collect());
    for full in (0..200).filter(|n| *n != 150) {
        cluster.run(&large, &format!("n{full}"));
    }
    let class = cluster.class(&large);
    let local = cluster.0.registry.classes[class.0].node_local;
    let search = |scheduler: &mut Scheduler| {
        let mut feasible = FeasibleNodes::default();
        let tried = scheduler.find_feasible(class.0, &mut feasible);
        let known = scheduler.unfit_nodes.take(local, &scheduler.order);
        let next = |from: usize| known.next_absent(from, 200);
        let visited: Vec<usize> = std::iter::successors(next(0), |last| next(last + 1)).collect();
        scheduler.unfit_nodes.put_back(local, known);
        (feasible.nodes, tried, visited)
    };
    assert_eq!(search(&mut cluster.0), (vec![150], 200, vec![150]));
    let freed = cluster.index("n7");
    assert!(cluster.0.unbind(class, freed));
    assert_eq!(search(&mut cluster.0), (vec![7, 150], 200, vec![7, 150]));
}
