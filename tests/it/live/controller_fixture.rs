//! A fixture for controller tests: a tree and its repository, the world that `fleetwright sandbox`
//! serves behind a proxy, and controller replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use kube::Client;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::cluster::fleetwright;
use super::end_to_end::deployment;
use super::kubelets::get;
use super::moto::Moto;
use super::proxy::Proxy;
use crate::sandbox::Sandbox;

/// Timeout of each wait, except for the expiry of a lease.
pub(super) const TIMEOUT: Duration = Duration::from_mins(2);

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: us-east-1, zones: { us-east-1a: use1-az2, us-east-1b: use1-az4 } }
  world: live
  apply: { by: BY }
  controller:
    mode: full
    settle: 1s
    refresh: 1s
    poll: 1s
    launches: { most: 1000, within: 5m }
    removals: { most: 100%, within: 1s }
    massRemoval: 100%
    queue: prod
";

/// A pool with one instance type, and its node class.
pub(super) const POOLS: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: general }
spec:
  template:
    metadata: { labels: { pool: general } }
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
  disruption: { consolidateAfter: 0s, budgets: [{ nodes: '100%' }] }
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

/// A tree, its repository and a sandbox.
pub(super) struct ControllerFixture {
    pub(super) sandbox: Sandbox,
    /// Proxy in front of the account.
    pub(super) aws: Proxy,
    pub(super) tree: TempDir,
    pub(super) remote: TempDir,
    pub(super) moto: Option<Moto>,
    /// Endpoint of SQS; `None` without an interruption queue.
    sqs: Option<String>,
}

impl ControllerFixture {
    pub(super) fn new(by: &str, moto: Option<Moto>) -> Self {
        let sqs = moto.as_ref().map(|moto| moto.url().to_owned());
        Self { moto, ..Self::with_queue(by, sqs) }
    }

    /// Creates a fixture whose queue is served at `sqs`.
    pub(super) fn with_queue(by: &str, sqs: Option<String>) -> Self {
        let (tree, remote) = (tempfile::tempdir(), tempfile::tempdir());
        let (tree, remote) = (tree.expect("a directory"), remote.expect("a directory"));
        let write = |name: &str, text: &str| fs::write(tree.path().join(name), text);
        let fleet = FLEET.replace("BY", by);
        let fleet = if sqs.is_some() { fleet } else { fleet.replace("    queue: prod\n", "") };
        write("fleetwright.yaml", &fleet).expect("written");
        write("pools.yaml", POOLS).expect("written");
        write("apps.yaml", &deployment("api", 0, "pool", "general").to_string()).expect("written");
        git(tree.path(), &["init", "-q", "-b", "main"]);
        let bare = remote.path().join("fleet.git");
        let bare_path = bare.to_str().expect("UTF-8");
        git(remote.path(), &["init", "-q", "--bare", "-b", "main", bare_path]);
        git(tree.path(), &["remote", "add", "origin", bare_path]);
        let sandbox = Sandbox::start(tree.path());
        let aws = Proxy::start(sandbox.url());
        let fixture = Self { sandbox, aws, tree, remote, moto: None, sqs };
        fixture.push();
        fixture
    }

    pub(super) fn bare(&self) -> PathBuf {
        self.remote.path().join("fleet.git")
    }

    /// Replaces a text in a file of the tree.
    pub(super) fn edit(&self, name: &str, from: &str, to: &str) {
        let file = self.tree.path().join(name);
        let text = fs::read_to_string(&file).expect("a file");
        assert!(text.contains(from), "{text}");
        fs::write(file, text.replace(from, to)).expect("written");
    }

    pub(super) fn push(&self) {
        git(self.tree.path(), &["add", "-A"]);
        git(self.tree.path(), &["commit", "-q", "--allow-empty", "-m", "more"]);
        git(self.tree.path(), &["push", "-q", "origin", "main"]);
    }

    /// Commits a Deployment of `replicas` pods. Each pod fills a node.
    pub(super) fn commit(&self, replicas: u32) {
        let apps = deployment("api", replicas, "pool", "general").to_string();
        fs::write(self.tree.path().join("apps.yaml"), apps).expect("written");
        self.push();
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fleetwright(self.tree.path(), &self.sandbox.kubeconfig, &self.aws.url);
        command.args(arguments).env("XDG_CACHE_HOME", self.remote.path().join("cache"));
        if let Some(sqs) = &self.sqs {
            command.env("AWS_ENDPOINT_URL_SQS", sqs);
        }
        command
    }

