//! Machines that go because of something that nobody here decided: taken back, broken, retired.
//!
//! Each is cordoned first, then replaced (plans are made as if it were gone), then drained. Invariants:
//! what is not ours, or not known, is never touched, and its message is taken off all the same; every
//! drain ends: done, given up and uncordoned, or forced by a deadline that somebody else set.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::{Effect, Ending, Event, Signal};
use super::health::{NEVER_READY, NOT_READY};
use super::kept::{CLOCK_OFF, GOING_MAX, Kept, Leaving, earlier, later};
use super::mail::MESSAGES_MAX;
use super::message::Message;
use super::state::{BUSY_REFRESH, Lane, State, backoff};
use super::status::{AwayPhase, Going};
use super::view;
use crate::fleet::{CordonedFor, Instance, Node, Observed, Pod};
use crate::ids::{InstanceId, NodeName};
use crate::port::{CordonOutcome, EvictOutcome, PortError};

/// How long before the end of a machine its pods are asked to leave, whether or not their new place is
/// there: about as long as Kubernetes gives a pod by default to stop, and then some.
const DRAIN_LEAD: SignedDuration = SignedDuration::from_secs(60);
/// The longest that pods of a machine without a deadline stay for the sake of a new place.
const REPLACE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// How long a machine whose kubelet is gone is drained: nobody there stops its pods.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// How long a machine without a deadline is drained, as an apply drains one; then it is left as it was.
const DRAIN_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// The longest between two tries for a machine whose deadline is near, and how near that is.
const HURRIED: SignedDuration = BUSY_REFRESH;
const NEAR: SignedDuration = SignedDuration::from_mins(5);
/// The longest between two rounds of evictions: what a budget allows changes by the minute.
const EVICT_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// The longest between two tries of anything else.
const TRY_AGAIN: SignedDuration = SignedDuration::from_mins(5);

/// A machine that goes.
#[derive(Debug, Clone)]
pub(super) struct Away {
    pub(super) leaving: Leaving,
    pub(super) phase: AwayPhase,
    /// How often it was tried in vain to get it into its next phase, and when it is tried again.
    tries: u32,
    again: Timestamp,
    /// Since when its pods are asked to leave.
    draining: Option<Timestamp>,
    /// Whether no pod comes to it any more: its node is cordoned, or none ever joined.
    unschedulable: bool,
    /// Whether its node is being cordoned, or uncordoned: what looks show meanwhile may be of before, in part.
    cordoning: bool,
    /// Whether its drain was given up, so that its node is uncordoned.
    gives_up: bool,
    /// The first look at the world that may say that it is gone.
    from: u64,
    /// The first look that was begun after it was known to go.
    known: u64,
}

/// Which machines that go are looked at in a step.
pub(super) enum Turn {
    /// All of them: the world or the time is another.
    All,
    /// Those that something was heard of.
    Of(Vec<InstanceId>),
}

impl Turn {
    /// Returns whose turn it is after `event`. What is heard of one costs nothing for the others.
    pub(super) fn after(event: &Event) -> Self {
        match event {
            Event::Cordoned { instance, .. }
            | Event::Evicted { instance, .. }
            | Event::Ended { instance, .. } => Self::Of(vec![instance.clone()]),
            Event::Signal(Signal::Message(message)) => Self::Of(message.instances.clone()),
            Event::Acknowledged { .. }
            | Event::Shielded { .. }
            | Event::Nominated { .. }
            | Event::Progress { .. } => Self::Of(Vec::new()),
            Event::Recalled(_)
            | Event::Saved(_)
            | Event::Head(_)
            | Event::Commit { .. }
            | Event::World(_)
            | Event::Unplanned { .. }
            | Event::Planned { .. }
            | Event::Turning { .. }
            | Event::Applied { .. }
            | Event::Signal(_)
            | Event::Timer => Self::All,
        }
    }
}

/// Whose a machine is.
enum Whose {
    /// Ours, and it runs.
    Ours,
    /// Not ours, or on its way out already.
    Nobodys,
    /// The last look does not tell.
    Unknown,
}

/// The moment, and what of it matters to a machine that goes.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is about one thing of its own")]
struct Moment {
    now: Timestamp,
    /// Whether all that was launched in its place is there.
    replaced: bool,
    /// Whether the last look was whole, and begun after the last write about it.
    looked: bool,
    /// Whether it had a node once, which no look may make undone at once.
    joined: bool,
    /// Whether an apply drains it.
    drained: bool,
    /// Whether the last look was begun after it was known to go.
    fresh: bool,
    /// The first look that is begun from now on.
    next_look: u64,
}

