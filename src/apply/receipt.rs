//! Records of an apply: progress events, the outcome of each change, and the receipt.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{
    Address, Digest, GroupName, InstanceId, InstanceTypeName, NodeName, PlanId, ZoneName,
};
use crate::model::market::CapacityType;
use crate::plan::wire::WaveStep;

/// Outcome of one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The change was carried out.
    Done,
    /// An earlier run or another client carried out the change.
    AlreadyDone,
    /// The change is no longer needed.
    Dropped {
        /// Reason.
        why: String,
    },
    /// The change did not start: a required change failed, its removal is blocked, or the apply was
    /// interrupted.
    Skipped {
        /// Reason.
        why: String,
    },
    /// The change was started, and reverted or abandoned, for example after a timeout.
    Abandoned {
        /// Reason.
        why: String,
    },
    /// The drain continues with the next apply, and its node stays cordoned: its pool declares a
    /// termination grace period, which has not ended.
    Continues {
        /// Reason.
        why: String,
    },
    /// The change failed.
    Failed {
        /// Reason.
        why: String,
    },
}

impl Outcome {
    /// Returns the wire word in receipts and status objects.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::AlreadyDone => "already-done",
            Self::Dropped { .. } => "dropped",
            Self::Skipped { .. } => "skipped",
            Self::Abandoned { .. } => "abandoned",
            Self::Continues { .. } => "continues",
            Self::Failed { .. } => "failed",
        }
    }

    /// Returns the reason, if the change was not carried out.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Done | Self::AlreadyDone => None,
            Self::Dropped { why }
            | Self::Skipped { why }
            | Self::Abandoned { why }
            | Self::Continues { why }
            | Self::Failed { why } => Some(why),
        }
    }

    /// Returns true if nothing is left to do for the change.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Done | Self::AlreadyDone | Self::Dropped { .. } => true,
            Self::Skipped { .. }
            | Self::Abandoned { .. }
            | Self::Continues { .. }
            | Self::Failed { .. } => false,
        }
    }
}

/// Outcome of one step of a row. A replacement has a launch and a retirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOutcome {
    /// Address of the row.
    pub address: Address,
    /// Step of the row.
    pub step: WaveStep,
    /// Launched or retired instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// Offering of a launched instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<LaunchedOffering>,
    /// Outcome of the step.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Offering of a launched instance: the planned offering, or an approved alternative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedOffering {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Availability zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Planned offering, if EC2 launched an alternative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<String>,
}

/// Status of a finished apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyStatus {
    /// All approved changes are done or no longer needed.
    Applied,
    /// Some changes are unfinished. The same plan may be applied again.
    Partly,
    /// The apply was interrupted. The same plan may be applied again.
    Interrupted,
}

impl ApplyStatus {
    /// Returns the wire word in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Partly => "partly",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Record of a finished apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// ID of the plan.
    pub plan_id: PlanId,
    /// Digest of the plan.
    pub digest: Digest,
    /// Outcomes of all changes, by address.
    pub outcomes: Vec<ChangeOutcome>,
    /// Start time.
    pub started_at: Timestamp,
    /// End time.
    pub finished_at: Timestamp,
    /// Status of the apply.
    pub verdict: ApplyStatus,
}

impl Receipt {
    /// Returns true if all that is left are drains that the next plan continues.
    pub fn only_drains_continue(&self) -> bool {
        let mut left =
            self.outcomes.iter().filter(|change| !change.outcome.is_settled()).peekable();
        left.peek().is_some()
            && left.all(|change| matches!(change.outcome, Outcome::Continues { .. }))
    }
}

/// A progress event of an apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Time of the event.
    pub at: Timestamp,
    /// Address of the row; `None` for events of the whole apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Kind of the event.
    #[serde(flatten)]
    pub step: Step,
}

/// Kind of a progress event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Step {
    /// All checks have passed: before the first write, and under the controller also before launched
    /// nodes open and removals begin.
    Checked {
        /// Number of changes that are no longer needed.
        dropped: usize,
    },
    /// A wave starts.
    Wave {
        /// Step of the wave.
        step: WaveStep,
        /// Number of rows in the wave.
        changes: usize,
    },
    /// An instance was launched.
    Launched {
        /// Launched instance.
        instance_id: InstanceId,
        /// Its offering, if EC2 names it.
        #[serde(flatten)]
        offering: Option<LaunchedOffering>,
    },
    /// EC2 has insufficient capacity for an offering. EC2 or the apply chooses another approved
    /// offering.
    InsufficientCapacity {
        /// Instance type.
        instance_type: InstanceTypeName,
        /// Availability zone.
        zone: ZoneName,
        /// Capacity type.
        capacity_type: CapacityType,
    },
    /// An approved offering is not requested, because it is gone or dearer than was approved.
    Withdrawn {
        /// Instance type.
        instance_type: InstanceTypeName,
        /// Availability zone.
        zone: ZoneName,
        /// Capacity type.
        capacity_type: CapacityType,
        /// Reason, in words.
        why: String,
    },
    /// The desired size of an Auto Scaling group was raised.
    Raised {
        /// Name of the group.
        group: GroupName,
        /// Desired size before.
        from: u32,
        /// Desired size after.
        to: u32,
    },
    /// The Auto Scaling group launched the instance.
    Joined {
        /// New member of the group.
        instance_id: InstanceId,
    },
    /// An earlier run launched the instance.
    Found {
        /// Found instance.
        instance_id: InstanceId,
    },
    /// A call failed and is retried.
    Retrying {
        /// Reason for the failure.
        why: String,
    },
    /// A launch call returned no reply, so its effect is unknown.
    Unanswered,
    /// The live state could not be read in full, so no change is based on it.
    Unreadable,
    /// Changes are in progress. The event repeats with every observation.
    InProgress {
        /// Number of changes in progress.
        left: usize,
    },
    /// Pods of a node were deleted at the end of its termination grace period.
    PodsDeleted {
        /// Name of the node.
        node: NodeName,
        /// Number of pods.
        pods: usize,
    },
    /// The node is Ready.
    Ready {
        /// Name of the node.
        node: NodeName,
    },
    /// A retirement waits for fewer live replicas, a volume detachment or a safe termination.
    Waiting {
        /// Reason for waiting.
        why: String,
    },
    /// The node was cordoned.
    Cordoned {
        /// Name of the node.
        node: NodeName,
    },
    /// Pods were evicted from the node.
    Evicted {
        /// Name of the node.
        node: NodeName,
        /// Number of evicted pods.
        pods: usize,
    },
    /// A PodDisruptionBudget blocks an eviction.
    Blocked {
        /// Affected pod, and the reason.
        why: String,
    },
    /// Pods were nominated to their planned nodes, which open now.
    Nominated {
        /// Number of nominated pods.
        pods: usize,
        /// Number of pods whose nomination was refused. kube-scheduler places them freely.
        refused: usize,
    },
    /// A node could not be opened, annotated or uncordoned.
    NodeWriteFailed {
        /// Affected node, and the reason.
        why: String,
    },
    /// The node is drained, and the termination of the instance was requested.
    Terminating {
        /// Instance that terminates.
        instance_id: InstanceId,
    },
    /// The node was uncordoned.
    Uncordoned {
        /// Name of the node.
        node: NodeName,
    },
    /// A change has ended.
    Finished {
        /// Step of the row.
        step: WaveStep,
        /// Outcome of the step.
        #[serde(flatten)]
        outcome: Outcome,
    },
}
