//! Nominations: the pending pods of a batch of closed nodes, each with its planned node, and how
//! many of them end up there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::counters::{Counter, Counters};
use super::opening::PlannedNodes;
use super::planning_snapshot::is_pending;
use crate::apply::ports::PortError;
use crate::model::ids::{NodeName, Uid};
use crate::model::observed::{Observed, Pod};
use crate::plan::wire::workload_key;

/// Scheduler that honors nominations.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A pending pod, and the node that kube-scheduler is to try first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNomination {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The node.
    pub node: NodeName,
}

/// Accepted nominations of pods that are not bound yet, by pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Nominations(BTreeMap<Uid, NodeName>);

/// A pod, its nominated node, and the answer to the nomination.
pub type NominationAnswer = (Uid, NodeName, Result<(), PortError>);

impl Nominations {
    /// Returns those that were not accepted before. kube-scheduler may clear a nomination to a node
    /// that is closed, again and again.
    pub(super) fn untried(&self, mut nominations: Vec<PodNomination>) -> Vec<PodNomination> {
        nominations.retain(|n| self.0.get(&n.pod.uid) != Some(&n.node));
        nominations
    }

    /// Returns the nominations that the observed pods do not have.
    pub(super) fn missing(&self, world: &Observed, planned: PlannedNodes) -> Vec<PodNomination> {
        let mut nominations = assigned_pods(world, planned, &self.0);
        nominations.retain(|n| n.pod.nominated.as_ref() != Some(&n.node));
        nominations
    }

    /// Counts how many nominated pods were bound to their nominated node.
    pub(super) fn record_bindings(&mut self, world: &Observed, counters: &mut Counters) {
        if self.0.is_empty() {
            return;
        }
        let pods: BTreeMap<&Uid, &Pod> = world.pods.iter().map(|pod| (&pod.uid, &**pod)).collect();
        self.0.retain(|uid, nominated| {
            let counter = match pods.get(uid).map(|pod| &pod.node) {
                Some(None) => return true,
                Some(Some(node)) if node == nominated => Counter::NominationsHonored,
                Some(Some(_)) | None => Counter::NominationsDropped,
            };
            counters.count(counter);
            false
        });
    }

    /// Records the answer to a nomination.
    pub(super) fn record_answer(
        &mut self,
        pod: Uid,
        node: NodeName,
        answer: &Result<(), PortError>,
        counters: &mut Counters,
    ) {
        counters.count(Counter::NominationsMade);
        if answer.is_ok() {
            self.0.insert(pod, node);
        } else {
            // kube-scheduler places the pod like any other.
            counters.count_error("kubernetes");
            counters.count(Counter::NominationsRefused);
        }
    }
}

/// Returns the pending pods of planned nodes, each with its node. Pods keep the nodes to which they
/// are or were nominated. Left alone are pods of other schedulers, gated pods, and pods that
/// preemption nominated to another node.
fn assigned_pods(
    world: &Observed,
    planned: PlannedNodes,
    accepted: &BTreeMap<Uid, NodeName>,
) -> Vec<PodNomination> {
    let closed: BTreeSet<NodeName> =
        planned.by_workload.values().flatten().map(|(node, _)| node.clone()).collect();
    let mut free = planned.by_workload;
    let is_ours = |pod: &Pod| {
        let elsewhere = pod.nominated.as_ref().is_some_and(|node| !closed.contains(node));
        is_pending(pod) && !elsewhere && accepts_nomination(world, pod)
    };
    let pods = world.pods.iter().filter(|pod| is_ours(pod));
    let mut assigned = Vec::new();
    let mut others = Vec::new();
    for pod in pods {
        let earlier = pod.nominated.as_ref().or_else(|| accepted.get(&pod.uid));
        let nodes = free.get_mut(&workload_key(&pod.workload()));
        let kept =
            nodes.into_iter().flatten().find(|(node, left)| earlier == Some(node) && *left > 0);
        if let Some((node, left)) = kept {
            *left -= 1;
            assigned.push(PodNomination { pod: Arc::clone(pod), node: node.clone() });
        } else {
            others.push(pod);
        }
    }
    for pod in others {
        let Some(nodes) = free.get_mut(&workload_key(&pod.workload())) else { continue };
        while nodes.last().is_some_and(|(_, left)| *left == 0) {
            nodes.pop();
        }
        let Some((node, left)) = nodes.last_mut() else { continue };
        *left -= 1;
        assigned.push(PodNomination { pod: Arc::clone(pod), node: node.clone() });
    }
    assigned
}

/// Returns true if kube-scheduler decides about the pod now.
fn accepts_nomination(world: &Observed, pod: &Pod) -> bool {
    let spec = world.templates.get(&pod.template).map(|template| &template.spec);
    spec.is_none_or(|spec| {
        let scheduler = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        scheduler == DEFAULT_SCHEDULER && spec.scheduling_gates.is_empty()
    })
}

#[cfg(test)]
mod tests;
