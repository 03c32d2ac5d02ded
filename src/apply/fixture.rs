//! A small fleet, a plan that launches, replaces and retires, and failing ports.

use std::cell::Cell;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{ApplyError, ApplySettings, Event, Ports, Receipt, Replan, Replanned, apply};
use crate::apply::observation::observe;
use crate::apply::ports::{
    CallEffect, Clock, Cloud, CloudInventory, Cluster, ClusterObjects, CordonOutcome, EvictOutcome,
    LaunchOutcome, LaunchRequest, NodeAndPods, PortError,
};
use crate::catalog::PriceSource;
use crate::demand::DemandMode;
use crate::model::ids::{Address, GroupName, InstanceId, NodeName, Uid, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::observed::{CordonReason, Instance, KEY_LABEL, Node, Observed, Pod, tag};
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, Amount, Base, BaseWorld, Capacity, Change, Condition, Cost, FORMAT_VERSION, NodeState,
    Placement, PlacementMode, PodTotals, Precondition, ResourceChange, ResourceKind, Summary, Wave,
    WaveStep,
};
use crate::plan::{PinnedPlan, Plan, change_id};
use crate::simulator::fixture::{cluster, genesis, id, launch, request, resources, run, shapes};
use crate::simulator::{Delivery, World};

pub(super) fn address(key: &str) -> Address {
    format!("ec2_instance.web[\"{key}\"]").into()
}

/// Launches a managed instance with this key, as an earlier plan would have.
fn running(world: &World, key: &str) -> InstanceId {
    let mut request = request(&format!("earlier-{key}"));
    request.tags.insert(tag::KEY.into(), key.into());
    request.tags.insert(tag::CHANGE.into(), format!("earlier-{key}"));
    request.labels.insert(KEY_LABEL.into(), key.into());
    launch(world, &request)
}

/// Managed nodes `0` and `1` and one unmanaged node, all Ready; six pods of half a core, and a
/// daemon on each.
pub(super) fn fleet() -> World {
    let world = World::in_memory(&genesis(), shapes());
    for key in ["0", "1"] {
        running(&world, key);
    }
    let foreign =
        LaunchRequest { tags: [("owner".into(), "someone".into())].into(), ..request("f") };
    launch(&world, &foreign);
    world.deliver(&workloads(6)).expect("kept in memory");
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    world
}

pub(super) fn workloads(replicas: u32) -> Delivery {
    Delivery::default().with(WorkloadKind::Deployment, "api", replicas, 500).with(
        WorkloadKind::DaemonSet,
        "agent",
        0,
        10,
    )
}

