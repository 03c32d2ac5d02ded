//! Machines that go because of something that nobody here decided: taken back, broken, retired.
//!
//! Each is cordoned first, then replaced (plans are made as if it were gone), then drained, and a message
//! about it is taken off its queue once it is cordoned and that is kept. Invariant: what is not ours, or
//! not known, is never touched, and its message is taken off all the same.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::Effect;
use super::kept::{Kept, Leaving, READY_WITHIN, earlier, later};
use super::message::Message;
use super::state::{BUSY_REFRESH, State};
use super::status::{AwayPhase, Going};
use super::view;
use crate::fleet::{Instance, Node, Observed, Pod, tag};
use crate::ids::InstanceId;
use crate::manifest::Mode;
use crate::port::{EvictOutcome, PortError};

/// How long before the end of a machine its pods are asked to leave, whether or not their new place is
/// there: about as long as Kubernetes gives a pod by default to stop, and then some.
const DRAIN_LEAD: SignedDuration = SignedDuration::from_secs(60);
/// The longest that pods of a machine without a deadline stay for the sake of a new place.
const REPLACE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// How long a machine whose kubelet is gone is drained: nobody there stops its pods.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// Share of the nodes of a pool that may be broken for one of them to be replaced, in percent.
const BROKEN_PERCENT: usize = 20;

/// Fewest looks at the world in which a machine is not well before it is taken for broken.
const LOOKS_LEAST: u32 = 10;

/// Why a machine is replaced whose node is not Ready.
const NOT_READY: &str = "not-ready";
/// Why a machine ends that no node ever ran on.
const NEVER_READY: &str = "never-ready";

/// A machine whose node is not Ready, or has not joined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unwell {
    since: Timestamp,
    looks: u32,
    joined: bool,
}

impl Unwell {
    fn is_old(&self, age: SignedDuration, now: Timestamp) -> bool {
        now >= later(self.since, age) && self.looks >= LOOKS_LEAST
    }
}

/// A machine that goes.
#[derive(Debug, Clone)]
pub(super) struct Away {
    pub(super) leaving: Leaving,
    pub(super) phase: AwayPhase,
    /// When it was last tried to get it into its next phase.
    tried: Option<Timestamp>,
    /// Since when its pods are asked to leave.
    draining: Option<Timestamp>,
    /// The first look at the world that may say that it is gone.
    from: u64,
}

impl State {
    /// Takes over what an earlier life knew to go.
    pub(super) fn remember(&mut self, kept: &Kept) {
        let from = self.looks + 1;
        for leaving in &kept.going {
            let known = Away::new(leaving.clone(), from);
            self.away.entry(leaving.instance.clone()).or_insert(known);
        }
    }

    pub(super) fn going(&self) -> BTreeSet<InstanceId> {
        self.away.keys().cloned().collect()
    }

    pub(super) fn leaving(&self) -> Vec<Leaving> {
        self.away.values().map(|away| away.leaving.clone()).collect()
    }

    pub(super) fn was_told(&mut self, message: Message, effects: &mut Vec<Effect>) {
        let Message { receipt, kind, instances, deadline } = message;
        self.count(&format!("messages.{kind}"), 1);
        if !self.leader || self.head.is_none() {
            // It comes again, to whoever leads then and knows what may be done.
            return;
        }
        let acts = self.mode() != Mode::Observe && kind.takes_away() && !instances.is_empty();
        if !acts {
            effects.push(Effect::Acknowledge { receipt });
            return;
        }
        let (now, from) = (self.now, self.looks + 1);
        for instance in &instances {
            let why = kind.to_string();
            let leaving = Leaving { instance: instance.clone(), why, since: now, deadline };
            let away = self.away.entry(instance.clone()).or_insert(Away::new(leaving, from));
            // Of two deadlines the first counts.
            if let Some(deadline) = deadline {
                let before = away.leaving.deadline.unwrap_or(Timestamp::MAX);
                away.leaving.deadline = Some(deadline.min(before));
            }
        }
        self.messages.insert(receipt, instances.into_iter().collect());
        self.world_due = self.world_due.min(now);
    }

