//! The answer of the solver.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::CapacityType;
use crate::ids::{
    Address, InstanceTypeName, LabelKey, Labels, NodeClassName, NodeName, PoolName, ReservationId,
    WorkloadId, ZoneId, ZoneName,
};
use crate::pod::Taint;
use crate::units::{MicroUsd, Resources};

/// The fleet to have, and why.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// Nodes to launch, in a fixed order; `placements` refers to them by index.
    pub launches: Vec<Launch>,
    /// Observed nodes that stay, by name, with the reason.
    pub keeps: BTreeMap<NodeName, KeepReason>,
    /// Observed nodes that go, by name.
    pub retires: BTreeMap<NodeName, Retire>,
    /// Where the pods are: group index → node → count, for every placed pod.
    pub placements: BTreeMap<usize, BTreeMap<Place, u32>>,
    /// What keeps the placed pods of each group off the nodes that hold none of them, and off how
    /// many; empty where the fleet is too large to ask.
    pub elsewhere: BTreeMap<usize, Vec<Rejection>>,
    /// Pods that have no place, by group index.
    pub unplaced: Vec<Unplaced>,
    /// Price per hour of the tightest packing found.
    pub packed: MicroUsd,
    /// Orders in which the placement was rehearsed.
    pub orders: Vec<String>,
    /// Of a fleet whose pods are nominated to their nodes: what would be missing without.
    pub unsteered: Option<Unsteered>,
    /// A bound below the hourly price of every fleet that holds all placed pods.
    pub lower_bound: MicroUsd,
    /// Where there are limits to what one node or zone may hold: what they come to.
    pub failure_domains: Option<KeptApart>,
}

/// What it comes to that one node or zone may only hold so much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptApart {
    /// Price per hour above that of the fleet without the limits.
    pub hourly: MicroUsd,
    /// Limits that are not reached, each with the node or zone that holds most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<Beyond>,
}

/// A node or zone that holds more than it is to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Beyond {
    /// Pool.
    pub pool: PoolName,
    /// Workload; `None` where the limit is about all pods of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadId>,
    /// What holds too many.
    pub domain: DomainKind,
    /// Pods that it holds.
    pub holds: u32,
    /// Pods that the limit is a share of.
    pub of: u32,
    /// Pods that it is to hold at most.
    pub most: u32,
}

/// What may fail as one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DomainKind {
    /// A node.
    Node,
    /// A zone.
    Zone,
}

/// What a steered fleet lacks if no pod goes to the node that it is nominated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unsteered {
    /// Most pods that an order would leave pending.
    pub pending: u32,
    /// Nodes that would have to be added, so that no order leaves any.
    pub nodes: u32,
    /// Price per hour of these nodes.
    pub hourly: MicroUsd,
}

/// A node that a pod is placed on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A node that is there.
    Node(NodeName),
    /// A node that is to be launched, by index into [`Target::launches`].
    Launch(usize),
}

/// A node to launch, and why.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What to launch.
    pub node: NewNode,
    /// Why.
    pub reason: LaunchReason,
    /// The batch it shares with the nodes it replaces; `None` where it replaces nothing.
    pub batch: Option<usize>,
    /// What was looked at and not taken.
    pub rejected: Vec<Rejection>,
}

impl Launch {
    /// Returns whether it was decided on before any pod was placed, for a pool of a fixed size.
    pub(super) fn is_fixed(&self) -> bool {
        match &self.reason {
            LaunchReason::Static { .. } | LaunchReason::Replacement { .. } => true,
            LaunchReason::Demand { .. } | LaunchReason::Consolidation { .. } => false,
        }
    }
}

/// A node that goes, and why.
#[derive(Debug, Clone)]
pub struct Retire {
    /// Why.
    pub reason: RetireReason,
    /// The batch it shares with the nodes that replace it; `None` where nothing does.
    pub batch: Option<usize>,
}