    /// Starts a controller replica.
    pub(super) fn start(&self, name: &str) -> ControllerProcess {
        let log = self.remote.path().join(format!("{name}.log"));
        let stderr = File::options().create(true).append(true).open(&log).expect("a file");
        let url = format!("file://{}", self.bare().display());
        let run = ["run", &url, "--ref", "main", "--world", "live", "--listen", "127.0.0.1:0"];
        let process = self
            .command(&run)
            .env("POD_NAME", name)
            .env("XDG_CACHE_HOME", self.remote.path().join(name))
            .env(
                "FLEETWRIGHT_LOG",
                "warn,fleetwright::cli=info,fleetwright::controller::runtime=info",
            )
            .stderr(stderr)
            .stdout(Stdio::null())
            .spawn()
            .expect("the program");
        ControllerProcess { process, log }
    }

    /// Must be called within a Tokio runtime.
    pub(super) fn client(&self) -> Client {
        let config = kube::Config::new(self.sandbox.url().parse().expect("a URL"));
        Client::try_from(config).expect("a client")
    }

    /// Returns the names of Ready nodes that are schedulable.
    pub(super) async fn nodes(&self) -> BTreeSet<String> {
        let found = get(&self.client(), "/api/v1/nodes").await;
        let all = found["items"].as_array().expect("a list").iter();
        let schedulable = |node: &&Json| node["spec"]["unschedulable"] != true && is_ready(node);
        let name = |node: &Json| node["metadata"]["name"].as_str().expect("a name").to_owned();
        all.filter(schedulable).map(name).collect()
    }

    /// Returns the node name of each running pod of the tree.
    pub(super) async fn nodes_of_running_pods(&self) -> Vec<String> {
        let found = get(&self.client(), "/api/v1/namespaces/default/pods").await;
        let pods = found["items"].as_array().expect("a list").iter();
        let running = pods.filter(|pod| pod["status"]["phase"] == "Running");
        running.filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect()
    }

    /// Waits until `count` nodes are Ready and schedulable. Returns their names.
    pub(super) async fn wait_for_nodes(
        &self,
        count: usize,
        replica: &ControllerProcess,
    ) -> BTreeSet<String> {
        self.wait_for_nodes_within(TIMEOUT, count, replica).await
    }

    /// Waits for at most `timeout` until `count` nodes are Ready and schedulable. Returns their
    /// names.
    pub(super) async fn wait_for_nodes_within(
        &self,
        timeout: Duration,
        count: usize,
        replica: &ControllerProcess,
    ) -> BTreeSet<String> {
        let started = Instant::now();
        loop {
            let nodes = self.nodes().await;
            if nodes.len() == count {
                return nodes;
            }
            assert!(started.elapsed() < timeout, "{count}, not {nodes:?}\n{}", replica.read_log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the ids of active instances, by the change that launched them.
    pub(super) async fn instances(&self) -> BTreeMap<String, Vec<String>> {
        let ec2 = aws_sdk_ec2::Client::new(&account(self.sandbox.url()));
        let found = ec2.describe_instances().send().await.expect("a list");
        let found = found.reservations.unwrap_or_default().into_iter();
        let mut by_change: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for instance in found.flat_map(|r| r.instances.unwrap_or_default()) {
            let state = instance.state().and_then(|s| s.name()).map(|s| s.as_str().to_owned());
            if !["pending", "running"].map(str::to_owned).contains(&state.unwrap_or_default()) {
                continue;
            }
            let change = instance.tags().iter().find(|t| t.key() == Some("fleetwright.dev/change"));
            let change = change.and_then(|tag| tag.value()).unwrap_or_default().to_owned();
            let id = instance.instance_id().unwrap_or_default().to_owned();
            by_change.entry(change).or_default().push(id);
        }
        by_change
    }

    /// Returns the names of the arrived AWS calls that launch or terminate instances, in order.
    pub(super) fn effects(&self) -> Vec<String> {
        let rows = self.aws.calls().into_iter().filter(|row| row.arrived);
        let names = rows.map(|row| row.call.name());
        names.filter(|name| name == "CreateFleet" || name == "TerminateInstances").collect()
    }
}

fn is_ready(node: &Json) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

pub(super) fn git(directory: &Path, arguments: &[&str]) {
    let output = Command::new("git")
        .args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("git");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A running controller replica.
pub(super) struct ControllerProcess {
    process: Child,
    log: PathBuf,
}

impl ControllerProcess {
    pub(super) fn read_log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains `part`.
    pub(super) async fn wait_for_log(&self, part: &str) {
        let started = Instant::now();
        while !self.read_log().contains(part) {
            assert!(started.elapsed() < TIMEOUT, "never {part}:\n{}", self.read_log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops the replica by SIGTERM, as Kubernetes does. Its exit code must be 0. Returns its log.
    pub(super) fn end(mut self) -> String {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        let status = self.process.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", self.read_log());
        self.read_log()
    }

    /// Kills the replica.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // The process has exited already if the test passes.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the AWS configuration for the endpoint `url`.
pub(super) fn account(url: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(url)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}
