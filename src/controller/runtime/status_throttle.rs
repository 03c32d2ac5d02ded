//! Throttles status output, which costs more than a step.
//!
//! Invariant: each step is published within [`PUBLISH_INTERVAL`] and a little, by its own or by a
//! later status; within [`DEFER_MAX`] while pods wait for a launch.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::controller::Signal;

/// The shortest time between two publications.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// The longest deferral while pods are pending, because publishing would delay their launch.
const DEFER_MAX: Duration = Duration::from_secs(1);

/// Publishing takes at most one part in this many of the time.
const PUBLISH_SHARE: u32 = 10;

/// The time of the last publication, and whether a step was left out.
#[derive(Debug, Default)]
pub(super) struct StatusThrottle {
    next_due: Cell<Option<Instant>>,
    /// Start of the deferral while pods are pending.
    deferred_since: Cell<Option<Instant>>,
    has_unpublished: Cell<bool>,
    unpublished: Notify,
}

impl StatusThrottle {
    /// Returns whether a publication is due. If not, it records that one is owed. With
    /// `pods_pending`, a due publication is deferred for a while.
    pub(super) fn is_due(&self, pods_pending: bool) -> bool {
        let now = Instant::now();
        let mut due = self.next_due.get().is_none_or(|next| now >= next);
        if due && pods_pending {
            let since = self.deferred_since.get().unwrap_or(now);
            self.deferred_since.set(Some(since));
            due = now.duration_since(since) >= DEFER_MAX;
            if !due {
                self.next_due.set(Some(now + PUBLISH_INTERVAL));
            }
        }
        if !due && !self.has_unpublished.replace(true) {
            self.unpublished.notify_one();
        }
        due
    }

    /// Publishes now.
    pub(super) fn publish(&self, publish: impl FnOnce()) {
        let begun = Instant::now();
        publish();
        self.has_unpublished.set(false);
        self.deferred_since.set(None);
        let interval = begun.elapsed().saturating_mul(PUBLISH_SHARE).max(PUBLISH_INTERVAL);
        self.next_due.set(Some(begun + interval));
    }

    /// Wakes the controller when an owed publication is due, for as long as it is polled.
    pub(super) async fn wake_when_due(&self, sender: &mpsc::Sender<Signal>) {
        loop {
            self.unpublished.notified().await;
            if let Some(next) = self.next_due.get() {
                tokio::time::sleep_until(next).await;
            }
            if self.has_unpublished.replace(false) {
                // The receiver is gone once the controller has ended.
                let _ = sender.send(Signal::Wake).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpublished_step_is_published_later() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let throttle = StatusThrottle::default();
            let (sender, mut signals) = mpsc::channel(4);
            assert!(throttle.is_due(false), "the first");
            throttle.publish(|| {});
            assert!(
                !throttle.is_due(false) && !throttle.is_due(false),
                "the last publication was just now"
            );
            let begun = Instant::now();
            tokio::select! {
                () = throttle.wake_when_due(&sender) => unreachable!("it never ends"),
                signal = signals.recv() => assert_eq!(signal, Some(Signal::Wake)),
            }
            assert!(begun.elapsed() + Duration::from_millis(5) >= PUBLISH_INTERVAL, "not sooner");
            assert!(throttle.is_due(false));
            throttle.publish(|| {});
            tokio::select! {
                () = throttle.wake_when_due(&sender) => unreachable!("it never ends"),
                _ = signals.recv() => unreachable!("nothing is unpublished"),
                () = tokio::time::sleep(PUBLISH_INTERVAL * 2) => {}
            }
        });
    }

    #[test]
    fn deferral_for_pending_pods_is_bounded() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let throttle = StatusThrottle::default();
            let (sender, mut signals) = mpsc::channel(4);
            let begun = Instant::now();
            let mut wakes = 0;
            while !throttle.is_due(true) {
                tokio::select! {
                    () = throttle.wake_when_due(&sender) => unreachable!("it never ends"),
                    signal = signals.recv() => assert_eq!(signal, Some(Signal::Wake)),
                }
                wakes += 1;
            }
            assert!(begun.elapsed() >= DEFER_MAX && wakes <= 11, "{wakes}");
            throttle.publish(|| {});
            tokio::time::sleep(PUBLISH_INTERVAL).await;
            assert!(!throttle.is_due(true) && throttle.deferred_since.get().is_some());
            tokio::time::sleep(PUBLISH_INTERVAL).await;
            assert!(throttle.is_due(false), "no pod is pending");
        });
    }
}