/// What came of a turn.
enum Came {
    /// Something, or nothing yet.
    On,
    /// The drain was given up.
    GaveUp,
    /// Nothing is left to do for it.
    Over,
}

impl State {
    /// Takes over what an earlier life knew to go.
    pub(super) fn remember(&mut self, kept: &Kept) {
        let from = self.looks + 1;
        for leaving in &kept.going {
            self.goes(leaving.clone(), from);
        }
    }

    /// Has a machine go, from the look `from` on that may say that it is gone.
    pub(super) fn goes(&mut self, leaving: Leaving, from: u64) {
        let deadline = leaving.deadline;
        if let Some(away) = self.away.get_mut(&leaving.instance) {
            // Of two deadlines the first counts.
            let first = [away.leaving.deadline, deadline].into_iter().flatten().min();
            if away.leaving.deadline != first {
                away.leaving.deadline = first;
                self.leaving_no += 1;
            }
            return;
        }
        let again = self.now;
        let away = Away {
            leaving,
            phase: AwayPhase::Noted,
            tries: 0,
            again,
            draining: None,
            unschedulable: false,
            cordoning: false,
            gives_up: false,
            from,
            known: self.looks + 1,
        };
        // A node of it may have joined since the last look.
        self.world_due = self.world_due.min(later(self.looked_at, BUSY_REFRESH).max(self.now));
        self.away.insert(away.leaving.instance.clone(), away);
        self.leaving_no += 1;
        self.going_no += 1;
    }

    fn goes_no_more(&mut self, instance: &InstanceId) {
        if self.away.remove(instance).is_some() {
            self.leaving_no += 1;
            self.going_no += 1;
        }
        self.mail.dealt_with(instance);
        self.failing.forget(instance.as_str());
    }

    pub(super) fn going(&self) -> BTreeSet<InstanceId> {
        self.away.keys().cloned().collect()
    }

    /// Returns what is kept of the machines that go: the first of them, where there are too many. The
    /// messages of the others stay on their queue meanwhile.
    pub(super) fn leaving(&self) -> Vec<Leaving> {
        let mut all: Vec<&Leaving> = self.away.values().map(|away| &away.leaving).collect();
        if all.len() > GOING_MAX {
            all.sort_by(|a, b| (a.since, &a.instance).cmp(&(b.since, &b.instance)));
            all.truncate(GOING_MAX);
        }
        all.into_iter().cloned().collect()
    }

    pub(super) fn was_told(&mut self, message: Message, effects: &mut Vec<Effect>) {
        if self.lent && !self.leader {
            self.shield(&message, effects);
            return;
        }
        let Message { receipt, kind, instances, deadline } = message;
        self.count(&format!("messages.{kind}"), 1);
        let heeds = self.leader && self.head.is_some() && self.heeds_interruptions();
        if !heeds || self.mail.holds(&receipt) {
            // It comes again, to whoever leads then, knows what may be done, and may do it.
            return;
        }
        if self.mail.len() >= MESSAGES_MAX {
            self.count("messages.deferred", 1);
            return;
        }
        let acts = kind.takes_away() || kind.is_hint();
        let mut open = BTreeSet::new();
        for instance in instances.into_iter().filter(|_| acts) {
            let (why, since) = (kind.to_string(), self.now);
            let leaving = Leaving { instance: instance.clone(), why, since, deadline };
            match self.whose(&instance) {
                Whose::Nobodys => continue,
                Whose::Ours if kind.takes_away() => self.goes(leaving, self.world_no),
                Whose::Ours | Whose::Unknown => self.asks_for(leaving),
            }
            if !self.is_dealt_with(&instance) {
                open.insert(instance);
            }
        }
        self.mail.wait(receipt, open);
    }

