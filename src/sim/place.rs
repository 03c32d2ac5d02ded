//! One tick: daemons go to the nodes that admit them, then the scheduler binds what is pending.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::controllers::key_of;
use super::state::{PodKey, State};
use crate::demand::{PodShape, Unsupported};
use crate::fleet::{Node, Pod};
use crate::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::pod::{Taint, TaintEffect, Toleration, TolerationOperator};
use crate::schedule::{NodeIndex, ScheduleNode, Scheduler};
use crate::units::Resources;

/// Key of the taint that a node has while it is not Ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Keys and effects that the DaemonSet controller has every daemon tolerate.
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

/// What a pod may use that the scheduler's model does not know, or that is not the scheduler's to
/// decide: such a pod stays pending, and is never bound as if it asked for nothing.
const NOT_MODELLED: [Unsupported; 4] = [
    Unsupported::Volumes,
    Unsupported::OtherScheduler,
    Unsupported::SchedulingGates,
    Unsupported::ResourceClaims,
];

/// Returns the node as the scheduler sees it, with the taints that mirror its state.
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

/// Returns the shape of a daemon's pods, with the tolerations that its controller adds.
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

impl State {
    /// Runs the DaemonSet controller, then the scheduler.
    pub(super) fn tick(&mut self) {
        self.counters.ticks += 1;
        self.register_driver();
        self.bind_waiting_claims();
        self.run_fargate();
        let mut scheduler = self.scheduler();
        self.run_daemons(&mut scheduler);
        let mut waiting = self.queue();
        loop {
            let before = waiting.len();
            waiting.retain(|key| !self.schedule(key, &mut scheduler));
            // A pod that came later may be what one that waits needs beside it; one that fits
            // nowhere even so waits for the next tick.
            if waiting.len() == before {
                return;
            }
        }
    }

    /// Binds a pod where the scheduler finds it a node; returns whether it did.
    fn schedule(&mut self, key: &PodKey, scheduler: &mut Scheduler) -> bool {
        let Some(pod) = self.pods.get(key).cloned() else { return false };
        let Some(shape) = self.pod_shape(&pod) else { return false };
        if shape.unsupported.iter().any(|feature| NOT_MODELLED.contains(feature)) {
            return false;
        }
        let class = scheduler.class(&shape, pod.owner.as_ref());
        let Some(node) = scheduler.try_schedule(class, None) else { return false };
        let node = scheduler.name(node).clone();
        self.provision_for(key, &node);
        self.bind(key, node);
        true
    }

    /// Returns the scheduler with everything that is bound. A pod that is stopping uses its room
    /// still, and counts for spreading no more; one that has finished uses none.
    fn scheduler(&mut self) -> Scheduler {
        // Fargate runs no daemons, and takes no pod but its own.
        let nodes = self.nodes.values().filter(|node| !node.is_fargate());
        let nodes = nodes.map(|n| schedule_node(n, self.allocatable_with_volumes(n))).collect();
        // Each tick draws its own ties.
        let seed = self.seed ^ self.counters.ticks;
        let mut scheduler = Scheduler::new(nodes, &self.namespaces, seed);
        for pod in self.pods.iter().filter(|pod| pod.node.is_none()).cloned().collect::<Vec<_>>() {
            if let Some(shape) = self.pod_shape(&pod) {
                scheduler.class(&shape, pod.owner.as_ref());
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

    /// Returns pods without a node, in the order of the scheduler's queue: by priority, then age.
    fn queue(&mut self) -> Vec<PodKey> {
        let waits = |pod: &&Pod| pod.node.is_none() && pod.is_active();
        let pending: Vec<Pod> = self.pods.iter().filter(waits).cloned().collect();
        let mut queue: Vec<_> = pending
            .into_iter()
            .filter_map(|pod| Some((self.shape(&pod.namespace, &pod.template)?, pod)))
            .collect();
        queue
            .sort_by_key(|(shape, pod)| (Reverse(shape.priority), pod.created_at, pod.uid.clone()));
        queue.into_iter().map(|(_, pod)| key_of(&pod)).collect()
    }

    /// Binds a daemon to each node that admits it, has room for it and has none yet.
    fn run_daemons(&mut self, scheduler: &mut Scheduler) {
        let is_daemon = |id: &&WorkloadId| id.kind == WorkloadKind::DaemonSet;
        let daemons: Vec<WorkloadId> = self.controllers.keys().filter(is_daemon).cloned().collect();
        for id in daemons {
            let template = self.controllers.get(&id).and_then(|c| c.template.clone());
            let Some(template) = template.or_else(|| self.template_in_use(&id)) else { continue };
            let Some(shape) = self.shape(&id.namespace, &template) else { continue };
            let shape = self.mounted(shape, &template, None);
            let class = scheduler.class(&daemon_shape(&shape), Some(&id));
            // A daemon that is stopping still has its node: the next one waits until it has
            // stopped.
            let held: BTreeSet<NodeName> =
                self.pods.of(&id).filter_map(|pod| pod.node.clone()).collect();
            let free: Vec<NodeIndex> = scheduler
                .nodes()
                .filter(|node| !held.contains(scheduler.name(*node)))
                .filter(|node| scheduler.fits(class, *node).is_ok())
                .collect();
            for node in &free {
                scheduler.bind(class, *node);
                let name = self.generated_name(&id, &template);
                self.create(&id, name, &template, Some(scheduler.name(*node).clone()));
            }
            if let Some(controller) = self.controllers.get_mut(&id) {
                let running = held.len() + free.len();
                controller.replicas = u32::try_from(running).unwrap_or(u32::MAX);
            }
        }
    }
}
