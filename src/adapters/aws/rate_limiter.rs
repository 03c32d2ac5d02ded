//! Client-side rate limits: EC2 throttles by account and region, separately for each API.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Calls that share a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ApiBucket {
    /// Describe calls.
    Describe,
    /// Launches.
    Launch,
    /// Terminations.
    Terminate,
    /// Auto Scaling.
    Scaling,
    /// Launch templates.
    Template,
    Queue,
    /// Systems Manager parameters.
    Parameter,
    /// Everything else.
    Other,
}

impl ApiBucket {
    const ALL: [Self; 8] = [
        Self::Describe,
        Self::Launch,
        Self::Terminate,
        Self::Template,
        Self::Scaling,
        Self::Queue,
        Self::Parameter,
        Self::Other,
    ];

    /// Returns the burst and the calls per second. Both are at most half of the EC2 limits of an
    /// account where these are known, so that other clients keep the rest.
    ///
    /// Sources: EC2 developer guide, request throttling: unfiltered non-mutating calls 50 and 10,
    /// `TerminateInstances` 100 and 5 (resources 1000 and 20). Service Quotas of us-east-2:
    /// `CreateFleet` 50 and 5, `CreateLaunchTemplateVersion` 100 and 5. No source states the limit
    /// of `CreateLaunchTemplate`; that of `CreateFleet`, another mutating call, is assumed.
    fn burst_and_rate(self) -> (u32, u32) {
        match self {
            Self::Describe => (16, 4),
            Self::Launch | Self::Template => (25, 2),
            Self::Terminate => (10, 2),
            // SQS has no relevant limit. This one bounds the cost of a bug.
            Self::Queue => (200, 200),
            // Systems Manager allows 40 calls per second.
            Self::Parameter => (20, 10),
            Self::Scaling | Self::Other => (10, 3),
        }
    }

    /// Returns the calls that share the bucket.
    fn calls(self) -> &'static str {
        match self {
            Self::Describe => "EC2: `Describe*`",
            Self::Launch => "EC2: `CreateFleet`, and dry runs of `RunInstances`",
            Self::Terminate => "EC2: `TerminateInstances`",
            Self::Template => "EC2: `CreateLaunchTemplate`, `DeleteLaunchTemplate`",
            Self::Scaling => "Auto Scaling",
            Self::Queue => "SQS",
            Self::Parameter => "Systems Manager",
            Self::Other => "EKS, IAM, STS, prices, quotas, and `CreateTags` of EC2",
        }
    }
}

/// The calls that one process makes at most. Retries of the SDK are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallBudget {
    /// The calls that share the budget.
    pub calls: &'static str,
    /// Calls that may start at once.
    pub burst: u32,
    /// Calls per second after the burst.
    pub rate: u32,
}

impl CallBudget {
    /// Returns the maximum number of calls in this many seconds.
    pub fn within(self, seconds: u32) -> u32 {
        self.burst.saturating_add(self.rate.saturating_mul(seconds))
    }
}

/// Returns the budget of each API.
pub fn call_budgets() -> impl Iterator<Item = CallBudget> {
    ApiBucket::ALL.into_iter().map(|api| {
        let (burst, rate) = api.burst_and_rate();
        CallBudget { calls: api.calls(), burst, rate }
    })
}

/// A token bucket, stored as the time at which it is full again.
#[derive(Debug, Default)]
struct TokenBucket {
    full_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct RateLimiter {
    buckets: Mutex<BTreeMap<ApiBucket, TokenBucket>>,
}

impl RateLimiter {
    /// Waits for a token and takes it.
    pub(super) async fn acquire(&self, api: ApiBucket) {
        let at = self.reserve(api, Instant::now());
        sleep_until(at).await;
    }

    /// Takes a token at `now` and returns the time at which the call may start.
    fn reserve(&self, api: ApiBucket, now: Instant) -> Instant {
        let (burst, rate) = api.burst_and_rate();
        let each = Duration::from_secs(1) / rate.max(1);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(api).or_default();
        let full_at = bucket.full_at.unwrap_or(now).max(now) + each;
        bucket.full_at = Some(full_at);
        // The number of remaining tokens follows from the time until the bucket is full.
        full_at.checked_sub(each * burst).map_or(now, |at| at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beyond_burst_wait_at_the_rate() {
        let (limiter, now) = (RateLimiter::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..28 {
            waits.push(limiter.reserve(ApiBucket::Launch, now).duration_since(now).as_millis());
        }
        assert!(waits[..25].iter().all(|wait| *wait == 0), "{waits:?}");
        assert_eq!(waits[25..], [500, 1000, 1500]);
        let other = limiter.reserve(ApiBucket::Terminate, now);
        assert_eq!(other, now, "each API by itself");
    }

    #[test]
    fn idle_bucket_refills_up_to_burst() {
        let (limiter, now) = (RateLimiter::default(), Instant::now());
        for _ in 0..25 {
            limiter.reserve(ApiBucket::Template, now);
        }
        let later = now + Duration::from_mins(1);
        let free = (0..30).filter(|_| limiter.reserve(ApiBucket::Template, later) == later).count();
        assert_eq!(free, 25);
    }
}
