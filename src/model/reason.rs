//! Reasons to launch, retire and keep nodes; rejections and alternatives.
//!
//! Plans contain these types. Explicit serde names allow renaming a variant while old plans remain
//! readable.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::ids::{Address, InstanceTypeName, LabelKey, PoolName, WorkloadId, ZoneName};
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;

/// Effect of limits on the pods in one node or zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureDomainReport {
    /// Additional price per hour compared with the fleet without the limits.
    pub hourly: MicroUsd,
    /// Exceeded limits, each with the node or zone that has the most pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<ExceededLimit>,
}

/// A node or zone that exceeds its limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ExceededLimit {
    /// Pool.
    pub pool: PoolName,
    /// Workload; `None` if the limit applies to all pods of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadId>,
    /// Kind of the failure domain.
    pub domain: DomainKind,
    /// Number of pods in the domain.
    pub holds: u32,
    /// Total number of pods to which the maximum share applies.
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

/// Shortage of a fleet with nominated pods if kube-scheduler ignores all nominations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unsteered {
    /// Maximum number of pods that a simulated run leaves pending.
    pub pending: u32,
    /// Number of additional nodes with which every run places all pods. 0 if no nodes achieve that.
    pub nodes: u32,
    /// Price per hour of the additional nodes.
    pub hourly: MicroUsd,
}

/// Further nodes for pods that stay pending once the planned nodes are open. An approval of the plan
/// approves them too. They are launched only for such pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Contingency {
    /// Maximum number of further nodes.
    pub nodes: u32,
    /// Maximum price per hour of all further nodes.
    pub hourly: MicroUsd,
    /// Number of pods that may stay pending.
    pub pods: u32,
    /// Further nodes by pool, in the order of names.
    pub pools: Vec<PoolContingency>,
}

/// Further nodes of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolContingency {
    /// Pool.
    pub pool: PoolName,
    /// Maximum number of further nodes.
    pub nodes: u32,
    /// Maximum price per hour of these nodes.
    pub hourly: MicroUsd,
    /// Maximum price per hour of one of these nodes.
    pub node_hourly: MicroUsd,
    /// Instance types of these nodes, in the order of names. Any other type of the pool may take
    /// their place if it costs no more than `node_hourly`.
    pub instance_types: Vec<InstanceTypeName>,
}

/// An unmet `minValues` requirement of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Relaxed {
    /// Label key.
    pub key: LabelKey,
    /// Number of distinct values that the pool requires.
    pub demanded: u32,
    /// Number of distinct values that remain available.
    pub remain: u32,
}

/// An offering with enough capacity for the same pods.
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

/// A rejection reason, with the number of rejected offerings or nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// Stable code of the reason, such as `too-small`, `wrong-zone`, `limit-reached`, `dearer`.
    pub reason: String,
    /// Detail with numbers, such as `memory: needs 96Gi, largest has 61Gi`.
    pub detail: String,
    /// Number of rejected instance types, offerings or nodes.
    pub count: u32,
}

/// Reason to launch a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum LaunchReason {
    /// Pods do not fit on existing nodes.
    #[serde(rename = "demand")]
    Demand {
        /// Number of pods planned for the node, by workload. Pods that move from removed nodes of
        /// its batch do not count.
        pods: BTreeMap<String, u32>,
    },
    /// The node takes over the pods of more expensive nodes.
    #[serde(rename = "consolidation")]
    Consolidation {
        /// Saving of the batch per hour.
        saves_hourly: MicroUsd,
        /// Number of running pods that the batch moves.
        moves: u32,
    },
    /// The pool has a fixed number of nodes (`replicas`), and fewer exist.
    #[serde(rename = "static")]
    Static {
        /// Declared number of nodes of the pool.
        declared: u32,
        /// Number of existing nodes.
        there: u32,
    },
    /// The node replaces a node that must be retired for another reason.
    #[serde(rename = "replacement")]
    Replacement {
        /// Address of the replaced node.
        of: Address,
        /// Reason to retire the replaced node.
        because: Box<RetireReason>,
    },
}

