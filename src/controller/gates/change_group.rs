//! Groups of rows that are applied together.

use std::collections::{BTreeMap, BTreeSet};

use super::super::reconcile::instance_of;
use super::retire_reason;
use crate::model::ids::{Address, InstanceId, PoolName};
use crate::plan::Plan;
use crate::plan::wire::{ExplainRow, ResourceChange, RetireReason, WaveStep};

/// Rows that are applied together: replacements and what they replace, or a single row.
pub(in super::super) struct ChangeGroup<'p> {
    pub(super) rows: Vec<&'p ResourceChange>,
    pub(in super::super) launches: u32,
    pub(in super::super) removes: u32,
    /// The removed instances.
    pub(in super::super) removed: BTreeSet<InstanceId>,
    /// Number of removed nodes without pods.
    pub(in super::super) empty: u32,
    /// True if pods of removed nodes may have been counted on any launch of the plan.
    pub(super) is_standalone_removal: bool,
    /// Rows that are removed only to save cost.
    pub(super) cost_savings: BTreeSet<&'p Address>,
}

impl ChangeGroup<'_> {
    /// Returns how many nodes with pods the group removes without replacement.
    pub(super) fn unreplaced(&self) -> u32 {
        (self.removes - self.empty).saturating_sub(self.launches)
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = PoolName> {
        let mut pools: Vec<PoolName> = self.rows.iter().map(|row| row.pool()).collect();
        pools.sort();
        pools.dedup();
        pools.into_iter()
    }
}

pub(in super::super) fn change_groups(plan: &Plan) -> Vec<ChangeGroup<'_>> {
    let steps = |step: WaveStep| -> BTreeSet<&Address> {
        let waves = plan.capacity.waves.iter().filter(|wave| wave.step == step);
        waves.flat_map(|wave| &wave.addresses).collect()
    };
    let (launched, retired) = (steps(WaveStep::Launch), steps(WaveStep::Retire));
    let explained = plan.capacity.explain.iter();
    let groups: BTreeMap<&Address, &str> =
        explained.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect();
    let moves_pods: BTreeSet<&Address> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| !row.pods_before.is_empty())
        .map(|row| &row.address)
        .collect();
    let saves_cost = |row: &&ExplainRow| {
        matches!(
            retire_reason(row),
            Some(RetireReason::Empty { .. } | RetireReason::Underutilized { .. })
        )
    };
    let cost_savings: BTreeSet<&Address> =
        plan.capacity.explain.iter().filter(saves_cost).map(|row| &row.address).collect();
    let empty: BTreeSet<&Address> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| matches!(retire_reason(row), Some(RetireReason::Empty { .. })))
        .map(|row| &row.address)
        .collect();
    // Pure launches first: pods wait for them.
    let mut found: BTreeMap<(bool, String), ChangeGroup<'_>> = BTreeMap::new();
    for row in &plan.resource_changes {
        let address = &row.address;
        let (launches, removes) = (launched.contains(address), retired.contains(address));
        if !launches && !removes {
            continue;
        }
        let group_name = groups.get(address).copied();
        let name = group_name.map_or_else(|| address.to_string(), |group| format!("~{group}"));
        let group = found.entry((group_name.is_some() || removes, name)).or_insert(ChangeGroup {
            rows: Vec::new(),
            launches: 0,
            removes: 0,
            removed: BTreeSet::new(),
            empty: 0,
            is_standalone_removal: false,
            cost_savings: BTreeSet::new(),
        });
        group.rows.push(row);
        group.launches += u32::from(launches);
        group.removes += u32::from(removes);
        group.removed.extend(instance_of(row).filter(|_| removes));
        group.empty += u32::from(removes && empty.contains(address));
        if cost_savings.contains(address) {
            group.cost_savings.insert(address);
        }
        group.is_standalone_removal |=
            group_name.is_none() && removes && !launches && moves_pods.contains(address);
    }
    found.into_values().collect()
}

/// Returns the addresses of the groups that launch nodes in place of existing nodes.
pub(in super::super) fn replacing_rows(plan: &Plan) -> BTreeSet<Address> {
    let groups = change_groups(plan).into_iter();
    let replacing = groups.filter(|group| group.launches > 0 && group.removes > 0);
    replacing.flat_map(|group| group.rows).map(|row| row.address.clone()).collect()
}
