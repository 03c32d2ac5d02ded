//! Nominates pods to closed nodes, and opens the nodes.

use crate::apply::ports::{Clock, Cluster};
use crate::apply::{LeaseGuard, OpeningAnnotations, PodNomination, nominate, nominate_and_open};
use crate::controller::event::Event;
use crate::model::observed::Node;

/// Nominates pods, then opens the nodes and sets their annotations.
pub(super) async fn open_nodes(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    clock: &impl Clock,
    nominations: Vec<PodNomination>,
    nodes: Vec<Node>,
    annotations: OpeningAnnotations,
) -> Event {
    Event::NodesOpened(nominate_and_open(&cluster, clock, nominations, nodes, &annotations).await)
}

/// Nominates pods to nodes that do not open yet.
pub(super) async fn nominate_pods(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    clock: &impl Clock,
    nominations: Vec<PodNomination>,
) -> Event {
    Event::PodsNominated(nominate(&cluster, clock, nominations).await)
}