    /// Has no more pods come to machines of ours that EC2 takes back within minutes, while an apply has the lease. The
    /// message stays on the queue and comes again, so that whoever leads next does the rest. One that has longer is left
    /// to those: where the message is lost by then nobody would uncordon its node.
    fn shield(&self, message: &Message, effects: &mut Vec<Effect>) {
        let Some(world) = self.world.as_ref().filter(|_| self.heeds_interruptions()) else {
            return;
        };
        let Message { kind, instances, deadline, receipt: _ } = message;
        let soon = deadline.is_some_and(|at| at <= later(self.now, NEAR));
        let goes = kind.takes_away() && soon;
        let ours = instances.iter().filter(|id| goes && matches!(self.whose(id), Whose::Ours));
        for node in ours.filter_map(|id| world.node_of(id)).filter(|node| !node.unschedulable) {
            effects.push(Effect::Shield { node: Box::new(node.clone()) });
        }
    }

    pub(super) fn was_shielded(&mut self, end: &Result<CordonOutcome, PortError>) {
        self.count("errors.kubernetes", u64::from(end.is_err()));
        if let Ok(CordonOutcome::Outdated) = end {
            // Its message comes again within a visibility timeout, and is to find the node as it is by now.
            self.world_due = self.world_due.min(self.next_look());
        }
    }

    fn whose(&self, instance: &InstanceId) -> Whose {
        if self.unseen.has_ended(instance) {
            return Whose::Nobodys;
        }
        let whole = self.world.as_ref().filter(|_| self.world_reads.failures == 0);
        match whole.and_then(|world| Some((world, world.instances.get(instance)?))) {
            Some((world, found)) if found.is_active() && found.is_ours(&world.cluster.name) => {
                Whose::Ours
            }
            Some(_) => Whose::Nobodys,
            None => Whose::Unknown,
        }
    }

    /// Has the next look tell whose a machine is. Many are told by one look.
    fn asks_for(&mut self, leaving: Leaving) {
        self.mail.strange(leaving, self.looks + 1);
        let soonest = later(self.looked_at, BUSY_REFRESH).max(self.now);
        self.world_due = self.world_due.min(soonest);
    }

    /// Has those machines go of which a whole look now tells that they are ours.
    pub(super) fn meet_strangers(&mut self) {
        for leaving in self.mail.told_by(self.world_no) {
            match self.whose(&leaving.instance) {
                Whose::Ours if !leaving.is_hint() => self.goes(leaving, self.world_no),
                // EC2 shows late what was launched.
                Whose::Unknown if self.may_come(&leaving) => self.asks_for(leaving),
                // Another message has it go, and is not dealt with by this one.
                Whose::Ours | Whose::Nobodys | Whose::Unknown
                    if self.away.contains_key(&leaving.instance) => {}
                // What still runs after it was said to end was not to end, or runs again.
                Whose::Ours | Whose::Nobodys | Whose::Unknown => {
                    self.mail.dealt_with(&leaving.instance);
                }
            }
        }
    }

    /// Returns whether a machine that goes and is not shown may be one that was launched lately, or asked for by whoever
    /// heard of no answer.
    fn may_come(&self, leaving: &Leaving) -> bool {
        let unheard = self.kept.as_ref().is_some_and(|kept| !kept.asked.is_empty());
        !leaving.is_hint() && (unheard || self.unseen.awaits(&leaving.instance))
    }

    /// Returns whether the messages of a machine may be taken off: it is cordoned, and the record has it. While the
    /// world cannot be read, nobody knows whether a node has joined since, or takes pods again.
    fn is_dealt_with(&self, instance: &InstanceId) -> bool {
        let recorded = self.recorded.contains(instance) && self.world_reads.failures == 0;
        // What an apply drains it may give up, and uncordon.
        let uncordoned = self.is_drained(instance) || self.uncordons.is_under_way(instance);
        let away = self.away.get(instance).filter(|_| !uncordoned);
        recorded && away.is_some_and(|away| away.unschedulable && away.phase != AwayPhase::Noted)
    }

    /// Returns whether an apply drains the machine, or is about to.
    fn is_drained(&self, instance: &InstanceId) -> bool {
        self.lanes.values().any(|lane| lane.removes_machine(instance))
    }

    /// Has the next look tell whether machines that go are cordoned still: an apply that has ended took back what it
    /// had cordoned and did not drain.
    pub(super) fn doubts_cordons_of(&mut self, lane: &Lane) {
        let next = self.looks + 1;
        for (_, away) in self.away.iter_mut().filter(|(id, _)| lane.removes_machine(id)) {
            (away.unschedulable, away.from) = (false, next);
        }
    }

    fn settle(&mut self, instance: &InstanceId) {
        if self.is_dealt_with(instance) {
            self.mail.dealt_with(instance);
        }
    }

