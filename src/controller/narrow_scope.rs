//! Narrows the scope of a plan to exclude its blocked changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::event::PlanScope;
use super::planning::PlanningInput;
use super::reconcile::retired_rows;
use super::state::ControllerState;
use super::status::BlockedReason;
use crate::apply::is_pending;
use crate::model::ids::{Address, NodeName};
use crate::plan::Plan;
use crate::plan::wire::ResourceChange;

impl ControllerState {
    /// Notes that no part of a group that exceeds the removal budget can be planned. The group then
    /// is applied alone, because otherwise it could never be.
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
    pub(super) fn may_start_in_part(
        &self,
        blocked: &[(Address, BlockedReason)],
        input: &PlanningInput,
    ) -> bool {
        input.world.pods.iter().any(|pod| is_pending(pod))
            || blocked.iter().any(|(_, reason)| {
                *reason == BlockedReason::PodsMissing || unused_removals(reason, self.now).is_some()
            })
    }
}

/// Returns a scope without the blocked changes, or `None` if `scope` already excludes them.
pub(super) fn narrowed_scope(
    plan: &Plan,
    limits: &PlanScope,
    blocked: &[(Address, BlockedReason)],
    now: Timestamp,
) -> Option<PlanScope> {
    let rows: BTreeMap<&Address, &ResourceChange> =
        plan.resource_changes.iter().map(|row| (&row.address, row)).collect();
    let lasting: BTreeSet<&Address> = blocked
        .iter()
        .filter(|(_, reason)| reason.delays_removal_for_long(now))
        .map(|(address, _)| address)
        .collect();
    let addresses: BTreeSet<&Address> = blocked.iter().map(|(address, _)| address).collect();
    let has_node =
        |address: &Address| rows.get(address).is_some_and(|row| row.change.before.is_some());
    let mut next = limits.clone();
    // Among existing nodes, only those that may be removed now stay changeable. Otherwise the next
    // plan would choose other nodes instead.
    if addresses.iter().any(|address| has_node(address)) {
        let mut removable: BTreeSet<NodeName> = retired_rows(plan)
            .filter(|row| !addresses.contains(&row.address))
            .filter_map(node_name)
            .collect();
        if removable.is_empty() {
            removable = part_of_large_group(plan, blocked, now).filter_map(node_name).collect();
        }
        next.changeable_nodes = Some(match &limits.changeable_nodes {
            Some(changeable) => &removable & changeable,
            None => removable,
        });
    }
    let replacements = replacement_rows(plan, &lasting);
    let launches = addresses
        .into_iter()
        .filter(|address| !has_node(address) && !replacements.contains(address));
    next.excluded_addresses.extend(launches.cloned());
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
    let large: BTreeMap<Address, u32> = blocked
        .iter()
        .filter_map(|(address, reason)| Some((address.clone(), unused_removals(reason, now)?)))
        .collect();
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
fn replacement_rows<'p>(plan: &'p Plan, lasting: &BTreeSet<&Address>) -> BTreeSet<&'p Address> {
    let explained = plan.capacity.explain.iter();
    let groups: BTreeMap<&Address, &str> =
        explained.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect();
    let blocked_groups: BTreeSet<&str> =
        lasting.iter().filter_map(|address| groups.get(address).copied()).collect();
    groups
        .into_iter()
        .filter(|(_, group)| blocked_groups.contains(group))
        .map(|(address, _)| address)
        .collect()
}

fn node_name(row: &ResourceChange) -> Option<NodeName> {
    row.change.before.as_ref()?.name_or_instance_id()
}
