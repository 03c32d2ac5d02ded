//! A small simulated fleet, a plan with launches, replacements and retirements, and failing ports.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use jiff::{SignedDuration, Timestamp};

use super::plan::{address, node_state};
use super::simulator::{
    cluster, genesis, id, launch, request, request_with, resources, run, shapes,
};
use crate::apply::observation::observe;
use crate::apply::ports::{
    CallEffect, Clock, Cloud, CloudInventory, Cluster, ClusterObjects, CordonOutcome, EvictOutcome,
    LaunchOutcome, LaunchRequest, NodeAndPods, PortError,
};
use crate::apply::{ApplyError, ApplySettings, Event, Ports, Receipt, Replan, Replanned, apply};
use crate::model::ids::{Address, GroupName, InstanceId, NodeName, Uid, WorkloadKind};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{CordonMark, Instance, KEY_LABEL, Node, Observed, Pod, tag};
use crate::model::pod::Taint;
use crate::model::requirement::{key, label};
use crate::plan::wire::{Action, Amount, Condition, NodeState, ResourceChange, WaveStep};
use crate::plan::{Plan, RevalidatedPlan, WithdrawnOffering, change_id};
use crate::simulator::{Delivery, World};

/// Launches a managed instance with this key, as an earlier plan would.
pub(crate) fn running(world: &World, key: &str) -> InstanceId {
    let mut request = request(&format!("earlier-{key}"));
    request.tags.insert(tag::KEY.into(), key.into());
    request.tags.insert(tag::CHANGE.into(), format!("earlier-{key}"));
    request.offerings[0].labels.insert(KEY_LABEL.into(), key.into());
    launch(world, &request)
}

/// Returns a world with managed nodes `0` and `1` and one unmanaged node, all Ready. It runs six
/// pods of half a core, and a DaemonSet pod on each node.
pub(crate) fn fleet() -> World {
    let world = World::in_memory(&genesis(), shapes());
    for key in ["0", "1"] {
        running(&world, key);
    }
    let foreign =
        LaunchRequest { tags: [("owner".into(), "other-team".into())].into(), ..request("f") };
    launch(&world, &foreign);
    world.deliver(&workloads(6)).expect("kept in memory");
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    world
}

/// Returns a world with one node of ours that is Ready and still closed.
pub(crate) fn closed_fleet() -> World {
    let world = World::in_memory(&genesis(), shapes());
    let labels = [label(KEY_LABEL, "0")].into();
    let mut request = request_with("closed", |offering| offering.labels = labels);
    request.taints = vec![Taint::opening()];
    launch(&world, &request);
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    world
}

pub(crate) fn workloads(replicas: u32) -> Delivery {
    Delivery::default().with(WorkloadKind::Deployment, "api", replicas, 500).with(
        WorkloadKind::DaemonSet,
        "agent",
        0,
        10,
    )
}

/// Returns the state of an m6i.large to launch in pool `web`.
pub(crate) fn new_node(zone: &str) -> NodeState {
    let amount = Amount::from(&resources(2000, 8, 29));
    NodeState {
        labels: [
            label(key::INSTANCE_TYPE, "m6i.large"),
            label(key::ZONE, zone),
            label(key::CAPACITY_TYPE, "on-demand"),
            label("team", "web"),
        ]
        .into(),
        capacity: amount.clone(),
        allocatable: amount,
        spec_digest: Some("spec-1".into()),
        ..node_state("web", "m6i.large", (zone, "euw1-az1"))
    }
}

/// Returns the state of an existing instance and its node.
pub(crate) fn old_node(observed: &Observed, instance: &Instance) -> NodeState {
    let node = observed.node_for_instance(&instance.id).expect("registered");
    let state = NodeState {
        instance_type: Some(instance.instance_type.clone()),
        zone: Some(instance.zone.clone()),
        ..new_node("eu-west-1a")
    };
    state.running_as(instance.id.as_str(), node.name.as_str(), node.uid.as_str())
}

