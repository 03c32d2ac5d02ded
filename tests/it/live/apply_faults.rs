//! Faults over the wire against the world that `fleetwright sandbox` serves: a reclaim in the middle,
//! a clock that is off, two applies at the same time, a lock that is lost, a list that expires.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_ec2::types::Filter;
use fleetwright::adapters::aws::{Aws, LaunchContext};
use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::{Clock, Cluster};
use fleetwright::apply::{ApplyError, ApplySettings, ApplyStatus, Bounds, Ports, Receipt, apply};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::plan::{Plan, read_plan};
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use super::cluster::runtime;
use super::crash::ApprovedReplanner;
use super::proxy::{Fault, Proxy};
use crate::sandbox::{Sandbox, quickstart};

/// Longest wait for what happens by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sandbox behind proxies, with a plan that was not carried out yet.
pub(super) struct ApplyFixture {
    pub(super) sandbox: Sandbox,
    pub(super) aws: Proxy,
    pub(super) api: Proxy,
    tree: TempDir,
    cache: TempDir,
    pub(super) plan: Plan,
    /// Instances that earlier plans launched.
    before: BTreeSet<String>,
}

/// A clock that is off by so much.
struct ClockOffset(SignedDuration);

impl Clock for ClockOffset {
    fn now(&self) -> Timestamp {
        Timestamp::now() + self.0
    }

    async fn sleep(&self, duration: SignedDuration) {
        tokio::time::sleep(duration.unsigned_abs()).await;
    }
}

pub(super) fn bounds() -> Bounds {
    let half = SignedDuration::from_secs(30);
    let poll = SignedDuration::from_millis(100);
    Bounds { poll, ready: half, replicas: half, drain: half, detach: half, gone: half, tries: 5 }
}

impl ApplyFixture {
    pub(super) fn set() -> Self {
        Self::planned(&[])
    }

    /// Sets one whose plan is made with these arguments as well.
    pub(super) fn planned(more: &[&str]) -> Self {
        let tree = quickstart();
        let sandbox = Sandbox::start(tree.path());
        let (aws, api) = (Proxy::start(sandbox.url()), Proxy::start(sandbox.url()));
        let config = fleetwright::simulator::sandbox::kubeconfig(&api.url);
        std::fs::write(tree.path().join("kubeconfig"), config).expect("written");
        let before = BTreeSet::new();
        let cache = tempfile::tempdir().expect("a directory");
        let mut scene = Self { sandbox, aws, api, tree, cache, plan: example(), before };
        let file = scene.path("plan.json");
        let plan = ["plan", "--world", "live", "--out", &file];
        let planned = scene.run(&[&plan[..], more].concat()).output();
        expect(0, &planned.expect("the program"));
        scene.plan = read_plan(&std::fs::read(&file).expect("a plan")).expect("a plan");
        assert!(scene.plan.summary.add > 0, "{:?}", scene.plan.summary);
        scene.before = runtime().block_on(scene.launched()).into_values().flatten().collect();
        scene
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.tree.path().join(name).display().to_string()
    }

    /// Returns the program, told where the proxies are.
    pub(super) fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
        command
            .args(arguments)
            .current_dir(self.tree.path())
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("AWS_ENDPOINT_URL", &self.aws.url)
            .env("AWS_ACCESS_KEY_ID", "sandbox")
            .env("AWS_SECRET_ACCESS_KEY", "sandbox")
            .env("XDG_CACHE_HOME", self.cache.path())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn account(&self) -> SdkConfig {
        let credentials = Credentials::new("sandbox", "sandbox", None, None, "sandbox");
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(&self.aws.url)
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build()
    }

    fn cluster(&self) -> Kubernetes {
        let config = kube::Config::new(self.api.url.parse().expect("a URL"));
        Kubernetes::from_config(config).expect("a client")
    }

    /// Applies the plan by a clock that is off.
    pub(super) async fn apply(&self, off: SignedDuration) -> Result<Receipt, ApplyError> {
        self.apply_within(off, bounds()).await
    }

