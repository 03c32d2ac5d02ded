//! `CapacityPool` objects.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::condition::{
    Condition, ConditionReason, Progress, ProgressState, condition_reason, waiting_state,
};
use super::{ObjectKind, StatusObject, truncate_text};
use crate::controller::{Blocked, PublishedPlan, Status};
use crate::model::plural::count;
use crate::plan::wire::{Action, CostRow};

const POOLS_MAX: usize = 500;
/// Maximum length of an object name.
const NAME_MAX: usize = 63;

/// Identifies the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Name of the pool in the repository.
    pub pool: String,
}

/// State of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Generation of the object that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Commit that the pool serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Digest of the current plan.
    pub digest: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of nodes once the plan is applied.
    pub nodes_planned: u32,
    /// Rows of the plan that change a node of the pool.
    pub changes: u32,
    /// Price per hour, in US dollars.
    pub hourly: String,
    /// Price per hour once the plan is applied, in US dollars.
    pub hourly_planned: String,
    /// `Synced` or `OutOfSync`.
    pub sync: String,
    /// `Healthy`, `Progressing`, `Suspended` or `Degraded`.
    pub health: String,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Returns an object for each pool of the current plan.
pub(super) fn pool_objects(status: &Status) -> Vec<StatusObject> {
    let Some(current) = &status.plan else { return Vec::new() };
    let pools = &current.plan.capacity.cost.breakdown.by_pool;
    // Nodes without a pool have an empty pool name.
    let pools = pools.iter().filter(|row| !row.name.is_empty()).take(POOLS_MAX);
    pools.map(|row| pool_object(status, current, row)).collect()
}

fn pool_object(status: &Status, current: &PublishedPlan, row: &CostRow) -> StatusObject {
    let changed: Vec<_> = current
        .plan
        .resource_changes
        .iter()
        .filter(|change| change.name == row.name)
        .filter(|change| change.change.actions.iter().any(|action| *action != Action::NoOp))
        .map(|change| &change.address)
        .collect();
    let blocked: BTreeMap<_, &Blocked> = changed
        .iter()
        .filter_map(|address| Some((*address, current.blocked.get(*address)?)))
        .collect();
    let progress = pool_progress(status, current, row, changed.len(), &blocked);
    let spec = PoolSpec { pool: truncate_text(&row.name) };
    let status = PoolStatus {
        observed_generation: None,
        commit: current.plan.capacity.base.commit.clone(),
        digest: current.digest().to_string(),
        nodes: row.nodes_before,
        nodes_planned: row.nodes_after,
        changes: u32::try_from(changed.len()).unwrap_or(u32::MAX),
        hourly: row.hourly_before.to_string(),
        hourly_planned: row.hourly_after.to_string(),
        sync: progress.state.argo_sync().to_owned(),
        health: progress.state.argo_health().to_owned(),
        conditions: progress.conditions(),
    };
    StatusObject::new(ObjectKind::CapacityPool, object_name(&row.name), Some(&spec), &status)
}

fn pool_progress(
    status: &Status,
    current: &PublishedPlan,
    row: &CostRow,
    changes: usize,
    blocked: &BTreeMap<&crate::model::ids::Address, &Blocked>,
) -> Progress {
    let of = |state, reason: String, message: String| Progress {
        state,
        reason,
        message,
        since: current.since,
    };
    if let Some((why, until)) = status.quarantined.get(row.name.as_str()) {
        let message = format!("{why}; the pool launches nothing until {until}");
        return of(ProgressState::Retrying, ConditionReason::Quarantined.into(), message);
    }
    if let Some(withheld) = status.withheld_repairs.iter().find(|one| one.pool.as_str() == row.name)
    {
        let reason = ConditionReason::RepairWithheld.into();
        return of(ProgressState::Degraded, reason, withheld.to_string());
    }
    if changes == 0 {
        let message = "the nodes match the repository".to_owned();
        return of(ProgressState::Synced, ConditionReason::NothingToDo.into(), message);
    }
    let open = changes - blocked.len();
    if open > 0 {
        let message = format!("{open} of {} pending or in progress", count(changes, "change"));
        return of(ProgressState::Progressing, ConditionReason::Progressing.into(), message);
    }
    let by_hand = blocked.values().find(|by| by.reason.needs_operator());
    let first = by_hand.or(blocked.values().next()).expect("every change is blocked");
    let state = match by_hand {
        Some(_) => ProgressState::Suspended,
        None => waiting_state(&first.reason),
    };
    of(state, condition_reason(&first.reason), first.message.clone())
}

/// Returns the object name: the pool name, if Kubernetes accepts it.
fn object_name(pool: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = pool.len() <= NAME_MAX
        && pool.chars().all(is_plain)
        && !pool.starts_with('-')
        && !pool.ends_with('-');
    if is_name {
        return pool.to_owned();
    }
    let digits: String = hex::encode(Sha256::digest(pool.as_bytes())).chars().take(12).collect();
    format!("pool-{digits}")
}
