//! The loop over the wire: `fleetwright run --world live` against the world that `fleetwright sandbox`
//! serves, a repository on disk, and moto's SQS.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_sqs::types::QueueAttributeName;
use kube::Client;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::cluster::{post, runtime};
use super::journey::deployment;
use super::kubelets::get;
use super::moto::Moto;
use super::proxy::{Fault, Proxy};
use crate::sandbox::Sandbox;

/// Longest wait for anything but the end of a lease.
const PATIENCE: Duration = Duration::from_mins(2);

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

const POOLS: &str = "\
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

/// A tree and its repository, and the world that the sandbox plays.
struct Scene {
    sandbox: Sandbox,
    /// In front of the account.
    aws: Proxy,
    tree: TempDir,
    remote: TempDir,
    moto: Option<Moto>,
}

impl Scene {
    fn set(by: &str, moto: Option<Moto>) -> Self {
        let (tree, remote) = (tempfile::tempdir(), tempfile::tempdir());
        let (tree, remote) = (tree.expect("a directory"), remote.expect("a directory"));
        let write = |name: &str, text: &str| fs::write(tree.path().join(name), text);
        let fleet = FLEET.replace("BY", by);
        let fleet = if moto.is_some() { fleet } else { fleet.replace("    queue: prod\n", "") };
        write("fleetwright.yaml", &fleet).expect("written");
        write("pools.yaml", POOLS).expect("written");
        write("apps.yaml", &deployment("api", 0, ("pool", "general")).to_string())
            .expect("written");
        git(tree.path(), &["init", "-q", "-b", "main"]);
        let bare = remote.path().join("fleet.git");
        let bare_path = bare.to_str().expect("UTF-8");
        git(remote.path(), &["init", "-q", "--bare", "-b", "main", bare_path]);
        git(tree.path(), &["remote", "add", "origin", bare_path]);
        let sandbox = Sandbox::start(tree.path());
        let aws = Proxy::start(sandbox.url());
        let scene = Self { sandbox, aws, tree, remote, moto };
        scene.push();
        scene
    }

    fn bare(&self) -> PathBuf {
        self.remote.path().join("fleet.git")
    }

    fn push(&self) {
        git(self.tree.path(), &["add", "-A"]);
        git(self.tree.path(), &["commit", "-q", "-m", "more"]);
        git(self.tree.path(), &["push", "-q", "origin", "main"]);
    }

    /// Commits so many pods, each of which fills a node.
    fn commit(&self, replicas: u32) {
        let apps = deployment("api", replicas, ("pool", "general")).to_string();
        fs::write(self.tree.path().join("apps.yaml"), apps).expect("written");
        self.push();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
        command
            .args(arguments)
            .current_dir(self.tree.path())
            .env("KUBECONFIG", &self.sandbox.kubeconfig)
            .env("AWS_ENDPOINT_URL", &self.aws.url)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        if let Some(moto) = &self.moto {
            command.env("AWS_ENDPOINT_URL_SQS", moto.url());
        }
        command
    }

    /// Starts a replica.
    fn start(&self, name: &str) -> Loop {
        let log = self.remote.path().join(format!("{name}.log"));
        let said = File::options().create(true).append(true).open(&log).expect("a file");
        let url = format!("file://{}", self.bare().display());
        let run = ["run", &url, "--ref", "main", "--world", "live", "--listen", "127.0.0.1:0"];
        let process = self
            .command(&run)
            .env("POD_NAME", name)
            .env("XDG_CACHE_HOME", self.remote.path().join(name))
            .env("FLEETWRIGHT_LOG", "warn,fleetwright::cli=info")
            .stderr(said)
            .stdout(Stdio::null())
            .spawn()
            .expect("the program");
        Loop { process, log }
    }

    /// Must be called where a runtime goes on.
    fn client(&self) -> Client {
        let config = kube::Config::new(self.sandbox.url().parse().expect("a URL"));
        Client::try_from(config).expect("a client")
    }

    /// Returns the nodes that are Ready and take pods.
    async fn nodes(&self) -> BTreeSet<String> {
        let found = get(&self.client(), "/api/v1/nodes").await;
        let all = found["items"].as_array().expect("a list").iter();
        let open = |node: &&Json| node["spec"]["unschedulable"] != true && is_ready(node);
        let name = |node: &Json| node["metadata"]["name"].as_str().expect("a name").to_owned();
        all.filter(open).map(name).collect()
    }

