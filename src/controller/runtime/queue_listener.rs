//! The interruption queue: messages are received while this replica may act on them, and
//! acknowledged in batches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::adapters::aws::{Aws, MESSAGES_MAX};
use crate::apply::ports::{CallEffect, PortError};
use crate::controller::InterruptionMessage;

/// Concurrent receive calls. Some use long polling; the others help while a call returns more than
/// one message. A call returns at most ten messages.
pub(super) const LISTENERS: usize = 16;
/// The long-polling listeners. With two, the failure or back-pressure of one does not delay new
/// messages.
pub(super) const LONG_POLLING: usize = 2;
/// Received messages that the controller has not taken yet.
pub(super) const BUFFERED_MAX: usize = 512;
/// The longest time that an acknowledgement waits for others to fill its batch.
const BATCH_WITHIN: Duration = Duration::from_millis(20);
/// The shortest and longest backoff after a failure. A spot instance is terminated two minutes
/// after its warning.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// A message receipt to acknowledge, and the channel of its result.
pub(super) type Acknowledgement = (String, oneshot::Sender<Result<(), PortError>>);

/// Says when to receive messages, and from which queue.
#[derive(Debug, Clone)]
pub(super) struct ReceiveGate {
    /// True if the controller can take and act on messages. A message that it cannot take reappears
    /// only after a while; one that it may not act on is left to another replica.
    pub(super) ready: watch::Receiver<bool>,
    /// Name or URL of the queue, if there is one.
    pub(super) queue: watch::Receiver<Option<String>>,
}

impl ReceiveGate {
    /// Waits until messages are to be received. Returns the queue, or `None` at shutdown.
    async fn open_queue(&mut self) -> Option<String> {
        loop {
            self.ready.wait_for(|ready| *ready).await.ok()?;
            let named = self.queue.wait_for(Option::is_some).await.ok()?.clone();
            if let Some(name) = named.filter(|_| *self.ready.borrow()) {
                return Some(name);
            }
        }
    }
}

/// Queue URLs by name. A queue that is created again has the same URL.
#[derive(Debug, Default)]
pub(super) struct QueueUrls(Mutex<BTreeMap<String, String>>);

impl QueueUrls {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the URL of the queue `name`.
    async fn url_of(&self, aws: &Aws, name: &str) -> Result<String, PortError> {
        if let Some(url) = self.lock().get(name).cloned() {
            return Ok(url);
        }
        let url = aws.queue_url(name).await?;
        let mut urls = self.lock();
        // The repository names at most one queue at a time.
        urls.clear();
        urls.insert(name.to_owned(), url.clone());
        Ok(url)
    }
}

/// The role of one listener.
#[derive(Debug, Clone)]
pub(super) struct ListenerRole {
    /// True if it uses long polling. Otherwise it receives only during a burst.
    pub(super) long_polls: bool,
    /// Notified during a burst.
    pub(super) burst: Arc<Notify>,
    pub(super) urls: Arc<QueueUrls>,
}

/// Receives messages until the controller stops taking them.
pub(super) async fn receive_messages(
    aws: Arc<Aws>,
    mut gate: ReceiveGate,
    role: ListenerRole,
    to: mpsc::Sender<InterruptionMessage>,
) {
    let mut backoff = RETRY_MIN;
    let mut idle = !role.long_polls;
    while let Some(name) = gate.open_queue().await {
        if std::mem::take(&mut idle) {
            role.burst.notified().await;
            continue;
        }
        let received = match role.urls.url_of(&aws, &name).await {
            Ok(url) => aws.receive(&url, role.long_polls).await,
            Err(error) => Err(error),
        };
        match received {
            Ok(messages) => {
                backoff = RETRY_MIN;
                if messages.len() > 1 {
                    role.burst.notify_waiters();
                }
                idle = !role.long_polls && messages.is_empty();
                for message in messages {
                    let message = InterruptionMessage::read(&message.receipt, &message.body);
                    if to.send(message).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot receive messages");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Acknowledges messages in batches until all senders are gone.
pub(super) async fn acknowledge_in_batches(
    aws: Arc<Aws>,
    queue: watch::Receiver<Option<String>>,
    urls: Arc<QueueUrls>,
    mut done: mpsc::Receiver<Acknowledgement>,
) {
    while let Some(first) = done.recv().await {
        let mut batch = vec![first];
        let more = async {
            while batch.len() < MESSAGES_MAX {
                let Some(next) = done.recv().await else { return };
                batch.push(next);
            }
        };
        // A timeout ends the batch.
        let _ = tokio::time::timeout(BATCH_WITHIN, more).await;
        let name = queue.borrow().clone();
        tokio::spawn(answer_batch(Arc::clone(&aws), name, Arc::clone(&urls), batch));
    }
}

async fn answer_batch(
    aws: Arc<Aws>,
    queue: Option<String>,
    urls: Arc<QueueUrls>,
    batch: Vec<Acknowledgement>,
) {
    let (receipts, answers): (Vec<String>, Vec<_>) = batch.into_iter().unzip();
    let ends = match acknowledge_batch(&aws, queue, &urls, &receipts).await {
        Ok(ends) => ends,
        Err(error) => vec![Err(error); answers.len()],
    };
    for (answer, end) in answers.into_iter().zip(ends) {
        // The controller may have ended.
        let _ = answer.send(end);
    }
}

async fn acknowledge_batch(
    aws: &Aws,
    queue: Option<String>,
    urls: &QueueUrls,
    receipts: &[String],
) -> Result<Vec<Result<(), PortError>>, PortError> {
    let none = || PortError {
        verb: "acknowledge messages".to_owned(),
        reason: "the repository no longer names a queue".to_owned(),
        effect: CallEffect::Refused,
    };
    let url = urls.url_of(aws, &queue.ok_or_else(none)?).await?;
    aws.delete_messages(&url, receipts).await
}
