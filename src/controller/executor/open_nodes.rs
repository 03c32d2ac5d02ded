//! Nominates pods to closed nodes, and opens the nodes.

use std::future::Future;
use std::pin::Pin;

use jiff::SignedDuration;

use crate::apply::LeaseGuard;
use crate::apply::concurrent::run_concurrently;
use crate::apply::ports::{CallEffect, Clock, Cluster, PortError};
use crate::controller::event::Event;
use crate::controller::nominations::{NominationAnswer, PodNomination};
use crate::controller::opening::OpenedBatch;
use crate::model::observed::Node;
use crate::model::saturating_time::later;

/// Rounds of nominations just before nodes open.
const ROUNDS: u32 = 2;
/// Time after which no further nomination is sent.
const NOMINATIONS_WITHIN: SignedDuration = SignedDuration::from_secs(15);
/// Maximum number of concurrent requests. The API server queues more than about as many requests of
/// one client.
const CONCURRENT_REQUESTS_MAX: usize = 64;

/// Nominates pods, and then opens the nodes.
///
/// kube-scheduler may clear a nomination to a node that is still closed, so each pod is nominated a
/// second time. A repeated nomination changes nothing.
pub(super) async fn open_nodes(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    clock: &impl Clock,
    nominations: Vec<PodNomination>,
    nodes: Vec<Node>,
) -> Event {
    let nominations = nominate(&cluster, clock, nominations, ROUNDS).await;
    let opened = nodes
        .iter()
        .map(|node| -> Pin<Box<dyn Future<Output = _>>> { Box::pin(cluster.open(node)) });
    let opened = run_concurrently(opened, CONCURRENT_REQUESTS_MAX).await;
    let nodes = nodes.into_iter().zip(opened).map(|(node, answer)| (node.uid, node.name, answer));
    Event::NodesOpened(OpenedBatch { nominations, nodes: nodes.collect() })
}

/// Nominates pods to nodes that do not open yet.
pub(super) async fn nominate_pods(
    cluster: LeaseGuard<'_, impl Cluster, impl Fn() -> bool>,
    clock: &impl Clock,
    nominations: Vec<PodNomination>,
) -> Event {
    Event::PodsNominated(nominate(&cluster, clock, nominations, 1).await)
}

/// Sends each nomination in every round. Returns for each pod the first answer that accepts it.
async fn nominate(
    cluster: &impl Cluster,
    clock: &impl Clock,
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