/// Returns a plan for the current world that launches `2` and `3`, replaces `1` and retires `0`.
pub(crate) fn plan(world: &World) -> Plan {
    let observed = run(observe(world, world, world, cluster()));
    let old = |key: &str| {
        let has_key = |i: &&Instance| i.tags.get(tag::KEY).is_some_and(|found| found == key);
        let instance = observed.instances.values().find(has_key).expect("a node of the fleet");
        old_node(&observed, instance)
    };
    let new = || new_node("eu-west-1a");
    let api = id(WorkloadKind::Deployment, "api");
    let mut plan = Plan::unchanged(&observed)
        .with_rows([
            ResourceChange::removal("web", "0", old("0")),
            ResourceChange::replacement("web", "1", old("1"), new()),
            ResourceChange::launch("web", "2", new()),
            ResourceChange::launch("web", "3", new()),
        ])
        .with_wave(WaveStep::Launch, ["1", "2", "3"].map(address))
        .with_wave(WaveStep::Retire, ["0", "1"].map(address))
        .with_precondition(address("0"), Condition::ReplicasAtMost { workload: api, replicas: 6 });
    (plan.capacity.digest, plan.capacity.plan_id) = ("sha256:1".into(), "plan-1".into());
    plan
}

/// Returns [`plan`] without its retirements.
pub(crate) fn without_retirements(plan: Plan) -> Plan {
    let mut plan = plan.only(WaveStep::Launch);
    for row in &mut plan.resource_changes[..2] {
        row.change.actions = vec![Action::NoOp];
    }
    plan.capacity.waves[0].addresses.retain(|one| *one != address("1"));
    plan
}

/// A planner that returns the approved plan.
#[derive(Debug)]
pub(crate) struct UnchangedReplan;

impl Replan for UnchangedReplan {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        Box::pin(std::future::ready(RevalidatedPlan::as_approved(plan.clone())))
    }
}

/// A planner with a fixed result.
#[derive(Debug, Clone, Default)]
pub(crate) struct FixedReplan {
    pub(crate) dropped: BTreeMap<Address, String>,
    pub(crate) missing: Vec<String>,
    pub(crate) frozen: Option<String>,
    pub(crate) withdrawn: BTreeMap<Address, Vec<WithdrawnOffering>>,
}

impl Replan for FixedReplan {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        let Self { dropped, missing, frozen, withdrawn } = self.clone();
        let revalidated = RevalidatedPlan {
            dropped,
            missing,
            withdrawn,
            frozen,
            ..RevalidatedPlan::as_approved(plan.clone())
        };
        Box::pin(std::future::ready(revalidated))
    }
}

pub(crate) fn settings() -> ApplySettings<'static> {
    ApplySettings::new(cluster(), &UnchangedReplan)
}

/// Returns one value as all ports.
pub(crate) fn all<P>(ports: &P) -> Ports<'_, P, P, P> {
    Ports { cloud: ports, cluster: ports, clock: ports }
}

/// Applies a plan through `ports`. Returns the result and the events.
pub(crate) fn apply_over<P: Cloud + Cluster + Clock>(
    plan: &Plan,
    ports: &P,
    settings: &ApplySettings<'_>,
) -> (Result<Receipt, ApplyError>, Vec<Event>) {
    let mut events = Vec::new();
    let result = {
        let mut report = |event: &Event| events.push(event.clone());
        run(apply(plan, &all(ports), settings, &mut report))
    };
    (result, events)
}

/// Returns the key and the change tag of each active instance, sorted.
pub(crate) fn active(world: &World) -> Vec<(String, String)> {
    let tag_of = |i: &Instance, tag: &str| i.tags.get(tag).cloned().unwrap_or_default();
    let observed = world.observed();
    let instances = observed.instances.values().filter(|i| i.is_active());
    let mut found: Vec<_> =
        instances.map(|i| (tag_of(i, tag::KEY), tag_of(i, tag::CHANGE))).collect();
    found.sort();
    found
}

