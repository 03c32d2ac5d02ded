//! Measures the time from pending pods to their launch call in a large fleet. Each node has an
//! instance and is full of pods.
//!
//! `FLEETWRIGHT_NODES`, `FLEETWRIGHT_PODS` (per node) and `FLEETWRIGHT_BURSTS` set the size. The
//! default is small.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright::model::desired::TreeFile;
use fleetwright::simulator::sandbox::kubeconfig;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::burst::LaunchTimes;
use super::cluster::{fleetwright, runtime};
use super::controller_fixture::POOLS;
use super::large_cluster::{cpu_permille, idle_time, mebibytes};
use super::proxy::Proxy;
use super::{measured, size};

/// Timeout for the first plan, without the share of each node.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Additional time for the first plan for each node.
const TIMEOUT_PER_NODE: Duration = Duration::from_millis(20);

/// Pause between two bursts. The node of the previous burst joins and its pods start to run.
const PAUSE: Duration = Duration::from_secs(4);

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: standing }
spec:
  cluster: { name: standing, region: us-east-1, zones: { us-east-1a: use1-az2, us-east-1b: use1-az4 } }
  world: live
  controller: { mode: full, launches: { most: 1000, within: 5m } }
";

/// Returns the pool of the controller fixture with the default disruption settings.
fn pools() -> String {
    let lines = POOLS.split_inclusive('\n');
    lines.filter(|line| !line.starts_with("  disruption:")).collect()
}

/// A tree and its running fleet.
struct StandingFleet {
    tree: TempDir,
    /// Proxy in front of the account.
    aws: Proxy,
    url: String,
}

/// Returns one Deployment per pod of a node. Together they fill the node.
fn apps(pods: usize, replicas: usize) -> String {
    let app = |n: usize| {
        let labels = json!({ "app": format!("app-{n:02}") });
        let requests = json!({ "cpu": format!("{}m", 1_920 / pods), "memory": "64Mi" });
        let app = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": format!("app-{n:02}"), "namespace": "web" },
            "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": [{
                    "name": "main", "image": "main:1", "resources": { "requests": requests }
                }] } } }
        });
        app.to_string()
    };
    (0..pods).map(app).collect::<Vec<_>>().join("\n---\n")
}

/// Returns a world with `nodes` copies of the only node in `world`.
fn copies_of_node(world: &Json, nodes: usize) -> Json {
    let mut copies = world.clone();
    let first_value =
        |key: &str| world[key].as_object().and_then(|all| all.values().next()).cloned();
    let (instance, node) =
        (first_value("instances").expect("one"), first_value("nodes").expect("one"));
    (copies["instances"], copies["nodes"], copies["pods"]) = (json!({}), json!({}), json!([]));
    for n in 0..nodes {
        let (id, key) = (format!("i-{:017x}", 0x0100_0000 + n), n.to_string());
        let name = format!("ip-10-200-{}-{}.us-east-1.compute.internal", n / 250, n % 250);
        let mut instance_copy = instance.clone();
        instance_copy["id"] = json!(id);
        instance_copy["tags"]["fleetwright.dev/key"] = json!(key);
        instance_copy["tags"]["fleetwright.dev/change"] = json!(format!("{n:064x}"));
        let mut node_copy = node.clone();
        (node_copy["name"], node_copy["instance"]) = (json!(name), json!(id));
        node_copy["uid"] = json!(format!("node-{n}"));
        node_copy["labels"]["kubernetes.io/hostname"] = json!(name);
        node_copy["labels"]["fleetwright.dev/key"] = json!(key);
        let pods = world["pods"].as_array().into_iter().flatten().enumerate().map(|(m, pod)| {
            let mut pod = pod.clone();
            let owner = pod["owner"]["name"].as_str().unwrap_or_default().to_owned();
            pod["name"] = json!(format!("{owner}-{n:05}"));
            (pod["uid"], pod["node"]) = (json!(format!("pod-{n}-{m}")), json!(name));
            pod
        });
        copies["pods"].as_array_mut().expect("a list").extend(pods);
        copies["instances"][id] = instance_copy;
        copies["nodes"][name] = node_copy;
    }
    let pods = copies["pods"].as_array_mut().expect("a list");
    pods.sort_by_cached_key(|pod| pod["name"].as_str().unwrap_or_default().to_owned());
    for workload in copies["workloads"].as_array_mut().expect("a list") {
        workload["replicas"] = json!(nodes);
    }
    copies
}

