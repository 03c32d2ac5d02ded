//! The queue that `EventBridge` writes to: what is said of machines comes off it, and is taken off once
//! it was dealt with.
//!
//! What a message says is for others to read; here it is text. Nothing is lost by not asking: what was
//! handed out and not taken off comes again.

use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, QueueAttributeName};

use super::client::{Aws, AwsError};
use super::cloud::refused;
use super::fault::port_error;
use super::limiter::Api;
use crate::port::{Fate, PortError};

/// Most messages of one call. Source: SQS API reference.
pub const MESSAGES_MAX: usize = 10;

/// How long a call waits for a message, in seconds: less than the longest wait for an answer.
const WAIT_SECONDS: i32 = 10;

/// How long a message that was handed out is not handed out again, in seconds: longer than a cordon
/// takes, and short enough for whoever leads next.
const HIDDEN_SECONDS: i32 = 30;

/// A message as it comes off the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// By which it is taken off.
    pub receipt: String,
    /// Its text.
    pub body: String,
}

impl Aws {
    /// Returns the URL of the queue that `name` names; a URL is itself.
    ///
    /// # Errors
    /// When there is no such queue, or the call is refused.
    pub async fn queue(&self, name: &str) -> Result<String, PortError> {
        if name.contains("://") {
            return Ok(name.to_owned());
        }
        self.limiter.take(Api::Queue).await;
        let found = self.sqs.get_queue_url().queue_name(name).send().await;
        let found =
            found.map_err(|error| port_error(&format!("find the queue `{name}`"), &error))?;
        let without = || refused("find queue", format!("SQS tells no URL of `{name}`"));
        found.queue_url.ok_or_else(without)
    }

    /// Takes messages, and waits for one if it is to; none where none came for a while.
    ///
    /// # Errors
    /// When the queue does not answer, or refuses.
    pub async fn receive(&self, url: &str, waits: bool) -> Result<Vec<Received>, PortError> {
        self.limiter.take(Api::Queue).await;
        let most = i32::try_from(MESSAGES_MAX).unwrap_or(1);
        let call = self.sqs.receive_message().queue_url(url).max_number_of_messages(most);
        let call = call
            .wait_time_seconds(if waits { WAIT_SECONDS } else { 0 })
            .visibility_timeout(HIDDEN_SECONDS);
        let answer = call.send().await.map_err(|error| port_error("receive messages", &error))?;
        let messages = answer.messages.unwrap_or_default().into_iter();
        // One without a receipt cannot be taken off, and comes again.
        let read = messages.filter_map(|message| {
            Some(Received { receipt: message.receipt_handle?, body: message.body? })
        });
        Ok(read.collect())
    }

    /// Takes messages off the queue, at most [`MESSAGES_MAX`]; one answer for each, in their order.
    ///
    /// # Errors
    /// When the queue does not answer, or refuses; then all of them come again.
    pub async fn take_off(
        &self,
        url: &str,
        receipts: &[String],
    ) -> Result<Vec<Result<(), PortError>>, PortError> {
        const VERB: &str = "take messages off the queue";
        let entry = |(n, receipt): (usize, &String)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            entry.receipt_handle(receipt).build()
        };
        let entries: Result<Vec<_>, _> = receipts.iter().enumerate().map(entry).collect();
        let entries = entries.map_err(|error| refused(VERB, error.to_string()))?;
        self.limiter.take(Api::Queue).await;
        let call = self.sqs.delete_message_batch().queue_url(url).set_entries(Some(entries));
        let answer = call.send().await.map_err(|error| port_error(VERB, &error))?;
        let mut ends = vec![Ok(()); receipts.len()];
        for failed in answer.failed {
            let place = failed.id.parse().ok().and_then(|n: usize| ends.get_mut(n));
            let reason = failed.message.unwrap_or(failed.code);
            let fate = Fate::of(!failed.sender_fault);
            if let Some(end) = place {
                *end = Err(PortError { verb: VERB.to_owned(), reason, fate });
            }
        }
        Ok(ends)
    }

    /// Returns what is known of a queue, for whoever asks whether everything is in place.
    pub(super) async fn look_at_queue(&self, name: &str) -> Result<String, AwsError> {
        let url = self.queue(name).await?;
        self.limiter.take(Api::Queue).await;
        let waiting = QueueAttributeName::ApproximateNumberOfMessages;
        let call = self.sqs.get_queue_attributes().queue_url(&url).attribute_names(waiting.clone());
        let found = call.send().await.map_err(|error| port_error("look at the queue", &error))?;
        let count = found.attributes.and_then(|mut all| all.remove(&waiting));
        Ok(format!("about {} messages wait", count.unwrap_or_else(|| "0".to_owned())))
    }
}
