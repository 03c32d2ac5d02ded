//! Nodes that stand cordoned by whoever died, or lost the lease, between the cordon and the end of a drain.
//!
//! Where the next plan has such a node go, its drain is taken up where it ended; where the plan keeps it, nothing else
//! would ever uncordon it. Invariants: only a node with our mark is touched; none that the plan has go, held back or
//! not, and none whose machine goes by itself; none while anything is carried out, nor over a world that was read in
//! part, nor one that somebody has cordoned, uncordoned or marked since the plan's look.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::Effect;
use super::kept::later;
use super::state::{Planning, State};
use super::status::{Status, Uncordoned};
use super::work::{instance, retired};
use crate::fleet::CordonedFor;
use crate::ids::{InstanceId, NodeName};
use crate::manifest::Mode;
use crate::plan::{Plan, StaleCordon, stale_cordons};
use crate::port::{CordonOutcome, PortError};

/// How long a node stays cordoned whose machine was to go by itself while nobody knows of it: its message comes again
/// by then, or was about a moment that is over.
const LEAVING_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// Between two tries for one node.
const TRY_AGAIN: SignedDuration = SignedDuration::from_mins(5);
/// Times that a node which no longer stands as it was seen is tried again at once.
const OUTDATED_MAX: u8 = 3;

/// What is known of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Uncordons {
    known: BTreeMap<InstanceId, Known>,
    under_way: BTreeMap<InstanceId, Begun>,
    /// Nodes that were uncordoned, the last first.
    done: Vec<Uncordoned>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    /// When a plan first kept it.
    since: Timestamp,
    /// When it may be tried, again or for the first time.
    again: Timestamp,
    /// Times that somebody had written it meanwhile, of those after which it was tried again at once.
    outdated: u8,
}

/// A node that is being uncordoned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Begun {
    node: NodeName,
    /// Whether it takes no pods, rather than having only our mark left on it.
    unschedulable: bool,
}

impl Uncordons {
    /// Returns whether nodes are being uncordoned: what is planned meanwhile would count without them.
    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Returns whether the node of a machine is being uncordoned.
    pub(super) fn is_under_way(&self, instance: &InstanceId) -> bool {
        self.under_way.contains_key(instance)
    }

    /// Returns the nodes that were uncordoned, the last first.
    pub(super) fn done(&self) -> &[Uncordoned] {
        &self.done
    }

    /// Notes that somebody had written a node since it was seen: it is tried again at once, but not for ever, since other
    /// work waits meanwhile.
    fn was_outdated(&mut self, instance: &InstanceId, now: Timestamp) {
        if let Some(known) = self.known.get_mut(instance)
            && known.outdated < OUTDATED_MAX
        {
            known.outdated += 1;
            known.again = now;
        }
    }

    /// Returns which of those that stand cordoned are to be uncordoned now.
    fn due<'w>(&mut self, stale: Vec<StaleCordon<'w>>, now: Timestamp) -> Vec<StaleCordon<'w>> {
        let there: BTreeSet<&InstanceId> = stale.iter().map(|cordon| cordon.instance).collect();
        self.known.retain(|id, _| there.contains(id));
        let mut is_due = |cordon: &StaleCordon<'_>| {
            let known = self.known.entry(cordon.instance.clone());
            let known = known.or_insert(Known { since: now, again: now, outdated: 0 });
            // A clock that was set back is no reason to wait for longer.
            known.since = known.since.min(now);
            known.again = known.again.min(later(now, TRY_AGAIN));
            let first = match cordon.mark {
                CordonedFor::Leaving if cordon.node.unschedulable => {
                    later(known.since, LEAVING_WITHIN)
                }
                CordonedFor::Leaving | CordonedFor::Drain => known.since,
            };
            let due = now >= first && now >= known.again;
            if due {
                known.again = later(now, TRY_AGAIN);
            }
            due
        };
        stale.into_iter().filter(|cordon| is_due(cordon)).collect()
    }
}

impl State {
    /// Uncordons nodes that stand cordoned though `plan` keeps them; returns whether any is being: it is planned again
    /// once they take pods.
    pub(super) fn uncordon_stale(
        &mut self,
        planning: &Planning,
        plan: &Plan,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let begins = self.kept.as_ref().is_some_and(|kept| kept.suspended.is_none());
        let certain = self.world_reads.failures == 0 && !plan.errored;
        let whole = planning.whole && !planning.limits.running && self.lanes.is_empty();
        if !(self.may_act() && !self.stopping && begins && certain && whole) {
            return false;
        }
        // Where nothing may be removed, no plan has a node go.
        let removes = self.mode() == Mode::Full;
        let goes = retired(plan).filter(|_| removes).filter_map(instance);
        let goes = goes.chain(self.going()).collect();
        let mut stale = stale_cordons(plan, &planning.world, &goes);
        stale.retain(|cordon| cordon.ours);
        for StaleCordon { instance, node, .. } in self.uncordons.due(stale, self.now) {
            let (name, unschedulable) = (node.name.clone(), node.unschedulable);
            self.uncordons.under_way.insert(instance.clone(), Begun { node: name, unschedulable });
            let (instance, node) = (instance.clone(), Box::new(node.clone()));
            effects.push(Effect::Cordon { instance, node, mark: None });
        }
        self.uncordons.are_under_way()
    }

    /// Notes how it ended, where the node of `instance` was being uncordoned because it stood so; returns whether it
    /// was.
    pub(super) fn was_uncordoned(
        &mut self,
        instance: &InstanceId,
        end: &Result<CordonOutcome, PortError>,
    ) -> bool {
        let Some(Begun { node, unschedulable }) = self.uncordons.under_way.remove(instance) else {
            return false;
        };
        match end {
            Ok(CordonOutcome::Written) if unschedulable => {
                self.count("nodes.uncordoned", 1);
                let done = Uncordoned { node, instance: instance.clone(), at: self.now };
                self.uncordons.done.insert(0, done);
                self.uncordons.done.truncate(Status::UNCORDONED_MAX);
            }
            // What is seen then tells whether it is still to be.
            Ok(CordonOutcome::Outdated) => self.uncordons.was_outdated(instance, self.now),
            Ok(CordonOutcome::Written) | Err(_) => {}
        }
        if end.is_ok() {
            // What was seen before shows it as it was.
            self.need = self.looks + 1;
        }
        self.replan_at = self.now;
        true
    }
}

#[cfg(test)]
mod tests;
