//! A connection that ends if its client reads too slowly.
//!
//! A client that does not read keeps its response in memory. The time in which it blocks adds up,
//! and every byte that it reads takes a part of this time back. So a client that keeps up the
//! minimum rate never ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Instant, Sleep};

/// Minimum rate of a client, in bytes per second. A page of 9 MB takes 3 minutes.
const RATE_MIN: u64 = 50_000;

/// Blocked time that one byte takes back.
const NANOS_PER_BYTE: u64 = 1_000_000_000 / RATE_MIN;

/// A stream whose writes fail once the client has blocked for too long.
pub(super) struct PacedStream<T> {
    io: T,
    blocked: BlockedTime,
    /// Wakes the connection when the client has blocked for too long.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> PacedStream<T> {
    /// Returns a stream whose client may block for `blocked_max`.
    pub(super) fn new(io: T, blocked_max: Duration) -> Self {
        Self { io, blocked: BlockedTime::new(blocked_max), timer: None }
    }

    /// Replaces a write that waits for too long by an error.
    fn paced(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        match polled {
            Poll::Ready(Ok(bytes)) => {
                self.timer = None;
                self.blocked.end(bytes, now);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let end = self.blocked.begin(now);
                let timer =
                    self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
                ready!(timer.as_mut().poll(context));
                let why = "the client reads too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
        }
    }
}

impl<T: Read + Unpin> Read for PacedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for PacedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let polled = Pin::new(&mut stream.io).poll_write(context, bytes);
        stream.paced(context, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }

    // Without this, every connection would copy its whole response into a buffer of its own.
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let polled = Pin::new(&mut stream.io).poll_write_vectored(context, parts);
        stream.paced(context, polled)
    }
}

/// The time in which a client did not read, less what its bytes took back.
struct BlockedTime {
    max: Duration,
    total: Duration,
    /// Since when the client blocks now.
    since: Option<Instant>,
}

impl BlockedTime {
    fn new(max: Duration) -> Self {
        Self { max, total: Duration::ZERO, since: None }
    }

    /// Records that the client blocks; returns when its connection has to end.
    fn begin(&mut self, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since + self.max.saturating_sub(self.total)
    }

    /// Records that the client took `bytes`.
    fn end(&mut self, bytes: usize, now: Instant) {
        if let Some(since) = self.since.take() {
            self.total = self.total.saturating_add(now.saturating_duration_since(since));
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let back = Duration::from_nanos(bytes.saturating_mul(NANOS_PER_BYTE));
        self.total = self.total.saturating_sub(back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ends_below_the_minimum_rate_only() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut silent = BlockedTime::new(10 * second);
        assert_eq!(silent.begin(start), start + 10 * second);
        assert_eq!(silent.begin(start + 9 * second), start + 10 * second, "it still blocks");
        // Half of the rate: every second, half a second is taken back.
        let mut slow = BlockedTime::new(10 * second);
        let mut at = start;
        for _ in 0..18 {
            slow.begin(at);
            at += second;
            slow.end(25_000, at);
        }
        assert_eq!(slow.begin(at), at + second, "9 of 10 seconds are used");
        let mut steady = BlockedTime::new(10 * second);
        for n in 0..1_000_u32 {
            assert_eq!(steady.begin(start + n * second), start + (n + 10) * second);
            steady.end(50_000, start + (n + 1) * second);
        }
    }
}
