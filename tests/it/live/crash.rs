//! Whoever applies may die at any moment: before a call is made, or after it was made and before its
//! answer came. Running the same plan again finishes it, and nothing is there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_ec2::types::{Filter, InstanceType};
use fleetwright::adapters::aws::{Aws, LaunchContext};
use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::Clock;
use fleetwright::apply::{
    ApplySettings, ApplyStatus, Bounds, Ports, Receipt, Replan, Replanned, apply,
};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::observed::Observed;
use fleetwright::plan::{PinnedPlan, Plan, read_plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};

use super::cluster::{post, runtime};
use super::control_plane::ControlPlane;
use super::end_to_end::{LiveEnvironment, deployment, nodes};
use super::moto::Moto;
use super::proxy::{Call, Fault, Proxy};

/// Plans again what was approved: what is tried here is what an apply leaves when it dies.
#[derive(Debug)]
pub(super) struct ApprovedReplanner;

impl Replan for ApprovedReplanner {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        Box::pin(std::future::ready(PinnedPlan::as_approved(plan.clone())))
    }
}

/// More runs than two for each effect.
const RUNS_MAX: usize = 100;

pub(super) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, duration: SignedDuration) {
        tokio::time::sleep(duration.unsigned_abs()).await;
    }
}

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

/// A cluster and an account behind proxies, with a plan that replaces three instances under a budget.
pub(super) struct CrashFixture {
    pub(super) world: LiveEnvironment,
    pub(super) api: Proxy,
    pub(super) plan: Plan,
    desired: Desired,
    /// Machines that are none of ours.
    foreign: BTreeSet<String>,
}

fn api() -> Vec<Json> {
    vec![deployment("api", 3, ("pool", "general"))]
}

impl CrashFixture {
    pub(super) async fn set(moto: Moto, mut plane: ControlPlane) -> Self {
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
        // Another type: each of the three instances has to give way to one of it.
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

    /// Applies the plan; `None` where the process died in between.
    pub(super) async fn run(&mut self, bounds: Bounds) -> Option<Receipt> {
        let cloud = Aws::from_config(&self.world.account(), "prod");
        let joining = cloud.cluster_bootstrap().await.expect("how to join");
        let machines =
            LaunchContext::new(&self.desired, joining.endpoint, &joining.kubernetes_version);
        let cloud = cloud.with_launch_context(machines);
        let config = kube::Config::new(self.api.url.parse().expect("a URL"));
        let cluster = Kubernetes::from_config(config).expect("a client");
        let here = self.plan.capacity.base.world.cluster.clone();
        let settings = ApplySettings { bounds, ..ApplySettings::new(here, &ApprovedReplanner) };
        let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &SystemClock };
        let mut said = Vec::new();
        let mut report = |event: &fleetwright::apply::Event| said.push(format!("{event:?}"));
        let aws = self.world.aws.clone();
        tokio::select! {
            biased;
            () = self.api.death() => None,
            () = aws.death() => None,
            receipt = Box::pin(apply(&self.plan, &ports, &settings, &mut report)) => {
                Some(receipt.unwrap_or_else(|error| panic!("{error}\n{}", said.join("\n"))))
            }
            () = self.world.kubelets.run() => unreachable!("kubelets never end by themselves"),
        }
    }

    /// Returns what runs for the plan, by change.
    async fn launched(&self) -> BTreeMap<String, usize> {
        let mut by_change = BTreeMap::new();
        for machine in machines(&self.world).await {
            if machine.instance_type() == Some(&InstanceType::M5aLarge) && is_running(&machine) {
                let tags = machine.tags().iter();
                let mut of_change = tags.filter(|tag| tag.key() == Some("fleetwright.dev/change"));
                let change = of_change.next().and_then(|tag| tag.value()).expect("a change");
                *by_change.entry(change.to_owned()).or_default() += 1;
            }
        }
        by_change
    }