    /// Notes which machines the record has.
    pub(super) fn has_recorded(&mut self) {
        let saved = self.saved.iter().flat_map(|saved| &saved.going);
        self.recorded = saved.map(|leaving| leaving.instance.clone()).collect();
        for instance in self.recorded.clone() {
            self.settle(&instance);
        }
    }

    /// Takes the machines whose turn it is as far as they can be now.
    pub(super) fn advance_away(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        let Some(world) = self.world.clone().filter(|_| self.leader) else { return };
        // What is heard of some, without end, keeps nobody from the others.
        let turn = if self.now < self.away_due { turn } else { Turn::All };
        if let Turn::All = turn {
            self.away_due = later(self.now, BUSY_REFRESH);
        }
        match turn {
            Turn::All if self.away.is_empty() => {}
            Turn::All => {
                let replaced = self.is_replaced(&world);
                let sight = Sight::of(&world);
                for id in self.going() {
                    let pods = |node: &NodeName| sight.pods.get(node).cloned().unwrap_or_default();
                    let node = sight.nodes.get(&id).copied();
                    self.advance_one((&id, replaced), &world, (node, pods), effects);
                }
            }
            Turn::Of(ids) => {
                for id in
                    ids.into_iter().filter(|id| self.away.contains_key(id)).collect::<Vec<_>>()
                {
                    let pods = |node: &NodeName| view::movable(&world, node);
                    self.advance_one((&id, false), &world, (world.node_of(&id), pods), effects);
                }
            }
        }
        self.mail.acknowledge(effects);
    }

    fn advance_one<'w>(
        &mut self,
        (id, replaced): (&InstanceId, bool),
        world: &'w Observed,
        (node, pods): (Option<&Node>, impl Fn(&NodeName) -> Vec<&'w Pod>),
        effects: &mut Vec<Effect>,
    ) {
        // A look that shows no node at all shows nothing of any.
        let joined = node.is_none() && (world.nodes.is_empty() || self.had_joined(id));
        let drained = self.is_drained(id);
        let Some(away) = self.away.get_mut(id) else { return };
        // Only a whole look may say that there is no such machine, or that it is not ours.
        let instance = world.instances.get(id);
        // What EC2 does not show yet, or no more because the look is an older one, is there all the same.
        let hidden = instance.is_none() && self.unseen.awaits(id);
        let seen = self.world_no >= away.from && !away.cordoning;
        let looked = seen && !hidden && self.world_reads.failures == 0;
        let ours = instance.is_some_and(|i| i.is_ours(&world.cluster.name));
        let runs = instance.is_some_and(Instance::is_active);
        if looked && !(ours && runs) {
            if ours || away.phase != AwayPhase::Noted {
                let why = away.leaving.why.clone();
                self.count(&format!("terminations.{why}"), 1);
            }
            self.goes_no_more(id);
            return;
        }
        if !(ours && runs) {
            return;
        }
        let next_look = self.looks + 1;
        let fresh = self.world_no >= away.known;
        let moment = Moment { now: self.now, replaced, looked, joined, drained, fresh, next_look };
        let came = away.act(node, pods, moment, effects);
        if away.from == next_look {
            self.world_due = self.world_due.min(later(self.looked_at, BUSY_REFRESH).max(self.now));
        }
        match came {
            Came::On => self.settle(id),
            Came::GaveUp => self.count("drains.given_up", 1),
            Came::Over => self.goes_no_more(id),
        }
    }

    /// Returns whether a plan that counts without the machines that go needs nothing more, and all
    /// that was launched for it is there.
    fn is_replaced(&self, world: &Observed) -> bool {
        if self.covered != Some(self.going_no) || self.lanes.values().any(|lane| lane.launching) {
            return false;
        }
        let ready: BTreeSet<&InstanceId> = world
            .nodes
            .values()
            .filter(|node| node.ready)
            .filter_map(|node| node.instance.as_ref())
            .collect();
        // One that does not come up holds up nobody for ever: there is a latest moment as well.
        let booting = |instance: &Instance| {
            let mine = instance.is_active() && instance.is_ours(&world.cluster.name);
            let goes = self.away.contains_key(&instance.id);
            mine && !goes && !ready.contains(&instance.id)
        };
        !world.instances.values().any(booting)
    }

