//! What pools may still grow by.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::offer::Offer;
use super::standing::Standing;
use crate::ids::PoolName;
use crate::manifest::PoolLimits;
use crate::units::Resources;

/// The room that is left below the limits of each pool, while nodes are opened and given back.
///
/// Limits count what nodes report as capacity, of nodes that are there and of nodes that are
/// launched, each once; nodes that go still count, because they go last.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    left: BTreeMap<PoolName, Left>,
    /// Capacity of each column's node.
    sizes: Rc<Vec<Resources>>,
    /// Pool of each column.
    pools: Rc<Vec<PoolName>>,
}

/// What one limited pool may still grow by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Left {
    amounts: BTreeMap<String, i64>,
    nodes: Option<i64>,
}

impl Limits {
    /// Returns the limits of `pools` with what `standing` nodes use of them; `columns` holds one
    /// offer of each column.
    pub(super) fn of<'a>(
        pools: impl IntoIterator<Item = (&'a PoolName, &'a PoolLimits)>,
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
        for node in standing {
            if let Some(left) = node.pool.as_ref().and_then(|pool| left.get_mut(pool)) {
                left.change(&node.capacity, -1);
            }
        }
        let sizes = columns.iter().map(|offer| offer.node.capacity.clone()).collect();
        let pools = columns.iter().map(|offer| offer.node.pool.clone()).collect();
        Self { left, sizes: Rc::new(sizes), pools: Rc::new(pools) }
    }

    /// Returns whether any pool is limited.
    pub(super) fn bind(&self) -> bool {
        !self.left.is_empty()
    }

    /// Returns whether one more node of `column` stays within the limits of its pool.
    pub(super) fn allows(&self, column: usize) -> bool {
        self.left.get(&self.pools[column]).is_none_or(|left| left.allows(&self.sizes[column]))
    }

    /// Returns whether a node of column `to` would stay within the limits in place of one of
    /// column `from`.
    pub(super) fn allows_swap(&self, from: usize, to: usize) -> bool {
        let Some(left) = self.left.get(&self.pools[to]) else { return true };
        let mut left = left.clone();
        if self.pools[from] == self.pools[to] {
            left.change(&self.sizes[from], 1);
        }
        left.allows(&self.sizes[to])
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