/// Everything decided about a node to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNode {
    /// Pool.
    pub pool: PoolName,
    /// Node class.
    pub node_class: NodeClassName,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone name.
    pub zone: ZoneName,
    /// Zone id.
    pub zone_id: ZoneId,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Image as the node class names it.
    pub image: String,
    /// Every label that the node will have, host name excepted.
    pub labels: Labels,
    /// Taints that remain once the node is initialized.
    pub taints: Vec<Taint>,
    /// Taints that are gone once the node is initialized.
    pub startup_taints: Vec<Taint>,
    /// What the node will report as capacity; pool limits count this.
    pub capacity: Resources,
    /// What its pods may use, DaemonSet pods included.
    pub allocatable: Resources,
    /// Price per hour.
    pub price: MicroUsd,
    /// Whether the price stands in for one that is not known.
    pub price_estimated: bool,
    /// Digest of pool template and node class, kept as a tag: tells later whether they changed.
    pub spec_digest: String,
    /// Capacity reservation that it is launched into; it, and no other capacity.
    pub reservation: Option<ReservationId>,
    /// Keys among `labels` whose values the pool leaves open; kept as tags.
    pub open_labels: Vec<LabelKey>,
    /// Names of the node overlays that changed its price or capacity.
    pub overlays: Vec<String>,
    /// Demands for distinct values that it and its alternatives do not meet.
    pub relaxed: Vec<Relaxed>,
    /// Offerings that can stand in, cheapest first.
    pub alternatives: Vec<Alternative>,
}

/// A demand of a pool for distinct values (`minValues`) that is not met.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Relaxed {
    /// The key.
    pub key: LabelKey,
    /// How many distinct values the pool demands.
    pub demanded: u32,
    /// How many there are.
    pub remain: u32,
}

/// An offering that can hold the same pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alternative {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Price per hour.
    pub hourly: MicroUsd,
}

/// Pods of one group that have no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaced {
    /// Index of the group.
    pub group: usize,
    /// How many pods.
    pub pods: u32,
    /// How many offerings (pool × type × zone × capacity type) each reason ruled out.
    pub rejections: Vec<Rejection>,
    /// How many offerings were looked at.
    pub offerings: u32,
    /// The change that would help, in words, where one is known.
    pub nearest: Option<String>,
    /// What they do to others while they wait.
    pub contest: Contest,
    /// In which resource they are larger than every node that would admit them, in words; `None` where
    /// that is not what keeps them out.
    pub oversize: Option<String>,
}

/// What pods without a place do to others while they wait in kube-scheduler's queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contest {
    /// How many of them kube-scheduler lets in all the same, by evicting others.
    pub let_in: u32,
    /// The pods that are evicted for them, by workload.
    pub evicts: BTreeMap<String, u32>,
    /// Placed pods that wait in their stead where they come first, by workload: the most in any
    /// order that was rehearsed.
    pub displaces: BTreeMap<String, u32>,
}

/// A reason, and how many offerings or nodes it ruled out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// The reason: a stable code such as `too-small`, `wrong-zone`, `limit-reached`, `dearer`.
    pub reason: String,
    /// What exactly, with numbers, such as `memory: needs 96Gi, largest has 61Gi`.
    pub detail: String,
    /// How many it ruled out.
    pub count: u32,
}

/// Why a node is launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LaunchReason {
    /// Pods have no room on what is there.
    Demand {
        /// How many pods the node is for, by workload.
        pods: BTreeMap<String, u32>,
    },
    /// It takes the pods of nodes that cost more.
    Consolidation {
        /// What the batch saves per hour.
        saves_hourly: MicroUsd,
        /// How many running pods the batch moves.
        moves: u32,
    },
    /// Its pool has a fixed number of nodes (`replicas`), and fewer are there.
    Static {
        /// How many nodes the pool declares.
        declared: u32,
        /// How many are there.
        there: u32,
    },
    /// It takes the place of a node that must go for another reason.
    Replacement {
        /// The node it replaces.
        of: Address,
        /// Why that goes.
        because: Box<RetireReason>,
    },
}

