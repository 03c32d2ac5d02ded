//! Small simulated worlds, and deliveries to them.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use jiff::{SignedDuration, Timestamp};

use super::pods::{selector, template_requesting};
use crate::apply::ports::{Cloud, LaunchOffering, LaunchOutcome, LaunchRequest};
use crate::demand::{ShapeContext, pod_shape};
use crate::model::desired::{Desired, DisruptionBudget};
use crate::model::ids::{InstanceId, WorkloadId, WorkloadKind};
use crate::model::job::{JobRetries, OnEviction};
use crate::model::market::CapacityType;
use crate::model::observed::{ClusterIdentity, Group, Instance, Pod, tag};
use crate::model::pod::PodTemplate;
use crate::model::requirement::{key, label};
use crate::model::units::{Bytes, MilliCpu, Resources};
use crate::simulator::{
    DeliveredGroup, DeliveredWorkload, Delivery, LaunchTemplate, ShapeFn, World, WorldInit,
};

/// Runs a future on the simulated world, which is always ready.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    poll_while_it_yields(future).expect("a simulated world answers at once")
}

/// Records that it was woken.
#[derive(Default)]
struct WokenFlag(AtomicBool);

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Maximum polls of a future that wakes itself.
const POLLS_MAX: usize = 100_000;

/// Polls a future for as long as it wakes itself. Returns `None` if a port has not answered.
pub(crate) fn poll_while_it_yields<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let woken = Arc::new(WokenFlag::default());
    let waker = Waker::from(Arc::clone(&woken));
    for _ in 0..POLLS_MAX {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if woken.0.swap(false, Ordering::Relaxed) => {}
            Poll::Pending => return None,
        }
    }
    panic!("the future wakes itself without an end");
}

/// Polls a future once. Returns `None` if a port has not answered.
pub(crate) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub(crate) fn start() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("valid")
}

pub(crate) fn cluster() -> ClusterIdentity {
    ClusterIdentity {
        name: "prod".into(),
        region: "eu-west-1".into(),
        account: "123456789012".into(),
        uid: "u-1".into(),
    }
}

pub(crate) fn genesis() -> WorldInit {
    WorldInit { cluster: cluster(), now: start(), seed: 7 }
}

pub(crate) fn shapes() -> ShapeFn {
    Rc::new(|namespace, template| {
        pod_shape(namespace, template, &ShapeContext::new(&Desired::default()))
    })
}

pub(crate) fn world() -> World {
    World::in_memory(&genesis(), shapes())
}

pub(crate) fn resources(cpu_milli: i64, gib: i64, pods: i64) -> Resources {
    Resources { cpu: MilliCpu(cpu_milli), memory: Bytes::gib(gib), pods, ..Resources::default() }
}

/// Returns a launch request for a node of two cores and 8 GiB that belongs to the cluster.
pub(crate) fn request(token: &str) -> LaunchRequest {
    LaunchRequest {
        token: token.into(),
        offerings: vec![LaunchOffering {
            instance_type: "m5.large".into(),
            zone: "eu-west-1a".into(),
            labels: [label(key::ZONE, "eu-west-1a"), label("team", "web")].into(),
            capacity: resources(2000, 8, 29),
            allocatable: resources(2000, 8, 29),
        }],
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        image: "al2023@latest".into(),
        tags: [
            (tag::CLUSTER.to_owned(), "prod".to_owned()),
            (tag::POOL.to_owned(), "web".to_owned()),
        ]
        .into(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
    }
}

/// Returns the same request with an edited offering.
pub(crate) fn request_with(token: &str, edit: impl FnOnce(&mut LaunchOffering)) -> LaunchRequest {
    let mut request = request(token);
    edit(&mut request.offerings[0]);
    request
}

pub(crate) fn launch(world: &World, request: &LaunchRequest) -> InstanceId {
    match run(world.launch(request)).expect("a fresh token") {
        LaunchOutcome::Launched(launched) => launched.id,
        LaunchOutcome::InsufficientCapacity { reason } => panic!("{reason}"),
    }
}

pub(crate) fn id(kind: WorkloadKind, name: &str) -> WorkloadId {
    WorkloadId { namespace: "web".into(), name: name.into(), kind }
}

/// Returns a template with the label `app` and one container with requests.
pub(crate) fn template(app: &str, cpu_milli: i64) -> PodTemplate {
    let requests = [("cpu", cpu_milli), ("memory", 1 << 20)];
    PodTemplate { labels: [label("app", app)].into(), ..template_requesting(&requests) }
}

impl Delivery {
    pub(crate) fn with(mut self, kind: WorkloadKind, name: &str, replicas: u32, cpu: i64) -> Self {
        let template = Arc::new(template(name, cpu));
        let workload = DeliveredWorkload { replicas, first_ordinal: 0, template };
        self.workloads.insert(id(kind, name), workload);
        self
    }

    /// Adds a Job that survives this number of failed pods.
    pub(crate) fn job(self, name: &str, pods: u32, cpu: i64, backoff_limit: u32) -> Self {
        let mut delivery = self.with(WorkloadKind::Job, name, pods, cpu);
        let on_eviction = OnEviction::Counted;
        let retries = JobRetries { backoff_limit, per_index: None, on_eviction };
        delivery.job_retries.insert(id(WorkloadKind::Job, name), retries);
        delivery
    }

    pub(crate) fn budget(mut self, app: &str, least: Option<&str>, most: Option<&str>) -> Self {
        self.budgets.push(DisruptionBudget {
            namespace: "web".into(),
            name: format!("{app}-budget"),
            origin: crate::model::ids::Origin::new("budgets.yaml", 1),
            selector: Some(selector("app", app)),
            min_available: least.map(str::to_owned),
            max_unavailable: most.map(str::to_owned),
        });
        self
    }
}

/// Returns the pods of a workload, by name.
pub(crate) fn pods(world: &World, name: &str) -> Vec<Pod> {
    let of = |pod: &Pod| pod.owner.as_ref().is_some_and(|owner| &*owner.name == name);
    world.observed().pods.into_iter().map(Arc::unwrap_or_clone).filter(of).collect()
}

/// Delivers an Auto Scaling group of one to five m5.large that eksctl names, and launches it.
pub(crate) fn deliver_group(world: &World, eksctl_name: &str, group: Group) {
    let tags = [("alpha.eksctl.io/nodegroup-name".to_owned(), eksctl_name.to_owned())];
    let types = vec!["m5.large".into()];
    let group = Group { max: 5, types, tags: tags.clone().into(), ..group };
    let member = LaunchRequest { tags: [].into(), ..request("unused") };
    let template = LaunchTemplate::new(CapacityType::OnDemand, vec![member]);
    let groups = vec![DeliveredGroup { group, identity: tags.into(), template }];
    world.deliver(&Delivery { groups, ..Delivery::default() }).expect("in memory");
    world.settle(SignedDuration::from_mins(10)).expect("in memory");
}

/// Returns the active members of all groups.
pub(crate) fn members(world: &World) -> Vec<Instance> {
    let all = world.observed().instances.into_values();
    all.filter(|instance| instance.is_active() && instance.group.is_some()).collect()
}
