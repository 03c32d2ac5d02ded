//! Tests of faults during an apply to the world that `fleetwright sandbox` serves: a reclaimed
//! instance, clock skew, two concurrent applies, a lost lock, and an expired list.

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

/// Timeout for the effects of another process.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A sandbox behind proxies, and a plan that is not applied yet.
pub(super) struct ApplyFixture {
    pub(super) sandbox: Sandbox,
    pub(super) aws: Proxy,
    pub(super) api: Proxy,
    tree: TempDir,
    cache: TempDir,
    pub(super) plan: Plan,
    /// Ids of the instances that earlier plans launched.
    before: BTreeSet<String>,
}

/// A clock with a constant offset from the system clock.
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
    let half_minute = SignedDuration::from_secs(30);
    let poll = SignedDuration::from_millis(100);
    Bounds {
        poll,
        ready: half_minute,
        replicas: half_minute,
        drain: half_minute,
        detach: half_minute,
        gone: half_minute,
        tries: 5,
    }
}

impl ApplyFixture {
    pub(super) fn new() -> Self {
        Self::with_plan_arguments(&[])
    }

    /// Creates a fixture whose plan is made with additional arguments.
    pub(super) fn with_plan_arguments(more: &[&str]) -> Self {
        let tree = quickstart();
        // With the default, an unlikely order of evictions may leave one pod for the contingency,
        // and the last plan would not be empty.
        let settings = tree.path().join("fleetwright.yaml");
        let text = std::fs::read_to_string(&settings).expect("read");
        let text = text + "  placement: { worstCase: capacity }\n";
        std::fs::write(&settings, text).expect("written");
        let sandbox = Sandbox::start(tree.path());
        let (aws, api) = (Proxy::start(sandbox.url()), Proxy::start(sandbox.url()));
        let config = fleetwright::simulator::sandbox::kubeconfig(&api.url);
        std::fs::write(tree.path().join("kubeconfig"), config).expect("written");
        let before = BTreeSet::new();
        let cache = tempfile::tempdir().expect("a directory");
        let mut fixture = Self { sandbox, aws, api, tree, cache, plan: example(), before };
        let file = fixture.path("plan.json");
        let plan = ["plan", "--world", "live", "--out", &file];
        let planned = fixture.run(&[&plan[..], more].concat()).output();
        expect(0, &planned.expect("the program"));
        fixture.plan = read_plan(&std::fs::read(&file).expect("a plan")).expect("a plan");
        assert!(fixture.plan.summary.add > 0, "{:?}", fixture.plan.summary);
        fixture.before = runtime().block_on(fixture.launched()).into_values().flatten().collect();
        fixture
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.tree.path().join(name).display().to_string()
    }

    /// Returns a command of the program that connects to the proxies.
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

    /// Applies the plan with a clock offset.
    pub(super) async fn apply(&self, offset: SignedDuration) -> Result<Receipt, ApplyError> {
        self.apply_within(offset, bounds()).await
    }

    /// Applies the plan with a clock offset and these bounds.
    pub(super) async fn apply_within(
        &self,
        offset: SignedDuration,
        bounds: Bounds,
    ) -> Result<Receipt, ApplyError> {
        let name = &self.plan.capacity.base.world.cluster.name;
        let cloud = Aws::from_config(&self.account(), name);
        let bootstrap = cloud.cluster_bootstrap().await.expect("bootstrap settings");
        let launch_context =
            LaunchContext::new(&self.desired(), bootstrap.endpoint, &bootstrap.kubernetes_version);
        let (cloud, cluster) = (cloud.with_launch_context(launch_context), self.cluster());
        let here = self.plan.capacity.base.world.cluster.clone();
        let settings = ApplySettings { bounds, ..ApplySettings::new(here, &ApprovedReplanner) };
        let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &ClockOffset(offset) };
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

    /// Returns the ids of active instances that the plan launched, by change.
    pub(super) async fn launched(&self) -> BTreeMap<String, Vec<String>> {
        let ec2 = aws_sdk_ec2::Client::new(&self.account());
        let active = ["pending", "running"].map(str::to_owned);
        let active = Filter::builder().name("instance-state-name").set_values(Some(active.into()));
        let found = ec2.describe_instances().filters(active.build()).send().await.expect("a list");
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

    /// Asserts that each planned instance exists once and that a new plan is empty.
    pub(super) async fn check(self) {
        let launched = self.launched().await;
        let wanted = usize::try_from(self.plan.summary.add).expect("a count");
        assert!(launched.len() >= wanted, "{launched:?}");
        assert!(
            launched.values().all(|ids| ids.len() == 1),
            "each instance exists once: {launched:?}"
        );
        // On a busy computer, evicted pods may still be pending.
        let started = Instant::now();
        let replan = || {
            let replan = self.run(&["plan", "--world", "live", "--detailed-exitcode"]).output();
            replan.expect("the program")
        };
        let mut output = replan();
        while output.status.code() != Some(0) && started.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(250)).await;
            output = replan();
        }
        expect(0, &output);
        self.sandbox.end();
    }
}

