//! Removes instances from the observed state, to plan while they are being terminated.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{InstanceState, Observed, Pod, PodPhase};
use crate::model::ids::{InstanceId, NodeName, WorkloadKind};

impl Observed {
    /// Removes the nodes of these instances, and marks the instances as stopping. Stopping
    /// instances offer no capacity, but retain their keys. Node-bound pods are removed with their
    /// node. Running pods become pending, and finished pods remain finished.
    pub fn remove_instances(&mut self, removed: &BTreeSet<InstanceId>) {
        if removed.is_empty() {
            return;
        }
        for instance in
            self.instances.values_mut().filter(|i| removed.contains(&i.id) && i.is_active())
        {
            instance.state = InstanceState::Stopping;
        }
        let nodes: BTreeSet<NodeName> = self
            .nodes
            .values()
            .filter(|node| node.instance.as_ref().is_some_and(|id| removed.contains(id)))
            .map(|node| node.name.clone())
            .collect();
        self.nodes.retain(|name, _| !nodes.contains(name));
        let was_on_node = |pod: &Pod| pod.node.as_ref().is_some_and(|node| nodes.contains(node));
        self.pods.retain(|pod| !(was_on_node(pod) && pod.is_node_bound()));
        for pod in self.pods.iter_mut().filter(|pod| was_on_node(pod)) {
            let pod = Arc::make_mut(pod);
            pod.node = None;
            if pod.phase == PodPhase::Running {
                pod.phase = PodPhase::Pending;
            }
        }
    }
}

impl Pod {
    /// Returns true for a pod that belongs to its node: a mirror pod, or a pod of a `DaemonSet`.
    pub fn is_node_bound(&self) -> bool {
        let owner = self.owner.as_ref().map(|owner| owner.kind);
        self.mirror || owner == Some(WorkloadKind::DaemonSet)
    }

    /// Returns true if a drain must evict the pod or await its termination.
    pub fn needs_eviction(&self) -> bool {
        (self.terminating || self.is_active()) && !self.is_node_bound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::WorkloadId;
    use crate::testing::{Scenario, workload_id};

    #[test]
    fn pods_of_removed_instances_become_pending() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.step(1);
        let pod = scenario.observed.pods.first().expect("a bound pod").clone();
        let (removed, other) =
            (pod.node.clone().expect("a bound pod"), NodeName::from("elsewhere"));
        let daemon = WorkloadId { kind: WorkloadKind::DaemonSet, ..workload_id() };
        let on = |name: &str, change: &dyn Fn(&mut Pod)| {
            let mut pod = Pod { name: name.into(), uid: name.into(), ..Pod::clone(&pod) };
            change(&mut pod);
            Arc::new(pod)
        };
        scenario.observed.pods = vec![
            on("runs", &|pod| pod.phase = PodPhase::Running),
            on("ended", &|pod| pod.phase = PodPhase::Succeeded),
            on("daemon", &|pod| pod.owner = Some(daemon.clone())),
            on("mirror", &|pod| pod.mirror = true),
            on("elsewhere", &|pod| pod.node = Some(other.clone())),
        ];
        let instance =
            scenario.observed.nodes[&removed].instance.clone().expect("a node with an instance");
        scenario.observed.remove_instances(&[instance.clone()].into());
        let pods: Vec<_> = scenario
            .observed
            .pods
            .iter()
            .map(|pod| (&*pod.name, pod.node.as_ref().map(NodeName::as_str), pod.phase))
            .collect();
        assert_eq!(
            pods,
            [
                ("runs", None, PodPhase::Pending),
                ("ended", None, PodPhase::Succeeded),
                ("elsewhere", Some("elsewhere"), pod.phase),
            ]
        );
        assert!(!scenario.observed.nodes.contains_key(&removed));
        assert_eq!(scenario.observed.instances[&instance].state, InstanceState::Stopping);
    }
}
