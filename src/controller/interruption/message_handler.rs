//! Handling of interruption messages: the owner of each named instance, and the interruptions that
//! begin.
//!
//! Invariant: an instance that is not ours or is unknown is never touched, and its message is
//! acknowledged all the same.

use std::collections::BTreeSet;

use super::state_machine::NEAR_DEADLINE;
use crate::apply::ports::{CordonOutcome, PortError};
use crate::controller::counters::Counter;
use crate::controller::event::Effect;
use crate::controller::interruption_message::{InterruptionMessage, MessageKind};
use crate::controller::interruption_queue::MESSAGES_MAX;
use crate::controller::persisted_state::InterruptionRecord;
use crate::controller::state::ControllerState;
use crate::model::ids::InstanceId;
use crate::model::observed::Instance;
use crate::model::saturating_time::later;
use crate::plan::is_managed_member;
use crate::telemetry::histogram::Measurement;

/// Messages that the observed state of their instance contradicts.
const CONTRADICTED: Counter = Counter::Messages("contradicted");

/// Owner of an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ownership {
    /// Ours and running.
    Ours,
    /// Member of a managed group, and running.
    ManagedGroup,
    /// Not certainly ours, or already terminating.
    NotOurs,
    /// Not determined by the last observation.
    Unknown,
    /// Ours, and in a state in which EC2 sends no such message.
    Contradicted,
}

impl ControllerState {
    pub(in crate::controller) fn on_message(
        &mut self,
        message: InterruptionMessage,
        effects: &mut Vec<Effect>,
    ) {
        if self.leadership.is_held_by_apply() && !self.leadership.is_leader() {
            self.cordon_without_lease(&message, effects);
            return;
        }
        let InterruptionMessage { receipt, kind, instances, deadline, sent } = message;
        self.counters.count(Counter::Messages(kind.as_str()));
        if let Some(sent) = sent {
            self.time_since(Measurement::MessageAge { kind: kind.as_str() }, sent);
        }
        let accepts = self.leadership.is_leader()
            && self.revisions.served.is_some()
            && self.handles_interruptions();
        if !accepts || self.interruptions.messages.contains(&receipt) {
            // The queue delivers it again, to a leader that knows its settings and may act.
            return;
        }
        if self.interruptions.messages.len() >= MESSAGES_MAX {
            self.counters.count(Counter::MessagesDeferred);
            return;
        }
        let deadline = kind.believed_deadline(deadline, sent, self.now);
        let acts = kind.is_termination() || kind.is_hint();
        let mut unhandled = BTreeSet::new();
        for instance in instances.into_iter().filter(|_| acts) {
            let ownership = self.ownership_for(&kind, &instance);
            let record = InterruptionRecord {
                instance: instance.clone(),
                why: kind.to_string(),
                since: self.now,
                deadline,
                member: ownership == Ownership::ManagedGroup,
                announced: None,
            };
            match ownership {
                Ownership::NotOurs => continue,
                Ownership::Contradicted => {
                    self.counters.count(CONTRADICTED);
                    continue;
                }
                // Its group replaces it once it is gone, at an unknown time.
                Ownership::ManagedGroup if !kind.is_termination() || !record.is_ahead() => continue,
                Ownership::Ours | Ownership::ManagedGroup if kind.is_termination() => {
                    self.begin_interruption(record, self.observation.number);
                }
                Ownership::Ours | Ownership::ManagedGroup | Ownership::Unknown => {
                    self.await_observation(record);
                }
            }
            if !self.is_handled(&instance) {
                unhandled.insert(instance);
            }
        }
        self.interruptions.messages.add(receipt, unhandled);
    }

    /// Cordons nodes of our instances that EC2 takes back within minutes, while an apply holds the
    /// lease. The message stays on the queue and returns, so that the next leader does the rest. A
    /// later deadline is left to that leader: if the message were lost by then, nothing would
    /// uncordon the node. A scheduled change is left to it as well: EC2 announces one long before,
    /// and nothing confirms the message.
    ///
    /// Two replicas that cordon cannot fight. A replica without the lease never uncordons. A write
    /// fails if the cordon of the node has changed since it was observed, so at most one of two
    /// writes succeeds. An apply uncordons only nodes with the mark of a drain, and such a node is
    /// not cordoned here. The next leader keeps the cordon of an unknown interruption for ten
    /// minutes (`stale_cordons`), and the message returns earlier. A replica that has not noticed
    /// the next leader repeats the cordon at most until it reads the lease.
    fn cordon_without_lease(&self, message: &InterruptionMessage, effects: &mut Vec<Effect>) {
        let Some(world) = self.observation.latest.as_ref().filter(|_| self.handles_interruptions())
        else {
            return;
        };
        let InterruptionMessage { kind, instances, deadline, sent, receipt: _ } = message;
        let deadline = kind.believed_deadline(*deadline, *sent, self.now);
        let soon = deadline.is_some_and(|at| at <= later(self.now, NEAR_DEADLINE));
        let applies = kind.is_termination() && *kind != MessageKind::Health && soon;
        let ours = |id: &&InstanceId| {
            let ownership = self.ownership_for(kind, id);
            matches!(ownership, Ownership::Ours | Ownership::ManagedGroup)
        };
        let ours = instances.iter().filter(|id| applies && ours(id));
        for node in
            ours.filter_map(|id| world.node_for_instance(id)).filter(|node| !node.unschedulable)
        {
            effects.push(Effect::CordonWithoutLease { node: Box::new(node.clone()) });
        }
    }

