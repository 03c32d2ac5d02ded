//! The state of a world, its pods by owner, and the events that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::budgets::Budget;
use super::images::IMAGE_PREFIX;
use super::{Genesis, LaunchTemplate, ShapeOf, delay};
use crate::catalog::CapacityType;
use crate::demand::PodShape;
use crate::fargate::Profile;
use crate::fleet::{
    ClusterIdentity, Exclusion, Group, Instance, LiveWorkload, Node, Observed, Pod, Reservation,
    Resolved, Scaling,
};
use crate::ids::{
    GroupName, InstanceId, InstanceTypeName, Labels, Namespace, NodeName, ReservationId, Uid,
    WorkloadId, ZoneName,
};
use crate::pod::{PodTemplate, Taint};
use crate::storage::Storage;
use crate::units::Resources;

/// An offering that has no capacity; a part that is absent means any.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unavailable {
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

/// What every node of a type reports, whatever its launch expected: hardware and images decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// The type.
    pub instance_type: InstanceTypeName,
    /// Capacity.
    pub capacity: Resources,
    /// What of it pods may use.
    pub allocatable: Resources,
}

/// What a launched machine will register as.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) labels: Labels,
    pub(super) taints: Vec<Taint>,
    pub(super) startup_taints: Vec<Taint>,
    pub(super) capacity: Resources,
    pub(super) allocatable: Resources,
}

/// A client token that was used.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Token {
    /// Hash over the parameters it was used with.
    pub(super) parameters: String,
    pub(super) instance: InstanceId,
}

/// The controller of a workload.
#[derive(Debug, Clone)]
pub(super) struct Controller {
    pub(super) replicas: u32,
    /// The number of the first pod of a `StatefulSet`.
    pub(super) first_ordinal: u32,
    pub(super) delivered: bool,
    /// Key of the template of new pods; `None` where no one delivered the workload.
    pub(super) template: Option<String>,
}

/// Numbers that have been given out.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counters {
    pub(super) instances: u64,
    pub(super) images: u64,
    pub(super) uids: u64,
    pub(super) pods: u64,
    pub(super) timers: u64,
    pub(super) ticks: u64,
}

/// What the UIDs of simulated objects begin with.
const UID_PREFIX: &str = "00000000-0000-4000-8000-";
/// What the ids of simulated instances begin with: EC2's have 17 digits.
const INSTANCE_PREFIX: &str = "i-00000";

impl Counters {
    /// Returns counters that are past every id in `observed` that another simulation gave out.
    pub(super) fn beyond(observed: &Observed) -> Self {
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

/// A pod at one time: a name may be used again, a UID never is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PodRef {
    pub(super) namespace: Namespace,
    pub(super) name: Arc<str>,
    pub(super) uid: Uid,
}

/// Something that will happen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Due {
    /// The instance runs.
    Runs { instance: InstanceId },
    /// Its node registers.
    Registers { instance: InstanceId },
    /// Its node is Ready.
    Ready { instance: InstanceId },
    /// Its node loses its startup taints.
    Initialized { instance: InstanceId, startup_taints: Vec<Taint> },
    /// The instance is gone.
    Gone { instance: InstanceId },
    /// The node controller removes the node.
    NodeRemoved { node: NodeName, uid: Uid },
    /// EC2 no longer shows the instance.
    Forgotten { instance: InstanceId },
    /// EC2 no longer knows the token.
    TokenExpired { token: String },
    /// The pod runs.
    PodRuns { pod: PodRef },
    /// The pod has stopped.
    PodStopped { pod: PodRef },
    /// The group launches what it lacks.
    GroupActs { group: GroupName },
    /// The scheduler looks at what is pending.
    Tick,
}

impl Due {
    /// Returns whether the event only tidies up: nobody waits for it.
    fn is_tidying(&self) -> bool {
        matches!(self, Self::Forgotten { .. } | Self::TokenExpired { .. })
    }

