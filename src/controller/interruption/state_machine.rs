//! State machine of one interrupted instance: the next action for its node, its pods and itself.
//!
//! It reads the context of one step and not the events that led to it. Invariants: the node is
//! cordoned first. Every drain ends: completed, abandoned with the node uncordoned, or forced by an
//! external deadline.

use jiff::{SignedDuration, Timestamp};

use super::deadlines::RECLAIM_TIMEOUT;
use super::drain_limit::DrainRoom;
use crate::apply::Bounds;
use crate::apply::eviction_order::{next_to_evict, remaining_attachment};
use crate::controller::event::Effect;
use crate::controller::node_health::{is_broken, is_repair};
use crate::controller::observation::BUSY_REFRESH;
use crate::controller::persisted_state::InterruptionRecord;
use crate::controller::retry::backoff;
use crate::controller::status::{Blocked, InterruptionPhase, InterruptionStatus};
use crate::model::ids::NodeName;
use crate::model::observed::{CordonReason, Node, Observed, Pod};
use crate::model::saturating_time::{earlier, later};

/// Drain time of an instance whose kubelet is gone: nothing there stops its pods.
const BROKEN_DRAIN_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// Longest wait for the volumes of evicted pods to detach, as in an apply.
const DETACH_TIMEOUT: SignedDuration = Bounds::DEFAULT.detach;
/// All remaining pods are evicted at once this long before EC2 terminates the instance.
const EVICT_ALL_LEAD: SignedDuration = SignedDuration::from_secs(30);
/// Longest interval between two attempts near a deadline.
const NEAR_DEADLINE_RETRY_MAX: SignedDuration = BUSY_REFRESH;
/// A deadline is near from this long before it.
pub(super) const NEAR_DEADLINE: SignedDuration = SignedDuration::from_mins(5);
/// Longest interval between two rounds of evictions: disruption budgets change by the minute.
const EVICTION_RETRY_MAX: SignedDuration = SignedDuration::from_secs(30);
/// Longest interval between two attempts of anything else.
pub(super) const RETRY_MAX: SignedDuration = SignedDuration::from_mins(5);

/// An interrupted instance and the progress of its termination.
#[derive(Debug, Clone)]
pub(in crate::controller) struct Interruption {
    pub(in crate::controller) record: InterruptionRecord,
    pub(super) progress: Progress,
    /// Attempts to reach the next phase so far, and the time of the next one.
    pub(super) attempts: u32,
    pub(super) retry_at: Timestamp,
    /// True once no new pod can reach it: its node is cordoned, or none ever joined.
    pub(super) unschedulable: bool,
    /// True while its node is being cordoned or uncordoned: observations may then be partly older.
    pub(super) cordoning: bool,
    /// True once its drain is abandoned, so that its node is uncordoned.
    pub(super) drain_abandoned: bool,
    /// Number of the first observation that can confirm that it is gone.
    pub(super) trusted_from: u64,
    /// Number of the first observation that started after the interruption was known.
    pub(super) known_from: u64,
}

/// Phase of an interruption, with its data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Progress {
    /// Not cordoned yet; no plan treats the instance as gone, since that time.
    Noticed { since: Timestamp },
    /// Cordoned, while capacity for its pods starts. The reason why its pods are not evicted yet is
    /// as of the last pass over all interruptions.
    Replacing { wait: EvictionWait },
    /// Its pods are being evicted.
    Draining(Drain),
    /// EC2 was asked to terminate it, or it has ended.
    Terminating {
        drain: Option<Drain>,
        /// Since when observations show that it no longer runs.
        ended_since: Option<Timestamp>,
    },
}

/// Evictions from an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    pub(super) since: Timestamp,
    /// Time of the last eviction; before the first one, the start.
    pub(super) evicted_at: Timestamp,
    /// Since when observations show no evictable pod on the instance.
    pub(super) empty_since: Option<Timestamp>,
    /// True if only a message that nothing confirms began it, and the replacement of a repair is
    /// not there yet.
    pub(super) is_unconfirmed: bool,
}

