//! How many pods of which shape there will be: `Desired` (and `Observed`) → [`Demand`].
//!
//! This module knows what decides the number of a workload's pods and what each of them asks for
//! once defaults, priority and runtime classes are applied. It knows nothing of instance types,
//! prices or plans. Invariant: every workload of the repository and every live pod that keeps its
//! room is in the result exactly once, as a group, as a daemon, on Fargate, or as unresolved.

mod admission;
mod build;
mod capacity_buffer;
mod claims;
mod do_not_disrupt;
mod event_driven;
mod fargate;
mod horizontal;
mod jobs;
mod live_pods;
mod pod_volume;
mod proportional;
mod replica_partitions;
mod requests;
mod scaling_decision;
mod scheduled_changes;
mod shape;
mod vertical;

pub use claims::Claims;
pub use do_not_disrupt::{DoNotDisrupt, is_do_not_disrupt_at};
pub(crate) use event_driven::is_active_at;
pub use fargate::{FargatePods, FargateRejection, fargate_size};
pub use pod_volume::{PodVolume, Sharing, TopologySource, VolumeProblem};
pub use proportional::{ClusterSize, SizedNode};
pub use requests::to_resources;
pub use scheduled_changes::{ScheduledChange, scheduled_changes};
pub use shape::{
    NodeChoice, PodShape, ShapeContext, Unsupported, is_claim_affinity, label_set, live_requests,
    pod_shape,
};
pub use vertical::sized_template;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::desired::{Problem, Unresolved};
use crate::model::ids::{NodeName, Origin, WorkloadId};

/// Which of a workload's counts a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandMode {
    /// The least an autoscaler may choose.
    Floor,
    /// What runs now, or what Git says where nothing decides otherwise.
    #[default]
    Live,
    /// The most an autoscaler may choose.
    Ceiling,
}

/// What demand is asked for.
#[derive(Debug, Clone, Default)]
pub struct DemandQuery {
    /// Which of a workload's counts to plan for.
    pub mode: DemandMode,
    /// The moment to plan for.
    pub at: Timestamp,
    /// How long before it is needed capacity is to be there.
    pub lead: SignedDuration,
    /// The nodes that there will be, for what follows them.
    pub size: ClusterSize,
    /// Whether the moment is one to come, at which what runs now tells nothing of work whose times
    /// are known.
    pub is_forecast: bool,
}

/// Everything that has to be placed.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Groups of alike pods, by workload.
    pub groups: Vec<PodGroup>,
    /// Workloads that put one pod on every node that admits it, by workload.
    pub daemons: Vec<Daemon>,
    /// Pods that Fargate takes out of the groups, by workload.
    pub fargate: Vec<FargatePods>,
    /// Workloads whose size is not known.
    pub unresolved: Vec<Unresolved>,
    /// What was found wrong on the way.
    pub problems: Vec<Problem>,
    /// Workloads whose requests a vertical autoscaler decides.
    pub sizings: BTreeMap<WorkloadId, Sizing>,
}

/// What a vertical autoscaler makes of the requests of a workload's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sizing {
    /// The autoscaler, such as `VerticalPodAutoscaler web/api`.
    pub autoscaler: String,
    /// File and line.
    pub origin: Origin,
    /// What it does to which container.
    pub because: String,
    /// Whether the plan is made with other requests than the template states.
    pub applied: bool,
}

impl Demand {
    /// Returns how many pods of `workload` are planned, wherever they run.
    #[must_use]
    pub fn planned(&self, group: &PodGroup) -> u32 {
        let at = self.fargate.binary_search_by(|taken| taken.workload.cmp(&group.workload));
        at.map_or(group.counts.planned, |at| self.fargate[at].counts.planned)
    }
}

/// The pods of one workload.
#[derive(Debug, Clone)]
pub struct PodGroup {
    /// The workload.
    pub workload: WorkloadId,
    /// Where the repository declares it; `None` for pods that only the world knows.
    pub origin: Option<Origin>,
    /// What each pod asks for.
    pub shape: Arc<PodShape>,
    /// How many there are.
    pub counts: Counts,
    /// Who decides how many there are.
    pub decided_by: Decider,
    /// How many active pods it has on each node; may be more than are planned.
    pub running: BTreeMap<NodeName, u32>,
    /// Pods that may run on other nodes than the rest, because volumes of their own bind them:
    /// their counts add up to the planned one. Empty where all pods are alike.
    pub partitions: Vec<ReplicaPartition>,
}

/// Some of the pods of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPartition {
    /// What each of these pods asks for; it differs from the workload's shape in its volumes, and in
    /// its nodes as far as they follow from them.
    pub shape: Arc<PodShape>,
    /// How many are planned.
    pub planned: u32,
    /// How many of them are active on each node.
    pub running: BTreeMap<NodeName, u32>,
}

/// The counts of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// The least an autoscaler may choose.
    pub floor: u32,
    /// What runs now, or what Git says.
    pub live: u32,
    /// The most an autoscaler may choose.
    pub ceiling: u32,
    /// The count this plan is made for.
    pub planned: u32,
}

impl Counts {
    /// Returns the count that `mode` plans for.
    #[must_use]
    pub fn for_mode(&self, mode: DemandMode) -> u32 {
        match mode {
            DemandMode::Floor => self.floor,
            DemandMode::Live => self.live,
            DemandMode::Ceiling => self.ceiling,
        }
    }

    /// Returns the counts with `done` pods taken off each.
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

/// Who decides how many pods a workload has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Decider {
    /// `spec.replicas` (or parallelism) in the repository.
    Git,
    /// Only the world knows the workload; its pods keep their room.
    World,
    /// The workload is delivered from the repository and missing there: its pods are on their way
    /// out.
    Removed,
    /// A schedule, which starts its pods at its own times.
    Schedule {
        /// When it is due.
        #[serde(default)]
        because: String,
    },
    /// An autoscaler.
    Autoscaler {
        /// The autoscaler, such as `HorizontalPodAutoscaler web/api`.
        autoscaler: String,
        /// File and line.
        origin: Origin,
        /// What its present count follows from.
        because: String,
        /// The count that it goes to next, where that is known and differs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<u32>,
    },
    /// A buffer: its pods are room that is kept for others.
    Buffer {
        /// What its size follows from.
        because: String,
    },
}

/// A workload that runs on every node that admits it.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// The workload.
    pub workload: WorkloadId,
    /// Where the repository declares it; `None` where only the world knows it.
    pub origin: Option<Origin>,
    /// What each pod asks for.
    pub shape: Arc<PodShape>,
}