/// Returns the expected result of [`active`] after the apply.
pub(crate) fn planned_fleet(plan: &Plan) -> Vec<(String, String)> {
    let change = |key: &str| change_id(&plan.capacity.plan_id, &address(key)).to_string();
    let mut fleet: Vec<_> = ["1", "2", "3"].map(|key| (key.to_owned(), change(key))).into();
    // The unmanaged node has none of our tags, and stays.
    fleet.insert(0, (String::new(), String::new()));
    fleet
}

/// Fault of a port at one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process crashes before the call.
    CrashBefore,
    /// The process crashes after the call.
    CrashAfter,
    /// The call fails without an effect.
    FailBefore,
    /// The call has its effect, but returns an error.
    FailAfter,
    /// Like `FailBefore`, with a transient error.
    RejectTransiently,
    /// Like `FailAfter`, with a transient error.
    LoseReply,
}

impl Fault {
    pub(crate) const ALL: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::FailBefore,
        Self::FailAfter,
        Self::RejectTransiently,
        Self::LoseReply,
    ];
}

/// Edit of what a port has read, or the error of the read.
type ReadEdit<T> = fn(&mut T) -> Result<(), PortError>;

/// Ports that fail once, at write `at` (counted from 0). Reads may lag.
pub(crate) struct FaultyPorts<'w> {
    pub(crate) world: &'w World,
    pub(crate) at: usize,
    pub(crate) fault: Fault,
    pub(crate) calls: Cell<usize>,
    /// Minimum age of listed instances.
    pub(crate) lag: SignedDuration,
    /// Time until which every node has an attached volume.
    pub(crate) attached_until: Timestamp,
    /// Edit of each read of the account, which fails with its error.
    pub(crate) edit_inventory: Cell<ReadEdit<CloudInventory>>,
    /// Edit of each read of instances by ID, which fails with its error.
    pub(crate) edit_found: Cell<ReadEdit<Vec<Instance>>>,
    /// Edit of each read of all Kubernetes objects, which fails with its error.
    pub(crate) edit_objects: Cell<ReadEdit<ClusterObjects>>,
    /// Number of reads of all Kubernetes objects.
    pub(crate) reads: Cell<usize>,
    /// True if launches do not name the offering that was chosen.
    pub(crate) hides_offerings: bool,
    /// True if the deletion of a pod is refused.
    pub(crate) refuses_deletions: bool,
    /// True if an eviction takes a moment, in which other calls may begin.
    pub(crate) evicts_slowly: bool,
    /// Current and maximum number of evictions in progress.
    pub(crate) evictions: Cell<(usize, usize)>,
    /// Nominated pods, each with its node.
    pub(crate) nominated: RefCell<Vec<(Arc<str>, NodeName)>>,
    /// Callback before a node is cordoned or uncordoned.
    pub(crate) before_cordon: Option<&'w dyn Fn(&Node)>,
    /// Callback before a single node is read.
    pub(crate) before_node_read: Option<&'w dyn Fn(&NodeName)>,
}

impl<'w> FaultyPorts<'w> {
    /// Returns ports whose writes do not fail.
    pub(crate) fn without_fault(world: &'w World) -> Self {
        Self::new(world, usize::MAX, Fault::FailBefore)
    }

    pub(crate) fn new(world: &'w World, at: usize, fault: Fault) -> Self {
        Self {
            world,
            at,
            fault,
            calls: Cell::new(0),
            lag: SignedDuration::ZERO,
            attached_until: Timestamp::MIN,
            edit_inventory: Cell::new(|_| Ok(())),
            edit_found: Cell::new(|_| Ok(())),
            edit_objects: Cell::new(|_| Ok(())),
            reads: Cell::new(0),
            hides_offerings: false,
            refuses_deletions: false,
            evicts_slowly: false,
            evictions: Cell::default(),
            nominated: RefCell::default(),
            before_cordon: None,
            before_node_read: None,
        }
    }

