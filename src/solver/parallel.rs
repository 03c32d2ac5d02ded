//! Runs numbered tasks in parallel and returns their results in order.
//!
//! This is the only file of the solver that uses threads. The number of threads decides the
//! duration and nothing else. A task sees of the others only that it is cancelled. The results end
//! with the first task, in order, that failed.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Cancels a task once an earlier task has failed.
pub(super) struct CancelToken<'a> {
    index: usize,
    failed: &'a AtomicUsize,
}

impl CancelToken<'_> {
    /// Returns true while the result of the task is needed. The result of a cancelled task is
    /// discarded.
    pub(super) fn is_active(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= self.index
    }
}

/// Runs the tasks `0..count` on up to `at_once` threads, by default one per core. Returns their
/// results up to and including the first that failed.
pub(super) fn run_until_failure<T: Send>(
    count: usize,
    at_once: Option<NonZero<usize>>,
    task: impl Fn(usize, &CancelToken) -> T + Sync,
    has_failed: impl Fn(&T) -> bool + Sync,
) -> Vec<T> {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let token = CancelToken { index, failed: &failed };
            if index >= count || !token.is_active() {
                return done;
            }
            let result = task(index, &token);
            if token.is_active() && has_failed(&result) {
                failed.fetch_min(index, Ordering::Relaxed);
            }
            done.push((index, result));
        }
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..at_once.map_or_else(cores, NonZero::get).min(count))
            .map(|_| scope.spawn(worker))
            .collect();
        let mut done = worker();
        for other in others {
            // A panic in a task is a panic of the caller.
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    let last = failed.into_inner();
    done.into_iter().filter(|(index, _)| *index <= last).map(|(_, result)| result).collect()
}

/// Returns the number of cores. The query costs more than a small task, so its result is cached.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_end_with_the_first_failure_in_order() {
        for failing in [vec![], vec![0], vec![3], vec![5, 2], vec![7]] {
            let last = failing.iter().min().map_or(8, |first| first + 1);
            for at_once in [None, NonZero::new(1), NonZero::new(3)] {
                let has_failed = |index: &usize| failing.contains(index);
                let done = run_until_failure(8, at_once, |index, _| index, has_failed);
                assert_eq!(done, (0..last).collect::<Vec<_>>(), "{failing:?} with {at_once:?}");
            }
        }
    }

    #[test]
    fn task_is_cancelled_only_by_an_earlier_failure() {
        let failed = AtomicUsize::new(3);
        let token = |index| CancelToken { index, failed: &failed }.is_active();
        assert!(token(2) && token(3) && !token(4));
    }
}