    /// Returns the instance whose boot the event belongs to.
    pub(super) fn boots(&self) -> Option<&InstanceId> {
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

/// An event and its time; events of one moment happen in the order in which they were set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Timer {
    pub(super) at: Timestamp,
    pub(super) order: u64,
    #[serde(flatten)]
    pub(super) due: Due,
}

/// Pods by name, and by owner.
#[derive(Debug, Default)]
pub(super) struct Pods {
    all: BTreeMap<PodKey, Pod>,
    owned: BTreeMap<WorkloadId, BTreeSet<PodKey>>,
}

impl Pods {
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

    pub(super) fn of(&self, owner: &WorkloadId) -> impl Iterator<Item = &Pod> {
        self.owned.get(owner).into_iter().flatten().filter_map(|key| self.all.get(key))
    }
}

/// Everything that a world is.
pub(super) struct State {
    pub(super) cluster: ClusterIdentity,
    pub(super) now: Timestamp,
    pub(super) seed: u64,
    pub(super) counters: Counters,
    pub(super) instances: BTreeMap<InstanceId, Instance>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) pods: Pods,
    pub(super) templates: BTreeMap<String, Arc<PodTemplate>>,
    pub(super) controllers: BTreeMap<WorkloadId, Controller>,
    pub(super) machines: BTreeMap<InstanceId, Machine>,
    pub(super) tokens: BTreeMap<String, Token>,
    pub(super) timers: BTreeSet<Timer>,
    /// Whether [`Due::Tick`] is among them.
    pub(super) tick_due: bool,
    pub(super) budgets: Vec<Budget>,
    pub(super) namespaces: BTreeMap<Namespace, Labels>,
    pub(super) unavailable: Vec<Unavailable>,
    pub(super) reported: Vec<Reported>,
    /// What the words of node classes mean.
    pub(super) resolved: Resolved,
    pub(super) storage: Storage,
    /// What the EBS driver registers, by type; worked out once for each.
    pub(super) ebs_limits: BTreeMap<InstanceTypeName, Option<u32>>,
    pub(super) exclusions: Vec<Exclusion>,
    pub(super) reservations: BTreeMap<ReservationId, Reservation>,
    pub(super) fargate_profiles: BTreeMap<String, Profile>,
    /// What autoscalers last saw, as the world that this one began with had it.
    pub(super) scaling: Scaling,
    pub(super) groups: BTreeMap<GroupName, Group>,
    pub(super) launch_templates: BTreeMap<GroupName, LaunchTemplate>,
    /// How many times quicker than [`delay`] says everything goes.
    pub(super) pace: u32,
    /// What the next node to join is called, where that is no other one's name.
    pub(super) next_name: Option<NodeName>,
    pub(super) shape_of: ShapeOf,
    /// Shapes made so far, by namespace and template.
    shapes: BTreeMap<(Namespace, String), Arc<PodShape>>,
}

impl State {
    pub(super) fn new(genesis: &Genesis, shape_of: ShapeOf) -> Self {
        Self {
            cluster: genesis.cluster.clone(),
            now: genesis.now,
            seed: genesis.seed,
            counters: Counters::default(),
            instances: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pods: Pods::default(),
            templates: BTreeMap::new(),
            controllers: BTreeMap::new(),
            machines: BTreeMap::new(),
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
            launch_templates: BTreeMap::new(),
            pace: 1,
            next_name: None,
            shape_of,
            shapes: BTreeMap::new(),
        }
    }

    /// Returns the world as a world file shows it, rows in order.
    pub(super) fn observed(&self) -> Observed {
        let used: BTreeSet<&str> = self
            .pods
            .iter()
            .map(|pod| pod.template.as_str())
            .chain(self.controllers.values().filter_map(|c| c.template.as_deref()))
            .collect();
        let mut observed = Observed::empty(self.cluster.clone(), self.now);
        observed.instances.clone_from(&self.instances);
        observed.nodes.clone_from(&self.nodes);
        observed.workloads = self.live_workloads();
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
        observed
    }

