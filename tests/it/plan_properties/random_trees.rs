//! Trees drawn by lot: up to four workloads with eight pods, two pools with four offerings, two
//! nodes, and what decides where pods may run, drawn family by family (`twist`).

use std::fmt;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::Just;
use proptest::sample::{select, subsequence};
use proptest::strategy::Strategy;
use proptest::{prop_compose, prop_oneof};

use super::tree_features::{FeatureLines, TreeFeature, twists};

/// Most new pods of a tree.
const PODS_MAX: u32 = 8;

/// Types, and thousandths of a CPU that pods may use of them.
const TYPES: [(&str, u32); 3] = [("c5.large", 1930), ("m5.large", 1930), ("m5.xlarge", 3920)];
const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

/// One more type, which has a device.
const DEVICES: &str = "g4dn.xlarge";

/// What the daemon of a tree takes of each node, in thousandths of a CPU.
const DAEMON: u32 = 100;

/// A tree and its world, written as a case.
#[derive(Debug, Clone)]
pub(super) struct DrawnTree {
    pools: Vec<DrawnPool>,
    workloads: Vec<DrawnWorkload>,
    daemon: bool,
    nodes: Vec<DrawnNode>,
    twists: Vec<TreeFeature>,
}

#[derive(Debug, Clone)]
struct DrawnPool {
    types: Vec<&'static str>,
    zones: Vec<&'static str>,
    capacity: &'static str,
    options: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct DrawnWorkload {
    pods: u32,
    cpu: u32,
    options: Vec<&'static str>,
    port: Option<u16>,
    rules: Vec<String>,
}

#[derive(Debug, Clone)]
struct DrawnNode {
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
    ) -> DrawnPool {
        // Two types in two zones are four offerings already.
        let capacity = if types.len() * zones.len() > 2 { "on-demand" } else { capacity };
        DrawnPool { types, zones, capacity, options }
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
    ) -> DrawnWorkload {
        DrawnWorkload { pods, cpu, options, port, rules: unlike(rules) }
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
    ) -> DrawnNode {
        DrawnNode { of, zone, pool, options, holds }
    }
}

/// Draws a tree, of the `chosen` family of rules or of any that are drawn together.
pub(super) fn tree(chosen: Option<&str>) -> impl Strategy<Value = DrawnTree> + use<> {
    let pools = (pool(), of(pool())).prop_map(|(first, second)| {
        let count = |pool: &DrawnPool| {
            pool.types.len() * pool.zones.len() * pool.capacity.split(',').count()
        };
        let room = 4_usize.saturating_sub(count(&first));
        let second = second.filter(|second| count(second) <= room);
        std::iter::once(first).chain(second).collect::<Vec<_>>()
    });
    let nodes = prop_oneof![2 => Just(Vec::new()), 3 => vec(node(), 1..3)];
    (pools, vec(workload(), 1..=4), proptest::bool::weighted(0.2), nodes, twists(chosen)).prop_map(
        |(pools, workloads, daemon, nodes, twists)| {
            DrawnTree { pools, workloads, daemon, nodes, twists }.in_bounds()
        },
    )
}

impl DrawnTree {
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
        let count = self.nodes.len();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let has = |word| {
                let of_node = self.twists.iter().filter_map(|twist| twist.node.as_ref());
                of_node
                    .filter(|more| more.of % count == index)
                    .any(|more| more.words.contains(word))
            };
            if has("joining") {
                node.holds.clear();
            }
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

/// What the twists of a tree add to one of its pools, workloads or nodes.
struct Additions<'a>(Vec<&'a FeatureLines>);

impl<'a> Additions<'a> {
    fn of(
        tree: &'a DrawnTree,
        part: impl Fn(&'a TreeFeature) -> Option<&'a FeatureLines>,
        (index, count): (usize, usize),
    ) -> Self {
        let all = tree.twists.iter().filter_map(part);
        Self(all.filter(|addition| addition.of % count == index).collect())
    }

    fn words(&self) -> String {
        words(self.0.iter().map(|addition| addition.words.as_str()))
    }

    fn body(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|addition| &addition.body).map(String::as_str)
    }
}

/// Leaves the first of manifests that describe one object.
fn different(texts: Vec<String>) -> Vec<String> {
    let object = |text: &str| {
        let head = |line: &&str| line.starts_with("  kind") || line.starts_with("  metadata");
        text.lines().filter(head).collect::<Vec<_>>().join(" ")
    };
    let mut seen = Vec::new();
    let is_first = |text: &String| {
        let object = if text.starts_with("manifest") { object(text) } else { text.clone() };
        !seen.contains(&object) && {
            seen.push(object);
            true
        }
    };
    texts.into_iter().filter(is_first).collect()
}

