//! Nodes left cordoned by a process that died or lost the lease between the cordon and the end of a
//! drain.
//!
//! If the next plan removes such a node, its drain continues; if the plan keeps it, nothing else
//! would ever uncordon it. Invariants: only a node with our mark is touched. Excluded are nodes
//! that the plan removes, blocked or not, and nodes of interrupted instances. Nothing is uncordoned
//! during an apply or from a partial observation, nor if another client has cordoned, uncordoned or
//! marked the node since the observation of the plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::counters::Counter;
use super::event::Effect;
use super::planning::PlanningRun;
use super::reconcile::{instance_of, retired_rows};
use super::state::ControllerState;
use super::status::{Status, UncordonedNode};
use crate::apply::ports::{CordonOutcome, PortError};
use crate::model::desired::Mode;
use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{CordonReason, Observed};
use crate::model::saturating_time::later;
use crate::plan::wire::ResourceChange;
use crate::plan::{Plan, StaleCordon, stale_cordons};

/// An interruption cordon of an unknown interruption stays this long: by then its message returns,
/// or its deadline has passed.
const INTERRUPTION_CORDON_FOR: SignedDuration = SignedDuration::from_mins(10);
/// A drain whose termination grace period has begun waits this long for a plan that continues it.
const CONTINUED_DRAIN_WAITS: SignedDuration = SignedDuration::from_hours(1);
/// Interval between two attempts for one node.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// Number of immediate retries for a node that changed since it was observed.
const CONFLICT_RETRIES_MAX: u8 = 3;

/// Stale cordons, and the uncordons in progress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct UncordonTracker {
    stale: BTreeMap<InstanceId, StaleNode>,
    in_progress: BTreeMap<InstanceId, UncordonInProgress>,
    /// Uncordoned nodes, the latest first.
    done: Vec<UncordonedNode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StaleNode {
    /// Time at which a plan first kept the node.
    since: Timestamp,
    /// Time of the next attempt.
    retry_at: Timestamp,
    /// Number of conflicting writes that were followed by an immediate retry.
    conflicts: u8,
}

/// A node that is being uncordoned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UncordonInProgress {
    node: NodeName,
    /// True if the node is cordoned; false if only our mark is left on it.
    unschedulable: bool,
}

impl UncordonTracker {
    /// Returns whether nodes are being uncordoned: a plan made meanwhile would not count them.
    pub(super) fn has_in_progress(&self) -> bool {
        !self.in_progress.is_empty()
    }

    /// Returns whether the node of an instance is being uncordoned.
    pub(super) fn is_in_progress(&self, instance: &InstanceId) -> bool {
        self.in_progress.contains_key(instance)
    }

    /// Returns the uncordoned nodes, the latest first.
    pub(super) fn done(&self) -> &[UncordonedNode] {
        &self.done
    }

    /// Makes a node that another client wrote due at once. The number of such retries is bounded,
    /// since other work waits meanwhile.
    fn retry_after_conflict(&mut self, instance: &InstanceId, now: Timestamp) {
        if let Some(node_state) = self.stale.get_mut(instance)
            && node_state.conflicts < CONFLICT_RETRIES_MAX
        {
            node_state.conflicts += 1;
            node_state.retry_at = now;
        }
    }

    /// Returns the stale cordons to remove now.
    fn due<'w>(&mut self, stale: Vec<StaleCordon<'w>>, now: Timestamp) -> Vec<StaleCordon<'w>> {
        let there: BTreeSet<&InstanceId> = stale.iter().map(|cordon| cordon.instance).collect();
        self.stale.retain(|id, _| there.contains(id));
        let mut is_due = |cordon: &StaleCordon<'_>| {
            let node_state = self.stale.entry(cordon.instance.clone());
            let node_state =
                node_state.or_insert(StaleNode { since: now, retry_at: now, conflicts: 0 });
            // A clock that was set back must not extend the wait.
            node_state.since = node_state.since.min(now);
            node_state.retry_at = node_state.retry_at.min(later(now, RETRY_INTERVAL));
            let first = match cordon.mark {
                CordonReason::Interruption if cordon.node.unschedulable => {
                    later(node_state.since, INTERRUPTION_CORDON_FOR)
                }
                CordonReason::Drain if cordon.may_continue => {
                    later(node_state.since, CONTINUED_DRAIN_WAITS)
                }
                CordonReason::Interruption | CordonReason::Drain => node_state.since,
            };
            let due = now >= first && now >= node_state.retry_at;
            if due {
                node_state.retry_at = later(now, RETRY_INTERVAL);
            }
            due
        };
        stale.into_iter().filter(|cordon| is_due(cordon)).collect()
    }
}