    pub(super) fn live_workloads(&self) -> Vec<LiveWorkload> {
        let live = |(id, controller): (&WorkloadId, &Controller)| LiveWorkload {
            id: id.clone(),
            replicas: controller.replicas,
            first_ordinal: controller.first_ordinal,
            delivered: controller.delivered,
            template: controller.template.clone(),
        };
        self.controllers.iter().map(live).collect()
    }

    /// Returns what a pod asks for; `None` where its template is not known.
    pub(super) fn shape(&mut self, namespace: &Namespace, template: &str) -> Option<Arc<PodShape>> {
        let key = (namespace.clone(), template.to_owned());
        if let Some(shape) = self.shapes.get(&key) {
            return Some(shape.clone());
        }
        let shape = Arc::new((self.shape_of)(namespace, self.templates.get(template)?));
        self.shapes.insert(key, shape.clone());
        Some(shape)
    }

    /// Makes an event due in `delay`.
    pub(super) fn after(&mut self, delay: SignedDuration, due: Due) {
        let pace = i32::try_from(self.pace).unwrap_or(i32::MAX);
        let at = later(self.now, delay.checked_div(pace).unwrap_or(delay));
        self.counters.timers += 1;
        self.timers.insert(Timer { at, order: self.counters.timers, due });
    }

    /// Has the scheduler look at what is pending, soon.
    pub(super) fn wake_scheduler(&mut self) {
        if !self.tick_due {
            self.tick_due = true;
            self.after(delay::SCHEDULED, Due::Tick);
        }
    }

    /// Lets time pass until `until`; every event due happens at its time, in order.
    pub(super) fn advance(&mut self, until: Timestamp) {
        while let Some(timer) = self.timers.pop_first() {
            if timer.at > until {
                self.timers.insert(timer);
                break;
            }
            self.now = self.now.max(timer.at);
            self.happen(timer.due);
        }
        self.now = self.now.max(until);
    }

    /// Lets time pass until nothing but tidying is due, at most `limit`.
    pub(super) fn settle(&mut self, limit: SignedDuration) {
        let end = later(self.now, limit);
        while let Some(at) =
            self.timers.iter().find(|timer| !timer.due.is_tidying()).map(|timer| timer.at)
        {
            if at > end {
                break;
            }
            self.advance(at);
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Runs { instance } => self.instance_runs(&instance),
            Due::Registers { instance } => self.node_registers(&instance),
            Due::Ready { instance } => self.node_ready(&instance),
            Due::Initialized { instance, startup_taints } => {
                self.node_initialized(&instance, &startup_taints);
            }
            Due::Gone { instance } => self.instance_gone(&instance),
            Due::NodeRemoved { node, uid } => self.remove_node(&node, &uid),
            Due::Forgotten { instance } => {
                self.instances.remove(&instance);
            }
            Due::TokenExpired { token } => {
                self.tokens.remove(&token);
            }
            Due::PodRuns { pod } => self.pod_runs(&pod),
            Due::PodStopped { pod } => self.pod_stopped(&pod),
            Due::GroupActs { group } => self.group_acts(&group),
            Due::Tick => {
                self.tick_due = false;
                self.tick();
            }
        }
    }

    /// Returns an id that no instance had before.
    pub(super) fn next_instance(&mut self) -> InstanceId {
        self.counters.instances += 1;
        format!("{INSTANCE_PREFIX}{:012x}", self.counters.instances).into()
    }

    /// Returns a UID that no object had before.
    pub(super) fn next_uid(&mut self) -> Uid {
        self.counters.uids += 1;
        format!("{UID_PREFIX}{:012x}", self.counters.uids).into()
    }
}

/// Returns the moment `delay` after `at`, or the last one there is.
pub(super) fn later(at: Timestamp, delay: SignedDuration) -> Timestamp {
    at.checked_add(delay).unwrap_or(Timestamp::MAX)
}
