//! Disruption budgets: evaluates evictions.
//!
//! Follows the disruption controller of Kubernetes: percentages refer to the desired replicas of
//! the controllers of the matched pods.

use std::collections::BTreeSet;

use super::state::{WorldBudget, WorldState};
use crate::apply::ports::EvictOutcome;
use crate::model::desired::pods_to_keep;
use crate::model::ids::WorkloadId;
use crate::model::observed::{Pod, PodPhase};

/// A disruption budget with its current status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetStatus {
    /// The stored budget.
    pub(super) budget: WorldBudget,
    /// Number of protected pods.
    pub expected: i64,
    /// Number of healthy pods.
    pub healthy: i64,
    /// Number of allowed disruptions.
    pub allowed: i64,
}

impl WorldState {
    /// Returns whether `pod` may be evicted now, or the budget that blocks it.
    ///
    /// # Errors
    /// Returns an error if several budgets match the pod, as the Eviction API does.
    pub(super) fn evaluate_eviction(&self, pod: &Pod) -> Result<EvictOutcome, String> {
        // The API ignores budgets for a pod that does not run yet.
        if pod.phase != PodPhase::Running {
            return Ok(EvictOutcome::Evicted);
        }
        let protects = |budget: &&WorldBudget| self.is_protected_by(budget, pod);
        let mut budgets = self.budgets.iter().filter(protects);
        match (budgets.next(), budgets.next()) {
            (None, _) => Ok(EvictOutcome::Evicted),
            (Some(budget), None) if self.allowed_disruptions(budget) > 0 => {
                Ok(EvictOutcome::Evicted)
            }
            (Some(WorldBudget { namespace, name, .. }), None) => {
                Ok(EvictOutcome::Blocked { budget: format!("{namespace}/{name}") })
            }
            (Some(one), Some(other)) => Err(format!(
                "pod `{}/{}` is protected by more than one budget: `{}`, `{}`",
                pod.namespace, pod.name, one.name, other.name
            )),
        }
    }

    fn is_protected_by(&self, budget: &WorldBudget, pod: &Pod) -> bool {
        let labels = self.templates.get(&*pod.template).map(|template| &template.labels);
        budget.namespace == pod.namespace
            && budget
                .selector
                .as_ref()
                .zip(labels)
                .is_some_and(|(selector, labels)| selector.matches(labels))
    }

    /// Returns the number of pods of the budget that may be evicted now. An unknown number is zero.
    fn allowed_disruptions(&self, budget: &WorldBudget) -> i64 {
        self.budget_status(budget).allowed
    }

    /// Returns the current status of a budget.
    pub(super) fn budget_status(&self, budget: &WorldBudget) -> BudgetStatus {
        let matched: Vec<&Pod> = self
            .pods
            .iter()
            .filter(|pod| pod.is_active() && self.is_protected_by(budget, pod))
            .collect();
        let healthy = matched.iter().filter(|pod| pod.phase == PodPhase::Running).count();
        let expected = self.expected_replicas(&matched);
        let WorldBudget { min_available, max_unavailable, .. } = budget;
        let minimum = pods_to_keep(min_available.as_deref(), max_unavailable.as_deref(), expected);
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let healthy = count(healthy);
        BudgetStatus {
            budget: budget.clone(),
            expected: count(matched.len()),
            healthy,
            allowed: minimum.map_or(0, |minimum| healthy.saturating_sub(minimum)),
        }
    }

    fn expected_replicas(&self, pods: &[&Pod]) -> i64 {
        let owners: BTreeSet<&WorkloadId> =
            pods.iter().filter_map(|pod| pod.owner.as_ref()).collect();
        let replicas = |owner: &WorkloadId| self.controllers.get(owner).map(|c| c.replicas);
        owners.into_iter().filter_map(replicas).map(i64::from).sum()
    }
}
