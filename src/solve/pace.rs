//! How many nodes of a pool one plan lets go: the disruption budgets that the pool states.
//!
//! A budget of none bars a node from the start (`leave`). One that allows some bounds how many nodes
//! of its pool a plan removes, or replaces, for the reasons that it names while it holds. The ten
//! percent that Karpenter takes where nothing is written is its pace, and limits no plan. Nodes that
//! are not Ready count as gone already; what has expired, or lost its pool, goes in any case, as
//! with Karpenter.
//!
//! Source: karpenter core, `pkg/apis/v1/nodepool.go` (`MustGetAllowedDisruptions`), `pkg/controllers/disruption/helpers.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::leave::holds;
use super::runs::occupied;
use super::standing::{Fate, Standing};
use super::target::{BlockReason, KeepReason, RetireReason};
use crate::demand::PodGroup;
use crate::fleet::Observed;
use crate::ids::{NodeName, PoolName};
use crate::manifest::{Budget, Desired};

/// What a node goes for, in the words of budgets.
const EMPTY: &str = "Empty";
const UNDERUTILIZED: &str = "Underutilized";
const DRIFTED: &str = "Drifted";

/// How many nodes may still go under each budget, and which budgets each node counts against.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    left: Vec<usize>,
    /// The budgets that bound a node that may go, by their place; a node of none is not listed.
    of_node: Arc<BTreeMap<NodeName, Vec<usize>>>,
}

/// A budget that holds.
#[derive(Debug, Clone)]
struct Quota<'a> {
    pool: &'a PoolName,
    /// Empty means all.
    reasons: &'a [String],
    /// Nodes that may go.
    most: usize,
}

impl Quota<'_> {
    fn concerns(&self, pool: &PoolName, reason: &str) -> bool {
        self.pool == pool
            && (self.reasons.is_empty() || self.reasons.iter().any(|named| named == reason))
    }
}

/// Returns the budgets that hold at the moment.
fn quotas<'a>(desired: &'a Desired, observed: &Observed, at: Timestamp) -> Vec<Quota<'a>> {
    let mut quotas = Vec::new();
    for pool in desired.pools.values() {
        let mut written = pool.budgets.iter().filter(|budget| holds(budget, at)).peekable();
        if written.peek().is_none() {
            continue;
        }
        let nodes = pool_nodes(observed, &pool.name);
        quotas.extend(written.map(|budget| Quota {
            pool: &pool.name,
            reasons: &budget.reasons,
            most: most(budget, nodes),
        }));
    }
    quotas
}

impl Pace {
    /// Returns the pace of the moment, and has no more drifted nodes leave than it allows, those
    /// first that come first by name.
    pub(super) fn of(
        (desired, at): (&Desired, Timestamp),
        observed: &Observed,
        standing: &mut [Standing],
        groups: &[PodGroup],
    ) -> Self {
        let quotas = quotas(desired, observed, at);
        if quotas.is_empty() {
            return Self::default();
        }
        Self::bounded(&quotas, standing, groups)
    }

    fn bounded(quotas: &[Quota], standing: &mut [Standing], groups: &[PodGroup]) -> Self {
        let mut left: Vec<usize> = quotas.iter().map(|quota| quota.most).collect();
        let occupied = occupied(groups);
        let mut of_node = BTreeMap::new();
        for node in standing {
            let Some(pool) = &node.pool else { continue };
            let bounds = |reason: &str| -> Vec<usize> {
                (0..quotas.len()).filter(|at| quotas[*at].concerns(pool, reason)).collect()
            };
            match &node.fate {
                Fate::Leaves(RetireReason::Drifted { .. }) => {
                    if !take(&mut left, &bounds(DRIFTED)) {
                        let by = BlockReason::Budget;
                        node.fate = Fate::Stays(KeepReason::Blocked { by });
                    }
                }
                Fate::Leaves(_) | Fate::Stays(_) => {}
                Fate::Free | Fate::OnlyWhenEmpty(_) => {
                    let runs = occupied.contains(&node.name);
                    let bounds = bounds(if runs { UNDERUTILIZED } else { EMPTY });
                    of_node.insert(node.name.clone(), bounds);
                }
            }
        }
        of_node.retain(|_, bounds| !bounds.is_empty());
        Self { left, of_node: Arc::new(of_node) }
    }