    /// Takes every machine that goes as far as it can be now.
    pub(super) fn advance_away(&mut self, effects: &mut Vec<Effect>) {
        let Some(world) = self.world.clone().filter(|_| self.leader) else { return };
        if self.away.is_empty() && self.messages.is_empty() {
            return;
        }
        let ids: Vec<InstanceId> = self.away.keys().cloned().collect();
        let replaced = self.is_replaced(&world);
        for id in ids {
            let Some(away) = self.away.get_mut(&id) else { continue };
            // Only a whole look may say that there is no such machine, or that it is not ours.
            let looked = self.world_no >= away.from && self.world_reads.failures == 0;
            let instance = world.instances.get(&id);
            let ours = instance.is_some_and(|i| i.is_ours(&world.cluster.name));
            let runs = instance.is_some_and(Instance::is_active);
            if looked && !(ours && runs) {
                if ours || away.phase != AwayPhase::Noted {
                    let why = away.leaving.why.clone();
                    self.count(&format!("terminations.{why}"), 1);
                }
                self.away.remove(&id);
                continue;
            }
            if ours && runs {
                away.act(&world, (self.now, replaced, looked), effects);
            }
        }
        self.acknowledge(effects);
    }

    /// Takes messages off the queue whose machines are cordoned, or are none of ours.
    fn acknowledge(&mut self, effects: &mut Vec<Effect>) {
        let open: BTreeSet<InstanceId> = self
            .away
            .values()
            .filter(|away| away.phase == AwayPhase::Noted)
            .map(|away| away.leaving.instance.clone())
            .collect();
        // What is known of them must outlive this process first.
        if !self.is_saved() {
            return;
        }
        self.messages.retain(|receipt, instances| {
            let dealt_with = instances.is_disjoint(&open);
            if dealt_with {
                effects.push(Effect::Acknowledge { receipt: receipt.clone() });
            }
            !dealt_with
        });
    }

