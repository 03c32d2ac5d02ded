//! A message queue like SQS.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::controller::InterruptionMessage;
use jiff::{SignedDuration, Timestamp};

/// Time for which a received and unacknowledged message stays hidden.
const HIDDEN: SignedDuration = SignedDuration::from_secs(30);

/// A queue with its messages by receipt and by the time of their next delivery.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bodies: BTreeMap<String, (String, Timestamp)>,
    shown: BTreeSet<(Timestamp, String)>,
}

impl Queue {
    /// Adds a message that is visible from `at` on.
    pub(crate) fn put(&mut self, receipt: &str, body: String, at: Timestamp) {
        self.bodies.insert(receipt.to_owned(), (body, at));
        self.shown.insert((at, receipt.to_owned()));
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.bodies.len()
    }

    pub(super) fn take(&mut self, now: Timestamp) -> Option<InterruptionMessage> {
        let (at, receipt) = self.shown.first().filter(|(at, _)| *at <= now)?.clone();
        self.shown.pop_first();
        let (body, shown) = self.bodies.get_mut(&receipt)?;
        let message = InterruptionMessage::read(&receipt, body);
        *shown = at.max(now).checked_add(HIDDEN).unwrap_or(Timestamp::MAX);
        self.shown.insert((*shown, receipt));
        Some(message)
    }

    /// Removes a message and returns it.
    pub(super) fn remove(&mut self, receipt: &str) -> Option<InterruptionMessage> {
        let (body, shown) = self.bodies.remove(receipt)?;
        self.shown.remove(&(shown, receipt.to_owned()));
        Some(InterruptionMessage::read(receipt, &body))
    }
}
