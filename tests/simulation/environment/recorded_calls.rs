//! Calls of replicas to EC2 and Kubernetes, with the state at the time of the call.

use std::collections::BTreeSet;

use fleetwright::apply::ports::LaunchRequest;
use fleetwright::controller::{InterruptionMessage, MessageKind};
use fleetwright::model::ids::{Address, ChangeId, GroupName, InstanceId, NodeName, PlanId, Uid};
use fleetwright::model::observed::{Instance, Node, Pod, tag};
use jiff::{SignedDuration, Timestamp};

use super::SharedWorld;

/// A call to EC2 or Kubernetes, or a reply to one.
#[derive(Debug, Clone)]
pub(crate) struct RecordedCall {
    /// Time at which the call took effect.
    pub(crate) at: Timestamp,
    /// Number of the replica that called.
    pub(crate) replica: usize,
    /// Time at which the caller began the call. A process may pause in between.
    pub(crate) began: Timestamp,
    /// Holder and end of the lease at that time.
    pub(crate) lease: Option<(usize, Timestamp)>,
    /// Start of the last complete read of Kubernetes by the caller.
    pub(crate) cluster_read_at: Option<Timestamp>,
    /// Instances that EC2 had listed to the process before the call. Only launches record it.
    pub(crate) listed_instances: BTreeSet<InstanceId>,
    pub(crate) kind: CallKind,
}

/// The state of an instance at the time of its termination.
#[derive(Debug, Clone)]
pub(crate) struct TerminatedInstance {
    pub(crate) id: InstanceId,
    /// True if the instance has our tags or is a member of a group.
    pub(crate) ours: bool,
    /// True if the instance is pending or running.
    pub(crate) runs: bool,
    /// Its node, if it has joined.
    pub(crate) node: Option<NodeName>,
    /// True if the node accepts new pods.
    pub(crate) open: bool,
    /// Start times of its active pods. A pod that has not started has none.
    pub(crate) left: Vec<Option<Timestamp>>,
    /// Changes whose instances were Ready.
    pub(crate) ready: BTreeSet<ChangeId>,
    /// Creation times of the pods that wait for a node.
    pub(crate) pending: Vec<Timestamp>,
}

/// A change of the served commit in the persisted state.
#[derive(Debug, Clone)]
pub(crate) struct ServedCommitChange {
    /// Commit served before.
    pub(crate) from: String,
    /// Commit served now.
    pub(crate) to: String,
    /// True if CI has completed its apply of `to`.
    pub(crate) applied: bool,
    /// True if break-glass is active.
    pub(crate) break_glass: bool,
    /// True if the repository no longer has `from`.
    pub(crate) gone: bool,
}

#[derive(Clone)]
pub(crate) enum CallKind {
    /// A launch, and the launched instance.
    Launch(Box<LaunchRequest>, Option<InstanceId>),
    /// The reply of EC2 that an instance was launched.
    Launched(InstanceId),
    Terminate(TerminatedInstance),
    /// The reply of EC2 that an instance is terminating.
    Ended(InstanceId),
    /// A change of the desired size of a group.
    Raise {
        group: GroupName,
        /// Desired size before.
        from: u32,
        /// Desired size after.
        to: u32,
    },
    /// A cordon or an uncordon of a node.
    Cordon {
        node: NodeName,
        /// True for a cordon.
        on: bool,
        /// True if the node is ours to cordon or uncordon.
        ours: bool,
    },
    /// An opening of a closed node.
    Open(NodeName),
    /// An eviction, and the node of the pod.
    Evict(Uid, Option<NodeName>),
    /// A deletion of a pod past its disruption budgets, and the node of the pod.
    DeletePod(Uid, Option<NodeName>),
    /// A nomination of a pod to a node.
    Nominate(Uid, NodeName),
    Serves(ServedCommitChange),
    /// A plan that was made again before its first call, and its launches that are no longer
    /// needed.
    Pinned(PlanId, BTreeSet<Address>),
    /// An acknowledgement of a message. Lists the managed instances of the message that were
    /// neither cordoned nor in the persisted state.
    Acknowledge(String, Vec<InstanceId>),
}

impl std::fmt::Debug for CallKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Launch(request, end) => {
                let offerings = request.offerings.iter();
                let offerings = offerings.map(|of| format!("{} {}", of.instance_type, of.zone));
                let offerings = offerings.collect::<Vec<_>>().join(" or ");
                let end = end.as_ref().map_or("nothing", InstanceId::as_str);
                write!(f, "launches {offerings} {}: {end}", request.capacity_type)
            }
            Self::Terminate(TerminatedInstance { id, left, .. }) => {
                write!(f, "terminates {id}, {} pods left", left.len())
            }
            Self::Ended(id) => write!(f, "receives the reply that {id} is terminating"),
            Self::Launched(id) => write!(f, "receives the reply that {id} was launched"),
            Self::Raise { group, from, to } => write!(f, "scales {group} from {from} to {to}"),
            Self::Cordon { node, on: true, .. } => write!(f, "cordons {node}"),
            Self::Cordon { node, on: false, .. } => write!(f, "uncordons {node}"),
            Self::Evict(uid, None) => write!(f, "evicts {uid}"),
            Self::Evict(uid, Some(node)) => write!(f, "evicts {uid} from {node}"),
            Self::DeletePod(uid, node) => write!(f, "deletes {uid} of {node:?}"),
            Self::Nominate(uid, node) => write!(f, "nominates {uid} to {node}"),
            Self::Open(node) => write!(f, "opens {node}"),
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

