//! Disruption budgets of pools: the number of nodes of a pool that one plan may disrupt.
//!
//! A budget of zero blocks a node from the start (`disruption_blockers`). Any other active budget
//! limits how many nodes of its pool a plan removes or replaces, for the reasons it names.
//! Nodes that are not Ready count as disrupted already. Expired nodes and nodes without a pool are
//! removed in any case, as in Karpenter.
//!
//! Source: karpenter core, `pkg/apis/v1/nodepool.go` (`MustGetAllowedDisruptions`),
//! `pkg/controllers/disruption/helpers.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::disruption_blockers::is_budget_active;
use super::existing_node::ExistingNode;
use super::node_disposition::NodeDisposition;
use super::scheduling_runs::occupied_nodes;
use crate::demand::PodGroup;
use crate::model::desired::{Budget, BudgetNodes, Desired, Expiry, Pool};
use crate::model::ids::{InstanceId, NodeName, PoolName};
use crate::model::observed::{Node, Observed};
use crate::model::reason::{BlockReason, KeepReason, RetireReason};

/// Disruption reasons, as budgets name them.
const EMPTY: &str = "Empty";
const UNDERUTILIZED: &str = "Underutilized";
const DRIFTED: &str = "Drifted";

/// Remaining disruptions of each budget, and the budgets of each node.
#[derive(Debug, Clone, Default)]
pub(super) struct DisruptionBudgets {
    left: Vec<usize>,
    /// Indices of the budgets that limit a removable node. Nodes without a budget are not listed.
    of_node: Arc<BTreeMap<NodeName, Vec<usize>>>,
}

#[derive(Debug, Clone)]
struct ActiveBudget<'a> {
    pool: &'a PoolName,
    /// The reasons of the budget. Empty means all.
    reasons: &'a [String],
    /// Allowed disruptions.
    most: usize,
}

impl ActiveBudget<'_> {
    fn concerns(&self, pool: &PoolName, reason: &str) -> bool {
        self.pool == pool
            && (self.reasons.is_empty() || self.reasons.iter().any(|named| named == reason))
    }
}

/// Returns the budgets that are active at the given time.
fn active_budgets<'a>(
    desired: &'a Desired,
    observed: &Observed,
    at: Timestamp,
) -> Vec<ActiveBudget<'a>> {
    let mut active = Vec::new();
    for pool in desired.pools.values() {
        let mut declared =
            pool.budgets.iter().filter(|budget| is_budget_active(budget, at)).peekable();
        if declared.peek().is_none() {
            continue;
        }
        let (nodes, unavailable) = count_pool_nodes(observed, &pool.name);
        active.extend(declared.map(|budget| ActiveBudget {
            pool: &pool.name,
            reasons: &budget.reasons,
            most: allowed_disruptions(budget, nodes, unavailable),
        }));
    }
    active
}

/// How budgets treat drifted nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct DriftedNodes {
    /// Nodes that stay, because their pods have no other place.
    pub(super) irreplaceable: BTreeSet<NodeName>,
    /// True if every drifted node may be replaced.
    pub(super) ignore_budgets: bool,
}

impl DisruptionBudgets {
    /// Returns the active budgets. Blocks the drifted nodes beyond them, in order of name, and those
    /// that are irreplaceable, which take no part of a budget.
    pub(super) fn new(
        desired: &Desired,
        at: Timestamp,
        observed: &Observed,
        existing: &mut [ExistingNode],
        groups: &[PodGroup],
        drifted: &DriftedNodes,
    ) -> Self {
        for node in existing.iter_mut().filter(|node| drifted.irreplaceable.contains(&node.name)) {
            let by = BlockReason::NoOtherPlace;
            node.disposition = NodeDisposition::Keep(KeepReason::Blocked { by });
        }
        let active = active_budgets(desired, observed, at);
        if active.is_empty() {
            return Self::default();
        }
        let begun = existing
            .iter()
            .filter(|node| has_begun(desired, observed, node))
            .map(|node| node.name.clone())
            .collect();
        Self::from_active(&active, existing, groups, &begun, drifted.ignore_budgets)
    }

