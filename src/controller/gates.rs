//! Gates: which changes of a plan may be applied now, and what blocks the others.
//!
//! [`evaluate_gates`] is the only decision point. It knows the plan, the settings and recent
//! changes, and nothing about execution.
//!
//! Invariants:
//! - A blocked row is not started.
//! - A change group (rows that replace each other) is applied as a whole or not at all.
//! - A blocked row carries a typed reason with its numbers.

mod arriving_pods;
mod budget_room;
mod change_group;
mod empty_nodes;
mod message;

use std::collections::{BTreeMap, BTreeSet};

use arriving_pods::{pods_arriving_block, workloads_arriving};
use budget_room::BudgetRoom;
use change_group::ChangeGroup;
pub(super) use change_group::{change_groups, replacing_rows};
pub(super) use empty_nodes::removals_without_pods;
use jiff::{SignedDuration, Timestamp};
use message::not_applyable_reason;
pub use message::with_message;

use super::contingency::{self, ContingencyUse, Cover};
use super::event::Revision;
use super::launches_ahead::LaunchesAhead;
use super::mass_removal;
pub use super::opening::PodsArriving;
use super::persisted_state::{PersistedState, change_digests};
use super::status::{ApprovedBy, BlockedReason};
use crate::apply::is_pending;
use crate::model::desired::{ApprovalRule, Mode};
use crate::model::ids::{Address, Digest, InstanceId, PoolName};
use crate::model::observed::Observed;
use crate::model::saturating_time::later;
use crate::plan::Plan;
use crate::plan::wire::{CheckStatus, ExplainRow, Reason, ResourceChange, RetireReason};

/// Percentage of unready nodes above which nothing is removed, and the number of unready nodes that
/// never blocks. Cluster Autoscaler uses the same limits.
const UNREADY_PERCENT: u64 = 45;
const UNREADY_IGNORED_MAX: u32 = 3;

/// Longest break-glass. A longer emergency needs another request.
pub const BREAK_GLASS_MAX: SignedDuration = SignedDuration::from_hours(4);

/// Breaker that a mass removal latches unless a commit explains it.
pub const MASS_REMOVAL_BREAKER: &str = "mass-removal";
/// Breaker that launches latch if they do not help pending pods.
pub const INEFFECTIVE_LAUNCHES_BREAKER: &str = "ineffective-launches";

/// Decision on a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateDecision {
    /// The change may be applied.
    Allow,
    /// The change is blocked for now.
    Block(BlockedReason),
}

/// Inputs of the gates besides the plan.
#[derive(Debug, Clone)]
pub struct GateContext<'a> {
    /// True if this replica may write.
    pub is_leader: bool,
    /// Effective mode.
    pub mode: Mode,
    /// The served revision.
    pub revision: &'a Revision,
    /// Recent changes and operator requests.
    pub persisted: &'a PersistedState,
    /// The observation that the plan was made from.
    pub planned: &'a Observed,
    /// The newest complete observation.
    pub observed: &'a Observed,
    /// Number of nodes, without Fargate and stale nodes.
    pub nodes: u32,
    /// Number of unready nodes.
    pub unready: u32,
    /// Number of requested launches that EC2 has not answered.
    pub unanswered_requests: usize,
    /// Addresses of changes in progress.
    pub in_progress: BTreeSet<Address>,
    /// True while a removal is in progress. Only one plan at a time removes.
    pub is_removing: bool,
    /// Until when a pool's removals back off after a failure.
    pub removal_retry_at: BTreeMap<PoolName, Timestamp>,
    /// Until when a pool's launches back off after a failure.
    pub launch_retry_at: BTreeMap<PoolName, Timestamp>,
    /// Since when each instance is planned for removal without interruption.
    pub removal_planned_since: &'a BTreeMap<InstanceId, Timestamp>,
    /// Last known pod event on the node of each instance.
    pub last_pod_event: &'a BTreeMap<InstanceId, Timestamp>,
    /// Pods that may still be placed on launched nodes.
    pub pods_arriving: Option<PodsArriving>,
    /// Workloads for which nodes may be launched before their pods exist.
    pub launches_ahead: &'a LaunchesAhead,
    /// Plan whose large group cannot be divided.
    pub inseparable: Option<&'a Digest>,
    /// Until when removals wait because no commit explains them.
    pub removals_wait_until: Option<Timestamp>,
}

/// Returns the decision for each change of `plan`, by address.
pub fn evaluate_gates(
    plan: &Plan,
    context: &GateContext<'_>,
    now: Timestamp,
) -> Vec<(Address, GateDecision)> {
    let approved = ApprovedChanges::of_plan(plan, context, now);
    evaluate(plan, context, &approved, BudgetRoom::new(plan, context, now), now)
}

