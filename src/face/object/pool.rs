//! The object of a pool: what it comes to, and the commit it serves.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::condition::{Condition, Standing, State, needs_somebody, reason};
use super::{Object, ObjectKind, short};
use crate::ids::hex;
use crate::plan::wire::{Action, CostRow};
use crate::reconcile::{HeldBy, PlanNow, Status};

/// Most objects of pools.
const POOLS_MAX: usize = 500;
/// Most characters of a name.
const NAME_MAX: usize = 63;

/// Which pool it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Its name in the repository.
    pub pool: String,
}

/// What a pool comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// The generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The commit that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of the current plan.
    pub digest: String,
    /// Nodes now.
    pub nodes: u32,
    /// Nodes once the plan is carried out.
    pub nodes_planned: u32,
    /// Rows of the plan that change a node of it.
    pub changes: u32,
    /// Price per hour now, in US dollars.
    pub hourly: String,
    /// Price per hour once the plan is carried out.
    pub hourly_planned: String,
    /// `Synced` or `OutOfSync`.
    pub sync: String,
    /// `Healthy`, `Progressing`, `Suspended` or `Degraded`.
    pub health: String,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Returns the objects of the pools that the current plan knows.
pub(super) fn objects(status: &Status) -> Vec<Object> {
    let Some(current) = &status.plan else { return Vec::new() };
    let pools = &current.plan.capacity.cost.breakdown.by_pool;
    // What belongs to no pool stands under the empty name.
    let pools = pools.iter().filter(|row| !row.name.is_empty()).take(POOLS_MAX);
    pools.map(|row| object(status, current, row)).collect()
}

fn object(status: &Status, current: &PlanNow, row: &CostRow) -> Object {
    let changed: Vec<_> = current
        .plan
        .resource_changes
        .iter()
        .filter(|change| change.name == row.name)
        .filter(|change| change.change.actions.iter().any(|action| *action != Action::NoOp))
        .map(|change| &change.address)
        .collect();
    let held: BTreeMap<_, &HeldBy> = changed
        .iter()
        .filter_map(|address| Some((*address, current.held.get(*address)?)))
        .collect();
    let standing = standing(status, current, row, (changed.len(), &held));
    let spec = PoolSpec { pool: short(&row.name) };
    let status = PoolStatus {
        observed_generation: None,
        commit: current.plan.capacity.base.commit.clone(),
        digest: current.digest().to_string(),
        nodes: row.nodes_before,
        nodes_planned: row.nodes_after,
        changes: u32::try_from(changed.len()).unwrap_or(u32::MAX),
        hourly: row.hourly_before.to_string(),
        hourly_planned: row.hourly_after.to_string(),
        sync: standing.state.sync().to_owned(),
        health: standing.state.health().to_owned(),
        conditions: standing.conditions(),
    };
    Object::new(ObjectKind::CapacityPool, name(&row.name), Some(&spec), &status)
}

fn standing(
    status: &Status,
    current: &PlanNow,
    row: &CostRow,
    (changes, held): (usize, &BTreeMap<&crate::ids::Address, &HeldBy>),
) -> Standing {
    let of = |state, reason: String, message: String| Standing {
        state,
        reason,
        message,
        since: current.since,
    };
    if let Some((why, until)) = status.quarantined.get(row.name.as_str()) {
        let message = format!("{why}; it launches nothing until {until}");
        return of(State::Degraded, "Quarantined".to_owned(), message);
    }
    if changes == 0 {
        let message = "its nodes are what is asked for".to_owned();
        return of(State::Synced, "NothingToDo".to_owned(), message);
    }
    let open = changes - held.len();
    if open > 0 {
        let message = format!("{open} of {changes} changes are next or under way");
        return of(State::Progressing, "Progressing".to_owned(), message);
    }
    let by_hand = held.values().find(|by| needs_somebody(&by.why));
    let state = if by_hand.is_some() { State::Suspended } else { State::Waiting };
    let first = by_hand.or(held.values().next()).expect("every change is held back");
    of(state, reason(&first.why), first.says.clone())
}

/// Returns the name of a pool's object: its own, where Kubernetes takes that as a name.
fn name(pool: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = pool.len() <= NAME_MAX
        && pool.chars().all(is_plain)
        && !pool.starts_with('-')
        && !pool.ends_with('-');
    if is_name {
        return pool.to_owned();
    }
    let digits: String = hex(&Sha256::digest(pool.as_bytes())).chars().take(12).collect();
    format!("pool-{digits}")
}
