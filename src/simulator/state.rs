//! The state of a world: objects, pods by owner, and scheduled events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{LaunchTemplate, RollingUpdate, ShapeFn, WorldInit, delay};
use crate::demand::PodShape;
use crate::model::desired::DisruptionBudget;
use crate::model::fargate::FargateProfile;
use crate::model::ids::{
    GroupName, InstanceId, InstanceTypeName, Labels, Namespace, NodeName, ReservationId, Uid,
    WorkloadId, ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::observed::{
    ClusterIdentity, ClusterPools, Exclusion, Group, Instance, JobProgress, LiveJob, LiveWorkload,
    Node, Observed, Pod, Reservation, Resolved, Scaling, UnreadObject,
};
use crate::model::pod::{PodTemplate, Selector, Taint};
use crate::model::saturating_time::later;
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// An offering without capacity. An absent field matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OfferingOutage {
    /// Instance type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<InstanceTypeName>,
    /// Zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<ZoneName>,
    /// Capacity type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
}

/// The resources that nodes of a type report. They may differ from the expected ones because of
/// hardware and images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedResources {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Capacity.
    pub capacity: Resources,
    /// Allocatable resources.
    pub allocatable: Resources,
}

/// The registration data of a launched node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeRegistration {
    pub(super) labels: Labels,
    pub(super) taints: Vec<Taint>,
    pub(super) startup_taints: Vec<Taint>,
    pub(super) capacity: Resources,
    pub(super) allocatable: Resources,
}

/// A used client token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClientToken {
    /// Hash of the parameters of its first use.
    pub(super) parameters: String,
    pub(super) instance: InstanceId,
    /// Index of the launched offering in the request.
    #[serde(default)]
    pub(super) offering: usize,
}

#[derive(Debug, Clone)]
pub(super) struct WorkloadController {
    pub(super) replicas: u32,
    /// The first ordinal of a `StatefulSet`.
    pub(super) first_ordinal: u32,
    pub(super) delivered: bool,
    /// Key of the template of new pods. `None` if the workload was not delivered.
    pub(super) template: Option<String>,
    /// The rolling update that replaces the outdated pods. World files do not store it.
    pub(super) rolling: Option<RollingUpdate>,
    /// Progress of a Job, as the world file states it.
    pub(super) job: Option<JobProgress>,
}

/// Counters of assigned IDs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct IdCounters {
    pub(super) instances: u64,
    pub(super) images: u64,
    pub(super) uids: u64,
    pub(super) pods: u64,
    pub(super) timers: u64,
    pub(super) ticks: u64,
}

/// UID prefix of simulated objects.
const UID_PREFIX: &str = "00000000-0000-4000-8000-";
/// Prefix of simulated instance IDs. Like EC2's, they have 17 digits.
const INSTANCE_PREFIX: &str = "i-00000";
/// Prefix of simulated image IDs. Like EC2's, they have 17 digits.
pub(super) const IMAGE_PREFIX: &str = "ami-00000";

impl IdCounters {
    /// Returns counters beyond every simulated ID in `observed`.
    pub(super) fn after_observed(observed: &Observed) -> Self {
        let number =
            |prefix: &str, id: &str| u64::from_str_radix(id.strip_prefix(prefix)?, 16).ok();
        let instances = observed.instances.keys().map(InstanceId::as_str);
        let images = observed.resolved.images.values().flatten();
        let images = images.filter_map(|choice| number(IMAGE_PREFIX, choice.id.as_str()));
        let uids = observed.nodes.values().map(|node| node.uid.as_str());
        let uids = uids.chain(observed.pods.iter().map(|pod| pod.uid.as_str()));
        Self {
            instances: instances.filter_map(|id| number(INSTANCE_PREFIX, id)).max().unwrap_or(0),
            images: images.max().unwrap_or(0),
            uids: uids.filter_map(|id| number(UID_PREFIX, id)).max().unwrap_or(0),
            ..Self::default()
        }
    }
}

/// Namespace and name of a pod.
pub(super) type PodKey = (Namespace, Arc<str>);

pub(super) fn pod_key(pod: &Pod) -> PodKey {
    (pod.namespace.clone(), pod.name.clone())
}

