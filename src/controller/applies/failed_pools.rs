//! Pools with a failed change. Their retries back off, and those of other pools do not.

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::{ApplyStatus, Receipt};
use crate::controller::reconcile;
use crate::model::ids::{Address, PoolName};
use crate::plan::Plan;
use crate::plan::wire::{ResourceChange, WaveStep};

/// Pools with a failed change.
#[derive(Default)]
pub(super) struct FailedPools {
    pub(super) launches: BTreeSet<PoolName>,
    pub(super) removals: BTreeSet<PoolName>,
}

impl FailedPools {
    /// Returns the pools with a failed change. For a refused plan, which has no receipt: the pools of
    /// its removals, or of its launches if it removes nothing.
    pub(super) fn new(plan: &Plan, receipt: Option<&Receipt>) -> Self {
        let Some(receipt) = receipt else {
            let removals: BTreeSet<PoolName> =
                reconcile::retired_rows(plan).map(ResourceChange::pool).collect();
            let launches = if removals.is_empty() {
                reconcile::launched_rows(plan).map(ResourceChange::pool).collect()
            } else {
                BTreeSet::new()
            };
            return Self { launches, removals };
        };
        let mut failed = Self::default();
        if receipt.verdict != ApplyStatus::Partly {
            return failed;
        }
        let rows: BTreeMap<&Address, PoolName> =
            plan.resource_changes.iter().map(|row| (&row.address, row.pool())).collect();
        for change in receipt.outcomes.iter().filter(|change| !change.outcome.is_settled()) {
            let Some(pool) = rows.get(&change.address).cloned() else { continue };
            match change.step {
                WaveStep::Launch => failed.launches.insert(pool),
                WaveStep::Retire => failed.removals.insert(pool),
            };
        }
        failed
    }
}
