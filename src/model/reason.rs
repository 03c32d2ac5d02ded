//! Reasons to launch, retire and keep nodes, rejections and alternatives.
//!
//! Plans contain these types. Every word of the plan format is spelled out here, so that a variant
//! can be renamed and old plans stay readable.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::ids::{Address, InstanceTypeName, LabelKey, PoolName, WorkloadId, ZoneName};
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;

/// Effect of limits on the pods in one node or zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "KeptApart")]
pub struct FailureDomainReport {
    /// Price per hour above that of the fleet without the limits.
    pub hourly: MicroUsd,
    /// Limits that are exceeded, each with the node or zone that holds the most pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<ExceededLimit>,
}

/// A node or zone that exceeds its limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Beyond")]
pub struct ExceededLimit {
    /// Pool.
    pub pool: PoolName,
    /// Workload; `None` if the limit applies to all pods of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadId>,
    /// Kind of the failure domain that holds too many pods.
    pub domain: DomainKind,
    /// Number of pods in the domain.
    pub holds: u32,
    /// Number of pods that the limit is a share of.
    pub of: u32,
    /// Maximum number of pods in the domain.
    pub most: u32,
}

/// Kind of failure domain.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DomainKind {
    /// A node.
    #[serde(rename = "node")]
    Node,
    /// A zone.
    #[serde(rename = "zone")]
    Zone,
}

/// Shortage of a fleet with nominated pods if no nomination is honored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unsteered {
    /// Maximum number of pods that a simulated run leaves pending.
    pub pending: u32,
    /// Number of nodes to add so that no run leaves a pod pending.
    pub nodes: u32,
    /// Price per hour of these nodes.
    pub hourly: MicroUsd,
}

/// A `minValues` demand of a pool that is not met.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Relaxed {
    /// Label key.
    pub key: LabelKey,
    /// Number of distinct values that the pool demands.
    pub demanded: u32,
    /// Number of distinct values that remain.
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

/// A reason, with the number of offerings or nodes that it ruled out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// Stable code of the reason, such as `too-small`, `wrong-zone`, `limit-reached`, `dearer`.
    pub reason: String,
    /// Detail with numbers, such as `memory: needs 96Gi, largest has 61Gi`.
    pub detail: String,
    /// Number of offerings or nodes ruled out.
    pub count: u32,
}

/// Reason to launch a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum LaunchReason {
    /// Pods do not fit on existing nodes.
    #[serde(rename = "demand")]
    Demand {
        /// Number of pods that the node is for, by workload.
        pods: BTreeMap<String, u32>,
    },
    /// It takes over the pods of nodes that cost more.
    #[serde(rename = "consolidation")]
    Consolidation {
        /// Saving of the batch per hour.
        saves_hourly: MicroUsd,
        /// Number of running pods that the batch moves.
        moves: u32,
    },
    /// Its pool has a fixed number of nodes (`replicas`), and fewer exist.
    #[serde(rename = "static")]
    Static {
        /// Number of nodes that the pool declares.
        declared: u32,
        /// Number of nodes that exist.
        there: u32,
    },
    /// It replaces a node that must be retired for another reason.
    #[serde(rename = "replacement")]
    Replacement {
        /// Node to replace.
        of: Address,
        /// Reason to retire that node.
        because: Box<RetireReason>,
    },
}

/// Reason to retire a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum RetireReason {
    /// Only DaemonSet pods are left on it, once workloads are scaled to plan.
    #[serde(rename = "empty")]
    Empty {
        /// Price of the node per hour.
        saves_hourly: MicroUsd,
    },
    /// Its pods fit on other nodes, or on cheaper replacements.
    #[serde(rename = "underutilized")]
    Underutilized {
        /// Saving of the batch per hour, less the price of replacements.
        saves_hourly: MicroUsd,
        /// Number of running pods that the batch moves.
        moves: u32,
        /// Hours until the saving pays for the moves.
        payback_hours: u32,
    },
    /// Its pool has a fixed number of nodes (`replicas`), and more exist.
    #[serde(rename = "surplus")]
    Surplus {
        /// Number of nodes that the pool declares.
        declared: u32,
        /// Number of nodes that exist.
        there: u32,
    },
    /// Its pool is no longer declared.
    #[serde(rename = "pool-removed")]
    PoolRemoved,
    /// It differs from what its pool declares.
    #[serde(rename = "drifted")]
    Drifted {
        /// Field that differs.
        field: String,
        /// Value on the node.
        is: String,
        /// Value that the pool declares.
        declared: String,
    },
    /// It exceeds the maximum age of its pool.
    #[serde(rename = "expired")]
    Expired {
        /// Its age, in hours.
        age_hours: u32,
        /// Maximum age, in hours.
        limit_hours: u32,
    },
    /// The user asked for it (`--replace`).
    #[serde(rename = "requested")]
    Requested,
}

