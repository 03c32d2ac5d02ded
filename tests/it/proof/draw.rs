//! Trees drawn by lot: up to four workloads with eight pods, two pools with four offerings, two
//! nodes, and every kind of rule.

use std::fmt;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::Just;
use proptest::sample::{select, subsequence};
use proptest::strategy::Strategy;
use proptest::{prop_compose, prop_oneof};

/// Most new pods of a tree.
const PODS_MAX: u32 = 8;

/// Types, and thousandths of a CPU that pods may use of them.
const TYPES: [(&str, u32); 3] = [("c5.large", 1930), ("m5.large", 1930), ("m5.xlarge", 3920)];
const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

/// What the daemon of a tree takes of each node, in thousandths of a CPU.
const DAEMON: u32 = 100;

/// A tree and its world, written as a case.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pools: Vec<Pool>,
    workloads: Vec<Workload>,
    daemon: bool,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Pool {
    types: Vec<&'static str>,
    zones: Vec<&'static str>,
    capacity: &'static str,
    options: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct Workload {
    pods: u32,
    cpu: u32,
    options: Vec<&'static str>,
    port: Option<u16>,
    rules: Vec<String>,
}

#[derive(Debug, Clone)]
struct Node {
    of: (&'static str, u32),
    zone: &'static str,
    pool: usize,
    options: Vec<&'static str>,
    holds: Vec<u32>,
}

/// Returns zero to two of `options`, of which no two begin alike.
fn options(all: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(all), 0..3).prop_map(|mut chosen| {
        let mut seen = Vec::new();
        chosen.retain(|option| {
            let name = option.split('=').next();
            !seen.contains(&name) && {
                seen.push(name);
                true
            }
        });
        chosen
    })
}

prop_compose! {
    fn pool()(
        types in subsequence(TYPES.map(|(name, _)| name).to_vec(), 1..=2),
        zones in subsequence(ZONES.to_vec(), 1..=2),
        capacity in select(vec!["on-demand", "on-demand", "spot", "on-demand,spot"]),
        options in options(&[
            "labels=disk=ssd", "taints=team=a:NoSchedule", "taints=team=a:PreferNoSchedule",
            "limits=nodes=1", "limits=nodes=2", "limits=cpu=4", "weight=10",
            "startup-taints=cilium=wait:NoExecute",
        ]),
    ) -> Pool {
        // Two types in two zones are four offerings already.
        let capacity = if types.len() * zones.len() > 2 { "on-demand" } else { capacity };
        Pool { types, zones, capacity, options }
    }
}

fn key() -> impl Strategy<Value = &'static str> {
    select(vec!["hostname", "zone", "capacity", "disk"])
}

fn selected() -> impl Strategy<Value = &'static str> {
    select(vec!["app=w0", "app=w1", "app=w2", "tier=x", "all"])
}

fn spread() -> impl Strategy<Value = String> {
    let when = prop_oneof![
        4 => select(vec!["", " minDomains=2", " minDomains=3"]),
        1 => Just(" when=ScheduleAnyway"),
    ];
    let taints = select(vec!["", "", " taints=Honor"]);
    let affinity = select(vec!["", "", " affinity=Ignore"]);
    let pods = prop_oneof![4 => selected(), 1 => Just("none")];
    (key(), 1..3, pods, when, taints, affinity).prop_map(
        |(key, skew, pods, when, taints, affinity)| {
            format!("spread {key} maxSkew={skew} pods={pods}{when}{taints}{affinity}")
        },
    )
}

fn company() -> impl Strategy<Value = String> {
    let word = select(vec!["apart", "apart", "near", "prefers-apart 5", "prefers-near 5"]);
    let namespaces = select(vec!["", "", " namespaces=other", " namespaceSelector=all"]);
    (word, key(), selected(), namespaces)
        .prop_map(|(word, key, pods, namespaces)| format!("{word} {key} pods={pods}{namespaces}"))
}

fn rule() -> impl Strategy<Value = String> {
    let choice = select(vec![
        "tolerates team",
        "needs zone In us-east-1a",
        "needs zone In us-east-1b",
        "needs type In m5.large",
        "needs capacity In spot",
        "needs disk In ssd",
        "needs disk DoesNotExist",
        "needs type NotIn c5.large and zone In us-east-1a,us-east-1b",
        "prefers 10 zone In us-east-1b",
        "prefers 5 disk In ssd",
    ]);
    prop_oneof![3 => choice.prop_map(str::to_owned), 2 => spread(), 2 => company()]
}

prop_compose! {
    fn workload()(
        pods in 1..=4_u32,
        cpu in select(vec![100, 300, 600, 900, 1500, 1800]),
        options in options(&["labels=tier=x", "namespace=other", "priority=5", "priority=-5"]),
        port in weighted(0.1, Just(80)),
        rules in vec(rule(), 0..4),
    ) -> Workload {
        Workload { pods, cpu, options, port, rules: unlike(rules) }
    }
}

