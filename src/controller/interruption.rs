//! Instances that terminate for a reason outside of plans: EC2 takes them back, they fail, or they
//! are retired.
//!
//! Each node is cordoned first, then replaced (plans treat it as gone), then drained. Invariants:
//! an instance that is not ours or is unknown is never touched, and its message is acknowledged all
//! the same. Every drain ends: completed, abandoned with the node uncordoned, or forced by an
//! external deadline.

mod deadlines;
mod drain_limit;
mod interruptions;
mod message_handler;
mod planned_replacements;
mod state_machine;
mod views;

pub(super) use interruptions::Interruptions;
pub(super) use planned_replacements::PlannedReplacements;
pub(super) use state_machine::Interruption;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use state_machine::{NodeSnapshot, RETRY_MAX, Transition};
use views::{InstanceView, node_view};

use super::counters::Counter;
use super::event::{Effect, Event, Signal, TerminateOutcome};
use super::node_health::is_repair;
use super::observation::BUSY_REFRESH;
use super::persisted_state::{InterruptionRecord, PersistedState};
use super::planning_snapshot;
use super::state::ControllerState;
use super::status::{InterruptionPhase, InterruptionStatus};
use crate::apply::Bounds;
use crate::apply::ports::{CordonOutcome, EvictOutcome, PortError};
use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{Instance, InstanceState, Node, Observed, Pod};
use crate::model::saturating_time::later;

/// Deletion of the node of a terminated instance is retried for this long, as in an apply.
const NODE_DELETION_TIMEOUT: SignedDuration = Bounds::DEFAULT.gone;

/// Interruptions that one step advances.
pub(super) enum StepScope {
    /// All of them: the world or the time has changed.
    All,
    /// Those that the event names.
    Only(Vec<InstanceId>),
}

impl StepScope {
    /// Returns the scope for `event`. An event about one instance does not advance the others.
    pub(super) fn for_event(event: &Event) -> Self {
        match event {
            Event::Cordoned { instance, .. }
            | Event::Uncordoned { instance, .. }
            | Event::Evicted { instance, .. }
            | Event::TerminateFinished { instance, .. }
            | Event::NodeDeleted { instance, .. } => Self::Only(vec![instance.clone()]),
            Event::Signal(Signal::Message(message)) => Self::Only(message.instances.clone()),
            Event::Acknowledged { .. }
            | Event::CordonedWithoutLease { .. }
            | Event::PodsNominated(_)
            | Event::NodesOpened(_)
            | Event::ApplyProgressed { .. } => Self::Only(Vec::new()),
            Event::StateLoaded(_)
            | Event::StateSaved(_)
            | Event::BranchRead(_)
            | Event::CommitRead { .. }
            | Event::Observed(_)
            | Event::PlannerMissing { .. }
            | Event::Planned { .. }
            | Event::OfferingAttemptRequested { .. }
            | Event::ApplyFinished { .. }
            | Event::Signal(_)
            | Event::Timer => Self::All,
        }
    }
}

impl ControllerState {
    /// Restores the interruptions that an earlier process recorded.
    pub(super) fn restore_interruptions(&mut self, persisted: &PersistedState) {
        let from = self.observation.next_number();
        for record in &persisted.interruptions {
            self.begin_interruption(record.clone(), from);
        }
    }

    /// Starts tracking the termination of an instance. Observations before `from` cannot confirm
    /// that it is gone.
    pub(super) fn begin_interruption(&mut self, record: InterruptionRecord, from: u64) {
        if self.interruptions.absorb(&record, self.now) {
            return;
        }
        let known_from = self.observation.next_number();
        // A node of the instance may have joined since the last observation.
        self.observation.observe_soon(self.now);
        self.interruptions.insert(Interruption::new(record, from, known_from, self.now));
    }

    fn forget_interruption(&mut self, instance: &InstanceId) {
        self.interruptions.forget(instance);
        self.action_failures.forget(instance.as_str());
    }

    /// Returns whether the messages about an instance may be acknowledged: it is cordoned and
    /// persisted. While the world cannot be read, a node may have joined or accept pods again
    /// unnoticed.
    fn is_handled(&self, instance: &InstanceId) -> bool {
        let recorded =
            self.interruptions.recorded.contains(instance) && !self.observation.reads.has_failed();
        // An apply may abandon its drain and uncordon the node.
        let uncordoned = self.applies.removes_instance(instance)
            || self.interruptions.uncordons.is_in_progress(instance);
        let interruption = self.interruptions.all.get(instance).filter(|_| !uncordoned);
        recorded
            && interruption.is_some_and(|interruption| {
                interruption.unschedulable && interruption.phase() != InterruptionPhase::Noticed
            })
    }