pub(super) fn new_node(zone: &str) -> NodeState {
    let amount = Amount::from(&resources(2000, 8, 29));
    NodeState {
        pool: Some("web".into()),
        instance_type: Some("m6i.large".into()),
        zone: Some(zone.into()),
        zone_id: Some("euw1-az1".into()),
        capacity_type: Some(CapacityType::OnDemand),
        image: Some("al2023@latest".into()),
        labels: [
            label(key::INSTANCE_TYPE, "m6i.large"),
            label(key::ZONE, zone),
            label(key::CAPACITY_TYPE, "on-demand"),
            label("team", "web"),
        ]
        .into(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        capacity: amount.clone(),
        allocatable: amount,
        reservation: None,
        open_labels: Vec::new(),
        spec_digest: Some("spec-1".into()),
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        group: None,
    }
}

fn old_node(observed: &Observed, key: &str) -> NodeState {
    let has_key = |i: &&Instance| i.tags.get(tag::KEY).is_some_and(|found| found == key);
    let instance = observed.instances.values().find(has_key).expect("a node of the fleet");
    let node = observed.node_for_instance(&instance.id).expect("registered");
    NodeState {
        instance_type: Some(instance.instance_type.clone()),
        zone: Some(instance.zone.clone()),
        instance_id: Some(instance.id.clone()),
        node: Some(node.name.clone()),
        node_uid: Some(node.uid.clone()),
        ..new_node("eu-west-1a")
    }
}

pub(super) fn row(key: &str, actions: &[Action], states: [Option<NodeState>; 2]) -> ResourceChange {
    let [before, after] = states;
    let actions = actions.to_vec();
    ResourceChange {
        address: address(key),
        kind: ResourceKind::Ec2Instance,
        name: "web".into(),
        index: Some(key.into()),
        change: Change { actions, before, after, after_unknown: BTreeMap::new() },
        action_reason: None,
    }
}

/// Launches `2` and `3`, replaces `1`, retires `0`, over the current world.
pub(super) fn plan(world: &World) -> Plan {
    use Action::{Create, Delete};
    let observed = run(observe(world, world, world, cluster()));
    let fresh = || Some(new_node("eu-west-1a"));
    let rows = vec![
        row("0", &[Delete], [Some(old_node(&observed, "0")), None]),
        row("1", &[Create, Delete], [Some(old_node(&observed, "1")), fresh()]),
        row("2", &[Create], [None, fresh()]),
        row("3", &[Create], [None, fresh()]),
    ];
    let wave = |step, keys: &[&str]| Wave {
        step,
        addresses: keys.iter().map(|key| address(key)).collect(),
    };
    let waves = vec![wave(WaveStep::Launch, &["1", "2", "3"]), wave(WaveStep::Retire, &["0", "1"])];
    Plan {
        format_version: FORMAT_VERSION.into(),
        tool_version: "test".into(),
        timestamp: observed.taken_at,
        applyable: true,
        complete: true,
        errored: false,
        resource_changes: rows,
        resource_drift: Vec::new(),
        checksum: None,
        checks: Vec::new(),
        summary: Summary::default(),
        capacity: capacity(&observed, waves),
    }
}

pub(super) fn capacity(observed: &Observed, waves: Vec<Wave>) -> Capacity {
    let shrunk = Precondition {
        address: address("0"),
        condition: Condition::ReplicasAtMost {
            workload: id(WorkloadKind::Deployment, "api"),
            replicas: 6,
        },
    };
    Capacity {
        digest: "sha256:1".into(),
        plan_id: "plan-1".into(),
        base: Base {
            path: ".".into(),
            repository: None,
            commit: None,
            tree: String::new(),
            dirty: false,
            directory: None,
            rendered: Vec::new(),
            world: BaseWorld {
                name: "sim:world".into(),
                cluster: cluster(),
                taken_at: observed.taken_at,
                sources: observed.sources.clone(),
            },
            demand: DemandMode::Live,
            preconditions: vec![shrunk],
            guard: None,
            judged_by: Vec::new(),
        },
        expires_at: observed.taken_at + SignedDuration::from_hours(24),
        waves,
        pods: PodTotals::default(),
        placement: Placement {
            mode: PlacementMode::Unsteered,
            orders: Vec::new(),
            packed_hourly: MicroUsd::ZERO,
            unsteered: None,
            failure_domains: None,
        },
        placements: Vec::new(),
        unschedulable: Vec::new(),
        unresolved: Vec::new(),
        demand: Vec::new(),
        modes: Vec::new(),
        daemons: Vec::new(),
        cost: cost(),
        alternatives: Vec::new(),
        explain: Vec::new(),
        diagnostics: Vec::new(),
        disruption_budgets: Vec::new(),
        comparison: None,
    }
}

fn cost() -> Cost {
    Cost {
        currency: "USD".into(),
        hourly_before: MicroUsd::ZERO,
        hourly_after: MicroUsd::ZERO,
        hourly_delta: MicroUsd::ZERO,
        monthly_delta: MicroUsd::ZERO,
        lower_bound_hourly: MicroUsd::ZERO,
        gap_percent: "0.00".into(),
        prices: PriceSource {
            source: "none".into(),
            region: "eu-west-1".into(),
            date: "2026-11-21".into(),
            stand_in: false,
        },
        estimated: 0,
        unpriced: 0,
        fargate: None,
        breakdown: crate::plan::wire::CostBreakdown::default(),
    }
}

/// Replans without any change.
#[derive(Debug)]
pub(super) struct UnchangedReplan;

impl Replan for UnchangedReplan {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        Box::pin(std::future::ready(PinnedPlan::as_approved(plan.clone())))
    }
}

/// Replans with a fixed result.
#[derive(Debug, Clone, Default)]
pub(super) struct FixedReplan {
    pub(super) dropped: BTreeMap<Address, String>,
    pub(super) missing: Vec<String>,
    pub(super) frozen: Option<String>,
}

impl Replan for FixedReplan {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        let Self { dropped, missing, frozen } = self.clone();
        let pinned =
            PinnedPlan { dropped, missing, frozen, ..PinnedPlan::as_approved(plan.clone()) };
        Box::pin(std::future::ready(pinned))
    }
}

pub(super) fn settings() -> ApplySettings<'static> {
    ApplySettings::new(cluster(), &UnchangedReplan)
}

/// Applies over ports that may differ from the world; returns the events as well.
pub(super) fn apply_over<P: Cloud + Cluster + Clock>(
    plan: &Plan,
    ports: &P,
    settings: &ApplySettings<'_>,
) -> (Result<Receipt, ApplyError>, Vec<Event>) {
    let mut events = Vec::new();
    let result = {
        let ports = Ports { cloud: ports, cluster: ports, clock: ports };
        let mut report = |event: &Event| events.push(event.clone());
        run(apply(plan, &ports, settings, &mut report))
    };
    (result, events)
}

/// Returns key and change tag of the active instances, sorted.
pub(super) fn active(world: &World) -> Vec<(String, String)> {
    let tag_of = |i: &Instance, tag: &str| i.tags.get(tag).cloned().unwrap_or_default();
    let observed = world.observed();
    let instances = observed.instances.values().filter(|i| i.is_active());
    let mut found: Vec<_> =
        instances.map(|i| (tag_of(i, tag::KEY), tag_of(i, tag::CHANGE))).collect();
    found.sort();
    found
}