    /// Applies it, and waits no longer than `bounds`.
    pub(super) async fn apply_within(
        &self,
        off: SignedDuration,
        bounds: Bounds,
    ) -> Result<Receipt, ApplyError> {
        let name = &self.plan.capacity.base.world.cluster.name;
        let cloud = Aws::from_config(&self.account(), name);
        let joining = cloud.cluster_bootstrap().await.expect("how to join");
        let machines =
            LaunchContext::new(&self.desired(), joining.endpoint, &joining.kubernetes_version);
        let (cloud, cluster) = (cloud.with_launch_context(machines), self.cluster());
        let here = self.plan.capacity.base.world.cluster.clone();
        let settings = ApplySettings { bounds, ..ApplySettings::new(here, &ApprovedReplanner) };
        let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &ClockOffset(off) };
        Box::pin(apply(&self.plan, &ports, &settings, &mut |_| {})).await
    }

    fn desired(&self) -> Desired {
        let files = std::fs::read_dir(self.tree.path().join("platform")).expect("a folder");
        let files = files.map(|file| {
            let path = file.expect("a file").path();
            let content = std::fs::read(&path).map(Into::into).map_err(|e| e.to_string());
            TreeFile { path: path.display().to_string().into(), content }
        });
        read(&Tree { files: files.collect() }, &Fleet::default())
    }

    /// Returns the ids of instances that the plan launched and that run, by change.
    pub(super) async fn launched(&self) -> BTreeMap<String, Vec<String>> {
        let ec2 = aws_sdk_ec2::Client::new(&self.account());
        let alive = ["pending", "running"].map(str::to_owned);
        let alive = Filter::builder().name("instance-state-name").set_values(Some(alive.into()));
        let found = ec2.describe_instances().filters(alive.build()).send().await.expect("a list");
        let mut by_change: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let found = found.reservations.unwrap_or_default().into_iter();
        for instance in found.flat_map(|r| r.instances.unwrap_or_default()) {
            let change = instance.tags().iter().find(|t| t.key() == Some("fleetwright.dev/change"));
            let Some(change) = change.and_then(|tag| tag.value()) else { continue };
            let id = instance.instance_id().unwrap_or_default().to_owned();
            if self.before.contains(&id) {
                continue;
            }
            by_change.entry(change.to_owned()).or_default().push(id);
        }
        by_change
    }

    /// Asserts that everything planned is there, once, and that nothing is left to do.
    pub(super) async fn check(self) {
        let launched = self.launched().await;
        let wanted = usize::try_from(self.plan.summary.add).expect("a count");
        assert!(launched.len() >= wanted, "{launched:?}");
        assert!(
            launched.values().all(|ids| ids.len() == 1),
            "nothing is there twice: {launched:?}"
        );
        let again = self.run(&["plan", "--world", "live", "--detailed-exitcode"]).output();
        expect(0, &again.expect("the program"));
        self.sandbox.end();
    }
}

/// Returns some plan, until the scene has its own.
fn example() -> Plan {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/plans/quickstart.json");
    read_plan(&std::fs::read(path).expect("a plan")).expect("a plan")
}

pub(super) fn expect(code: i32, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    err
}