    fn acknowledge_if_handled(&mut self, instance: &InstanceId) {
        if self.is_handled(instance) {
            self.interruptions.messages.mark_handled(instance);
        }
    }

    /// Records which interruptions are persisted.
    pub(super) fn on_interruptions_persisted(&mut self) {
        let saved = self.persistence.saved.iter().flat_map(|saved| &saved.interruptions);
        self.interruptions.recorded = saved.map(|record| record.instance.clone()).collect();
        for instance in self.interruptions.recorded.clone() {
            self.acknowledge_if_handled(&instance);
        }
    }

    /// Advances the interruptions in `scope` as far as possible now.
    pub(super) fn advance_interruptions(&mut self, scope: StepScope, effects: &mut Vec<Effect>) {
        let Some(world) = self.observation.latest.clone().filter(|_| self.leadership.is_leader())
        else {
            return;
        };
        // A steady stream of events about some instances must not starve the others.
        let scope = if self.now < self.interruptions.due { scope } else { StepScope::All };
        if let StepScope::All = scope {
            self.interruptions.due = later(self.now, BUSY_REFRESH);
        }
        match scope {
            StepScope::All if self.interruptions.all.is_empty() => {}
            StepScope::All => {
                let is_replaced = self.is_replaced(&world);
                let index = WorldIndex::new(&world);
                for id in self.interruptions.instances() {
                    let pods = |node: &NodeName| index.pods.get(node).cloned().unwrap_or_default();
                    let node = index.nodes.get(&id).copied();
                    self.advance_interruption(&id, Some(is_replaced), &world, node, pods, effects);
                }
            }
            StepScope::Only(ids) => {
                for id in ids
                    .into_iter()
                    .filter(|id| self.interruptions.all.contains_key(id))
                    .collect::<Vec<_>>()
                {
                    let pods = |node: &NodeName| planning_snapshot::pods_to_evict(&world, node);
                    self.advance_interruption(
                        &id,
                        None,
                        &world,
                        world.node_for_instance(&id),
                        pods,
                        effects,
                    );
                }
            }
        }
        if self.is_observe_only() {
            // Received messages are left to a controller that may act on them.
            self.interruptions.messages.clear();
        }
        self.interruptions.messages.acknowledge(effects);
    }

