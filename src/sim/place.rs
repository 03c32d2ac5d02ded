//! One tick: daemons go to the nodes that admit them, then the scheduler binds what is pending.
//!
//! `place` stands in for a full model of kube-scheduler: it filters by resources, taints, node
//! selector and node affinity, and prefers the node that is least allocated. A pod that uses
//! anything beyond that stays pending.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::controllers::key_of;
use super::state::{PodKey, State};
use crate::demand::PodShape;
use crate::fleet::Node;
use crate::ids::{Labels, NodeName, WorkloadId, WorkloadKind};
use crate::pod::{Taint, TaintEffect, Toleration, TolerationOperator, untolerated};
use crate::units::Resources;

/// Keys and effects that the DaemonSet controller has every daemon tolerate.
///
/// Source: `pkg/controller/daemon/util/daemonset_util.go`, `AddOrUpdateDaemonPodTolerations`.
const DAEMONS_TOLERATE: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
];

/// A node as the scheduler sees it.
struct Candidate {
    name: NodeName,
    labels: Labels,
    /// Taints, those that mirror the node's state included.
    taints: Vec<Taint>,
    allocatable: Resources,
    /// What the pods on it ask for.
    used: Resources,
}

impl Candidate {
    fn new(node: &Node) -> Self {
        let mut taints = node.taints.clone();
        let mut mirror = |key: &str, effect| {
            taints.push(Taint { key: key.into(), value: "".into(), effect });
        };
        if !node.ready {
            mirror("node.kubernetes.io/not-ready", TaintEffect::NoSchedule);
            mirror("node.kubernetes.io/not-ready", TaintEffect::NoExecute);
        }
        if node.unschedulable {
            mirror("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule);
        }
        Self {
            name: node.name.clone(),
            labels: node.labels.clone(),
            taints,
            allocatable: node.allocatable.clone(),
            used: Resources::default(),
        }
    }

    /// Returns whether labels and taints let the pod in, whatever the room.
    fn admits(&self, shape: &PodShape, tolerations: &[Toleration]) -> bool {
        let choice = &shape.nodes;
        choice.name.as_ref().is_none_or(|name| name == self.name.as_str())
            && choice.any_of.iter().any(|term| term.match_labels(&self.labels))
            && untolerated(&self.taints, tolerations).is_none()
    }

    fn has_room(&self, shape: &PodShape) -> bool {
        shape.requests.fits(&self.allocatable.minus(&self.used))
    }

    fn take(&mut self, shape: &PodShape) {
        self.used = self.used.plus(&shape.requests);
    }

    /// Returns the share of CPU and memory that would stay free, in hundredths, both added.
    fn least_allocated(&self, shape: &PodShape) -> i64 {
        let free = self.allocatable.minus(&self.used).minus(&shape.requests);
        let percent =
            |free: i64, all: i64| if all > 0 { free.saturating_mul(100) / all } else { 0 };
        let (cpu, memory) = (self.allocatable.cpu.0, self.allocatable.memory.0);
        percent(free.cpu.0, cpu) + percent(free.memory.0, memory)
    }
}

/// Returns the node for each pending pod in turn; earlier pods take room from later ones.
fn place(nodes: &mut [Candidate], pending: &[Arc<PodShape>], seed: u64) -> Vec<Option<usize>> {
    let mut places = Vec::with_capacity(pending.len());
    for (shape, turn) in pending.iter().zip(0_u64..) {
        let fits = |node: &Candidate| {
            shape.unsupported.is_empty()
                && node.admits(shape, &shape.tolerations)
                && node.has_room(shape)
        };
        // Ties go to either node, as kube-scheduler draws among the best; the seed decides.
        let best = nodes
            .iter()
            .zip(0_u64..)
            .enumerate()
            .filter(|(_, (node, _))| fits(node))
            .max_by_key(|(_, (node, n))| (node.least_allocated(shape), draw(seed, turn, *n)))
            .map(|(index, _)| index);
        if let Some(node) = best.and_then(|index| nodes.get_mut(index)) {
            node.take(shape);
        }
        places.push(best);
    }
    places
}

/// Returns a number that looks drawn at random and is the same for the same arguments.
fn draw(seed: u64, turn: u64, node: u64) -> u64 {
    // The finalizer of SplitMix64 over a mix of the three.
    let mut z = seed ^ turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ node.rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn daemon_tolerations(shape: &PodShape) -> Vec<Toleration> {
    let every = |(key, effect): (&str, TaintEffect)| Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        effect: Some(effect),
        ..Toleration::default()
    };
    shape.tolerations.iter().cloned().chain(DAEMONS_TOLERATE.map(every)).collect()
}

impl State {
    /// Runs the DaemonSet controller, then the scheduler.
    pub(super) fn tick(&mut self) {
        self.counters.ticks += 1;
        let mut nodes = self.candidates();
        self.run_daemons(&mut nodes);
        let (keys, shapes): (Vec<PodKey>, Vec<Arc<PodShape>>) = self.queue().into_iter().unzip();
        let places = place(&mut nodes, &shapes, self.seed ^ self.counters.ticks);
        for (key, place) in keys.into_iter().zip(places) {
            if let Some(node) = place.and_then(|index| nodes.get(index)) {
                self.bind(&key, node.name.clone());
            }
        }
    }

