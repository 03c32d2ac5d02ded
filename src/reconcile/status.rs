//! A snapshot of what the loop knows: plain values, enough for metrics, page and objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::apply::Receipt;
use crate::fleet::{ClusterIdentity, Completeness, Exclusion};
use crate::ids::{Address, Digest, InstanceId, NodeName, PlanId, PoolName};
use crate::manifest::Mode;
use crate::measure::Measured;
use crate::plan::Plan;
use crate::plan::wire::{Action, PodTotals, Summary};
use crate::units::MicroUsd;

/// What the loop knows.
///
/// `counters` only ever rise while the process lives. Names and what they count:
///
/// | name | counts |
/// |---|---|
/// | `reads.git.done`, `.failed` | reads of the repository |
/// | `reads.world.done`, `.partial`, `.failed`, `.blind` | looks at the world; the last show no node where ours had joined |
/// | `plans.made`, `.changed` | plans, and those with another digest than the one before |
/// | `plan_millis` | milliseconds spent on planning |
/// | `reconciles.nothing`, `.held`, `.applied`, `.partly`, `.refused`, `.interrupted` | how plans ended |
/// | `apply_millis` | milliseconds spent on applying |
/// | `launches.asked`, `.done`, `.failed`, `.no_capacity` | launches |
/// | `terminations.REASON` | machines that went, by reason, such as `empty`, `drifted`, `not-ready`, `spot-interruption` |
/// | `terminations.failed` | removals that did not come about |
/// | `evictions.done`, `.blocked` | pods asked to leave, and those that a budget kept |
/// | `messages.KIND` | interruption messages, by kind |
/// | `messages.acknowledged` | messages taken off the queue |
/// | `messages.deferred` | messages left to come again, because too many waited |
/// | `drains.given_up` | drains that did not end in time |
/// | `nodes.uncordoned` | nodes that a drain that died had left cordoned, and that a plan keeps |
/// | `nominations.made`, `.refused`, `.honoured`, `.dropped` | steered pods: asked for, not accepted, and where they went |
/// | `errors.SOURCE` | errors of `git`, `queue`, `record`, and of the sources of the world, such as `ec2` and `kubernetes` |
/// | `steps`, `step_micros` | steps of the state machine, and what they took |
/// | `pending.reactions`, `pending.reaction_millis` | bursts of pending pods, from the first pod seen to the launch call |
///
/// `measured` are durations, by the same rule:
///
/// | name | from | to |
/// |---|---|---|
/// | `step` | an event was taken | what is to be done is known |
/// | `read.repository`, `read.world` | a read was begun | it was heard of |
/// | `plan.all`, `plan.adds` | a plan of everything, or one that only adds, was begun | it was made |
/// | `apply.VERDICT` | a plan was begun to be carried out | it had ended |
/// | `reaction` | the first pod of a burst was seen | what is launched for it is decided |
/// | `bound` | a pod that looks showed waiting was created | a look shows it on a node |
/// | `ready.POOL` | a machine was launched | a look shows its node Ready |
/// | `drain.REASON` | its node was cordoned, or its pods first asked to leave | it was told to end |
/// | `termination` | a machine was told to end | a look shows that it has |
/// | `lifetime.POOL` | a machine was launched | it was told to end, or ended by itself |
/// | `message.KIND` | a message was sent | it was heard of |
/// | `cloud.SERVICE.METHOD.RESULT` | a call to AWS was begun | it was answered, tries included |
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// When the snapshot was taken.
    pub now: Timestamp,
    /// When this process began.
    pub started_at: Timestamp,
    /// Version of the program.
    pub version: String,
    /// Who this replica is, as the lease names it.
    pub identity: String,
    /// Whether this replica may act.
    pub leader: bool,
    /// Who holds the lease, where somebody else does.
    pub led_by: Option<String>,
    /// Whether that is an apply, as far as was heard last.
    pub lent: bool,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// What the loop may do.
    pub mode: Mode,
    /// Why nothing new is begun, where somebody asked for that.
    pub suspended: Option<Suspension>,
    /// Approval and windows are passed over, where somebody asked for that.
    pub break_glass: Option<Suspension>,
    /// Breakers that latched.
    pub breakers: Vec<Breaker>,
    /// The repository.
    pub repository: RepositoryNow,
    /// The world; nothing before the first look.
    pub world: Option<WorldNow>,
    /// The current plan; nothing before the first.
    pub plan: Option<PlanNow>,
    /// What is carried out now, by plan: the rows, and since when.
    pub applying: BTreeMap<PlanId, (Vec<Address>, Timestamp)>,
    /// Plans that are carried out now and are not the current one, of which each is a part: what only adds goes first.
    pub parts: Vec<Part>,
    /// Plans that were carried out, the newest first; at most [`Status::PAST_MAX`]. The loop tells those of its own;
    /// whoever keeps its objects adds what they tell of other processes.
    pub history: Vec<Arc<Past>>,
    /// What the fleet cost per hour, and since when, as this process found it; the newest last.
    pub costs: Vec<(Timestamp, MicroUsd)>,
    /// Plans of which nothing was carried out before others took their place, the newest first; at most
    /// [`Status::SUPERSEDED_MAX`]. Those of other processes are added as to the history.
    pub superseded: Vec<Superseded>,
    /// Why the history may lack what other processes carried out: what keeps it from being read.
    pub unread: Option<String>,
    /// Machines that go or are to go, because of something that nobody here decided.
    pub going: Vec<Going>,
    /// Nodes that were left cordoned by whoever died in a drain, and that this process uncordoned, the last first; at
    /// most [`Status::UNCORDONED_MAX`].
    pub uncordoned: Vec<Uncordoned>,
    /// Offerings that EC2 had no capacity for, and until when they are left out.
    pub sold_out: Vec<Exclusion>,
    /// Pools that launch nothing for a while, with the reason and the end.
    pub quarantined: BTreeMap<PoolName, (String, Timestamp)>,
    /// What fails of what the loop does, and has not worked since: the last error of each kind. What cannot
    /// be read stands with [`Status::repository`] and [`Status::world`].
    pub failing: BTreeMap<Deed, Failure>,
    /// What survives a restart, as it was written last.
    pub kept: KeptNow,
    /// Who else makes and removes nodes, in words: while they do the loop only plans.
    pub rival: Option<String>,
    /// What was counted, see above.
    pub counters: BTreeMap<String, u64>,
    /// How long things took, see above.
    pub measured: Measured,
    /// When the loop is next due to look at something by itself.
    pub wakes_at: Option<Timestamp>,
}

