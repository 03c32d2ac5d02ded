//! Rows: one resource, its states before and after, and its actions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{ProviderName, ResourceMode, drop_derived};
use crate::model::ids::{
    Address, GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, NodeName, PoolName,
    ReservationId, Uid, ZoneId, ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::pod::Taint;
use crate::model::units::{Bytes, MilliCpu, Resources};

/// One row: a resource and its change.
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
    /// `managed`. Only outputs have it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "drop_derived")]
    pub mode: Option<ResourceMode>,
    /// Provider of the resource. Only outputs have it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "drop_derived")]
    pub provider_name: Option<ProviderName>,
    /// The change.
    pub change: Change,
    /// Short reason from an open set of words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_reason: Option<String>,
}

impl ResourceChange {
    /// Returns the pool of the row, or its name if it has no pool.
    pub fn pool(&self) -> PoolName {
        let side = self.change.after.as_ref().or(self.change.before.as_ref());
        let pool = side.and_then(|side| side.pool.clone());
        pool.unwrap_or_else(|| PoolName::from(self.name.as_str()))
    }
}

/// Resource types.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// An EC2 instance with its node.
    Ec2Instance,
    /// A node without a managed instance.
    KubernetesNode,
    /// An Auto Scaling group.
    AutoscalingGroup,
}

impl ResourceKind {
    /// Returns the type as it appears in addresses.
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
    /// State before the apply; null if the resource does not exist.
    pub before: Option<NodeState>,
    /// State after the apply; null if the resource is deleted.
    pub after: Option<NodeState>,
    /// Keys of `after` that are known only after the apply.
    #[serde(default)]
    pub after_unknown: BTreeMap<String, bool>,
    /// Seconds from the cordon of the node until the pods that are still on it are deleted, past
    /// their disruption budgets. Only drifted and expired nodes of pools with a
    /// `terminationGracePeriod` have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_seconds: Option<u64>,
}

/// One action.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// No change.
    NoOp,
    /// A resource is created.
    Create,
    /// A resource is changed in place.
    Update,
    /// A resource is deleted.
    Delete,
}

/// State of a node or an Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// Pool; absent for a resource without a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Instance type; absent for a node without one.
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
    /// Permanent taints.
    pub taints: Vec<Taint>,
    /// Taints that keep new pods away and no running pod: those that are removed when the node is
    /// initialized, and those that an operator set against running pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Capacity that the node reports.
    pub capacity: Amount,
    /// Resources for pods, including DaemonSet pods.
    pub allocatable: Amount,
    /// Capacity reservation that the instance uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Keys of labels whose values the pool does not set. A launch stores these labels as tags, so
    /// that they are known before the node joins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_labels: Vec<LabelKey>,
    /// Digest of pool template and node class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Instance id, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// Node name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Node UID, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<Uid>,
    /// Launch time of an existing instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_at: Option<Timestamp>,
    /// Size of a group; present only on the row of the group, which has no amounts of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupSize>,
}

impl NodeState {
    /// Returns the node name: the instance id while no node has joined.
    pub fn name_or_instance_id(&self) -> Option<NodeName> {
        let of_instance = || self.instance_id.as_ref().map(|id| NodeName::from(id.as_str()));
        self.node.clone().or_else(of_instance)
    }

    /// Returns a state without properties, for a resource that is not a node.
    pub(crate) fn empty() -> Self {
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

/// Size of an Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GroupSize {
    /// Group name; absent if the observation has no such group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<GroupName>,
    /// Minimum number of members.
    pub min: u32,
    /// Maximum number of members.
    pub max: u32,
    /// Desired number of members.
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