/// Returns true if an allowed plan may still start after its changes were persisted. Operators,
/// settings or the cluster may block it by then. Budgets and `contingency` already count its
/// changes, and changes in progress are its own or were there before.
pub(super) fn may_still_start(
    plan: &Plan,
    contingency: Option<&ContingencyUse>,
    context: &GateContext<'_>,
    now: Timestamp,
) -> bool {
    let context =
        GateContext { in_progress: BTreeSet::new(), is_removing: false, ..context.clone() };
    let is_covered =
        contingency.is_some_and(|used| contingency::is_still_valid(used, &context, now));
    let approved = if is_covered || own_approval(plan, &context).is_some() {
        ApprovedChanges::All
    } else {
        ApprovedChanges::Part { shared: BTreeSet::new(), cover: None }
    };
    evaluate(plan, &context, &approved, BudgetRoom::unlimited(now), now)
        .iter()
        .all(|(_, decision)| *decision == GateDecision::Allow)
}

/// Changes of a plan that need no further approval.
enum ApprovedChanges {
    All,
    Part {
        /// The changes that an approved plan has as well.
        shared: BTreeSet<Address>,
        /// The launches that a contingency covers.
        cover: Option<Cover>,
    },
}

impl ApprovedChanges {
    fn of_plan(plan: &Plan, context: &GateContext<'_>, now: Timestamp) -> Self {
        if own_approval(plan, context).is_some() {
            return Self::All;
        }
        let shared = changes_of_an_approved_plan(plan, context.persisted);
        // A plan starts by one approval. With changes of an approved plan, those go first.
        let cover = contingency::cover(plan, context, now).filter(|_| shared.is_empty());
        Self::Part { shared, cover }
    }

    /// Returns the reason that blocks a group without approval.
    fn block(&self, group: &ChangeGroup<'_>, plan: &Plan) -> Option<GroupBlock> {
        let is_approved = match self {
            Self::All => true,
            Self::Part { shared, cover } => {
                let is_covered =
                    |address: &Address| cover.as_ref().is_some_and(|cover| cover.has(address));
                let mut rows = group.rows.iter().map(|row| &row.address);
                rows.all(|address| shared.contains(address) || is_covered(address))
            }
        };
        if is_approved {
            return None;
        }
        Some(GroupBlock::of_all(BlockedReason::NotApproved {
            digest: plan.capacity.digest.clone(),
        }))
    }
}

fn evaluate(
    plan: &Plan,
    context: &GateContext<'_>,
    approved: &ApprovedChanges,
    mut room: BudgetRoom,
    now: Timestamp,
) -> Vec<(Address, GateDecision)> {
    let groups = change_groups(plan);
    let arriving = workloads_arriving(plan, context, now);
    let mut decisions: BTreeMap<Address, GateDecision> = BTreeMap::new();
    // Standalone removals take budget last. Otherwise one could take the last budget of a launch
    // that it depends on, and both would block each other forever.
    let (removals, others): (Vec<&ChangeGroup<'_>>, Vec<&ChangeGroup<'_>>) =
        groups.iter().partition(|group| group.is_standalone_removal);
    for group in others.into_iter().chain(removals) {
        let block = plan_block(plan, context)
            .or_else(|| approved.block(group, plan))
            .or_else(|| window_block(context, now))
            .or_else(|| empty_commit_block(plan, context).filter(|_| group.removes > 0))
            .or_else(|| pods_arriving_block(group, plan, arriving.as_ref()))
            .or_else(|| pods_missing_block(group, plan, context))
            .or_else(|| group_block(group, context, &room, now));
        if block.is_none() {
            room.consume(group);
        }
        for row in &group.rows {
            let decision = match &block {
                Some(block) => GateDecision::Block(block.reason_for(row)),
                None => GateDecision::Allow,
            };
            decisions.insert(row.address.clone(), decision);
        }
    }
    block_dependents(&groups, &mut decisions);
    decisions.into_iter().collect()
}

/// Returns how `plan` is approved, or `None` if it is not.
pub fn approval(plan: &Plan, context: &GateContext<'_>, now: Timestamp) -> Option<ApprovedBy> {
    own_approval(plan, context).or_else(|| {
        let cover = contingency::cover(plan, context, now).filter(|cover| cover.has_all(plan))?;
        Some(ApprovedBy::Contingency { digest: cover.digest, who: cover.who })
    })
}

