//! Which pods end when a workload runs more pods than are planned.
//!
//! A plan is made before its commit is delivered. The controllers delete the surplus pods after the
//! delivery and before the first drain, and they choose the pods. A plan that assumes other pods
//! would move more of them than it states.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::live_pods::LivePods;
use super::{Demand, PodGroup};
use crate::model::desired::Desired;
use crate::model::ids::{NodeName, WorkloadKind};
use crate::model::observed::{Pod, SurplusPod, surplus_pods};

impl Demand {
    /// Moves the surplus pods of each group from `running` to `ending`. All counts must be known.
    pub(super) fn predict_ending_pods(
        &mut self,
        desired: &Desired,
        live: &LivePods<'_>,
        now: Timestamp,
    ) {
        // Pods with `nodeName` run on the node of the template, not where pods are now.
        let is_chosen = |group: &&mut PodGroup| group.shape.nodes.name.is_none();
        for group in self.groups.iter_mut().filter(is_chosen) {
            let pods = live.pods_of(&group.workload);
            let planned = usize::try_from(group.counts.planned).unwrap_or(usize::MAX);
            let surplus = pods.len().saturating_sub(planned);
            if surplus == 0 || group.running.is_empty() {
                continue;
            }
            let ending = if group.workload.kind == WorkloadKind::StatefulSet {
                let workload = desired.workloads.get(&group.workload);
                let first = workload.map_or(0, |workload| workload.first_ordinal);
                by_ordinal(pods, first, group.counts.planned, surplus)
            } else {
                surplus_pods(group.workload.kind, pods.iter().copied(), surplus, now)
            };
            let is_mixed =
                planned > 0 && has_replica_sets(group.workload.kind) && has_several_templates(pods);
            for SurplusPod { pod, may_stay } in ending {
                if let Some(node) = &pod.node {
                    group.end_pod(node, may_stay || is_mixed);
                }
            }
        }
    }
}

/// Returns true if the controller of a kind makes a ReplicaSet for each template. The pods of other
/// kinds may have labels of their own, so that each has another template.
fn has_replica_sets(kind: WorkloadKind) -> bool {
    matches!(kind, WorkloadKind::Deployment | WorkloadKind::Rollout)
}

/// Returns true if the pods have several templates. The Deployment controller then scales several
/// ReplicaSets, each by a share.
fn has_several_templates(pods: &[&Pod]) -> bool {
    pods.windows(2).any(|pair| pair[0].template != pair[1].template)
}

/// Returns the pods that the controller of a `StatefulSet` deletes: those outside of its ordinals,
/// the highest first.
fn by_ordinal<'p>(
    pods: &[&'p Pod],
    first: u32,
    planned: u32,
    surplus: usize,
) -> Vec<SurplusPod<'p>> {
    let ordinal = |pod: &Pod| pod.name.rsplit_once('-').and_then(|(_, text)| text.parse().ok());
    let ordinals = first..first.saturating_add(planned);
    let mut pods: Vec<(Option<u32>, &Pod)> = pods.iter().map(|pod| (ordinal(pod), *pod)).collect();
    pods.sort_by_key(|(ordinal, _)| {
        (ordinal.is_some_and(|ordinal| ordinals.contains(&ordinal)), Reverse(*ordinal))
    });
    let surplus = pods.into_iter().take(surplus);
    surplus.map(|(_, pod)| SurplusPod { pod, may_stay: false }).collect()
}

impl PodGroup {
    fn end_pod(&mut self, node: &NodeName, may_stay: bool) {
        let Some(running) = self.running.get_mut(node) else { return };
        *running = running.saturating_sub(1);
        if *running == 0 {
            self.running.remove(node);
        }
        let ending = self.ending.entry(node.clone()).or_default();
        ending.pods += 1;
        ending.may_stay += u32::from(may_stay);
    }

    /// Returns the number of active pods on a node, ending ones included.
    pub fn active_on(&self, node: &NodeName) -> u32 {
        let running = self.running.get(node).copied().unwrap_or(0);
        running + self.ending.get(node).map_or(0, |ending| ending.pods)
    }

    /// Returns the number of active pods on all nodes, ending ones included.
    pub fn active(&self) -> u32 {
        self.active_by_node().values().sum()
    }

    /// Returns the number of active pods by node, ending ones included.
    pub fn active_by_node(&self) -> BTreeMap<&NodeName, u32> {
        let nodes = self.running.keys().chain(self.ending.keys());
        nodes.map(|node| (node, self.active_on(node))).collect()
    }

    /// Returns the number of ending pods on a node that may stay.
    pub fn may_stay_on(&self, node: &NodeName) -> u32 {
        self.ending.get(node).map_or(0, |ending| ending.may_stay)
    }

    /// Forgets all pods that run.
    pub fn clear_running(&mut self) {
        self.running.clear();
        self.ending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world::pod;

    #[test]
    fn a_stateful_set_loses_the_pods_outside_of_its_ordinals_first() {
        let of = |names: &[&str], first: u32, planned: u32, surplus: usize| {
            let pods: Vec<Pod> = names.iter().map(|name| pod(name)).collect();
            let pods: Vec<&Pod> = pods.iter().collect();
            let ending = by_ordinal(&pods, first, planned, surplus);
            assert!(ending.iter().all(|one| !one.may_stay));
            ending.iter().map(|one| one.pod.name.to_string()).collect::<Vec<_>>()
        };
        let ten = ["db-0", "db-1", "db-2", "db-9", "db-10"];
        assert_eq!(of(&ten, 0, 3, 2), ["db-10", "db-9"], "numbers, and not texts");
        assert_eq!(of(&["db-0", "db-1", "db-2"], 1, 2, 1), ["db-0"], "the first ordinal is 1");
        assert_eq!(of(&["db-0", "db-2", "db-3"], 0, 2, 1), ["db-3"], "a pod is missing");
        assert_eq!(of(&["db-0", "db-x"], 0, 1, 1), ["db-x"], "a name without an ordinal");
    }

    #[test]
    fn only_deployments_scale_one_replica_set_for_each_template() {
        let pods = ["a", "b"].map(|template| Pod { template: template.into(), ..pod("x") });
        assert!(has_several_templates(&pods.each_ref()));
        assert!(!has_several_templates(&[&pods[0], &pods[0]]));
        assert!(has_replica_sets(WorkloadKind::Deployment));
        assert!(!has_replica_sets(WorkloadKind::StatefulSet));
    }
}
