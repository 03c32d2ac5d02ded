//! The event sources of the controller, polled by priority: the lease and shutdown, then
//! interruption messages, then operator requests, then hints.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::inventory_cache::InventoryCache;
use super::leader_election::LeaderElector;
use super::queue_listener::Acknowledgement;
use crate::adapters::aws::Aws;
use crate::adapters::kube::ClusterChange;
use crate::apply::ports::{CallEffect, PortError};
use crate::controller::{AuthorizedRequest, InterruptionMessage, Signal, SignalSource};

const CTRL_C_POLL: Duration = Duration::from_millis(100);

/// The channels of events, and the channel of message acknowledgements.
pub(super) struct EventSources<'w> {
    pub(super) elector: &'w LeaderElector,
    pub(super) inventory: &'w InventoryCache<Aws>,
    pub(super) urgent: RefCell<mpsc::Receiver<Signal>>,
    pub(super) messages: RefCell<mpsc::Receiver<InterruptionMessage>>,
    pub(super) requests: RefCell<mpsc::Receiver<AuthorizedRequest>>,
    pub(super) hints: RefCell<mpsc::Receiver<()>>,
    pub(super) cluster_changes: RefCell<mpsc::Receiver<ClusterChange>>,
    pub(super) acknowledgements: mpsc::Sender<Acknowledgement>,
}

impl EventSources<'_> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Signal> {
        if let Poll::Ready(Some(signal)) = self.urgent.borrow_mut().poll_recv(context) {
            // The previous leader may have launched instances after the last read.
            if signal == Signal::LeaseGained {
                self.inventory.invalidate();
            }
            return Poll::Ready(signal);
        }
        if let Poll::Ready(Some(message)) = self.messages.borrow_mut().poll_recv(context) {
            // The inventory is older than the message.
            self.inventory.invalidate();
            return Poll::Ready(Signal::Message(message));
        }
        if let Poll::Ready(Some(request)) = self.requests.borrow_mut().poll_recv(context) {
            return Poll::Ready(Signal::Request(request));
        }
        // Without a webhook, this channel is closed.
        if let Poll::Ready(Some(())) = self.hints.borrow_mut().poll_recv(context) {
            return Poll::Ready(Signal::RepositoryChanged);
        }
        match self.cluster_changes.borrow_mut().poll_recv(context) {
            Poll::Ready(Some(ClusterChange::PodPending)) => Poll::Ready(Signal::PodPending),
            Poll::Ready(Some(ClusterChange::NodeChanged)) => Poll::Ready(Signal::WorldChanged),
            // Pools are read with the repository.
            Poll::Ready(Some(ClusterChange::PoolChanged)) => Poll::Ready(Signal::RepositoryChanged),
            // A closed channel has no more events.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl SignalSource for EventSources<'_> {
    async fn next(&self) -> Signal {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    async fn acknowledge(&self, receipt: &str) -> Result<(), PortError> {
        let closed = || PortError {
            verb: "acknowledge messages".to_owned(),
            reason: "the queue listener has stopped".to_owned(),
            effect: CallEffect::Unknown,
        };
        let (answer, answered) = oneshot::channel();
        let sent = self.acknowledgements.send((receipt.to_owned(), answer)).await;
        sent.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    fn may_write(&self) -> bool {
        self.elector.is_certain()
    }
}

/// Sends the shutdown signal when the flag is set.
pub(super) async fn wait_for_shutdown(shutdown: Arc<AtomicBool>, signals: mpsc::Sender<Signal>) {
    while !shutdown.load(Ordering::Relaxed) {
        tokio::time::sleep(CTRL_C_POLL).await;
    }
    // The controller may have ended by itself.
    let _ = signals.send(Signal::Shutdown).await;
}
