//! The rule that blocks the replacement of a node whose pods have no other place.

use super::auto_scaling_groups;
use super::existing_node::ExistingNode;
use super::limits::RemainingLimits;
use super::offer::admits;
use super::target_builder::TargetBuilder;
use super::unschedulable::format_amount;
use crate::demand::PodGroup;
use crate::model::ids::PoolName;
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::units::ResourceName;

impl TargetBuilder<'_> {
    /// Names the limits of the pool where a node has a reason to be replaced and its pods have no other
    /// place: a new node of the pool would be one.
    pub(super) fn name_reached_limits(
        &self,
        node: &ExistingNode,
        keep: KeepReason,
        limits: &RemainingLimits,
    ) -> KeepReason {
        let is_stuck = keep == KeepReason::Blocked { by: BlockReason::NoOtherPlace };
        let pool = node.pool.as_ref().filter(|_| is_stuck);
        let by = pool.and_then(|pool| self.reached_limits(node, pool, limits));
        by.map_or(keep, |by| KeepReason::Blocked { by })
    }

    /// Returns the limits that allow no further node of the pool. `None` if they allow one, or if no
    /// node of the pool would take the pods.
    fn reached_limits(
        &self,
        node: &ExistingNode,
        pool: &PoolName,
        limits: &RemainingLimits,
    ) -> Option<BlockReason> {
        let on_node =
            |group: &&PodGroup| group.running.get(&node.name).is_some_and(|pods| *pods > 0);
        let takes_pods = |class: &usize| {
            let offer = &self.offers[self.model.offer_classes[*class].offers[0]];
            let new = &offer.node;
            let holds = |group: &PodGroup| {
                admits(&group.shape, &new.labels, &new.taints)
                    && group.shape.requests.fits(&offer.room)
            };
            new.pool == *pool && self.groups.iter().filter(on_node).all(holds)
        };
        let classes = (0..self.model.offer_classes.len()).filter(takes_pods);
        let classes: Vec<usize> = classes.collect();
        let first = *classes.first()?;
        if classes.iter().any(|class| limits.allows(*class)) {
            return None;
        }
        let lacking = limits.shortfall(&[(first, 1)]);
        let mut declared =
            auto_scaling_groups::pool_limits(self.input.desired, self.input.observed);
        let declared = declared.remove(pool)?;
        let is_lacking = |name: &str| lacking.iter().any(|(lacking, _)| lacking == name);
        if let Some(limit) = declared.nodes.filter(|_| is_lacking("nodes")) {
            return Some(BlockReason::NodeLimit { limit });
        }
        let reached = declared.resources.iter().filter(|(name, _)| is_lacking(name.as_str()));
        let named = |(name, amount): (&ResourceName, &i64)| {
            format!("{name} {}", format_amount(name.as_str(), *amount))
        };
        let named: Vec<String> = reached.map(named).collect();
        (!named.is_empty()).then(|| BlockReason::PoolLimits { limits: named.join(", ") })
    }
}
