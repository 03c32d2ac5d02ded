//! Several works at once, with the answer of one after the other.
//!
//! The only file of the solver that knows threads. How many there are decides how long it takes and
//! nothing else: a work sees nothing of the others but that it is no longer wanted, and what is
//! returned ends with the first work, in their order, that failed.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Whether a work is still wanted: it is not once an earlier one failed.
pub(super) struct Wanted<'a> {
    index: usize,
    failed: &'a AtomicUsize,
}

impl Wanted<'_> {
    /// Returns whether the work should go on; what it returns otherwise is thrown away.
    pub(super) fn is_wanted(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= self.index
    }
}

/// Does the works `0..count`, so many at once (as many as there are cores where that is not said),
/// and returns what they came to, up to the first that failed, which is the last then.
pub(super) fn until_failure<T: Send>(
    (count, at_once): (usize, Option<NonZero<usize>>),
    work: impl Fn(usize, &Wanted) -> T + Sync,
    has_failed: impl Fn(&T) -> bool + Sync,
) -> Vec<T> {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let wanted = Wanted { index, failed: &failed };
            if index >= count || !wanted.is_wanted() {
                return done;
            }
            let result = work(index, &wanted);
            if wanted.is_wanted() && has_failed(&result) {
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
            // A panic of a work is a panic of the whole.
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    let last = failed.into_inner();
    done.into_iter().filter(|(index, _)| *index <= last).map(|(_, result)| result).collect()
}

/// How many works are done at once; asking the system takes longer than a small run.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_in_their_order_ends_the_works() {
        for failing in [vec![], vec![0], vec![3], vec![5, 2], vec![7]] {
            let last = failing.iter().min().map_or(8, |first| first + 1);
            for at_once in [None, NonZero::new(1), NonZero::new(3)] {
                let has_failed = |index: &usize| failing.contains(index);
                let done = until_failure((8, at_once), |index, _| index, has_failed);
                assert_eq!(done, (0..last).collect::<Vec<_>>(), "{failing:?} with {at_once:?}");
            }
        }
    }

    #[test]
    fn a_work_is_unwanted_only_once_an_earlier_one_failed() {
        let failed = AtomicUsize::new(3);
        let wanted = |index| Wanted { index, failed: &failed }.is_wanted();
        assert!(wanted(2) && wanted(3) && !wanted(4));
    }
}