/// Returns the expected result of [`active`] after the plan is applied.
pub(super) fn planned_fleet(plan: &Plan) -> Vec<(String, String)> {
    let change = |key: &str| change_id(&plan.capacity.plan_id, &address(key)).to_string();
    let mut fleet: Vec<_> = ["1", "2", "3"].map(|key| (key.to_owned(), change(key))).into();
    // The unmanaged node has no tags of ours, and stays.
    fleet.insert(0, (String::new(), String::new()));
    fleet
}

/// How a port fails at one writing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process dies before the call is made.
    DieBefore,
    /// The process dies after the call was made.
    DieAfter,
    /// The call fails and has no effect.
    FailBefore,
    /// The call has its effect, and the reply is an error.
    FailAfter,
    /// As `FailBefore`, with a transient error.
    TurnAway,
    /// As `FailAfter`, with a transient error.
    LoseReply,
}

impl Fault {
    pub(super) const ALL: [Self; 6] = [
        Self::DieBefore,
        Self::DieAfter,
        Self::FailBefore,
        Self::FailAfter,
        Self::TurnAway,
        Self::LoseReply,
    ];
}

/// Ports that fail once, at the `at`-th writing call; reads may lag.
pub(super) struct FaultyPorts<'w> {
    pub(super) world: &'w World,
    pub(super) at: usize,
    pub(super) fault: Fault,
    pub(super) calls: Cell<usize>,
    /// Instances younger than this are not listed.
    pub(super) lag: SignedDuration,
    /// Every node has a volume attached until this time.
    pub(super) attached: Timestamp,
    /// Whether all tags were removed from all instances.
    pub(super) untagged: Cell<bool>,
    /// Change applied to each list of Kubernetes objects.
    pub(super) shown: Cell<fn(&mut ClusterObjects)>,
    /// How often Kubernetes was read.
    pub(super) reads: Cell<usize>,
    /// Called just before a node is cordoned or uncordoned.
    pub(super) meddles: Option<&'w dyn Fn(&Node)>,
    /// Called just before a single node is read.
    pub(super) comes: Option<&'w dyn Fn(&NodeName)>,
}

impl<'w> FaultyPorts<'w> {
    pub(super) fn new(world: &'w World, at: usize, fault: Fault) -> Self {
        Self {
            world,
            at,
            fault,
            calls: Cell::new(0),
            lag: SignedDuration::ZERO,
            attached: Timestamp::MIN,
            untagged: Cell::new(false),
            shown: Cell::new(|_| {}),
            reads: Cell::new(0),
            meddles: None,
            comes: None,
        }
    }

    async fn write<V>(
        &self,
        verb: impl Future<Output = Result<V, PortError>>,
    ) -> Result<V, PortError> {
        let call = self.calls.replace(self.calls.get() + 1);
        if call != self.at {
            return verb.await;
        }
        let error =
            |effect| PortError { verb: "write".into(), reason: "fault of the test".into(), effect };
        match self.fault {
            Fault::DieBefore => std::future::pending().await,
            Fault::DieAfter => {
                let _ = verb.await;
                std::future::pending().await
            }
            Fault::FailBefore => Err(error(CallEffect::Refused)),
            Fault::TurnAway => Err(error(CallEffect::NotApplied)),
            Fault::FailAfter | Fault::LoseReply => {
                let _ = verb.await;
                Err(error(CallEffect::from_transience(self.fault == Fault::LoseReply)))
            }
        }
    }
}

impl Cloud for FaultyPorts<'_> {
    async fn holdings(&self) -> Result<CloudInventory, PortError> {
        let mut holdings = self.world.holdings().await?;
        holdings.instances.retain(|i| i.launched_at + self.lag <= self.world.now());
        if self.untagged.get() {
            holdings.instances.iter_mut().for_each(|instance| instance.tags.clear());
        }
        Ok(holdings)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.write(self.world.launch(request)).await
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
        if self.world.now() < self.attached {
            let nodes = objects.nodes.iter().map(|node| node.name.clone());
            let attached = nodes.map(|name| (name, ["vol-1".to_owned()].into()));
            objects.storage.attached = attached.collect();
        }
        self.shown.get()(&mut objects);
        Ok(objects)
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        if let Some(comes) = self.comes {
            comes(name);
        }
        self.world.node(name).await
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonReason>,
    ) -> Result<CordonOutcome, PortError> {
        if let Some(meddles) = self.meddles {
            meddles(node);
        }
        self.write(self.world.cordon(node, mark)).await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        self.write(self.world.evict(pod)).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.write(self.world.delete_node(node, uid)).await
    }
}

impl Clock for FaultyPorts<'_> {
    fn now(&self) -> Timestamp {
        self.world.now()
    }

    async fn sleep(&self, duration: SignedDuration) {
        self.world.sleep(duration).await;
    }
}