impl Drain {
    pub(super) fn new(since: Timestamp, is_unconfirmed: bool) -> Self {
        Self { since, evicted_at: since, empty_since: None, is_unconfirmed }
    }
}

/// Reason why the pods of an interrupted instance are not evicted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::controller) enum EvictionWait {
    /// No plan treats the instance as gone yet, since that time: replacements may be blocked.
    Plan { since: Timestamp },
    /// An operator or a safeguard blocks the replacement.
    Blocked,
    /// The replacement is not there yet, and has been unblocked since that time.
    Launches { since: Timestamp },
}

/// The time, and the facts that one step depends on.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is about one thing of its own")]
pub(super) struct StepContext {
    pub(super) now: Timestamp,
    pub(super) sighting: NodeSighting,
    /// True once all replacements are there.
    pub(super) is_replaced: bool,
    /// True if the last observation is complete and started after the last write about the
    /// instance.
    pub(super) is_observation_trusted: bool,
    /// True if the last observation started after the interruption was known.
    pub(super) is_observation_newer: bool,
    /// True while an apply drains the instance.
    pub(super) is_drained_by_apply: bool,
    /// Room for another drain because of a message that nothing confirms.
    pub(super) drain_room: DrainRoom,
    /// Number of the next observation to start.
    pub(super) next_observation: u64,
}

/// Whether the last observation shows the node of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeSighting {
    /// It shows the node.
    Present,
    /// It shows no node, and none is known from before.
    NeverJoined,
    /// It no longer shows the node, which one observation cannot refute at once.
    Lost,
    /// It does not show the node, which earlier observations showed to be deleted.
    Deleted,
}

/// An instance as the last observation shows it.
#[derive(Clone, Default)]
pub(super) struct NodeView<'w> {
    pub(super) node: Option<&'w Node>,
    /// Pods to evict, and those of them to evict next; empty in phases that do not need them.
    pub(super) to_evict: Vec<&'w Pod>,
    pub(super) evict_next: Vec<&'w Pod>,
    /// A volume that is still attached although no evictable pod is left.
    pub(super) attached: Option<&'w String>,
}

impl<'w> NodeView<'w> {
    /// Returns the view of a draining instance with these evictable pods.
    pub(super) fn for_drain(
        node: Option<&'w Node>,
        to_evict: Vec<&'w Pod>,
        world: &'w Observed,
    ) -> Self {
        let evict_next = next_to_evict(to_evict.clone(), world);
        let empty = node.filter(|_| to_evict.is_empty());
        let attached = empty.and_then(|node| remaining_attachment(node, world));
        Self { node, to_evict, evict_next, attached }
    }
}

/// Node facts that [`Interruption::stand_down`] depends on.
#[derive(Clone, Copy)]
pub(super) struct NodeSnapshot<'w> {
    pub(super) node: Option<&'w Node>,
    /// As in [`StepContext`].
    pub(super) is_observation_trusted: bool,
    pub(super) is_drained_by_apply: bool,
}

/// Result of one step.
pub(super) enum Transition {
    /// Work remains.
    Continue,
    /// The drain was abandoned.
    DrainAbandoned,
    /// No work remains.
    Finished,
}

impl Interruption {
    /// Returns an interruption known from `now` on. `trusted_from` and `known_from` are numbers of
    /// observations.
    pub(super) fn new(
        record: InterruptionRecord,
        trusted_from: u64,
        known_from: u64,
        now: Timestamp,
    ) -> Self {
        Self {
            record,
            progress: Progress::Noticed { since: now },
            attempts: 0,
            retry_at: now,
            unschedulable: false,
            cordoning: false,
            drain_abandoned: false,
            trusted_from,
            known_from,
        }
    }

