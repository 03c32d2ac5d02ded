//! Nominations: the pending pods of closed nodes, each with its planned node, written before the
//! nodes open.
//!
//! Invariants: an opening never depends on a nomination. Left alone are pods of other schedulers,
//! gated pods, and pods that preemption nominated to another node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::concurrent::run_concurrently;
use super::opening_annotations::OpeningAnnotations;
use super::ports::{CallEffect, Clock, Cluster, PortError};
use crate::model::ids::{LabelValue, NodeName, Uid};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{Node, Observed, Pod};
use crate::model::requirement::key;
use crate::model::saturating_time::later;
use crate::plan::wire::workload_key;

/// Scheduler that honors nominations.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Rounds of nominations just before nodes open.
const ROUNDS: u32 = 2;
/// Maximum number of pods that are nominated at once while a batch waits. The batch may become due.
pub(crate) const EARLY_NOMINATIONS_MAX: usize = 500;
/// Time after which no further nomination is sent.
const NOMINATIONS_WITHIN: SignedDuration = SignedDuration::from_secs(15);
/// Maximum number of concurrent requests. The API server queues more than about as many requests of
/// one client.
const CONCURRENT_REQUESTS_MAX: usize = 64;

/// A pending pod, and the node that kube-scheduler is to try first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNomination {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The node.
    pub node: NodeName,
}

/// A pod, its nominated node, and the answer to the nomination.
pub type NominationAnswer = (Uid, NodeName, Result<(), PortError>);

/// Result of an attempt to open nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedBatch {
    /// Each nominated pod with its node and the answer.
    pub nominations: Vec<NominationAnswer>,
    /// Each node with the answer.
    pub nodes: Vec<(Uid, NodeName, Result<(), PortError>)>,
}

/// Planned nodes by workload, each with its number of pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PlannedNodes {
    pub(crate) by_workload: BTreeMap<String, Vec<(NodeName, u32)>>,
}

impl PlannedNodes {
    /// Adds a node with its planned pods.
    pub(crate) fn add(&mut self, node: &NodeName, planned: &BTreeMap<String, u32>) {
        for (workload, pods) in planned.iter().filter(|(_, pods)| **pods > 0) {
            let nodes = self.by_workload.entry(workload.clone()).or_default();
            nodes.push((node.clone(), *pods));
        }
    }
}

/// Accepted nominations of pods that are not bound yet, by pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcceptedNominations(pub(crate) BTreeMap<Uid, NodeName>);

impl AcceptedNominations {
    /// Returns those that were not accepted before. kube-scheduler may clear a nomination to a node
    /// that is closed, again and again.
    pub(crate) fn untried(&self, mut nominations: Vec<PodNomination>) -> Vec<PodNomination> {
        nominations.retain(|nomination| self.is_untried(nomination));
        nominations
    }

    /// Returns true if the nomination was not accepted before.
    pub(crate) fn is_untried(&self, nomination: &PodNomination) -> bool {
        self.0.get(&nomination.pod.uid) != Some(&nomination.node)
    }

    /// Forgets the pods that are no longer pending.
    pub(crate) fn forget_bound(&mut self, world: &Observed) {
        if !self.0.is_empty() {
            let pending = world.pods.iter().filter(|pod| is_pending(pod));
            let pending: BTreeSet<&Uid> = pending.map(|pod| &pod.uid).collect();
            self.0.retain(|pod, _| pending.contains(pod));
        }
    }

    /// Returns the nominations that the observed pods do not have.
    pub(crate) fn missing(&self, world: &Observed, planned: PlannedNodes) -> Vec<PodNomination> {
        let mut nominations = assigned_pods(world, planned, &self.0);
        nominations.retain(|n| n.pod.nominated.as_ref() != Some(&n.node));
        nominations
    }
}

/// Returns the pending pods of planned nodes, each with its node. Pods keep the nodes to which they
/// are or were nominated.
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
    let mut taken = running_pods(world, &free);
    let mut assigned = Vec::new();
    let mut others = Vec::new();
    for pod in pods {
        let earlier = pod.nominated.as_ref().or_else(|| accepted.get(&pod.uid));
        let workload = workload_key(&pod.workload());
        let nodes = free.get_mut(&workload);
        let preferred =
            nodes.into_iter().flatten().find(|(node, left)| earlier == Some(node) && *left > 0);
        if let Some((node, left)) = preferred {
            *left -= 1;
            *taken.entry(workload).or_default().entry(node.clone()).or_insert(0) += 1;
            assigned.push(PodNomination { pod: Arc::clone(pod), node: node.clone() });
        } else {
            others.push((workload, pod));
        }
    }
    others.sort_by_cached_key(|(_, pod)| queue_order(pod, world));
    let none = BTreeMap::new();
    let in_order = free.into_iter().map(|(workload, nodes)| {
        let order = spread_over_zones(world, &nodes, taken.get(&workload).unwrap_or(&none));
        (workload, order.into_iter())
    });
    let mut next: BTreeMap<String, std::vec::IntoIter<NodeName>> = in_order.collect();
    for (workload, pod) in others {
        let Some(node) = next.get_mut(&workload).and_then(Iterator::next) else { continue };
        assigned.push(PodNomination { pod: Arc::clone(pod), node });
    }
    assigned
}

