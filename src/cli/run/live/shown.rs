//! How often the loop is shown: what shows it costs more than a step.
//!
//! Invariant: every step is shown within [`SHOW_EVERY`] and a little, by its own or by a later one; while pods wait for
//! a launch, within [`SHOW_LATEST`].

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::reconcile::Signal;

/// The shortest between two times at which the loop is shown.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// The longest that nothing is shown because pods wait: what shows the loop is on the way to their launch.
const SHOW_LATEST: Duration = Duration::from_secs(1);

/// Showing takes this share of the time at most.
const SHARE: u32 = 10;

/// When the loop was shown last, and whether a step was not.
#[derive(Debug, Default)]
pub(super) struct Shown {
    next: Cell<Option<Instant>>,
    /// Since when it is not shown because pods wait.
    put_off: Cell<Option<Instant>>,
    owes: Cell<bool>,
    owed: Notify,
}

impl Shown {
    /// Returns whether it is time to show the loop; where it is not, that is owed. Where it is `pressed`, that is put
    /// off for a while.
    pub(super) fn is_due(&self, pressed: bool) -> bool {
        let now = Instant::now();
        let mut due = self.next.get().is_none_or(|next| now >= next);
        if due && pressed {
            let since = self.put_off.get().unwrap_or(now);
            self.put_off.set(Some(since));
            due = now.duration_since(since) >= SHOW_LATEST;
            if !due {
                self.next.set(Some(now + SHOW_EVERY));
            }
        }
        if !due && !self.owes.replace(true) {
            self.owed.notify_one();
        }
        due
    }

    /// Shows it now.
    pub(super) fn show(&self, show: impl FnOnce()) {
        let begun = Instant::now();
        show();
        self.owes.set(false);
        self.put_off.set(None);
        let rest = begun.elapsed().saturating_mul(SHARE).max(SHOW_EVERY);
        self.next.set(Some(begun + rest));
    }

    /// Has the loop step where it was not shown, for as long as it is polled.
    pub(super) async fn catch_up(&self, tell: &mpsc::Sender<Signal>) {
        loop {
            self.owed.notified().await;
            if let Some(next) = self.next.get() {
                tokio::time::sleep_until(next).await;
            }
            if self.owes.replace(false) {
                // Nobody listens any more where the loop has ended.
                let _ = tell.send(Signal::Wake).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_not_shown_is_followed_by_one_that_is() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let shown = Shown::default();
            let (tell, mut told) = mpsc::channel(4);
            assert!(shown.is_due(false), "the first");
            shown.show(|| {});
            assert!(!shown.is_due(false) && !shown.is_due(false), "it was just now");
            let begun = Instant::now();
            tokio::select! {
                () = shown.catch_up(&tell) => unreachable!("it goes on"),
                signal = told.recv() => assert_eq!(signal, Some(Signal::Wake)),
            }
            assert!(begun.elapsed() + Duration::from_millis(5) >= SHOW_EVERY, "not sooner");
            assert!(shown.is_due(false));
            shown.show(|| {});
            tokio::select! {
                () = shown.catch_up(&tell) => unreachable!("it goes on"),
                _ = told.recv() => unreachable!("nothing is owed"),
                () = tokio::time::sleep(SHOW_EVERY * 2) => {}
            }
        });
    }

    #[test]
    fn what_is_put_off_because_pods_wait_is_shown_after_a_while() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let shown = Shown::default();
            let (tell, mut told) = mpsc::channel(4);
            let begun = Instant::now();
            let mut wakes = 0;
            while !shown.is_due(true) {
                tokio::select! {
                    () = shown.catch_up(&tell) => unreachable!("it goes on"),
                    signal = told.recv() => assert_eq!(signal, Some(Signal::Wake)),
                }
                wakes += 1;
            }
            assert!(begun.elapsed() >= SHOW_LATEST && wakes <= 11, "{wakes}");
            shown.show(|| {});
            tokio::time::sleep(SHOW_EVERY).await;
            assert!(!shown.is_due(true) && shown.put_off.get().is_some());
            tokio::time::sleep(SHOW_EVERY).await;
            assert!(shown.is_due(false), "nobody waits any more");
        });
    }
}
