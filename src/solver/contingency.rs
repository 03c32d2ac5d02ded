//! Contingency: further nodes for pods that stay pending once the planned nodes are open.
//!
//! A fleet that does not hold every order of arrival names them in advance, so that one approval
//! covers both. See ADR 0017.

use std::collections::{BTreeMap, BTreeSet};

use super::offer::Offer;
use super::problem::{Problem, VerifiedFleet};
use super::repair::MissingNodes;
use super::target_fleet::NodeRef;
use crate::model::ids::{InstanceTypeName, PoolName};
use crate::model::reason::{Contingency, PoolContingency};
use crate::model::units::MicroUsd;

/// Further nodes of a fleet with nominated pods, in thousandths of a percent of the launched nodes
/// of a pool. Runs of kube-scheduler 1.36 left 0.1 to 0.9 % of the pods pending after nominations.
/// They needed 1 further node beside 21, 2 beside 95, and 1 beside 108.
pub(super) const STEERED_MILLI_PERCENT: u32 = 3_000;

/// 100 % in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// Returns the contingency of a fleet with nominated pods: a share of the launched nodes of each
/// pool, at least one, at the highest price that the limits of the pool allow.
pub(super) fn for_steered(problem: &Problem, fleet: &VerifiedFleet) -> Option<Contingency> {
    let new_nodes = &fleet.layout.packing.new_nodes;
    let mut limits = problem.limits_after(&fleet.layout);
    let mut by_pool: BTreeMap<&PoolName, Vec<usize>> = BTreeMap::new();
    for (index, offer) in fleet.offers.iter().enumerate() {
        by_pool.entry(&problem.offers[*offer].node.pool).or_default().push(index);
    }
    let share = problem.settings.contingency_milli_percent;
    let mut chosen = Vec::new();
    for nodes in by_pool.values_mut() {
        let price = |index: &usize| problem.offers[fleet.offers[*index]].node.price;
        nodes.sort_by_key(|index| (std::cmp::Reverse(price(index)), *index));
        for _ in 0..at_least_one(nodes.len(), share) {
            let is_allowed = |index: &&usize| limits.allows(new_nodes[**index].offer_class);
            let Some(node) = nodes.iter().find(is_allowed) else { break };
            limits.add_node(new_nodes[*node].offer_class);
            chosen.push(fleet.offers[*node]);
        }
    }
    let on_launch = |(node_ref, count): (&NodeRef, &u32)| match node_ref {
        NodeRef::Launch(_) => *count,
        NodeRef::Existing(_) => 0,
    };
    let pods: u32 = fleet.placements.values().flatten().map(on_launch).sum();
    let pods = at_least_one(usize::try_from(pods).unwrap_or(usize::MAX), share);
    let launched = fleet.offers.iter().map(|offer| &problem.offers[*offer]);
    let named = launched.map(|offer| (&offer.node.pool, &offer.node.instance_type));
    summarize(pods, chosen.iter().map(|offer| &problem.offers[*offer]), named)
}

/// Returns the contingency of the nodes that some orders of arrival need.
pub(super) fn for_missing(missing: &MissingNodes, offers: &[Offer]) -> Option<Contingency> {
    let added = missing.offers.iter().map(|offer| &offers[*offer]);
    let named = added.clone().map(|offer| (&offer.node.pool, &offer.node.instance_type));
    summarize(missing.pending, added, named)
}

/// Returns this share of `count`, rounded up, and at least 1.
fn at_least_one(count: usize, milli_percent: u32) -> u32 {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let share = count.saturating_mul(u64::from(milli_percent)).div_ceil(WHOLE);
    u32::try_from(share.max(1)).unwrap_or(u32::MAX)
}

