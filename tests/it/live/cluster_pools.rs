//! Pools that only the cluster has (`spec.pools: cluster`), in the API of `fleetwright sandbox`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fleetwright::adapters::kube::{ClusterChange, Kubernetes, WatchedCluster};
use fleetwright::model::observed::ClusterPools;
use kube::{Client, Config};
use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::cluster::runtime;
use super::controller_fixture::{ControllerFixture, TIMEOUT, git};
use super::end_to_end::deployment;
use super::kubelets::get;

/// Time in which every watch has begun.
const SETTLED: Duration = Duration::from_secs(2);

/// Pushes a commit that declares no pool and reads those of the cluster. Returns its clone.
fn push_without_pools(fixture: &ControllerFixture, replicas: u32) -> TempDir {
    let clone = tempfile::tempdir().expect("a directory");
    let path = clone.path();
    git(path, &["clone", "-q", fixture.bare().to_str().expect("UTF-8"), "."]);
    fs::remove_file(path.join("pools.yaml")).expect("removed");
    let settings = fs::read_to_string(path.join("fleetwright.yaml")).expect("settings");
    // Without a change in the cluster, the branch is not read for a long time.
    let settings = settings.replace("    poll: 1s\n", "    poll: 1h\n");
    let settings = settings.replace("  world: live\n", "  world: live\n  pools: cluster\n");
    fs::write(path.join("fleetwright.yaml"), settings).expect("written");
    let apps = deployment("api", replicas, "pool", "general").to_string();
    fs::write(path.join("apps.yaml"), &apps).expect("written");
    // The sandbox delivers the workloads of its own tree.
    fs::write(fixture.tree.path().join("apps.yaml"), &apps).expect("written");
    git(path, &["add", "-A"]);
    git(path, &["commit", "-q", "-m", "pools of the cluster"]);
    git(path, &["push", "-q", "origin", "main"]);
    clone
}

/// Runs a command of the program in the directory of a clone, and returns its exit code and output.
fn run(fixture: &ControllerFixture, clone: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = fixture.command(arguments).current_dir(clone).output().expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

async fn instance_types(client: &Client) -> Vec<String> {
    let nodes = get(client, "/api/v1/nodes").await;
    let nodes = nodes["items"].as_array().expect("a list").clone();
    let of = |node: Json| node["metadata"]["labels"]["node.kubernetes.io/instance-type"].clone();
    nodes.into_iter().filter_map(|node| of(node).as_str().map(str::to_owned)).collect()
}

#[test]
fn controller_plans_again_when_a_pool_of_the_cluster_changes() {
    let fixture = ControllerFixture::new("controller", None);
    let clone = push_without_pools(&fixture, 2);
    runtime().block_on(async {
        let client = fixture.client();
        let replica = fixture.start("a");
        fixture.wait_for_nodes(2, &replica).await;
        assert_eq!(instance_types(&client).await, ["m5.large", "m5.large"]);
        // No commit changes: another tool, which the sandbox plays, writes the pool.
        fixture.edit("pools.yaml", "[m5.large]", "[m5.xlarge]");
        let started = Instant::now();
        while instance_types(&client).await.iter().any(|kind| kind != "m5.xlarge") {
            assert!(started.elapsed() < TIMEOUT, "{}", replica.read_log());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let log = replica.end();
        assert!(!log.contains("ERROR"), "{log}");
    });
    // Commands over the live world read the same pools.
    let (code, plan) = run(&fixture, clone.path(), &["plan", "--format", "json"]);
    assert_eq!(code, Some(0), "{plan}");
    assert!(plan.contains("\"cluster_pools\": \"sha256:"), "{plan}");
    let (code, observed) = run(&fixture, clone.path(), &["observe", "--out", "world.json"]);
    assert_eq!(code, Some(0), "{observed}");
    let over_file = ["plan", "--world", "world.json", "--format", "json"];
    let (code, over_file) = run(&fixture, clone.path(), &over_file);
    assert_eq!(code, Some(0), "{over_file}");
    fixture.sandbox.end();
}

#[test]
fn pool_in_a_file_and_in_the_cluster_is_an_error() {
    let fixture = ControllerFixture::new("controller", None);
    let clone = push_without_pools(&fixture, 0);
    let pools = fixture.tree.path().join("pools.yaml");
    fs::copy(pools, clone.path().join("pools.yaml")).expect("copied");
    let (code, plan) = run(&fixture, clone.path(), &["plan"]);
    assert_eq!(code, Some(1), "{plan}");
    for part in
        ["pools.yaml:1: NodePool general: is declared in a file", "cluster:nodepool/general"]
    {
        assert!(plan.contains(part), "{plan}");
    }
    fixture.sandbox.end();
}

/// Waits until the watched pools equal the listed ones.
async fn wait_until_equal(watched: &WatchedCluster, kubernetes: &Kubernetes) -> ClusterPools {
    let started = Instant::now();
    loop {
        let (cached, listed) = (watched.pools().await, kubernetes.pools().await);
        if cached == listed {
            return listed;
        }
        assert!(started.elapsed() < TIMEOUT, "{cached:?} {listed:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn changes_of_watched_pools_are_reported() {
    let fixture = ControllerFixture::new("controller", None);
    let config = Config::new(fixture.sandbox.url().parse().expect("a URL"));
    runtime().block_on(async {
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let (sender, mut changes) = mpsc::channel(64);
        let watched = WatchedCluster::start(kubernetes.clone(), sender);
        let first = wait_until_equal(&watched, &kubernetes).await;
        assert!(first.objects.iter().any(|object| object.kind == "NodePool"), "{first:?}");
        assert_eq!(first.unread_reason(), None);
        tokio::time::sleep(SETTLED).await;
        while changes.try_recv().is_ok() {}
        fixture.edit("pools.yaml", "[m5.large]", "[m5.xlarge]");
        let changed =
            async { while changes.recv().await.expect("open") != ClusterChange::PoolChanged {} };
        tokio::time::timeout(TIMEOUT, changed).await.expect("a specification is a change");
        let second = wait_until_equal(&watched, &kubernetes).await;
        assert_ne!(second.digest(), first.digest());
    });
    fixture.sandbox.end();
}