/// Reason to retire a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum RetireReason {
    /// Only DaemonSet pods remain on the node after workloads are scaled as planned.
    #[serde(rename = "empty")]
    Empty {
        /// Price of the node per hour.
        saves_hourly: MicroUsd,
    },
    /// The pods of the node fit on other nodes, or on cheaper replacements.
    #[serde(rename = "underutilized")]
    Underutilized {
        /// Saving of the batch per hour, minus the price of replacements. 0 if it is unknown,
        /// because the batch also makes room for more pods.
        saves_hourly: MicroUsd,
        /// Number of running pods that the batch moves.
        moves: u32,
        /// Hours until the saving pays for the moves. 0 without a saving.
        payback_hours: u32,
    },
    /// The pool has a fixed number of nodes (`replicas`), and more exist.
    #[serde(rename = "surplus")]
    Surplus {
        /// Declared number of nodes of the pool.
        declared: u32,
        /// Number of existing nodes.
        there: u32,
    },
    /// The pool is no longer declared.
    #[serde(rename = "pool-removed")]
    PoolRemoved,
    /// The node differs from the declaration of its pool.
    #[serde(rename = "drifted")]
    Drifted {
        /// Name of the changed field.
        field: String,
        /// Value on the node.
        is: String,
        /// Declared value.
        declared: String,
    },
    /// The node exceeds the maximum age of its pool.
    #[serde(rename = "expired")]
    Expired {
        /// Age in hours.
        age_hours: u32,
        /// Maximum age in hours.
        limit_hours: u32,
    },
    /// The user requested the replacement (`--replace`).
    #[serde(rename = "requested")]
    Requested,
}

/// A field in which a node or its instance differs from its pool or node class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftedField {
    /// Name of the field, such as `taint KEY`, `label KEY` or `tag KEY`.
    pub field: String,
    /// Value on the node.
    pub is: String,
    /// Declared value.
    pub declared: String,
}

/// Values of a field whose launched and declared values are not known: only their digests differ.
const AS_LAUNCHED: &str = "as launched";
const CHANGED_SINCE: &str = "changed since";

impl DriftedField {
    /// Returns the difference of a field that changed after the launch of the node.
    pub fn changed_after_launch(field: String) -> Self {
        Self { field, is: AS_LAUNCHED.to_owned(), declared: CHANGED_SINCE.to_owned() }
    }
}

/// Returns the text of a difference.
pub fn drifted_field_text(field: &str, is: &str, declared: &str) -> String {
    if (is, declared) == (AS_LAUNCHED, CHANGED_SINCE) {
        return format!("{field} changed after the launch");
    }
    format!("{field}: {is}, declared: {declared}")
}

impl From<DriftedField> for RetireReason {
    fn from(DriftedField { field, is, declared }: DriftedField) -> Self {
        Self::Drifted { field, is, declared }
    }
}

impl RetireReason {
    /// Returns true if the `terminationGracePeriod` of the pool bounds a drain for this reason. A
    /// drain that only saves cost, or that a user asks for, is abandoned instead.
    pub fn ends_drain_by_force(&self) -> bool {
        match self {
            Self::Drifted { .. } | Self::Expired { .. } => true,
            Self::Empty { .. }
            | Self::Underutilized { .. }
            | Self::Surplus { .. }
            | Self::PoolRemoved
            | Self::Requested => false,
        }
    }
}

/// Reason to keep a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum KeepReason {
    /// The pods of the node need it, and no cheaper replacement was found.
    #[serde(rename = "needed")]
    Needed {
        /// Number of pods planned on the node.
        pods: u32,
        /// True if a disruption budget of the pool bounds how many of its nodes go at a time: a
        /// change of more nodes may be cheaper.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        within_budget: bool,
    },
    /// Without the node, more pods would stay pending if all pods were created again.
    #[serde(rename = "needed-for-rescheduling")]
    NeededForRescheduling {
        /// Number of pods planned on the node.
        pods: u32,
    },
    /// A change would save less than the minimum for its moves.
    #[serde(rename = "not-worth-moving")]
    NotWorthMoving {
        /// Saving of the best change per hour.
        saves_hourly: MicroUsd,
        /// Minimum saving per hour.
        needed_hourly: MicroUsd,
        /// Number of running and awaited pods that the change would move.
        moves: u32,
        /// Number of nodes that the change would remove. It is set if the change is all moves of pods
        /// together, whose minimum is a share of the fleet's price.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes: Option<u32>,
    },
    /// A rule blocks changes of the node, whether or not one is due.
    #[serde(rename = "blocked")]
    Blocked {
        /// Blocking rule.
        by: BlockReason,
    },
    /// Fleetwright does not manage the node.
    #[serde(rename = "not-ours")]
    NotOurs,
}

