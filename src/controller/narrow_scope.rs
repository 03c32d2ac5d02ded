//! Narrows the scope of a plan to exclude its blocked changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::PlanScope;
use super::persisted_state::later;
use super::planning::PlanningInput;
use super::planning_snapshot;
use super::reconcile::retired_rows;
use super::state::ControllerState;
use super::status::BlockedReason;
use crate::model::ids::{Address, NodeName};
use crate::plan::Plan;
use crate::plan::wire::ResourceChange;

/// Blocks that end within this time are waited for.
const SHORT_WAIT_MAX: SignedDuration = SignedDuration::from_mins(1);

impl ControllerState {
    /// Notes that no part of a group that exceeds the removal budget can be planned. The group then
    /// goes alone, because otherwise it could never go.
    pub(super) fn note_inseparable_group(&mut self) {
        let current = self.planning.current.as_ref();
        let blocked = current.into_iter().flat_map(|current| current.blocked.values());
        let has_large_group =
            blocked.into_iter().any(|by| unused_removals(&by.reason, self.now).is_some());
        let digest = self.planning.current_digest().filter(|_| has_large_group).cloned();
        if digest.is_some() && digest != self.planning.inseparable {
            self.planning.inseparable = digest;
            self.planning.replan_at = self.now;
        }
    }

    /// Returns true if a plan without the blocked changes may start: pods are pending, pods of
    /// launches are missing, or a part of a large group fits the removal budget.
    pub(super) fn may_go_in_part(
        &self,
        held: &[(Address, BlockedReason)],
        input: &PlanningInput,
    ) -> bool {
        input.world.pods.iter().any(|pod| planning_snapshot::is_pending(pod))
            || held.iter().any(|(_, reason)| {
                *reason == BlockedReason::PodsMissing || unused_removals(reason, self.now).is_some()
            })
    }
}

/// Returns a scope without the blocked changes, or `None` if `scope` already excludes them.
pub(super) fn narrowed_scope(
    plan: &Plan,
    limits: &PlanScope,
    held: &[(Address, BlockedReason)],
    now: Timestamp,
) -> Option<PlanScope> {
    let rows: BTreeMap<&Address, &ResourceChange> =
        plan.resource_changes.iter().map(|row| (&row.address, row)).collect();
    let blocked = held;
    let for_good: BTreeSet<&Address> =
        held.iter().filter(|(_, held)| is_lasting(held, now)).map(|(address, _)| address).collect();
    let held: BTreeSet<&Address> = held.iter().map(|(address, _)| address).collect();
    let stands =
        |address: &Address| rows.get(address).is_some_and(|row| row.change.before.is_some());
    let mut next = limits.clone();
    // Among existing nodes, only those that may be removed now stay changeable. Otherwise the next
    // plan would choose other nodes instead.
    if held.iter().any(|address| stands(address)) {
        let free = retired_rows(plan).filter(|row| !held.contains(&row.address));
        let mut free: BTreeSet<NodeName> = free.filter_map(node_name).collect();
        if free.is_empty() {
            free = part_of_large_group(plan, blocked, now).filter_map(node_name).collect();
        }
        next.changeable_nodes = Some(match &limits.changeable_nodes {
            Some(only) => free.intersection(only).cloned().collect(),
            None => free,
        });
    }
    let replaces = replacement_rows(plan, &for_good);
    let coming = held.into_iter().filter(|address| !stands(address) && !replaces.contains(address));
    next.excluded_addresses.extend(coming.cloned());
    next.excluded_addresses.sort();
    next.excluded_addresses.dedup();
    (next != *limits).then_some(next)
}

/// Returns the removals of a group that exceeds the unused removal budget, as many as the budget
/// allows. The next plan may replace these nodes alone.
fn part_of_large_group<'p>(
    plan: &'p Plan,
    blocked: &[(Address, BlockedReason)],
    now: Timestamp,
) -> impl Iterator<Item = &'p ResourceChange> {
    let large = blocked.iter().filter_map(|(address, reason)| {
        unused_removals(reason, now).map(|most| (address.clone(), most))
    });
    let large: BTreeMap<Address, u32> = large.collect();
    let most = large.values().max().copied().unwrap_or(0);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    retired_rows(plan).filter(move |row| large.contains_key(&row.address)).take(most)
}

/// Returns the limit if `reason` is a removal budget that is unused.
fn unused_removals(reason: &BlockedReason, now: Timestamp) -> Option<u32> {
    let BlockedReason::RemovalBudget { most, next, .. } = reason else { return None };
    (*next <= now && *most > 0).then_some(*most)
}

/// Returns the rows of change groups with a lasting block. A replacement of a node that stays is
/// not launched; other launches at the same address serve pending pods.
fn replacement_rows<'p>(plan: &'p Plan, for_good: &BTreeSet<&Address>) -> BTreeSet<&'p Address> {
    let explained = plan.capacity.explain.iter();
    let groups: BTreeMap<&Address, &str> =
        explained.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect();
    let stay: BTreeSet<&str> = for_good.iter().filter_map(|of| groups.get(of).copied()).collect();
    groups
        .into_iter()
        .filter(|(_, group)| stay.contains(group))
        .map(|(address, _)| address)
        .collect()
}

/// Returns true if a removal may stay blocked for hours or until an operator acts. Short blocks are
/// waited for, so that nothing is launched that the removal would make unnecessary.
fn is_lasting(held: &BlockedReason, now: Timestamp) -> bool {
    match held {
        BlockedReason::Mode { .. }
        | BlockedReason::NotConfirmed { .. }
        | BlockedReason::Breaker { .. }
        | BlockedReason::MassUnready { .. }
        | BlockedReason::MassRemoval { .. }
        | BlockedReason::UnexplainedRemoval { .. }
        | BlockedReason::RemovalBudget { .. } => true,
        BlockedReason::Settling { until }
        | BlockedReason::ConsolidateAfter { until }
        | BlockedReason::BackingOff { until } => *until > later(now, SHORT_WAIT_MAX),
        BlockedReason::NotLeader
        | BlockedReason::Suspended { .. }
        | BlockedReason::NotApplyable { .. }
        | BlockedReason::OutsideWindow { .. }
        | BlockedReason::NotApproved { .. }
        | BlockedReason::LaunchBudget { .. }
        | BlockedReason::PodsArriving { .. }
        | BlockedReason::PodsMissing
        | BlockedReason::Quarantined { .. }
        | BlockedReason::GroupBlocked { .. }
        | BlockedReason::LaunchInDoubt { .. }
        | BlockedReason::InProgress => false,
    }
}

/// Returns the node name of a row: the instance id while no node has joined.
fn node_name(row: &ResourceChange) -> Option<NodeName> {
    let before = row.change.before.as_ref()?;
    let of_instance = || before.instance_id.as_ref().map(|id| NodeName::from(id.as_str()));
    before.node.clone().or_else(of_instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_blocks_are_planned_around() {
        let now: Timestamp = "2026-11-01T10:00:00Z".parse().expect("a moment");
        for (minutes, expected) in [(0, false), (1, false), (2, true), (600, true)] {
            let until = later(now, SignedDuration::from_mins(minutes));
            let waits = [
                BlockedReason::Settling { until },
                BlockedReason::ConsolidateAfter { until },
                BlockedReason::BackingOff { until },
            ];
            for held in waits {
                assert_eq!(is_lasting(&held, now), expected, "{held:?}");
            }
        }
        assert!(is_lasting(&BlockedReason::MassUnready { unready: 3, nodes: 4 }, now));
        assert!(!is_lasting(&BlockedReason::InProgress, now));
    }
}
