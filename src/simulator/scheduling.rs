//! Scheduler tick: the DaemonSet controller runs, then pending pods are scheduled.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::state::{PodKey, WorldState, pod_key};
use crate::demand::{PodShape, Unsupported};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{Node, Pod};
use crate::model::pod::{Taint, TaintEffect, Toleration, TolerationOperator};
use crate::model::units::Resources;
use crate::scheduler::{NodeIndex, ScheduleNode, Scheduler};

/// Taint key of a node that is not Ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Tolerations that the DaemonSet controller adds to every daemon.
///
/// Source: `pkg/controller/daemon/util/daemonset_util.go`, `AddOrUpdateDaemonPodTolerations`.
const DAEMONS_TOLERATE: [(&str, TaintEffect); 6] = [
    (NOT_READY, TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
];

/// Pod features that the scheduler model does not support or that another component decides. Such a
/// pod stays pending.
const UNMODELED_FEATURES: [Unsupported; 4] = [
    Unsupported::Volumes,
    Unsupported::OtherScheduler,
    Unsupported::SchedulingGates,
    Unsupported::ResourceClaims,
];

/// Returns the node with the taints that mirror its state.
fn schedule_node(node: &Node, allocatable: Resources) -> ScheduleNode {
    let mut taints = node.taints.clone();
    let mirrored = [TaintEffect::NoSchedule, TaintEffect::NoExecute];
    let mirrored = mirrored.map(|effect| Taint { key: NOT_READY.into(), value: "".into(), effect });
    taints.extend(mirrored.into_iter().filter(|_| !node.ready));
    ScheduleNode {
        name: node.name.clone(),
        labels: node.labels.clone(),
        taints,
        allocatable,
        unschedulable: node.unschedulable,
    }
}

/// Returns the shape of daemon pods with the added tolerations.
fn daemon_shape(shape: &PodShape) -> Arc<PodShape> {
    let every = |(key, effect): (&str, TaintEffect)| Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        effect: Some(effect),
        ..Toleration::default()
    };
    let mut shape = shape.clone();
    shape.tolerations.extend(DAEMONS_TOLERATE.map(every));
    Arc::new(shape)
}

impl WorldState {
    /// Runs the DaemonSet controller, then the scheduler.
    pub(super) fn tick(&mut self) {
        self.counters.ticks += 1;
        self.register_ebs_driver();
        self.bind_pending_claims();
        self.run_fargate();
        let mut scheduler = self.build_scheduler();
        self.run_daemons(&mut scheduler);
        let mut pending = self.pending_queue();
        loop {
            let before = pending.len();
            pending.retain(|key| !self.schedule(key, &mut scheduler));
            // A later pod may satisfy the affinity of an earlier one. Pods that still do not fit
            // wait for the next tick.
            if pending.len() == before {
                return;
            }
        }
    }

    /// Schedules and binds a pod. Returns whether it was bound.
    fn schedule(&mut self, key: &PodKey, scheduler: &mut Scheduler) -> bool {
        let Some(pod) = self.pods.get(key).cloned() else { return false };
        let Some(shape) = self.pod_shape(&pod) else { return false };
        if shape.unsupported.iter().any(|feature| UNMODELED_FEATURES.contains(feature)) {
            return false;
        }
        let class = scheduler.class(&shape, pod.owner.as_ref());
        let nominated = pod.nominated.as_ref().and_then(|name| scheduler.node(name));
        let Some(node) = scheduler.try_schedule(class, nominated) else {
            // A pod keeps its nomination while it is pending, as from Kubernetes 1.35 on.
            if let Some(node) = nominated {
                scheduler.nominate(class, node);
            }
            return false;
        };
        let node = scheduler.name(node).clone();
        self.provision_pod_volumes(key, &node);
        self.bind_pod(key, node);
        true
    }