/// Sorts nominations like the queue of kube-scheduler. If there are too many of them, those of the
/// last pods are not sent.
pub(crate) fn sort_by_queue_order(nominations: &mut [PodNomination], world: &Observed) {
    nominations.sort_by_cached_key(|nomination| queue_order(&nomination.pod, world));
}

/// Returns the sort key of a pod in the queue of kube-scheduler: the highest priority first, then
/// the oldest pod.
fn queue_order(pod: &Pod, world: &Observed) -> (Reverse<i32>, Timestamp) {
    let template = world.templates.get(&*pod.template);
    // The API server writes the priority of the class into each pod.
    let priority = template.and_then(|template| template.spec.priority);
    (Reverse(priority.unwrap_or(0)), pod.created_at)
}

/// Returns the running pods of the planned workloads, by node.
fn running_pods(
    world: &Observed,
    planned: &BTreeMap<String, Vec<(NodeName, u32)>>,
) -> BTreeMap<String, BTreeMap<NodeName, u32>> {
    let mut running: BTreeMap<String, BTreeMap<NodeName, u32>> = BTreeMap::new();
    for (workload, pods) in world.pod_runs() {
        let key = workload_key(&workload);
        if planned.contains_key(&key) {
            let on = running.entry(key).or_default();
            let nodes = pods.iter().filter(|pod| pod.is_active());
            for node in nodes.filter_map(|pod| pod.node.as_ref()) {
                *on.entry(node.clone()).or_insert(0) += 1;
            }
        }
    }
    running
}

/// Returns a node for each planned pod of a workload, in the order in which the pods arrive.
///
/// Each pod gets the zone with the fewest pods, and in it the node with the fewest. In any other
/// order, a spread rule may exclude the nominated node at first. kube-scheduler then takes the room
/// of another pod.
fn spread_over_zones(
    world: &Observed,
    planned: &[(NodeName, u32)],
    taken: &BTreeMap<NodeName, u32>,
) -> Vec<NodeName> {
    let zone = |node: &NodeName| world.nodes.get(node)?.labels.get(key::ZONE);
    let mut in_zone: BTreeMap<Option<&LabelValue>, u32> = BTreeMap::new();
    for (node, pods) in taken {
        *in_zone.entry(zone(node)).or_insert(0) += pods;
    }
    let mut pods: Vec<(u32, &NodeName)> = Vec::new();
    for (node, count) in planned.iter().rev() {
        let before = taken.get(node).copied().unwrap_or(0);
        pods.extend((0..*count).map(|pod| (before.saturating_add(pod), node)));
    }
    pods.sort_by_key(|(before, _)| *before);
    let mut ranked: Vec<(u32, &NodeName)> = Vec::with_capacity(pods.len());
    for (_, node) in pods {
        let rank = in_zone.entry(zone(node)).or_insert(0);
        ranked.push((*rank, node));
        *rank += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, node)| node.clone()).collect()
}

/// Returns true if the pod waits for a node.
pub(crate) fn is_pending(pod: &Pod) -> bool {
    pod.is_active() && pod.node.is_none()
}

/// Returns true if the pod waits for a node, and not for its scheduling gates.
pub(crate) fn waits_for_node(pod: &Pod, world: &Observed) -> bool {
    let template = world.templates.get(&*pod.template);
    is_pending(pod) && template.is_none_or(|template| template.spec.scheduling_gates.is_empty())
}

/// Returns true if kube-scheduler decides about the pod now.
fn accepts_nomination(world: &Observed, pod: &Pod) -> bool {
    let spec = world.templates.get(&*pod.template).map(|template| &template.spec);
    spec.is_none_or(|spec| {
        let scheduler = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        scheduler == DEFAULT_SCHEDULER && spec.scheduling_gates.is_empty()
    })
}

/// Nominates pods, then opens the nodes and sets their annotations.
///
/// kube-scheduler may clear a nomination to a node that is still closed, so each pod is nominated a
/// second time. A repeated nomination changes nothing.
pub(crate) async fn nominate_and_open<K: Cluster, T: Clock>(
    cluster: &K,
    clock: &T,
    nominations: Vec<PodNomination>,
    nodes: Vec<Node>,
    annotations: &OpeningAnnotations,
) -> OpenedBatch {
    let nominations = nominate_in_rounds(cluster, clock, nominations, ROUNDS).await;
    let none = NodeAnnotations::new();
    let opened = nodes.iter().map(|node| -> Pin<Box<dyn Future<Output = _>>> {
        let annotations = annotations.get(&node.uid).map_or(&none, Arc::as_ref);
        Box::pin(cluster.open(node, annotations))
    });
    let opened = run_concurrently(opened, CONCURRENT_REQUESTS_MAX).await;
    let nodes = nodes.into_iter().zip(opened).map(|(node, answer)| (node.uid, node.name, answer));
    OpenedBatch { nominations, nodes: nodes.collect() }
}

