//! How often the loop is shown: what shows it costs more than a step.
//!
//! Invariant: every step is shown within [`SHOW_EVERY`] and a little, by its own or by a later one.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::reconcile::Signal;

/// The shortest between two times at which the loop is shown.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// Showing takes this share of the time at most.
const SHARE: u32 = 10;

/// When the loop was shown last, and whether a step was not.
#[derive(Debug, Default)]
pub(super) struct Shown {
    next: Cell<Option<Instant>>,
    owes: Cell<bool>,
    owed: Notify,
}

impl Shown {
    /// Returns whether it is time to show the loop; where it is not, that is owed.
    pub(super) fn is_due(&self) -> bool {
        let due = self.next.get().is_none_or(|next| Instant::now() >= next);
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
            if self.owes.get() {
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
            assert!(shown.is_due(), "the first");
            shown.show(|| {});
            assert!(!shown.is_due() && !shown.is_due(), "it was just now");
            let begun = Instant::now();
            tokio::select! {
                () = shown.catch_up(&tell) => unreachable!("it goes on"),
                signal = told.recv() => assert_eq!(signal, Some(Signal::Wake)),
            }
            assert!(begun.elapsed() + Duration::from_millis(5) >= SHOW_EVERY, "not sooner");
            assert!(shown.is_due());
            shown.show(|| {});
            tokio::select! {
                () = shown.catch_up(&tell) => unreachable!("it goes on"),
                _ = told.recv() => unreachable!("nothing is owed"),
                () = tokio::time::sleep(SHOW_EVERY * 2) => {}
            }
        });
    }
}
