//! The observation as plans use it: corrected by the controller's own recent calls and by
//! interrupted instances.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::launches_in_progress::{LaunchesInProgress, add_instances};
use super::persisted_state::CLOCK_SKEW_MAX;
use crate::apply::is_pending;
use crate::model::ids::{InstanceId, NodeName, WorkloadKind};
use crate::model::observed::{Exclusion, Instance, InstanceState, Observed, PlannedPods, Pod};
use crate::model::saturating_time::later;

/// Maximum delay until EC2 shows a change. Describe calls lag by seconds, and by minutes during EC2
/// incidents. A launch that stays invisible longer counts as gone.
pub const EC2_VISIBILITY_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Own changes that observations may not show yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct UnobservedChanges {
    /// Launch time by instance; for launches of others, the time of their first observation.
    launched_at: BTreeMap<InstanceId, Timestamp>,
    /// Launched instances as the answers of EC2 describe them.
    answered: BTreeMap<InstanceId, Instance>,
    /// Time of the terminate call by instance.
    terminated_at: BTreeMap<InstanceId, Timestamp>,
    /// Number of terminate calls so far.
    terminations: u64,
}

impl UnobservedChanges {
    pub(super) fn note_launch(&mut self, instance: &InstanceId, now: Timestamp) {
        self.launched_at.insert(instance.clone(), now);
    }

    /// Notes the answer to a launch, and the instance if it is known.
    pub(super) fn note_answered_launch(
        &mut self,
        id: &InstanceId,
        instance: Option<Instance>,
        now: Timestamp,
    ) {
        self.note_launch(id, now);
        self.answered.extend(instance.map(|instance| (id.clone(), instance)));
    }

    /// Returns the launched instances that the observation lacks and that are known by the answers of
    /// EC2.
    pub(super) fn answered_launches(&self, observed: &Observed) -> impl Iterator<Item = &Instance> {
        let is_missing = |instance: &&Instance| {
            let id = &instance.id;
            self.launched_at.contains_key(id)
                && !observed.instances.contains_key(id)
                && !self.is_terminated(id)
        };
        self.answered.values().filter(is_missing)
    }

    /// Returns true if the observation lacks a launched instance that no answer describes.
    pub(super) fn has_unknown_launch(&self, observed: &Observed) -> bool {
        self.missing_launches(observed).any(|id| !self.answered.contains_key(id))
    }

    /// Notes recently launched instances of this cluster that the previous observation lacked,
    /// including launches of others. The next observation may be older than this one.
    pub(super) fn note_recent_instances(
        &mut self,
        before: Option<&Observed>,
        observed: &Observed,
        now: Timestamp,
    ) {
        let lately = |instance: &&Instance| {
            let visible = later(instance.launched_at, EC2_VISIBILITY_MAX);
            instance.is_active() && now < later(visible, CLOCK_SKEW_MAX)
        };
        let ours = |instance: &&Instance| instance.is_managed_by(&observed.cluster.name);
        let new = |instance: &&Instance| {
            !before.is_some_and(|before| before.instances.contains_key(&instance.id))
        };
        for instance in observed.instances.values().filter(lately).filter(ours).filter(new) {
            self.launched_at.entry(instance.id.clone()).or_insert(now);
        }
    }

    pub(super) fn note_termination(&mut self, instance: &InstanceId, now: Timestamp) {
        if self.terminated_at.insert(instance.clone(), now).is_none() {
            self.terminations += 1;
        }
    }

    /// Returns the number of terminate calls so far. A plan that started with a lower number counts
    /// terminated instances.
    pub(super) fn terminations(&self) -> u64 {
        self.terminations
    }

    /// Returns true if EC2 was asked to terminate the instance recently.
    pub(super) fn is_terminated(&self, instance: &InstanceId) -> bool {
        self.terminated_at.contains_key(instance)
    }

    /// Returns true if the instance was launched recently, so that an observation may lack it.
    pub(super) fn is_awaiting(&self, instance: &InstanceId) -> bool {
        self.launched_at.contains_key(instance) && !self.is_terminated(instance)
    }