impl Status {
    /// Most plans that the history holds.
    pub const PAST_MAX: usize = 50;
    /// Most plans that are remembered of which nothing was carried out.
    pub const SUPERSEDED_MAX: usize = 5;
    /// Most nodes of which it is told that they were uncordoned.
    pub const UNCORDONED_MAX: usize = 20;

    /// Returns whether the loop has read both the repository and the world at least once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.repository.commit.is_some() && self.world.is_some()
    }
}

/// How large what survives a restart is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct KeptNow {
    /// How long it was as text when it was written last, in bytes.
    pub bytes: usize,
    /// The longest that is written.
    pub most: usize,
    /// Entries that were left out or told in short, so that it fits.
    pub shed: usize,
}

/// Something that somebody asked for, for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Why.
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// Since when.
    pub since: Timestamp,
    /// Who asked for it.
    pub by: String,
}

/// A breaker that latched: nothing of its kind is begun before somebody resets it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Breaker {
    /// Its name, such as `launches-not-ready`.
    pub name: String,
    /// Since when.
    pub since: Timestamp,
    /// What made it latch, with numbers.
    pub why: String,
    /// How many machines the plan removes that made it latch, where one did: whoever resets the breaker
    /// approves a plan that removes no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<u32>,
}

/// How a source answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SourceState {
    /// When it was last read well.
    pub read_at: Option<Timestamp>,
    /// The last error, where the last read failed, and since when reads fail.
    pub error: Option<(String, Timestamp)>,
    /// How many reads in a row have failed.
    pub failures: u32,
}

/// Something that the loop does, beside reading the repository and the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    /// Reading what was kept.
    Recall,
    /// Keeping what is to survive.
    Save,
    /// Cordoning or uncordoning a node.
    Cordon,
    /// Asking pods to leave.
    Evict,
    /// Telling a machine to end.
    End,
    /// Removing the node of a machine that is gone.
    DeleteNode,
    /// Taking a message off its queue.
    Acknowledge,
    /// Nominating a pod to a node.
    Nominate,
    /// Carrying out a row of a plan.
    Apply,
}

impl Deed {
    /// Returns the deed as labels and logs spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recall => "recall",
            Self::Save => "save",
            Self::Cordon => "cordon",
            Self::Evict => "evict",
            Self::End => "end",
            Self::DeleteNode => "delete-node",
            Self::Acknowledge => "acknowledge",
            Self::Nominate => "nominate",
            Self::Apply => "apply",
        }
    }
}

