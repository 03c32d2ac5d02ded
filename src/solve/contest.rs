//! What pods without a place do to others: whom kube-scheduler would evict for them, and whose room
//! they may take by coming first.
//!
//! A pod that the plan leaves out stays in the scheduler's queue. This module says what comes of
//! that; it moves nothing, and decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::rehearse::{Settled, Stage};
use super::rescue::Hearing;
use super::runs::planned_pods;
use super::target::{Contest, workload_key};
use crate::demand::PodGroup;
use crate::manifest::{Desired, DisruptionBudget, kept_pods};
use crate::pod::Selector;
use crate::schedule::{Budget, NamespaceLabels, Selection};

/// Pods of one group for which evictions are looked for.
const PODS_MAX: u32 = 256;

/// Pods times nodes above which nobody asks who would come first.
const WORK_MAX: u64 = 500_000;

impl Stage<'_> {
    /// Returns what the pods of each group that has some left over do to others.
    pub(super) fn contests(
        &self,
        settled: &Settled,
        budgets: Vec<Budget>,
    ) -> BTreeMap<usize, Contest> {
        let mut contests: BTreeMap<usize, Contest> = BTreeMap::new();
        if settled.unplaced.is_empty() || self.is_too_large_to_contest(settled) {
            return contests;
        }
        for left in self.left_in_each_run(settled) {
            self.compare(settled, &left, &mut contests);
        }
        let mut groups: Vec<usize> = settled.unplaced.keys().copied().collect();
        groups.retain(|group| self.groups[*group].shape.preempts);
        groups.sort_by_key(|group| (Reverse(self.groups[*group].shape.priority), *group));
        let mut hearing = Hearing::of(self, settled).with_budgets(budgets);
        for group in groups {
            let pods = settled.unplaced[&group].min(PODS_MAX);
            for _ in 0..pods {
                let Some(victims) = hearing.evict_for(group) else { break };
                if victims.is_empty() {
                    continue;
                }
                let contest = contests.entry(group).or_default();
                contest.let_in += 1;
                for victim in victims {
                    *contest.evicts.entry(workload_key(victim)).or_insert(0) += 1;
                }
            }
        }
        contests
    }

    fn is_too_large_to_contest(&self, settled: &Settled) -> bool {
        let nodes = u64::try_from(self.ground.standing.len() + settled.offers.len());
        planned_pods(self.groups).saturating_mul(nodes.unwrap_or(u64::MAX)) > WORK_MAX
    }

    /// Says, where that is so, that not all is said of what pods without a place do to others.
    pub(super) fn uncontested_text(&self, settled: &Settled) -> Option<String> {
        if settled.unplaced.values().all(|pods| *pods == 0) {
            return None;
        }
        if self.is_too_large_to_contest(settled) {
            return Some(
                "whom pods without a place would evict, and whose room they would take by coming \
                 first, is not looked at in a fleet of this size"
                    .to_owned(),
            );
        }
        let many =
            |(group, pods): (&usize, &u32)| self.groups[*group].shape.preempts && *pods > PODS_MAX;
        settled.unplaced.iter().any(many).then(|| {
            format!("evictions are counted for {PODS_MAX} pods of a workload, and are more beyond")
        })
    }

    /// Notes whose pods wait where pods that were to be left out came first.
    fn compare(
        &self,
        settled: &Settled,
        left: &BTreeMap<usize, u32>,
        contests: &mut BTreeMap<usize, Contest>,
    ) {
        let of =
            |counts: &BTreeMap<usize, u32>, group: &usize| counts.get(group).copied().unwrap_or(0);
        let waits = left.iter().filter_map(|(group, pods)| {
            let more = pods.saturating_sub(of(&settled.unplaced, group));
            (more > 0).then(|| (workload_key(&self.groups[*group].workload), more))
        });
        let waits: Vec<(String, u32)> = waits.collect();
        for (group, pods) in &settled.unplaced {
            if of(left, group) < *pods && !waits.is_empty() {
                let contest = contests.entry(*group).or_default();
                for (name, more) in &waits {
                    let most = contest.displaces.entry(name.clone()).or_insert(0);
                    *most = (*most).max(*more);
                }
            }
        }
    }
}

/// Returns the disruption budgets of the repository with what each allows now, as the disruption
/// controller works it out: of the pods that run, so many have to stay.
pub(super) fn budgets(desired: &Desired, groups: &[PodGroup]) -> Vec<Budget> {
    let namespaces = NamespaceLabels::new(&desired.namespaces);
    let allowed = |budget: &DisruptionBudget, selector: &Selector| {
        let DisruptionBudget { namespace, min_available, max_unavailable, .. } = budget;
        let protects = Selection::of_budget(&Budget {
            namespace: namespace.clone(),
            selector: selector.clone(),
            allowed: 0,
        });
        let protects = |group: &&PodGroup| {
            protects.as_ref().is_some_and(|own| own.matches(&group.shape, &namespaces))
        };
        let (mut wanted, mut healthy) = (0_i64, 0_i64);
        for group in groups.iter().filter(protects) {
            wanted += i64::from(group.counts.planned);
            healthy += group.running.values().map(|pods| i64::from(*pods)).sum::<i64>();
        }
        let keep = kept_pods(min_available.as_deref(), max_unavailable.as_deref(), wanted);
        keep.map_or(0, |keep| u32::try_from(healthy - keep).unwrap_or(0))
    };
    let budget = |budget: &DisruptionBudget| {
        let selector = budget.selector.clone()?;
        let allowed = allowed(budget, &selector);
        Some(Budget { namespace: budget.namespace.clone(), selector, allowed })
    };
    desired.disruption_budgets.iter().filter_map(budget).collect()
}