    /// Forgets expired entries. Entries stay for the whole delay even once observed, because a later
    /// observation may be older.
    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        let young = |at: &Timestamp| now < later(*at, EC2_VISIBILITY_MAX);
        self.launched_at.retain(|_, at| young(at));
        self.terminated_at.retain(|_, at| young(at));
        self.answered.retain(|id, _| self.launched_at.contains_key(id));
    }

    /// Returns a launched instance that the observation lacks. A plan without it would launch
    /// another.
    pub(super) fn missing_launch(&self, observed: &Observed) -> Option<&InstanceId> {
        self.missing_launches(observed).next()
    }

    fn missing_launches(&self, observed: &Observed) -> impl Iterator<Item = &InstanceId> {
        let known = |id: &&InstanceId| {
            observed.instances.contains_key(*id) || self.terminated_at.contains_key(*id)
        };
        self.launched_at.keys().filter(move |id| !known(id))
    }
}

/// Returns the observation to plan from: without interrupted instances, with terminated instances
/// shown as such, with launches in progress, and without offerings that lack capacity. An unchanged
/// observation is shared, because a fleet is large and mostly idle.
pub(super) fn planning_snapshot(
    observed: &Arc<Observed>,
    changes: &UnobservedChanges,
    interrupted: &BTreeSet<InstanceId>,
    unavailable_offerings: Vec<Exclusion>,
    planned_pods: &PlannedPods,
    launches: LaunchesInProgress,
) -> Arc<Observed> {
    let visible = |id: &&InstanceId| observed.instances.contains_key(*id);
    let mut terminated = changes.terminated_at.keys().filter(visible).peekable();
    let is_unchanged =
        terminated.peek().is_none() && interrupted.is_empty() && unavailable_offerings.is_empty();
    if is_unchanged && planned_pods.is_empty() && launches.instances.is_empty() {
        return Arc::clone(observed);
    }
    let mut world = Observed::clone(observed);
    world.planned_pods.clone_from(planned_pods);
    add_instances(&mut world, &launches.instances);
    world.planned_pods.extend(launches.planned_pods);
    for id in terminated {
        if let Some(instance) = world.instances.get_mut(id) {
            instance.state = InstanceState::ShuttingDown;
        }
    }
    world.remove_instances(interrupted);
    world.exclusions.extend(unavailable_offerings);
    world.exclusions.sort();
    // Interrupted instances still exist, so their replacements need other keys.
    for instance in interrupted.iter().filter_map(|id| observed.instances.get(id)) {
        let state = InstanceState::Stopping;
        world.instances.insert(instance.id.clone(), Instance { state, ..instance.clone() });
    }
    Arc::new(world)
}

/// Forgets the planned pods of instances that are gone, and of those that take pods while none is
/// pending. Until then, a pod may be on its way to its planned node. Pods of instances that are
/// gone need other nodes, so `launched_demand` forgets their workloads.
pub(super) fn forget_planned_pods(
    planned_pods: &mut PlannedPods,
    launched_demand: &mut BTreeMap<String, u32>,
    observed: &Observed,
    changes: &UnobservedChanges,
) {
    if planned_pods.is_empty() {
        return;
    }
    let is_waiting = observed.pods.iter().any(|pod| is_pending(pod));
    let nodes = observed.nodes_by_instance();
    planned_pods.retain(|id, pods| {
        let seen = observed.instances.get(id).map(Instance::is_active);
        let is_active = seen.unwrap_or_else(|| changes.is_awaiting(id));
        if !is_active {
            launched_demand.retain(|workload, _| !pods.contains_key(workload));
        }
        let takes_pods = nodes.get(id).is_some_and(|node| node.ready && !node.is_closed());
        is_active && (is_waiting || !takes_pods)
    });
}

/// Returns the pods that must be evicted before the node is removed.
pub(super) fn pods_to_evict<'o>(observed: &'o Observed, node: &NodeName) -> Vec<&'o Pod> {
    let on = |pod: &&Pod| pod.node.as_ref() == Some(node) && pod.needs_eviction();
    observed.pods.iter().map(|pod| &**pod).filter(on).collect()
}

/// Returns true if a pod is newly pending. Pods of `DaemonSet`s come with nodes and do not count.
pub(super) fn has_new_pending_pods(before: &Observed, now: &Observed) -> bool {
    let waiting = |observed: &'_ Observed| {
        let of_set = |pod: &Pod| {
            pod.owner.as_ref().is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet)
        };
        let pods = observed.pods.iter().filter(|pod| is_pending(pod) && !of_set(pod));
        pods.map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>()
    };
    !waiting(now).is_subset(&waiting(before))
}