/// Returns the totals of further nodes; `None` without nodes. `named` holds the instance types of
/// each pool.
///
/// Each of the nodes opens for at least one pod that is pending by then, so that no pool needs more
/// nodes than there are pods. `further` may have more: every run schedules all pods anew, and other
/// pods take room on these nodes as well. Each pod may need the dearest node, so that only the
/// price of as many of these limits the price of all.
fn summarize<'a>(
    pods: u32,
    further: impl Iterator<Item = &'a Offer>,
    named: impl Iterator<Item = (&'a PoolName, &'a InstanceTypeName)>,
) -> Option<Contingency> {
    let mut types: BTreeMap<&PoolName, BTreeSet<&InstanceTypeName>> = BTreeMap::new();
    for (pool, instance_type) in named {
        types.entry(pool).or_default().insert(instance_type);
    }
    let mut pools: BTreeMap<&PoolName, PoolContingency> = BTreeMap::new();
    for offer in further {
        let node = &offer.node;
        let pool = pools.entry(&node.pool).or_insert_with(|| PoolContingency {
            pool: node.pool.clone(),
            nodes: 0,
            hourly: MicroUsd::ZERO,
            node_hourly: MicroUsd::ZERO,
            instance_types: types[&node.pool].iter().copied().cloned().collect(),
        });
        pool.nodes += 1;
        pool.hourly += node.price;
        pool.node_hourly = pool.node_hourly.max(node.price);
    }
    let at_most_one_for_each_pod = |mut pool: PoolContingency| {
        pool.nodes = pool.nodes.min(pods);
        pool.hourly = pool.hourly.min(pool.node_hourly.times(i64::from(pool.nodes)));
        pool
    };
    let pools: Vec<PoolContingency> = pools.into_values().map(at_most_one_for_each_pod).collect();
    let nodes = pools.iter().map(|pool| pool.nodes).sum();
    let hourly = pools.iter().map(|pool| pool.hourly).sum();
    (nodes > 0).then_some(Contingency { nodes, hourly, pods, pools })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scenario;

    /// Runs schedule every pod anew, so that they may need many nodes for few pending pods.
    #[test]
    fn pool_names_at_most_one_node_for_each_pending_pod() {
        let mut scenario = Scenario::new(&["m5.large", "m5.xlarge"], 100, 64);
        scenario.scale(1);
        let contingency = |pending: u32, nodes: [usize; 2]| {
            scenario.with_passes(|passes, _| {
                let mut ends: Vec<usize> = (0..passes.offers.len()).collect();
                ends.sort_by_key(|offer| passes.offers[*offer].node.price);
                let (cheap, dear) = (ends.first().expect("offers"), ends.last().expect("offers"));
                let cheap = std::iter::repeat_n(*cheap, nodes[0]);
                let dear = std::iter::repeat_n(*dear, nodes[1]);
                let missing = MissingNodes { pending, offers: cheap.chain(dear).collect() };
                for_missing(&missing, passes.offers).expect("it has nodes")
            })
        };
        let price = |nodes| contingency(100, nodes).hourly;
        let (cheap, dear) = (price([1, 0]), price([0, 1]));
        assert!(cheap < dear, "{cheap} {dear}");
        // Each pending pod may need the dearest node.
        for (pending, nodes, expected) in [
            (6, [60, 7], (6, dear.times(6))),
            (2, [4, 1], (2, (cheap.times(4) + dear).min(dear.times(2)))),
            (3, [1, 1], (2, cheap + dear)),
        ] {
            let Contingency { nodes: most, hourly, pods, pools } = contingency(pending, nodes);
            assert_eq!((most, hourly, pods), (expected.0, expected.1, pending), "{nodes:?}");
            let [pool] = &pools[..] else { panic!("{pools:?}") };
            assert_eq!((pool.nodes, pool.hourly, pool.node_hourly), (most, hourly, dear));
        }
    }

    #[test]
    fn share_is_rounded_up_and_at_least_one() {
        let share = |count| at_least_one(count, STEERED_MILLI_PERCENT);
        assert_eq!([1, 21, 33, 34, 95, 108, 1_000].map(share), [1, 1, 1, 2, 3, 4, 30]);
    }
}