impl StandingFleet {
    fn new(nodes: usize, pods: usize) -> Self {
        let tree = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| fs::write(tree.path().join(name), text).expect("written");
        write("fleetwright.yaml", FLEET);
        write("pools.yaml", &pools());
        write("apps.yaml", &apps(pods, 1));
        // The program itself creates one node, one hour ago.
        let created_at = Timestamp::now() - SignedDuration::from_hours(1);
        let mut apply = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
        let world_directory = tempfile::tempdir().expect("a directory");
        let world = format!("sim:{}", world_directory.path().display());
        apply.args(["apply", "--world", &world, "--auto-approve", "--at", &created_at.to_string()]);
        let applied = apply.current_dir(tree.path()).output().expect("the program");
        let stderr = String::from_utf8_lossy(&applied.stderr);
        assert_eq!(applied.status.code(), Some(0), "{stderr}");
        let file = world_directory.path().join("world.json");
        let world = fs::read(&file).expect("a world");
        let world: Json = serde_json::from_slice(&world).expect("JSON");
        assert_eq!(world["nodes"].as_object().map(serde_json::Map::len), Some(1), "{stderr}");
        fs::write(file, copies_of_node(&world, nodes).to_string()).expect("written");
        write("apps.yaml", &apps(pods, nodes));
        let pools =
            TreeFile { path: "pools.yaml".into(), content: Ok(pools().into_bytes().into()) };
        let served = super::sandbox_api::stored(world_directory.path().to_owned(), vec![pools]);
        let url = served.cluster_url.to_string().trim_end_matches('/').to_owned();
        write("kubeconfig", &kubeconfig(&url));
        Self { aws: Proxy::start(&url), tree, url }
    }

    fn start(&self) -> Child {
        let directory = self.tree.path();
        fleetwright(directory, &directory.join("kubeconfig"), &self.aws.url)
            .args(["run", ".", "--world", "live", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .stderr(File::create(directory.join("log")).expect("a file"))
            .spawn()
            .expect("the program")
    }

    fn read_log(&self) -> String {
        fs::read_to_string(self.tree.path().join("log")).unwrap_or_default()
    }
}

/// A running controller. It is killed when the test ends.
struct Replica(Child);

impl Drop for Replica {
    fn drop(&mut self) {
        // The process has exited already if the test passes.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn pod_burst_in_a_standing_fleet_is_launched_soon() {
    let (nodes, pods) = (size("FLEETWRIGHT_NODES", 40), size("FLEETWRIGHT_PODS", 20));
    let bursts = size("FLEETWRIGHT_BURSTS", 2);
    let fleet = StandingFleet::new(nodes, pods);
    let launches = LaunchTimes::record(&fleet.aws);
    let mut replica = Replica(fleet.start());
    let timeout = TIMEOUT + TIMEOUT_PER_NODE * u32::try_from(nodes).expect("a count");
    let started = Instant::now();
    while !fleet.read_log().contains("nothing to change") {
        assert!(started.elapsed() < timeout, "{}", fleet.read_log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let first = started.elapsed();
    std::thread::sleep(idle_time(nodes));
    let cpu = cpu_permille(&replica.0, idle_time(nodes));
    let at_rest = mebibytes(&replica.0, "VmRSS");
    let mut waits = Vec::new();
    runtime().block_on(async {
        let config = kube::Config::new(fleet.url.parse().expect("a URL"));
        let client = Client::try_from(config).expect("a client");
        for n in 0..bursts {
            tokio::time::sleep(PAUSE).await;
            waits.push(launches.delay_after_burst(&client, n, || fleet.read_log()).await);
        }
        tokio::time::sleep(PAUSE).await;
    });
    waits.sort_unstable();
    // Of fewer than a hundred bursts, the 99th percentile is the maximum.
    let note = if bursts < 100 { " (the maximum)" } else { "" };
    measured(&format!(
        "last pod of a burst to CreateFleet over {nodes} nodes and {} pods, {bursts} bursts: p50 {} ms, \
         p99 {} ms{note}; first plan after {first:?}; at rest {at_rest} MiB resident and {cpu} \
         thousandths of a core; after the bursts {} MiB ({} at most)",
        nodes * pods,
        waits[waits.len() / 2],
        waits[(waits.len() * 99).div_ceil(100) - 1],
        mebibytes(&replica.0, "VmRSS"),
        mebibytes(&replica.0, "VmHWM"),
    ));
    // Each burst needs one instance. If only some of its pods were observed, it may launch another.
    let count = launches.count();
    assert!(count >= bursts && count <= bursts * 2, "{count} calls\n{}", fleet.read_log());
    let ended = fleet.aws.calls().into_iter().filter(|row| row.call.name() == "TerminateInstances");
    assert_eq!(ended.count(), 0, "{}", fleet.read_log());
    let id = replica.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert_eq!(replica.0.wait().expect("it ends").code(), Some(0), "{}", fleet.read_log());
}
