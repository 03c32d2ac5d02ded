//! What happens to the loop, and what it wants done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::kept::Kept;
use super::message::Message;
use super::request::Request;
use crate::apply;
use crate::apply::Receipt;
use crate::fleet::{CordonedFor, Exclusion, Node, Observed, Pod};
use crate::ids::{Address, InstanceId, Namespace, NodeName, PoolName, Uid};
use crate::manifest::{ControllerSettings, GuardSettings};
use crate::plan::Plan;
use crate::port::{CordonOutcome, EvictOutcome, PortError};

/// What was read of the repository, beside what plans are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The commit; outside of Git the hash of the tree.
    pub commit: String,
    /// How the loop acts.
    pub controller: ControllerSettings,
    /// When plans may be applied.
    pub guard: GuardSettings,
    /// How long nodes of a pool rest before they are consolidated (`consolidateAfter`).
    pub rests: BTreeMap<PoolName, SignedDuration>,
    /// Errors among the problems of what was read.
    pub problems: u32,
    /// Whether it declares neither a workload nor a pool: rather a render that failed than a wish.
    pub is_empty: bool,
    /// The namespaces in which other autoscalers of nodes live, where that is declared.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// Whether EKS Auto Mode launches for whatever pods wait, as EKS says.
    pub auto_mode: bool,
}

/// Why a commit was not read by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoCommit {
    /// There is none of that name, as where the branch was forced: to ask again is of no use.
    Gone(String),
    /// Whether there is one could not be told.
    Failed(String),
}

/// What a plan is limited to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Of the nodes that are there only these may change; `None`: all of them.
    pub only: Option<BTreeSet<NodeName>>,
    /// Rows that may not change.
    pub exclude: Vec<Address>,
    /// Whether only pods count that there are, whatever else the commit asks for.
    pub running: bool,
}

impl Limits {
    /// Returns the limits of a plan that only adds.
    #[must_use]
    pub fn adds() -> Self {
        Self { only: Some(BTreeSet::new()), ..Self::default() }
    }

    /// Returns whether the plan is of everything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What tells one thing under way from others.
pub type Ticket = u64;

/// What came of having a machine end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It was told to.
    Told,
    /// It was not: its node no longer stands as it was seen.
    Held,
    /// It was not: nobody could tell how its node stands.
    Unread(PortError),
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// What was kept by an earlier life was read.
    Recalled(Result<Box<Kept>, PortError>),
    /// What is to survive was kept.
    Saved(Result<(), PortError>),
    /// The repository was read.
    Head(Result<Arc<Head>, String>),
    /// A commit was read by its name.
    Commit {
        /// Its name.
        commit: String,
        /// What was read of it, or why nothing was.
        read: Result<Arc<Head>, NoCommit>,
    },
    /// The world was looked at, well or not: its sources say.
    World(Arc<Observed>),
    /// A plan was not made, because its commit is no longer at hand.
    Unplanned {
        /// Which.
        ticket: Ticket,
    },
    /// A plan was made.
    Planned {
        /// Which one was asked for.
        ticket: Ticket,
        /// The plan.
        plan: Arc<Plan>,
        /// How long it took.
        took: SignedDuration,
    },
    /// Something happened in an apply.
    Progress {
        /// The apply.
        ticket: Ticket,
        /// What.
        event: apply::Event,
    },
    /// An apply wants to ask for another offering of a launch than the first, and waits until that is kept.
    Turning {
        /// The apply.
        ticket: Ticket,
        /// The launch.
        address: Address,
        /// Which of its offerings, counted from 0.
        turn: u32,
    },
    /// An apply ended.
    Applied {
        /// The apply.
        ticket: Ticket,
        /// What was done, or why nothing was.
        end: Result<Box<Receipt>, String>,
    },
    /// A node was cordoned or uncordoned, or was not.
    Cordoned {
        /// The machine.
        instance: InstanceId,
        /// What for; nothing where it was to be uncordoned.
        mark: Option<CordonedFor>,
        /// How it went.
        end: Result<CordonOutcome, PortError>,
    },
    /// The node of a machine that EC2 takes back was cordoned, or was not, while an apply has the lease.
    Shielded {
        /// The node.
        node: NodeName,
        /// How it went.
        end: Result<CordonOutcome, PortError>,
    },
    /// Pods were asked to leave a node.
    Evicted {
        /// The machine.
        instance: InstanceId,
        /// How each went.
        ends: Vec<Result<EvictOutcome, PortError>>,
    },
    /// A machine was told to end.
    Ended {
        /// The machine.
        instance: InstanceId,
        /// How it went.
        end: Result<Ending, PortError>,
    },
    /// The node of a machine that is gone was removed, or was not.
    NodeDeleted {
        /// The machine.
        instance: InstanceId,
        /// How it went.
        end: Result<(), PortError>,
    },
    /// A message was taken off its queue.
    Acknowledged {
        /// Its receipt.
        receipt: String,
        /// How it went.
        end: Result<(), PortError>,
    },
    /// A pod was nominated to a node.
    Nominated {
        /// The pod.
        pod: Uid,
        /// How it went.
        end: Result<(), PortError>,
    },
    /// Something came from outside.
    Signal(Signal),
    /// A moment that was asked for has come.
    Timer,
}

