//! Fargate: a matching pod gets its own node, without a scheduler.

use std::sync::Arc;

use super::state::{PodKey, WorldState, pod_key};
use crate::demand::fargate_size;
use crate::model::fargate::{
    COMPUTE_TYPE, EC2, FARGATE, FargateSize, NODE_PREFIX, PROFILE, SCHEDULER, select_profile,
};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{Node, Pod, template_key};
use crate::model::pod::{PodTemplate, Taint, TaintEffect};
use crate::model::requirement::key;
use crate::model::units::{Bytes, MilliCpu, Resources};

impl WorldState {
    /// Returns the template key for a new pod of `id`. The EKS webhook assigns pods that match a
    /// profile to the Fargate scheduler permanently.
    pub(super) fn admit(&mut self, id: &WorkloadId, template: &str) -> String {
        let Some(changed) = self.fargate_template(id, template) else { return template.to_owned() };
        let key = template_key(&changed);
        self.templates.entry(key.clone()).or_insert_with(|| Arc::new(changed));
        key
    }

    fn fargate_template(&self, id: &WorkloadId, template: &str) -> Option<PodTemplate> {
        let declared = self.templates.get(template)?;
        let is_excluded = declared.annotations.get(COMPUTE_TYPE).is_some_and(|value| value == EC2)
            || declared.spec.node_name.is_some()
            || id.kind == WorkloadKind::DaemonSet;
        let profiles = self.fargate_profiles.values().filter(|_| !is_excluded);
        let profile = select_profile(profiles, id.namespace.as_str(), &declared.labels)?;
        let mut template = (**declared).clone();
        template.labels.insert(PROFILE.into(), profile.name.as_str().into());
        template.spec.scheduler_name = Some(SCHEDULER.to_owned());
        Some(template)
    }

    /// Creates a node for each pending Fargate pod that fits a Fargate size.
    pub(super) fn run_fargate(&mut self) {
        let is_pending = |pod: &&Pod| pod.node.is_none() && pod.is_active();
        let pending: Vec<Pod> = self.pods.iter().filter(is_pending).cloned().collect();
        for pod in pending {
            let Some(template) = self.templates.get(&*pod.template).cloned() else { continue };
            if template.spec.scheduler_name.as_deref() != Some(SCHEDULER) {
                continue;
            }
            let Some(shape) = self.pod_shape(&pod) else { continue };
            if let Ok(size) = fargate_size(&shape, &template.spec) {
                let node = self.create_fargate_node(size);
                self.bind_pod(&pod_key(&pod), node);
            }
        }
    }

    fn create_fargate_node(&mut self, size: FargateSize) -> NodeName {
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
            was_ready: false,
            unschedulable: false,
            created_at: self.now,
        };
        self.nodes.insert(name.clone(), node);
        name
    }

    /// Removes the Fargate node of a pod.
    pub(super) fn remove_fargate_node(&mut self, pod: &PodKey) {
        let node = self.pods.get(pod).and_then(|pod| pod.node.clone());
        let Some(node) = node else { return };
        if self.nodes.get(&node).is_some_and(Node::is_fargate) {
            self.nodes.remove(&node);
        }
    }
}