/// Returns a placeholder plan.
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
    let fixture = ApplyFixture::new();
    runtime().block_on(async {
        let reclaim = async {
            loop {
                let launched = fixture.launched().await;
                if let Some(id) = launched.values().flatten().next() {
                    let ec2 = aws_sdk_ec2::Client::new(&fixture.account());
                    ec2.terminate_instances().instance_ids(id).send().await.expect("reclaimed");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (receipt, ()) = tokio::join!(fixture.apply(SignedDuration::ZERO), reclaim);
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let receipt = fixture.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}

#[test]
fn clock_skew_neither_relaunches_nor_terminates() {
    // A plan with removals is valid for 30 minutes. By the clock that is ahead, it has expired, and by
    // the clock that is behind, it is for a later time.
    let fixture = ApplyFixture::new();
    runtime().block_on(async {
        let refused = fixture.apply(SignedDuration::from_hours(1)).await;
        assert!(matches!(refused, Err(ApplyError::Expired { .. })), "{refused:?}");
        let refused = fixture.apply(SignedDuration::from_hours(-1)).await;
        assert!(matches!(refused, Err(ApplyError::Future { .. })), "{refused:?}");
        assert!(fixture.launched().await.is_empty(), "nothing was written");
        let receipt = fixture.apply(SignedDuration::from_mins(-1)).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}

#[test]
fn concurrent_apply_waits_for_the_lock() {
    let fixture = ApplyFixture::new();
    let file = fixture.path("plan.json");
    // EC2 throttles the first apply until the second one has ended.
    let (finished, seen) = flag();
    let throttled = super::proxy::refusal_body("RequestLimitExceeded", "slow down");
    fixture.aws.set_fault_rule(move |call| {
        let throttles = call.name() == "CreateFleet" && !seen.load(Ordering::SeqCst);
        if throttles { Fault::Answer(503, throttled.clone()) } else { Fault::None }
    });
    let first = fixture.run(&["apply", &file, "--auto-approve"]).spawn().expect("the program");
    let started = Instant::now();
    let takes_lock =
        |row: &super::proxy::LoggedCall| is_lease(&row.call.path) && row.call.method == "POST";
    while !fixture.api.calls().iter().any(takes_lock) {
        assert!(started.elapsed() < TIMEOUT, "the first apply takes no lock");
        std::thread::sleep(Duration::from_millis(20));
    }
    let second = fixture.run(&["apply", &file, "--auto-approve", "--lock-timeout", "0s"]).output();
    let stderr = expect(4, &second.expect("the program"));
    assert!(stderr.contains("is held by"), "{stderr}");
    finished.store(true, Ordering::SeqCst);
    expect(0, &first.wait_with_output().expect("it ends"));
    runtime().block_on(fixture.check());
}

/// Returns two handles of an unset flag.
fn flag() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    (Arc::clone(&flag), flag)
}

fn is_lease(path: &str) -> bool {
    path.contains("/leases")
}

#[test]
fn apply_stops_writing_after_lost_lock_and_next_finishes() {
    let fixture = ApplyFixture::new();
    let file = fixture.path("plan.json");
    // EC2 throttles launches until the lock is lost and the apply has had time to detect it.
    let throttled = super::proxy::refusal_body("RequestLimitExceeded", "slow down");
    let lost: Arc<OnceLock<Instant>> = Arc::default();
    let seen = Arc::clone(&lost);
    fixture.aws.set_fault_rule(move |call| {
        let is_detected = seen.get().is_some_and(|at| at.elapsed() > Duration::from_millis(300));
        let throttles = call.name() == "CreateFleet" && !is_detected;
        if throttles { Fault::Answer(503, throttled.clone()) } else { Fault::None }
    });
    let conflict = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "reason":"Conflict","message":"the object has been modified","code":409}"#;
    fixture.api.set_fault_rule(move |call| {
        if is_lease(&call.path) && call.method == "PUT" {
            lost.get_or_init(Instant::now);
            return Fault::Answer(409, conflict.to_owned());
        }
        Fault::None
    });
    let ended = fixture.run(&["apply", &file, "--auto-approve"]).output().expect("the program");
    expect(7, &ended);
    let launches = fixture.aws.calls().into_iter().filter(|row| row.call.name() == "CreateFleet");
    assert!(launches.into_iter().all(|row| !row.arrived), "nothing is launched without the lock");
    runtime().block_on(async {
        assert!(fixture.launched().await.is_empty());
        fixture.api.set_fault_rule(|_| Fault::None);
        fixture.aws.set_fault_rule(|_| Fault::None);
        let receipt = fixture.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}

#[test]
fn expired_list_continuation_restarts_the_list() {
    let config = super::sandbox_api::fleet(3, 1200);
    let upstream = config.cluster_url.to_string();
    let api = Proxy::start(&upstream);
    let mut expired = false;
    api.set_fault_rule(move |call| {
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
    assert_eq!(uids.len(), read.pods.len(), "each pod is listed once");
}
