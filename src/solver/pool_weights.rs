//! Weights of pools in a consolidation.
//!
//! Pods go to the pool of the highest weight that admits them, even if it costs more. While a node
//! is replaced, it still counts against the limits of its pool, and a new node of that pool may
//! exceed them. A cheaper pool of a lower weight would then look like a saving. Karpenter does not
//! count the node that it simulates to replace.

use std::collections::BTreeMap;

use super::greedy_packing::Packing;
use super::problem::Problem;
use crate::model::ids::PoolName;

/// Weight of each pool that makes offers.
pub(super) struct PoolWeights<'a>(BTreeMap<&'a PoolName, u32>);

impl<'a> PoolWeights<'a> {
    pub(super) fn new(problem: &Problem<'a>) -> Self {
        Self(problem.offers.iter().map(|offer| (&offer.node.pool, offer.weight)).collect())
    }

    /// Returns true if the removal of these nodes adds new nodes of a lower weight than that of a
    /// removed node's pool.
    pub(super) fn is_lowered(
        &self,
        problem: &Problem,
        removed: &[usize],
        before: &Packing,
        after: &Packing,
    ) -> bool {
        let nodes = removed.iter().map(|index| &problem.existing[*index]);
        let pools = nodes.filter(|node| !node.is_planned).filter_map(|node| node.pool.as_ref());
        let weights = pools.filter_map(|pool| self.0.get(pool));
        let Some(highest) = weights.max().copied().filter(|weight| *weight > 0) else {
            return false;
        };
        let lower = |packing: &Packing| {
            let nodes = packing.new_nodes.iter();
            let weight = |class: usize| problem.model.offer_classes[class].weight;
            nodes.filter(|node| weight(node.offer_class) < highest).count()
        };
        lower(after) > lower(before)
    }
}