/// Returns the index of the newest approval that approves `plan` or a plan with all its changes.
pub(super) fn approval_by_digest(plan: &Plan, persisted: &PersistedState) -> Option<usize> {
    let digest = &plan.capacity.digest;
    let has_rows = persisted.approvals.iter().any(|approval| !approval.rows.is_empty());
    let changes: BTreeSet<String> = if has_rows {
        change_digests(plan).map(|(_, digest)| digest).collect()
    } else {
        BTreeSet::new()
    };
    persisted.approvals.iter().rposition(|approval| {
        // A subset of an approved plan is approved: blocked changes do not revoke the rest.
        let is_part = !changes.is_empty() && changes.is_subset(&approval.rows);
        approval.digest == *digest || is_part
    })
}

/// Returns the changes of `plan` that are also changes of the newest approved plan that shares any.
/// A plan around blocked changes may need others. Without this, those would block the approved ones.
fn changes_of_an_approved_plan(plan: &Plan, persisted: &PersistedState) -> BTreeSet<Address> {
    if persisted.approvals.iter().all(|approval| approval.rows.is_empty()) {
        return BTreeSet::new();
    }
    let changes: Vec<(&Address, String)> = change_digests(plan).collect();
    let shared = |rows: &BTreeSet<String>| -> BTreeSet<Address> {
        let found = changes.iter().filter(|(_, digest)| rows.contains(digest));
        found.map(|(address, _)| (*address).clone()).collect()
    };
    let mut newest_first = persisted.approvals.iter().rev().map(|approval| shared(&approval.rows));
    newest_first.find(|shared| !shared.is_empty()).unwrap_or_default()
}

/// Returns how `plan` itself is approved, without the contingency of another plan.
fn own_approval(plan: &Plan, context: &GateContext<'_>) -> Option<ApprovedBy> {
    if let Some(found) = approval_by_digest(plan, context.persisted) {
        let who = context.persisted.approvals[found].by.clone();
        return Some(ApprovedBy::Digest { who });
    }
    if let Some(break_glass) = &context.persisted.break_glass {
        let (who, reason) = (break_glass.by.clone(), break_glass.reason.clone());
        return Some(ApprovedBy::BreakGlass { who, reason });
    }
    match context.revision.controller.approval {
        ApprovalRule::Merge => Some(ApprovedBy::Merge),
        ApprovalRule::Digest => None,
        ApprovalRule::Policy => {
            let objects = plan.checks.iter().any(|check| check.status != CheckStatus::Pass);
            (!objects).then_some(ApprovedBy::Policy)
        }
    }
}

fn is_approved_by_digest(plan: &Plan, context: &GateContext<'_>) -> bool {
    approval_by_digest(plan, context.persisted).is_some()
}

fn retire_reason(row: &ExplainRow) -> Option<&RetireReason> {
    match &row.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            row.retire_reason.as_ref()
        }
    }
}

/// A block of a whole group.
struct GroupBlock {
    /// The row that causes it, if one does.
    cause: Option<Address>,
    reason: BlockedReason,
}

impl GroupBlock {
    /// Returns a block that no row of the group causes.
    fn of_all(reason: BlockedReason) -> Self {
        Self { cause: None, reason }
    }

    fn of_row(row: &ResourceChange, reason: BlockedReason) -> Self {
        Self { cause: Some(row.address.clone()), reason }
    }

    /// Returns the reason that blocks one row of the group.
    fn reason_for(&self, row: &ResourceChange) -> BlockedReason {
        match &self.cause {
            Some(cause) if *cause != row.address => {
                BlockedReason::GroupBlocked { by: cause.clone() }
            }
            Some(_) | None => self.reason.clone(),
        }
    }
}

/// Returns the reason that blocks every change of the plan.
fn plan_block(plan: &Plan, context: &GateContext<'_>) -> Option<GroupBlock> {
    if !context.is_leader {
        return Some(GroupBlock::of_all(BlockedReason::NotLeader));
    }
    if plan.errored || !plan.applyable {
        return Some(GroupBlock::of_all(BlockedReason::NotApplyable {
            why: not_applyable_reason(plan),
        }));
    }
    if let Some(suspension) = &context.persisted.suspended {
        let (reason, until) = (suspension.reason.clone(), suspension.until);
        return Some(GroupBlock::of_all(BlockedReason::Suspended { reason, until }));
    }
    if context.mode == Mode::Observe {
        return Some(GroupBlock::of_all(BlockedReason::Mode { mode: context.mode }));
    }
    None
}

fn window_block(context: &GateContext<'_>, now: Timestamp) -> Option<GroupBlock> {
    let guard = &context.revision.guard;
    if context.persisted.break_glass.is_some() || guard.is_open(now) {
        return None;
    }
    Some(GroupBlock::of_all(BlockedReason::OutsideWindow { opens: guard.next_opening(now) }))
}

