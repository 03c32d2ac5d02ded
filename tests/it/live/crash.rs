//! Tests of crashes during an apply: before each call, and after each call but before its response.
//! A second apply of the same plan finishes it without duplicates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_ec2::types::{Filter, InstanceType};
use fleetwright::adapters::aws::{Aws, LaunchContext};
use fleetwright::adapters::kube::Kubernetes;
use fleetwright::adapters::system_clock::SystemClock;
use fleetwright::apply::{
    ApplySettings, ApplyStatus, Bounds, Ports, Receipt, Replan, Replanned, apply,
};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::observed::Observed;
use fleetwright::plan::{Plan, RevalidatedPlan, read_plan};
use jiff::SignedDuration;
use serde_json::{Value as Json, json};

use super::cluster::{post, runtime};
use super::control_plane::ControlPlane;
use super::end_to_end::{LiveEnvironment, deployment, nodes};
use super::moto::Moto;
use super::proxy::{Call, Fault, Proxy};

/// Returns the approved plan as the new plan. These tests cover only crashes of an apply.
#[derive(Debug)]
pub(super) struct ApprovedReplanner;

impl Replan for ApprovedReplanner {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        Box::pin(std::future::ready(RevalidatedPlan::as_approved(plan.clone())))
    }
}

/// Maximum number of runs: more than two for each effect.
const MAX_RUNS: usize = 100;

pub(super) fn bounds() -> Bounds {
    let minute = SignedDuration::from_mins(1);
    Bounds {
        poll: SignedDuration::from_millis(200),
        ready: minute,
        replicas: minute,
        drain: minute,
        detach: minute,
        gone: minute,
        tries: 5,
    }
}

/// A cluster and an account behind proxies, with a plan that replaces three instances under a
/// disruption budget.
pub(super) struct CrashFixture {
    pub(super) world: LiveEnvironment,
    pub(super) api: Proxy,
    pub(super) plan: Plan,
    desired: Desired,
    /// Ids of instances that do not belong to the cluster.
    foreign: BTreeSet<String>,
}

fn api() -> Vec<Json> {
    vec![deployment("api", 3, "pool", "general")]
}

impl CrashFixture {
    pub(super) async fn new(moto: Moto, mut plane: ControlPlane) -> Self {
        let api = Proxy::start(&plane.plain_url());
        let mut world = LiveEnvironment::start(moto, plane).await;
        let foreign = launch_foreign(&world).await;
        world.commit(&committed());
        let plan = world.path("plan.json");
        world.expect(2, &["plan", "--out", &plan, "--detailed-exitcode"]).await;
        world.expect(0, &["apply", &plan, "--auto-approve"]).await;
        world.deliver(&self::api()).await;
        let budget = json!({
            "metadata": { "name": "api" },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "api" } } }
        });
        let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        post(&world.client, budgets, &budget).await;
        // Each of the three instances must be replaced by an instance of another type.
        world.edit_pools(|pools| pools.replace("[m5.large]", "[m5a.large]"));
        let shown = world.expect(2, &["plan", "--out", &plan, "--detailed-exitcode"]).await;
        assert!(shown.contains("3 to add, 0 to change, 3 to destroy"), "{shown}");
        let bytes = std::fs::read(&plan).expect("a plan");
        let plan = read_plan(&bytes).expect("a plan");
        let content = std::fs::read(world.path("pools.yaml")).map(Into::into);
        let file =
            TreeFile { path: "pools.yaml".into(), content: content.map_err(|e| e.to_string()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        Self { world, api, plan, desired, foreign }
    }

    /// Applies the plan. Returns `None` after a crash.
    pub(super) async fn run(&mut self, bounds: Bounds) -> Option<Receipt> {
        let cloud = Aws::from_config(&self.world.account(), "prod");
        let bootstrap = cloud.cluster_bootstrap().await.expect("bootstrap settings");
        let launch_context =
            LaunchContext::new(&self.desired, bootstrap.endpoint, &bootstrap.kubernetes_version);
        let cloud = cloud.with_launch_context(launch_context);
        let config = kube::Config::new(self.api.url.parse().expect("a URL"));
        let cluster = Kubernetes::from_config(config).expect("a client");
        let here = self.plan.capacity.base.world.cluster.clone();
        let settings = ApplySettings { bounds, ..ApplySettings::new(here, &ApprovedReplanner) };
        let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &SystemClock };
        let mut events = Vec::new();
        let mut report = |event: &fleetwright::apply::Event| events.push(format!("{event:?}"));
        let aws = self.world.aws.clone();
        tokio::select! {
            biased;
            () = self.api.wait_for_crash() => None,
            () = aws.wait_for_crash() => None,
            receipt = Box::pin(apply(&self.plan, &ports, &settings, &mut report)) => {
                Some(receipt.unwrap_or_else(|error| panic!("{error}\n{}", events.join("\n"))))
            }
            () = self.world.kubelets.run() => unreachable!("kubelets never end by themselves"),
        }
    }

    /// Returns the number of running instances of the plan, by change.
    async fn launched(&self) -> BTreeMap<String, usize> {
        let mut by_change = BTreeMap::new();
        for instance in instances(&self.world).await {
            if instance.instance_type() == Some(&InstanceType::M5aLarge) && is_running(&instance) {
                let tags = instance.tags().iter();
                let mut of_change = tags.filter(|tag| tag.key() == Some("fleetwright.dev/change"));
                let change = of_change.next().and_then(|tag| tag.value()).expect("a change");
                *by_change.entry(change.to_owned()).or_default() += 1;
            }
        }
        by_change
    }

    /// Checks that each instance exists once, that foreign instances are untouched, and that pods
    /// are removed only by eviction.
    pub(super) async fn check(&mut self) {
        let launched = self.launched().await;
        assert_eq!(launched.values().collect::<Vec<_>>(), [&1, &1, &1], "{launched:?}");
        let running: BTreeSet<String> = instances(&self.world)
            .await
            .iter()
            .filter(|instance| is_running(instance))
            .filter_map(|instance| instance.instance_id().map(str::to_owned))
            .collect();
        assert!(running.is_superset(&self.foreign), "foreign instances are still running");
        // Three new instances, the group member and the foreign instances.
        assert_eq!(running.len(), 3 + 1 + self.foreign.len());
        for row in self.api.calls() {
            let Call { method, path, .. } = &row.call;
            assert!(method != "DELETE" || !path.contains("/pods/"), "{path}");
        }
        for row in self.world.aws.calls().into_iter().filter(|row| row.arrived) {
            let id = row.call.form.get("InstanceId.1");
            assert!(id.is_none_or(|id| !self.foreign.contains(id)), "{:?}", row.call);
        }
        self.world.deliver(&api()).await;
        self.world.expect(0, &["plan", "--detailed-exitcode"]).await;
        assert_eq!(nodes(&self.world).len(), 4);
    }
}

