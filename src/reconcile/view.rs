//! The world as it is planned over: what was seen, with what the loop itself has done since and what
//! it knows to be going.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::kept::{CLOCK_OFF, later};
use crate::fleet::{Exclusion, Instance, InstanceState, Observed, Pod};
use crate::ids::{InstanceId, NodeName, WorkloadKind};

/// How long EC2 may take to show what it was told. Describe calls lag by seconds, and by up to minutes where EC2 is
/// not well; what is not shown by then is taken for gone.
pub const SHOWN_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// What the loop has done and has not seen yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Unseen {
    /// Machines that were launched, and when; of those that others launched, when they were first seen.
    launched: BTreeMap<InstanceId, Timestamp>,
    /// Machines that were told to end, and when.
    ended: BTreeMap<InstanceId, Timestamp>,
    /// How many ever were.
    all_ended: u64,
}

impl Unseen {
    pub(super) fn launch(&mut self, instance: &InstanceId, now: Timestamp) {
        self.launched.insert(instance.clone(), now);
    }

    /// Notes machines of ours that came lately, by the clock of EC2, and that the look before did not show, whoever has
    /// launched them: the next look may be older than this one.
    pub(super) fn meet(&mut self, before: Option<&Observed>, observed: &Observed, now: Timestamp) {
        let lately = |instance: &&Instance| {
            let shown = later(instance.launched_at, SHOWN_WITHIN);
            instance.is_active() && now < later(shown, CLOCK_OFF)
        };
        let ours = |instance: &&Instance| instance.is_ours(&observed.cluster.name);
        let new = |instance: &&Instance| {
            !before.is_some_and(|before| before.instances.contains_key(&instance.id))
        };
        for instance in observed.instances.values().filter(lately).filter(ours).filter(new) {
            self.launched.entry(instance.id.clone()).or_insert(now);
        }
    }

    pub(super) fn end(&mut self, instance: &InstanceId, now: Timestamp) {
        if self.ended.insert(instance.clone(), now).is_none() {
            self.all_ended += 1;
        }
    }

    /// Returns how many machines were ever told to end: a plan that was begun at another number counts
    /// with one that is no more.
    pub(super) fn all_ended(&self) -> u64 {
        self.all_ended
    }

    /// Returns whether a machine was told to end, and is not shown as ended yet.
    pub(super) fn has_ended(&self, instance: &InstanceId) -> bool {
        self.ended.contains_key(instance)
    }

    /// Returns whether a machine was launched lately, so that a look may not show it yet.
    pub(super) fn awaits(&self, instance: &InstanceId) -> bool {
        self.launched.contains_key(instance) && !self.has_ended(instance)
    }

    /// Strikes what is long past. What was done is kept for as long as EC2 may show it late, whatever a look
    /// shows: a later look may be older than an earlier one.
    pub(super) fn strike(&mut self, now: Timestamp) {
        let young = |at: &Timestamp| now < later(*at, SHOWN_WITHIN);
        self.launched.retain(|_, at| young(at));
        self.ended.retain(|_, at| young(at));
    }

    /// Returns a machine that was launched and is not shown yet: planning without it would launch
    /// another one.
    pub(super) fn missing(&self, observed: &Observed) -> Option<&InstanceId> {
        let known =
            |id: &&InstanceId| observed.instances.contains_key(*id) || self.ended.contains_key(*id);
        self.launched.keys().find(|id| !known(id))
    }
}

/// Returns the world to plan over: without the machines that go, whose pods look for another place, with those that
/// were told to end shown as ending, and without what is sold out. What changes nothing of what was seen is that itself:
/// a fleet is large, and mostly at rest.
pub(super) fn planned_over(
    observed: &Arc<Observed>,
    unseen: &Unseen,
    going: &BTreeSet<InstanceId>,
    sold_out: Vec<Exclusion>,
) -> Arc<Observed> {
    let shown = |id: &&InstanceId| observed.instances.contains_key(*id);
    let mut ended = unseen.ended.keys().filter(shown).peekable();
    if ended.peek().is_none() && going.is_empty() && sold_out.is_empty() {
        return Arc::clone(observed);
    }
    let mut world = Observed::clone(observed);
    for id in ended {
        if let Some(instance) = world.instances.get_mut(id) {
            instance.state = InstanceState::ShuttingDown;
        }
    }
    world.take_away(going);
    world.exclusions.extend(sold_out);
    world.exclusions.sort();
    // They are there still, and so are their keys: what comes in their place has others.
    for instance in going.iter().filter_map(|id| observed.instances.get(id)) {
        let state = InstanceState::Stopping;
        world.instances.insert(instance.id.clone(), Instance { state, ..instance.clone() });
    }
    Arc::new(world)
}

/// Returns the pods that have to leave a node before it goes.
pub(super) fn movable<'o>(observed: &'o Observed, node: &NodeName) -> Vec<&'o Pod> {
    let on = |pod: &&Pod| pod.node.as_ref() == Some(node) && pod.has_to_leave();
    observed.pods.iter().map(|pod| &**pod).filter(on).collect()
}

/// Returns whether a pod waits for a node.
pub(super) fn is_waiting(pod: &Pod) -> bool {
    pod.is_active() && pod.node.is_none()
}

/// Returns whether a pod waits for a node that did not before; those of `DaemonSet`s come with nodes.
pub(super) fn has_new_waiting(before: &Observed, now: &Observed) -> bool {
    let waiting = |observed: &'_ Observed| {
        let of_set = |pod: &Pod| {
            pod.owner.as_ref().is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet)
        };
        let pods = observed.pods.iter().filter(|pod| is_waiting(pod) && !of_set(pod));
        pods.map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>()
    };
    !waiting(now).is_subset(&waiting(before))
}