    /// Notes how cordoning the node of a machine ended, or uncordoning it where there is no `mark`.
    pub(super) fn was_cordoned(
        &mut self,
        instance: &InstanceId,
        mark: Option<CordonedFor>,
        end: &Result<CordonOutcome, PortError>,
    ) {
        self.count("errors.kubernetes", u64::from(end.is_err()));
        let of_stale = mark.is_none() && self.was_uncordoned(instance, end);
        let Some(away) = self.away.get_mut(instance) else { return };
        // That it is uncordoned which stood so before says nothing of its cordon.
        away.cordoning &= of_stale;
        match (end, mark) {
            (Ok(CordonOutcome::Outdated) | Err(_), _) => {}
            (Ok(CordonOutcome::Written), None) if away.gives_up && !of_stale => {
                self.goes_no_more(instance);
                return;
            }
            // It was uncordoned before anybody knew that it goes.
            (Ok(CordonOutcome::Written), None) => away.unschedulable = false,
            (Ok(CordonOutcome::Written), Some(_)) => {
                away.next(AwayPhase::Replacing, self.now);
                away.unschedulable = true;
            }
        }
        // Whatever came before the write is seen by a look that was begun after it; one that failed may have been heard.
        away.from = self.looks + 1;
        self.world_due = self.world_due.min(later(self.looked_at, BUSY_REFRESH).max(self.now));
    }

    pub(super) fn were_evicted(&mut self, ends: &[Result<EvictOutcome, PortError>]) {
        for end in ends {
            let name = match end {
                Ok(EvictOutcome::Evicted) => "evictions.done",
                Ok(EvictOutcome::Blocked { .. }) => "evictions.blocked",
                Err(_) => "errors.kubernetes",
            };
            self.count(name, 1);
        }
    }

    pub(super) fn was_ended(&mut self, instance: &InstanceId, end: &Result<Ending, PortError>) {
        self.need = self.looks + 1;
        match end {
            Ok(Ending::Told) => {
                self.unseen.end(instance, self.now);
                if let Some(away) = self.away.get_mut(instance) {
                    away.next(AwayPhase::Ending, self.now);
                }
            }
            // What the next look shows decides.
            Ok(Ending::Held) => {}
            Ok(Ending::Unread(_)) => self.count("errors.kubernetes", 1),
            Err(_) => self.count("errors.ec2", 1),
        }
    }

    pub(super) fn was_acknowledged(&mut self, end: &Result<(), PortError>) {
        self.mail.was_acknowledged();
        if end.is_ok() {
            self.count("messages.acknowledged", 1);
        } else {
            // It comes again by itself, and is dealt with at once then.
            self.count("errors.queue", 1);
        }
    }

    /// Returns the machines that go, for the snapshot.
    pub(super) fn going_now(&self) -> Vec<Going> {
        let node = |id: &InstanceId| {
            self.world.as_ref().and_then(|world| Some(world.node_of(id)?.name.clone()))
        };
        let one = |away: &Away| {
            let Leaving { instance, why, since, deadline } = &away.leaving;
            Going {
                instance: instance.clone(),
                node: node(instance),
                why: why.clone(),
                since: *since,
                deadline: *deadline,
                phase: away.phase,
            }
        };
        self.away.values().map(one).collect()
    }
}

/// A world, by what is asked of it for each machine that goes.
struct Sight<'w> {
    nodes: BTreeMap<&'w InstanceId, &'w Node>,
    pods: BTreeMap<&'w NodeName, Vec<&'w Pod>>,
}

impl<'w> Sight<'w> {
    fn of(world: &'w Observed) -> Self {
        let mut pods: BTreeMap<&NodeName, Vec<&Pod>> = BTreeMap::new();
        for pod in world.pods.iter().filter(|pod| pod.has_to_leave()) {
            if let Some(node) = &pod.node {
                pods.entry(node).or_default().push(pod);
            }
        }
        Self { nodes: world.nodes_by_instance(), pods }
    }
}

impl Away {
    fn next(&mut self, phase: AwayPhase, now: Timestamp) {
        if phase > self.phase {
            self.phase = phase;
            (self.tries, self.again) = (0, now);
        }
    }

    /// Returns whether it is time to try, again or for the first time: after 2 s, then after twice as
    /// long each time, at most `most`.
    fn tries(&mut self, now: Timestamp, most: SignedDuration) -> bool {
        if now < self.again {
            return false;
        }
        let near = |at: Timestamp| at > self.leaving.since && now >= earlier(at, NEAR);
        let most = if self.leaving.deadline.is_some_and(near) { HURRIED } else { most };
        self.tries = self.tries.saturating_add(1);
        self.again = later(now, backoff(self.tries).min(most));
        true
    }

