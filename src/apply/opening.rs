//! Opening of launched nodes by an apply.
//!
//! A launched node has a taint that keeps pods away. Nodes that are Ready at the same time open
//! together, because kube-scheduler would fill a node that opens alone with whatever pods wait.

use jiff::{SignedDuration, Timestamp};

use super::concurrent::run_concurrently;
use super::launch::Booting;
use super::receipt::{Outcome, Step};
use super::{OpenedBy, Run};
use crate::apply::ports::{Clock, Cloud, Cluster, PortError};
use crate::model::observed::{KEY_LABEL, Node, Observed};
use crate::model::saturating_time::later;

/// Longest time for which a Ready node waits for the other nodes of its wave.
const OPENING_WAIT_MAX: SignedDuration = SignedDuration::from_secs(20);
/// Maximum number of concurrent writes.
const CONCURRENT_WRITES_MAX: usize = 32;

/// Ready nodes of a wave that are still closed.
#[derive(Default)]
pub(super) struct ClosedNodes<'w, 'p> {
    nodes: Vec<(Booting<'w, 'p>, Node)>,
    /// Time at which the first of them was Ready.
    since: Option<Timestamp>,
    /// Number of attempts to open them.
    tries: u32,
}

impl<'w, 'p> ClosedNodes<'w, 'p> {
    pub(super) fn add(&mut self, item: Booting<'w, 'p>, node: Node, now: Timestamp) {
        self.since.get_or_insert(now);
        self.nodes.push((item, node));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Returns true if the controller is still to open the node of a launch.
    pub(super) fn waits_for_controller(&self, item: &Booting<'_, '_>) -> bool {
        self.settings.opened_by == OpenedBy::Controller
            && self.now() < item.deadline
            && !self.settings.is_interrupted()
    }

    /// Opens the closed nodes once no other node is booting, or once the first of them has waited
    /// long enough.
    pub(super) async fn open_if_due(
        &mut self,
        closed: &mut ClosedNodes<'_, '_>,
        is_complete: bool,
    ) {
        let is_late = closed.since.is_some_and(|s| self.now() >= later(s, OPENING_WAIT_MAX));
        if closed.is_empty() || !(is_complete || is_late) {
            return;
        }
        let nodes: Vec<&Node> = closed.nodes.iter().map(|(_, node)| node).collect();
        let answers = self.open_all(&nodes).await;
        closed.tries += 1;
        for ((item, node), answer) in std::mem::take(&mut closed.nodes).into_iter().zip(answers) {
            match answer {
                Err(error) if closed.tries < self.settings.bounds.tries && error.is_transient() => {
                    self.emit(Some(item.work.address), Step::Retrying { why: error.to_string() });
                    closed.nodes.push((item, node));
                }
                answer => self.finish_opened(&item, &node, answer),
            }
        }
        if closed.is_empty() {
            (closed.since, closed.tries) = (None, 0);
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

    /// Opens the Ready nodes that an earlier apply left closed.
    pub(super) async fn open_left_closed(&self) {
        let Some(observed) =
            self.observation.as_ref().filter(|_| self.settings.opened_by == OpenedBy::Apply)
        else {
            return;
        };
        let is_left =
            |node: &&Node| node.ready && node.is_closed() && node.labels.contains_key(KEY_LABEL);
        let nodes: Vec<&Node> = observed.nodes.values().filter(is_left).collect();
        for (node, answer) in nodes.iter().zip(self.open_all(&nodes).await) {
            if let Err(error) = answer {
                let why = format!("cannot open node {}: {error}", node.name);
                self.emit(None, Step::NodeWriteFailed { why });
            }
        }
    }

    async fn open_all(&self, nodes: &[&Node]) -> Vec<Result<(), PortError>> {
        let works = nodes.iter().map(|node| -> std::pin::Pin<Box<dyn Future<Output = _>>> {
            Box::pin(self.ports.cluster.open(node))
        });
        run_concurrently(works, CONCURRENT_WRITES_MAX).await
    }
}

/// Returns the node of a launched instance if it is closed.
pub(super) fn closed_node(item: &Booting<'_, '_>, observed: Option<&Observed>) -> Option<Node> {
    let node = observed?.node_for_instance(&item.instance)?;
    node.is_closed().then(|| node.clone())
}
