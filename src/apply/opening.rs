//! Opening of launched nodes by an apply.
//!
//! A launched node has a taint that keeps pods away. The nodes of a batch open together, because
//! kube-scheduler would fill a node that opens alone with whatever pods wait. The pods of a steered
//! plan are nominated to their nodes first.
//!
//! Invariant: an apply leaves no Ready node closed, whatever happens to nominations.

use std::collections::{BTreeMap, BTreeSet};

use super::closed_batch::{BatchPods, WaitingNode, batch_pools};
use super::launch::Booting;
use super::nomination::{
    AcceptedNominations, EARLY_NOMINATIONS_MAX, NominationAnswer, OpenedBatch, PlannedNodes,
    PodNomination, nominate, nominate_and_open, sort_by_queue_order,
};
use super::opening_annotations::{annotations_of_launches, is_unannotated, opening_annotations};
use super::preconditions::is_launched_by;
use super::receipt::{Outcome, Step};
use super::wave_plan::{LaunchWork, WaveWork};
use super::{OpenedBy, Run};
use crate::apply::ports::{Clock, Cloud, Cluster, PortError};
use crate::model::ids::{InstanceId, NodeName, PoolName, Uid};
use crate::model::observed::{Instance, KEY_LABEL, Node, Observed};
use crate::plan::wire::{Decider, PlacementMode, workload_key};
use crate::plan::{planned_pods_at, planned_pods_on};

/// A Ready node of a launch that is still closed.
struct ClosedNode<'w, 'p> {
    item: Booting<'w, 'p>,
    node: Node,
    /// `None` until the pods of its batch are observed.
    waiting: Option<WaitingNode>,
    /// Number of attempts to open it.
    tries: u32,
}

/// Ready nodes of a wave that are still closed.
#[derive(Default)]
pub(super) struct ClosedNodes<'w, 'p> {
    nodes: Vec<ClosedNode<'w, 'p>>,
    accepted: AcceptedNominations,
    /// Pods whose early nomination was refused.
    refused: BTreeSet<Uid>,
}

impl<'w, 'p> ClosedNodes<'w, 'p> {
    pub(super) fn add(&mut self, item: Booting<'w, 'p>, node: Node) {
        self.nodes.push(ClosedNode { item, node, waiting: None, tries: 0 });
    }

    /// Takes out the launches whose node is no longer Ready and closed, or was replaced by another
    /// node.
    pub(super) fn take_changed(
        &mut self,
        observed: &Observed,
        is_ready: impl Fn(&Booting<'w, 'p>) -> bool,
    ) -> Vec<Booting<'w, 'p>> {
        let is_same = |one: &ClosedNode<'w, 'p>| {
            let node = closed_node(&one.item, Some(observed));
            is_ready(&one.item) && node.is_some_and(|node| node.uid == one.node.uid)
        };
        let (same, changed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.nodes).into_iter().partition(is_same);
        self.nodes = same;
        changed.into_iter().map(|one| one.item).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nominations to try before their nodes open. Refused ones are tried once more when
    /// the nodes open.
    fn early(&self, nominations: Vec<PodNomination>, world: &Observed) -> Vec<PodNomination> {
        let mut early = self.accepted.untried(nominations);
        early.retain(|nomination| !self.refused.contains(&nomination.pod.uid));
        sort_by_queue_order(&mut early, world);
        early.truncate(EARLY_NOMINATIONS_MAX);
        early
    }

    fn record(&mut self, answers: Vec<NominationAnswer>) {
        for (pod, node, answer) in answers {
            if answer.is_ok() {
                self.accepted.0.insert(pod, node);
            } else {
                self.refused.insert(pod);
            }
        }
    }
}

/// Nodes of some pools that open together.
#[derive(Default)]
struct Batch<'b, 'w, 'p> {
    closed: Vec<ClosedNode<'w, 'p>>,
    /// Launches whose node is not Ready yet.
    booting: Vec<&'b Booting<'w, 'p>>,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Returns true if the controller is still to open the node of a launch.
    pub(super) fn waits_for_controller(&self, item: &Booting<'_, '_>) -> bool {
        self.settings.opened_by == OpenedBy::Controller
            && self.now() < item.deadline
            && !self.settings.is_interrupted()
    }

