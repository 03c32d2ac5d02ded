//! How many nodes of a pool one plan lets go: the disruption budgets that the pool states.
//!
//! A budget of none bars a node from the start (`leave`). One that allows some bounds how many nodes
//! of its pool a plan removes, or replaces, for the reasons that it names while it holds. The ten
//! percent that Karpenter takes where nothing is written is its pace, and limits no plan. Nodes that
//! are not Ready count as gone already; what has expired, or lost its pool, goes in any case, as
//! with Karpenter.
//!
//! Source: karpenter core, `pkg/apis/v1/nodepool.go` (`MustGetAllowedDisruptions`), `pkg/controllers/disruption/helpers.go`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::leave::holds;
use super::standing::{Fate, Standing};
use super::target::{BlockReason, KeepReason, RetireReason};
use crate::demand::PodGroup;
use crate::fleet::Observed;
use crate::ids::{NodeName, PoolName};
use crate::manifest::{Budget, Desired};

/// What a node goes for, in the words of budgets.
pub(super) const EMPTY: &str = "Empty";
pub(super) const UNDERUTILIZED: &str = "Underutilized";
pub(super) const DRIFTED: &str = "Drifted";

/// Budgets that hold, and the nodes that they are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    quotas: Vec<Quota>,
    /// What each node would go for, and of which pool it is.
    of_node: BTreeMap<NodeName, (PoolName, &'static str)>,
}

#[derive(Debug, Clone)]
struct Quota {
    pool: PoolName,
    /// Empty means all.
    reasons: Vec<String>,
    /// Nodes that may still go.
    left: usize,
}

impl Quota {
    fn concerns(&self, (pool, reason): &(PoolName, &str)) -> bool {
        self.pool == *pool
            && (self.reasons.is_empty() || self.reasons.iter().any(|named| named == reason))
    }
}

impl Pace {
    /// Returns the budgets that hold at the moment.
    pub(super) fn of(desired: &Desired, observed: &Observed, at: Timestamp) -> Self {
        let mut quotas = Vec::new();
        for pool in desired.pools.values() {
            let written = pool.budgets.iter().filter(|budget| holds(budget, at));
            quotas.extend(written.map(|budget| Quota {
                pool: pool.name.clone(),
                reasons: budget.reasons.clone(),
                left: most(budget, pool_nodes(observed, &pool.name)),
            }));
        }
        Self { quotas, of_node: BTreeMap::new() }
    }

    /// Has no more drifted nodes leave than budgets allow, those first that come first by name, and
    /// notes what the others would go for.
    pub(super) fn hold_back(mut self, standing: &mut [Standing], groups: &[PodGroup]) -> Self {
        if self.quotas.is_empty() {
            return self;
        }
        for node in standing {
            let Some(pool) = &node.pool else { continue };
            let reason = match &node.fate {
                Fate::Leaves(RetireReason::Drifted { .. }) => DRIFTED,
                Fate::Leaves(_) | Fate::Stays(_) => continue,
                Fate::Free | Fate::OnlyWhenEmpty(_) => {
                    let runs =
                        |g: &PodGroup| g.counts.planned > 0 && g.running.contains_key(&node.name);
                    if groups.iter().any(runs) { UNDERUTILIZED } else { EMPTY }
                }
            };
            let key = (pool.clone(), reason);
            if reason == DRIFTED && !self.take(&key) {
                node.fate = Fate::Stays(KeepReason::Blocked { by: BlockReason::Budget });
            } else {
                self.of_node.insert(node.name.clone(), key);
            }
        }
        self
    }

    /// Returns what is left once these nodes are gone that are not drifted.
    pub(super) fn without(&self, gone: impl Iterator<Item = NodeName>) -> Self {
        let mut rest = self.clone();
        if !rest.quotas.is_empty() {
            for name in gone {
                rest.go(&name);
            }
        }
        rest
    }

    /// Returns the nodes of `set` that may go together; the others join `barred`.
    pub(super) fn within(
        &self,
        set: Vec<usize>,
        standing: &[Standing],
        barred: &mut BTreeSet<NodeName>,
    ) -> Vec<usize> {
        if self.quotas.is_empty() {
            return set;
        }
        let mut rest = self.clone();
        let mut may_go = |index: &usize| {
            let goes = rest.go(&standing[*index].name);
            if !goes {
                barred.insert(standing[*index].name.clone());
            }
            goes
        };
        set.into_iter().filter(|index| may_go(index)).collect()
    }

    /// Lets a node go, where that is allowed.
    fn go(&mut self, name: &NodeName) -> bool {
        let key = self.of_node.get(name).filter(|(_, reason)| *reason != DRIFTED).cloned();
        key.is_none_or(|key| self.take(&key))
    }

    fn take(&mut self, key: &(PoolName, &'static str)) -> bool {
        let concerned = |quota: &&Quota| quota.concerns(key);
        if self.quotas.iter().filter(concerned).any(|quota| quota.left == 0) {
            return false;
        }
        for quota in self.quotas.iter_mut().filter(|quota| quota.concerns(key)) {
            quota.left -= 1;
        }
        true
    }
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
        let quota = |reasons: &[&str], left| Quota {
            pool: "p".into(),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            left,
        };
        let mut pace = Pace {
            quotas: vec![quota(&[], 3), quota(&[UNDERUTILIZED], 1)],
            of_node: BTreeMap::new(),
        };
        let key = |reason| (PoolName::from("p"), reason);
        for (reason, goes) in [
            (UNDERUTILIZED, true),
            (UNDERUTILIZED, false),
            (EMPTY, true),
            (DRIFTED, true),
            (EMPTY, false),
        ] {
            assert_eq!(pace.take(&key(reason)), goes, "{reason}");
        }
        assert!(pace.take(&(PoolName::from("q"), EMPTY)), "of another pool");
    }
}
