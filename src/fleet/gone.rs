//! A world without some of its machines: what is planned over while they go.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{InstanceState, Observed, Pod, PodPhase};
use crate::ids::{InstanceId, NodeName, WorkloadKind};

impl Observed {
    /// Takes machines out of the fleet, and their nodes away. A machine stands as stopping: it gives no
    /// room, and its key is not free before it is gone. What belonged to a node goes with it; every other pod
    /// that ran there waits for another place, and one that has ended stays so.
    pub fn take_away(&mut self, gone: &BTreeSet<InstanceId>) {
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
        self.pods.retain(|pod| !(is_left(pod) && pod.belongs_to_node()));
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
    /// Returns whether the pod is there because its node is: of a `DaemonSet`, or of a file of the node.
    #[must_use]
    pub fn belongs_to_node(&self) -> bool {
        let of = self.owner.as_ref().map(|owner| owner.kind);
        self.mirror || of == Some(WorkloadKind::DaemonSet)
    }

    /// Returns whether the pod has to leave its node before that goes: one that has ended need not.
    #[must_use]
    pub fn has_to_leave(&self) -> bool {
        (self.terminating || self.is_active()) && !self.belongs_to_node()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkloadId;
    use crate::story::{Story, workload_id};

    #[test]
    fn what_ran_on_a_machine_that_goes_waits_unless_it_ended_or_belonged_to_the_node() {
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
        let machine = story.observed.nodes[&gone].instance.clone().expect("it has one");
        story.observed.take_away(&[machine.clone()].into());
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
        assert_eq!(story.observed.instances[&machine].state, InstanceState::Stopping);
    }
}