/// Returns the reason that blocks every removal of a commit that declares nothing.
fn empty_commit_block(plan: &Plan, context: &GateContext<'_>) -> Option<GroupBlock> {
    if !context.revision.is_empty || is_approved_by_digest(plan, context) {
        return None;
    }
    let why = "its commit declares neither a workload nor a pool, which indicates a failed render; \
               approve the plan by its digest if this is intended";
    Some(GroupBlock::of_all(BlockedReason::NotApplyable { why: why.to_owned() }))
}

fn group_block(
    group: &ChangeGroup<'_>,
    context: &GateContext<'_>,
    room: &BudgetRoom,
    now: Timestamp,
) -> Option<GroupBlock> {
    let busy = group.rows.iter().find(|row| context.in_progress.contains(&row.address));
    if let Some(row) = busy {
        return Some(GroupBlock::of_row(row, BlockedReason::InProgress));
    }
    if group.launches > 0
        && let Some(block) = launch_block(group, context, room, now)
    {
        return Some(block);
    }
    if group.removes > 0 { removal_block(group, context, room, now) } else { None }
}

/// Returns the reason that blocks launches whose pods exist only in the repository, although the
/// cluster had applied it before. The cluster may have a newer commit already.
fn pods_missing_block(
    group: &ChangeGroup<'_>,
    plan: &Plan,
    context: &GateContext<'_>,
) -> Option<GroupBlock> {
    // As many launches as removals take the pods of the removed nodes.
    if group.launches <= group.removes {
        return None;
    }
    let added = added_workloads(group, plan);
    let missing = context.launches_ahead.missing_workloads(plan, context.observed);
    if added.is_empty() || !added.is_subset(&missing) {
        return None;
    }
    Some(GroupBlock::of_all(BlockedReason::PodsMissing))
}

/// Returns the workloads with more pods on the launches of a group than on its removed nodes.
fn added_workloads(group: &ChangeGroup<'_>, plan: &Plan) -> BTreeSet<String> {
    let in_group: BTreeSet<&Address> = group.rows.iter().map(|row| &row.address).collect();
    let mut added: BTreeMap<&str, i64> = BTreeMap::new();
    let explained = plan.capacity.explain.iter().filter(|row| in_group.contains(&row.address));
    for row in explained {
        for (workload, pods) in &row.pods {
            *added.entry(workload.as_str()).or_insert(0) += i64::from(*pods);
        }
        for (workload, pods) in &row.pods_before {
            *added.entry(workload.as_str()).or_insert(0) -= i64::from(*pods);
        }
    }
    let added = added.into_iter().filter(|(_, pods)| *pods > 0);
    added.map(|(workload, _)| workload.to_owned()).collect()
}

fn launch_block(
    group: &ChangeGroup<'_>,
    context: &GateContext<'_>,
    room: &BudgetRoom,
    now: Timestamp,
) -> Option<GroupBlock> {
    if let Some(breaker) = context
        .persisted
        .breakers
        .iter()
        .find(|breaker| breaker.name == INEFFECTIVE_LAUNCHES_BREAKER)
    {
        return Some(GroupBlock::of_all(BlockedReason::Breaker { name: breaker.name.clone() }));
    }
    if let Some(until) = backoff_until(group, &context.launch_retry_at, now) {
        return Some(GroupBlock::of_all(BlockedReason::BackingOff { until }));
    }
    for pool in group.pools() {
        if let Some(quarantine) = context.persisted.active_quarantine(&pool, now) {
            return Some(GroupBlock::of_all(BlockedReason::Quarantined {
                pool,
                until: quarantine.until,
            }));
        }
    }
    if room.launches(group) {
        return None;
    }
    let rate = context.revision.controller.launches;
    let (most, within, next) = (rate.limit_for(context.nodes), rate.window, room.next_launch);
    Some(GroupBlock::of_all(BlockedReason::LaunchBudget { most, within, next }))
}

