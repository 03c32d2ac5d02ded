//! Nodes that were left cordoned by whoever died, or lost the lease, between the cordon and the end of a drain.
//!
//! Where the next plan has such a node go, its drain is taken up where it was left; where the plan keeps it, nothing
//! else would ever uncordon it. Invariants: only a node with our mark is touched; none that the plan has go, held back
//! or not, and none whose machine goes by itself; none while anything is carried out, nor over a world that was read
//! in part.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::Effect;
use super::kept::later;
use super::state::{Planning, State};
use super::status::{Lifted, Status};
use super::work::{instance, retired};
use crate::fleet::{CordonedFor, Node, Observed};
use crate::ids::{InstanceId, NodeName};
use crate::manifest::Mode;
use crate::plan::Plan;
use crate::port::PortError;

/// How long a node stays cordoned whose machine was to go by itself while nobody knows of it: its message comes again
/// by then, or was about a moment that is over.
const LEAVING_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// Between two tries for one node.
const TRY_AGAIN: SignedDuration = SignedDuration::from_mins(5);

/// What is known of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Left {
    known: BTreeMap<InstanceId, Known>,
    /// Nodes that are being uncordoned.
    opening: BTreeMap<InstanceId, NodeName>,
    /// Those that were, the last first.
    lifted: Vec<Lifted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    /// When a plan first kept it.
    since: Timestamp,
    /// When it may be tried, again or for the first time.
    again: Timestamp,
}

impl Left {
    /// Returns whether nodes are being uncordoned: what is planned meanwhile would count without them.
    pub(super) fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// Returns the nodes that were uncordoned, the last first.
    pub(super) fn lifted(&self) -> &[Lifted] {
        &self.lifted
    }

    /// Returns which of the nodes that are left are to be uncordoned now.
    fn due<'w>(
        &mut self,
        left: BTreeMap<&'w InstanceId, &'w Node>,
        now: Timestamp,
    ) -> Vec<(&'w InstanceId, &'w Node)> {
        self.known.retain(|id, _| left.contains_key(id));
        let mut is_due = |id: &InstanceId, mark| {
            let known = self.known.entry(id.clone()).or_insert(Known { since: now, again: now });
            // A clock that was set back is no reason to wait for longer.
            known.since = known.since.min(now);
            known.again = known.again.min(later(now, TRY_AGAIN));
            let first = match mark {
                CordonedFor::Drain => known.since,
                CordonedFor::Leaving => later(known.since, LEAVING_WITHIN),
            };
            let due = now >= first && now >= known.again;
            if due {
                known.again = later(now, TRY_AGAIN);
            }
            due
        };
        let marked = |(_, node): &(&InstanceId, &Node)| node.cordoned_for();
        left.into_iter().filter(|of| marked(of).is_some_and(|mark| is_due(of.0, mark))).collect()
    }
}

impl State {
    /// Uncordons nodes that were left so and that `plan` keeps; returns whether any is being: it is planned again once
    /// they take pods.
    pub(super) fn reopens(
        &mut self,
        planning: &Planning,
        plan: &Plan,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let begins = self.kept.as_ref().is_some_and(|kept| kept.suspended.is_none());
        let certain = self.world_reads.failures == 0 && !plan.errored;
        let whole = planning.limits.is_none() && self.lanes.is_empty();
        if !(self.may_act() && !self.stopping && begins && certain && whole) {
            return false;
        }
        // Where nothing may be removed, no plan has a node go.
        let removes = self.mode() == Mode::Full;
        let goes = retired(plan).filter(|_| removes).filter_map(instance).collect();
        for (instance, node) in self.left.due(left(&planning.world, &goes), self.now) {
            self.left.opening.insert(instance.clone(), node.name.clone());
            effects.push(Effect::Cordon {
                instance: instance.clone(),
                node: node.name.clone(),
                uid: node.uid.clone(),
                unschedulable: false,
            });
        }
        self.left.is_opening()
    }

    /// Notes how it ended, where the node of `instance` was being uncordoned because it was left so.
    pub(super) fn was_reopened(&mut self, instance: &InstanceId, end: &Result<(), PortError>) {
        let Some(node) = self.left.opening.remove(instance) else { return };
        if end.is_ok() {
            self.count("cordons.lifted", 1);
            self.left.lifted.insert(0, Lifted { node, instance: instance.clone(), at: self.now });
            self.left.lifted.truncate(Status::LIFTED_MAX);
            // What was seen before shows it cordoned.
            self.need = self.looks + 1;
        }
        self.replan_at = self.now;
    }
}

/// Returns the nodes that carry our mark and do not go, by machine. One that somebody else has uncordoned is among
/// them: with our mark on it a later cordon of theirs would look like one of ours.
fn left<'w>(
    world: &'w Observed,
    goes: &BTreeSet<InstanceId>,
) -> BTreeMap<&'w InstanceId, &'w Node> {
    let found = world.nodes.values().filter_map(|node| {
        node.cordoned_for()?;
        let instance = world.instances.get(node.instance.as_ref()?)?;
        let ours = instance.is_ours(&world.cluster.name) || instance.group.is_some();
        let stays = instance.is_active() && !goes.contains(&instance.id);
        (ours && stays).then_some((&instance.id, node))
    });
    found.collect()
}

#[cfg(test)]
mod tests;
