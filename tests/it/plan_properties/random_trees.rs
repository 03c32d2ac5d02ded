//! Random repositories: up to four workloads with eight pods, two pools with four offerings, two
//! nodes, and random features (`tree_features`).

use std::fmt;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::Just;
use proptest::sample::{select, subsequence};
use proptest::strategy::Strategy;
use proptest::{prop_compose, prop_oneof};

use super::tree_features::{FeatureLines, TreeFeature, features};

/// Maximum number of pods of a repository.
const PODS_MAX: u32 = 8;

/// Instance types with the CPU available for pods, in thousandths of a core.
const TYPES: [(&str, u32); 3] = [("c5.large", 1930), ("m5.large", 1930), ("m5.xlarge", 3920)];
const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

/// Instance type with a GPU.
const DEVICE_TYPE: &str = "g4dn.xlarge";

/// CPU request of the DaemonSet, in thousandths of a core.
const DAEMON_CPU_MILLI: u32 = 100;

/// A repository and its observation. `Display` writes them as a case.
#[derive(Debug, Clone)]
pub(super) struct RandomTree {
    pools: Vec<RandomPool>,
    workloads: Vec<RandomWorkload>,
    daemon: bool,
    nodes: Vec<RandomNode>,
    features: Vec<TreeFeature>,
}

#[derive(Debug, Clone)]
struct RandomPool {
    types: Vec<&'static str>,
    zones: Vec<&'static str>,
    capacity: &'static str,
    options: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct RandomWorkload {
    pods: u32,
    cpu: u32,
    options: Vec<&'static str>,
    port: Option<u16>,
    rules: Vec<String>,
}

#[derive(Debug, Clone)]
struct RandomNode {
    of: (&'static str, u32),
    zone: &'static str,
    pool: usize,
    options: Vec<&'static str>,
    holds: Vec<u32>,
}

/// Returns zero to two of `options` with different names.
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
    ) -> RandomPool {
        // Two types in two zones already give four offerings.
        let capacity = if types.len() * zones.len() > 2 { "on-demand" } else { capacity };
        RandomPool { types, zones, capacity, options }
    }
}

fn key() -> impl Strategy<Value = &'static str> {
    select(vec!["hostname", "zone", "capacity", "disk"])
}

fn pod_selector() -> impl Strategy<Value = &'static str> {
    select(vec!["app=w0", "app=w1", "app=w2", "tier=x", "all"])
}

fn spread() -> impl Strategy<Value = String> {
    let when = prop_oneof![
        4 => select(vec!["", " minDomains=2", " minDomains=3"]),
        1 => Just(" when=ScheduleAnyway"),
    ];
    let taints = select(vec!["", "", " taints=Honor"]);
    let affinity = select(vec!["", "", " affinity=Ignore"]);
    let pods = prop_oneof![4 => pod_selector(), 1 => Just("none")];
    (key(), 1..3, pods, when, taints, affinity).prop_map(
        |(key, skew, pods, when, taints, affinity)| {
            format!("spread {key} maxSkew={skew} pods={pods}{when}{taints}{affinity}")
        },
    )
}

fn pod_affinity_rule() -> impl Strategy<Value = String> {
    let word = select(vec![
        "anti-affinity",
        "anti-affinity",
        "affinity",
        "prefers-anti-affinity 5",
        "prefers-affinity 5",
    ]);
    let namespaces = select(vec!["", "", " namespaces=other", " namespaceSelector=all"]);
    (word, key(), pod_selector(), namespaces)
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
    prop_oneof![3 => choice.prop_map(str::to_owned), 2 => spread(), 2 => pod_affinity_rule()]
}

prop_compose! {
    fn workload()(
        pods in 1..=4_u32,
        cpu in select(vec![100, 300, 600, 900, 1500, 1800]),
        options in options(&["labels=tier=x", "namespace=other", "priority=5", "priority=-5"]),
        port in weighted(0.1, Just(80)),
        rules in vec(rule(), 0..4),
    ) -> RandomWorkload {
        RandomWorkload { pods, cpu, options, port, rules: without_duplicate_rules(rules) }
    }
}

/// Keeps the first of several rules that the API server allows only once.
fn without_duplicate_rules(rules: Vec<String>) -> Vec<String> {
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
    ) -> RandomNode {
        RandomNode { of, zone, pool, options, holds }
    }
}

/// Returns a strategy for repositories with features of the `chosen` family, or of all combined
/// families.
pub(super) fn tree(chosen: Option<&str>) -> impl Strategy<Value = RandomTree> + use<> {
    let pools = (pool(), of(pool())).prop_map(|(first, second)| {
        let count = |pool: &RandomPool| {
            pool.types.len() * pool.zones.len() * pool.capacity.split(',').count()
        };
        let room = 4_usize.saturating_sub(count(&first));
        let second = second.filter(|second| count(second) <= room);
        std::iter::once(first).chain(second).collect::<Vec<_>>()
    });
    let nodes = prop_oneof![2 => Just(Vec::new()), 3 => vec(node(), 1..3)];
    (pools, vec(workload(), 1..=4), proptest::bool::weighted(0.2), nodes, features(chosen))
        .prop_map(|(pools, workloads, daemon, nodes, features)| {
            RandomTree { pools, workloads, daemon, nodes, features }.in_bounds()
        })
}

