//! The course of one machine that goes: what is wanted of its node, of the pods on it and of itself next.
//!
//! It knows the moment and nothing of how it came to that. Invariants: cordoned first; every drain ends: done, given up
//! and uncordoned, or forced by a deadline that somebody else set.

use jiff::{SignedDuration, Timestamp};

use crate::apply::leave::{first_to_leave, still_attached};
use crate::fleet::{CordonedFor, Node, Observed, Pod};
use crate::ids::NodeName;
use crate::reconcile::event::Effect;
use crate::reconcile::health::is_broken;
use crate::reconcile::kept::{CLOCK_OFF, Leaving, earlier, later};
use crate::reconcile::state::{BUSY_REFRESH, backoff};
use crate::reconcile::status::{AwayPhase, Going, HeldBy};

/// The least time before the end of a machine at which its pods are asked to leave, whether or not their new place is
/// there: about as long as Kubernetes gives a pod by default to stop, and then some.
const DRAIN_LEAD: SignedDuration = SignedDuration::from_secs(60);
/// The longest that pods of a machine without a deadline stay for the sake of a new place that nothing holds back.
const REPLACE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// The longest that they stay because no plan was made since the machine was known to go, so that nobody knows whether
/// their new place is held back: longer than a drain beside which nothing else is planned takes.
const PLANNED_WITHIN: SignedDuration = SignedDuration::from_mins(30);
/// How long a machine whose kubelet is gone is drained: nobody there stops its pods.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// How long a machine without a deadline is drained, as an apply drains one; then it is left as it was.
const DRAIN_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// How long a machine stays for the volumes of pods that have left it, as in an apply.
const DETACH_WITHIN: SignedDuration = SignedDuration::from_mins(6);
/// How long before EC2 ends a machine whatever is left on it is asked to leave at once.
const LAST_CALL: SignedDuration = SignedDuration::from_secs(30);
/// How long past its deadline EC2 may take to take a member of a group; then it serves again.
const TAKEN_WITHIN: SignedDuration = SignedDuration::from_mins(30);
/// The longest between two tries for a machine whose deadline is near, and how near that is.
const HURRIED: SignedDuration = BUSY_REFRESH;
pub(super) const NEAR: SignedDuration = SignedDuration::from_mins(5);
/// The longest between two rounds of evictions: what a budget allows changes by the minute.
const EVICT_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// The longest between two tries of anything else.
pub(super) const TRY_AGAIN: SignedDuration = SignedDuration::from_mins(5);

/// A machine that goes.
#[derive(Debug, Clone)]
pub(in crate::reconcile) struct Away {
    pub(in crate::reconcile) leaving: Leaving,
    pub(in crate::reconcile) phase: AwayPhase,
    /// How often it was tried in vain to get it into its next phase, and when it is tried again.
    pub(super) tries: u32,
    pub(super) again: Timestamp,
    /// What its pods wait for, as far as the last look at all machines told.
    pub(super) awaits: Awaits,
    /// Since when its pods are asked to leave.
    pub(super) draining: Option<Timestamp>,
    /// Since when looks show no pod on it that has to leave.
    pub(super) emptied: Option<Timestamp>,
    /// Since when looks show that it runs no more.
    pub(super) ended: Option<Timestamp>,
    /// Whether no pod comes to it any more: its node is cordoned, or none ever joined.
    pub(super) unschedulable: bool,
    /// Whether its node is being cordoned, or uncordoned: what looks show meanwhile may be of before, in part.
    pub(super) cordoning: bool,
    /// Whether its drain was given up, so that its node is uncordoned.
    pub(super) gives_up: bool,
    /// The first look at the world that may say that it is gone.
    pub(super) from: u64,
    /// The first look that was begun after it was known to go.
    pub(super) known: u64,
}

/// What pods of a machine wait for before they are asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::reconcile) enum Awaits {
    /// A plan that is made as if the machine were gone, since then: nobody knows whether their new place is held back.
    Plan { since: Timestamp },
    /// Somebody's word, or a safeguard, that holds back what is to be launched in its place.
    Word,
    /// What is launched in its place, which nothing has held back since.
    Launches { since: Timestamp },
}

/// The moment, and what of it matters to a machine that goes.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is about one thing of its own")]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    /// Whether all that was launched in its place is there.
    pub(super) replaced: bool,
    /// Whether the last look was whole, and begun after the last write about it.
    pub(super) looked: bool,
    /// Whether it had a node once, which no look may make undone at once.
    pub(super) joined: bool,
    /// Whether an apply drains it.
    pub(super) drained: bool,
    /// Whether the last look was begun after it was known to go.
    pub(super) fresh: bool,
    /// The first look that is begun from now on.
    pub(super) next_look: u64,
}

