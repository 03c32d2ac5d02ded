//! Fargate: pods that a profile matches get a machine of their own, and no scheduler sees them.

use std::sync::Arc;

use super::controllers::key_of;
use super::state::{PodKey, State};
use crate::demand::fargate_size;
use crate::fargate::{
    COMPUTE_TYPE, EC2, FARGATE, NODE_PREFIX, PROFILE, SCHEDULER, Size, profile_of,
};
use crate::fleet::{Node, Pod, template_key};
use crate::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::pod::{PodTemplate, Taint, TaintEffect};
use crate::requirement::key;
use crate::units::{Bytes, MilliCpu, Resources};

impl State {
    /// Returns the key of the template that a new pod of `id` is made with: EKS' webhook hands pods
    /// that a profile matches to Fargate's scheduler, once and for all.
    pub(super) fn admitted(&mut self, id: &WorkloadId, template: &str) -> String {
        let Some(changed) = self.handed_over(id, template) else { return template.to_owned() };
        let key = template_key(&changed);
        self.templates.entry(key.clone()).or_insert_with(|| Arc::new(changed));
        key
    }

    fn handed_over(&self, id: &WorkloadId, template: &str) -> Option<PodTemplate> {
        let declared = self.templates.get(template)?;
        let stays = declared.annotations.get(COMPUTE_TYPE).is_some_and(|value| value == EC2)
            || declared.spec.node_name.is_some()
            || id.kind == WorkloadKind::DaemonSet;
        let profiles = self.fargate_profiles.values().filter(|_| !stays);
        let profile = profile_of(profiles, id.namespace.as_str(), &declared.labels)?;
        let mut template = (**declared).clone();
        template.labels.insert(PROFILE.into(), profile.name.as_str().into());
        template.spec.scheduler_name = Some(SCHEDULER.to_owned());
        Some(template)
    }

    /// Gives each pod that waits for Fargate a machine, if Fargate has one that it fits.
    pub(super) fn run_fargate(&mut self) {
        let waits = |pod: &&Pod| pod.node.is_none() && pod.is_active();
        let waiting: Vec<Pod> = self.pods.iter().filter(waits).cloned().collect();
        for pod in waiting {
            let Some(template) = self.templates.get(&pod.template).cloned() else { continue };
            if template.spec.scheduler_name.as_deref() != Some(SCHEDULER) {
                continue;
            }
            let Some(shape) = self.pod_shape(&pod) else { continue };
            if let Ok(size) = fargate_size(&shape, &template.spec) {
                let node = self.machine_of_fargate(size);
                self.bind(&key_of(&pod), node);
            }
        }
    }

    fn machine_of_fargate(&mut self, size: Size) -> NodeName {
        let uid = self.next_uid();
        let name: NodeName = format!("{NODE_PREFIX}{}", self.node_name(&uid)).into();
        let value = || FARGATE.into();
        let capacity = Resources {
            cpu: MilliCpu(size.cpu_milli),
            memory: Bytes::mib(size.memory_mib),
            pods: 1,
            ..Resources::default()
        };
        let node = Node {
            name: name.clone(),
            uid,
            instance: None,
            labels: [(COMPUTE_TYPE.into(), value()), (key::HOSTNAME.into(), name.as_str().into())]
                .into(),
            annotations: [].into(),
            taints: vec![Taint {
                key: COMPUTE_TYPE.into(),
                value: value(),
                effect: TaintEffect::NoSchedule,
            }],
            allocatable: capacity.clone(),
            capacity,
            ready: true,
            faults: [].into(),
            unschedulable: false,
            created_at: self.now,
        };
        self.nodes.insert(name.clone(), node);
        name
    }

    /// Takes a machine of Fargate away with its pod.
    pub(super) fn leave_fargate(&mut self, pod: &PodKey) {
        let node = self.pods.get(pod).and_then(|pod| pod.node.clone());
        let Some(node) = node else { return };
        if self.nodes.get(&node).is_some_and(Node::is_fargate) {
            self.nodes.remove(&node);
        }
    }
}