/// Reason to keep a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum KeepReason {
    /// Its pods need it, and no cheaper node holds them.
    #[serde(rename = "needed")]
    Needed {
        /// Number of planned pods on it.
        pods: u32,
    },
    /// A change would save less than the minimum for its moves.
    #[serde(rename = "not-worth-moving")]
    NotWorthMoving {
        /// Saving of the best change per hour.
        saves_hourly: MicroUsd,
        /// Minimum saving per hour.
        needed_hourly: MicroUsd,
        /// Number of running pods that the change would move.
        moves: u32,
    },
    /// A rule blocks changes of the node.
    #[serde(rename = "blocked")]
    Blocked {
        /// Blocking rule.
        by: BlockReason,
    },
    /// Fleetwright does not manage it.
    #[serde(rename = "not-ours")]
    NotOurs,
}

/// Rule that blocks changes of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "block")]
pub enum BlockReason {
    /// The node carries `karpenter.sh/do-not-disrupt`.
    #[serde(rename = "do-not-disrupt")]
    DoNotDisrupt,
    /// The node carries `cluster-autoscaler.kubernetes.io/scale-down-disabled`.
    #[serde(rename = "scale-down-disabled")]
    ScaleDownDisabled,
    /// A pod on it must not be moved.
    #[serde(rename = "pinned-pod")]
    PinnedPod {
        /// Its workload.
        workload: String,
    },
    /// A disruption budget never lets a pod on it be evicted, even while all are up.
    #[serde(rename = "protected-pod")]
    ProtectedPod {
        /// Its workload.
        workload: String,
        /// The budget, as namespace/name.
        budget: String,
    },
    /// Its pool consolidates empty nodes only.
    #[serde(rename = "policy-when-empty")]
    PolicyWhenEmpty,
    /// Its pool never consolidates (`consolidateAfter: Never`).
    #[serde(rename = "consolidation-disabled")]
    ConsolidationDisabled,
    /// The observed state is incomplete, or demand is unresolved.
    #[serde(rename = "unknown")]
    Unknown {
        /// Unknown part.
        what: String,
    },
    /// Its pods fit on no other node.
    #[serde(rename = "no-other-place")]
    NoOtherPlace,
    /// A pod on it uses a feature that placement does not support yet.
    #[serde(rename = "unsupported-pod")]
    UnsupportedPod {
        /// Its workload.
        workload: String,
        /// Feature that it uses.
        feature: String,
    },
    /// It is not Ready yet, or has not joined.
    #[serde(rename = "not-ready")]
    NotReady,
    /// The plan was limited to other addresses (`--target`, `--exclude`).
    #[serde(rename = "not-targeted")]
    NotTargeted,
    /// A budget of its pool is used up.
    #[serde(rename = "budget")]
    Budget,
    /// Its pool has a fixed number of nodes.
    #[serde(rename = "static-pool")]
    StaticPool,
    /// Its group is at its minimum size.
    #[serde(rename = "group-minimum")]
    GroupMinimum {
        /// Minimum number of members.
        minimum: u32,
    },
    /// Its group is observe-only.
    #[serde(rename = "group-observed")]
    GroupObserved {
        /// Reason.
        why: String,
    },
    /// Another node of its pool, which has a fixed size, is replaced first.
    #[serde(rename = "in-turn")]
    InTurn,
    /// Replacing it needs room for one more node in its pool.
    #[serde(rename = "node-limit")]
    NodeLimit {
        /// Node limit of the pool.
        limit: u32,
    },
}
