//! Rows: one resource, its states before and after, and what happens to it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::CapacityType;
use crate::ids::{
    Address, GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, NodeName, PoolName,
    ReservationId, Uid, ZoneId, ZoneName,
};
use crate::pod::Taint;
use crate::units::{Bytes, MilliCpu, Resources};

/// One row: a resource, and what happens to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceChange {
    /// Address, unique within the plan.
    pub address: Address,
    /// `ec2_instance`, `kubernetes_node` or `autoscaling_group`.
    #[serde(rename = "type")]
    pub kind: ResourceKind,
    /// Pool, node or group name.
    pub name: String,
    /// Key within the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// What happens.
    pub change: Change,
    /// A hint why, in words of an open set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_reason: Option<String>,
}

/// The types of resource.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// An EC2 instance with its node.
    Ec2Instance,
    /// A node without an instance of ours.
    KubernetesNode,
    /// An Auto Scaling group.
    AutoscalingGroup,
}

impl ResourceKind {
    /// Returns the type as addresses write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ec2Instance => "ec2_instance",
            Self::KubernetesNode => "kubernetes_node",
            Self::AutoscalingGroup => "autoscaling_group",
        }
    }
}

/// Actions, and the state before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// `["create"]`, `["delete"]`, `["create","delete"]` (replace), `["update"]` or `["no-op"]`.
    pub actions: Vec<Action>,
    /// What is there; null where nothing is.
    pub before: Option<NodeState>,
    /// What will be there; null where nothing will be.
    pub after: Option<NodeState>,
    /// Keys of `after` that are known only once it is applied.
    #[serde(default)]
    pub after_unknown: BTreeMap<String, bool>,
}

/// One action.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing changes.
    NoOp,
    /// Something new comes.
    Create,
    /// Something changes in place.
    Update,
    /// Something goes.
    Delete,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// Pool; absent for what belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Instance type; absent where a node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<InstanceTypeName>,
    /// Zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<ZoneName>,
    /// Zone id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<ZoneId>,
    /// Capacity type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Image as the node class names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels.
    pub labels: Labels,
    /// Taints that stay.
    pub taints: Vec<Taint>,
    /// Taints that are gone once the node is initialized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// What the node reports as capacity.
    pub capacity: Amount,
    /// What its pods may use, DaemonSet pods included.
    pub allocatable: Amount,
    /// Capacity reservation that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Keys of the labels whose values its pool leaves open: a launch keeps them as tags, so that
    /// the machine is known by them before its node has joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_labels: Vec<LabelKey>,
    /// Digest of pool template and node class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Instance id, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// Node name, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Node UID, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<Uid>,
    /// When the instance was launched, where it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_at: Option<Timestamp>,
    /// Size of a group; present on its row alone, which has no amounts of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupSize>,
}

impl NodeState {
    /// Returns the state of what is no node.
    #[must_use]
    pub(crate) fn nothing() -> Self {
        Self {
            pool: None,
            instance_type: None,
            zone: None,
            zone_id: None,
            capacity_type: None,
            image: None,
            labels: Labels::new(),
            taints: Vec::new(),
            startup_taints: Vec::new(),
            capacity: Amount::default(),
            allocatable: Amount::default(),
            reservation: None,
            open_labels: Vec::new(),
            spec_digest: None,
            instance_id: None,
            node: None,
            node_uid: None,
            launched_at: None,
            group: None,
        }
    }
}

/// The size of an Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GroupSize {
    /// Its name; absent where the world tells of no groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<GroupName>,
    /// Fewest members.
    pub min: u32,
    /// Most members.
    pub max: u32,
    /// Members that it is to have.
    pub desired: u32,
}

/// Resources with the unit in the key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    /// CPU in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Ephemeral storage in bytes.
    #[serde(default)]
    pub ephemeral_storage_bytes: i64,
    /// Number of pods.
    pub pods: i64,
    /// Extended resources, in whole units.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, i64>,
}

impl From<&Resources> for Amount {
    fn from(resources: &Resources) -> Self {
        let Resources { cpu, memory, ephemeral_storage, pods, extended } = resources;
        let extended = extended.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        Self {
            cpu_milli: cpu.0,
            memory_bytes: memory.0,
            ephemeral_storage_bytes: ephemeral_storage.0,
            pods: *pods,
            extended,
        }
    }
}

impl From<&Amount> for Resources {
    fn from(amount: &Amount) -> Self {
        let Amount { cpu_milli, memory_bytes, ephemeral_storage_bytes, pods, extended } = amount;
        Self {
            cpu: MilliCpu(*cpu_milli),
            memory: Bytes(*memory_bytes),
            ephemeral_storage: Bytes(*ephemeral_storage_bytes),
            pods: *pods,
            extended: extended.iter().map(|(name, n)| (name.as_str().into(), *n)).collect(),
        }
    }
}
