//! Measures a large cluster: time, memory and calls of a plan, and of the controller.
//!
//! `FLEETWRIGHT_NODES` and `FLEETWRIGHT_PODS` (per node) set the size. The default is small.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright::simulator::sandbox::kubeconfig;
use serde_json::json;
use tempfile::TempDir;

use super::cluster::fleetwright;
use super::proxy::Proxy;
use super::{measured, size};

/// Timeout for a plan.
const TIMEOUT: Duration = Duration::from_mins(20);

/// Maximum resident memory in MiB of the plan and of the controller, for any build. It is twice the
/// value that the book quotes for a release build with 5,000 nodes.
const MAX_MEBIBYTES: u64 = 440;

/// Clock ticks per second of the CPU times in `/proc`.
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

/// A served cluster, and the tree of its workloads.
struct LargeCluster {
    tree: TempDir,
    /// Proxy in front of the API server and the account.
    proxy: Proxy,
    /// URL without the proxy, for long watches.
    direct: String,
}

impl LargeCluster {
    fn new(nodes: usize, pods: usize) -> Self {
        let direct = super::sandbox_api::fleet(nodes, pods).cluster_url.to_string();
        let proxy = Proxy::start(&direct);
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
            ("through", &kubeconfig(&proxy.url)),
            ("direct", &kubeconfig(direct.trim_end_matches('/'))),
        ] {
            write(name, text).expect("written");
        }
        Self { tree, proxy, direct }
    }

    fn start(&self, config: &str, arguments: &[&str], log: &Path) -> Child {
        let aws =
            if config == "direct" { self.direct.trim_end_matches('/') } else { &self.proxy.url };
        fleetwright(self.tree.path(), &self.tree.path().join(config), aws)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(File::create(log).expect("a file"))
            .spawn()
            .expect("the program")
    }
}

/// Returns a memory figure of a running process from `/proc`, in MiB.
pub(super) fn mebibytes(process: &Child, figure: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let row = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kibibytes = row.and_then(|row| row.trim().split(' ').next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) / 1024
}

/// Returns the CPU time of a process in clock ticks.
fn ticks(process: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    // The process name may contain spaces. The fields after its bracket do not.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns how long the CPU use at rest is measured. A small cluster is measured briefly: its value
/// is not quoted.
pub(super) fn idle_time(nodes: usize) -> Duration {
    Duration::from_secs(if nodes > 1_000 { 30 } else { 1 })
}

/// Measures the CPU use of a process for this time. Returns it in thousandths of a core.
pub(super) fn cpu_permille(process: &Child, time: Duration) -> u128 {
    let (before, since) = (ticks(process), Instant::now());
    std::thread::sleep(time);
    let busy = (ticks(process) - before) * 1_000 / TICKS;
    u128::from(busy) * 1_000 / since.elapsed().as_millis()
}

#[test]
fn large_cluster_stays_within_call_and_memory_limits() {
    let (nodes, pods) = (size("FLEETWRIGHT_NODES", 40), size("FLEETWRIGHT_PODS", 20));
    let cluster = LargeCluster::new(nodes, pods);
    let log = cluster.tree.path().join("log");
    let read_log = || fs::read_to_string(&log).unwrap_or_default();
    let (started, mut peak) = (Instant::now(), 0);
    let mut plan = cluster.start("through", &["plan"], &log);
    let code = loop {
        peak = peak.max(mebibytes(&plan, "VmHWM"));
        if let Some(ended) = plan.try_wait().expect("it runs") {
            break ended.code();
        }
        assert!(started.elapsed() < TIMEOUT, "{}", read_log());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(code, Some(0), "{}", read_log());
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for row in cluster.proxy.calls() {
        let name = row.call.name();
        *calls.entry(name.split('?').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    measured(&format!(
        "plan --world live over {nodes} nodes and {} pods: {:?}, {peak} MiB, {} calls",
        nodes * pods,
        started.elapsed(),
        calls.values().sum::<usize>()
    ));
    assert!((1..=MAX_MEBIBYTES).contains(&peak), "the plan used {peak} MiB");
    // No call is made per node or pod. `GetParameter` is called for each kind of hardware.
    let max_calls = |name: &str| match name {
        "GET /api/v1/nodes" | "GET /api/v1/pods" => usize::MAX,
        "GetParameter" => 6,
        _ => 4,
    };
    let excess: Vec<_> = calls.iter().filter(|(name, n)| **n > max_calls(name)).collect();
    assert!(excess.is_empty(), "{excess:?} of {calls:?}");

    let started = Instant::now();
    let mut replica = cluster.start("direct", &["run", ".", "--world", "live"], &log);
    while !read_log().contains("nothing to change") && !read_log().contains(" to add") {
        assert!(started.elapsed() < TIMEOUT, "{}", read_log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let first = started.elapsed();
    std::thread::sleep(idle_time(nodes));
    let share = cpu_permille(&replica, idle_time(nodes));
    measured(&format!(
        "run --world live over {nodes} nodes and {} pods: first plan after {first:?}, {} MiB resident \
         ({} at most), {share} thousandths of a core when idle",
        nodes * pods,
        mebibytes(&replica, "VmRSS"),
        mebibytes(&replica, "VmHWM"),
    ));
    let controller_peak = mebibytes(&replica, "VmHWM");
    assert!(
        (1..=MAX_MEBIBYTES).contains(&controller_peak),
        "the controller used {controller_peak} MiB"
    );
    let id = replica.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert_eq!(replica.wait().expect("it ends").code(), Some(0), "{}", read_log());
}