impl RandomTree {
    /// Limits the pods to a number that brute force can try, and the running pods to the resources
    /// of their nodes.
    fn in_bounds(mut self) -> Self {
        let mut left = PODS_MAX;
        for workload in &mut self.workloads {
            workload.pods = workload.pods.min(left);
            left -= workload.pods;
        }
        self.workloads.retain(|workload| workload.pods > 0);
        let daemon = if self.daemon { DAEMON_CPU_MILLI } else { 0 };
        let count = self.nodes.len();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let has = |word| {
                let of_node = self.features.iter().filter_map(|feature| feature.node.as_ref());
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

    /// Returns the number of running pods of a workload.
    fn running(&self, workload: usize) -> u32 {
        self.nodes.iter().filter_map(|node| node.holds.get(workload)).sum()
    }
}

/// Lines that the features of a repository add to one of its pools, workloads or nodes.
struct Additions<'a>(Vec<&'a FeatureLines>);

impl<'a> Additions<'a> {
    fn new(
        tree: &'a RandomTree,
        part: impl Fn(&'a TreeFeature) -> Option<&'a FeatureLines>,
        index: usize,
        count: usize,
    ) -> Self {
        let all = tree.features.iter().filter_map(part);
        Self(all.filter(|addition| addition.of % count == index).collect())
    }

    fn words(&self) -> String {
        words(self.0.iter().map(|addition| addition.words.as_str()))
    }

    fn body(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|addition| &addition.body).map(String::as_str)
    }
}

/// Keeps the first of several manifests of the same object.
fn unique_manifests(texts: Vec<String>) -> Vec<String> {
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

/// Writes the repository as a case.
impl fmt::Display for RandomTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = TYPES.map(|(name, _)| name);
        writeln!(f, "zones {}\ntypes {} {DEVICE_TYPE}", ZONES.join(" "), types.join(" "))?;
        for text in unique_manifests(self.leading_lines()) {
            writeln!(f, "{text}")?;
        }
        for index in 0..self.pools.len() {
            self.write_pool(index, f)?;
        }
        if self.daemon {
            writeln!(f, "daemon agent cpu={DAEMON_CPU_MILLI}m")?;
        }
        for index in 0..self.workloads.len() {
            self.write_workload(index, f)?;
        }
        for index in 0..self.nodes.len() {
            self.write_node(index, f)?;
        }
        // Lines about a missing node are skipped.
        let node = |line: &&String| {
            let named = line.strip_prefix("attaches n").and_then(|rest| rest.split(' ').next());
            let index = named.and_then(|number| number.parse::<usize>().ok());
            index.is_none_or(|index| index < self.nodes.len())
        };
        self.features.iter().flat_map(|t| &t.last).filter(node).try_for_each(|l| writeln!(f, "{l}"))
    }
}

impl RandomTree {
    /// Returns the lines before the pools.
    fn leading_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.features.iter().flat_map(|t| t.lines.clone()).collect();
        let count = self.workloads.len();
        for (index, workload) in self.workloads.iter().enumerate() {
            let of = Additions::new(self, |feature| feature.pods.as_ref(), index, count);
            let texts = of.0.iter().flat_map(|addition| &addition.manifests);
            let (name, namespace) = (format!("w{index}"), workload.namespace());
            lines.extend(texts.map(|text| text.replace("{w}", &name).replace("{ns}", namespace)));
        }
        lines
    }

    fn write_pool(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RandomPool { types, zones, capacity, options } = &self.pools[index];
        let more = Additions::new(self, |feature| feature.pool.as_ref(), index, self.pools.len());
        let is_static = more.words().contains("replicas=");
        // A static pool has no weight, and only a limit on nodes.
        let is_allowed =
            |word: &&&str| !is_static || !word.starts_with("weight") && **word != "limits=cpu=4";
        let options = words(options.iter().filter(is_allowed).copied());
        let (types, zones, more_words) = (types.join(","), zones.join(","), more.words());
        writeln!(
            f,
            "pool p{index} types={types} zones={zones} capacity={capacity}{options}{more_words}"
        )?;
        more.body().try_for_each(|line| writeln!(f, "  {line}"))
    }

    fn write_workload(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more =
            Additions::new(self, |feature| feature.pods.as_ref(), index, self.workloads.len());
        let RandomWorkload { pods, cpu, options, port, rules } = &self.workloads[index];
        let pods = (*pods).max(self.running(index));
        let (options, more_words) = (words(options.iter().copied()), more.words());
        // The last `kind` applies. Only StatefulSets have claim templates.
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
        let is_allowed = |line: &&str| has_claims || !line.starts_with("claims ");
        let more = more.body().filter(is_allowed).map(str::to_owned);
        let mut fields = Vec::new();
        // Each field of a pod is written once.
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
        let rules =
            without_duplicate_rules(rules.iter().cloned().chain(more.filter(is_first)).collect());
        rules.iter().try_for_each(|rule| writeln!(f, "  {rule}"))
    }

    fn write_node(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RandomNode { of: (kind, _), zone, pool, options, holds } = &self.nodes[index];
        let more = Additions::new(self, |feature| feature.node.as_ref(), index, self.nodes.len());
        let held = holds.iter().enumerate().filter(|(_, count)| **count > 0);
        let held: Vec<String> = held.map(|(w, count)| format!("w{w}:{count}")).collect();
        let holds = if held.is_empty() { "" } else { " holds=" };
        let (options, more, held) = (words(options.iter().copied()), more.words(), held.join(","));
        writeln!(f, "node n{index} {kind} {zone} pool=p{pool}{options}{more}{holds}{held}")
    }
}

impl RandomWorkload {
    fn namespace(&self) -> &'static str {
        if self.options.contains(&"namespace=other") { "other" } else { "default" }
    }
}

/// Joins words, with a space before each.
fn words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.filter(|word| !word.is_empty()).fold(String::new(), |all, word| all + " " + word)
}