    pub(in crate::controller) fn phase(&self) -> InterruptionPhase {
        match self.progress {
            Progress::Noticed { .. } => InterruptionPhase::Noticed,
            Progress::Replacing { .. } => InterruptionPhase::Replacing,
            Progress::Draining(_) => InterruptionPhase::Draining,
            Progress::Terminating { .. } => InterruptionPhase::Terminating,
        }
    }

    /// Returns the evictions, if they have begun.
    pub(super) fn drain_progress(&self) -> Option<Drain> {
        match self.progress {
            Progress::Noticed { .. } | Progress::Replacing { .. } => None,
            Progress::Draining(drain) => Some(drain),
            Progress::Terminating { drain, .. } => drain,
        }
    }

    fn advance(&mut self, progress: Progress, now: Timestamp) {
        self.progress = progress;
        (self.attempts, self.retry_at) = (0, now);
    }

    #[cfg(test)]
    pub(in crate::controller) fn start_drain(&mut self, now: Timestamp) {
        self.advance(Progress::Draining(Drain::new(now, false)), now);
    }

    /// Records that the node is cordoned, or that none joined.
    pub(super) fn await_replacement(&mut self, now: Timestamp) {
        if let Progress::Noticed { since } = self.progress {
            self.advance(Progress::Replacing { wait: EvictionWait::Plan { since } }, now);
        }
    }

    /// Records that EC2 was asked to terminate the instance, or that it has ended.
    pub(super) fn await_termination(&mut self, now: Timestamp) {
        if self.phase() != InterruptionPhase::Terminating {
            let drain = self.drain_progress();
            self.advance(Progress::Terminating { drain, ended_since: None }, now);
        }
    }

    /// Returns since when observations show that the instance no longer runs.
    pub(super) fn ended_since(&self) -> Option<Timestamp> {
        match self.progress {
            Progress::Terminating { ended_since, .. } => ended_since,
            Progress::Noticed { .. } | Progress::Replacing { .. } | Progress::Draining(_) => None,
        }
    }

    /// Returns the public status, with the node and the block on the replacement.
    pub(super) fn to_status(
        &self,
        node: Option<&NodeName>,
        blocked: Option<&Blocked>,
    ) -> InterruptionStatus {
        let InterruptionRecord { instance, why, since, deadline, member: _, announced } =
            &self.record;
        InterruptionStatus {
            instance: instance.clone(),
            node: node.cloned(),
            reason: why.clone(),
            since: *since,
            deadline: deadline.or(announced.map(|announced| announced.deadline)),
            phase: self.phase(),
            replacement_blocked: blocked.cloned(),
        }
    }

    /// Returns whether an attempt is due, and schedules the next one: after 2 s, then after twice
    /// as long each time, at most `most`.
    pub(super) fn begin_attempt(&mut self, now: Timestamp, most: SignedDuration) -> bool {
        if now < self.retry_at {
            return false;
        }
        let near = |at: Timestamp| at > self.record.since && now >= earlier(at, NEAR_DEADLINE);
        let announced = self.record.announced.map(|announced| announced.deadline);
        let is_near = self.record.deadline.is_some_and(near) || announced.is_some_and(near);
        let most = if is_near { NEAR_DEADLINE_RETRY_MAX } else { most };
        self.attempts = self.attempts.saturating_add(1);
        self.retry_at = later(now, backoff(self.attempts).min(most));
        true
    }

    /// Records that only the node is left. Earlier attempts do not delay its deletion.
    pub(super) fn await_node_deletion(&mut self, now: Timestamp) {
        if self.ended_since().is_none() {
            let (drain, ended_since) = (self.drain_progress(), Some(now));
            self.advance(Progress::Terminating { drain, ended_since }, now);
        }
    }

    /// Makes delayed attempts due at once: the clock was set back.
    pub(in crate::controller) fn retry_now(&mut self, now: Timestamp) {
        self.retry_at = self.retry_at.min(now);
        if let Progress::Noticed { since }
        | Progress::Replacing {
            wait: EvictionWait::Plan { since } | EvictionWait::Launches { since },
        } = &mut self.progress
        {
            *since = now.min(*since);
        }
        if let Some(drain) = self.drain_mut() {
            drain.evicted_at = now.min(drain.evicted_at);
        }
    }

