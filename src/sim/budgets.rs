//! Disruption budgets: whether an eviction is allowed now.
//!
//! Follows the disruption controller of Kubernetes: shares are of the replicas that the controllers
//! of the matched pods want.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::outside::Allowance;
use super::state::State;
use crate::demand::label_set;
use crate::fleet::{Pod, PodPhase};
use crate::ids::{Labels, Namespace, WorkloadId};
use crate::manifest::{DisruptionBudget, kept_pods};
use crate::pod::Selector;
use crate::port::EvictOutcome;

/// A budget as the world keeps it; amounts as written (`2` or `30%`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Budget {
    pub(super) namespace: Namespace,
    pub(super) name: String,
    pub(super) selector: Option<Selector>,
    pub(super) min_available: Option<String>,
    pub(super) max_unavailable: Option<String>,
}

impl From<&DisruptionBudget> for Budget {
    fn from(budget: &DisruptionBudget) -> Self {
        let DisruptionBudget {
            namespace,
            name,
            origin: _,
            selector,
            min_available,
            max_unavailable,
        } = budget.clone();
        Self { namespace, name, selector, min_available, max_unavailable }
    }
}

/// Returns whether every expression of `selector` holds for `labels`.
fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.0.iter().all(|wish| label_set(wish).contains(labels.get(&wish.key)))
}

impl State {
    /// Returns whether `pod` may be evicted now, and by which budget it may not.
    ///
    /// # Errors
    /// When more than one budget protects the pod: the Eviction API refuses to choose.
    pub(super) fn may_evict(&self, pod: &Pod) -> Result<EvictOutcome, String> {
        // A pod that does not run yet serves nobody; the API ignores budgets for it.
        if pod.phase != PodPhase::Running {
            return Ok(EvictOutcome::Evicted);
        }
        let protects = |budget: &&Budget| self.is_protected(budget, pod);
        let mut budgets = self.budgets.iter().filter(protects);
        match (budgets.next(), budgets.next()) {
            (None, _) => Ok(EvictOutcome::Evicted),
            (Some(budget), None) if self.allowed(budget) > 0 => Ok(EvictOutcome::Evicted),
            (Some(Budget { namespace, name, .. }), None) => {
                Ok(EvictOutcome::Blocked { budget: format!("{namespace}/{name}") })
            }
            (Some(one), Some(other)) => Err(format!(
                "pod `{}/{}` is protected by more than one budget: `{}`, `{}`",
                pod.namespace, pod.name, one.name, other.name
            )),
        }
    }

    fn is_protected(&self, budget: &Budget, pod: &Pod) -> bool {
        let labels = self.templates.get(&pod.template).map(|template| &template.labels);
        budget.namespace == pod.namespace
            && budget
                .selector
                .as_ref()
                .zip(labels)
                .is_some_and(|(selector, labels)| selects(selector, labels))
    }

    /// Returns how many of the budget's pods may go now; nothing where that is not known.
    fn allowed(&self, budget: &Budget) -> i64 {
        self.allowance(budget).allowed
    }

    /// Returns what a budget allows now, and of how many pods.
    pub(super) fn allowance(&self, budget: &Budget) -> Allowance {
        let matched: Vec<&Pod> = self
            .pods
            .iter()
            .filter(|pod| pod.is_active() && self.is_protected(budget, pod))
            .collect();
        let healthy = matched.iter().filter(|pod| pod.phase == PodPhase::Running).count();
        let wanted = self.wanted(&matched);
        let Budget { namespace, name, selector, min_available, max_unavailable } = budget.clone();
        let keep = kept_pods(min_available.as_deref(), max_unavailable.as_deref(), wanted);
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let healthy = count(healthy);
        Allowance {
            namespace,
            name,
            selector,
            min_available,
            max_unavailable,
            expected: count(matched.len()),
            healthy,
            allowed: keep.map_or(0, |keep| healthy.saturating_sub(keep)),
        }
    }

    /// Returns how many replicas the controllers of `pods` want together.
    fn wanted(&self, pods: &[&Pod]) -> i64 {
        let owners: BTreeSet<&WorkloadId> =
            pods.iter().filter_map(|pod| pod.owner.as_ref()).collect();
        let replicas = |owner: &WorkloadId| self.controllers.get(owner).map(|c| c.replicas);
        owners.into_iter().filter_map(replicas).map(i64::from).sum()
    }
}