/// Something that comes from outside unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A pod waits for a node: a hint to look at the world.
    PodPending,
    /// Somebody wants to see what the last steps led to.
    Wake,
    /// The repository may have changed: a hint to read it.
    Pushed,
    /// The world changed in another way: a hint to look at it.
    WorldChanged,
    /// A machine goes, or something else is said of one.
    Message(Message),
    /// Somebody asks for something.
    Request(Request),
    /// The lease is held from now on.
    Gained,
    /// The lease is not held any more, or by somebody else.
    Lost {
        /// Who holds it, where that is known.
        holder: Option<String>,
        /// Whether that is an apply, which gives it back and hears of no interruption meanwhile.
        to_apply: bool,
    },
    /// The process is to end.
    Shutdown,
}

/// Something that is to be done.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Read what was kept.
    Recall,
    /// Keep what is to survive.
    Save(Box<Kept>),
    /// Read the repository.
    ReadHead,
    /// Read a commit that was served before.
    ReadCommit {
        /// Its name.
        commit: String,
    },
    /// Look at the world.
    Observe,
    /// Make a plan.
    Plan {
        /// Which one.
        ticket: Ticket,
        /// The commit.
        commit: String,
        /// The world to plan over.
        world: Arc<Observed>,
        /// What it is limited to.
        limits: Limits,
    },
    /// Carry a plan out.
    Apply {
        /// Which apply.
        ticket: Ticket,
        /// The commit.
        commit: String,
        /// The plan.
        plan: Arc<Plan>,
        /// Machines that go and count for nothing when it is planned again before the first write.
        without: Vec<InstanceId>,
        /// Whether machines are waited for that were launched.
        waits: bool,
        /// Whether only pods count that there are, whatever else the commit asks for.
        running: bool,
        /// How launches of it were asked for before.
        begun: BTreeMap<Address, apply::Before>,
    },
    /// Have an apply ask for another offering of a launch, or not.
    Turn {
        /// The apply.
        ticket: Ticket,
        /// The launch.
        address: Address,
        /// Whether it is kept that it is asked for.
        kept: bool,
    },
    /// Have every apply undo its drains and begin nothing new.
    Interrupt,
    /// Cordon the node of a machine, or uncordon it.
    Cordon {
        /// The machine.
        instance: InstanceId,
        /// The node, as it was seen.
        node: Box<Node>,
        /// What for; nothing where it is to be uncordoned.
        mark: Option<CordonedFor>,
    },
    /// Cordon the node of a machine that EC2 takes back, while an apply has the lease.
    Shield {
        /// The node, as it was seen.
        node: Box<Node>,
    },
    /// Ask pods to leave.
    Evict {
        /// The machine.
        instance: InstanceId,
        /// The pods.
        pods: Vec<Pod>,
    },
    /// Tell a machine of ours to end.
    End {
        /// The machine.
        instance: InstanceId,
        /// Its node as it was seen, cordoned and empty, where the machine ends only if that is so still.
        node: Option<Box<Node>>,
    },
    /// Remove the node of a machine that is gone.
    DeleteNode {
        /// The machine.
        instance: InstanceId,
        /// The node, as it was seen.
        node: Box<Node>,
    },
    /// Take a message off its queue.
    Acknowledge {
        /// Its receipt.
        receipt: String,
    },
    /// Nominate a pod to a node.
    Nominate {
        /// The pod.
        pod: Box<Pod>,
        /// The node.
        node: NodeName,
    },
    /// Wake the loop at this moment, and at no other.
    Wake(Timestamp),
    /// End.
    Exit,
}

/// Offerings that an apply found sold out.
pub(super) fn sold_out(event: &apply::Event) -> Option<Exclusion> {
    let apply::Step::NoCapacity { instance_type, zone, capacity_type } = &event.step else {
        return None;
    };
    Some(Exclusion {
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        capacity_type: Some(*capacity_type),
        until: event.at,
    })
}