/// Returns true if the drain of the row should have ended by force long ago. Something blocks it, such
/// as a missing approval.
fn is_overdue(row: &ResourceChange, world: &Observed, now: Timestamp) -> bool {
    let end = || {
        let node = row.change.before.as_ref()?.node.as_ref()?;
        let began = world.nodes.get(node)?.grace_period_began_at()?;
        let period = i64::try_from(row.change.termination_grace_seconds?).ok()?;
        Some(later(later(began, SignedDuration::from_secs(period)), CONTINUED_DRAIN_WAITS))
    };
    end().is_some_and(|end| now > end)
}

impl ControllerState {
    /// Uncordons nodes that `plan` keeps although they are cordoned. Returns whether any uncordon
    /// is in progress: planning resumes once they accept pods.
    pub(super) fn uncordon_stale(
        &mut self,
        planning: &PlanningRun,
        plan: &Plan,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let accepts_changes =
            self.persistence.loaded.as_ref().is_some_and(|persisted| persisted.suspended.is_none());
        let certain = !self.observation.reads.has_failed() && !plan.errored;
        let is_quiescent =
            planning.is_published && !planning.scope.running_pods_only && self.applies.is_empty();
        // In observe-only mode, only what began before is reverted.
        let observes = self.mode() == Mode::Observe;
        if !(self.leadership.is_leader()
            && !self.leadership.is_stopping()
            && accepts_changes
            && certain
            && is_quiescent)
        {
            return false;
        }
        // Without permission to remove, no plan removes a node.
        let removes = self.mode() == Mode::Full;
        let world = &planning.input.world;
        let removed = retired_rows(plan).filter(|row| removes && !is_overdue(row, world, self.now));
        let removed = removed.filter_map(instance_of);
        let removed = removed.chain(self.interruptions.instances()).collect();
        let mut stale = stale_cordons(plan, world, &removed);
        stale.retain(|cordon| {
            let may_revert = !observes || cordon.node.grace_period_began_at().is_some();
            cordon.is_ours && may_revert
        });
        for StaleCordon { instance, node, .. } in self.interruptions.uncordons.due(stale, self.now)
        {
            let (name, unschedulable) = (node.name.clone(), node.unschedulable);
            self.interruptions
                .uncordons
                .in_progress
                .insert(instance.clone(), UncordonInProgress { node: name, unschedulable });
            let (instance, node) = (instance.clone(), Box::new(node.clone()));
            effects.push(Effect::Uncordon { instance, node });
        }
        self.interruptions.uncordons.has_in_progress()
    }

    /// Records the end of a stale-cordon removal; returns whether one was in progress for
    /// `instance`.
    pub(super) fn finish_stale_uncordon(
        &mut self,
        instance: &InstanceId,
        end: &Result<CordonOutcome, PortError>,
    ) -> bool {
        let Some(UncordonInProgress { node, unschedulable }) =
            self.interruptions.uncordons.in_progress.remove(instance)
        else {
            return false;
        };
        match end {
            Ok(CordonOutcome::Written) if unschedulable => {
                self.counters.count(Counter::NodesUncordoned);
                let done = UncordonedNode { node, instance: instance.clone(), at: self.now };
                self.interruptions.uncordons.done.insert(0, done);
                self.interruptions.uncordons.done.truncate(Status::UNCORDONED_MAX);
            }
            // The next observation shows whether the cordon is still stale.
            Ok(CordonOutcome::Outdated) => {
                self.interruptions.uncordons.retry_after_conflict(instance, self.now);
            }
            Ok(CordonOutcome::Written) | Err(_) => {}
        }
        if end.is_ok() {
            // Earlier observations still show the cordon.
            self.observation.require_next();
        }
        self.planning.replan_at = self.now;
        true
    }
}

#[cfg(test)]
mod tests;