    /// Checks that every instance is there once, that none of others' was touched, and that no pod
    /// went otherwise than by eviction.
    pub(super) async fn check(&mut self) {
        let launched = self.launched().await;
        assert_eq!(launched.values().collect::<Vec<_>>(), [&1, &1, &1], "{launched:?}");
        let running: BTreeSet<String> = machines(&self.world)
            .await
            .iter()
            .filter(|machine| is_running(machine))
            .filter_map(|machine| machine.instance_id().map(str::to_owned))
            .collect();
        assert!(running.is_superset(&self.foreign), "others' machines run on");
        // Three new ones, the member of the group, and what is none of ours.
        assert_eq!(running.len(), 3 + 1 + self.foreign.len());
        for row in self.api.ledger() {
            let Call { method, path, .. } = &row.call;
            assert!(method != "DELETE" || !path.contains("/pods/"), "{path}");
        }
        for row in self.world.aws.ledger().into_iter().filter(|row| row.arrived) {
            let id = row.call.form.get("InstanceId.1");
            assert!(id.is_none_or(|id| !self.foreign.contains(id)), "{:?}", row.call);
        }
        self.world.deliver(&api()).await;
        self.world.expect(0, &["plan", "--detailed-exitcode"]).await;
        assert_eq!(nodes(&self.world).len(), 4);
    }
}

/// What the tree says: the workload, and its budget.
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

fn is_running(machine: &aws_sdk_ec2::types::Instance) -> bool {
    let state = machine.state().and_then(|state| state.name());
    state.is_some_and(|state| state.as_str() == "running")
}

pub(super) async fn machines(world: &LiveEnvironment) -> Vec<aws_sdk_ec2::types::Instance> {
    let ec2 = aws_sdk_ec2::Client::new(&world.moto.account());
    let all = Filter::builder().name("architecture").values("x86_64").build();
    let found = ec2.describe_instances().filters(all).send().await.expect("machines");
    let found = found.reservations.unwrap_or_default().into_iter();
    found.flat_map(|reservation| reservation.instances.unwrap_or_default()).collect()
}

/// Returns how many instances of a type run.
pub(super) async fn runs(world: &LiveEnvironment, kind: &str) -> usize {
    let machines = machines(world).await;
    let of_type = |machine: &&aws_sdk_ec2::types::Instance| {
        machine.instance_type().is_some_and(|found| found.as_str() == kind) && is_running(machine)
    };
    machines.iter().filter(of_type).count()
}

/// Launches an instance of nobody, and one of another cluster.
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
        let made = call.send().await.expect("a machine");
        foreign.extend(made.instances().iter().filter_map(|i| i.instance_id().map(str::to_owned)));
    }
    foreign
}

/// Returns what tells one effect from another: a launch by its token, others by what they are about.
fn key(call: &Call) -> String {
    let about = ["LaunchTemplateName", "ClientToken", "InstanceId.1"];
    let about = about.iter().find_map(|field| call.form.get(*field));
    format!("{} {}", call.name(), about.map_or("", String::as_str))
}

#[test]
fn crash_around_each_effect_neither_duplicates_nor_leaks() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_whole(), Moto::start()) else { return };
    runtime().block_on(async {
        let mut scene = Box::pin(CrashFixture::set(moto, plane)).await;
        // Each effect is met three times: the process dies before it, then after it, then lives.
        let met: Arc<Mutex<BTreeMap<String, u8>>> = Arc::default();
        for proxy in [scene.api.clone(), scene.world.aws.clone()] {
            let met = Arc::clone(&met);
            proxy.judge(move |call| {
                if !call.is_effect() {
                    return Fault::None;
                }
                let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
                let times = met.entry(key(call)).or_default();
                *times += 1;
                match times {
                    1 => Fault::DieBefore,
                    2 => Fault::DieAfter,
                    _ => Fault::None,
                }
            });
        }
        let mut deaths = 0;
        let receipt = loop {
            assert!(deaths < RUNS_MAX, "no end in sight: {met:#?}");
            match scene.run(bounds()).await {
                None => deaths += 1,
                Some(receipt) => break receipt,
            }
        };
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        // A template, three launches, three cordons, evictions, terminations and nodes.
        let effects = met.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(effects >= 15, "{met:?}");
        assert!(deaths >= effects, "{deaths} deaths at {effects} effects");
        let launched = machines(&scene.world).await;
        let of_type =
            launched.iter().filter(|m| m.instance_type() == Some(&InstanceType::M5aLarge));
        assert_eq!(of_type.count(), 3, "whatever became of it, no machine was launched twice");
        scene.check().await;
    });
}
