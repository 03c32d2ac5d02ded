//! Everything that comes unasked, in the order of its weight: what ends or changes the right to write,
//! then machines that go, then what people ask, then hints.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::account::Account;
use super::lead::Leadership;
use super::queue::Done;
use crate::aws::Aws;
use crate::kube::News;
use crate::port::{Fate, PortError};
use crate::reconcile::{Message, Request, Signal, Signals};

/// Between two looks at Ctrl-C.
const WAKE: Duration = Duration::from_millis(100);

/// Wires on which something comes, and the one by which messages are taken off.
pub(super) struct Wires<'w> {
    pub(super) leadership: &'w Leadership,
    pub(super) account: &'w Account<Aws>,
    pub(super) urgent: RefCell<mpsc::Receiver<Signal>>,
    pub(super) messages: RefCell<mpsc::Receiver<Message>>,
    pub(super) requests: RefCell<mpsc::Receiver<Request>>,
    pub(super) hints: RefCell<mpsc::Receiver<()>>,
    pub(super) news: RefCell<mpsc::Receiver<News>>,
    pub(super) done: mpsc::Sender<Done>,
}

impl Wires<'_> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Signal> {
        if let Poll::Ready(Some(signal)) = self.urgent.borrow_mut().poll_recv(context) {
            // Who led before may have launched what was not there when it was read.
            if signal == Signal::Gained {
                self.account.outdate();
            }
            return Poll::Ready(signal);
        }
        if let Poll::Ready(Some(message)) = self.messages.borrow_mut().poll_recv(context) {
            // What was read before does not show what it tells.
            self.account.outdate();
            return Poll::Ready(Signal::Message(message));
        }
        if let Poll::Ready(Some(request)) = self.requests.borrow_mut().poll_recv(context) {
            return Poll::Ready(Signal::Request(request));
        }
        // Where no webhook is heard, nobody holds the other end.
        if let Poll::Ready(Some(())) = self.hints.borrow_mut().poll_recv(context) {
            return Poll::Ready(Signal::Pushed);
        }
        match self.news.borrow_mut().poll_recv(context) {
            Poll::Ready(Some(News::PodWaits)) => Poll::Ready(Signal::PodPending),
            Poll::Ready(Some(News::NodeChanged)) => Poll::Ready(Signal::WorldChanged),
            // A wire that nobody holds any more brings nothing.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Signals for Wires<'_> {
    async fn next(&self) -> Signal {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    async fn acknowledge(&self, receipt: &str) -> Result<(), PortError> {
        let gone = || PortError {
            verb: "take messages off the queue".to_owned(),
            reason: "nobody does that any more".to_owned(),
            fate: Fate::Unknown,
        };
        let (answer, answered) = oneshot::channel();
        let sent = self.done.send((receipt.to_owned(), answer)).await;
        sent.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    fn may_write(&self) -> bool {
        self.leadership.is_certain()
    }
}

/// Says when the process is to end.
pub(super) async fn until_told(ended: Arc<AtomicBool>, tell: mpsc::Sender<Signal>) {
    while !ended.load(Ordering::Relaxed) {
        tokio::time::sleep(WAKE).await;
    }
    // The loop may have ended by itself.
    let _ = tell.send(Signal::Shutdown).await;
}