/// Nominates pods to nodes that do not open yet.
pub(crate) async fn nominate<K: Cluster, T: Clock>(
    cluster: &K,
    clock: &T,
    nominations: Vec<PodNomination>,
) -> Vec<NominationAnswer> {
    nominate_in_rounds(cluster, clock, nominations, 1).await
}

/// Sends each nomination in every round. Returns for each pod the first answer that accepts it.
async fn nominate_in_rounds<K: Cluster, T: Clock>(
    cluster: &K,
    clock: &T,
    nominations: Vec<PodNomination>,
    rounds: u32,
) -> Vec<NominationAnswer> {
    let until = later(clock.now(), NOMINATIONS_WITHIN);
    let mut answers: Vec<Result<(), PortError>> =
        nominations.iter().map(|_| Err(too_late())).collect();
    for _ in 0..rounds {
        let requests = nominations.iter().map(|nomination| -> Pin<Box<dyn Future<Output = _>>> {
            Box::pin(async {
                if clock.now() > until {
                    return Err(too_late());
                }
                cluster.nominate(&nomination.pod, &nomination.node).await
            })
        });
        let round = run_concurrently(requests, CONCURRENT_REQUESTS_MAX).await;
        answers = answers.into_iter().zip(round).map(|(before, now)| before.or(now)).collect();
    }
    nominations
        .into_iter()
        .zip(answers)
        .map(|(n, answer)| (n.pod.uid.clone(), n.node, answer))
        .collect()
}

fn too_late() -> PortError {
    PortError {
        verb: "nominate pod".to_owned(),
        reason: format!("not sent within {} s", NOMINATIONS_WITHIN.as_secs()),
        effect: CallEffect::NotApplied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::PodTemplate;
    use crate::model::requirement::label;
    use crate::testing::Scenario;
    use crate::testing::pods::deployment;
    use crate::testing::world::pod;

    #[test]
    fn pods_are_nominated_in_the_order_of_the_queue() {
        let owner = deployment("web", "api");
        let mut template = PodTemplate::default();
        template.spec.priority = Some(1);
        let mut world = Observed::of_cluster("test", Timestamp::UNIX_EPOCH);
        world.templates.insert("urgent".to_owned(), Arc::new(template));
        let pods = [("newer", "usual", 1), ("older", "usual", 0), ("latest", "urgent", 2)];
        let world = world.with_pods(pods.map(|(name, template, second)| {
            let created_at = Timestamp::from_second(second).expect("a time");
            let (owner, template) = (Some(owner.clone()), template.into());
            Pod { owner, template, created_at, ..pod(name) }
        }));
        let names = |nominations: &[PodNomination]| -> Vec<String> {
            nominations.iter().map(|nomination| nomination.pod.name.to_string()).collect()
        };
        let node = NodeName::from("n");
        // The node has room for two of the three.
        let mut planned = PlannedNodes::default();
        planned.add(&node, &[(workload_key(&owner), 2)].into());
        let nominated = AcceptedNominations::default().missing(&world, planned);
        assert_eq!(names(&nominated), ["latest", "older"]);
        let all = world.pods.iter();
        let all = all.map(|pod| PodNomination { pod: Arc::clone(pod), node: node.clone() });
        let mut all: Vec<PodNomination> = all.collect();
        sort_by_queue_order(&mut all, &world);
        assert_eq!(names(&all), ["latest", "older", "newer"]);
    }

    #[test]
    fn pods_alternate_between_zones_from_the_emptiest_on() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 1_024);
        scenario.step(1);
        let node = scenario.node().clone();
        let mut world = scenario.observed;
        let zones = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")];
        world.nodes = zones
            .map(|(name, zone)| {
                let mut node = Node { name: name.into(), ..node.clone() };
                node.labels.extend([label(key::ZONE, zone)]);
                (node.name.clone(), node)
            })
            .into();
        let planned = [("a1", 1), ("a2", 2), ("b1", 1), ("c1", 1)];
        let planned = planned.map(|(node, pods)| (node.into(), pods));
        let order = spread_over_zones(&world, &planned, &[("c1".into(), 1)].into());
        let order: Vec<&str> = order.iter().map(NodeName::as_str).collect();
        assert_eq!(order, ["b1", "a2", "a1", "c1", "a2"]);
    }
}
