//! The clock of the computer.

use jiff::{SignedDuration, Timestamp};

use crate::apply::ports::Clock;

/// The system clock.
#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, duration: SignedDuration) {
        tokio::time::sleep(duration.unsigned_abs()).await;
    }

    async fn yield_now(&self) {
        tokio::task::yield_now().await;
    }
}
