//! Remaining launch and removal budgets while the gates decide on one change group after another.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::change_group::ChangeGroup;
use super::empty_nodes::removals_without_pods;
use super::{GateContext, approval_by_digest};
use crate::controller::mass_removal::removals_at_once;
use crate::controller::persisted_state::{LAUNCHES_MAX, PersistedState};
use crate::model::desired::RateLimit;
use crate::model::ids::InstanceId;
use crate::plan::Plan;

/// Remaining budgets.
pub(super) struct BudgetRoom {
    launches: u32,
    is_launch_budget_unused: bool,
    /// Time of the next possible launch.
    pub(super) next_launch: Timestamp,
    removals: u32,
    /// Removed instances that the removal budget does not count.
    uncounted: BTreeSet<InstanceId>,
    /// True if a group larger than the whole budget may go alone.
    may_exceed_removals: bool,
    /// Time of the next possible removal.
    pub(super) next_removal: Timestamp,
    /// Nodes with pods that this plan may still remove without replacement.
    at_once: u32,
}

impl BudgetRoom {
    pub(super) fn new(plan: &Plan, context: &GateContext<'_>, now: Timestamp) -> Self {
        let settings = &context.revision.controller;
        // Older launches are not remembered individually, so some would count twice.
        let most = u32::try_from(LAUNCHES_MAX).unwrap_or(u32::MAX);
        let of = |rate: RateLimit| rate.limit_for(context.nodes);
        let (launches_max, removals_max) = (of(settings.launches).min(most), of(settings.removals));
        let unanswered = std::iter::repeat_n(now, context.unanswered_requests);
        let launch_times = context.persisted.launch_times().chain(unanswered);
        let removal_times = context.persisted.removal_times();
        let (launches, next_launch) =
            PersistedState::budget_room(launch_times, launches_max, settings.launches.window, now);
        let (removals, next_removal) =
            PersistedState::budget_room(removal_times, removals_max, settings.removals.window, now);
        // A plan removes at most as many instances as are remembered individually.
        let removals = removals.min(context.persisted.pending_removal_room());
        let is_approved = approval_by_digest(plan, context.persisted).is_some();
        let at_once = if is_approved { u32::MAX } else { removals_at_once(context) };
        Self {
            launches,
            is_launch_budget_unused: launches == launches_max && launches_max > 0,
            next_launch,
            removals,
            uncounted: removals_without_pods(plan, context),
            may_exceed_removals: removals == removals_max
                && removals_max > 0
                && context.inseparable == Some(&plan.capacity.digest),
            next_removal,
            at_once,
        }
    }

    pub(super) fn unlimited(now: Timestamp) -> Self {
        Self {
            launches: u32::MAX,
            is_launch_budget_unused: true,
            next_launch: now,
            removals: u32::MAX,
            uncounted: BTreeSet::new(),
            may_exceed_removals: true,
            next_removal: now,
            at_once: u32::MAX,
        }
    }

    /// Returns true if the budget covers a group. A group larger than the whole budget may go alone
    /// while the budget is unused, because pods wait for it.
    pub(super) fn launches(&self, group: &ChangeGroup<'_>) -> bool {
        group.launches <= self.launches || (self.is_launch_budget_unused && group.rows.len() > 1)
    }

    /// Returns true if the budget covers a group. The next plan replaces a part of a group that is
    /// larger than the whole budget. If it has no part, the group goes alone.
    pub(super) fn removes(&self, group: &ChangeGroup<'_>) -> bool {
        self.counted_removals(group) <= self.removals
            || (self.may_exceed_removals && group.rows.len() > 1)
    }

    /// Returns how many removals of a group use the budget.
    fn counted_removals(&self, group: &ChangeGroup<'_>) -> u32 {
        let uncounted = group.removed.intersection(&self.uncounted).count();
        group.removes.saturating_sub(u32::try_from(uncounted).unwrap_or(u32::MAX))
    }

    /// Returns true if the group is no mass removal, alone and with those before it.
    pub(super) fn removes_at_once(&self, group: &ChangeGroup<'_>) -> bool {
        group.unreplaced() <= self.at_once
    }

    pub(super) fn consume(&mut self, group: &ChangeGroup<'_>) {
        let removals = self.counted_removals(group);
        self.launches = self.launches.saturating_sub(group.launches);
        self.removals = self.removals.saturating_sub(removals);
        self.may_exceed_removals &= removals == 0;
        self.at_once = self.at_once.saturating_sub(group.unreplaced());
        self.is_launch_budget_unused &= group.launches == 0;
    }
}
