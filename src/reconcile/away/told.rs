//! What is said of machines: whose they are, and which of them go because of it.
//!
//! Invariant: what is not ours, or not known, is never touched, and its message is taken off all the same.

use std::collections::BTreeSet;

use super::course::NEAR;
use crate::fleet::Instance;
use crate::ids::InstanceId;
use crate::plan::is_managed_member;
use crate::port::{CordonOutcome, PortError};
use crate::reconcile::event::Effect;
use crate::reconcile::kept::{Leaving, later};
use crate::reconcile::mail::MESSAGES_MAX;
use crate::reconcile::message::Message;
use crate::reconcile::state::{BUSY_REFRESH, State};

/// Whose a machine is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Ours, and it runs.
    Ours,
    /// Of a group that we manage, and it runs.
    Members,
    /// Not ours, or on its way out already.
    Nobodys,
    /// The last look does not tell.
    Unknown,
}

impl State {
    pub(in crate::reconcile) fn was_told(&mut self, message: Message, effects: &mut Vec<Effect>) {
        if self.lent && !self.leader {
            self.shield(&message, effects);
            return;
        }
        let Message { receipt, kind, instances, deadline, sent } = message;
        self.count(&format!("messages.{kind}"), 1);
        if let Some(sent) = sent {
            self.times("message", kind.as_str(), sent);
        }
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
            let whose = self.whose(&instance);
            let member = whose == Whose::Members;
            let leaving = Leaving { instance: instance.clone(), why, since, deadline, member };
            match whose {
                Whose::Nobodys => continue,
                // Its group replaces it once it is gone, and nobody knows when that is.
                Whose::Members if !kind.takes_away() || !leaving.is_ahead() => continue,
                Whose::Ours | Whose::Members if kind.takes_away() => {
                    self.goes(leaving, self.world_no);
                }
                Whose::Ours | Whose::Members | Whose::Unknown => self.asks_for(leaving),
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
        let Message { kind, instances, deadline, receipt: _, sent: _ } = message;
        let soon = deadline.is_some_and(|at| at <= later(self.now, NEAR));
        let goes = kind.takes_away() && soon;
        let ours = |id: &&InstanceId| matches!(self.whose(id), Whose::Ours | Whose::Members);
        let ours = instances.iter().filter(|id| goes && ours(id));
        for node in ours.filter_map(|id| world.node_of(id)).filter(|node| !node.unschedulable) {
            effects.push(Effect::Shield { node: Box::new(node.clone()) });
        }
    }

    pub(in crate::reconcile) fn was_shielded(&mut self, end: &Result<CordonOutcome, PortError>) {
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
            Some((_, found)) if found.is_active() && found.group.is_some() => {
                self.whose_member(found)
            }
            Some(_) => Whose::Nobodys,
            None => Whose::Unknown,
        }
    }

    /// Returns whose a member of a group is: plans know which groups we manage.
    fn whose_member(&self, found: &Instance) -> Whose {
        let plan = self.current.as_ref().map(|current| &current.plan);
        match plan {
            Some(plan) if is_managed_member(plan, found) => Whose::Members,
            _ if self.is_member(&found.id) => Whose::Members,
            Some(_) => Whose::Nobodys,
            None => Whose::Unknown,
        }
    }

    /// Returns whether a machine that goes is a member of a group that we manage: it was when it was told to go, and the
    /// last plan of everything does not say that it is left to others by now.
    pub(in crate::reconcile) fn is_member(&self, instance: &InstanceId) -> bool {
        let member = self.away.get(instance).is_some_and(|away| away.leaving.member);
        let of_others = self.current.as_ref().map(|current| &current.of_others);
        member && !of_others.is_some_and(|of_others| of_others.contains(instance))
    }

    /// Has the next look tell whose a machine is. Many are told by one look.
    fn asks_for(&mut self, leaving: Leaving) {
        self.mail.strange(leaving, self.looks + 1);
        let soonest = later(self.looked_at, BUSY_REFRESH).max(self.now);
        self.world_due = self.world_due.min(soonest);
    }

    /// Has those machines go of which a whole look now tells that they are ours.
    pub(in crate::reconcile) fn meet_strangers(&mut self) {
        for leaving in self.mail.told_by(self.world_no) {
            let whose = self.whose(&leaving.instance);
            let leaving = Leaving { member: whose == Whose::Members, ..leaving };
            match whose {
                Whose::Members if leaving.is_ahead() && !leaving.is_hint() => {
                    self.goes(leaving, self.world_no);
                }
                Whose::Ours if !leaving.is_hint() => self.goes(leaving, self.world_no),
                // EC2 shows late what was launched.
                Whose::Unknown if self.may_come(&leaving) => self.asks_for(leaving),
                // Another message has it go, and is not dealt with by this one.
                Whose::Ours | Whose::Members | Whose::Nobodys | Whose::Unknown
                    if self.away.contains_key(&leaving.instance) => {}
                // What still runs after it was said to end was not to end, or runs again.
                Whose::Ours | Whose::Members | Whose::Nobodys | Whose::Unknown => {
                    self.mail.dealt_with(&leaving.instance);
                }
            }
        }
    }

    /// Returns whether a machine that goes and is not shown may be one that was launched lately, or asked for by whoever
    /// heard of no answer.
    fn may_come(&self, leaving: &Leaving) -> bool {
        let unheard = self.kept.as_ref().is_some_and(|kept| !kept.asked.is_empty());
        let unplanned = || {
            let found = self.world.as_ref().and_then(|w| w.instances.get(&leaving.instance));
            self.current.is_none() && found.is_some_and(|found| found.group.is_some())
        };
        !leaving.is_hint() && (unheard || unplanned() || self.unseen.awaits(&leaving.instance))
    }
}