    pub(in crate::controller) fn on_cordoned_without_lease(
        &mut self,
        end: &Result<CordonOutcome, PortError>,
    ) {
        self.counters.count_kubernetes(end);
        if let Ok(CordonOutcome::Outdated) = end {
            // The message comes again within a visibility timeout and needs a current view of the
            // node.
            self.observation.reads.bring_forward(self.now);
        }
    }

    /// Returns the owner of an instance that a message of this kind names. EC2 contradicts some
    /// messages: it reclaims no on-demand instance as spot capacity.
    fn ownership_for(&self, kind: &MessageKind, instance: &InstanceId) -> Ownership {
        let ownership = self.ownership_of(instance);
        match ownership {
            Ownership::Ours | Ownership::ManagedGroup => {
                let world = self.observation.complete();
                let found = world.and_then(|world| world.instances.get(instance));
                let is_possible = found.is_none_or(|found| kind.is_possible_for(found));
                if is_possible { ownership } else { Ownership::Contradicted }
            }
            // No message changes these instances, so it need not be possible.
            Ownership::NotOurs | Ownership::Unknown | Ownership::Contradicted => ownership,
        }
    }

    fn ownership_of(&self, instance: &InstanceId) -> Ownership {
        if self.observation.unobserved.is_terminated(instance) {
            return Ownership::NotOurs;
        }
        let complete = self.observation.complete();
        match complete.and_then(|world| Some((world, world.instances.get(instance)?))) {
            Some((world, found))
                if found.is_active()
                    && found.is_managed_by(&world.cluster.name)
                    // Our tags may be on the instance of another owner.
                    && self.is_proven_node(instance, world) =>
            {
                Ownership::Ours
            }
            Some((_, found)) if found.is_active() && found.group.is_some() => {
                self.member_ownership(found)
            }
            Some(_) => Ownership::NotOurs,
            None => Ownership::Unknown,
        }
    }

    /// Returns the owner of a group member: plans list the managed groups.
    fn member_ownership(&self, found: &Instance) -> Ownership {
        let plan = self.planning.current.as_ref().map(|current| &current.plan);
        match plan {
            Some(plan) if is_managed_member(plan, found) => Ownership::ManagedGroup,
            _ if self.is_member(&found.id) => Ownership::ManagedGroup,
            Some(_) => Ownership::NotOurs,
            None => Ownership::Unknown,
        }
    }

    /// Returns whether an interrupted instance is a member of a managed group. It was when its
    /// interruption began, and the last full plan does not leave it to another owner.
    pub(in crate::controller) fn is_member(&self, instance: &InstanceId) -> bool {
        let member = self
            .interruptions
            .all
            .get(instance)
            .is_some_and(|interruption| interruption.record.member);
        let of_others = self.planning.current.as_ref().map(|current| &current.foreign_instances);
        member && !of_others.is_some_and(|of_others| of_others.contains(instance))
    }

    /// Lets the next observation determine the owner. One observation serves many instances.
    fn await_observation(&mut self, record: InterruptionRecord) {
        self.interruptions.messages.hold_unknown_instance(record, self.observation.next_number());
        self.observation.observe_soon(self.now);
    }

    /// Begins terminations of the instances that a complete observation now shows as ours.
    pub(in crate::controller) fn resolve_unknown_instances(&mut self) {
        for record in self.interruptions.messages.resolve_at(self.observation.number) {
            let ownership = match MessageKind::from_reason(&record.why) {
                Some(kind) => self.ownership_for(&kind, &record.instance),
                None => self.ownership_of(&record.instance),
            };
            if ownership == Ownership::Contradicted {
                self.counters.count(CONTRADICTED);
            }
            let record =
                InterruptionRecord { member: ownership == Ownership::ManagedGroup, ..record };
            match ownership {
                Ownership::ManagedGroup if record.is_ahead() && !record.is_hint() => {
                    self.begin_interruption(record, self.observation.number);
                }
                Ownership::Ours if !record.is_hint() => {
                    self.begin_interruption(record, self.observation.number);
                }
                // EC2 shows a new instance late.
                Ownership::Unknown if self.may_appear(&record) => self.await_observation(record),
                // Another message began the interruption, which is not handled yet.
                Ownership::Ours
                | Ownership::ManagedGroup
                | Ownership::NotOurs
                | Ownership::Unknown
                | Ownership::Contradicted
                    if self.interruptions.all.contains_key(&record.instance) => {}
                // An instance that still runs was not terminated, or runs again.
                Ownership::Ours
                | Ownership::ManagedGroup
                | Ownership::NotOurs
                | Ownership::Unknown
                | Ownership::Contradicted => {
                    self.interruptions.messages.mark_handled(&record.instance);
                }
            }
        }
    }

    /// Returns whether a missing instance may have been launched lately, or by a launch in doubt.
    fn may_appear(&self, record: &InterruptionRecord) -> bool {
        let in_doubt = self
            .persistence
            .loaded
            .as_ref()
            .is_some_and(|persisted| !persisted.in_doubt_launches.is_empty());
        let unplanned = || {
            let found =
                self.observation.latest.as_ref().and_then(|w| w.instances.get(&record.instance));
            self.planning.current.is_none() && found.is_some_and(|found| found.group.is_some())
        };
        !record.is_hint()
            && (in_doubt
                || unplanned()
                || self.observation.unobserved.is_awaiting(&record.instance))
    }
}