    /// Records the wait reason of a cordoned instance. The start time stands while the reason is
    /// the same.
    pub(super) fn set_wait(&mut self, new: EvictionWait) {
        if let Progress::Replacing { wait } = &mut self.progress
            && std::mem::discriminant(&new) != std::mem::discriminant(wait)
        {
            *wait = new;
        }
    }

    /// Adds another record of the instance, and returns whether its own one changes. A message of
    /// EC2 confirms a drain at once. A repair confirms it once the replacement is there.
    pub(super) fn absorb(&mut self, record: &InterruptionRecord, now: Timestamp) -> bool {
        let before = self.record.clone();
        self.record.absorb(record);
        if before.is_unconfirmed()
            && !self.record.is_unconfirmed()
            && let Progress::Draining(drain) = &mut self.progress
        {
            // The time before says nothing about the new reason.
            drain.since = now;
            drain.is_unconfirmed &= is_repair(&self.record.why);
        }
        self.record != before
    }

    fn is_broken(&self) -> bool {
        is_broken(&self.record.why)
    }

    fn request_cordon(&mut self, node: &Node, effects: &mut Vec<Effect>) {
        self.cordoning = true;
        let (instance, node) = (self.record.instance.clone(), Box::new(node.clone()));
        effects.push(Effect::Cordon { instance, node, reason: CordonReason::Interruption });
    }

    fn request_uncordon(&mut self, node: &Node, effects: &mut Vec<Effect>) {
        self.cordoning = true;
        let (instance, node) = (self.record.instance.clone(), Box::new(node.clone()));
        effects.push(Effect::Uncordon { instance, node });
    }

    pub(super) fn step(
        &mut self,
        view: &NodeView<'_>,
        context: StepContext,
        effects: &mut Vec<Effect>,
    ) -> Transition {
        let node = view.node;
        let StepContext {
            now,
            sighting,
            is_observation_trusted,
            is_observation_newer,
            is_drained_by_apply,
            next_observation,
            ..
        } = context;
        if self.drain_abandoned {
            // The apply that drains the node ends the drain and removes the cordon.
            if is_drained_by_apply {
                return Transition::Continue;
            }
            let ours = |node: &&Node| node.cordon_reason().is_some();
            let Some(node) = node.filter(|node| node.unschedulable).filter(ours) else {
                return if is_observation_trusted {
                    Transition::Finished
                } else {
                    Transition::Continue
                };
            };
            if is_observation_trusted && self.begin_attempt(now, RETRY_MAX) {
                self.request_uncordon(node, effects);
            }
            return Transition::Continue;
        }
        // A node that joined late or lost its cordon is cordoned as well. A cordon of another owner
        // stays: it has a reason.
        if let Some(node) = node.filter(|node| !node.unschedulable)
            && self.phase() != InterruptionPhase::Terminating
        {
            self.unschedulable &= !is_observation_trusted;
            if is_observation_trusted && self.begin_attempt(now, RETRY_MAX) {
                self.request_cordon(node, effects);
            }
            return Transition::Continue;
        }
        self.unschedulable |= is_observation_trusted
            && match sighting {
                NodeSighting::Present => true,
                NodeSighting::NeverJoined | NodeSighting::Deleted => is_observation_newer,
                NodeSighting::Lost => false,
            };
        let of_drain = |node: &&Node| node.cordon_reason() == Some(CordonReason::Drain);
        match self.progress {
            // The apply that drains the node, or its successor, would uncordon it.
            Progress::Noticed { .. } if let Some(node) = node.filter(of_drain) => {
                if is_observation_trusted && self.begin_attempt(now, RETRY_MAX) {
                    self.request_cordon(node, effects);
                }
            }
            // A missing node proves nothing in a partial observation, and little if it had joined.
            Progress::Noticed { .. }
                if !is_observation_trusted
                    || (sighting == NodeSighting::Lost && now < self.node_loss_believed_at()) => {}
            Progress::Noticed { .. } => self.await_replacement(now),
            Progress::Replacing { .. } => {
                if let Some(drain) = self.drain_to_begin(node, context) {
                    self.advance(Progress::Draining(drain), now);
                    if node.is_none() {
                        // A node that joined since the last observation was open to pods.
                        self.trusted_from = next_observation;
                    }
                } else if self.record.is_unconfirmed()
                    && self.abandoned_at(now).is_some_and(|at| now >= at)
                {
                    // No drain had room, and EC2 did not take the instance.
                    return self.abandon_drain(now);
                }
            }
            Progress::Draining(drain) => return self.drain(drain, view, context, effects),
            // The request is repeated until the instance is seen to be gone.
            Progress::Terminating { .. } => self.terminate(None, now, effects),
        }
        Transition::Continue
    }