/// Rule that blocks changes of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "block")]
pub enum BlockReason {
    /// The node, or the template of its pool, has `karpenter.sh/do-not-disrupt`.
    #[serde(rename = "do-not-disrupt")]
    DoNotDisrupt,
    /// The node carries `cluster-autoscaler.kubernetes.io/scale-down-disabled`.
    #[serde(rename = "scale-down-disabled")]
    ScaleDownDisabled,
    /// A pod on the node must not be moved.
    #[serde(rename = "pinned-pod")]
    PinnedPod {
        /// Workload of the pod.
        workload: String,
    },
    /// A disruption budget blocks the eviction of a pod on the node even if all its pods are
    /// healthy.
    #[serde(rename = "protected-pod")]
    ProtectedPod {
        /// Workload of the pod.
        workload: String,
        /// Disruption budget, as `namespace/name`.
        budget: String,
    },
    /// A Job counts evicted pods as failed, and might fail without its pods on the node.
    #[serde(rename = "job-might-fail")]
    JobMightFail {
        /// Job, as `Job namespace/name`, or the owner of a Job that is not known.
        job: String,
        /// Reason, as a phrase about the Job.
        why: String,
    },
    /// The pool consolidates only empty nodes.
    #[serde(rename = "policy-when-empty")]
    PolicyWhenEmpty,
    /// The pool never consolidates (`consolidateAfter: Never`).
    #[serde(rename = "consolidation-disabled")]
    ConsolidationDisabled,
    /// The node is younger than `consolidateAfter` of its pool.
    #[serde(rename = "consolidate-after")]
    ConsolidateAfter {
        /// `consolidateAfter`, in seconds.
        seconds: u64,
    },
    /// The observed state is incomplete, or demand is unresolved.
    #[serde(rename = "unknown")]
    Unknown {
        /// Description of the unknown part.
        what: String,
    },
    /// The pods of the node fit on no other node.
    #[serde(rename = "no-other-place")]
    NoOtherPlace,
    /// A pod on the node uses an unsupported scheduling feature.
    #[serde(rename = "unsupported-pod")]
    UnsupportedPod {
        /// Workload of the pod.
        workload: String,
        /// Unsupported feature.
        feature: String,
    },
    /// The instance of the node runs without tags of Fleetwright. The node counts in its pool.
    #[serde(rename = "tags-lost")]
    TagsLost {
        /// Instance.
        instance: String,
        /// Missing tags.
        missing: String,
    },
    /// The node is not Ready yet, or has not joined the cluster.
    #[serde(rename = "not-ready")]
    NotReady,
    /// The plan is limited to other addresses (`--target`, `--exclude`).
    #[serde(rename = "not-targeted")]
    NotTargeted,
    /// A disruption budget of the pool delays a removal.
    #[serde(rename = "budget")]
    Budget,
    /// An active disruption budget of the pool allows no consolidation, and the node has pods.
    #[serde(rename = "budget-zero")]
    BudgetZero,
    /// The pool has a fixed number of nodes.
    #[serde(rename = "static-pool")]
    StaticPool,
    /// The Auto Scaling group is at its minimum size.
    #[serde(rename = "group-minimum")]
    GroupMinimum {
        /// Minimum number of members.
        minimum: u32,
    },
    /// The Auto Scaling group is observe-only.
    #[serde(rename = "group-observed")]
    GroupObserved {
        /// Reason.
        why: String,
    },
    /// Another node of the fixed-size pool is replaced first.
    #[serde(rename = "in-turn")]
    InTurn,
    /// A replacement would exceed the node limit of the pool.
    #[serde(rename = "node-limit")]
    NodeLimit {
        /// Node limit of the pool.
        limit: u32,
    },
    /// A replacement would exceed other limits of the pool.
    #[serde(rename = "pool-limits")]
    PoolLimits {
        /// Reached limits, such as `cpu 8`.
        limits: String,
    },
}