    fn from_active(
        active: &[ActiveBudget],
        existing: &mut [ExistingNode],
        groups: &[PodGroup],
        begun: &BTreeSet<NodeName>,
        ignores_drifted: bool,
    ) -> Self {
        let mut left: Vec<usize> = active.iter().map(|budget| budget.most).collect();
        let occupied = occupied_nodes(groups);
        let mut of_node = BTreeMap::new();
        // Budgets limit how many drains begin. A drain that an earlier apply began continues.
        let (draining, others): (Vec<_>, Vec<_>) =
            existing.iter_mut().partition(|node| begun.contains(&node.name));
        for node in draining.into_iter().chain(others) {
            let Some(pool) = &node.pool else { continue };
            let bounds = |reason: &str| -> Vec<usize> {
                (0..active.len()).filter(|at| active[*at].concerns(pool, reason)).collect()
            };
            match &node.disposition {
                NodeDisposition::Retire(RetireReason::Drifted { .. }) => {
                    if begun.contains(&node.name) {
                        for at in bounds(DRIFTED) {
                            left[at] = left[at].saturating_sub(1);
                        }
                    } else if !ignores_drifted && !consume(&mut left, &bounds(DRIFTED)) {
                        let by = BlockReason::Budget;
                        node.disposition = NodeDisposition::Keep(KeepReason::Blocked { by });
                    }
                }
                NodeDisposition::Retire(_) | NodeDisposition::Keep(_) => {}
                NodeDisposition::Consolidatable | NodeDisposition::RemoveWhenEmpty(_) => {
                    let is_occupied = occupied.contains(&node.name);
                    let reason = if is_occupied { UNDERUTILIZED } else { EMPTY };
                    of_node.insert(node.name.clone(), bounds(reason));
                }
            }
        }
        of_node.retain(|_, bounds| !bounds.is_empty());
        Self { left, of_node: Arc::new(of_node) }
    }

    /// Returns true if no budget limits any node.
    pub(super) fn is_unbounded(&self) -> bool {
        self.of_node.is_empty()
    }

    /// Returns the nodes with a budget that does not allow the removal of all nodes it limits.
    pub(super) fn bounded_nodes(&self) -> BTreeSet<&NodeName> {
        let mut limited = vec![0_usize; self.left.len()];
        for at in self.of_node.values().flatten() {
            limited[*at] += 1;
        }
        let is_bounded = |(_, budgets): &(&NodeName, &Vec<usize>)| {
            budgets.iter().any(|at| self.left[*at] < limited[*at])
        };
        self.of_node.iter().filter(is_bounded).map(|(name, _)| name).collect()
    }