    /// Undoes an interruption on which the controller may not act now. The node accepts pods again,
    /// unless EC2 is about to terminate the instance or was asked to. Returns
    /// [`Transition::Finished`] once nothing is left to undo.
    pub(super) fn stand_down(
        &mut self,
        snapshot: NodeSnapshot<'_>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Transition {
        let NodeSnapshot { node, is_observation_trusted, is_drained_by_apply } = snapshot;
        if self.external_end().is_some_and(|at| now >= later(at, RECLAIM_TIMEOUT)) {
            // EC2 did not terminate the instance, or the instance runs again.
            return self.abandon_drain(now);
        }
        let ahead = self.record.deadline.filter(|_| self.record.is_ahead());
        let soon = ahead.is_some_and(|at| now >= earlier(at, NEAR_DEADLINE));
        if soon || self.phase() == InterruptionPhase::Terminating {
            return Transition::Finished;
        }
        if self.phase() != InterruptionPhase::Noticed {
            (self.attempts, self.retry_at) = (0, now);
        }
        (self.progress, self.unschedulable) = (Progress::Noticed { since: now }, false);
        let ours = |node: &&Node| node.cordon_reason() == Some(CordonReason::Interruption);
        let Some(node) = node.filter(|node| node.unschedulable).filter(ours) else {
            return Transition::Finished;
        };
        if is_observation_trusted && !is_drained_by_apply && self.begin_attempt(now, RETRY_MAX) {
            self.request_uncordon(node, effects);
        }
        Transition::Continue
    }

    /// Evicts pods, and terminates the instance once a fresh observation shows neither pods nor
    /// their volumes.
    fn drain(
        &mut self,
        mut drain: Drain,
        view: &NodeView<'_>,
        context: StepContext,
        effects: &mut Vec<Effect>,
    ) -> Transition {
        let NodeView { node, to_evict, evict_next, attached } = view;
        let StepContext { now, sighting, is_observation_trusted, is_drained_by_apply, .. } =
            context;
        if drain.is_unconfirmed
            && !self.record.is_unconfirmed()
            && context.is_replaced
            && is_observation_trusted
        {
            // The repair would begin the drain now.
            (drain.is_unconfirmed, drain.since) = (false, now);
            self.progress = Progress::Draining(drain);
        }
        let forced = if let Some(deadline) = self.forced_termination_at() {
            now >= deadline
        } else {
            let is_broken = self.is_broken() && !drain.is_unconfirmed;
            is_broken && now >= later(drain.since, BROKEN_DRAIN_TIMEOUT)
        };
        if !to_evict.is_empty() {
            drain.empty_since = None;
            self.progress = Progress::Draining(drain);
        }
        if self.record.member {
            let end = self.external_end();
            let forgotten = end.is_none_or(|at| now >= later(at, RECLAIM_TIMEOUT));
            if forgotten && !is_drained_by_apply {
                return self.abandon_drain(now);
            }
        }
        // While a joined node is not shown, its pods are unknown.
        if (to_evict.is_empty() && sighting != NodeSighting::Lost) || forced {
            if is_observation_trusted && forced {
                self.terminate(None, now, effects);
            } else if is_observation_trusted {
                let empty_since = self.start_detach_wait(drain, now);
                if attached.is_none() || !self.awaits_detach(empty_since, now) {
                    self.terminate(*node, now, effects);
                }
            }
            return Transition::Continue;
        }
        if self.abandoned_at(drain.since).is_some_and(|at| now >= at) && !is_drained_by_apply {
            return self.abandon_drain(now);
        }
        // EC2 terminates the instance in a moment: eviction order no longer helps other pods.
        let last = self.record.deadline.is_some_and(|at| now >= earlier(at, EVICT_ALL_LEAD));
        let evicted = if last { to_evict } else { evict_next };
        let pods: Vec<Pod> =
            evicted.iter().filter(|pod| !pod.terminating).map(|pod| (*pod).clone()).collect();
        if !pods.is_empty() && self.begin_attempt(now, EVICTION_RETRY_MAX) {
            effects.push(Effect::Evict { instance: self.record.instance.clone(), pods });
        }
        Transition::Continue
    }