/// A reference to a pod. Names are reused, UIDs are not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PodRef {
    pub(super) namespace: Namespace,
    pub(super) name: Arc<str>,
    pub(super) uid: Uid,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum ScheduledEvent {
    /// The instance runs.
    Runs { instance: InstanceId },
    /// Its node registers.
    Registers { instance: InstanceId },
    /// Its node is Ready.
    Ready { instance: InstanceId },
    /// Its node loses its startup taints.
    Initialized { instance: InstanceId, startup_taints: Vec<Taint> },
    /// The instance is terminated.
    Gone { instance: InstanceId },
    /// The node controller removes the node.
    NodeRemoved { node: NodeName, uid: Uid },
    /// EC2 no longer lists the instance.
    Forgotten { instance: InstanceId },
    /// EC2 forgets the token.
    TokenExpired { token: String },
    /// The pod runs.
    PodRuns { pod: PodRef },
    /// The pod has stopped.
    PodStopped { pod: PodRef },
    /// The group launches missing members.
    GroupActs { group: GroupName },
    /// The scheduler runs.
    Tick,
}

impl ScheduledEvent {
    /// Returns whether the event is mere cleanup.
    fn is_cleanup(&self) -> bool {
        matches!(self, Self::Forgotten { .. } | Self::TokenExpired { .. })
    }

    pub(super) fn booting_instance(&self) -> Option<&InstanceId> {
        match self {
            Self::Runs { instance }
            | Self::Registers { instance }
            | Self::Ready { instance }
            | Self::Initialized { instance, .. } => Some(instance),
            Self::Gone { .. }
            | Self::NodeRemoved { .. }
            | Self::Forgotten { .. }
            | Self::TokenExpired { .. }
            | Self::PodRuns { .. }
            | Self::PodStopped { .. }
            | Self::GroupActs { .. }
            | Self::Tick => None,
        }
    }
}

/// A scheduled event. Events of the same time run in order of creation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Timer {
    pub(super) at: Timestamp,
    pub(super) order: u64,
    #[serde(flatten)]
    pub(super) due: ScheduledEvent,
}

/// A stored budget, with amounts as written (`2` or `30%`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorldBudget {
    pub(super) namespace: Namespace,
    pub(super) name: String,
    pub(super) selector: Option<Selector>,
    pub(super) min_available: Option<String>,
    pub(super) max_unavailable: Option<String>,
}

impl From<&DisruptionBudget> for WorldBudget {
    fn from(budget: &DisruptionBudget) -> Self {
        let DisruptionBudget {
            namespace,
            name,
            origin: _,
            selector,
            min_available,
            max_unavailable,
        } = budget.clone();
        Self { namespace, name, selector, min_available, max_unavailable }
    }
}

#[derive(Debug, Default)]
pub(super) struct PodTable {
    all: BTreeMap<PodKey, Pod>,
    owned: BTreeMap<WorkloadId, BTreeSet<PodKey>>,
}

impl PodTable {
    pub(super) fn insert(&mut self, pod: Pod) {
        let key = (pod.namespace.clone(), pod.name.clone());
        if let Some(owner) = &pod.owner {
            self.owned.entry(owner.clone()).or_default().insert(key.clone());
        }
        self.all.insert(key, pod);
    }

    pub(super) fn remove(&mut self, key: &PodKey) -> Option<Pod> {
        let pod = self.all.remove(key)?;
        if let Some(names) = pod.owner.as_ref().and_then(|owner| self.owned.get_mut(owner)) {
            names.remove(key);
        }
        Some(pod)
    }

    pub(super) fn get(&self, key: &PodKey) -> Option<&Pod> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &PodKey) -> Option<&mut Pod> {
        self.all.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.all.values()
    }

    pub(super) fn owned_by(&self, owner: &WorkloadId) -> impl Iterator<Item = &Pod> {
        self.owned.get(owner).into_iter().flatten().filter_map(|key| self.all.get(key))
    }
}