    /// Waits until so many nodes are there, and returns them.
    async fn until(&self, count: usize, replica: &Loop) -> BTreeSet<String> {
        let begun = Instant::now();
        loop {
            let nodes = self.nodes().await;
            if nodes.len() == count {
                return nodes;
            }
            assert!(begun.elapsed() < PATIENCE, "{count}, not {nodes:?}\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the ids of instances that run, by the change that launched them.
    async fn instances(&self) -> BTreeMap<String, Vec<String>> {
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

    /// Returns the actions of AWS that were asked for and change machines, in order.
    fn effects(&self) -> Vec<String> {
        let rows = self.aws.ledger().into_iter().filter(|row| row.arrived);
        let names = rows.map(|row| row.call.name());
        names.filter(|name| name == "CreateFleet" || name == "TerminateInstances").collect()
    }
}

fn is_ready(node: &Json) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn git(directory: &Path, arguments: &[&str]) {
    let ran = Command::new("git")
        .args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("git");
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A replica that runs.
struct Loop {
    process: Child,
    log: PathBuf,
}

impl Loop {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said something.
    async fn says(&self, part: &str) {
        let begun = Instant::now();
        while !self.said().contains(part) {
            assert!(begun.elapsed() < PATIENCE, "never {part}:\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it as Kubernetes does, which must go well.
    fn end(mut self) -> String {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        let ended = self.process.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "{}", self.said());
        self.said()
    }

    /// Ends it in the middle of whatever it does.
    fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns how the account is reached at `url`.
fn account(url: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(url)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

#[test]
fn a_commit_becomes_nodes_one_that_needs_none_has_them_go_and_no_repository_removes_nothing() {
    let scene = Scene::set("controller", None);
    runtime().block_on(async {
        let replica = scene.start("a");
        scene.commit(3);
        scene.until(3, &replica).await;
        scene.commit(0);
        scene.until(0, &replica).await;
        scene.commit(2);
        let nodes = scene.until(2, &replica).await;
        // What cannot be read asks for nothing, and takes nothing away.
        fs::rename(scene.bare(), scene.remote.path().join("away")).expect("renamed");
        replica.says("the repository cannot be read; nothing is removed because of that").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.nodes().await, nodes, "{}", replica.said());
        fs::rename(scene.remote.path().join("away"), scene.bare()).expect("renamed");
        scene.commit(3);
        let more = scene.until(3, &replica).await;
        assert!(more.is_superset(&nodes));
        let said = replica.end();
        assert!(!said.contains("ERROR") && !said.contains("secret"), "{said}");
        // What was given back is free at once.
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fleetwright-apply";
        let lease = get(&scene.client(), lease).await;
        assert_eq!(lease["spec"]["holderIdentity"], "");
    });
    scene.sandbox.end();
}

#[test]
fn a_machine_that_is_taken_back_is_replaced_first_and_its_message_taken_off_the_queue() {
    let Some(moto) = Moto::start() else { return };
    let scene = Scene::set("controller", Some(moto));
    runtime().block_on(async {
        let url = scene.moto.as_ref().expect("it runs").url().to_owned();
        let sqs = aws_sdk_sqs::Client::new(&account(&url));
        let queue = sqs.create_queue().queue_name("prod").send().await.expect("a queue");
        let queue = queue.queue_url.expect("a URL");
        let replica = scene.start("a");
        scene.commit(2);
        let before = scene.until(2, &replica).await;
        let done = scene.effects().len();
        let instance = scene.instances().await.into_values().flatten().next().expect("one");
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let warning = json!({
            "version": "0", "source": "aws.ec2", "time": now,
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "detail": { "instance-id": instance, "instance-action": "terminate" }
        });
        let stranger = r#"{"detail-type":"EC2 Instance State-change Notification","source":"aws.ec2",
            "detail":{"instance-id":"i-0123456789abcdef0","state":"terminated"}}"#;
        for body in [warning.to_string().as_str(), "no event at all", stranger] {
            let send = sqs.send_message().queue_url(&queue).message_body(body);
            send.send().await.expect("sent");
        }
        replica.says(&format!("{instance} goes (spot-interruption)")).await;
        let begun = Instant::now();
        loop {
            let left = scene.instances().await.into_values().flatten().any(|id| id == instance);
            if !left {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "it stays\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let after = scene.until(2, &replica).await;
        assert_eq!(after.intersection(&before).count(), 1);
        // Until it is seen to be gone it is told again.
        let mut effects = scene.effects().split_off(done);
        effects.dedup();
        assert_eq!(effects, ["CreateFleet", "TerminateInstances"]);
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ];
        let look = sqs.get_queue_attributes().queue_url(&queue);
        let look = look.set_attribute_names(Some(names.into()));
        let found = look.send().await.expect("attributes").attributes.expect("some");
        assert!(found.values().all(|count| count == "0"), "{found:?}");
        let events = get(&scene.client(), "/api/v1/namespaces/default/events").await;
        assert!(events.to_string().contains("spot-interruption"), "{events}");
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn a_loop_that_is_killed_again_and_again_converges_and_launches_nothing_twice() {
    let scene = Scene::set("controller", None);
    runtime().block_on(async {
        // Moments that differ, and are the same in every run.
        let mut moment: u64 = 7;
        for replicas in [3, 6, 2, 5, 1, 4] {
            scene.commit(replicas);
            let replica = scene.start("a");
            moment = (moment * 1_103_515_245 + 12_345) % 2_147_483_648;
            tokio::time::sleep(Duration::from_millis(700 + moment % 2_500)).await;
            replica.kill();
        }
        let replica = scene.start("a");
        scene.until(4, &replica).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let instances = scene.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        assert_eq!(instances.len(), 4, "{instances:?}\n{}", replica.said());
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn of_two_replicas_one_leads_and_the_other_takes_over_when_it_ends_or_dies() {
    let scene = Scene::set("controller", None);
    runtime().block_on(async {
        let first = scene.start("a");
        first.says("the lease is held").await;
        let second = scene.start("b");
        scene.commit(1);
        scene.until(1, &first).await;
        assert!(!second.said().contains("the lease is held"), "{}", second.said());
        first.end();
        second.says("the lease is held").await;
        scene.commit(2);
        scene.until(2, &second).await;
        // One that dies holds the lease until that runs out, after a minute; this test takes as long.
        let third = scene.start("c");
        tokio::time::sleep(Duration::from_secs(3)).await;
        second.kill();
        scene.commit(3);
        let begun = Instant::now();
        while !third.said().contains("the lease is held") {
            assert_eq!(scene.nodes().await.len(), 2, "nobody leads");
            assert!(begun.elapsed() < PATIENCE * 2, "{}", third.said());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(begun.elapsed() > Duration::from_secs(40), "nobody may take it sooner");
        scene.until(3, &third).await;
        let instances = scene.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        third.end();
    });
    scene.sandbox.end();
}

#[test]
fn an_apply_of_ci_is_given_the_lock_and_its_receipt_has_the_loop_serve_the_commit() {
    let scene = Scene::set("ci", None);
    runtime().block_on(async {
        let replica = scene.start("a");
        replica.says("nothing to change").await;
        scene.commit(2);
        replica.says("until CI has applied it").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(scene.effects(), [""; 0], "what was merged is CI's\n{}", replica.said());
        for arguments in [
            &["plan", "--world", "live", "--out", "plan.json"][..],
            &["apply", "plan.json", "--auto-approve"],
        ] {
            let ran = scene.command(arguments).output().expect("the program");
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(0), "{arguments:?}: {said}\n{}", replica.said());
        }
        assert_eq!(scene.effects(), ["CreateFleet"; 2]);
        let mut head = Command::new("git");
        head.args(["rev-parse", "main"]).current_dir(scene.tree.path());
        let head = head.output().expect("git").stdout;
        let head = String::from_utf8_lossy(&head).chars().take(12).collect::<String>();
        replica.says(&format!("serving commit {head}")).await;
        scene.until(2, &replica).await;
        assert_eq!(scene.effects(), ["CreateFleet"; 2], "and nothing is left to do");
        replica.end();
    });
    scene.sandbox.end();
}

/// Returns how large a test is to be: `FLEETWRIGHT_BURSTS=200` measures what the README tells.
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Says what was measured, for whoever runs it by hand.
fn measured(what: &str) {
    use std::io::Write as _;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "measured: {what}");
}

#[test]
fn a_burst_of_pods_has_its_launch_call_within_a_fraction_of_a_second() {
    let bursts = size("FLEETWRIGHT_BURSTS", 5);
    let scene = Scene::set("controller", None);
    let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen = Arc::clone(&calls);
    scene.aws.judge(move |call| {
        if call.name() == "CreateFleet" {
            seen.lock().expect("held").push(Instant::now());
        }
        Fault::None
    });
    runtime().block_on(async {
        let replica = scene.start("a");
        replica.says("nothing to change").await;
        let client = scene.client();
        let mut waits = Vec::new();
        for burst in 0..bursts {
            let begun = Instant::now();
            let before = calls.lock().expect("held").len();
            for n in 0..3 {
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": { "name": format!("p-{burst}-{n}"), "namespace": "default" },
                    "spec": { "nodeSelector": { "pool": "general" }, "containers": [{
                        "name": "main", "image": "main:1",
                        "resources": { "requests": { "cpu": "500m", "memory": "64Mi" } }
                    }] }
                });
                post(&client, "/api/v1/namespaces/default/pods", &pod).await;
            }
            let last = Instant::now();
            while calls.lock().expect("held").len() == before {
                assert!(last.elapsed() < PATIENCE, "{}", replica.said());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let called = calls.lock().expect("held")[before];
            waits.push(called.saturating_duration_since(last).as_millis());
            // As fast as the budget for launches fills again.
            let rest = Duration::from_millis(700).saturating_sub(begun.elapsed());
            tokio::time::sleep(rest).await;
        }
        waits.sort_unstable();
        let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
        measured(&format!(
            "last pod of a burst to CreateFleet over {bursts} bursts: p50 {} ms, p99 {} ms, most {} ms",
            at(50),
            at(99),
            at(100)
        ));
        assert!(at(50) < 2_000, "{waits:?}");
        let made = calls.lock().expect("held").len();
        assert!(made >= bursts && made <= bursts + bursts / 10 + 1, "{made} calls");
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn a_flood_of_messages_about_strangers_is_taken_off_the_queue_to_the_last() {
    let Some(moto) = Moto::start() else { return };
    let messages = size("FLEETWRIGHT_MESSAGES", 200);
    let scene = Scene::set("controller", Some(moto));
    runtime().block_on(async {
        let url = scene.moto.as_ref().expect("it runs").url().to_owned();
        let sqs = aws_sdk_sqs::Client::new(&account(&url));
        let queue = sqs.create_queue().queue_name("prod").send().await.expect("a queue");
        let queue = queue.queue_url.expect("a URL");
        let all: Vec<usize> = (0..messages).collect();
        for bundle in all.chunks(10) {
            let entries = bundle.iter().map(|n| {
                let body = json!({
                    "source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification",
                    "detail": { "instance-id": format!("i-{n:017x}"), "state": "terminated" }
                });
                let entry = aws_sdk_sqs::types::SendMessageBatchRequestEntry::builder();
                entry.id(n.to_string()).message_body(body.to_string()).build().expect("whole")
            });
            let send = sqs.send_message_batch().queue_url(&queue);
            send.set_entries(Some(entries.collect())).send().await.expect("sent");
        }
        let replica = scene.start("a");
        replica.says("the lease is held").await;
        let begun = Instant::now();
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ];
        loop {
            let look = sqs.get_queue_attributes().queue_url(&queue);
            let look = look.set_attribute_names(Some(names.clone().into()));
            let found = look.send().await.expect("attributes").attributes.expect("some");
            if found.values().all(|count| count == "0") {
                break;
            }
            let patience =
                PATIENCE + Duration::from_millis(20) * u32::try_from(messages).expect("few");
            assert!(begun.elapsed() < patience, "{found:?} are left\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        measured(&format!("{messages} messages off the queue in {:?}", begun.elapsed()));
        assert_eq!(scene.effects(), [""; 0], "strangers are left alone");
        replica.end();
    });
    scene.sandbox.end();
}