/// What the last look shows of a machine.
#[derive(Clone, Default)]
pub(super) struct Scene<'w> {
    pub(super) node: Option<&'w Node>,
    /// Pods that have to leave it, and those of them that do next; where that matters to it now.
    pub(super) left: Vec<&'w Pod>,
    pub(super) first: Vec<&'w Pod>,
    /// A volume that is still attached, though no pod is left that has to leave.
    pub(super) attached: Option<&'w String>,
}

impl<'w> Scene<'w> {
    /// Returns what a look shows of a machine that is drained, on which these pods have to leave.
    pub(super) fn of_drain(
        node: Option<&'w Node>,
        left: Vec<&'w Pod>,
        world: &'w Observed,
    ) -> Self {
        let first = first_to_leave(left.clone(), world);
        let empty = node.filter(|_| left.is_empty());
        let attached = empty.and_then(|node| still_attached(node, world));
        Self { node, left, first, attached }
    }
}

/// What the last look shows of the node of a machine.
#[derive(Clone, Copy)]
pub(super) struct Seen<'w> {
    pub(super) node: Option<&'w Node>,
    /// As in [`Moment`].
    pub(super) looked: bool,
    pub(super) drained: bool,
}

/// What came of a turn.
pub(super) enum Came {
    /// Something, or nothing yet.
    On,
    /// The drain was given up.
    GaveUp,
    /// Nothing is left to do for it.
    Over,
}

impl Away {
    pub(super) fn next(&mut self, phase: AwayPhase, now: Timestamp) {
        if phase > self.phase {
            self.phase = phase;
            (self.tries, self.again) = (0, now);
        }
    }

    /// Returns what is told of it, with its node and with what holds back what is to come in its place.
    pub(super) fn told(&self, node: Option<&NodeName>, held: Option<&HeldBy>) -> Going {
        let Leaving { instance, why, since, deadline, member: _ } = &self.leaving;
        Going {
            instance: instance.clone(),
            node: node.cloned(),
            why: why.clone(),
            since: *since,
            deadline: *deadline,
            phase: self.phase,
            held: held.cloned(),
        }
    }

    /// Returns whether it is time to try, again or for the first time: after 2 s, then after twice as
    /// long each time, at most `most`.
    pub(super) fn tries(&mut self, now: Timestamp, most: SignedDuration) -> bool {
        if now < self.again {
            return false;
        }
        let near = |at: Timestamp| at > self.leaving.since && now >= earlier(at, NEAR);
        let most = if self.leaving.deadline.is_some_and(near) { HURRIED } else { most };
        self.tries = self.tries.saturating_add(1);
        self.again = later(now, backoff(self.tries).min(most));
        true
    }

    /// Notes that it is gone but for its node; what was tried before says nothing of that.
    pub(super) fn leaves_node(&mut self, first: bool, now: Timestamp) {
        self.next(AwayPhase::Ending, now);
        if first {
            (self.tries, self.again) = (0, now);
        }
    }

    /// Has it tried at once what was to be tried later: the clock was set back.
    pub(in crate::reconcile) fn hurry(&mut self, now: Timestamp) {
        self.again = self.again.min(now);
        if let Awaits::Plan { since } | Awaits::Launches { since } = &mut self.awaits {
            *since = now.min(*since);
        }
    }

    /// Notes what its pods wait for; since when stands as long as that is the same.
    pub(super) fn now_awaits(&mut self, awaits: Awaits) {
        if std::mem::discriminant(&awaits) != std::mem::discriminant(&self.awaits) {
            self.awaits = awaits;
        }
    }

    fn is_broken(&self) -> bool {
        is_broken(&self.leaving.why)
    }

    /// Returns when the machine is ended with whatever is on it: once a deadline that lay ahead when it was told has
    /// passed by any clock, since pods have until EC2 ends it by its own. One that had passed by then is of a message
    /// that came late, and says nothing of now.
    fn forced_at(&self) -> Option<Timestamp> {
        let ahead = self.leaving.deadline.filter(|_| self.leaving.is_ahead());
        ahead.map(|deadline| later(deadline, CLOCK_OFF))
    }

