//! Nominates pods to closed nodes, and opens the nodes.

use super::ExternalPorts;
use crate::apply::ports::{Clock, Cluster};
use crate::apply::{LeaseGuard, PodNomination, nominate, nominate_and_open};
use crate::controller::event::Event;
use crate::controller::ports::SignalSource;
use crate::model::observed::Node;

/// Nominates pods, and then opens the nodes.
pub(super) async fn open_nodes<C, K: Cluster, T: Clock, S, G: SignalSource, D>(
    ports: ExternalPorts<'_, C, K, T, S, G, D>,
    nominations: Vec<PodNomination>,
    nodes: Vec<Node>,
) -> Event {
    let may_write = || ports.signals.may_write();
    let guard = LeaseGuard::new(ports.cluster, &may_write);
    Event::NodesOpened(nominate_and_open(&guard, ports.clock, nominations, nodes).await)
}

/// Nominates pods to nodes that do not open yet.
pub(super) async fn nominate_pods<C, K: Cluster, T: Clock, S, G: SignalSource, D>(
    ports: ExternalPorts<'_, C, K, T, S, G, D>,
    nominations: Vec<PodNomination>,
) -> Event {
    let may_write = || ports.signals.may_write();
    let guard = LeaseGuard::new(ports.cluster, &may_write);
    Event::PodsNominated(nominate(&guard, ports.clock, nominations).await)
}