fn removal_block(
    group: &ChangeGroup<'_>,
    context: &GateContext<'_>,
    room: &BudgetRoom,
    now: Timestamp,
) -> Option<GroupBlock> {
    if context.mode != Mode::Full {
        return Some(GroupBlock::of_all(BlockedReason::Mode { mode: context.mode }));
    }
    if let Some(breaker) =
        context.persisted.breakers.iter().find(|breaker| breaker.name == MASS_REMOVAL_BREAKER)
    {
        return Some(GroupBlock::of_all(BlockedReason::Breaker { name: breaker.name.clone() }));
    }
    let GateContext { nodes, unready, .. } = *context;
    if unready > UNREADY_IGNORED_MAX
        && u64::from(unready) * 100 > u64::from(nodes) * UNREADY_PERCENT
    {
        return Some(GroupBlock::of_all(BlockedReason::MassUnready { unready, nodes }));
    }
    if context.is_removing {
        return Some(GroupBlock::of_all(BlockedReason::InProgress));
    }
    if let Some(until) = context.removals_wait_until {
        return Some(GroupBlock::of_all(BlockedReason::UnexplainedRemoval { until }));
    }
    if let Some(until) = backoff_until(group, &context.removal_retry_at, now) {
        return Some(GroupBlock::of_all(BlockedReason::BackingOff { until }));
    }
    for row in &group.rows {
        if let Some(reason) = row_block(row, group, context, now) {
            return Some(GroupBlock::of_row(row, reason));
        }
    }
    if !room.removes_at_once(group) {
        let most = mass_removal::removals_at_once(context);
        return Some(GroupBlock::of_all(BlockedReason::MassRemoval { most }));
    }
    if room.removes(group) {
        return None;
    }
    let rate = context.revision.controller.removals;
    let (most, within, next) = (rate.limit_for(context.nodes), rate.window, room.next_removal);
    Some(GroupBlock::of_all(BlockedReason::RemovalBudget { most, within, next }))
}

/// Returns until when a pool of the group backs off.
fn backoff_until(
    group: &ChangeGroup<'_>,
    after: &BTreeMap<PoolName, Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let until = group.pools().filter_map(|pool| after.get(&pool).copied());
    until.filter(|until| now < *until).max()
}

/// Returns the reason that blocks the removal of one instance.
fn row_block(
    row: &ResourceChange,
    group: &ChangeGroup<'_>,
    context: &GateContext<'_>,
    now: Timestamp,
) -> Option<BlockedReason> {
    let before = row.change.before.as_ref()?;
    let instance = before.instance_id.as_ref()?;
    let settings = &context.revision.controller;
    if let Some(pool) = &before.pool
        && settings.confirm_pools.contains(pool)
        && !context.persisted.confirmed_removals.contains(instance)
    {
        return Some(BlockedReason::NotConfirmed { pool: pool.clone() });
    }
    let planned_since = context.removal_planned_since.get(instance).copied().unwrap_or(now);
    let delayed_until = later(planned_since, settings.removal_delay);
    let until = unused_launch_until(row, instance, group, context)
        .map_or(delayed_until, |until| until.max(delayed_until));
    if now < until {
        return Some(BlockedReason::Settling { until });
    }
    // `consolidateAfter` only delays removals that save cost.
    if !group.cost_savings.contains(&row.address) {
        return None;
    }
    let consolidate_after = *context.revision.consolidate_after.get(before.pool.as_ref()?)?;
    let last_pod_event = context.last_pod_event.get(instance).copied().unwrap_or(now);
    let until = later(last_pod_event, consolidate_after);
    (now < until).then_some(BlockedReason::ConsolidateAfter { until })
}

/// Returns until when a new node without pods stays while pods are pending. By then it counts as
/// passed over, so that its pool stops launching.
fn unused_launch_until(
    row: &ResourceChange,
    instance: &InstanceId,
    group: &ChangeGroup<'_>,
    context: &GateContext<'_>,
) -> Option<Timestamp> {
    if !group.cost_savings.contains(&row.address) {
        return None;
    }
    let mut pods = context.observed.pods.iter();
    let has_pending = pods.any(|pod| is_pending(pod) && !pod.is_node_bound());
    has_pending.then(|| context.persisted.launch_judged_at(instance)).flatten()
}

/// Blocks removals whose pods may have been counted on a blocked launch.
fn block_dependents(groups: &[ChangeGroup<'_>], decisions: &mut BTreeMap<Address, GateDecision>) {
    let is_blocked = |group: &&ChangeGroup<'_>| {
        group.launches > 0
            && group
                .rows
                .iter()
                .any(|row| decisions.get(&row.address) != Some(&GateDecision::Allow))
    };
    let Some(cause) = groups.iter().find(is_blocked).and_then(|group| group.rows.first()) else {
        return;
    };
    let cause = cause.address.clone();
    for row in
        groups.iter().filter(|group| group.is_standalone_removal).flat_map(|group| &group.rows)
    {
        let decision = decisions.entry(row.address.clone()).or_insert(GateDecision::Allow);
        if *decision == GateDecision::Allow {
            *decision = GateDecision::Block(BlockedReason::GroupBlocked { by: cause.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
