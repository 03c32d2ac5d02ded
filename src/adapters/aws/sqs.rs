//! The interruption queue that `EventBridge` writes to: receives messages and deletes them once
//! they are handled.
//!
//! This module treats messages as plain text. A message that is received but not deleted is
//! delivered again, so that none is lost.

use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, QueueAttributeName};

use super::client::Aws;
use super::errors::{AwsError, port_error, refused};
use super::rate_limiter::ApiBucket;
use crate::apply::ports::{CallEffect, PortError};

/// Maximum number of messages per call. Source: SQS API reference.
pub const MESSAGES_MAX: usize = 10;

/// Long-poll time in seconds, shorter than the call timeout.
const LONG_POLL_SECONDS: i32 = 10;

/// Visibility timeout in seconds: longer than a cordon takes, and short enough for the next leader.
const VISIBILITY_SECONDS: i32 = 30;

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueMessage {
    /// Receipt handle for the deletion.
    pub receipt: String,
    /// Message text.
    pub body: String,
}

impl Aws {
    /// Returns the URL of the queue `name`. A URL is returned unchanged.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist or the call is refused.
    pub async fn queue_url(&self, name: &str) -> Result<String, PortError> {
        if name.contains("://") {
            return Ok(name.to_owned());
        }
        self.limiter.acquire(ApiBucket::Queue).await;
        let found = self.sqs.get_queue_url().queue_name(name).send().await;
        let found =
            found.map_err(|error| port_error(&format!("get the URL of queue `{name}`"), &error))?;
        let without = || refused("get queue URL", format!("SQS returned no URL of `{name}`"));
        found.queue_url.ok_or_else(without)
    }

    /// Receives messages. With `long_polls`, it waits for the first message for at most ten
    /// seconds.
    ///
    /// # Errors
    /// Returns an error if the queue is unreachable or refuses the call.
    pub async fn receive(
        &self,
        url: &str,
        long_polls: bool,
    ) -> Result<Vec<QueueMessage>, PortError> {
        self.limiter.acquire(ApiBucket::Queue).await;
        let most = i32::try_from(MESSAGES_MAX).unwrap_or(1);
        let call = self.sqs.receive_message().queue_url(url).max_number_of_messages(most);
        let call = call
            .wait_time_seconds(if long_polls { LONG_POLL_SECONDS } else { 0 })
            .visibility_timeout(VISIBILITY_SECONDS);
        let answer = call.send().await.map_err(|error| port_error("receive messages", &error))?;
        let messages = answer.messages.unwrap_or_default().into_iter();
        // A message without a receipt cannot be deleted, and is delivered again.
        let read = messages.filter_map(|message| {
            Some(QueueMessage { receipt: message.receipt_handle?, body: message.body? })
        });
        Ok(read.collect())
    }

    /// Deletes at most [`MESSAGES_MAX`] messages. Returns one result for each receipt, in order.
    ///
    /// # Errors
    /// Returns an error if the queue is unreachable or refuses the call. All messages are then
    /// delivered again.
    pub async fn delete_messages(
        &self,
        url: &str,
        receipts: &[String],
    ) -> Result<Vec<Result<(), PortError>>, PortError> {
        const VERB: &str = "delete messages";
        let entry = |(n, receipt): (usize, &String)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            entry.receipt_handle(receipt).build()
        };
        let entries: Result<Vec<_>, _> = receipts.iter().enumerate().map(entry).collect();
        let entries = entries.map_err(|error| refused(VERB, error.to_string()))?;
        self.limiter.acquire(ApiBucket::Queue).await;
        let call = self.sqs.delete_message_batch().queue_url(url).set_entries(Some(entries));
        let answer = call.send().await.map_err(|error| port_error(VERB, &error))?;
        let mut results = vec![Ok(()); receipts.len()];
        for failed in answer.failed {
            let slot = failed.id.parse().ok().and_then(|n: usize| results.get_mut(n));
            let reason = failed.message.unwrap_or(failed.code);
            let effect = CallEffect::from_transience(!failed.sender_fault);
            if let Some(end) = slot {
                *end = Err(PortError { verb: VERB.to_owned(), reason, effect });
            }
        }
        Ok(results)
    }

    /// Returns the approximate queue depth for the preflight checks.
    pub(super) async fn queue_depth(&self, name: &str) -> Result<String, AwsError> {
        let url = self.queue_url(name).await?;
        self.limiter.acquire(ApiBucket::Queue).await;
        let waiting = QueueAttributeName::ApproximateNumberOfMessages;
        let call = self.sqs.get_queue_attributes().queue_url(&url).attribute_names(waiting.clone());
        let found =
            call.send().await.map_err(|error| port_error("read queue attributes", &error))?;
        let count = found.attributes.and_then(|mut all| all.remove(&waiting));
        Ok(format!("about {} messages are queued", count.unwrap_or_else(|| "0".to_owned())))
    }
}
