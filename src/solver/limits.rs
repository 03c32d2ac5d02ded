//! Remaining limits of pools and remaining capacity of reservations.
//!
//! An intentional difference from Karpenter: Karpenter counts the largest possible type for each
//! planned node, because the type is undecided, and a pool may exceed its limits across rounds.
//! Here the type is decided, each node counts with its own capacity, and a plan never exceeds a
//! limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::existing_node::ExistingNode;
use super::offer::Offer;
use crate::model::desired::PoolLimits;
use crate::model::ids::{PoolName, ReservationId};
use crate::model::units::Resources;

/// The remaining limits of each pool while nodes are added and removed.
///
/// Limits count the capacity of existing and launched nodes, each once. Nodes to be removed still
/// count, because they are removed last.
#[derive(Debug, Clone, Default)]
pub(super) struct RemainingLimits {
    left: BTreeMap<PoolName, PoolHeadroom>,
    /// Remaining instances of each reservation.
    supply: BTreeMap<ReservationId, i64>,
    /// Capacity of a node of each offer class.
    sizes: Arc<Vec<Resources>>,
    /// Pool of each offer class.
    pools: Arc<Vec<PoolName>>,
    /// Reservation of each offer class.
    reservations: Arc<Vec<Option<ReservationId>>>,
}

/// Remaining limits of one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PoolHeadroom {
    amounts: BTreeMap<String, i64>,
    nodes: Option<i64>,
}

impl RemainingLimits {
    /// Returns the limits of `pools` minus the usage of `existing` nodes. `offer_classes` holds one
    /// offer of each class, and `supply` the remaining instances of each reservation.
    pub(super) fn new<'a>(
        pools: impl IntoIterator<Item = (&'a PoolName, &'a PoolLimits)>,
        supply: impl IntoIterator<Item = (&'a ReservationId, u32)>,
        existing: &[ExistingNode],
        offer_classes: &[&Offer],
    ) -> Self {
        let mut left: BTreeMap<PoolName, PoolHeadroom> = BTreeMap::new();
        for (name, limits) in pools {
            if limits.resources.is_empty() && limits.nodes.is_none() {
                continue;
            }
            let amounts = limits.resources.iter().map(|(name, n)| (name.to_string(), *n)).collect();
            left.insert(name.clone(), PoolHeadroom { amounts, nodes: limits.nodes.map(i64::from) });
        }
        let mut supply: BTreeMap<ReservationId, i64> =
            supply.into_iter().map(|(id, n)| (id.clone(), i64::from(n))).collect();
        for node in existing {
            let reserved = node.reservation.as_ref().filter(|_| node.is_planned);
            if let Some(supply) = reserved.and_then(|id| supply.get_mut(id)) {
                *supply -= 1;
            }
            if let Some(left) = node.pool.as_ref().and_then(|pool| left.get_mut(pool)) {
                left.change(&node.capacity, -1);
            }
        }
        let sizes = offer_classes.iter().map(|offer| offer.node.capacity.clone()).collect();
        let pools = offer_classes.iter().map(|offer| offer.node.pool.clone()).collect();
        let reservations =
            offer_classes.iter().map(|offer| offer.node.reservation.clone()).collect();
        Self {
            left,
            supply,
            sizes: Arc::new(sizes),
            pools: Arc::new(pools),
            reservations: Arc::new(reservations),
        }
    }

    /// Returns true if any limit applies.
    pub(super) fn has_limits(&self) -> bool {
        !self.left.is_empty() || !self.supply.is_empty()
    }

    /// Returns true if a further node of the offer class stays within the limits of its pool.
    pub(super) fn allows(&self, offer_class: usize) -> bool {
        self.left
            .get(&self.pools[offer_class])
            .is_none_or(|left| left.allows(&self.sizes[offer_class]))
            && self.supply_of(offer_class).is_none_or(|left| left >= 1)
    }

    /// Returns the amounts that the limits of a pool lack for further nodes, by resource; `nodes`
    /// for the number of nodes. `further` holds offer classes of this pool with their nodes.
    pub(super) fn shortfall(&self, further: &[(usize, i64)]) -> Vec<(String, i64)> {
        let pool = further.first().map(|(class, _)| &self.pools[*class]);
        let Some(left) = pool.and_then(|pool| self.left.get(pool)) else { return Vec::new() };
        let size = further.iter().fold(Resources::default(), |sum, (class, nodes)| {
            sum.plus(&self.sizes[*class].times(*nodes))
        });
        let nodes = further.iter().fold(0_i64, |sum, (_, nodes)| sum.saturating_add(*nodes));
        let amounts = left
            .amounts
            .iter()
            .map(|(name, left)| (name.clone(), amount(&size, name).saturating_sub(*left)));
        let count = left.nodes.map(|left| ("nodes".to_owned(), nodes.saturating_sub(left)));
        amounts.chain(count).filter(|(_, lacking)| *lacking > 0).collect()
    }

