//! What a large cluster costs: time, memory and calls of a plan over it, and of a loop that keeps it.
//!
//! `FLEETWRIGHT_NODES` and `FLEETWRIGHT_PODS` (of a node) say how large; what runs by itself is small.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright::simulator::sandbox::kubeconfig;
use serde_json::json;
use tempfile::TempDir;

use super::proxy::Proxy;
use super::{measured, size};

/// Longest wait for a plan.
const PATIENCE: Duration = Duration::from_mins(20);

/// Most that either may hold, in MiB, whatever the build: what the readme quotes of a release build over 5,000 nodes, and
/// as much again for one that is not optimized.
const MEBIBYTES_MAX: u64 = 440;

/// Clock ticks a second, as the kernel counts the time of a process.
const TICKS: u64 = 100;

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: large }
spec:
  cluster: { name: large, region: us-east-1, zones: { us-east-1a: use1-az2, us-east-1b: use1-az4 } }
  world: live
";

const POOLS: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: general }
spec:
  template:
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: own }
spec:
  role: web
  amiFamily: AL2023
  amiSelectorTerms: [{ alias: al2023@v20260101 }]
  subnetSelectorTerms: [{ tags: { fleet: web } }]
  securityGroupSelectorTerms: [{ tags: { fleet: web } }]
";

/// A cluster of so many nodes that is served, and the tree that asks for what runs there.
struct LargeCluster {
    tree: TempDir,
    /// In front of API server and account.
    outside: Proxy,
    /// The same without it: watches go on for long.
    direct: String,
}

impl LargeCluster {
    fn set(nodes: usize, pods: usize) -> Self {
        let direct = super::sandbox_api::fleet(nodes, pods).cluster_url.to_string();
        let outside = Proxy::start(&direct);
        let tree = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(tree.path().join(name), text);
        let labels = json!({ "app": "api" });
        let app = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "api", "namespace": "web" },
            "spec": { "replicas": nodes * pods, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": {
                    "containers": [{ "name": "api", "image": "api:1" }] } } }
        });
        for (name, text) in [
            ("fleetwright.yaml", FLEET),
            ("pools.yaml", POOLS),
            ("apps.yaml", &app.to_string()),
            ("through", &kubeconfig(&outside.url)),
            ("direct", &kubeconfig(direct.trim_end_matches('/'))),
        ] {
            write(name, text).expect("written");
        }
        Self { tree, outside, direct }
    }

    fn start(&self, config: &str, arguments: &[&str], log: &Path) -> Child {
        let aws =
            if config == "direct" { self.direct.trim_end_matches('/') } else { &self.outside.url };
        Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(arguments)
            .current_dir(self.tree.path())
            .env("KUBECONFIG", self.tree.path().join(config))
            .env("AWS_ENDPOINT_URL", aws)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("XDG_CACHE_HOME", self.tree.path().join(".cache"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log).expect("a file"))
            .spawn()
            .expect("the program")
    }
}

/// Returns a figure of a running process in MiB, as the kernel tells it.
pub(super) fn mebibytes(process: &Child, figure: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let row = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kibibytes = row.and_then(|row| row.trim().split(' ').next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) / 1024
}

/// Returns how long a process has run on any core, in ticks.
fn ticks(process: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    // The name may hold spaces; what follows its bracket does not.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[test]
fn large_cluster_stays_within_call_and_memory_limits() {
    let (nodes, pods) = (size("FLEETWRIGHT_NODES", 40), size("FLEETWRIGHT_PODS", 20));
    let scene = LargeCluster::set(nodes, pods);
    let log = scene.tree.path().join("log");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let (begun, mut most) = (Instant::now(), 0);
    let mut plan = scene.start("through", &["plan"], &log);
    let code = loop {
        most = most.max(mebibytes(&plan, "VmHWM"));
        if let Some(ended) = plan.try_wait().expect("it runs") {
            break ended.code();
        }
        assert!(begun.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(code, Some(0), "{}", said());
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for row in scene.outside.ledger() {
        let name = row.call.name();
        *calls.entry(name.split('?').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    measured(&format!(
        "plan --world live over {nodes} nodes and {} pods: {:?}, {most} MiB, {} calls",
        nodes * pods,
        begun.elapsed(),
        calls.values().sum::<usize>()
    ));
    assert!((1..=MEBIBYTES_MAX).contains(&most), "the plan held {most} MiB");
    // Nothing is asked for each node or pod. Images are published one by one, for each kind of hardware.
    let most_of = |name: &str| match name {
        "GET /api/v1/nodes" | "GET /api/v1/pods" => usize::MAX,
        "GetParameter" => 6,
        _ => 4,
    };
    let again: Vec<_> = calls.iter().filter(|(name, n)| **n > most_of(name)).collect();
    assert!(again.is_empty(), "{again:?} of {calls:?}");

    let begun = Instant::now();
    let mut replica = scene.start("direct", &["run", ".", "--world", "live"], &log);
    while !said().contains("nothing to change") && !said().contains(" to add") {
        assert!(begun.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    let first = begun.elapsed();
    // What is small is looked at for a moment only, since nobody quotes it.
    let idle = Duration::from_secs(if nodes > 1_000 { 30 } else { 1 });
    std::thread::sleep(idle);
    let (before, since) = (ticks(&replica), Instant::now());
    std::thread::sleep(idle);
    let busy = (ticks(&replica) - before) * 1_000 / TICKS;
    let share = u128::from(busy) * 100 / since.elapsed().as_millis();
    measured(&format!(
        "run --world live over {nodes} nodes and {} pods: first plan after {first:?}, {} MiB resident \
         ({} at most), {share} % of a core when idle",
        nodes * pods,
        mebibytes(&replica, "VmRSS"),
        mebibytes(&replica, "VmHWM"),
    ));
    let held = mebibytes(&replica, "VmHWM");
    assert!((1..=MEBIBYTES_MAX).contains(&held), "the loop held {held} MiB");
    let id = replica.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert_eq!(replica.wait().expect("it ends").code(), Some(0), "{}", said());
}