    /// Returns true if this apply nominates pods to their planned nodes.
    fn nominates(&self) -> bool {
        self.settings.opened_by == OpenedBy::Apply
            && self.plan.capacity.placement.mode == PlacementMode::Steered
    }

    /// Opens every batch that is complete or whose deadline has passed. If there is none, nominates
    /// the pods of batches that wait.
    pub(super) async fn open_due<'w, 'p>(
        &self,
        closed: &mut ClosedNodes<'w, 'p>,
        booting: &[Booting<'w, 'p>],
        observed: Option<&Observed>,
    ) {
        if let Some(world) = observed {
            closed.accepted.forget_bound(world);
        }
        let mut due = Vec::new();
        let (mut nominations, mut early) = (Vec::new(), Vec::new());
        for batch in self.batches(std::mem::take(&mut closed.nodes), booting) {
            let Batch { closed: nodes, booting } = batch;
            let (nodes, is_due) = self.waiting_nodes(nodes, booting.is_empty(), observed);
            let further = booting.iter().filter_map(|item| {
                Some((item.work.address, closed_node(item, observed)?.name.clone()))
            });
            let ready = nodes.iter().map(|one| (one.item.work.address, one.node.name.clone()));
            let mut planned = PlannedNodes::default();
            for (address, name) in ready.chain(further).filter(|_| self.nominates()) {
                planned.add(&name, &planned_pods_at(self.plan, address));
            }
            let missing = observed.map(|world| closed.accepted.missing(world, planned));
            if is_due {
                nominations.extend(missing.unwrap_or_default());
                due.extend(nodes);
            } else {
                early.extend(missing.unwrap_or_default());
                closed.nodes.extend(nodes);
            }
        }
        if let Some(world) = observed {
            sort_by_queue_order(&mut nominations, world);
        }
        if due.is_empty() {
            let early = observed.map(|world| closed.early(early, world)).unwrap_or_default();
            closed.record(nominate(self.ports.cluster, self.ports.clock, early).await);
        } else {
            self.open(closed, due, nominations).await;
        }
    }

