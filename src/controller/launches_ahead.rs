//! Launches ahead of pods: nodes for pods that a new commit adds and the cluster does not have yet.
//!
//! Delivery tools usually apply a commit before the controller reads it. Pods that the repository
//! declares and the cluster had before are then gone for a newer commit, which the next read shows.
//! Invariant: pods of a workload allow launches ahead until the cluster has had all of them once.

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::is_pending;
use crate::model::observed::Observed;
use crate::plan::Plan;
use crate::plan::wire::{Decider, workload_key};

/// Pods that commits added, by workload (`namespace/kind/name`).
#[derive(Debug, Clone, Default)]
pub struct LaunchesAhead {
    /// Commit of the last full plan.
    commit: Option<String>,
    /// Number of pods that the repository declares.
    declared: BTreeMap<String, u32>,
    /// Other workloads that the plan counts, such as those of autoscalers and schedules.
    others: BTreeSet<String>,
    /// Workloads to which a commit added pods that the cluster has not had since.
    added: BTreeSet<String>,
}

impl LaunchesAhead {
    /// Compares the pods that a full plan of `commit` counts with those of the commit before.
    /// `was_delivered` is true if the cluster has had all pods of this commit, as an earlier process
    /// noted.
    pub(super) fn update(
        &mut self,
        plan: &Plan,
        commit: &str,
        was_delivered: bool,
        observed: &Observed,
    ) {
        let declared = declared_pods(plan);
        let is_new = self.commit.as_deref() != Some(commit);
        if is_new && !(self.commit.is_none() && was_delivered) {
            let before = |workload: &String| self.declared.get(workload).copied().unwrap_or(0);
            let added = declared.iter().filter(|(workload, pods)| **pods > before(workload));
            self.added.extend(added.map(|(workload, _)| workload.clone()));
        }
        let existing = ExistingPods::of(observed);
        self.added.retain(|workload| {
            declared.get(workload).is_some_and(|pods| existing.count(workload) < *pods)
        });
        self.commit = Some(commit.to_owned());
        self.declared = declared;
        let others = plan.capacity.demand.iter().filter(|row| row.decided_by != Decider::Git);
        self.others = others.map(|row| workload_key(&row.workload)).collect();
    }

    /// Returns true if the cluster has had all pods that commits added.
    pub(super) fn is_delivered(&self) -> bool {
        self.added.is_empty()
    }

    /// Returns true if a commit added pods to the workload that the cluster has not had since.
    pub(super) fn has_added(&self, workload: &str) -> bool {
        self.added.contains(workload)
    }

    /// Returns true if pods are pending that the last full plan does not count: the cluster has more
    /// pods of a workload than the repository declares, or a workload that is new.
    pub(super) fn has_uncounted_pending_pods(&self, observed: &Observed) -> bool {
        let existing = ExistingPods::of(observed);
        existing.pending.iter().any(|workload| match self.declared.get(workload) {
            Some(declared) => existing.count(workload) > *declared,
            None => !self.others.contains(workload),
        })
    }

    /// Returns the workloads with fewer pods than the repository declares, none of them pending and
    /// none added by a new commit.
    pub(super) fn missing_workloads(&self, plan: &Plan, observed: &Observed) -> BTreeSet<String> {
        let existing = ExistingPods::of(observed);
        let is_missing = |(workload, pods): &(String, u32)| {
            existing.count(workload) < *pods
                && !existing.pending.contains(workload)
                && !self.added.contains(workload)
        };
        declared_pods(plan).into_iter().filter(is_missing).map(|(workload, _)| workload).collect()
    }
}

/// Returns the planned pods of workloads whose number the repository states.
fn declared_pods(plan: &Plan) -> BTreeMap<String, u32> {
    let mut declared = BTreeMap::new();
    for row in plan.capacity.demand.iter().filter(|row| row.decided_by == Decider::Git) {
        *declared.entry(workload_key(&row.workload)).or_insert(0) += row.counts.planned;
    }
    declared
}

/// Pods of each workload in the cluster.
struct ExistingPods {
    counts: BTreeMap<String, u32>,
    pending: BTreeSet<String>,
}

impl ExistingPods {
    fn of(observed: &Observed) -> Self {
        let (mut counts, mut pending) = (BTreeMap::new(), BTreeSet::new());
        for (workload, pods) in observed.pod_runs() {
            let pods = pods.iter().filter(|pod| pod.is_active() && !pod.is_node_bound());
            let count = u32::try_from(pods.clone().count()).unwrap_or(u32::MAX);
            if count == 0 {
                continue;
            }
            let workload = workload_key(&workload);
            if pods.clone().any(|pod| is_pending(pod)) {
                pending.insert(workload.clone());
            }
            *counts.entry(workload).or_insert(0) += count;
        }
        Self { counts, pending }
    }

    fn count(&self, workload: &str) -> u32 {
        self.counts.get(workload).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
