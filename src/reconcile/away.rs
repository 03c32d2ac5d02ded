//! Machines that go because of something that nobody here decided: taken back, broken, retired.
//!
//! Each is cordoned first, then replaced (plans are made as if it were gone), then drained. Invariants:
//! what is not ours, or not known, is never touched, and its message is taken off all the same; every
//! drain ends: done, given up and uncordoned, or forced by a deadline that somebody else set.

mod course;
mod outlook;
mod told;

pub(super) use course::Away;
pub(super) use outlook::Outlook;

use std::collections::{BTreeMap, BTreeSet};

use course::{Awaits, Came, Moment, Scene, Seen, TRY_AGAIN};
use jiff::SignedDuration;

use super::event::{Effect, Ending, Event, Signal};
use super::health::is_repair;
use super::kept::{GOING_MAX, Kept, Leaving, later};
use super::state::{BUSY_REFRESH, Lane, State};
use super::status::{AwayPhase, Going};
use super::view;
use crate::fleet::{CordonedFor, Instance, InstanceState, Node, Observed, Pod};
use crate::ids::{InstanceId, NodeName};
use crate::port::{CordonOutcome, EvictOutcome, PortError};

/// How long the node of a machine that is gone is tried to be removed, as in an apply.
const GONE_WITHIN: SignedDuration = SignedDuration::from_mins(10);

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
            | Event::Ended { instance, .. }
            | Event::NodeDeleted { instance, .. } => Self::Of(vec![instance.clone()]),
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
            awaits: Awaits::Plan { since: self.now },
            draining: None,
            emptied: None,
            ended: None,
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

    /// Returns those of them as if which were gone plans are made: a member of a group stays until its group replaces it,
    /// which nobody else does meanwhile.
    pub(super) fn replaced_here(&self) -> BTreeSet<InstanceId> {
        let all = self.away.iter().filter(|(_, away)| !away.leaving.member);
        all.map(|(id, _)| id.clone()).collect()
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
                let is_replaced = self.is_replaced(&world);
                let sight = Sight::of(&world);
                for id in self.going() {
                    let pods = |node: &NodeName| sight.pods.get(node).cloned().unwrap_or_default();
                    let node = sight.nodes.get(&id).copied();
                    self.advance_one((&id, Some(is_replaced)), &world, (node, pods), effects);
                }
            }
            Turn::Of(ids) => {
                for id in
                    ids.into_iter().filter(|id| self.away.contains_key(id)).collect::<Vec<_>>()
                {
                    let pods = |node: &NodeName| view::movable(&world, node);
                    self.advance_one((&id, None), &world, (world.node_of(&id), pods), effects);
                }
            }
        }
        if self.looks_on() {
            // What was received and is not taken off yet is for whoever may do something about it.
            self.mail.clear();
        }
        self.mail.acknowledge(effects);
    }

    fn advance_one<'w>(
        &mut self,
        (id, is_replaced): (&InstanceId, Option<bool>),
        world: &'w Observed,
        (node, pods): (Option<&'w Node>, impl Fn(&NodeName) -> Vec<&'w Pod>),
        effects: &mut Vec<Effect>,
    ) {
        // A look that shows no node at all shows nothing of any.
        let joined = node.is_none() && (world.nodes.is_empty() || self.had_joined(id));
        let drained = self.is_drained(id);
        let looks_on = self.looks_on();
        let is_member = self.is_member(id);
        let Some(away) = self.away.get_mut(id) else { return };
        // Only a whole look may say that there is no such machine, or that it is not ours.
        let instance = world.instances.get(id);
        // What EC2 does not show yet, or no more because the look is an older one, is there all the same.
        let hidden = instance.is_none() && self.unseen.awaits(id);
        let seen = self.world_no >= away.from && !away.cordoning;
        let looked = seen && !hidden && self.world_reads.failures == 0;
        let member = away.leaving.member;
        // Whose group is no longer ours to manage is left as it is found, but for the cordon that is ours.
        let let_go = member && !is_member && !away.gives_up;
        let ours =
            instance.is_some_and(|i| i.is_ours(&world.cluster.name) || member && i.group.is_some());
        let runs = instance.is_some_and(Instance::is_active);
        if looked && !(ours && runs) {
            self.takes_leave(id, (node, instance), ours, effects);
            return;
        }
        if !(ours && runs) {
            return;
        }
        let now = self.now;
        if (looks_on || let_go) && !away.gives_up {
            let seen = Seen { node, looked, drained };
            match away.stands_down(seen, now, effects) {
                Came::GaveUp => self.count("drains.given_up", 1),
                Came::Over if let_go && looked => self.goes_no_more(id),
                Came::On | Came::Over => {}
            }
            return;
        }
        let next_look = self.looks + 1;
        let fresh = self.world_no >= away.known;
        let pods = || node.map(|node| pods(&node.name)).unwrap_or_default();
        let mut replaced = false;
        let scene = match (away.phase, is_replaced) {
            (AwayPhase::Replacing, Some(is_replaced)) if !member => {
                let pods = pods();
                replaced = is_replaced && self.outlook.places(id, &pods);
                away.now_awaits(self.outlook.awaits(id, &pods, now));
                Scene { node, ..Scene::default() }
            }
            (AwayPhase::Draining, _) => Scene::of_drain(node, pods(), world),
            (AwayPhase::Noted | AwayPhase::Replacing | AwayPhase::Ending, _) => {
                Scene { node, ..Scene::default() }
            }
        };
        let moment = Moment { now, replaced, looked, joined, drained, fresh, next_look };
        let came = away.act(&scene, moment, effects);
        if away.from == next_look {
            self.world_due = self.world_due.min(later(self.looked_at, BUSY_REFRESH).max(self.now));
        }
        match came {
            Came::On => self.settle(id),
            Came::GaveUp => {
                self.count("drains.given_up", 1);
                // What is wrong with it is waited for anew.
                self.health.unwell.retain(|(of, _), _| of != id);
            }
            Came::Over => self.goes_no_more(id),
        }
    }

    /// Takes leave of a machine that runs no more, or is not ours: where it is gone and its node is not, once that is,
    /// since nobody else may remove it.
    fn takes_leave(
        &mut self,
        id: &InstanceId,
        (node, instance): (Option<&Node>, Option<&Instance>),
        ours: bool,
        effects: &mut Vec<Effect>,
    ) {
        let (now, looks_on) = (self.now, self.looks_on());
        let Some(away) = self.away.get_mut(id) else { return };
        let first = away.ended.is_none();
        let since = *away.ended.get_or_insert(now);
        let why =
            (first && (ours || away.phase != AwayPhase::Noted)).then(|| away.leaving.why.clone());
        // What EC2 does not list may run all the same, as somebody else's by now.
        let state = instance.filter(|_| ours).map(|instance| instance.state);
        let ends = matches!(state, Some(InstanceState::ShuttingDown | InstanceState::Terminated));
        // Who only looks on removes nothing.
        let left = node.filter(|_| ends && !looks_on);
        let gone = state == Some(InstanceState::Terminated);
        match left.filter(|_| now < later(since, GONE_WITHIN)) {
            Some(node) => {
                away.leaves_node(first, now);
                if gone && away.tries(now, TRY_AGAIN) {
                    effects.push(Effect::DeleteNode {
                        instance: id.clone(),
                        node: Box::new(node.clone()),
                    });
                }
                self.mail.dealt_with(id);
            }
            None => self.goes_no_more(id),
        }
        if let Some(why) = why {
            self.count(&format!("terminations.{why}"), 1);
            self.times_end_by_itself(id);
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
                let why = self.away.get(instance).map(|away| away.leaving.why.clone());
                let since = self.away.get(instance).and_then(|away| away.draining);
                self.times_end(instance, (since, &why.unwrap_or_default()), self.now);
                if let Some(away) = self.away.get_mut(instance) {
                    away.next(AwayPhase::Ending, self.now);
                    // It was told just now: the next time is counted from here.
                    let _ = away.tries(self.now, TRY_AGAIN);
                    // What EC2 takes back nobody here decided on; a repair is a removal like any other.
                    if let Some(kept) = self.kept.as_mut().filter(|_| is_repair(&away.leaving.why))
                    {
                        kept.remove(&[instance.clone()].into(), self.now);
                    }
                }
            }
            // What the next look shows decides.
            Ok(Ending::Held) => {}
            Ok(Ending::Unread(_)) => self.count("errors.kubernetes", 1),
            Err(_) => self.count("errors.ec2", 1),
        }
    }

    pub(super) fn was_deleted(&mut self, instance: &InstanceId, end: &Result<(), PortError>) {
        self.count("errors.kubernetes", u64::from(end.is_err()));
        if end.is_ok() {
            self.need = self.looks + 1;
            self.goes_no_more(instance);
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
        let Some(world) = self.world.as_ref().filter(|_| !self.away.is_empty()) else {
            return self.away.values().map(|away| away.told(None, None)).collect();
        };
        let sight = (!self.outlook.is_open()).then(|| Sight::of(world));
        let one = |away: &Away| {
            let node = world.node_of(&away.leaving.instance).map(|node| &node.name);
            let waits = away.phase <= AwayPhase::Replacing;
            let pods = sight.as_ref().filter(|_| waits).and_then(|sight| sight.pods.get(node?));
            away.told(node, pods.and_then(|pods| self.outlook.holds(pods)))
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

#[cfg(test)]
mod tests;