    /// Returns whether a plan that counts without the machines that go needs nothing more, and all
    /// that was launched for it is there.
    fn is_replaced(&self, world: &Observed) -> bool {
        let planned = self.settled.as_ref().is_some_and(|known| *known == self.going());
        if !planned || self.lanes.values().any(|lane| lane.launching) {
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

    pub(super) fn was_cordoned(&mut self, instance: &InstanceId, end: &Result<(), PortError>) {
        if end.is_err() {
            self.count("errors.kubernetes", 1);
        } else if let Some(away) = self.away.get_mut(instance) {
            away.next(AwayPhase::Replacing);
            // Whatever came before the cordon is seen by a look that was begun after it.
            away.from = self.looks + 1;
        }
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

    pub(super) fn was_ended(&mut self, instance: &InstanceId, end: &Result<(), PortError>) {
        self.need = self.looks + 1;
        if end.is_err() {
            self.count("errors.ec2", 1);
            return;
        }
        self.unseen.end(instance, self.now);
        if let Some(away) = self.away.get_mut(instance) {
            away.next(AwayPhase::Ending);
        }
    }

    pub(super) fn was_acknowledged(&mut self, end: &Result<(), PortError>) {
        if end.is_ok() {
            self.count("messages.acknowledged", 1);
        } else {
            // It comes again by itself, and is dealt with at once then.
            self.count("errors.queue", 1);
        }
    }

    /// Notes which machines are not Ready, and has those go that are not for too long.
    ///
    /// Ages are counted from when this loop first saw them so, and in looks as well: clocks of EC2 and
    /// of this machine may be hours apart, and either may jump.
    pub(super) fn watch_health(&mut self, world: &Observed) {
        let now = self.now;
        let nodes = world.nodes.values().filter_map(|node| Some((node.instance.as_ref()?, node)));
        let nodes: BTreeMap<&InstanceId, &Node> = nodes.collect();
        let ours = |i: &&Instance| i.is_active() && i.is_ours(&world.cluster.name);
        let mut unwell: BTreeMap<InstanceId, Unwell> = BTreeMap::new();
        let mut sizes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let repair_after = self.head.as_ref().and_then(|head| head.controller.repair_after);
        let counts_after = repair_after.map_or(READY_WITHIN, |after| after.min(READY_WITHIN));
        self.joined.retain(|id| world.instances.contains_key(id));
        self.joined.extend(nodes.keys().map(|id| (*id).clone()));
        for instance in world.instances.values().filter(ours) {
            let node = nodes.get(&instance.id);
            let pool = instance.tags.get(tag::POOL).map_or("", String::as_str);
            let size = sizes.entry(pool).or_default();
            size.0 += 1;
            if node.is_some_and(|node| node.ready) {
                continue;
            }
            // One whose node was deleted is broken at most, like all that many things break at once.
            let joined = self.joined.contains(&instance.id);
            let before = self.unwell.get(&instance.id).filter(|before| before.joined == joined);
            let since = before.map_or(now, |before| before.since.min(now));
            let looks = before.map_or(0, |before| before.looks).saturating_add(1);
            let found = Unwell { since, looks, joined };
            size.1 += usize::from(joined && found.is_old(counts_after, now));
            unwell.insert(instance.id.clone(), found);
        }
        self.unwell = unwell;
        if !self.acts_on_health() {
            return;
        }
        for (id, found) in self.unwell.clone() {
            let pool = world.instances.get(&id).and_then(|i| i.tags.get(tag::POOL));
            let (all, bad) = pool.and_then(|p| sizes.get(p.as_str())).copied().unwrap_or((1, 1));
            // Many at once are broken by something that a new machine does not mend.
            let few = bad <= (all * BROKEN_PERCENT).div_ceil(100);
            if !found.joined && found.is_old(READY_WITHIN, now) {
                self.has_to_go(id, NEVER_READY);
            } else if found.joined
                && few
                && repair_after.is_some_and(|after| found.is_old(after, now))
            {
                self.has_to_go(id, NOT_READY);
            }
        }
    }

    fn acts_on_health(&self) -> bool {
        let suspended = self.kept.as_ref().is_none_or(|kept| kept.suspended.is_some());
        self.leader && self.mode() != Mode::Observe && !suspended
    }

    fn has_to_go(&mut self, instance: InstanceId, why: &str) {
        let busy = self.lanes.values().any(|lane| work_on(&lane.plan).any(|id| id == instance));
        if busy {
            return;
        }
        let leaving = Leaving {
            instance: instance.clone(),
            why: why.to_owned(),
            since: self.now,
            deadline: None,
        };
        let from = self.looks;
        self.away.entry(instance).or_insert(Away::new(leaving, from));
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

/// Returns the machines that a plan which is carried out removes.
fn work_on(plan: &crate::plan::Plan) -> impl Iterator<Item = InstanceId> {
    super::work::retired(plan).filter_map(super::work::instance)
}

impl Away {
    fn new(leaving: Leaving, from: u64) -> Self {
        Self { leaving, phase: AwayPhase::Noted, tried: None, draining: None, from }
    }

    fn next(&mut self, phase: AwayPhase) {
        self.phase = self.phase.max(phase);
        self.tried = None;
    }

    /// Returns whether it is time to try again.
    fn tries(&mut self, now: Timestamp) -> bool {
        let due = self.tried.is_none_or(|at| now >= later(at, BUSY_REFRESH));
        if due {
            self.tried = Some(now);
        }
        due
    }

    fn is_broken(&self) -> bool {
        self.leaving.why == NOT_READY || self.leaving.why == NEVER_READY
    }

    fn act(
        &mut self,
        world: &Observed,
        (now, replaced, looked): (Timestamp, bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        let id = self.leaving.instance.clone();
        let node = world.node_of(&id);
        // One that joined only now is cordoned, too; whoever else has cordoned it had a reason.
        if let Some(node) = node.filter(|node| !node.unschedulable)
            && self.phase != AwayPhase::Ending
        {
            if looked && self.tries(now) {
                effects.push(Effect::Cordon {
                    instance: id,
                    node: node.name.clone(),
                    uid: node.uid.clone(),
                    unschedulable: true,
                });
            }
            return;
        }
        match self.phase {
            AwayPhase::Noted => self.next(AwayPhase::Replacing),
            AwayPhase::Replacing => {
                let Leaving { since, deadline, .. } = &self.leaving;
                let latest = later(*since, REPLACE_WITHIN);
                let latest = deadline.map_or(latest, |at| earlier(at, DRAIN_LEAD).min(latest));
                if replaced || now >= latest {
                    self.next(AwayPhase::Draining);
                    self.draining = Some(now);
                }
            }
            AwayPhase::Draining => self.drain(world, (now, looked), effects),
            // Until it is seen to be gone it is told again.
            AwayPhase::Ending => self.end(now, effects),
        }
    }

    /// Has pods leave, and the machine end once none is left that a fresh look shows.
    fn drain(
        &mut self,
        world: &Observed,
        (now, looked): (Timestamp, bool),
        effects: &mut Vec<Effect>,
    ) {
        let node = world.node_of(&self.leaving.instance);
        let left: Vec<&Pod> =
            node.into_iter().flat_map(|node| view::movable(world, &node.name)).collect();
        let over = later(self.draining.unwrap_or(now), BROKEN_DRAIN);
        if left.is_empty() || (self.is_broken() && now >= over) {
            if looked {
                self.end(now, effects);
            }
            return;
        }
        let pods: Vec<Pod> =
            left.iter().filter(|pod| !pod.terminating).map(|pod| (*pod).clone()).collect();
        if !pods.is_empty() && self.tries(now) {
            effects.push(Effect::Evict { instance: self.leaving.instance.clone(), pods });
        }
    }

    /// Has the machine end.
    fn end(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.tries(now) {
            effects.push(Effect::End { instance: self.leaving.instance.clone() });
        }
    }
}
