//! Tokens for calls: EC2 counts by account and region, for each API by itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Calls that share a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Api {
    /// Describe calls.
    Describe,
    /// Launches.
    Launch,
    /// Terminations.
    Terminate,
    /// Auto Scaling.
    Scaling,
    /// Launch templates, which EC2 limits more than others.
    Template,
    /// The queue of interruptions.
    Queue,
    /// Parameters of the Systems Manager.
    Parameter,
    /// Everything else.
    Other,
}

impl Api {
    /// Returns how many calls may be made at once, and how many a second after that. A third of what
    /// EC2 allows an account, so that others have the rest.
    ///
    /// Source: EC2 API reference, request throttling: non-mutating 50 and 10, `RunInstances` 5 and 2,
    /// `TerminateInstances` 100 and 5 (resources 1000 and 20), launch templates 5 and 1.
    fn budget(self) -> (u32, u32) {
        match self {
            Self::Describe => (16, 4),
            Self::Launch => (5, 2),
            Self::Terminate => (10, 2),
            Self::Template => (5, 1),
            // SQS has no limit that a cluster could reach; this one keeps a fault of ours from being dear.
            Self::Queue => (200, 200),
            // The Systems Manager allows 40 a second.
            Self::Parameter => (20, 10),
            Self::Scaling | Self::Other => (10, 3),
        }
    }
}

/// A bucket of tokens: when the next token is there, if all are used up.
#[derive(Debug, Default)]
struct Bucket {
    /// The moment at which the bucket is full again.
    full_at: Option<Instant>,
}

/// Buckets, by API.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    buckets: Mutex<BTreeMap<Api, Bucket>>,
}

impl Limiter {
    /// Waits for a token, and takes it.
    pub(super) async fn take(&self, api: Api) {
        let at = self.reserve(api, Instant::now());
        sleep_until(at).await;
    }

    /// Takes a token at `now`, and returns when the call may be made.
    fn reserve(&self, api: Api, now: Instant) -> Instant {
        let (burst, rate) = api.budget();
        let each = Duration::from_secs(1) / rate.max(1);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(api).or_default();
        let full_at = bucket.full_at.unwrap_or(now).max(now) + each;
        bucket.full_at = Some(full_at);
        // Of `burst` tokens so many are left as fit between now and the moment it is full again.
        full_at.checked_sub(each * burst).map_or(now, |at| at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_follows_comes_at_the_rate() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(limiter.reserve(Api::Launch, now).duration_since(now).as_millis());
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 500, 1000, 1500]);
        let other = limiter.reserve(Api::Terminate, now);
        assert_eq!(other, now, "each API by itself");
    }

    #[test]
    fn a_bucket_that_rests_fills_again_and_no_further_than_full() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        for _ in 0..5 {
            limiter.reserve(Api::Template, now);
        }
        let later = now + Duration::from_mins(1);
        let free = (0..9).filter(|_| limiter.reserve(Api::Template, later) == later).count();
        assert_eq!(free, 5);
    }
}