    async fn write<V>(
        &self,
        call: impl Future<Output = Result<V, PortError>>,
    ) -> Result<V, PortError> {
        let index = self.calls.replace(self.calls.get() + 1);
        if index != self.at {
            return call.await;
        }
        let error =
            |effect| PortError { verb: "write".into(), reason: "fault of the test".into(), effect };
        match self.fault {
            Fault::CrashBefore => std::future::pending().await,
            Fault::CrashAfter => {
                let _ = call.await;
                std::future::pending().await
            }
            Fault::FailBefore => Err(error(CallEffect::Refused)),
            Fault::RejectTransiently => Err(error(CallEffect::NotApplied)),
            Fault::FailAfter | Fault::LoseReply => {
                let _ = call.await;
                Err(error(CallEffect::from_transience(self.fault == Fault::LoseReply)))
            }
        }
    }
}

impl Cloud for FaultyPorts<'_> {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        let mut inventory = self.world.inventory().await?;
        inventory.instances.retain(|i| i.launched_at + self.lag <= self.world.now());
        self.edit_inventory.get()(&mut inventory)?;
        Ok(inventory)
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        let mut found = self.world.find_instances(ids).await?;
        found.retain(|i| i.launched_at + self.lag <= self.world.now());
        self.edit_found.get()(&mut found)?;
        Ok(found)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        let mut outcome = self.write(self.world.launch(request)).await?;
        if let LaunchOutcome::Launched(launched) = &mut outcome {
            launched.offering = launched.offering.filter(|_| !self.hides_offerings);
        }
        Ok(outcome)
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.write(Cloud::terminate(self.world, id)).await
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.write(self.world.raise_group(group, desired)).await
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.write(self.world.terminate_member(id)).await
    }
}

impl Cluster for FaultyPorts<'_> {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.reads.set(self.reads.get() + 1);
        let mut objects = self.world.objects().await?;
        if self.world.now() < self.attached_until {
            let nodes = objects.nodes.iter().map(|node| node.name.clone());
            let attached = nodes.map(|name| (name, ["vol-1".to_owned()].into()));
            objects.storage.attached = attached.collect();
        }
        self.edit_objects.get()(&mut objects)?;
        Ok(objects)
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        if let Some(callback) = self.before_node_read {
            callback(name);
        }
        self.world.node(name).await
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        if let Some(callback) = self.before_cordon {
            callback(node);
        }
        self.write(self.world.cordon(node, mark)).await
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        if let Some(callback) = self.before_cordon {
            callback(node);
        }
        self.write(self.world.uncordon(node)).await
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        self.write(self.world.open(node, annotations)).await
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        self.nominated.borrow_mut().push((Arc::clone(&pod.name), node.clone()));
        self.write(self.world.nominate(pod, node)).await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        let (running, most) = self.evictions.get();
        self.evictions.set((running + 1, most.max(running + 1)));
        if self.evicts_slowly {
            yield_once().await;
        }
        let outcome = self.write(self.world.evict(pod)).await;
        let (running, most) = self.evictions.get();
        self.evictions.set((running - 1, most));
        outcome
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        if self.refuses_deletions {
            let (verb, reason) = ("delete pod".to_owned(), "forbidden".to_owned());
            return Err(PortError { verb, reason, effect: CallEffect::Refused });
        }
        self.write(self.world.delete_pod(pod, grace_seconds)).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.write(self.world.delete_node(node, uid)).await
    }
}

/// Lets other futures run once, as a call over a network does.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Clock for FaultyPorts<'_> {
    fn now(&self) -> Timestamp {
        self.world.now()
    }

    async fn sleep(&self, duration: SignedDuration) {
        self.world.sleep(duration).await;
    }
}
