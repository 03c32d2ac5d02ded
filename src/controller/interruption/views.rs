//! Facts of the last observation about an interrupted instance, for the next step of its
//! interruption.

use super::Interruption;
use super::state_machine::{NodeSighting, NodeView, StepContext};
use crate::controller::node_health::NODE_DELETED;
use crate::controller::persisted_state::InterruptionRecord;
use crate::controller::state::ControllerState;
use crate::controller::status::InterruptionPhase;
use crate::model::ids::InstanceId;
use crate::model::observed::{Instance, Node, Observed, Pod};

/// An interrupted instance in the last observation.
#[derive(Clone, Copy)]
pub(super) struct InstanceView<'w> {
    pub(super) instance: Option<&'w Instance>,
    /// True if the observation is complete and started after the last write about the instance.
    pub(super) is_trusted: bool,
    /// True if the instance has our tags, or is a member of a group as when it was interrupted.
    pub(super) is_ours: bool,
    /// True for a member of a group that is no longer managed. It is left alone; only our cordon is
    /// removed.
    pub(super) is_released: bool,
}

impl ControllerState {
    /// Returns what the last observation says about an interrupted instance.
    pub(super) fn instance_view<'w>(
        &self,
        interruption: &Interruption,
        world: &'w Observed,
    ) -> InstanceView<'w> {
        let InterruptionRecord { instance: id, member, .. } = &interruption.record;
        // Only a complete observation may show that an instance is missing or not ours.
        let instance = world.instances.get(id);
        // EC2 may not show a new instance yet, and an older observation may miss it again.
        let hidden = instance.is_none() && self.observation.unobserved.is_awaiting(id);
        let is_current =
            self.observation.number >= interruption.trusted_from && !interruption.cordoning;
        let is_ours = instance
            .is_some_and(|i| i.is_managed_by(&world.cluster.name) || *member && i.group.is_some());
        InstanceView {
            instance,
            is_trusted: is_current && !hidden && !self.observation.reads.has_failed(),
            is_ours,
            is_released: *member && !self.is_member(id) && !interruption.drain_abandoned,
        }
    }

    /// Returns the context of the next step of an interruption. The caller determines whether the
    /// replacement is there.
    pub(super) fn step_context(
        &self,
        interruption: &Interruption,
        node: Option<&Node>,
        world: &Observed,
        is_observation_trusted: bool,
    ) -> StepContext {
        let id = &interruption.record.instance;
        let sighting = match node {
            Some(_) => NodeSighting::Present,
            None => self.sighting_without_node(id, world),
        };
        StepContext {
            now: self.now,
            sighting,
            is_replaced: false,
            is_observation_trusted,
            is_observation_newer: self.observation.number >= interruption.known_from,
            is_drained_by_apply: self.applies.removes_instance(id),
            drain_room: self.drain_room(id, world),
            next_observation: self.observation.next_number(),
        }
    }

    /// Returns what an observation says that does not show the node of an instance.
    fn sighting_without_node(&self, id: &InstanceId, world: &Observed) -> NodeSighting {
        // An observation without any node says nothing about single nodes.
        if world.nodes.is_empty() {
            return NodeSighting::Lost;
        }
        let is_deleted = self.interruptions.all.get(id).is_some_and(|interruption| {
            interruption.record.why == NODE_DELETED && shows_managed_node(world)
        });
        if is_deleted {
            NodeSighting::Deleted
        } else if self.has_joined(id) {
            NodeSighting::Lost
        } else {
            NodeSighting::NeverJoined
        }
    }
}

/// Returns true if the observation shows a node of ours. Otherwise it is implausible.
fn shows_managed_node(world: &Observed) -> bool {
    world.nodes.values().any(|node| {
        let instance = node.instance.as_ref().and_then(|id| world.instances.get(id));
        instance.is_some_and(|instance| instance.is_managed_by(&world.cluster.name))
    })
}

/// Returns the facts of a node that the next step of an interruption in this phase needs.
pub(super) fn node_view<'w>(
    phase: InterruptionPhase,
    node: Option<&'w Node>,
    pods: impl Fn() -> Vec<&'w Pod>,
    world: &'w Observed,
) -> NodeView<'w> {
    match phase {
        InterruptionPhase::Draining => NodeView::for_drain(node, pods(), world),
        InterruptionPhase::Noticed
        | InterruptionPhase::Replacing
        | InterruptionPhase::Terminating => NodeView { node, ..NodeView::default() },
    }
}
