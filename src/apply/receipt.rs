//! What happened: events on the way, an outcome for each change, a receipt at the end.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{
    Address, Digest, GroupName, InstanceId, InstanceTypeName, NodeName, PlanId, ZoneName,
};
use crate::model::market::CapacityType;
use crate::plan::wire::WaveStep;

/// How one change ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// An earlier run, or someone else, had carried it out.
    AlreadyDone,
    /// It is no longer needed.
    Dropped {
        /// Why.
        why: String,
    },
    /// It was not begun, because a change that it depends on did not succeed.
    Skipped {
        /// Why.
        why: String,
    },
    /// It was begun and taken back, or left, once its bound was reached.
    GivenUp {
        /// Why.
        why: String,
    },
    /// It could not be done.
    Failed {
        /// Why.
        why: String,
    },
}

impl Outcome {
    /// Returns the outcome as receipts and objects spell it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::AlreadyDone => "already-done",
            Self::Dropped { .. } => "dropped",
            Self::Skipped { .. } => "skipped",
            Self::GivenUp { .. } => "given-up",
            Self::Failed { .. } => "failed",
        }
    }

    /// Returns whether nothing is left to do for the change.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Done | Self::AlreadyDone | Self::Dropped { .. } => true,
            Self::Skipped { .. } | Self::GivenUp { .. } | Self::Failed { .. } => false,
        }
    }
}

/// The outcome of one half of a row: a replacement has a launch and a retirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOutcome {
    /// The row.
    pub address: Address,
    /// Which half of it.
    pub step: WaveStep,
    /// The instance that was launched, or that went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How an apply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyStatus {
    /// Everything approved is done, or no longer needed.
    Applied,
    /// Something is left; the same plan may be applied again.
    Partly,
    /// It was interrupted; the same plan may be applied again.
    Interrupted,
}

impl ApplyStatus {
    /// Returns the word for it, as receipts write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Partly => "partly",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What an apply did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The plan.
    pub plan_id: PlanId,
    /// What was approved.
    pub digest: Digest,
    /// The outcome of each change, by address.
    pub outcomes: Vec<ChangeOutcome>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// How it ended.
    pub verdict: ApplyStatus,
}

/// Something that happened while a plan was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// The row; absent where the apply as a whole is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// What.
    #[serde(flatten)]
    pub step: Step,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Step {
    /// The plan may be applied, and what it was made from still holds.
    Checked {
        /// How many of its changes are no longer needed.
        dropped: usize,
    },
    /// A wave begins.
    Wave {
        /// What it does.
        step: WaveStep,
        /// To how many rows.
        changes: usize,
    },
    /// An instance was launched.
    Launched {
        /// The instance.
        instance_id: InstanceId,
        /// Type.
        instance_type: InstanceTypeName,
        /// Zone.
        zone: ZoneName,
        /// Capacity type.
        capacity_type: CapacityType,
    },
    /// EC2 has no such capacity now; the next approved offering is tried.
    NoCapacity {
        /// Type.
        instance_type: InstanceTypeName,
        /// Zone.
        zone: ZoneName,
        /// Capacity type.
        capacity_type: CapacityType,
    },
    /// The desired size of a group was raised.
    Raised {
        /// The group.
        group: GroupName,
        /// Its size before.
        from: u32,
        /// Its size now.
        to: u32,
    },
    /// The group made the instance.
    Joined {
        /// The instance.
        instance_id: InstanceId,
    },
    /// An earlier run launched the instance.
    Found {
        /// The instance.
        instance_id: InstanceId,
    },
    /// A call failed and is made again.
    Retrying {
        /// Why it failed.
        why: String,
    },
    /// Nobody knows whether a launch was heard that was asked for.
    Unanswered,
    /// The world could not be read as a whole; nothing is concluded from what was.
    Unreadable,
    /// Changes are still under way; said at every look at the world.
    Going {
        /// How many.
        left: usize,
    },
    /// The node is Ready.
    Ready {
        /// The node.
        node: NodeName,
    },
    /// Live replicas are not down to the planned ones yet.
    Waiting {
        /// For what.
        why: String,
    },
    /// The node takes no new pods.
    Cordoned {
        /// The node.
        node: NodeName,
    },
    /// Pods were asked to leave the node.
    Evicted {
        /// The node.
        node: NodeName,
        /// How many pods.
        pods: usize,
    },
    /// A pod may not leave yet.
    Blocked {
        /// The pod and what holds it.
        why: String,
    },
    /// Nothing that must move is left on the node, and the instance was told to end.
    Terminating {
        /// The instance.
        instance_id: InstanceId,
    },
    /// The node takes pods again.
    Uncordoned {
        /// The node.
        node: NodeName,
    },
    /// A change ended.
    Finished {
        /// Which half of the row.
        step: WaveStep,
        /// How.
        #[serde(flatten)]
        outcome: Outcome,
    },
}