    /// Returns the nodes with what their pods use. A pod that is stopping uses its room still; one
    /// that has finished uses none.
    fn candidates(&mut self) -> Vec<Candidate> {
        let mut nodes: Vec<Candidate> = self.nodes.values().map(Candidate::new).collect();
        let index: BTreeMap<NodeName, usize> =
            nodes.iter().enumerate().map(|(i, node)| (node.name.clone(), i)).collect();
        let bound: Vec<_> = self
            .pods
            .iter()
            .filter(|pod| pod.terminating || pod.is_active())
            .filter_map(|pod| Some((index.get(pod.node.as_ref()?)?, pod)))
            .map(|(index, pod)| (*index, pod.namespace.clone(), pod.template.clone()))
            .collect();
        for (index, namespace, template) in bound {
            if let Some(shape) = self.shape(&namespace, &template) {
                nodes[index].take(&shape);
            }
        }
        nodes
    }

    /// Returns pods without a node, in the order of the scheduler's queue: by priority, then age.
    fn queue(&mut self) -> Vec<(PodKey, Arc<PodShape>)> {
        let waits = |pod: &&crate::fleet::Pod| pod.node.is_none() && pod.is_active();
        let pending: Vec<_> = self
            .pods
            .iter()
            .filter(waits)
            .map(|pod| (pod.created_at, pod.uid.clone(), key_of(pod), pod.template.clone()))
            .collect();
        let mut queue: Vec<_> = pending
            .into_iter()
            .filter_map(|(age, uid, key, template)| {
                let shape = self.shape(&key.0, &template)?;
                Some(((Reverse(shape.priority), age, uid), key, shape))
            })
            .collect();
        queue.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        queue.into_iter().map(|(_, key, shape)| (key, shape)).collect()
    }

    /// Binds a daemon to each node that admits it, has room for it and has none yet; a daemon whose
    /// node no longer matches goes.
    fn run_daemons(&mut self, nodes: &mut [Candidate]) {
        let daemons: Vec<(WorkloadId, Option<String>)> = self
            .controllers
            .iter()
            .filter(|(id, _)| id.kind == WorkloadKind::DaemonSet)
            .map(|(id, c)| (id.clone(), c.template.clone()))
            .collect();
        for (id, template) in daemons {
            let in_use = || self.pods.of(&id).map(|pod| pod.template.clone()).next();
            let Some(template) = template.or_else(in_use) else { continue };
            let Some(shape) = self.shape(&id.namespace, &template) else { continue };
            self.run_daemon(&id, &template, &shape, nodes);
        }
    }

    fn run_daemon(
        &mut self,
        id: &WorkloadId,
        template: &str,
        shape: &PodShape,
        nodes: &mut [Candidate],
    ) {
        let tolerations = daemon_tolerations(shape);
        // A daemon that is stopping still has its node: the next one waits until it has stopped.
        let held: BTreeSet<NodeName> =
            self.pods.of(id).filter_map(|pod| pod.node.clone()).collect();
        let mut running = 0;
        for node in nodes {
            let has_one = held.contains(&node.name);
            let admits = node.admits(shape, &tolerations);
            if !has_one && admits && node.has_room(shape) {
                node.take(shape);
                let name = self.generated_name(id, template);
                self.create(id, name, template, Some(node.name.clone()));
            } else if has_one && !shape.nodes.any_of.iter().any(|t| t.match_labels(&node.labels)) {
                self.stop_on(id, &node.name);
            }
            running += u32::from(has_one || admits);
        }
        if let Some(controller) = self.controllers.get_mut(id) {
            controller.replicas = running;
        }
    }

    fn stop_on(&mut self, id: &WorkloadId, node: &NodeName) {
        let here = |pod: &&crate::fleet::Pod| pod.node.as_ref() == Some(node);
        let pods: Vec<PodKey> = self.pods.of(id).filter(here).map(key_of).collect();
        for pod in pods {
            self.stop(&pod);
        }
    }
}