    /// Cancels a repair if it has evicted no pod yet. A scheduled change that was announced
    /// meanwhile goes on. Returns whether one does.
    pub(super) fn cancel_repair(&mut self, now: Timestamp) -> bool {
        let has_evicted =
            self.phase() > InterruptionPhase::Replacing && !self.is_drained_unconfirmed();
        if has_evicted || self.drain_abandoned {
            return false;
        }
        let goes_on = self.continue_as_announced(now);
        if !goes_on {
            self.abandon_drain(now);
        }
        goes_on
    }

    /// Lets the interruption go on as the scheduled change that was announced meanwhile, if its
    /// time lies ahead. Returns whether it does.
    pub(super) fn continue_as_announced(&mut self, now: Timestamp) -> bool {
        let goes_on = self.record.become_announced(now);
        if goes_on && self.phase() == InterruptionPhase::Draining {
            self.drain_abandoned = false;
            self.advance(Progress::Replacing { wait: EvictionWait::Plan { since: now } }, now);
        }
        goes_on
    }

    fn abandon_drain(&mut self, now: Timestamp) -> Transition {
        self.drain_abandoned = true;
        (self.attempts, self.retry_at) = (0, now);
        Transition::DrainAbandoned
    }

    /// Returns whether nothing is left to do before EC2 takes the instance.
    pub(in crate::controller) fn is_waiting_for_ec2(&self) -> bool {
        self.record.member && self.drain_progress().is_some_and(|drain| drain.empty_since.is_some())
    }

    /// Records that no evictable pod is left. Returns since when.
    fn start_detach_wait(&mut self, mut drain: Drain, now: Timestamp) -> Timestamp {
        let since = *drain.empty_since.get_or_insert(now);
        self.progress = Progress::Draining(drain);
        since
    }

    /// Returns whether to wait for the volumes of evicted pods. A dead kubelet detaches none, and a
    /// driver that never lets go must not keep an instance.
    fn awaits_detach(&self, empty_since: Timestamp, now: Timestamp) -> bool {
        !self.is_broken() && now < later(empty_since, DETACH_TIMEOUT)
    }

    /// Requests the termination; with a node, only if the node still stands as observed.
    fn terminate(&mut self, node: Option<&Node>, now: Timestamp, effects: &mut Vec<Effect>) {
        // A group replaces a member that EC2 takes. A termination from here would shrink the group.
        if !self.record.member && self.begin_attempt(now, RETRY_MAX) {
            let (instance, node) = (self.record.instance.clone(), node.cloned().map(Box::new));
            effects.push(Effect::Terminate { instance, node });
        }
    }
}