/// Something that failed last, and has not worked since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The object that it was tried on, by its id or address; empty where there is only one.
    pub of: String,
    /// The last error.
    pub why: String,
    /// When it first failed.
    pub since: Timestamp,
    /// When it last did.
    pub last: Timestamp,
    /// How often it did.
    pub times: u32,
}

/// The repository as the loop knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RepositoryNow {
    /// The commit that is served: what plans are made from. Outside of Git the hash of the tree.
    pub commit: Option<String>,
    /// The commit that is served, where it was not read yet and another one stands in for it.
    pub stands_in_for: Option<String>,
    /// A newer commit that was read and is not served yet, with the reason.
    pub waiting: Option<(String, String)>,
    /// How reads go.
    pub reads: SourceState,
    /// Errors among the problems of what is served.
    pub problems: u32,
}

/// The world as the loop last saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorldNow {
    /// When it was looked at.
    pub taken_at: Timestamp,
    /// How long ago that was, at [`Status::now`].
    pub age: SignedDuration,
    /// How complete each source is.
    pub sources: BTreeMap<String, Completeness>,
    /// Nodes.
    pub nodes: u32,
    /// Nodes that are Ready.
    pub ready: u32,
    /// Instances of ours that run or are about to.
    pub instances: u32,
    /// Pods that are neither finished nor on their way out.
    pub pods: u32,
    /// Those of them that wait for a node.
    pub pending: u32,
    /// How long the first of these has waited, where one waits.
    pub pending_for: Option<SignedDuration>,
    /// How reads go.
    pub reads: SourceState,
}

/// The current plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanNow {
    /// The plan: everything that the repository asks for over what runs, whatever may be done now.
    pub plan: Arc<Plan>,
    /// Since when a plan with this digest is current.
    pub since: Timestamp,
    /// What keeps changes from being carried out now, by row; a row that is not listed goes.
    pub held: BTreeMap<Address, HeldBy>,
}

impl PlanNow {
    /// Returns the digest of the plan.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.plan.capacity.digest
    }
}

/// What keeps a change from being carried out now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldBy {
    /// The reason.
    pub why: Held,
    /// The same for a person.
    pub says: String,
}

/// Why a change is held back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "held", rename_all = "kebab-case")]
pub enum Held {
    /// This replica does not lead.
    NotLeader,
    /// The mode allows no such change.
    Mode {
        /// The mode.
        mode: Mode,
    },
    /// Somebody suspended the loop.
    Suspended {
        /// Why.
        reason: String,
        /// Until when.
        until: Option<Timestamp>,
    },
    /// The plan may not be carried out, whoever approves it.
    NotApplyable {
        /// Why.
        why: String,
    },
    /// It is outside the windows.
    Window {
        /// When the next opens.
        opens: Option<Timestamp>,
    },
    /// Nobody has approved the plan.
    NotApproved {
        /// What would have to be approved.
        digest: Digest,
    },
    /// A pool asks for a confirmation of each removal.
    NotConfirmed {
        /// The pool.
        pool: PoolName,
    },
    /// As many machines were launched as may be in that time.
    LaunchBudget {
        /// How many may be.
        most: u32,
        /// Within how long.
        within: SignedDuration,
        /// When the next may be.
        next: Timestamp,
    },
    /// As many machines went as may in that time.
    RemovalBudget {
        /// How many may.
        most: u32,
        /// Within how long.
        within: SignedDuration,
        /// When the next may.
        next: Timestamp,
    },
    /// A removal is begun once it has been planned for a while without a break.
    Settling {
        /// When that is.
        until: Timestamp,
    },
    /// Pods came to the node or left it too short a time ago for its pool (`consolidateAfter`).
    Resting {
        /// Until when.
        until: Timestamp,
    },
    /// Too many nodes are not Ready: whatever is the matter, removing more is no help.
    MassUnready {
        /// How many are not.
        unready: u32,
        /// Of how many.
        nodes: u32,
    },
    /// A breaker latched.
    Breaker {
        /// Its name.
        name: String,
    },
    /// What the pool launched lately did not help.
    Quarantined {
        /// The pool.
        pool: PoolName,
        /// Until when.
        until: Timestamp,
    },
    /// Another change of the same exchange is held back.
    Together {
        /// That one.
        with: Address,
    },
    /// What was tried last did not come about; it is tried again.
    BackingOff {
        /// When.
        until: Timestamp,
    },
    /// Launches were asked for of which nobody has heard: their machines may be on their way.
    Unheard {
        /// Until when they are awaited.
        until: Timestamp,
    },
    /// It is being carried out, or something that it depends on is.
    UnderWay,
}