    /// Returns the latest moment at which its pods are asked to leave, whether or not their new place is there; nothing
    /// where nobody has said when the machine is gone, while that place is held back, or nobody knows which pods are on it.
    ///
    /// With a deadline they have as long to leave as an apply gives them, and at most half of the time that is left.
    fn latest(&self, looked: bool) -> Option<Timestamp> {
        let Leaving { since, deadline, .. } = &self.leaving;
        // One that has just passed by this clock may lie ahead by that of EC2.
        if let Some(at) = deadline.filter(|at| later(*at, CLOCK_OFF) > *since) {
            let half = at.duration_since(*since) / 2;
            return Some(earlier(at, half.clamp(DRAIN_LEAD, DRAIN_WITHIN)));
        }
        match self.awaits {
            Awaits::Plan { since } => Some(later(since, PLANNED_WITHIN)),
            Awaits::Word => None,
            Awaits::Launches { since } => Some(later(since, REPLACE_WITHIN)),
        }
        .filter(|_| looked)
    }

    /// Returns when it is believed that a node which had joined is shown no more.
    fn believed_at(&self) -> Timestamp {
        let most = later(self.leaving.since, REPLACE_WITHIN);
        self.latest(true).map_or(most, |latest| latest.min(most))
    }

    fn cordon(&mut self, node: &Node, mark: Option<CordonedFor>, effects: &mut Vec<Effect>) {
        self.cordoning = true;
        let (instance, node) = (self.leaving.instance.clone(), Box::new(node.clone()));
        effects.push(Effect::Cordon { instance, node, mark });
    }

    pub(super) fn act(
        &mut self,
        scene: &Scene<'_>,
        moment: Moment,
        effects: &mut Vec<Effect>,
    ) -> Came {
        let node = scene.node;
        let Moment { now, replaced, looked, joined, drained, fresh, next_look } = moment;
        if self.gives_up {
            // Whoever drains it ends that, and takes the cordon back.
            if drained {
                return Came::On;
            }
            let ours = |node: &&Node| node.cordoned_for().is_some();
            let Some(node) = node.filter(|node| node.unschedulable).filter(ours) else {
                return if looked { Came::Over } else { Came::On };
            };
            if looked && self.tries(now, TRY_AGAIN) {
                self.cordon(node, None, effects);
            }
            return Came::On;
        }
        // One that joined only now is cordoned, too, and so is one whose cordon was taken back; whoever else has
        // cordoned it had a reason.
        if let Some(node) = node.filter(|node| !node.unschedulable)
            && self.phase != AwayPhase::Ending
        {
            self.unschedulable &= !looked;
            if looked && self.tries(now, TRY_AGAIN) {
                self.cordon(node, Some(CordonedFor::Leaving), effects);
            }
            return Came::On;
        }
        self.unschedulable |= looked && (node.is_some() || (!joined && fresh));
        let of_drain = |node: &&Node| node.cordoned_for() == Some(CordonedFor::Drain);
        match self.phase {
            // Whoever drains it, or comes after one that did, would uncordon it.
            AwayPhase::Noted if let Some(node) = node.filter(of_drain) => {
                if looked && self.tries(now, TRY_AGAIN) {
                    self.cordon(node, Some(CordonedFor::Leaving), effects);
                }
            }
            // That no node is shown says nothing where not all could be read, and little of one that had joined.
            AwayPhase::Noted if !looked || (joined && now < self.believed_at()) => {}
            AwayPhase::Noted => self.next(AwayPhase::Replacing, now),
            AwayPhase::Replacing => {
                // Of a look that was not whole nobody knows which pods are on it, nor what they are to come to.
                let latest = self.latest(looked);
                if (replaced && looked) || latest.is_some_and(|latest| now >= latest) {
                    self.next(AwayPhase::Draining, now);
                    self.draining = Some(now);
                    if node.is_none() {
                        // Nothing kept pods from one that joined since the last look.
                        self.from = next_look;
                    }
                }
            }
            AwayPhase::Draining => return self.drain(scene, moment, effects),
            // Until it is seen to be gone it is told again.
            AwayPhase::Ending => self.end(None, now, effects),
        }
        Came::On
    }

