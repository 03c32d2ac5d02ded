//! How soon pods that wait have their launch call where many nodes stand, each of an instance of the account and full of
//! pods.
//!
//! `FLEETWRIGHT_NODES`, `FLEETWRIGHT_PODS` (of a node) and `FLEETWRIGHT_BURSTS` say how large; what runs by itself is
//! small.

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
use super::cluster::runtime;
use super::controller_fixture::POOLS;
use super::large_cluster::mebibytes;
use super::proxy::Proxy;
use super::{measured, size};

/// Longest wait for the first plan.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two bursts: the node of the one before has joined, and its pods run.
const REST: Duration = Duration::from_secs(4);

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: standing }
spec:
  cluster: { name: standing, region: us-east-1, zones: { us-east-1a: use1-az2, us-east-1b: use1-az4 } }
  world: live
  controller: { mode: full, launches: { most: 1000, within: 5m } }
";

/// Returns the pool of other scenes, with what pools have by default where nodes are to go.
fn pools() -> String {
    let whole = POOLS.split_inclusive('\n');
    whole.filter(|line| !line.starts_with("  disruption:")).collect()
}

/// A tree, and the fleet that it asks for, which stands.
struct StandingFleet {
    tree: TempDir,
    /// In front of the account.
    aws: Proxy,
    url: String,
}

/// Returns as many Deployments as a node has pods; together they fill it.
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

/// Returns the world of one node as one of so many.
fn multiplied(world: &Json, nodes: usize) -> Json {
    let mut many = world.clone();
    let only = |key: &str| world[key].as_object().and_then(|all| all.values().next()).cloned();
    let (instance, node) = (only("instances").expect("one"), only("nodes").expect("one"));
    (many["instances"], many["nodes"], many["pods"]) = (json!({}), json!({}), json!([]));
    for n in 0..nodes {
        let (id, key) = (format!("i-{:017x}", 0x0100_0000 + n), n.to_string());
        let name = format!("ip-10-200-{}-{}.us-east-1.compute.internal", n / 250, n % 250);
        let mut machine = instance.clone();
        machine["id"] = json!(id);
        machine["tags"]["fleetwright.dev/key"] = json!(key);
        machine["tags"]["fleetwright.dev/change"] = json!(format!("{n:064x}"));
        let mut joined = node.clone();
        (joined["name"], joined["instance"]) = (json!(name), json!(id));
        joined["uid"] = json!(format!("node-{n}"));
        joined["labels"]["kubernetes.io/hostname"] = json!(name);
        joined["labels"]["fleetwright.dev/key"] = json!(key);
        let pods = world["pods"].as_array().into_iter().flatten().enumerate().map(|(m, pod)| {
            let mut pod = pod.clone();
            let owner = pod["owner"]["name"].as_str().unwrap_or_default().to_owned();
            pod["name"] = json!(format!("{owner}-{n:05}"));
            (pod["uid"], pod["node"]) = (json!(format!("pod-{n}-{m}")), json!(name));
            pod
        });
        many["pods"].as_array_mut().expect("a list").extend(pods);
        many["instances"][id] = machine;
        many["nodes"][name] = joined;
    }
    let pods = many["pods"].as_array_mut().expect("a list");
    pods.sort_by_cached_key(|pod| pod["name"].as_str().unwrap_or_default().to_owned());
    for workload in many["workloads"].as_array_mut().expect("a list") {
        workload["replicas"] = json!(nodes);
    }
    many
}

impl StandingFleet {
    fn set(nodes: usize, pods: usize) -> Self {
        let tree = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| fs::write(tree.path().join(name), text).expect("written");
        write("fleetwright.yaml", FLEET);
        write("pools.yaml", &pools());
        write("apps.yaml", &apps(pods, 1));
        // One node as the program itself makes it, some time ago.
        let ago = Timestamp::now() - SignedDuration::from_hours(1);
        let mut apply = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
        let held = tempfile::tempdir().expect("a directory");
        let world = format!("sim:{}", held.path().display());
        apply.args(["apply", "--world", &world, "--auto-approve", "--at", &ago.to_string()]);
        let applied = apply.current_dir(tree.path()).output().expect("the program");
        let said = String::from_utf8_lossy(&applied.stderr);
        assert_eq!(applied.status.code(), Some(0), "{said}");
        let kept = held.path().join("world.json");
        let world = fs::read(&kept).expect("a world");
        let world: Json = serde_json::from_slice(&world).expect("JSON");
        assert_eq!(world["nodes"].as_object().map(serde_json::Map::len), Some(1), "{said}");
        fs::write(kept, multiplied(&world, nodes).to_string()).expect("written");
        write("apps.yaml", &apps(pods, nodes));
        let pools =
            TreeFile { path: "pools.yaml".into(), content: Ok(pools().into_bytes().into()) };
        let served = super::sandbox_api::kept(held.path().to_owned(), vec![pools]);
        let url = served.cluster_url.to_string().trim_end_matches('/').to_owned();
        write("kubeconfig", &kubeconfig(&url));
        Self { aws: Proxy::start(&url), tree, url }
    }

    fn start(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(["run", ".", "--world", "live", "--listen", "127.0.0.1:0"])
            .current_dir(self.tree.path())
            .env("KUBECONFIG", self.tree.path().join("kubeconfig"))
            .env("AWS_ENDPOINT_URL", &self.aws.url)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("XDG_CACHE_HOME", self.tree.path().join(".cache"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.tree.path().join("log")).expect("a file"))
            .spawn()
            .expect("the program")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.tree.path().join("log")).unwrap_or_default()
    }
}

/// A loop that runs, and ends with the test however that ends.
struct Replica(Child);

impl Drop for Replica {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn pod_burst_in_a_standing_fleet_is_launched_soon() {
    let (nodes, pods) = (size("FLEETWRIGHT_NODES", 40), size("FLEETWRIGHT_PODS", 20));
    let bursts = size("FLEETWRIGHT_BURSTS", 2);
    let scene = StandingFleet::set(nodes, pods);
    let launches = LaunchTimes::through(&scene.aws);
    let mut replica = Replica(scene.start());
    let begun = Instant::now();
    while !scene.said().contains("nothing to change") {
        assert!(begun.elapsed() < PATIENCE, "{}", scene.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    let first = begun.elapsed();
    let mut waits = Vec::new();
    runtime().block_on(async {
        let config = kube::Config::new(scene.url.parse().expect("a URL"));
        let client = Client::try_from(config).expect("a client");
        for n in 0..bursts {
            tokio::time::sleep(REST).await;
            waits.push(launches.after_burst(&client, n, || scene.said()).await);
        }
        tokio::time::sleep(REST).await;
    });
    waits.sort_unstable();
    measured(&format!(
        "last pod of a burst to CreateFleet over {nodes} nodes and {} pods, {bursts} bursts: p50 {} ms, \
         most {} ms; first plan after {first:?}, {} MiB resident ({} at most)",
        nodes * pods,
        waits[waits.len() / 2],
        waits[waits.len() - 1],
        mebibytes(&replica.0, "VmRSS"),
        mebibytes(&replica.0, "VmHWM"),
    ));
    // Each burst has one instance; where only some of its pods were seen, it may have another.
    let made = launches.made();
    assert!(made >= bursts && made <= bursts * 2, "{made} calls\n{}", scene.said());
    let ended =
        scene.aws.ledger().into_iter().filter(|row| row.call.name() == "TerminateInstances");
    assert_eq!(ended.count(), 0, "{}", scene.said());
    let id = replica.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert_eq!(replica.0.wait().expect("it ends").code(), Some(0), "{}", scene.said());
}