/// Returns the objects in the tree: the workload and its disruption budget.
fn committed() -> Vec<Json> {
    let mut all = api();
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "api", "namespace": "default" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "api" } } }
    });
    all.push(budget);
    all
}

fn is_running(instance: &aws_sdk_ec2::types::Instance) -> bool {
    let state = instance.state().and_then(|state| state.name());
    state.is_some_and(|state| state.as_str() == "running")
}

pub(super) async fn instances(world: &LiveEnvironment) -> Vec<aws_sdk_ec2::types::Instance> {
    let ec2 = aws_sdk_ec2::Client::new(&world.moto.account());
    let all = Filter::builder().name("architecture").values("x86_64").build();
    let found = ec2.describe_instances().filters(all).send().await.expect("instances");
    let found = found.reservations.unwrap_or_default().into_iter();
    found.flat_map(|reservation| reservation.instances.unwrap_or_default()).collect()
}

/// Returns the number of running instances of a type.
pub(super) async fn running_count(world: &LiveEnvironment, kind: &str) -> usize {
    let instances = instances(world).await;
    let of_type = |instance: &&aws_sdk_ec2::types::Instance| {
        instance.instance_type().is_some_and(|found| found.as_str() == kind) && is_running(instance)
    };
    instances.iter().filter(of_type).count()
}

/// Launches an instance without tags, and an instance of another cluster.
async fn launch_foreign(world: &LiveEnvironment) -> BTreeSet<String> {
    use aws_sdk_ec2::types::{ResourceType, Tag, TagSpecification};
    let ec2 = aws_sdk_ec2::Client::new(&world.moto.account());
    let mut foreign = BTreeSet::new();
    for cluster in ["", "staging"] {
        let tags = [("fleetwright.dev/cluster", cluster), ("fleetwright.dev/pool", "general")];
        let tags = tags.map(|(key, value)| Tag::builder().key(key).value(value).build());
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::Instance)
            .set_tags((!cluster.is_empty()).then(|| tags.into()))
            .build();
        let call = ec2.run_instances().image_id(&world.image).instance_type(InstanceType::M5Large);
        let call = call.min_count(1).max_count(1);
        let call = if cluster.is_empty() { call } else { call.tag_specifications(tags) };
        let made = call.send().await.expect("an instance");
        foreign.extend(made.instances().iter().filter_map(|i| i.instance_id().map(str::to_owned)));
    }
    foreign
}

/// Returns a key of an effect: its action with its template, client token or instance.
fn effect_key(call: &Call) -> String {
    let subject = ["LaunchTemplateName", "ClientToken", "InstanceId.1"];
    let subject = subject.iter().find_map(|field| call.form.get(*field));
    format!("{} {}", call.name(), subject.map_or("", String::as_str))
}

#[test]
fn crash_around_each_effect_neither_duplicates_nor_leaks() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_with_controllers(), Moto::start()) else {
        return;
    };
    runtime().block_on(async {
        let mut fixture = Box::pin(CrashFixture::new(moto, plane)).await;
        // At its first attempt, each effect crashes before the call; at its second, after the call.
        // Its third attempt succeeds.
        let attempts: Arc<Mutex<BTreeMap<String, u8>>> = Arc::default();
        for proxy in [fixture.api.clone(), fixture.world.aws.clone()] {
            let attempts = Arc::clone(&attempts);
            proxy.set_fault_rule(move |call| {
                if !call.is_effect() {
                    return Fault::None;
                }
                let mut attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner);
                let times = attempts.entry(effect_key(call)).or_default();
                *times += 1;
                match times {
                    1 => Fault::CrashBefore,
                    2 => Fault::CrashAfter,
                    _ => Fault::None,
                }
            });
        }
        let mut crashes = 0;
        let receipt = loop {
            assert!(crashes < MAX_RUNS, "the apply does not finish: {attempts:#?}");
            match fixture.run(bounds()).await {
                None => crashes += 1,
                Some(receipt) => break receipt,
            }
        };
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        // One template, and three each of launches, cordons, evictions, terminations and node
        // deletions.
        let effects = attempts.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(effects >= 15, "{attempts:?}");
        assert!(crashes >= effects, "{crashes} crashes for {effects} effects");
        let launched = instances(&fixture.world).await;
        let of_type =
            launched.iter().filter(|m| m.instance_type() == Some(&InstanceType::M5aLarge));
        assert_eq!(of_type.count(), 3, "no instance was launched twice");
        fixture.check().await;
    });
}