    /// Leaves a machine as it was before it was known to go, since nothing may be done about that now: its node takes
    /// pods again, unless EC2 is about to end it or was told to. Once it is over nothing is left to be taken back.
    pub(super) fn stands_down(
        &mut self,
        Seen { node, looked, drained }: Seen<'_>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Came {
        if self.forced_at().is_some_and(|at| now >= later(at, TAKEN_WITHIN)) {
            // It was not to end, or runs again.
            return self.give_up(now);
        }
        let ahead = self.leaving.deadline.filter(|_| self.leaving.is_ahead());
        let soon = ahead.is_some_and(|at| now >= earlier(at, NEAR));
        if soon || self.phase == AwayPhase::Ending {
            return Came::Over;
        }
        if self.phase != AwayPhase::Noted {
            (self.tries, self.again) = (0, now);
        }
        (self.phase, self.draining, self.emptied) = (AwayPhase::Noted, None, None);
        (self.awaits, self.unschedulable) = (Awaits::Plan { since: now }, false);
        let ours = |node: &&Node| node.cordoned_for() == Some(CordonedFor::Leaving);
        let Some(node) = node.filter(|node| node.unschedulable).filter(ours) else {
            return Came::Over;
        };
        if looked && !drained && self.tries(now, TRY_AGAIN) {
            self.cordon(node, None, effects);
        }
        Came::On
    }

    /// Has pods leave, and the machine end once none is left that a fresh look shows, nor a volume of theirs.
    fn drain(&mut self, scene: &Scene<'_>, moment: Moment, effects: &mut Vec<Effect>) -> Came {
        let Scene { node, left, first, attached } = scene;
        let Moment { now, looked, joined, drained, .. } = moment;
        let begun = self.draining.unwrap_or(now);
        let forced = match self.forced_at() {
            Some(deadline) => now >= deadline,
            None => self.is_broken() && now >= later(begun, BROKEN_DRAIN),
        };
        if !left.is_empty() {
            self.emptied = None;
        }
        if self.leaving.member {
            let forgotten = self.forced_at().is_none_or(|at| now >= later(at, TAKEN_WITHIN));
            if forgotten && !drained {
                return self.give_up(now);
            }
        }
        // Where a node was and is not shown, nobody knows what is on it.
        if (left.is_empty() && !joined) || forced {
            if looked && (forced || !self.detaches(attached.is_some(), now)) {
                self.end(node.filter(|_| !forced), now, effects);
            }
            return Came::On;
        }
        if self.forced_at().is_none() && !drained && now >= later(begun, DRAIN_WITHIN) {
            return self.give_up(now);
        }
        // Where EC2 ends it in a moment, nothing is left to be needed by others.
        let last = self.leaving.deadline.is_some_and(|at| now >= earlier(at, LAST_CALL));
        let leave = if last { left } else { first };
        let pods: Vec<Pod> =
            leave.iter().filter(|pod| !pod.terminating).map(|pod| (*pod).clone()).collect();
        if !pods.is_empty() && self.tries(now, EVICT_AGAIN) {
            effects.push(Effect::Evict { instance: self.leaving.instance.clone(), pods });
        }
        Came::On
    }

    /// Leaves it as it was where its pods have not been asked to leave yet.
    pub(in crate::reconcile) fn is_spared(&mut self, now: Timestamp) {
        let early = matches!(self.phase, AwayPhase::Noted | AwayPhase::Replacing);
        if early && !self.gives_up {
            self.give_up(now);
        }
    }

    /// Has its node be uncordoned.
    fn give_up(&mut self, now: Timestamp) -> Came {
        self.gives_up = true;
        (self.tries, self.again) = (0, now);
        Came::GaveUp
    }

    /// Returns whether nothing is left to do before EC2 takes it.
    pub(in crate::reconcile) fn only_waits(&self) -> bool {
        self.leaving.member && self.emptied.is_some()
    }

    /// Returns whether volumes of pods that have left are waited for: of a kubelet that is gone nobody does. One that
    /// its driver does not let go is no reason to keep a machine.
    fn detaches(&mut self, attached: bool, now: Timestamp) -> bool {
        let since = *self.emptied.get_or_insert(now);
        attached && !self.is_broken() && now < later(since, DETACH_WITHIN)
    }

    /// Has the machine end; where a node is told, only if that stands as it was seen.
    fn end(&mut self, node: Option<&Node>, now: Timestamp, effects: &mut Vec<Effect>) {
        // A group replaces what EC2 takes from it, and would be made smaller by who ends a member.
        if !self.leaving.member && self.tries(now, TRY_AGAIN) {
            let (instance, node) = (self.leaving.instance.clone(), node.cloned().map(Box::new));
            effects.push(Effect::End { instance, node });
        }
    }
}