    /// Returns the budgets after the removal of these nodes, which are not drifted.
    pub(super) fn after_removing<'n>(&self, removed: impl Iterator<Item = &'n NodeName>) -> Self {
        let mut remaining = self.clone();
        for name in removed {
            consume(&mut remaining.left, self.budgets_of(name));
        }
        remaining
    }

    /// Returns true if the node may be disrupted.
    pub(super) fn allows(&self, name: &NodeName) -> bool {
        self.budgets_of(name).iter().all(|at| self.left[*at] > 0)
    }

    /// Returns the nodes of `set` that may be disrupted together.
    pub(super) fn allowed_subset(&self, set: Vec<usize>, existing: &[ExistingNode]) -> Vec<usize> {
        if self.is_unbounded() {
            return set;
        }
        let mut left = self.left.clone();
        let mut is_allowed =
            |index: &usize| consume(&mut left, self.budgets_of(&existing[*index].name));
        set.into_iter().filter(|index| is_allowed(index)).collect()
    }

    fn budgets_of(&self, name: &NodeName) -> &[usize] {
        self.of_node.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns a text about the first budget that is active at the given time and allows fewer removals
/// than these, if there is one. `removed` has the reason of each removal, which may be unknown.
///
/// Nodes that are not Ready, and drains that an earlier apply began, count as disrupted.
pub fn exceeded_budget(
    desired: &Desired,
    observed: &Observed,
    at: Timestamp,
    removed: &BTreeMap<&InstanceId, Option<&RetireReason>>,
) -> Option<String> {
    let reason_of = |node: &Node| removed.get(node.instance.as_ref()?);
    for pool in desired.pools.values() {
        for budget in pool.budgets.iter().filter(|budget| is_budget_active(budget, at)) {
            let is_voluntary = |node: &&Node| {
                reason_of(node)
                    .is_some_and(|reason| covers(budget, pool, *reason, node, observed, at))
            };
            let has_begun = |node: &&Node| {
                let reason = reason_of(node).copied().flatten();
                let is_forced = reason.is_some_and(|r| pool.forced_drain_period(r).is_some());
                is_forced && node.grace_period_began_at().is_some()
            };
            let (begun, new): (Vec<&Node>, Vec<&Node>) =
                pool_nodes(observed, &pool.name).filter(is_voluntary).partition(has_begun);
            let is_down = |node: &&Node| !node.ready && reason_of(node).is_none();
            let down = pool_nodes(observed, &pool.name).filter(is_down).count();
            let nodes = pool_nodes(observed, &pool.name).count();
            let allowed = allowed_disruptions(budget, nodes, down + begun.len());
            if new.len() > allowed {
                let (pool, removed) = (&pool.name, new.len());
                return Some(format!(
                    "the disruption budgets of pool {pool} allow {allowed} removals now, and the \
                     plan has {removed}"
                ));
            }
        }
    }
    None
}

/// Returns true if the removal of a node counts in a budget. An unknown reason counts in all, and a
/// reason without a budget has to be true.
fn covers(
    budget: &Budget,
    pool: &Pool,
    reason: Option<&RetireReason>,
    node: &Node,
    observed: &Observed,
    at: Timestamp,
) -> bool {
    let is_expired = || {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let age = instance.map(|instance| at.duration_since(instance.launched_at));
        matches!((pool.expire_after, age), (Expiry::After(limit), Some(age)) if age >= limit)
    };
    let named = match reason {
        Some(RetireReason::Empty { .. }) => EMPTY,
        Some(RetireReason::Underutilized { .. }) => UNDERUTILIZED,
        Some(RetireReason::Drifted { .. }) => DRIFTED,
        Some(RetireReason::Expired { .. }) if is_expired() => return false,
        Some(RetireReason::Surplus { .. }) if pool.replicas.is_some() => return false,
        Some(RetireReason::Requested) => return false,
        Some(
            RetireReason::Expired { .. } | RetireReason::Surplus { .. } | RetireReason::PoolRemoved,
        )
        | None => return true,
    };
    budget.reasons.is_empty() || budget.reasons.iter().any(|reason| reason == named)
}

/// Consumes one disruption of each budget. Returns false, and consumes nothing, if one is
/// exhausted.
fn consume(left: &mut [usize], bounds: &[usize]) -> bool {
    if bounds.iter().any(|at| left[*at] == 0) {
        return false;
    }
    for at in bounds {
        left[*at] -= 1;
    }
    true
}

/// Returns true if an earlier apply began the drain of the node, which ends by force.
fn has_begun(desired: &Desired, observed: &Observed, node: &ExistingNode) -> bool {
    let NodeDisposition::Retire(reason) = &node.disposition else { return false };
    let pool = node.pool.as_ref().and_then(|pool| desired.pools.get(pool));
    let began = observed.nodes.get(&node.name).and_then(Node::grace_period_began_at);
    began.is_some() && pool.is_some_and(|pool| pool.forced_drain_period(reason).is_some())
}

/// Returns the nodes of the managed instances of a pool.
fn pool_nodes<'a>(observed: &'a Observed, pool: &'a PoolName) -> impl Iterator<Item = &'a Node> {
    let of_pool = move |node: &&Node| {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let ours = instance.filter(|instance| instance.is_managed_by(&observed.cluster.name));
        ours.and_then(super::existing_node::pool_of).is_some_and(|of| of == *pool)
    };
    observed.nodes.values().filter(of_pool)
}

/// Returns the number of nodes of a pool, and how many of them are not Ready.
fn count_pool_nodes(observed: &Observed, pool: &PoolName) -> (usize, usize) {
    let nodes = || pool_nodes(observed, pool);
    (nodes().count(), nodes().filter(|node| !node.ready).count())
}

/// Returns the disruptions that a budget allows for these numbers of nodes and unavailable nodes. A
/// percentage is rounded up.
fn allowed_disruptions(budget: &Budget, nodes: usize, unavailable: usize) -> usize {
    let number = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let most = match budget.nodes {
        BudgetNodes::Count(most) => number(most),
        BudgetNodes::Percent(share) => nodes.saturating_mul(number(share)).div_ceil(100),
    };
    most.saturating_sub(unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_rounds_up_and_unready_nodes_count() {
        let budget = |nodes: &str| Budget {
            nodes: BudgetNodes::parse(nodes).expect("a budget"),
            reasons: Vec::new(),
            schedule: None,
            duration: None,
        };
        for (nodes, there, left) in [
            ("5", (3, 0), 5),
            ("10%", (1, 0), 1),
            ("10%", (11, 0), 2),
            ("10%", (11, 2), 0),
            ("100%", (7, 1), 6),
            ("0", (7, 0), 0),
        ] {
            let allowed = allowed_disruptions(&budget(nodes), there.0, there.1);
            assert_eq!(allowed, left, "{nodes} of {there:?}");
        }
    }

    #[test]
    fn budget_limits_only_its_named_reasons() {
        let pool = PoolName::from("p");
        let named = [UNDERUTILIZED.to_owned()];
        let active = [
            ActiveBudget { pool: &pool, reasons: &[], most: 3 },
            ActiveBudget { pool: &pool, reasons: &named, most: 1 },
        ];
        let bounds = |reason: &str| -> Vec<usize> {
            (0..2).filter(|at| active[*at].concerns(&pool, reason)).collect()
        };
        let mut left = vec![3, 1];
        for (reason, is_allowed) in [
            (UNDERUTILIZED, true),
            (UNDERUTILIZED, false),
            (EMPTY, true),
            (DRIFTED, true),
            (EMPTY, false),
        ] {
            assert_eq!(consume(&mut left, &bounds(reason)), is_allowed, "{reason}");
        }
        assert!(!active[0].concerns(&PoolName::from("q"), EMPTY), "of another pool");
    }
}
