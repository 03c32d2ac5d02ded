//! Messages of the queue: received while this replica leads and acts and knows what may be done, and taken off in
//! bundles.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::aws::{Aws, MESSAGES_MAX};
use crate::port::{Fate, PortError};
use crate::reconcile::Message;

/// Calls for messages at the same time: some wait, and where they find more than one message the others help. A
/// burst comes off ten messages a call.
pub(super) const LISTENERS: usize = 16;
/// How many of them wait: one that fails, or has what it found taken, leaves none that comes meanwhile unheard.
pub(super) const WAITING: usize = 2;
/// Messages that were received and that the loop has not taken.
pub(super) const WAITING_MAX: usize = 512;
/// The longest that a message waits for others to be taken off with.
const BUNDLE_WITHIN: Duration = Duration::from_millis(20);
/// The first wait after a failure, and the longest: a spot machine is gone two minutes after its warning.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// A message that is to be taken off, and whoever wants to know how that went.
pub(super) type Done = (String, oneshot::Sender<Result<(), PortError>>);

/// When messages are received, and from where.
#[derive(Debug, Clone)]
pub(super) struct When {
    /// Whether the loop can take them and may act on them: what it cannot comes again, but only after a
    /// while, and what it may not is for others.
    pub(super) ready: watch::Receiver<bool>,
    /// Name or URL of the queue, where there is one.
    pub(super) queue: watch::Receiver<Option<String>>,
}

impl When {
    /// Waits until messages are to be received; returns the queue, or nothing at the end.
    async fn now(&mut self) -> Option<String> {
        loop {
            self.ready.wait_for(|ready| *ready).await.ok()?;
            let named = self.queue.wait_for(Option::is_some).await.ok()?.clone();
            if let Some(name) = named.filter(|_| *self.ready.borrow()) {
                return Some(name);
            }
        }
    }
}

/// Where queues are, by name: a queue that is made anew is where it was.
#[derive(Debug, Default)]
pub(super) struct Urls(Mutex<BTreeMap<String, String>>);

impl Urls {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the queue is that `name` names.
    async fn of(&self, aws: &Aws, name: &str) -> Result<String, PortError> {
        if let Some(url) = self.lock().get(name).cloned() {
            return Ok(url);
        }
        let url = aws.queue(name).await?;
        let mut known = self.lock();
        // The repository names one at a time.
        known.clear();
        known.insert(name.to_owned(), url.clone());
        Ok(url)
    }
}

/// What a listener is for.
#[derive(Debug, Clone)]
pub(super) struct Duty {
    /// Whether it waits for messages; else it takes what is there, whenever there is much.
    pub(super) waits: bool,
    /// Told when there is much.
    pub(super) much: Arc<Notify>,
    pub(super) urls: Arc<Urls>,
}

/// Receives messages until nobody wants them any more.
pub(super) async fn listen(aws: Arc<Aws>, mut when: When, duty: Duty, to: mpsc::Sender<Message>) {
    let mut wait = RETRY_FIRST;
    let mut idle = !duty.waits;
    while let Some(name) = when.now().await {
        if std::mem::take(&mut idle) {
            duty.much.notified().await;
            continue;
        }
        let received = match duty.urls.of(&aws, &name).await {
            Ok(url) => aws.receive(&url, duty.waits).await,
            Err(error) => Err(error),
        };
        match received {
            Ok(messages) => {
                wait = RETRY_FIRST;
                if messages.len() > 1 {
                    duty.much.notify_waiters();
                }
                idle = !duty.waits && messages.is_empty();
                for message in messages {
                    let message = Message::read(&message.receipt, &message.body);
                    if to.send(message).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no message is received");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_MOST);
            }
        }
    }
}

/// Takes messages off the queue until there is nobody left to ask for it.
pub(super) async fn take_off(
    aws: Arc<Aws>,
    (queue, urls): (watch::Receiver<Option<String>>, Arc<Urls>),
    mut done: mpsc::Receiver<Done>,
) {
    while let Some(first) = done.recv().await {
        let mut bundle = vec![first];
        let more = async {
            while bundle.len() < MESSAGES_MAX {
                let Some(next) = done.recv().await else { return };
                bundle.push(next);
            }
        };
        // What has come by then goes together.
        let _ = tokio::time::timeout(BUNDLE_WITHIN, more).await;
        let name = queue.borrow().clone();
        tokio::spawn(answer(Arc::clone(&aws), (name, Arc::clone(&urls)), bundle));
    }
}

async fn answer(aws: Arc<Aws>, queue: (Option<String>, Arc<Urls>), bundle: Vec<Done>) {
    let (receipts, answers): (Vec<String>, Vec<_>) = bundle.into_iter().unzip();
    let ends = match take_off_now(&aws, queue, &receipts).await {
        Ok(ends) => ends,
        Err(error) => vec![Err(error); answers.len()],
    };
    for (answer, end) in answers.into_iter().zip(ends) {
        // The loop may have ended.
        let _ = answer.send(end);
    }
}

async fn take_off_now(
    aws: &Aws,
    (queue, urls): (Option<String>, Arc<Urls>),
    receipts: &[String],
) -> Result<Vec<Result<(), PortError>>, PortError> {
    let none = || PortError {
        verb: "take messages off the queue".to_owned(),
        reason: "no queue is named any more".to_owned(),
        fate: Fate::Refused,
    };
    let url = urls.of(aws, &queue.ok_or_else(none)?).await?;
    aws.take_off(&url, receipts).await
}
