//! Several things at the same time, without a task for each: what is awaited is on one thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Something under way.
type Boxed<'f, T> = Pin<Box<dyn Future<Output = T> + 'f>>;

/// Does all of `works`, at most `most` at the same time; returns what came of each, in their order.
pub(super) async fn at_once<'f, T>(
    works: impl IntoIterator<Item = Boxed<'f, T>>,
    most: usize,
) -> Vec<T> {
    let mut left: VecDeque<(usize, Boxed<'f, T>)> = works.into_iter().enumerate().collect();
    let mut ends: Vec<Option<T>> = left.iter().map(|_| None).collect();
    let mut going: Vec<(usize, Boxed<'f, T>)> = Vec::new();
    poll_fn(|context| {
        loop {
            let room = most.max(1).saturating_sub(going.len()).min(left.len());
            going.extend(left.drain(..room));
            let before = going.len();
            going.retain_mut(|(n, work)| match work.as_mut().poll(context) {
                Poll::Ready(end) => {
                    ends[*n] = Some(end);
                    false
                }
                Poll::Pending => true,
            });
            if going.is_empty() && left.is_empty() {
                return Poll::Ready(());
            }
            // What took the place of another is polled before it is waited for.
            if going.len() == before || left.is_empty() {
                return Poll::Pending;
            }
        }
    })
    .await;
    ends.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns what ends when it was polled so often, and counts what goes on.
    fn work(polls: u32, n: usize, going: &Cell<(usize, usize)>) -> Boxed<'_, usize> {
        let mut left = polls;
        let mut begun = false;
        Box::pin(poll_fn(move |context| {
            let (mut now, mut most) = going.get();
            if !std::mem::replace(&mut begun, true) {
                now += 1;
                most = most.max(now);
            }
            left -= 1;
            now -= usize::from(left == 0);
            going.set((now, most));
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
    fn so_many_go_on_at_the_same_time_and_each_end_stands_in_its_place() {
        for most in [0, 1, 2, 3, 9] {
            let going = Cell::default();
            let polls = [5, 2, 3, 2, 2, 4];
            let works = polls.into_iter().enumerate().map(|(n, polls)| work(polls, n, &going));
            let ends = run(at_once(works, most));
            assert_eq!(ends, [0, 1, 2, 3, 4, 5], "{most}");
            assert_eq!(going.get(), (0, most.clamp(1, polls.len())), "{most}");
        }
        assert!(run(at_once::<u8>([], 3)).is_empty());
    }
}
