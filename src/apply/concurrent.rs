//! Runs several futures concurrently on one thread, without spawning tasks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

pub(crate) type BoxedFuture<'f, T> = Pin<Box<dyn Future<Output = T> + 'f>>;

/// Runs `futures`, at most `most` at a time. Returns the results in the order of the futures.
pub(crate) async fn run_concurrently<'f, T>(
    futures: impl IntoIterator<Item = BoxedFuture<'f, T>>,
    most: usize,
) -> Vec<T> {
    let mut left: VecDeque<(usize, BoxedFuture<'f, T>)> = futures.into_iter().enumerate().collect();
    let mut results: Vec<Option<T>> = left.iter().map(|_| None).collect();
    let mut running: Vec<(usize, BoxedFuture<'f, T>)> = Vec::new();
    poll_fn(|context| {
        loop {
            let room = most.max(1).saturating_sub(running.len()).min(left.len());
            running.extend(left.drain(..room));
            let before = running.len();
            running.retain_mut(|(n, work)| match work.as_mut().poll(context) {
                Poll::Ready(end) => {
                    results[*n] = Some(end);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() && left.is_empty() {
                return Poll::Ready(());
            }
            // Poll a newly started future before waiting.
            if running.len() == before || left.is_empty() {
                return Poll::Pending;
            }
        }
    })
    .await;
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns a future that is ready after `polls` polls. `running` holds the current and the
    /// maximum number of started futures.
    fn work(polls: u32, n: usize, running: &Cell<(usize, usize)>) -> BoxedFuture<'_, usize> {
        let mut left = polls;
        let mut is_started = false;
        Box::pin(poll_fn(move |context| {
            let (mut now, mut most) = running.get();
            if !std::mem::replace(&mut is_started, true) {
                now += 1;
                most = most.max(now);
            }
            left -= 1;
            now -= usize::from(left == 0);
            running.set((now, most));
            context.waker().wake_by_ref();
            if left == 0 { Poll::Ready(n) } else { Poll::Pending }
        }))
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let Poll::Ready(end) = work.as_mut().poll(&mut context) {
                return end;
            }
        }
    }

    #[test]
    fn concurrency_is_bounded_and_results_keep_their_order() {
        for most in [0, 1, 2, 3, 9] {
            let running = Cell::default();
            let polls = [5, 2, 3, 2, 2, 4];
            let futures = polls.into_iter().enumerate().map(|(n, polls)| work(polls, n, &running));
            let results = run(run_concurrently(futures, most));
            assert_eq!(results, [0, 1, 2, 3, 4, 5], "{most}");
            assert_eq!(running.get(), (0, most.clamp(1, polls.len())), "{most}");
        }
        assert!(run(run_concurrently::<u8>([], 3)).is_empty());
    }
}
