//! The world as it is planned over: what was seen, with what the loop itself has done since and what
//! it knows to be going.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::kept::later;
use crate::fleet::{Instance, InstanceState, Observed, Pod, PodPhase};
use crate::ids::{InstanceId, NodeName, WorkloadKind};

/// How long EC2 may take to show what it was told. Describe calls lag by seconds; what is not shown
/// by then is taken for gone.
pub(super) const SHOWN_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// What the loop has done and has not seen yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Unseen {
    /// Machines that were launched, and when.
    launched: BTreeMap<InstanceId, Timestamp>,
    /// Machines that were told to end, and when.
    ended: BTreeMap<InstanceId, Timestamp>,
}

impl Unseen {
    pub(super) fn launch(&mut self, instance: &InstanceId, now: Timestamp) {
        self.launched.insert(instance.clone(), now);
    }

    pub(super) fn end(&mut self, instance: &InstanceId, now: Timestamp) {
        self.ended.insert(instance.clone(), now);
    }

    /// Strikes what is long past, and machines that `observed` shows as ended. What was launched is kept
    /// for as long as EC2 may show it late: a later look may be older than an earlier one.
    pub(super) fn strike(&mut self, observed: &Observed, now: Timestamp) {
        let young = |at: &Timestamp| now < later(*at, SHOWN_WITHIN);
        self.launched.retain(|_, at| young(at));
        let runs = |id: &InstanceId| observed.instances.get(id).is_some_and(Instance::is_active);
        self.ended.retain(|id, at| runs(id) && young(at));
    }

    /// Returns a machine that was launched and is not shown yet: planning without it would launch
    /// another one.
    pub(super) fn missing(&self, observed: &Observed) -> Option<&InstanceId> {
        let known =
            |id: &&InstanceId| observed.instances.contains_key(*id) || self.ended.contains_key(*id);
        self.launched.keys().find(|id| !known(id))
    }
}

/// Returns the world to plan over: without the machines that go, whose pods look for another place, and
/// with those that were told to end shown as ending.
pub(super) fn planned_over(
    observed: &Observed,
    unseen: &Unseen,
    going: &BTreeSet<InstanceId>,
) -> Observed {
    let mut world = observed.clone();
    for id in unseen.ended.keys() {
        if let Some(instance) = world.instances.get_mut(id) {
            instance.state = InstanceState::ShuttingDown;
        }
    }
    take_away(&mut world, going);
    world
}

/// Takes machines and their nodes away; what ran on them waits for another place.
pub(super) fn take_away(world: &mut Observed, gone: &BTreeSet<InstanceId>) {
    if gone.is_empty() {
        return;
    }
    world.instances.retain(|id, _| !gone.contains(id));
    let left: BTreeSet<NodeName> = world
        .nodes
        .values()
        .filter(|node| node.instance.as_ref().is_some_and(|id| gone.contains(id)))
        .map(|node| node.name.clone())
        .collect();
    world.nodes.retain(|name, _| !left.contains(name));
    let is_left = |pod: &Pod| pod.node.as_ref().is_some_and(|node| left.contains(node));
    world.pods.retain(|pod| !(is_left(pod) && (pod.mirror || is_daemon(pod))));
    for pod in &mut world.pods {
        if is_left(pod) {
            pod.node = None;
            pod.phase = PodPhase::Pending;
        }
    }
}

/// Returns whether a pod is of a `DaemonSet`, so that it belongs to its node.
pub(super) fn is_daemon(pod: &Pod) -> bool {
    pod.owner.as_ref().is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet)
}

/// Returns the pods that have to leave a node before it goes.
pub(super) fn movable<'o>(
    observed: &'o Observed,
    node: &'o NodeName,
) -> impl Iterator<Item = &'o Pod> {
    observed.pods.iter().filter(move |pod| {
        pod.node.as_ref() == Some(node)
            && (pod.terminating || pod.is_active())
            && !is_daemon(pod)
            && !pod.mirror
    })
}

/// Returns whether a pod waits for a node.
pub(super) fn is_waiting(pod: &Pod) -> bool {
    pod.is_active() && pod.node.is_none()
}