    /// Returns the scheduler with all bound pods, and the nominations of pending pods. A stopping pod
    /// uses resources, but does not count for spreading. A finished pod uses none.
    fn build_scheduler(&mut self) -> Scheduler {
        // Fargate nodes run no daemons and no other pods.
        let nodes = self.nodes.values().filter(|node| !node.is_fargate());
        let nodes = nodes.map(|n| schedule_node(n, self.allocatable_with_volumes(n))).collect();
        // Each tick breaks ties differently.
        let seed = self.seed ^ self.counters.ticks;
        let mut scheduler = Scheduler::new(nodes, &self.namespaces, seed);
        for pod in self.pods.iter().filter(|pod| pod.node.is_none()).cloned().collect::<Vec<_>>() {
            let Some(shape) = self.pod_shape(&pod) else { continue };
            let class = scheduler.class(&shape, pod.owner.as_ref());
            let nominated = pod.nominated.as_ref().and_then(|name| scheduler.node(name));
            if let Some(node) = nominated.filter(|_| pod.is_active()) {
                scheduler.nominate(class, node);
            }
        }
        let holds = |pod: &&Pod| pod.node.is_some() && (pod.terminating || pod.is_active());
        let bound: Vec<Pod> = self.pods.iter().filter(holds).cloned().collect();
        for pod in bound {
            let node = pod.node.as_ref().and_then(|name| scheduler.node(name));
            let shape = self.pod_shape(&pod);
            if let (Some(node), Some(shape)) = (node, shape) {
                let owner = pod.owner.as_ref();
                let class = if pod.terminating {
                    scheduler.stopping_class(&shape, owner)
                } else {
                    scheduler.class(&shape, owner)
                };
                scheduler.bind(class, node);
            }
        }
        scheduler
    }

    /// Returns why no node fits these pods now. Pods that fit a node are left out.
    pub(super) fn unschedulable_reasons(&mut self, pods: &[PodKey]) -> Vec<(Pod, String)> {
        let mut scheduler = self.build_scheduler();
        let mut found = Vec::new();
        for pod in pods.iter().filter_map(|key| self.pods.get(key)).cloned().collect::<Vec<_>>() {
            let Some(shape) = self.pod_shape(&pod) else { continue };
            let class = scheduler.class(&shape, pod.owner.as_ref());
            if let Err(unfit) = scheduler.schedule(class, None) {
                found.push((pod, unfit.to_string()));
            }
        }
        found
    }

    /// Returns pending pods in queue order: by priority, then age.
    fn pending_queue(&mut self) -> Vec<PodKey> {
        let is_pending = |pod: &&Pod| pod.node.is_none() && pod.is_active();
        let pending: Vec<Pod> = self.pods.iter().filter(is_pending).cloned().collect();
        let mut queue: Vec<_> = pending
            .into_iter()
            .filter_map(|pod| Some((self.shape(&pod.namespace, &pod.template)?, pod)))
            .collect();
        queue
            .sort_by_key(|(shape, pod)| (Reverse(shape.priority), pod.created_at, pod.uid.clone()));
        queue.into_iter().map(|(_, pod)| pod_key(&pod)).collect()
    }

    /// Binds a daemon to each admitting node with room and without this daemon.
    fn run_daemons(&mut self, scheduler: &mut Scheduler) {
        let is_daemon = |id: &&WorkloadId| id.kind == WorkloadKind::DaemonSet;
        let daemons: Vec<WorkloadId> = self.controllers.keys().filter(is_daemon).cloned().collect();
        for id in daemons {
            let template = self.controllers.get(&id).and_then(|c| c.template.clone());
            let Some(template) = template.or_else(|| self.template_in_use(&id)) else { continue };
            let Some(shape) = self.shape(&id.namespace, &template) else { continue };
            let shape = self.with_volumes(shape, &template, None);
            let class = scheduler.class(&daemon_shape(&shape), Some(&id));
            // A stopping daemon still occupies its node.
            let occupied: BTreeSet<NodeName> =
                self.pods.owned_by(&id).filter_map(|pod| pod.node.clone()).collect();
            let free: Vec<NodeIndex> = scheduler
                .nodes()
                .filter(|node| !occupied.contains(scheduler.name(*node)))
                .filter(|node| scheduler.fits(class, *node).is_ok())
                .collect();
            for node in &free {
                scheduler.bind(class, *node);
                let name = self.generated_name(&id, &template);
                self.create_pod(&id, name, &template, Some(scheduler.name(*node).clone()));
            }
            if let Some(controller) = self.controllers.get_mut(&id) {
                let running = occupied.len() + free.len();
                controller.replicas = u32::try_from(running).unwrap_or(u32::MAX);
            }
        }
    }
}
