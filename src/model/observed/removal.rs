//! Removes instances from a world: the state to plan over while they are being terminated.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{InstanceState, Observed, Pod, PodPhase};
use crate::model::ids::{InstanceId, NodeName, WorkloadKind};

impl Observed {
    /// Removes the nodes of instances and marks the instances as stopping: they offer no capacity, and
    /// their keys stay in use until they are gone. Pods bound to a node disappear with it. Running pods
    /// become pending; finished pods stay finished.
    pub fn remove_instances(&mut self, gone: &BTreeSet<InstanceId>) {
        if gone.is_empty() {
            return;
        }
        for instance in
            self.instances.values_mut().filter(|i| gone.contains(&i.id) && i.is_active())
        {
            instance.state = InstanceState::Stopping;
        }
        let left: BTreeSet<NodeName> = self
            .nodes
            .values()
            .filter(|node| node.instance.as_ref().is_some_and(|id| gone.contains(id)))
            .map(|node| node.name.clone())
            .collect();
        self.nodes.retain(|name, _| !left.contains(name));
        let is_left = |pod: &Pod| pod.node.as_ref().is_some_and(|node| left.contains(node));
        self.pods.retain(|pod| !(is_left(pod) && pod.is_node_bound()));
        for pod in self.pods.iter_mut().filter(|pod| is_left(pod)) {
            let pod = Arc::make_mut(pod);
            pod.node = None;
            if pod.phase == PodPhase::Running {
                pod.phase = PodPhase::Pending;
            }
        }
    }
}

impl Pod {
    /// Returns whether the pod exists because of its node: a mirror pod, or a pod of a `DaemonSet`.
    #[must_use]
    pub fn is_node_bound(&self) -> bool {
        let owner = self.owner.as_ref().map(|owner| owner.kind);
        self.mirror || owner == Some(WorkloadKind::DaemonSet)
    }

    /// Returns whether a drain must evict the pod, or wait until it has terminated.
    #[must_use]
    pub fn needs_eviction(&self) -> bool {
        (self.terminating || self.is_active()) && !self.is_node_bound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::WorkloadId;
    use crate::testing::{Story, workload_id};

    #[test]
    fn pods_of_removed_instances_become_pending() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.step(1);
        let pod = story.observed.pods.first().expect("it is bound").clone();
        let (gone, stays) = (pod.node.clone().expect("it is bound"), NodeName::from("elsewhere"));
        let daemon = WorkloadId { kind: WorkloadKind::DaemonSet, ..workload_id() };
        let on = |name: &str, change: &dyn Fn(&mut Pod)| {
            let mut pod = Pod { name: name.into(), uid: name.into(), ..Pod::clone(&pod) };
            change(&mut pod);
            Arc::new(pod)
        };
        story.observed.pods = vec![
            on("runs", &|pod| pod.phase = PodPhase::Running),
            on("ended", &|pod| pod.phase = PodPhase::Succeeded),
            on("daemon", &|pod| pod.owner = Some(daemon.clone())),
            on("mirror", &|pod| pod.mirror = true),
            on("elsewhere", &|pod| pod.node = Some(stays.clone())),
        ];
        let instance = story.observed.nodes[&gone].instance.clone().expect("it has one");
        story.observed.remove_instances(&[instance.clone()].into());
        let left: Vec<_> = story
            .observed
            .pods
            .iter()
            .map(|pod| (&*pod.name, pod.node.as_ref().map(NodeName::as_str), pod.phase))
            .collect();
        assert_eq!(
            left,
            [
                ("runs", None, PodPhase::Pending),
                ("ended", None, PodPhase::Succeeded),
                ("elsewhere", Some("elsewhere"), pod.phase),
            ]
        );
        assert!(!story.observed.nodes.contains_key(&gone));
        assert_eq!(story.observed.instances[&instance].state, InstanceState::Stopping);
    }
}
