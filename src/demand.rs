//! Computes the number and the shape of the pods to place, from desired and observed state
//! ([`Demand`]).
//!
//! This module covers workloads, autoscalers and the defaults that complete a pod: limit ranges,
//! priority classes and runtime classes. It is independent of instance types, prices and plans.
//!
//! Invariant: every declared workload, and every live pod that still needs capacity, is in the
//! result exactly once. It is part of a group, a daemon, a Fargate entry or an unresolved entry.

mod admission;
mod build;
mod capacity_buffer;
mod cluster_proportional;
mod controller_labels;
mod device_claims;
mod do_not_disrupt;
mod fargate;
mod hooks;
mod hpa;
mod job_evictions;
mod jobs;
mod keda;
mod live_pods;
mod pod_volume;
mod queues;
mod refused_pods;
mod replica_partitions;
mod requests;
mod rollouts;
mod scaling_decision;
mod scheduled_changes;
mod shape;
mod surplus_pods;
mod volume_claims;
mod vpa;

pub use crate::model::desired::DemandMode;
pub use cluster_proportional::{ClusterSize, SizedNode};
pub use device_claims::{claim_problem, device_resource};
pub use do_not_disrupt::{DoNotDisrupt, is_do_not_disrupt_at};
pub use fargate::{FargatePods, FargateRejection, fargate_size};
pub use job_evictions::{JobEvictions, JobRefusal};
pub(crate) use keda::is_active_at;
pub use pod_volume::{PodVolume, Sharing, TopologySource, VolumeProblem};
pub use queues::{QueueWait, queue_reasons};
pub use requests::to_resources;
pub use scheduled_changes::{ScheduledChange, scheduled_changes};
pub use shape::{
    NodeChoice, PodShape, ShapeContext, Unsupported, is_claim_affinity, label_set, live_requests,
    pod_shape,
};
pub use volume_claims::Claims;
pub use vpa::sized_template;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::desired::{Problem, Unresolved};
use crate::model::ids::{NodeName, Origin, WorkloadId};

/// Parameters of a demand computation.
#[derive(Debug, Clone, Default)]
pub struct DemandQuery {
    /// Replica count to plan for.
    pub mode: DemandMode,
    /// Time to plan for.
    pub at: Timestamp,
    /// Lead time: capacity must be ready this long before it is needed.
    pub lead: SignedDuration,
    /// Nodes of the planned cluster, for autoscalers that follow the cluster size.
    pub size: ClusterSize,
    /// True if `at` is in the future. Pods running now then do not count for scheduled work.
    pub is_forecast: bool,
    /// True if upcoming runs of CronJobs do not count.
    pub ignores_runs: bool,
}

/// All pods to place.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Groups of equal pods, sorted by workload.
    pub groups: Vec<PodGroup>,
    /// Workloads that run one pod on every node that admits it, sorted by workload.
    pub daemons: Vec<Daemon>,
    /// Pods that Fargate runs instead of nodes, sorted by workload.
    pub fargate: Vec<FargatePods>,
    /// Workloads of unknown size.
    pub unresolved: Vec<Unresolved>,
    /// Errors and warnings found during the computation.
    pub problems: Vec<Problem>,
    /// Effect of vertical autoscalers, by workload.
    pub sizings: BTreeMap<WorkloadId, Sizing>,
    /// Pods that wait for Kueue, by workload. Undeclared workloads have a row if some of their pods
    /// may start.
    pub queue_waits: BTreeMap<WorkloadId, QueueWait>,
}

/// Effect of a vertical autoscaler on the requests of a workload's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sizing {
    /// Kind and name of the autoscaler, such as `VerticalPodAutoscaler web/api`.
    pub autoscaler: String,
    /// File and line of the autoscaler.
    pub origin: Origin,
    /// Explanation: the autoscaler's mode, and each container's old and new requests.
    pub because: String,
    /// True if the plan replaces the requests of the pod template.
    pub applied: bool,
}