    /// Returns the closed nodes and the booting launches by batch.
    fn batches<'b, 'w, 'p>(
        &self,
        closed: Vec<ClosedNode<'w, 'p>>,
        booting: &'b [Booting<'w, 'p>],
    ) -> Vec<Batch<'b, 'w, 'p>> {
        let first_pools = batch_pools(self.plan);
        let batch_of = |item: &Booting<'_, '_>| -> PoolName {
            first_pools.get(item.work.pool).unwrap_or(item.work.pool).clone()
        };
        let mut batches: BTreeMap<PoolName, Batch<'b, 'w, 'p>> = BTreeMap::new();
        for one in closed {
            batches.entry(batch_of(&one.item)).or_default().closed.push(one);
        }
        for item in booting {
            batches.entry(batch_of(item)).or_default().booting.push(item);
        }
        batches.into_values().collect()
    }

    /// Returns the closed nodes of a batch with their waiting times, and true if they open now.
    fn waiting_nodes<'w, 'p>(
        &self,
        mut nodes: Vec<ClosedNode<'w, 'p>>,
        is_complete: bool,
        observed: Option<&Observed>,
    ) -> (Vec<ClosedNode<'w, 'p>>, bool) {
        let now = self.now();
        if observed.is_none() && self.nominates() {
            // The pods are unknown, so that only the deadlines count.
            let is_late =
                |one: &ClosedNode<'_, '_>| one.waiting.is_some_and(|w| w.deadline() <= now);
            let is_due =
                nodes.iter().any(is_late) || (self.settings.is_interrupted() && !nodes.is_empty());
            return (nodes, is_due);
        }
        let pods = self.batch_pods(&nodes, observed);
        let mut is_due = (is_complete && !pods.are_missing) || self.settings.is_interrupted();
        for one in &mut nodes {
            let waiting = WaitingNode::observed(one.waiting, pods, now);
            is_due |= waiting.deadline() <= now;
            one.waiting = Some(waiting);
        }
        let is_due = is_due && !nodes.is_empty();
        (nodes, is_due)
    }

    /// Returns the state of the pods that the plan places on closed nodes.
    fn batch_pods(&self, nodes: &[ClosedNode<'_, '_>], observed: Option<&Observed>) -> BatchPods {
        let Some(world) = observed.filter(|_| self.nominates()) else {
            // Pods are not nominated, so that the nodes do not wait for them.
            return BatchPods { are_pending: true, are_missing: false, are_added: false };
        };
        let mut planned = PlannedNodes::default();
        for one in nodes {
            planned.add(&one.node.name, &planned_pods_at(self.plan, one.item.work.address));
        }
        let by_git = self.plan.capacity.demand.iter().filter(|row| row.decided_by == Decider::Git);
        let by_git: BTreeSet<String> = by_git.map(|row| workload_key(&row.workload)).collect();
        BatchPods::new(self.plan, world, &planned, |workload| by_git.contains(workload))
    }

    /// Nominates pods, and opens nodes. Nodes whose opening fails for a moment stay closed.
    async fn open<'w, 'p>(
        &self,
        closed: &mut ClosedNodes<'w, 'p>,
        due: Vec<ClosedNode<'w, 'p>>,
        nominations: Vec<PodNomination>,
    ) {
        let nodes: Vec<Node> = due.iter().map(|one| one.node.clone()).collect();
        let names: BTreeSet<NodeName> = nodes.iter().map(|node| node.name.clone()).collect();
        let launched = due.iter().map(|one| (&one.node, one.item.work.pool));
        let annotations = annotations_of_launches(self.plan, launched);
        let (cluster, clock) = (self.ports.cluster, self.ports.clock);
        let OpenedBatch { nominations, nodes: answers } =
            nominate_and_open(cluster, clock, nominations, nodes, &annotations).await;
        let refused = nominations.iter().filter(|(.., answer)| answer.is_err()).count();
        closed.record(nominations);
        let pods = closed.accepted.0.values().filter(|node| names.contains(*node)).count();
        self.report_nominations(pods, refused);
        for (mut one, (.., answer)) in due.into_iter().zip(answers) {
            one.tries += 1;
            match answer {
                Err(error) if one.tries < self.settings.bounds.tries && error.is_transient() => {
                    let step = Step::Retrying { why: error.to_string() };
                    self.emit(Some(one.item.work.address), step);
                    closed.nodes.push(one);
                }
                answer => self.finish_opened(&one.item, &one.node, answer),
            }
        }
    }

    fn finish_opened(&self, item: &Booting<'_, '_>, node: &Node, answer: Result<(), PortError>) {
        match answer {
            Ok(()) => {
                self.emit(Some(item.work.address), Step::Ready { node: node.name.clone() });
                self.finish_launch(item, item.success.clone());
            }
            Err(error) => {
                let why = format!("its node {} is still closed for pods: {error}", node.name);
                self.finish_launch(item, Outcome::Failed { why });
            }
        }
    }

    /// Opens the Ready nodes that an earlier apply left closed, and annotates those that another
    /// client opened. The launch wave opens those that it finds.
    pub(super) async fn open_left_closed(&self, waves: &[WaveWork<'_>]) {
        let Some(observed) =
            self.observation.as_ref().filter(|_| self.settings.opened_by != OpenedBy::Controller)
        else {
            return;
        };
        let is_awaited = |node: &Node| {
            let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
            let launch = instance.and_then(|instance| launch_of(waves, instance));
            launch.is_some_and(|work| !self.exceptions.dropped.contains_key(work.address))
                && !self.settings.is_interrupted()
        };
        let is_left =
            |node: &&Node| node.ready && node.is_closed() && node.labels.contains_key(KEY_LABEL);
        let left = observed.nodes.values().filter(is_left).filter(|node| !is_awaited(node));
        let left: Vec<Node> = left.cloned().collect();
        let unannotated = observed.nodes.values().filter(|node| is_unannotated(node, observed));
        let mut nodes: Vec<Node> = left.iter().chain(unannotated).cloned().collect();
        let annotations = opening_annotations(self.plan, observed, &nodes);
        nodes.retain(|node| node.is_closed() || annotations.contains_key(&node.uid));
        if nodes.is_empty() {
            return;
        }
        let planned = self.planned_nodes_of(&left);
        let mut nominations = AcceptedNominations::default().missing(observed, planned);
        sort_by_queue_order(&mut nominations, observed);
        let (cluster, clock) = (self.ports.cluster, self.ports.clock);
        let OpenedBatch { nominations, nodes: answers } =
            nominate_and_open(cluster, clock, nominations, nodes, &annotations).await;
        let refused = nominations.iter().filter(|(.., answer)| answer.is_err()).count();
        self.report_nominations(nominations.len() - refused, refused);
        for (_, name, answer) in answers {
            if let Err(error) = answer {
                let is_closed = left.iter().any(|node| node.name == name);
                let verb = if is_closed { "open" } else { "annotate" };
                let why = format!("cannot {verb} node {name}: {error}");
                self.emit(None, Step::NodeWriteFailed { why });
            }
        }
    }

    /// Returns the pods that a steered plan places on existing nodes.
    fn planned_nodes_of(&self, nodes: &[Node]) -> PlannedNodes {
        let mut planned = PlannedNodes::default();
        if self.nominates() {
            let ids: BTreeSet<&InstanceId> =
                nodes.iter().filter_map(|node| node.instance.as_ref()).collect();
            let pods = planned_pods_on(self.plan, |id| ids.contains(id));
            for node in nodes {
                if let Some(pods) = node.instance.as_ref().and_then(|id| pods.get(id)) {
                    planned.add(&node.name, pods);
                }
            }
        }
        planned
    }

    fn report_nominations(&self, pods: usize, refused: usize) {
        if pods + refused > 0 {
            self.emit(None, Step::Nominated { pods, refused });
        }
    }
}