/// Writes the tree as a case.
impl fmt::Display for DrawnTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = TYPES.map(|(name, _)| name);
        writeln!(f, "zones {}\ntypes {} {DEVICES}", ZONES.join(" "), types.join(" "))?;
        for text in different(self.given()) {
            writeln!(f, "{text}")?;
        }
        for index in 0..self.pools.len() {
            self.write_pool(index, f)?;
        }
        if self.daemon {
            writeln!(f, "daemon agent cpu={DAEMON}m")?;
        }
        for index in 0..self.workloads.len() {
            self.write_workload(index, f)?;
        }
        for index in 0..self.nodes.len() {
            self.write_node(index, f)?;
        }
        // What is said of a node that the tree does not have is left out.
        let node = |line: &&String| {
            let named = line.strip_prefix("attaches n").and_then(|rest| rest.split(' ').next());
            let index = named.and_then(|number| number.parse::<usize>().ok());
            index.is_none_or(|index| index < self.nodes.len())
        };
        self.twists.iter().flat_map(|t| &t.last).filter(node).try_for_each(|l| writeln!(f, "{l}"))
    }
}

impl DrawnTree {
    /// Returns what comes before the pools.
    fn given(&self) -> Vec<String> {
        let mut given: Vec<String> = self.twists.iter().flat_map(|t| t.given.clone()).collect();
        let count = self.workloads.len();
        for (index, workload) in self.workloads.iter().enumerate() {
            let of = Additions::of(self, |twist| twist.pods.as_ref(), (index, count));
            let texts = of.0.iter().flat_map(|addition| &addition.manifests);
            let (name, namespace) = (format!("w{index}"), workload.namespace());
            given.extend(texts.map(|text| text.replace("{w}", &name).replace("{ns}", namespace)));
        }
        given
    }

    fn write_pool(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrawnPool { types, zones, capacity, options } = &self.pools[index];
        let more = Additions::of(self, |twist| twist.pool.as_ref(), (index, self.pools.len()));
        let is_static = more.words().contains("replicas=");
        // A pool with a fixed number of nodes has no weight, and limits their number alone.
        let may =
            |word: &&&str| !is_static || !word.starts_with("weight") && **word != "limits=cpu=4";
        let options = words(options.iter().filter(may).copied());
        let (types, zones, more_words) = (types.join(","), zones.join(","), more.words());
        writeln!(
            f,
            "pool p{index} types={types} zones={zones} capacity={capacity}{options}{more_words}"
        )?;
        more.body().try_for_each(|line| writeln!(f, "  {line}"))
    }

    fn write_workload(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = Additions::of(self, |twist| twist.pods.as_ref(), (index, self.workloads.len()));
        let DrawnWorkload { pods, cpu, options, port, rules } = &self.workloads[index];
        let pods = (*pods).max(self.running(index));
        let (options, more_words) = (words(options.iter().copied()), more.words());
        // The last word decides of what kind it is, and only some kinds have claims of their own.
        let kind = more_words.split(' ').filter_map(|word| word.strip_prefix("kind=")).next_back();
        let has_claims = kind == Some("StatefulSet");
        let has_containers = more.body().any(|line| line.starts_with("containers:"));
        writeln!(f, "pods w{index} {pods} cpu={cpu}m memory=100Mi{options}{more_words}")?;
        if let Some(port) = port.filter(|_| !has_containers) {
            let ports = format!("[{{ containerPort: {port}, hostPort: {port} }}]");
            let amounts = format!("{{ requests: {{ cpu: {cpu}m, memory: 100Mi }} }}");
            let container = format!("name: app, image: app, ports: {ports}, resources: {amounts}");
            writeln!(f, "  containers:\n  - {{ {container} }}")?;
        }
        let may = |line: &&str| has_claims || !line.starts_with("claims ");
        let more = more.body().filter(may).map(str::to_owned);
        let mut fields = Vec::new();
        // A field of a pod is written once.
        let is_first = |line: &String| {
            let field = line.split_once(':').filter(|(word, _)| !word.contains(' '));
            let word = field.map(|(word, _)| word.to_owned());
            word.is_none_or(|word| {
                !fields.contains(&word) && {
                    fields.push(word);
                    true
                }
            })
        };
        let rules = unlike(rules.iter().cloned().chain(more.filter(is_first)).collect());
        rules.iter().try_for_each(|rule| writeln!(f, "  {rule}"))
    }

    fn write_node(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrawnNode { of: (kind, _), zone, pool, options, holds } = &self.nodes[index];
        let more = Additions::of(self, |twist| twist.node.as_ref(), (index, self.nodes.len()));
        let held = holds.iter().enumerate().filter(|(_, count)| **count > 0);
        let held: Vec<String> = held.map(|(w, count)| format!("w{w}:{count}")).collect();
        let holds = if held.is_empty() { "" } else { " holds=" };
        let (options, more, held) = (words(options.iter().copied()), more.words(), held.join(","));
        writeln!(f, "node n{index} {kind} {zone} pool=p{pool}{options}{more}{holds}{held}")
    }
}

impl DrawnWorkload {
    fn namespace(&self) -> &'static str {
        if self.options.contains(&"namespace=other") { "other" } else { "default" }
    }
}

/// Returns words with a space before each.
fn words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.filter(|word| !word.is_empty()).fold(String::new(), |all, word| all + " " + word)
}