    /// Returns the remaining instances of the class's reservation, or `None` if it has no
    /// reservation.
    fn supply_of(&self, offer_class: usize) -> Option<i64> {
        let reservation = self.reservations[offer_class].as_ref()?;
        Some(self.supply.get(reservation).copied().unwrap_or(0))
    }

    /// Returns true if replacing a node of class `from` by one of class `to` stays within the
    /// limits.
    pub(super) fn allows_swap(&self, from: usize, to: usize) -> bool {
        let same = self.reservations[from] == self.reservations[to];
        if !same && self.supply_of(to).is_some_and(|left| left < 1) {
            return false;
        }
        let Some(left) = self.left.get(&self.pools[to]) else { return true };
        let removed = (self.pools[from] == self.pools[to]).then(|| &self.sizes[from]);
        left.allows_in_place_of(removed, &self.sizes[to])
    }

    /// Returns true if `launches` nodes of class `from` may each be replaced by a node of class
    /// `to`, all at once. `self` counts the launches.
    pub(super) fn allows_swaps(&self, from: usize, to: usize, launches: i64) -> bool {
        let Some(left) = self.left.get(&self.pools[to]) else { return true };
        left.amounts.iter().all(|(name, left)| {
            let more = amount(&self.sizes[to], name) - amount(&self.sizes[from], name);
            more <= 0 || more.saturating_mul(launches) <= *left
        })
    }

    /// Subtracts a planned node and its reserved instance from the usage.
    pub(super) fn remove_planned(&mut self, node: &ExistingNode) {
        if let Some(supply) = node.reservation.as_ref().and_then(|id| self.supply.get_mut(id)) {
            *supply += 1;
        }
        self.remove_existing(node);
    }

    /// Subtracts an existing node from the usage.
    pub(super) fn remove_existing(&mut self, node: &ExistingNode) {
        if let Some(left) = node.pool.as_ref().and_then(|pool| self.left.get_mut(pool)) {
            left.change(&node.capacity, 1);
        }
    }

    /// Adds a node to the usage.
    pub(super) fn add_node(&mut self, offer_class: usize) {
        self.change(offer_class, -1);
    }

    /// Removes a node from the usage.
    pub(super) fn remove_node(&mut self, offer_class: usize) {
        self.change(offer_class, 1);
    }

    fn change(&mut self, offer_class: usize, sign: i64) {
        let reservation = self.reservations[offer_class].as_ref();
        if let Some(supply) = reservation.and_then(|id| self.supply.get_mut(id)) {
            *supply += sign;
        }
        if let Some(left) = self.left.get_mut(&self.pools[offer_class]) {
            left.change(&self.sizes[offer_class], sign);
        }
    }
}

impl PoolHeadroom {
    fn allows(&self, size: &Resources) -> bool {
        self.allows_in_place_of(None, size)
    }

    /// Returns true if a further node stays within the limits once another is removed.
    fn allows_in_place_of(&self, removed: Option<&Resources>, size: &Resources) -> bool {
        let freed = |name: &str| removed.map_or(0, |removed| amount(removed, name));
        self.nodes.is_none_or(|n| n + i64::from(removed.is_some()) >= 1)
            && self
                .amounts
                .iter()
                .all(|(name, left)| amount(size, name) <= left.saturating_add(freed(name)))
    }

    fn change(&mut self, size: &Resources, sign: i64) {
        self.nodes = self.nodes.map(|n| n + sign);
        for (name, left) in &mut self.amounts {
            *left = left.saturating_add(sign * amount(size, name));
        }
    }
}

/// Returns the capacity of resource `name` of a node.
pub(super) fn amount(size: &Resources, name: &str) -> i64 {
    match name {
        "cpu" => size.cpu.0,
        "memory" => size.memory.0,
        "ephemeral-storage" => size.ephemeral_storage.0,
        "pods" => size.pods,
        _ => size.extended.get(name).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pods::resources;

    #[test]
    fn node_that_a_swap_removes_makes_room() {
        let limits = |nodes| {
            let amounts = [("cpu".to_owned(), 1_000)].into();
            let left = [("p".into(), PoolHeadroom { amounts, nodes: Some(nodes) })].into();
            let sizes = [2_000, 3_000, 4_000].map(|cpu| resources(cpu, 0));
            RemainingLimits {
                left,
                supply: BTreeMap::new(),
                sizes: Arc::new(sizes.into()),
                pools: Arc::new(vec!["p".into(); 3]),
                reservations: Arc::new(vec![None; 3]),
            }
        };
        assert!(limits(0).allows_swap(0, 1) && !limits(0).allows_swap(0, 2));
        assert!(!limits(-1).allows_swap(0, 0), "too many nodes");
        assert!(!limits(1).allows(0), "too much CPU");
    }
}