    /// Has it tried at once what was to be tried later: the clock was set back.
    pub(super) fn hurry(&mut self, now: Timestamp) {
        self.again = self.again.min(now);
    }

    fn is_broken(&self) -> bool {
        self.leaving.why == NOT_READY || self.leaving.why == NEVER_READY
    }

    /// Returns when the machine is ended with whatever is on it: once a deadline that lay ahead when it was told has
    /// passed by any clock, since pods have until EC2 ends it by its own. One that had passed by then is of a message
    /// that came late, and says nothing of now.
    fn forced_at(&self) -> Option<Timestamp> {
        let ahead = self.leaving.deadline.filter(|deadline| *deadline > self.leaving.since);
        ahead.map(|deadline| later(deadline, CLOCK_OFF))
    }

    /// Returns the latest moment at which its pods are asked to leave, whether or not their new place is there.
    fn latest(&self) -> Timestamp {
        let Leaving { since, deadline, .. } = &self.leaving;
        let latest = later(*since, REPLACE_WITHIN);
        deadline.map_or(latest, |at| earlier(at, DRAIN_LEAD).min(latest))
    }

    fn cordon(&mut self, node: &Node, mark: Option<CordonedFor>, effects: &mut Vec<Effect>) {
        self.cordoning = true;
        let (instance, node) = (self.leaving.instance.clone(), Box::new(node.clone()));
        effects.push(Effect::Cordon { instance, node, mark });
    }

    fn act<'w>(
        &mut self,
        node: Option<&Node>,
        pods: impl Fn(&NodeName) -> Vec<&'w Pod>,
        moment: Moment,
        effects: &mut Vec<Effect>,
    ) -> Came {
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
            AwayPhase::Noted if !looked || (joined && now < self.latest()) => {}
            AwayPhase::Noted => self.next(AwayPhase::Replacing, now),
            AwayPhase::Replacing => {
                if replaced || now >= self.latest() {
                    self.next(AwayPhase::Draining, now);
                    self.draining = Some(now);
                    if node.is_none() {
                        // Nothing kept pods from one that joined since the last look.
                        self.from = next_look;
                    }
                }
            }
            AwayPhase::Draining => {
                let pods = node.map(|node| pods(&node.name)).unwrap_or_default();
                return self.drain(node, &pods, moment, effects);
            }
            // Until it is seen to be gone it is told again.
            AwayPhase::Ending => self.end(None, now, effects),
        }
        Came::On
    }

    /// Has pods leave, and the machine end once none is left that a fresh look shows.
    fn drain(
        &mut self,
        node: Option<&Node>,
        left: &[&Pod],
        moment: Moment,
        effects: &mut Vec<Effect>,
    ) -> Came {
        let Moment { now, looked, joined, drained, .. } = moment;
        let begun = self.draining.unwrap_or(now);
        let forced = match self.forced_at() {
            Some(deadline) => now >= deadline,
            None => self.is_broken() && now >= later(begun, BROKEN_DRAIN),
        };
        // Where a node was and is not shown, nobody knows what is on it.
        if (left.is_empty() && !joined) || forced {
            if looked {
                self.end(node.filter(|_| !forced), now, effects);
            }
            return Came::On;
        }
        if self.forced_at().is_none() && !drained && now >= later(begun, DRAIN_WITHIN) {
            self.gives_up = true;
            (self.tries, self.again) = (0, now);
            return Came::GaveUp;
        }
        let pods: Vec<Pod> =
            left.iter().filter(|pod| !pod.terminating).map(|pod| (*pod).clone()).collect();
        if !pods.is_empty() && self.tries(now, EVICT_AGAIN) {
            effects.push(Effect::Evict { instance: self.leaving.instance.clone(), pods });
        }
        Came::On
    }

    /// Has the machine end; where a node is told, only if that stands as it was seen.
    fn end(&mut self, node: Option<&Node>, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.tries(now, TRY_AGAIN) {
            let (instance, node) = (self.leaving.instance.clone(), node.cloned().map(Box::new));
            effects.push(Effect::End { instance, node });
        }
    }
}

#[cfg(test)]
mod tests;