    fn advance_interruption<'w>(
        &mut self,
        id: &InstanceId,
        is_all_replaced: Option<bool>,
        world: &'w Observed,
        node: Option<&'w Node>,
        pods: impl Fn(&NodeName) -> Vec<&'w Pod>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(interruption) = self.interruptions.all.get(id) else { return };
        let view = self.instance_view(interruption, world);
        let InstanceView { instance, is_trusted, is_ours, is_released } = view;
        if !(is_ours && instance.is_some_and(Instance::is_active)) {
            if is_trusted {
                self.finish_termination(id, node, instance, is_ours, effects);
            }
            return;
        }
        if (self.is_observe_only() || is_released) && !interruption.drain_abandoned {
            self.stand_down(id, node, view, effects);
            return;
        }
        let mut context = self.step_context(interruption, node, world, is_trusted);
        let Some(interruption) = self.interruptions.all.get_mut(id) else { return };
        let pods = || node.map(|node| pods(&node.name)).unwrap_or_default();
        let phase = interruption.phase();
        let awaits_replacement =
            phase == InterruptionPhase::Replacing || interruption.is_drained_unconfirmed();
        if let (true, Some(is_all_replaced), false) =
            (awaits_replacement, is_all_replaced, interruption.record.member)
        {
            let pods = pods();
            let replacements = &self.planning.replacements;
            context.is_replaced = is_all_replaced && replacements.has_places_for(id, &pods);
            interruption.set_wait(replacements.wait_for(id, &pods, context.now));
        }
        let transition = interruption.step(&node_view(phase, node, pods, world), context, effects);
        if interruption.trusted_from == context.next_observation {
            self.observation.observe_soon(self.now);
        }
        self.on_transition(id, &transition);
    }

    /// Undoes an interruption on which the controller may not act now.
    fn stand_down(
        &mut self,
        id: &InstanceId,
        node: Option<&Node>,
        view: InstanceView<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let (now, is_drained_by_apply) = (self.now, self.applies.removes_instance(id));
        let InstanceView { is_trusted: is_observation_trusted, is_released, .. } = view;
        let Some(interruption) = self.interruptions.all.get_mut(id) else { return };
        let snapshot = NodeSnapshot { node, is_observation_trusted, is_drained_by_apply };
        match interruption.stand_down(snapshot, now, effects) {
            Transition::DrainAbandoned => self.counters.count(Counter::DrainsAbandoned),
            Transition::Finished if is_released && is_observation_trusted => {
                self.forget_interruption(id);
            }
            Transition::Continue | Transition::Finished => {}
        }
    }

    /// Records the result of a step of an interruption.
    fn on_transition(&mut self, id: &InstanceId, transition: &Transition) {
        match transition {
            Transition::Continue => self.acknowledge_if_handled(id),
            Transition::DrainAbandoned => {
                self.counters.count(Counter::DrainsAbandoned);
                // Health problems of the instance are timed anew.
                self.node_health.problems.retain(|(of, _), _| of != id);
                self.interruptions.continue_as_announced(id, self.now);
            }
            Transition::Finished => self.forget_interruption(id),
        }
    }

    /// Finishes the interruption of an instance that no longer runs or is not ours. If a terminated
    /// instance leaves a node, waits until the node is deleted: nothing else may delete it.
    fn finish_termination(
        &mut self,
        id: &InstanceId,
        node: Option<&Node>,
        instance: Option<&Instance>,
        ours: bool,
        effects: &mut Vec<Effect>,
    ) {
        let (now, observe_only) = (self.now, self.is_observe_only());
        let Some(interruption) = self.interruptions.all.get_mut(id) else { return };
        let ended_since = interruption.ended_since();
        let since = ended_since.unwrap_or(now);
        // An instance that lost its tags may still run.
        let runs = instance.is_some_and(Instance::is_active);
        let why = (ended_since.is_none()
            && !runs
            && (ours || interruption.phase() != InterruptionPhase::Noticed))
            .then(|| interruption.record.why.clone());
        // An instance that EC2 does not list may still run, by now under another owner.
        let state = instance.filter(|_| ours).map(|instance| instance.state);
        let ends = matches!(state, Some(InstanceState::ShuttingDown | InstanceState::Terminated));
        // An observe-only controller deletes nothing.
        let remaining = node.filter(|_| ends && !observe_only);
        let gone = state == Some(InstanceState::Terminated);
        match remaining.filter(|_| now < later(since, NODE_DELETION_TIMEOUT)) {
            Some(node) => {
                interruption.await_node_deletion(now);
                if gone && interruption.begin_attempt(now, RETRY_MAX) {
                    effects.push(Effect::DeleteNode {
                        instance: id.clone(),
                        node: Box::new(node.clone()),
                    });
                }
                self.interruptions.messages.mark_handled(id);
            }
            None => self.forget_interruption(id),
        }
        if let Some(why) = why {
            self.counters.count(Counter::Terminations(why));
            self.time_external_termination(id);
        }
    }

    /// Returns whether the last plan without the interrupted instances needs nothing more, and all
    /// instances launched for it are Ready.
    fn is_replaced(&self, world: &Observed) -> bool {
        if self.planning.covered_version != Some(self.interruptions.version())
            || self.applies.is_launching()
        {
            return false;
        }
        let ready: BTreeSet<&InstanceId> = world
            .nodes
            .values()
            .filter(|node| node.ready)
            .filter_map(|node| node.instance.as_ref())
            .collect();
        // An instance that never becomes Ready delays no drain forever: there is a latest start as
        // well.
        let is_booting = |instance: &Instance| {
            let mine = instance.is_active() && instance.is_managed_by(&world.cluster.name);
            let is_interrupted = self.interruptions.all.contains_key(&instance.id);
            mine && !is_interrupted && !ready.contains(&instance.id)
        };
        !world.instances.values().any(is_booting)
    }

    pub(super) fn on_cordoned(
        &mut self,
        instance: &InstanceId,
        end: &Result<CordonOutcome, PortError>,
    ) {
        self.counters.count_kubernetes(end);
        let Some(interruption) = self.interruptions.all.get_mut(instance) else { return };
        interruption.cordoning = false;
        if matches!(end, Ok(CordonOutcome::Written)) {
            interruption.await_replacement(self.now);
            interruption.unschedulable = true;
        }
        self.await_observation_of(instance);
    }

    pub(super) fn on_uncordoned(
        &mut self,
        instance: &InstanceId,
        end: &Result<CordonOutcome, PortError>,
    ) {
        self.counters.count_kubernetes(end);
        let was_stale = self.finish_stale_uncordon(instance, end);
        let Some(interruption) = self.interruptions.all.get_mut(instance) else { return };
        // The end of a stale cordon says nothing about the cordon of this interruption.
        interruption.cordoning &= was_stale;
        if matches!(end, Ok(CordonOutcome::Written)) {
            if interruption.drain_abandoned && !was_stale {
                self.forget_interruption(instance);
                return;
            }
            // The uncordon began before the interruption was known.
            interruption.unschedulable = false;
        }
        self.await_observation_of(instance);
    }

    /// Trusts only an observation of an instance that starts after a write to its node: earlier
    /// ones do not show it. A failed write may have been carried out.
    fn await_observation_of(&mut self, instance: &InstanceId) {
        if let Some(interruption) = self.interruptions.all.get_mut(instance) {
            interruption.trusted_from = self.observation.next_number();
            self.observation.observe_soon(self.now);
        }
    }

    pub(super) fn on_evicted(
        &mut self,
        instance: &InstanceId,
        ends: &[Result<EvictOutcome, PortError>],
    ) {
        let has_evicted = ends.iter().any(|end| matches!(end, Ok(EvictOutcome::Evicted)));
        if let Some(interruption) = self.interruptions.all.get_mut(instance)
            && has_evicted
        {
            interruption.record_eviction(self.now);
        }
        for end in ends {
            self.counters.count(match end {
                Ok(EvictOutcome::Evicted) => Counter::EvictionsDone,
                Ok(EvictOutcome::Blocked { .. }) => Counter::EvictionsBlocked,
                Err(_) => Counter::Errors("kubernetes".to_owned()),
            });
        }
    }

    pub(super) fn on_terminated(
        &mut self,
        instance: &InstanceId,
        end: &Result<TerminateOutcome, PortError>,
    ) {
        self.observation.require_next();
        match end {
            Ok(TerminateOutcome::Called) => {
                self.observation.unobserved.note_termination(instance, self.now);
                let why = self
                    .interruptions
                    .all
                    .get(instance)
                    .map(|interruption| interruption.record.why.clone());
                let since = self
                    .interruptions
                    .all
                    .get(instance)
                    .and_then(state_machine::Interruption::drain_progress)
                    .map(|drain| drain.since);
                self.time_termination(instance, since, &why.unwrap_or_default(), self.now);
                if let Some(interruption) = self.interruptions.all.get_mut(instance) {
                    interruption.await_termination(self.now);
                    // The request was sent just now: the next attempt is timed from here.
                    let _ = interruption.begin_attempt(self.now, RETRY_MAX);
                    // EC2 decides an interruption; a repair is a removal like any other.
                    if let Some(persisted) = self
                        .persistence
                        .loaded
                        .as_mut()
                        .filter(|_| is_repair(&interruption.record.why))
                    {
                        persisted.record_removals(&[instance.clone()].into(), self.now);
                    }
                }
            }
            // The next observation decides.
            Ok(TerminateOutcome::NodeChanged) => {}
            Ok(TerminateOutcome::NodeUnreadable(_)) => self.counters.count_error("kubernetes"),
            Err(_) => self.counters.count_error("ec2"),
        }
    }

    pub(super) fn on_node_deleted(&mut self, instance: &InstanceId, end: &Result<(), PortError>) {
        self.counters.count_kubernetes(end);
        if end.is_ok() {
            self.observation.require_next();
            self.forget_interruption(instance);
        }
    }

    pub(super) fn on_acknowledged(&mut self, end: &Result<(), PortError>) {
        self.interruptions.messages.finish_acknowledgement();
        if end.is_ok() {
            self.counters.count(Counter::MessagesAcknowledged);
        } else {
            // The queue delivers the message again; it is then handled at once.
            self.counters.count_error("queue");
        }
    }

    /// Returns the interruptions for the status snapshot.
    pub(super) fn interruption_statuses(&self) -> Vec<InterruptionStatus> {
        let Some(world) =
            self.observation.latest.as_ref().filter(|_| !self.interruptions.all.is_empty())
        else {
            return self
                .interruptions
                .all
                .values()
                .map(|interruption| interruption.to_status(None, None))
                .collect();
        };
        let index = (!self.planning.replacements.is_unblocked()).then(|| WorldIndex::new(world));
        let one = |interruption: &Interruption| {
            let node =
                world.node_for_instance(&interruption.record.instance).map(|node| &node.name);
            let waits = interruption.phase() <= InterruptionPhase::Replacing;
            let pods = index.as_ref().filter(|_| waits).and_then(|index| index.pods.get(node?));
            interruption
                .to_status(node, pods.and_then(|pods| self.planning.replacements.block_on(pods)))
        };
        self.interruptions.all.values().map(one).collect()
    }
}

/// Nodes by instance, and evictable pods by node.
struct WorldIndex<'w> {
    nodes: BTreeMap<&'w InstanceId, &'w Node>,
    pods: BTreeMap<&'w NodeName, Vec<&'w Pod>>,
}

impl<'w> WorldIndex<'w> {
    fn new(world: &'w Observed) -> Self {
        let mut pods: BTreeMap<&NodeName, Vec<&Pod>> = BTreeMap::new();
        for pod in world.pods.iter().filter(|pod| pod.needs_eviction()) {
            if let Some(node) = &pod.node {
                pods.entry(node).or_default().push(pod);
            }
        }
        Self { nodes: world.nodes_by_instance(), pods }
    }
}

#[cfg(test)]
mod tests;
