//! Limit on the nodes that are drained at once because of messages that nothing confirms.
//!
//! Anyone who may send to the queue can announce maintenance of every instance, for any time. Two
//! limits bound such drains. `spec.controller.removals` applies while the announced time is far or
//! unknown. Near that time `spec.controller.massRemoval` applies: EC2 is about to take the
//! instance, and a drain that waits helps no pod. Without any limit near the time, a sender of near
//! times could have all nodes drained at once. That limit counts stuck drains as well: their nodes
//! are cordoned, and their pods may be evicted at any time. No port reads the scheduled events of
//! EC2, which would confirm them.

use jiff::{SignedDuration, Timestamp};

use super::state_machine::{Drain, Interruption, Progress, StepContext};
use crate::controller::mass_removal::nodes_at_once;
use crate::controller::state::ControllerState;
use crate::controller::status::InterruptionPhase;
use crate::model::desired::CountOrShare;
use crate::model::ids::InstanceId;
use crate::model::observed::{Node, Observed};
use crate::model::saturating_time::later;

/// A drain that has evicted nothing for this long is stuck. It delays no other drain, except those
/// near their announced time.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// Room for another drain because of a message that nothing confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrainRoom {
    /// Any drain may begin.
    Any,
    /// Only a drain whose announced time is near may begin.
    NearDeadline,
    /// None may begin.
    Full,
}

impl Interruption {
    /// Returns whether its drain depends on the limit.
    fn needs_drain_room(&self) -> bool {
        self.record.is_unconfirmed() || self.record.announced.is_some()
    }

    pub(super) fn drain_mut(&mut self) -> Option<&mut Drain> {
        match &mut self.progress {
            Progress::Noticed { .. } | Progress::Replacing { .. } => None,
            Progress::Draining(drain) => Some(drain),
            Progress::Terminating { drain, .. } => drain.as_mut(),
        }
    }

    /// Records that a pod was evicted.
    pub(super) fn record_eviction(&mut self, now: Timestamp) {
        if let Some(drain) = self.drain_mut() {
            drain.evicted_at = now;
        }
    }

    /// Returns the drain that a message began which nothing confirms, unless it is abandoned.
    fn unconfirmed_drain(&self) -> Option<Drain> {
        let drain = self.drain_progress().filter(|drain| drain.is_unconfirmed);
        drain.filter(|_| !self.drain_abandoned)
    }

    /// Returns whether pods are evicted only because of a message that nothing confirms, so that
    /// nothing is forced.
    pub(in crate::controller) fn is_drained_unconfirmed(&self) -> bool {
        self.phase() == InterruptionPhase::Draining && self.unconfirmed_drain().is_some()
    }

    /// Returns the drain that begins now, if one does: the replacement is there, or time is short.
    pub(super) fn drain_to_begin(
        &self,
        node: Option<&Node>,
        context: StepContext,
    ) -> Option<Drain> {
        let StepContext { now, is_replaced, is_observation_trusted, drain_room, .. } = context;
        // A partial observation shows neither the pods on the node nor their replacements.
        let latest = self.latest_eviction_start(is_observation_trusted);
        let is_due = latest.is_some_and(|latest| now >= latest);
        let begins = is_due || (is_replaced && is_observation_trusted);
        if begins && !self.record.is_unconfirmed() {
            return Some(Drain::new(now, false));
        }
        // EC2 takes the instance at the announced time, however many nodes are drained already.
        let is_near = self.is_announced_time_near(now);
        let begins = match drain_room {
            DrainRoom::Any => is_near || (begins && self.record.is_unconfirmed()),
            DrainRoom::NearDeadline => is_near,
            DrainRoom::Full => false,
        };
        // An announcement about an instance under repair has pods evicted, and no more.
        let is_possible = node.is_some() || self.record.is_unconfirmed();
        (begins && is_possible).then(|| Drain::new(now, true))
    }
}

impl ControllerState {
    /// Returns the room for a drain of an instance because of a message that nothing confirms.
    pub(super) fn drain_room(&self, id: &InstanceId, world: &Observed) -> DrainRoom {
        let all = &self.interruptions.all;
        if !all.get(id).is_some_and(Interruption::needs_drain_room) {
            return DrainRoom::Any;
        }
        let drains = || all.values().filter_map(Interruption::unconfirmed_drain);
        let is_active = |drain: &Drain| self.now < later(drain.evicted_at, STUCK_AFTER);
        let active = u32::try_from(drains().filter(is_active).count()).unwrap_or(u32::MAX);
        let draining = u32::try_from(drains().count()).unwrap_or(u32::MAX);
        let nodes = world.nodes.values().filter(|node| !node.is_fargate()).count();
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let settings = self.revisions.settings();
        // One drain at a time is always possible: the node is cordoned already.
        let most = settings.map_or(0, |settings| settings.removals.limit_for(nodes)).max(1);
        let limit = settings.map_or(CountOrShare::Count(0), |settings| settings.mass_removal);
        if active < most {
            DrainRoom::Any
        } else if draining < nodes_at_once(limit, nodes) {
            DrainRoom::NearDeadline
        } else {
            DrainRoom::Full
        }
    }
}