#[test]
fn instance_reclaimed_during_boot_is_relaunched() {
    let scene = ApplyFixture::set();
    runtime().block_on(async {
        let reclaim = async {
            loop {
                let launched = scene.launched().await;
                if let Some(id) = launched.values().flatten().next() {
                    let ec2 = aws_sdk_ec2::Client::new(&scene.account());
                    ec2.terminate_instances().instance_ids(id).send().await.expect("reclaimed");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (receipt, ()) = tokio::join!(scene.apply(SignedDuration::ZERO), reclaim);
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let receipt = scene.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}

#[test]
fn clock_skew_neither_relaunches_nor_terminates() {
    // A plan that removes something holds for half an hour: by a clock that is ahead it has expired.
    let scene = ApplyFixture::set();
    runtime().block_on(async {
        let refused = scene.apply(SignedDuration::from_hours(1)).await;
        assert!(matches!(refused, Err(ApplyError::Expired { .. })), "{refused:?}");
        assert!(scene.launched().await.is_empty(), "nothing was written");
        let receipt = scene.apply(SignedDuration::from_hours(-1)).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}

#[test]
fn concurrent_apply_waits_for_the_lock() {
    let scene = ApplyFixture::set();
    let file = scene.path("plan.json");
    // The first one waits for EC2 until the second has ended.
    let (done, seen) = flag();
    let throttled = super::proxy::refusal_body("RequestLimitExceeded", "slow down");
    scene.aws.judge(move |call| {
        let waits = call.name() == "CreateFleet" && !seen.load(Ordering::SeqCst);
        if waits { Fault::Answer(503, throttled.clone()) } else { Fault::None }
    });
    let first = scene.run(&["apply", &file, "--auto-approve"]).spawn().expect("the program");
    let begun = Instant::now();
    let locks =
        |row: &super::proxy::LoggedCall| is_lease(&row.call.path) && row.call.method == "POST";
    while !scene.api.ledger().iter().any(locks) {
        assert!(begun.elapsed() < PATIENCE, "the first apply takes no lock");
        std::thread::sleep(Duration::from_millis(20));
    }
    let second = scene.run(&["apply", &file, "--auto-approve", "--lock-timeout", "0s"]).output();
    let said = expect(4, &second.expect("the program"));
    assert!(said.contains("is held by"), "{said}");
    done.store(true, Ordering::SeqCst);
    expect(0, &first.wait_with_output().expect("it ends"));
    runtime().block_on(scene.check());
}

/// Returns two ends of a flag that is not set.
fn flag() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    (Arc::clone(&flag), flag)
}

fn is_lease(path: &str) -> bool {
    path.contains("/leases")
}

#[test]
fn apply_stops_writing_after_lost_lock_and_next_finishes() {
    let scene = ApplyFixture::set();
    let file = scene.path("plan.json");
    // Until the lock is lost, and the apply has had time to learn of it, no instance is launched, as
    // EC2 wants to be asked less often.
    let throttled = super::proxy::refusal_body("RequestLimitExceeded", "slow down");
    let lost: Arc<OnceLock<Instant>> = Arc::default();
    let seen = Arc::clone(&lost);
    scene.aws.judge(move |call| {
        let is_known = seen.get().is_some_and(|at| at.elapsed() > Duration::from_secs(2));
        let waits = call.name() == "CreateFleet" && !is_known;
        if waits { Fault::Answer(503, throttled.clone()) } else { Fault::None }
    });
    let conflict = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "reason":"Conflict","message":"the object has been modified","code":409}"#;
    scene.api.judge(move |call| {
        if is_lease(&call.path) && call.method == "PUT" {
            lost.get_or_init(Instant::now);
            return Fault::Answer(409, conflict.to_owned());
        }
        Fault::None
    });
    let ended = scene.run(&["apply", &file, "--auto-approve"]).output().expect("the program");
    expect(7, &ended);
    let launches = scene.aws.ledger().into_iter().filter(|row| row.call.name() == "CreateFleet");
    assert!(launches.into_iter().all(|row| !row.arrived), "nothing is launched without the lock");
    runtime().block_on(async {
        assert!(scene.launched().await.is_empty());
        scene.api.judge(|_| Fault::None);
        scene.aws.judge(|_| Fault::None);
        let receipt = scene.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}

#[test]
fn expired_list_continuation_restarts_the_list() {
    let config = super::sandbox_api::fleet(3, 1200);
    let upstream = config.cluster_url.to_string();
    let api = Proxy::start(&upstream);
    let mut expired = false;
    api.judge(move |call| {
        if call.path.contains("/pods?") && call.path.contains("continue=") && !expired {
            expired = true;
            let gone = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
                "reason":"Expired","message":"too old","code":410}"#;
            return Fault::Answer(410, gone.to_owned());
        }
        Fault::None
    });
    let cluster = kube::Config::new(api.url.parse().expect("a URL"));
    let read = runtime().block_on(async {
        Kubernetes::from_config(cluster).expect("a client").objects().await.expect("read")
    });
    assert_eq!(read.pods.len(), 3 * 1200);
    let uids: std::collections::BTreeSet<_> = read.pods.iter().map(|pod| &pod.uid).collect();
    assert_eq!(uids.len(), read.pods.len(), "none twice");
}
