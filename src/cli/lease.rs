//! The lease that one apply, adoption or controller holds at a time.

use std::cell::Cell;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use jiff::Timestamp;

use super::error::CliError;
use super::{Console, Exit};
use crate::adapters::kube::{APPLY_RENEW_INTERVAL, HeldLease, LEASE_POLL, LeaseClient, LeaseError};
use crate::adapters::system_clock::SystemClock;
use crate::apply::ports::Clock as _;
use crate::controller::LEASE_HOLDER_PREFIX;
use crate::plan::Plan;

/// The longest wait for a controller to release the lease: the time to undo its drains.
const HANDOVER_MAX: Duration = Duration::from_mins(2);

/// Takes the lease, waiting up to `timeout` while another apply holds it.
pub(super) async fn acquire_lease(
    lease: &LeaseClient,
    timeout: Duration,
    console: &mut Console,
) -> Result<HeldLease, CliError> {
    let begun = tokio::time::Instant::now();
    let mut until = begun + timeout;
    let mut is_reported = false;
    loop {
        let error = match lease.acquire(SystemClock.now()).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        let taken = matches!(error, LeaseError::HeldByOther { .. } | LeaseError::Lost { .. });
        if !taken {
            return Err(
                CliError::new(error).hint("applying needs permission to read and write leases")
            );
        }
        if let LeaseError::HeldByOther { holder, .. } = &error
            && holder.starts_with(LEASE_HOLDER_PREFIX)
        {
            // A controller releases the lease on request.
            until = until.max(begun + HANDOVER_MAX);
            if let Err(error) = lease.request().await {
                tracing::warn!(%error, "cannot request the lease from the controller");
            }
        }
        if tokio::time::Instant::now() >= until {
            return Err(CliError::new(error)
                .kind(Exit::Locked)
                .hint("wait for the other apply, or pass a longer --lock-timeout"));
        }
        if !is_reported {
            console.report(&format!("{error}; waiting"));
            is_reported = true;
        }
        tokio::time::sleep(LEASE_POLL).await;
    }
}

/// Returns the lease as it is held now. It is shared with the check of each write to EC2.
pub(super) fn lock(held: &Mutex<HeldLease>) -> MutexGuard<'_, HeldLease> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Renews the lease for as long as it is polled, and counts the attempts.
pub(super) async fn renew_periodically(
    lease: &LeaseClient,
    held: &Mutex<HeldLease>,
    tries: &Cell<u32>,
) {
    loop {
        tokio::time::sleep(APPLY_RENEW_INTERVAL).await;
        let current = lock(held).clone();
        let renewed = lease.renew(&current, SystemClock.now()).await;
        tries.set(tries.get().wrapping_add(1));
        match renewed {
            Ok(renewed) => *lock(held) = renewed,
            // Another holder took the lease before it expired: further writes could conflict with
            // theirs.
            Err(error @ LeaseError::Lost { .. }) => {
                tracing::error!(%error, "lease lost; no further writes");
                *lock(held) = current.mark_lost();
                return std::future::pending().await;
            }
            Err(error) => tracing::warn!(%error, "cannot renew lease"),
        }
    }
}

/// Polls `work` while the lease is held for certain, together with `beside`. After an uncertain
/// phase, such as a long computation, `work` continues only after another of the `tries` to renew
/// the lease. The fence decides about writes after a failed try.
pub(super) async fn poll_while_certain<T>(
    work: impl Future<Output = T>,
    side_work: impl Future,
    is_certain: &dyn Fn() -> bool,
    tries: &Cell<u32>,
) -> T {
    tokio::pin!(work, side_work);
    let mut waiting_since = None;
    let mut side_work_ended = false;
    std::future::poll_fn(|context| {
        let before = tries.get();
        // The side work does not end the apply: the receipt counts.
        side_work_ended = side_work_ended || side_work.as_mut().poll(context).is_ready();
        if is_certain() || side_work_ended {
            waiting_since = None;
        } else if *waiting_since.get_or_insert(before) == tries.get() {
            return Poll::Pending;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Returns a holder name that is unique to this plan and process.
pub(super) fn lease_holder(plan: &Plan) -> String {
    let id: String = plan.capacity.plan_id.as_str().chars().take(19).collect();
    format!("{id}/{}/{}", std::process::id(), Timestamp::now().as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::live::block_on;

    /// Runs work that computes for longer than the lease is certain. Returns whether it was
    /// certain afterwards.
    fn after_a_long_computation(renews: bool) -> bool {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            certain.set(false);
            SystemClock.yield_now().await;
            is_certain()
        };
        let side_work = async {
            // The renewal takes a moment, and the work must wait for it.
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            certain.set(renews);
            tries.set(1);
            std::future::pending::<()>().await;
        };
        block_on(async { Ok(poll_while_certain(work, side_work, &is_certain, &tries).await) })
            .expect("ends")
    }

    #[test]
    fn work_continues_after_a_renewal_found_the_lease_lost() {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            while is_certain() {
                SystemClock.yield_now().await;
            }
        };
        let side_work = async {
            tokio::task::yield_now().await;
            tries.set(1);
            certain.set(false);
            std::future::pending::<()>().await;
        };
        let ends = async {
            let held = poll_while_certain(work, side_work, &is_certain, &tries);
            Ok(tokio::time::timeout(Duration::from_secs(10), held).await)
        };
        assert!(block_on(ends).expect("runs").is_ok());
    }

    #[test]
    fn work_waits_for_a_renewal_after_a_long_computation() {
        assert!(after_a_long_computation(true), "renewed");
        assert!(!after_a_long_computation(false), "the fence decides");
    }
}