/// Leaves the first of rules that the API server takes once only.
fn unlike(rules: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    let kind = |rule: &String| {
        let anyway = rule.contains("ScheduleAnyway");
        let spread = rule.strip_prefix("spread ").and_then(|rest| rest.split(' ').next());
        spread.map_or_else(|| rule.clone(), |key| format!("{key} {anyway}"))
    };
    let first = |rule: &String| {
        let kind = kind(rule);
        !seen.contains(&kind) && {
            seen.push(kind);
            true
        }
    };
    rules.into_iter().filter(first).collect()
}

prop_compose! {
    fn node()(
        of in select(TYPES.to_vec()),
        zone in select(ZONES.to_vec()),
        pool in 0..2_usize,
        options in options(&[
            "foreign", "foreign", "cordoned", "labels=disk=ssd", "taints=team=a:NoSchedule",
            "capacity=spot",
        ]),
        holds in vec(0..3_u32, 4),
    ) -> Node {
        Node { of, zone, pool, options, holds }
    }
}

/// Draws a tree.
pub(super) fn tree() -> impl Strategy<Value = Tree> {
    let pools = (pool(), of(pool())).prop_map(|(first, second)| {
        let count =
            |pool: &Pool| pool.types.len() * pool.zones.len() * pool.capacity.split(',').count();
        let room = 4_usize.saturating_sub(count(&first));
        let second = second.filter(|second| count(second) <= room);
        std::iter::once(first).chain(second).collect::<Vec<_>>()
    });
    let nodes = prop_oneof![2 => Just(Vec::new()), 3 => vec(node(), 1..3)];
    (pools, vec(workload(), 1..=4), proptest::bool::weighted(0.2), nodes).prop_map(
        |(pools, workloads, daemon, nodes)| Tree { pools, workloads, daemon, nodes }.in_bounds(),
    )
}

impl Tree {
    /// Returns the tree with no more than the pods that brute force can try, and nodes that hold no
    /// more than they have room for.
    fn in_bounds(mut self) -> Self {
        let mut left = PODS_MAX;
        for workload in &mut self.workloads {
            workload.pods = workload.pods.min(left);
            left -= workload.pods;
        }
        self.workloads.retain(|workload| workload.pods > 0);
        let daemon = if self.daemon { DAEMON } else { 0 };
        for node in &mut self.nodes {
            node.pool = node.pool.min(self.pools.len() - 1);
            node.holds.truncate(self.workloads.len());
            let mut room = node.of.1 - daemon;
            for (held, workload) in node.holds.iter_mut().zip(&mut self.workloads) {
                let most = if workload.port.is_some() { 1 } else { room / workload.cpu };
                *held = (*held).min(most).min(room / workload.cpu);
                room -= *held * workload.cpu;
            }
        }
        self
    }

    /// Returns how many pods of a workload run.
    fn running(&self, workload: usize) -> u32 {
        self.nodes.iter().filter_map(|node| node.holds.get(workload)).sum()
    }
}

/// Writes the tree as a case.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = TYPES.map(|(name, _)| name);
        writeln!(f, "zones {}\ntypes {}", ZONES.join(" "), types.join(" "))?;
        for (index, Pool { types, zones, capacity, options }) in self.pools.iter().enumerate() {
            let (types, zones, options) = (types.join(","), zones.join(","), words(options));
            writeln!(f, "pool p{index} types={types} zones={zones} capacity={capacity}{options}")?;
        }
        if self.daemon {
            writeln!(f, "daemon agent cpu={DAEMON}m")?;
        }
        for (index, workload) in self.workloads.iter().enumerate() {
            workload.write(index, self.running(index), f)?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let Node { of: (kind, _), zone, pool, options, holds } = node;
            let held = holds.iter().enumerate().filter(|(_, count)| **count > 0);
            let held: Vec<String> = held.map(|(w, count)| format!("w{w}:{count}")).collect();
            let holds = if held.is_empty() { "" } else { " holds=" };
            let (options, held) = (words(options), held.join(","));
            writeln!(f, "node n{index} {kind} {zone} pool=p{pool}{options}{holds}{held}")?;
        }
        Ok(())
    }
}

impl Workload {
    fn write(&self, index: usize, running: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, cpu, options, port, rules } = self;
        let (pods, options) = ((*pods).max(running), words(options));
        writeln!(f, "pods w{index} {pods} cpu={cpu}m memory=100Mi{options}")?;
        if let Some(port) = port {
            let ports = format!("[{{ containerPort: {port}, hostPort: {port} }}]");
            let amounts = format!("{{ requests: {{ cpu: {cpu}m, memory: 100Mi }} }}");
            let container = format!("name: app, image: app, ports: {ports}, resources: {amounts}");
            writeln!(f, "  containers:\n  - {{ {container} }}")?;
        }
        rules.iter().try_for_each(|rule| writeln!(f, "  {rule}"))
    }
}

/// Returns words with a space before each.
fn words(words: &[&str]) -> String {
    words.iter().fold(String::new(), |all, word| all + " " + word)
}
