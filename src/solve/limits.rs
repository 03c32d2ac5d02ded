//! What pools may still grow by, and what reservations have left.
//!
//! Where this differs from Karpenter on purpose: there, the worst type that could still be launched
//! is counted for each planned node, because the type is not decided yet, and a pool may overrun its
//! limits across rounds. Here the type is decided, so each node is counted as what it is, and a plan
//! never overruns.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::offer::Offer;
use super::standing::Standing;
use crate::ids::{PoolName, ReservationId};
use crate::manifest::PoolLimits;
use crate::units::Resources;

/// The room that is left below the limits of each pool, while nodes are opened and given back.
///
/// Limits count what nodes report as capacity, of nodes that are there and of nodes that are
/// launched, each once; nodes that go still count, because they go last.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    left: BTreeMap<PoolName, Left>,
    /// Machines that each reservation has left.
    supply: BTreeMap<ReservationId, i64>,
    /// Capacity of each column's node.
    sizes: Arc<Vec<Resources>>,
    /// Pool of each column.
    pools: Arc<Vec<PoolName>>,
    /// Reservation of each column.
    reservations: Arc<Vec<Option<ReservationId>>>,
}

/// What one limited pool may still grow by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Left {
    amounts: BTreeMap<String, i64>,
    nodes: Option<i64>,
}

impl Limits {
    /// Returns the limits of `pools` with what `standing` nodes use of them; `columns` holds one
    /// offer of each column, and `supply` what each reservation has left.
    pub(super) fn of<'a>(
        pools: impl IntoIterator<Item = (&'a PoolName, &'a PoolLimits)>,
        supply: impl IntoIterator<Item = (&'a ReservationId, u32)>,
        standing: &[Standing],
        columns: &[&Offer],
    ) -> Self {
        let mut left: BTreeMap<PoolName, Left> = BTreeMap::new();
        for (name, limits) in pools {
            if limits.resources.is_empty() && limits.nodes.is_none() {
                continue;
            }
            let amounts = limits.resources.iter().map(|(name, n)| (name.to_string(), *n)).collect();
            left.insert(name.clone(), Left { amounts, nodes: limits.nodes.map(i64::from) });
        }
        let mut supply: BTreeMap<ReservationId, i64> =
            supply.into_iter().map(|(id, n)| (id.clone(), i64::from(n))).collect();
        for node in standing {
            let reserved = node.reservation.as_ref().filter(|_| node.is_new);
            if let Some(supply) = reserved.and_then(|id| supply.get_mut(id)) {
                *supply -= 1;
            }
            if let Some(left) = node.pool.as_ref().and_then(|pool| left.get_mut(pool)) {
                left.change(&node.capacity, -1);
            }
        }
        let sizes = columns.iter().map(|offer| offer.node.capacity.clone()).collect();
        let pools = columns.iter().map(|offer| offer.node.pool.clone()).collect();
        let reservations = columns.iter().map(|offer| offer.node.reservation.clone()).collect();
        Self {
            left,
            supply,
            sizes: Arc::new(sizes),
            pools: Arc::new(pools),
            reservations: Arc::new(reservations),
        }
    }

    /// Returns whether anything is limited.
    pub(super) fn bind(&self) -> bool {
        !self.left.is_empty() || !self.supply.is_empty()
    }

    /// Returns whether one more node of `column` stays within the limits of its pool.
    pub(super) fn allows(&self, column: usize) -> bool {
        self.left.get(&self.pools[column]).is_none_or(|left| left.allows(&self.sizes[column]))
            && self.supply_of(column).is_none_or(|left| left >= 1)
    }

    /// Returns what the reservation of `column` has left; `None` where it is of none.
    fn supply_of(&self, column: usize) -> Option<i64> {
        let reservation = self.reservations[column].as_ref()?;
        Some(self.supply.get(reservation).copied().unwrap_or(0))
    }

    /// Returns whether a node of column `to` would stay within the limits in place of one of
    /// column `from`.
    pub(super) fn allows_swap(&self, from: usize, to: usize) -> bool {
        let same = self.reservations[from] == self.reservations[to];
        if !same && self.supply_of(to).is_some_and(|left| left < 1) {
            return false;
        }
        let Some(left) = self.left.get(&self.pools[to]) else { return true };
        let mut left = left.clone();
        if self.pools[from] == self.pools[to] {
            left.change(&self.sizes[from], 1);
        }
        left.allows(&self.sizes[to])
    }

    /// Counts a standing node no more.
    pub(super) fn let_go(&mut self, node: &Standing) {
        if let Some(left) = node.pool.as_ref().and_then(|pool| self.left.get_mut(pool)) {
            left.change(&node.capacity, 1);
        }
    }

    /// Counts one more node.
    pub(super) fn take(&mut self, column: usize) {
        self.change(column, -1);
    }

    /// Counts one node less.
    pub(super) fn give_back(&mut self, column: usize) {
        self.change(column, 1);
    }

    fn change(&mut self, column: usize, sign: i64) {
        let reservation = self.reservations[column].as_ref();
        if let Some(supply) = reservation.and_then(|id| self.supply.get_mut(id)) {
            *supply += sign;
        }
        if let Some(left) = self.left.get_mut(&self.pools[column]) {
            left.change(&self.sizes[column], sign);
        }
    }
}

impl Left {
    fn allows(&self, size: &Resources) -> bool {
        self.nodes.is_none_or(|n| n >= 1)
            && self.amounts.iter().all(|(name, left)| amount(size, name) <= *left)
    }

    fn change(&mut self, size: &Resources, sign: i64) {
        self.nodes = self.nodes.map(|n| n + sign);
        for (name, left) in &mut self.amounts {
            *left = left.saturating_add(sign * amount(size, name));
        }
    }
}

/// Returns how much of the resource `name` a node of this size has.
pub(super) fn amount(size: &Resources, name: &str) -> i64 {
    match name {
        "cpu" => size.cpu.0,
        "memory" => size.memory.0,
        "ephemeral-storage" => size.ephemeral_storage.0,
        "pods" => size.pods,
        _ => size.extended.get(name).copied().unwrap_or(0),
    }
}