    /// Returns whether no node is bounded.
    pub(super) fn is_unbounded(&self) -> bool {
        self.of_node.is_empty()
    }

    /// Returns what is left once these nodes are gone that are not drifted.
    pub(super) fn without<'n>(&self, gone: impl Iterator<Item = &'n NodeName>) -> Self {
        let mut rest = self.clone();
        for name in gone {
            take(&mut rest.left, self.bounds(name));
        }
        rest
    }

    /// Returns whether the node may go.
    pub(super) fn lets(&self, name: &NodeName) -> bool {
        self.bounds(name).iter().all(|at| self.left[*at] > 0)
    }

    /// Returns the nodes of `set` that may go together.
    pub(super) fn within(&self, set: Vec<usize>, standing: &[Standing]) -> Vec<usize> {
        if self.is_unbounded() {
            return set;
        }
        let mut left = self.left.clone();
        let mut goes = |index: &usize| take(&mut left, self.bounds(&standing[*index].name));
        set.into_iter().filter(|index| goes(index)).collect()
    }

    fn bounds(&self, name: &NodeName) -> &[usize] {
        self.of_node.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Lets one more go under each of these, where all of them allow it.
fn take(left: &mut [usize], bounds: &[usize]) -> bool {
    if bounds.iter().any(|at| left[*at] == 0) {
        return false;
    }
    for at in bounds {
        left[*at] -= 1;
    }
    true
}

/// Nodes of a pool, and how many of them are not Ready.
fn pool_nodes(observed: &Observed, pool: &PoolName) -> (usize, usize) {
    let of_pool = |node: &&crate::fleet::Node| {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let ours = instance.filter(|instance| instance.is_ours(&observed.cluster.name));
        ours.and_then(super::standing::pool_of).is_some_and(|of| of == *pool)
    };
    let nodes = || observed.nodes.values().filter(of_pool);
    (nodes().count(), nodes().filter(|node| !node.ready).count())
}

/// Returns how many nodes a budget lets go, of so many of which some are gone already; a share is
/// rounded up.
fn most(budget: &Budget, (nodes, gone): (usize, usize)) -> usize {
    let number = |text: &str| text.trim().parse::<usize>().unwrap_or(0);
    let most = match budget.nodes.strip_suffix('%') {
        Some(share) => nodes.saturating_mul(number(share)).div_ceil(100),
        None => number(&budget.nodes),
    };
    most.saturating_sub(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_what_is_gone_counts() {
        let budget = |nodes: &str| Budget {
            nodes: nodes.to_owned(),
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
            assert_eq!(most(&budget(nodes), there), left, "{nodes} of {there:?}");
        }
    }

    #[test]
    fn each_budget_bounds_what_goes_for_the_reasons_it_names() {
        let pool = PoolName::from("p");
        let named = [UNDERUTILIZED.to_owned()];
        let quotas = [
            Quota { pool: &pool, reasons: &[], most: 3 },
            Quota { pool: &pool, reasons: &named, most: 1 },
        ];
        let bounds = |reason: &str| -> Vec<usize> {
            (0..2).filter(|at| quotas[*at].concerns(&pool, reason)).collect()
        };
        let mut left = vec![3, 1];
        for (reason, goes) in [
            (UNDERUTILIZED, true),
            (UNDERUTILIZED, false),
            (EMPTY, true),
            (DRIFTED, true),
            (EMPTY, false),
        ] {
            assert_eq!(take(&mut left, &bounds(reason)), goes, "{reason}");
        }
        assert!(!quotas[0].concerns(&PoolName::from("q"), EMPTY), "of another pool");
    }
}