/// Why a node goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RetireReason {
    /// Nothing but DaemonSet pods is left on it, once workloads have shrunk to what is planned.
    Empty {
        /// What it costs per hour.
        saves_hourly: MicroUsd,
    },
    /// Its pods fit on other nodes, or on cheaper ones that replace it.
    Underutilized {
        /// What the batch saves per hour, replacements counted.
        saves_hourly: MicroUsd,
        /// How many running pods the batch moves.
        moves: u32,
        /// Hours until the saving has paid for the moves.
        payback_hours: u32,
    },
    /// Its pool has a fixed number of nodes (`replicas`), and more are there.
    Surplus {
        /// How many nodes the pool declares.
        declared: u32,
        /// How many are there.
        there: u32,
    },
    /// Its pool is no longer declared.
    PoolRemoved,
    /// It differs from what its pool declares.
    Drifted {
        /// The field.
        field: String,
        /// What the node has.
        is: String,
        /// What the pool declares.
        declared: String,
    },
    /// It is older than its pool allows.
    Expired {
        /// Its age, in hours.
        age_hours: u32,
        /// The most allowed, in hours.
        limit_hours: u32,
    },
    /// The user asked for it (`--replace`).
    Requested,
}

/// Why a node stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum KeepReason {
    /// Its pods need it, and nothing cheaper holds them.
    Needed {
        /// How many planned pods it holds.
        pods: u32,
    },
    /// A change would save something, but less than it takes to be worth the moves.
    NotWorthMoving {
        /// What the best change would save per hour.
        saves_hourly: MicroUsd,
        /// What it would have to save per hour.
        needed_hourly: MicroUsd,
        /// How many running pods it would move.
        moves: u32,
    },
    /// Something forbids to touch it.
    Blocked {
        /// What.
        by: BlockReason,
    },
    /// It is not ours.
    NotOurs,
}

/// What forbids to touch a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "block", rename_all = "kebab-case")]
pub enum BlockReason {
    /// The node carries `karpenter.sh/do-not-disrupt`.
    DoNotDisrupt,
    /// The node carries `cluster-autoscaler.kubernetes.io/scale-down-disabled`.
    ScaleDownDisabled,
    /// A pod on it may not be moved.
    PinnedPod {
        /// Its workload.
        workload: String,
    },
    /// A disruption budget never lets a pod on it be evicted, even while all are up.
    ProtectedPod {
        /// Its workload.
        workload: String,
        /// The budget, as namespace/name.
        budget: String,
    },
    /// Its pool lets only empty nodes go.
    PolicyWhenEmpty,
    /// Its pool never consolidates (`consolidateAfter: Never`).
    ConsolidationDisabled,
    /// The world was not read completely, or demand is unresolved.
    Unknown {
        /// What is not known.
        what: String,
    },
    /// Its pods would have no other place.
    NoOtherPlace,
    /// A pod on it uses something that placement does not know yet.
    UnsupportedPod {
        /// Its workload.
        workload: String,
        /// What it uses.
        feature: String,
    },
    /// It is not Ready yet, or has not joined.
    NotReady,
    /// The plan was limited to other addresses (`--target`, `--exclude`).
    NotTargeted,
    /// A budget of its pool is used up.
    Budget,
    /// Its pool has a fixed number of nodes.
    StaticPool,
    /// Its group has no more members than it must have.
    GroupMinimum {
        /// The fewest.
        minimum: u32,
    },
    /// Its group is only observed.
    GroupObserved {
        /// Why.
        why: String,
    },
    /// Another node of its pool, which has a fixed number of them, is replaced first.
    InTurn,
    /// To replace it, its pool would need room for one more node.
    NodeLimit {
        /// The pool's limit of nodes.
        limit: u32,
    },
}

/// Returns a key for `workload` as reasons write it.
#[must_use]
pub fn workload_key(workload: &WorkloadId) -> String {
    format!("{}/{}/{}", workload.namespace, workload.kind, workload.name)
}