pub(super) struct WorldState {
    pub(super) cluster: ClusterIdentity,
    pub(super) now: Timestamp,
    pub(super) seed: u64,
    pub(super) counters: IdCounters,
    pub(super) instances: BTreeMap<InstanceId, Instance>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) pods: PodTable,
    pub(super) templates: BTreeMap<String, Arc<PodTemplate>>,
    pub(super) controllers: BTreeMap<WorkloadId, WorkloadController>,
    /// Failures of Jobs, for those with known limits.
    pub(super) jobs: BTreeMap<WorkloadId, LiveJob>,
    pub(super) registrations: BTreeMap<InstanceId, NodeRegistration>,
    pub(super) tokens: BTreeMap<String, ClientToken>,
    pub(super) timers: BTreeSet<Timer>,
    /// True if a [`ScheduledEvent::Tick`] is scheduled.
    pub(super) tick_due: bool,
    pub(super) budgets: Vec<WorldBudget>,
    pub(super) namespaces: BTreeMap<Namespace, Labels>,
    pub(super) unavailable: Vec<OfferingOutage>,
    pub(super) reported: Vec<ReportedResources>,
    /// The images of node class selectors.
    pub(super) resolved: Resolved,
    pub(super) storage: Storage,
    /// Attach limits of the EBS driver by type, computed once.
    pub(super) ebs_limits: BTreeMap<InstanceTypeName, Option<u32>>,
    pub(super) exclusions: Vec<Exclusion>,
    pub(super) reservations: BTreeMap<ReservationId, Reservation>,
    pub(super) fargate_profiles: BTreeMap<String, FargateProfile>,
    /// Autoscaler status of the initial world.
    pub(super) scaling: Scaling,
    pub(super) groups: BTreeMap<GroupName, Group>,
    /// Objects that no client understands.
    pub(super) unread: Vec<UnreadObject>,
    /// Pools of an observed world.
    pub(super) pools: Option<Arc<ClusterPools>>,
    pub(super) launch_templates: BTreeMap<GroupName, LaunchTemplate>,
    /// True if pods that are asked to stop never end, as with a finalizer.
    pub(super) pods_stall: bool,
    /// Divisor of all durations in [`delay`].
    pub(super) speedup: u32,
    /// The name of the next node, if it is free.
    pub(super) next_node_name: Option<NodeName>,
    pub(super) pod_shape: ShapeFn,
    /// Computed shapes, by namespace and template.
    shapes: BTreeMap<(Namespace, String), Arc<PodShape>>,
}

impl WorldState {
    pub(super) fn new(genesis: &WorldInit, pod_shape: ShapeFn) -> Self {
        Self {
            cluster: genesis.cluster.clone(),
            now: genesis.now,
            seed: genesis.seed,
            counters: IdCounters::default(),
            instances: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pods: PodTable::default(),
            templates: BTreeMap::new(),
            controllers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            registrations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            timers: BTreeSet::new(),
            tick_due: false,
            budgets: Vec::new(),
            namespaces: BTreeMap::new(),
            unavailable: Vec::new(),
            reported: Vec::new(),
            resolved: Resolved::default(),
            storage: Storage::default(),
            ebs_limits: BTreeMap::new(),
            exclusions: Vec::new(),
            reservations: BTreeMap::new(),
            fargate_profiles: BTreeMap::new(),
            scaling: Scaling::default(),
            groups: BTreeMap::new(),
            unread: Vec::new(),
            pools: None,
            launch_templates: BTreeMap::new(),
            pods_stall: false,
            speedup: 1,
            next_node_name: None,
            pod_shape,
            shapes: BTreeMap::new(),
        }
    }

    /// Returns the world as a world file, in stable order.
    pub(super) fn observed(&self) -> Observed {
        let used: BTreeSet<&str> = self
            .pods
            .iter()
            .map(|pod| &*pod.template)
            .chain(self.controllers.values().filter_map(|c| c.template.as_deref()))
            .collect();
        let mut observed = Observed::empty(self.cluster.clone(), self.now);
        observed.instances.clone_from(&self.instances);
        observed.nodes.clone_from(&self.nodes);
        observed.workloads = self.live_workloads();
        let has_ended = |job: &LiveJob| {
            let controller = self.controllers.get(&job.id);
            controller.and_then(|known| known.job).is_some_and(|job| job.ended)
        };
        observed.jobs = self.jobs.values().filter(|job| !has_ended(job)).cloned().collect();
        let in_use = |(key, _): &(&String, _)| used.contains(key.as_str());
        observed.templates = self
            .templates
            .iter()
            .filter(in_use)
            .map(|(key, template)| (key.clone(), template.clone()))
            .collect();
        observed.pods = self.pods.iter().cloned().map(Arc::new).collect();
        observed.storage.clone_from(&self.storage);
        observed.resolved.clone_from(&self.resolved);
        observed.exclusions.clone_from(&self.exclusions);
        observed.reservations.clone_from(&self.reservations);
        observed.groups.clone_from(&self.groups);
        observed.fargate_profiles.clone_from(&self.fargate_profiles);
        observed.scaling.clone_from(&self.scaling);
        observed.unread.clone_from(&self.unread);
        observed.pools.clone_from(&self.pools);
        observed
    }