/// A plan that was carried out, or partly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Past {
    /// The plan.
    pub plan_id: PlanId,
    /// What it decided.
    pub digest: Digest,
    /// The commit it was made from.
    pub commit: String,
    /// How it came to be approved.
    pub approved: ApprovedBy,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// What was done; absent where it was refused before the first write.
    pub receipt: Option<Receipt>,
    /// Why it was refused.
    pub refused: Option<String>,
    /// Outcomes by name (`done`, `already-done`, `dropped`, `skipped`, `given-up`, `failed`).
    pub outcomes: BTreeMap<String, u32>,
    /// Price per hour before and after, as the plan had it.
    pub hourly_before: MicroUsd,
    /// Price per hour after, as the plan had it.
    pub hourly_after: MicroUsd,
    /// What it decided, in numbers; absent where that is not known any more.
    pub decided: Option<Decided>,
}

/// A plan that is carried out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Since when.
    pub since: Timestamp,
    /// How it came to be approved.
    pub approved: ApprovedBy,
}

/// A plan that stood for a while, and of which nothing was begun before another one took its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Superseded {
    /// Digest of its decisions.
    pub digest: Digest,
    /// When the other one took its place.
    pub at: Timestamp,
}

/// What a plan decided, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Decided {
    /// The repository, without credentials.
    pub repository: Option<String>,
    /// Rows and nodes.
    pub summary: Summary,
    /// Rows that change something.
    pub changes: u32,
    /// Pods.
    pub pods: PodTotals,
    /// Workloads with pods that have no place.
    pub unschedulable: u32,
    /// The difference in a month.
    pub monthly_delta: MicroUsd,
}

impl Decided {
    fn of(plan: &Plan) -> Self {
        let capacity = &plan.capacity;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let changes = plan
            .resource_changes
            .iter()
            .filter(|row| row.change.actions.iter().any(|action| *action != Action::NoOp));
        Self {
            repository: capacity.base.repository.clone(),
            summary: plan.summary,
            changes: count(changes.count()),
            pods: capacity.pods,
            unschedulable: count(capacity.unschedulable.len()),
            monthly_delta: capacity.cost.monthly_delta,
        }
    }
}

impl Past {
    /// Returns that of a plan that begins now.
    pub(super) fn begun(plan: &Plan, commit: &str, approved: ApprovedBy, now: Timestamp) -> Self {
        let cost = &plan.capacity.cost;
        Self {
            plan_id: plan.capacity.plan_id.clone(),
            digest: plan.capacity.digest.clone(),
            commit: commit.to_owned(),
            approved,
            started_at: now,
            ended_at: now,
            receipt: None,
            refused: None,
            outcomes: BTreeMap::new(),
            hourly_before: cost.hourly_before,
            hourly_after: cost.hourly_after,
            decided: Some(Decided::of(plan)),
        }
    }
}

/// How a plan came to be approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum ApprovedBy {
    /// By its commit, which is on the branch.
    Merge,
    /// By somebody who approved its digest.
    Digest {
        /// Who.
        who: String,
    },
    /// By the policies, none of which objects.
    Policy,
    /// By nobody: the glass was broken.
    BreakGlass {
        /// Who broke it.
        who: String,
        /// Why.
        reason: String,
    },
    /// In a way that nobody knows any more.
    Unknown,
}

/// A node that was left cordoned, and was uncordoned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncordoned {
    /// The node.
    pub node: NodeName,
    /// Its machine.
    pub instance: InstanceId,
    /// When.
    pub at: Timestamp,
}

/// A machine that goes, because of something that nobody here decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Going {
    /// The machine.
    pub instance: InstanceId,
    /// Its node, where one has joined.
    pub node: Option<NodeName>,
    /// Why, such as `spot-interruption`, `rebalance`, `health`, `state-change`, `not-ready`.
    pub why: String,
    /// When this was learned.
    pub since: Timestamp,
    /// When it is gone, whatever is done; absent where there is no deadline.
    pub deadline: Option<Timestamp>,
    /// How far it has come.
    pub phase: AwayPhase,
    /// What holds back what is to be launched for its pods, where something does that may last. They stay as long as
    /// that, and until near the deadline at most.
    pub held: Option<HeldBy>,
}

/// How far a machine that goes has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AwayPhase {
    /// Known, and not cordoned yet.
    Noted,
    /// Cordoned; capacity for its pods comes.
    Replacing,
    /// Its pods leave.
    Draining,
    /// Told to end.
    Ending,
}