/// Returns the launch that has the instance.
fn launch_of<'w, 'p>(waves: &'w [WaveWork<'p>], instance: &Instance) -> Option<&'w LaunchWork<'p>> {
    waves.iter().find_map(|wave| match wave {
        WaveWork::Launch(works) => {
            works.iter().find(|work| is_launched_by(instance, &work.change_id))
        }
        WaveWork::Retire(_) => None,
    })
}

/// Returns the node of a launched instance if it is closed.
pub(super) fn closed_node<'o>(
    item: &Booting<'_, '_>,
    observed: Option<&'o Observed>,
) -> Option<&'o Node> {
    let node = observed?.node_for_instance(&item.instance)?;
    node.is_closed().then_some(node)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::model::observed::Pod;
    use crate::model::pod::PodTemplate;
    use crate::testing::world::pod;

    #[test]
    fn early_nominations_are_of_the_highest_priorities() {
        let mut urgent = PodTemplate::default();
        urgent.spec.priority = Some(1);
        let mut world = Observed::of_cluster("test", Timestamp::UNIX_EPOCH);
        world.templates.insert("urgent".to_owned(), Arc::new(urgent));
        let nomination = |template: &str| {
            let pod = Arc::new(Pod { template: template.into(), ..pod(template) });
            PodNomination { pod, node: "n".into() }
        };
        let mut nominations = vec![nomination("usual"); EARLY_NOMINATIONS_MAX];
        nominations.push(nomination("urgent"));
        let early = ClosedNodes::default().early(nominations, &world);
        assert_eq!(early.len(), EARLY_NOMINATIONS_MAX);
        assert_eq!(&*early[0].pod.name, "urgent");
    }
}