    pub(super) fn live_workloads(&self) -> Vec<LiveWorkload> {
        let live = |(id, controller): (&WorkloadId, &WorkloadController)| LiveWorkload {
            id: id.clone(),
            replicas: controller.replicas,
            first_ordinal: controller.first_ordinal,
            delivered: controller.delivered,
            template: controller.template.clone(),
            job: controller.job,
        };
        self.controllers.iter().map(live).collect()
    }

    /// Returns the shape of a pod, or `None` if its template is unknown.
    pub(super) fn shape(&mut self, namespace: &Namespace, template: &str) -> Option<Arc<PodShape>> {
        let key = (namespace.clone(), template.to_owned());
        if let Some(shape) = self.shapes.get(&key) {
            return Some(shape.clone());
        }
        let shape = Arc::new((self.pod_shape)(namespace, self.templates.get(template)?));
        self.shapes.insert(key, shape.clone());
        Some(shape)
    }

    /// Schedules an event after `delay`.
    pub(super) fn after(&mut self, delay: SignedDuration, due: ScheduledEvent) {
        let pace = i32::try_from(self.speedup).unwrap_or(i32::MAX);
        let at = later(self.now, delay.checked_div(pace).unwrap_or(delay));
        self.counters.timers += 1;
        self.timers.insert(Timer { at, order: self.counters.timers, due });
    }

    /// Schedules a scheduler run.
    pub(super) fn wake_scheduler(&mut self) {
        if !self.tick_due {
            self.tick_due = true;
            self.after(delay::SCHEDULED, ScheduledEvent::Tick);
        }
    }

    /// Advances the time to `until` and runs all due events in order.
    pub(super) fn advance(&mut self, until: Timestamp) {
        while let Some(timer) = self.timers.pop_first() {
            if timer.at > until {
                self.timers.insert(timer);
                break;
            }
            self.now = self.now.max(timer.at);
            self.handle(timer.due);
        }
        self.now = self.now.max(until);
    }

    /// Advances the time until only cleanup events are due, at most `limit`.
    pub(super) fn settle(&mut self, limit: SignedDuration) {
        let end = later(self.now, limit);
        while let Some(at) =
            self.timers.iter().find(|timer| !timer.due.is_cleanup()).map(|timer| timer.at)
        {
            if at > end {
                break;
            }
            self.advance(at);
        }
    }

    fn handle(&mut self, due: ScheduledEvent) {
        match due {
            ScheduledEvent::Runs { instance } => self.mark_instance_running(&instance),
            ScheduledEvent::Registers { instance } => self.register_node(&instance),
            ScheduledEvent::Ready { instance } => self.mark_node_ready(&instance),
            ScheduledEvent::Initialized { instance, startup_taints } => {
                self.remove_startup_taints(&instance, &startup_taints);
            }
            ScheduledEvent::Gone { instance } => self.mark_instance_terminated(&instance),
            ScheduledEvent::NodeRemoved { node, uid } => self.remove_node(&node, &uid),
            ScheduledEvent::Forgotten { instance } => {
                self.instances.remove(&instance);
            }
            ScheduledEvent::TokenExpired { token } => {
                self.tokens.remove(&token);
            }
            ScheduledEvent::PodRuns { pod } => self.mark_pod_running(&pod),
            ScheduledEvent::PodStopped { pod } => self.remove_stopped_pod(&pod),
            ScheduledEvent::GroupActs { group } => self.reconcile_group(&group),
            ScheduledEvent::Tick => {
                self.tick_due = false;
                self.tick();
            }
        }
    }

    /// Returns a new instance ID.
    pub(super) fn next_instance(&mut self) -> InstanceId {
        self.counters.instances += 1;
        format!("{INSTANCE_PREFIX}{:012x}", self.counters.instances).into()
    }

    /// Returns a new UID.
    pub(super) fn next_uid(&mut self) -> Uid {
        self.counters.uids += 1;
        format!("{UID_PREFIX}{:012x}", self.counters.uids).into()
    }
}
