//! Calls of replicas to EC2 and Kubernetes, with the state at the time of the call.

use std::collections::BTreeSet;

use fleetwright::apply::ports::LaunchRequest;
use fleetwright::controller::InterruptionMessage;
use fleetwright::model::ids::{Address, ChangeId, GroupName, InstanceId, NodeName, PlanId, Uid};
use fleetwright::model::observed::{Instance, Node, Pod, tag};
use jiff::{SignedDuration, Timestamp};

use super::SharedWorld;

/// Something that was asked of EC2 or Kubernetes.
#[derive(Debug, Clone)]
pub(crate) struct RecordedCall {
    /// When.
    pub(crate) at: Timestamp,
    /// By which replica.
    pub(crate) replica: usize,
    /// When it began to ask: a process may stop in between.
    pub(crate) began: Timestamp,
    /// Who held the lease then, and until when.
    pub(crate) lease: Option<(usize, Timestamp)>,
    /// When it last began to read Kubernetes and got all of it.
    pub(crate) looked: Option<Timestamp>,
    /// Machines that EC2 had listed by then to the life that asks; of launches alone.
    pub(crate) shown: BTreeSet<InstanceId>,
    /// What.
    pub(crate) what: CallKind,
}

/// An instance that is told to end, as it was then.
#[derive(Debug, Clone)]
pub(crate) struct TerminatedInstance {
    /// Which.
    pub(crate) id: InstanceId,
    /// Whether it carries our tags, and whether it ran.
    pub(crate) ours: bool,
    /// See above.
    pub(crate) runs: bool,
    /// Its node, where one has joined.
    pub(crate) node: Option<NodeName>,
    /// Whether pods may come to that.
    pub(crate) open: bool,
    /// Since when the pods that were to leave it have run, those that do.
    pub(crate) left: Vec<Option<Timestamp>>,
    /// Changes of which the instances were Ready.
    pub(crate) ready: BTreeSet<ChangeId>,
}

/// Another commit than before is kept as the one that is served.
#[derive(Debug, Clone)]
pub(crate) struct ServedCommitChange {
    /// The one before.
    pub(crate) from: String,
    /// The one that is served now.
    pub(crate) to: String,
    /// Whether CI was done with it, whether somebody broke the glass, and whether there is no such commit as before any more.
    pub(crate) applied: bool,
    /// See above.
    pub(crate) glass: bool,
    /// See above.
    pub(crate) gone: bool,
}

/// What was asked.
#[derive(Clone)]
pub(crate) enum CallKind {
    /// A launch, and the instance that came of it.
    Launch(Box<LaunchRequest>, Option<InstanceId>),
    /// EC2 has said that it launched an instance.
    Launched(InstanceId),
    /// An instance is to end.
    Terminate(TerminatedInstance),
    /// EC2 has said that an instance ends.
    Ended(InstanceId),
    /// A group is set to a number.
    Raise {
        /// Which.
        group: GroupName,
        /// What it was set to before, and what it is set to.
        from: u32,
        /// See above.
        to: u32,
    },
    /// A node is cordoned, or no longer.
    Cordon {
        /// Which.
        node: NodeName,
        /// Whether it is cordoned.
        on: bool,
        /// Whether its instance is ours.
        ours: bool,
    },
    /// A pod is to leave.
    Evict(Uid),
    /// A pod is nominated to a node.
    Nominate(Uid),
    /// Another commit is kept as the one that is served.
    Serves(ServedCommitChange),
    /// A plan was made again before its first call: launches of it that are needed no more.
    Pinned(PlanId, BTreeSet<Address>),
    /// A message was taken off the queue; and instances of ours that it was about, and that were neither
    /// cordoned then nor in what is kept.
    Acknowledge(String, Vec<InstanceId>),
}

impl std::fmt::Debug for CallKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Launch(request, end) => {
                let (kind, zone) = (&request.instance_type, &request.zone);
                let end = end.as_ref().map_or("nothing", InstanceId::as_str);
                write!(f, "launches {kind} {zone} {}: {end}", request.capacity_type)
            }
            Self::Terminate(TerminatedInstance { id, left, .. }) => {
                write!(f, "ends {id}, {} pods left", left.len())
            }
            Self::Ended(id) => write!(f, "knows that {id} ends"),
            Self::Launched(id) => write!(f, "knows that {id} was launched"),
            Self::Raise { group, from, to } => write!(f, "sets {group} from {from} to {to}"),
            Self::Cordon { node, on: true, .. } => write!(f, "cordons {node}"),
            Self::Cordon { node, on: false, .. } => write!(f, "uncordons {node}"),
            Self::Evict(uid) => write!(f, "evicts {uid}"),
            Self::Nominate(uid) => write!(f, "nominates {uid}"),
            Self::Serves(ServedCommitChange { from, to, .. }) => {
                let short = |name: &str| name.trim_start_matches('0').to_owned();
                write!(f, "serves {} in place of {}", short(to), short(from))
            }
            Self::Pinned(plan, dropped) => {
                write!(f, "makes {plan} again, without {} launches", dropped.len())
            }
            Self::Acknowledge(receipt, _) => write!(f, "acknowledges {receipt}"),
        }
    }
}