/// Age up to which a node may be missing from the last observation, which is at most 30 seconds
/// old.
const JOINED: SignedDuration = SignedDuration::from_secs(45);

/// The caller and its state at the start of the call.
pub(super) struct Caller {
    pub(super) replica: usize,
    pub(super) began: Timestamp,
    pub(super) lease: Option<(usize, Timestamp)>,
    pub(super) cluster_read_at: Option<Timestamp>,
    pub(super) listed_instances: BTreeSet<InstanceId>,
}

impl SharedWorld {
    pub(super) fn note(&self, by: &Caller, kind: CallKind) {
        let Caller { replica, began, lease, cluster_read_at, ref listed_instances } = *by;
        let (at, listed_instances) = (self.time.now(), listed_instances.clone());
        self.calls.borrow_mut().push(RecordedCall {
            at,
            replica,
            began,
            lease,
            cluster_read_at,
            listed_instances,
            kind,
        });
    }

    /// Records that a replica made a plan again, and the launches that are no longer needed.
    pub(crate) fn record_replan(&self, replica: usize, plan: &PlanId, dropped: BTreeSet<Address>) {
        let (began, lease) = (self.time.now(), self.lease.get());
        let by = Caller {
            replica,
            began,
            lease,
            cluster_read_at: None,
            listed_instances: BTreeSet::new(),
        };
        self.note(&by, CallKind::Pinned(plan.clone(), dropped));
    }

    pub(super) fn ended(&self, id: &InstanceId) -> TerminatedInstance {
        let observed = self.world.observed();
        let instance = observed.instances.get(id);
        let node = observed.node_for_instance(id);
        let on = |pod: &Pod| {
            pod.is_active()
                && !pod.is_node_bound()
                && node.is_some_and(|n| pod.node.as_ref() == Some(&n.name))
        };
        let ready = observed.nodes.values().filter(|node| node.ready);
        let ready = ready.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let ready = ready.filter_map(|i| Some(ChangeId::from(i.tags.get(tag::CHANGE)?.as_str())));
        let waits = |pod: &Pod| pod.is_active() && !pod.is_node_bound() && pod.node.is_none();
        let pending = observed.pods.iter().filter(|pod| waits(pod));
        TerminatedInstance {
            id: id.clone(),
            ours: instance
                .is_some_and(|i| i.is_managed_by(&observed.cluster.name) || i.group.is_some()),
            runs: instance.is_some_and(Instance::is_active),
            node: node.map(|node| node.name.clone()),
            open: node.is_some_and(|node| !node.unschedulable),
            left: observed.pods.iter().filter(|pod| on(pod)).map(|pod| pod.started_at).collect(),
            ready: ready.collect(),
            pending: pending.map(|pod| pod.created_at).collect(),
        }
    }

    /// Returns whether the controller may cordon or uncordon a node. Its instance has to be managed
    /// or a member of a group, and its cordon must not come from an operator.
    pub(super) fn may_cordon(&self, node: &NodeName, on: bool) -> bool {
        let observed = self.world.observed();
        let Some(node) = observed.nodes.get(node) else { return false };
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let ours =
            instance.is_some_and(|i| i.is_managed_by(&observed.cluster.name) || i.group.is_some());
        ours && !self.is_cordoned_by_operator(node)
            && (on || !node.unschedulable || node.cordon_reason().is_some())
    }

    /// Returns the managed instances that a termination message names and that are neither cordoned
    /// nor in the persisted state, as far as `by` can have seen.
    pub(super) fn unhandled_instances(
        &self,
        by: &Caller,
        message: &InterruptionMessage,
    ) -> Vec<InstanceId> {
        if !message.kind.is_termination() {
            return Vec::new();
        }
        let observed = self.world.observed();
        let persisted_state = self.persisted_state.borrow();
        let open = |id: &&InstanceId| {
            let instance = observed.instances.get(*id);
            // EC2 reclaims no on-demand instance as spot capacity: such a warning is forged.
            let is_forged = |i: &Instance| {
                message.kind == MessageKind::SpotInterruption && !i.capacity_type.is_spot()
            };
            let node = observed.node_for_instance(id);
            // A node that joined only just now is cordoned after the next observation.
            let now = self.time.now();
            let new = |node: &Node| now.duration_since(node.created_at) < JOINED;
            // Anyone can write our tags on an instance that is no node.
            let is_proven =
                |i: &Instance| i.is_launched_by_fleet() || node.is_some_and(|node| !new(node));
            let ours = instance.is_some_and(|i| {
                i.is_active()
                    && i.is_managed_by(&observed.cluster.name)
                    && is_proven(i)
                    && !is_forged(i)
            });
            // So is one that an operator uncordoned since the last read of the cluster.
            let uncordons = self.operator_uncordons.borrow();
            let unseen =
                |at: &Timestamp| by.cluster_read_at < Some(*at) && now.duration_since(*at) < JOINED;
            let reopened = |node: &Node| uncordons.get(&node.name).is_some_and(unseen);
            let cordoned =
                node.is_none_or(|node| node.unschedulable || new(node) || reopened(node));
            ours && !(cordoned
                && persisted_state
                    .interruptions
                    .iter()
                    .any(|terminating| terminating.instance == **id))
        };
        message.instances.iter().filter(open).cloned().collect()
    }
}