impl Demand {
    /// Returns the number of planned pods of the group's workload, on nodes and on Fargate.
    pub fn planned(&self, group: &PodGroup) -> u32 {
        let at = self.fargate.binary_search_by(|taken| taken.workload.cmp(&group.workload));
        at.map_or(group.counts.planned, |at| self.fargate[at].counts.planned)
    }
}

/// Pods of one workload.
#[derive(Debug, Clone)]
pub struct PodGroup {
    /// Identity of the workload.
    pub workload: WorkloadId,
    /// File and line of the declaration; `None` for pods that exist only in the cluster.
    pub origin: Option<Origin>,
    /// Requests and scheduling rules of each pod.
    pub shape: Arc<PodShape>,
    /// Number of pods.
    pub counts: Counts,
    /// Source of the number of pods.
    pub decided_by: Decider,
    /// Number of active pods on each node, without those that the controller is about to delete.
    pub running: BTreeMap<NodeName, u32>,
    /// Active pods beyond the planned count, by node, as the controller is predicted to delete them.
    pub ending: BTreeMap<NodeName, EndingPods>,
    /// Partitions of the pods whose own volumes bind them to different nodes. Their counts add up
    /// to the planned count. Empty if all pods are equal.
    pub partitions: Vec<ReplicaPartition>,
}

/// Pods on a node that the controller of their workload is predicted to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndingPods {
    /// Number of the pods.
    pub pods: u32,
    /// How many of them the controller may delete on other nodes instead: ages or UIDs decide.
    pub may_stay: u32,
}

/// A subset of the pods of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPartition {
    /// Requests and scheduling rules of each pod. Only volumes, and the nodes that follow from
    /// them, differ from the shape of the group.
    pub shape: Arc<PodShape>,
    /// Number of planned pods.
    pub planned: u32,
    /// Number of active pods on each node.
    pub running: BTreeMap<NodeName, u32>,
}

/// Replica counts of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// The minimum that an autoscaler may choose.
    pub floor: u32,
    /// The current count, or the count in Git.
    pub live: u32,
    /// The maximum that an autoscaler may choose.
    pub ceiling: u32,
    /// The count that the plan uses.
    pub planned: u32,
}

impl Counts {
    /// Returns the count for `mode`.
    pub fn for_mode(&self, mode: DemandMode) -> u32 {
        match mode {
            DemandMode::Floor => self.floor,
            DemandMode::Live => self.live,
            DemandMode::Ceiling => self.ceiling,
        }
    }

    /// Returns the counts, each reduced by `done` pods.
    #[must_use]
    pub fn minus(self, done: u32) -> Self {
        Self {
            floor: self.floor.saturating_sub(done),
            live: self.live.saturating_sub(done),
            ceiling: self.ceiling.saturating_sub(done),
            planned: self.planned.saturating_sub(done),
        }
    }
}

/// Source of a workload's number of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Decider {
    /// `spec.replicas` (or parallelism) in the repository.
    Git,
    /// Observed pods. The repository does not declare the workload, and its pods keep their
    /// capacity.
    World,
    /// Removal from the repository that delivered the workload. Its pods are about to be deleted.
    Removed,
    /// A schedule, such as that of a CronJob.
    Schedule {
        /// Explanation, such as the schedule and its next run.
        #[serde(default)]
        because: String,
    },
    /// An autoscaler.
    Autoscaler {
        /// Kind and name of the autoscaler, such as `HorizontalPodAutoscaler web/api`.
        autoscaler: String,
        /// File and line of the autoscaler.
        origin: Origin,
        /// Explanation of the current count.
        because: String,
        /// Next count, if it is known and differs from the current one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<u32>,
    },
    /// A `CapacityBuffer`, or room for a rolling update. Its pods are placeholders that reserve
    /// capacity.
    Buffer {
        /// Explanation of the number of pods.
        because: String,
    },
}

/// A workload that runs one pod on every node that admits it.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Identity of the workload.
    pub workload: WorkloadId,
    /// File and line of the declaration; `None` if the workload exists only in the cluster.
    pub origin: Option<Origin>,
    /// Requests and scheduling rules of each pod.
    pub shape: Arc<PodShape>,
}