/// For how long a node is new to whoever looks every half a minute.
const JOINED: SignedDuration = SignedDuration::from_secs(45);

/// Who asks, and what is known of them.
pub(super) struct Caller {
    pub(super) replica: usize,
    pub(super) began: Timestamp,
    pub(super) lease: Option<(usize, Timestamp)>,
    pub(super) looked: Option<Timestamp>,
    pub(super) shown: BTreeSet<InstanceId>,
}

impl SharedWorld {
    pub(super) fn note(&self, by: &Caller, what: CallKind) {
        let Caller { replica, began, lease, looked, ref shown } = *by;
        let (at, shown) = (self.time.now(), shown.clone());
        self.asked.borrow_mut().push(RecordedCall {
            at,
            replica,
            began,
            lease,
            looked,
            shown,
            what,
        });
    }

    /// Notes that a replica has made a plan again, and which launches of it are needed no more.
    pub(crate) fn was_pinned(&self, replica: usize, plan: &PlanId, dropped: BTreeSet<Address>) {
        let (began, lease) = (self.time.now(), self.lease.get());
        let by = Caller { replica, began, lease, looked: None, shown: BTreeSet::new() };
        self.note(&by, CallKind::Pinned(plan.clone(), dropped));
    }

    /// Returns what is to be known of an instance that is told to end.
    pub(super) fn ended(&self, id: &InstanceId) -> TerminatedInstance {
        let observed = self.world.observed();
        let instance = observed.instances.get(id);
        let node = observed.node_for_instance(id);
        let on = |pod: &Pod| {
            pod.is_active()
                && !pod.mirror
                && node.is_some_and(|n| pod.node.as_ref() == Some(&n.name))
        };
        let ready = observed.nodes.values().filter(|node| node.ready);
        let ready = ready.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let ready = ready.filter_map(|i| Some(ChangeId::from(i.tags.get(tag::CHANGE)?.as_str())));
        TerminatedInstance {
            id: id.clone(),
            ours: instance
                .is_some_and(|i| i.is_managed_by(&observed.cluster.name) || i.group.is_some()),
            runs: instance.is_some_and(Instance::is_active),
            node: node.map(|node| node.name.clone()),
            open: node.is_some_and(|node| !node.unschedulable),
            left: observed.pods.iter().filter(|pod| on(pod)).map(|pod| pod.started_at).collect(),
            ready: ready.collect(),
        }
    }

    /// Returns whether a node may be cordoned, or uncordoned: its instance is ours, or of a group that is, and whoever
    /// cordoned it was one of us.
    pub(super) fn may_cordon(&self, node: &NodeName, on: bool) -> bool {
        let observed = self.world.observed();
        let Some(node) = observed.nodes.get(node) else { return false };
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let ours =
            instance.is_some_and(|i| i.is_managed_by(&observed.cluster.name) || i.group.is_some());
        ours && !self.is_cordoned_by_person(node)
            && (on || !node.unschedulable || node.cordon_reason().is_some())
    }

    /// Returns instances of ours that a message has go, and that are neither cordoned nor in what is kept.
    pub(super) fn open(&self, message: &InterruptionMessage) -> Vec<InstanceId> {
        if !message.kind.is_termination() {
            return Vec::new();
        }
        let observed = self.world.observed();
        let kept = self.kept.borrow();
        let open = |id: &&InstanceId| {
            let instance = observed.instances.get(*id);
            let ours =
                instance.is_some_and(|i| i.is_active() && i.is_managed_by(&observed.cluster.name));
            let node = observed.node_for_instance(id);
            // One that has joined only now is cordoned as soon as it is seen.
            let now = self.time.now();
            let new = |node: &Node| now.duration_since(node.created_at) < JOINED;
            let cordoned = node.is_none_or(|node| node.unschedulable || new(node));
            ours && !(cordoned && kept.interruptions.iter().any(|going| going.instance == **id))
        };
        message.instances.iter().filter(open).cloned().collect()
    }
}
