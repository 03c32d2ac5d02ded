//! What the account holds, at hand: a pending pod must not wait for lists of EC2.
//!
//! Looks are answered from the last read, which is made anew every few seconds. Invariants: what was read
//! before a write of ours ended is shown to nobody after it; a read that is too old is made anew; one that
//! fails is an error, and what was read before it is not shown in its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ids::{GroupName, InstanceId};
use crate::port::{Cloud, Holdings, LaunchOutcome, LaunchRequest, PortError};

/// Between two reads; longer where one takes long, so that reading is a tenth of the time at most.
const READ_EVERY: Duration = Duration::from_secs(5);
const READS_SHARE: u32 = 10;

/// How long after a write it is read anew: others may follow. Longer where reading takes long.
const PROMPT_AFTER: Duration = Duration::from_millis(50);
const PROMPT_SHARE: u32 = 2;

/// The oldest read that is shown.
const AGE_MAX: Duration = Duration::from_secs(30);

/// An account whose holdings are at hand.
#[derive(Debug)]
pub(super) struct Account<C> {
    cloud: Arc<C>,
    held: Mutex<Held>,
    /// One read at a time: whoever waits for it takes what it found.
    reading: tokio::sync::Mutex<()>,
    /// Something was written.
    prompted: Notify,
    read_every: Duration,
    age_max: Duration,
}

#[derive(Debug, Default)]
struct Held {
    /// When the read was begun, and what it found.
    read: Option<(Instant, Holdings)>,
    /// When the last write ended, or something was heard that reads before do not show.
    outdated: Option<Instant>,
    /// How long the last read took.
    took: Duration,
}

impl Held {
    /// Returns what was read, if that was begun late enough.
    fn fresh(&self, oldest: Instant) -> Option<&Holdings> {
        let (begun, holdings) = self.read.as_ref()?;
        let counts = self.outdated.is_none_or(|outdated| *begun > outdated);
        (counts && *begun >= oldest).then_some(holdings)
    }
}

impl<C: Cloud> Account<C> {
    pub(super) fn new(cloud: Arc<C>) -> Self {
        Self {
            cloud,
            held: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            prompted: Notify::new(),
            read_every: READ_EVERY,
            age_max: AGE_MAX,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next look read anew.
    pub(super) fn outdate(&self) {
        self.lock().outdated = Some(Instant::now());
    }

    /// Returns what was read since `oldest`, or reads it.
    async fn since(&self, oldest: Instant) -> Result<Holdings, PortError> {
        if let Some(holdings) = self.lock().fresh(oldest) {
            return Ok(holdings.clone());
        }
        let _alone = self.reading.lock().await;
        if let Some(holdings) = self.lock().fresh(oldest) {
            return Ok(holdings.clone());
        }
        let begun = Instant::now();
        let read = self.cloud.holdings().await;
        let mut held = self.lock();
        held.took = begun.elapsed();
        held.read = read.as_ref().ok().map(|holdings| (begun, holdings.clone()));
        read
    }

    /// Reads every few seconds for as long as it is polled.
    pub(super) async fn keep_fresh(&self) {
        loop {
            let took = self.lock().took;
            tokio::select! {
                () = tokio::time::sleep(self.read_every.max(took.saturating_mul(READS_SHARE))) => {}
                () = self.prompted.notified() => {
                    let rest = PROMPT_AFTER.max(took.saturating_mul(PROMPT_SHARE));
                    tokio::time::sleep(rest).await;
                    // A look may have read it meanwhile.
                    let now = Instant::now();
                    let known = now.checked_sub(self.age_max).unwrap_or(now);
                    if self.lock().fresh(known).is_some() {
                        continue;
                    }
                }
            }
            // Whoever looks next reads anew, and meets the error, where this one fails.
            if let Err(error) = self.since(Instant::now()).await {
                tracing::warn!(%error, "the account cannot be read");
            }
        }
    }

    /// Notes that a write ended, however it ended. It is read anew soon, whether or not somebody looks: the next pod must
    /// not wait for that.
    fn wrote<T>(&self, end: T) -> T {
        self.outdate();
        self.prompted.notify_one();
        end
    }
}

impl<C: Cloud> Cloud for Account<C> {
    async fn holdings(&self) -> Result<Holdings, PortError> {
        let now = Instant::now();
        self.since(now.checked_sub(self.age_max).unwrap_or(now)).await
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.wrote(self.cloud.launch(request).await)
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.wrote(self.cloud.raise_group(group, desired).await)
    }

    async fn end_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.wrote(self.cloud.end_member(id).await)
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.wrote(self.cloud.terminate(id).await)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::port::Fate;

    /// Counts its reads, of which every third fails.
    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Cloud for Counting {
        async fn holdings(&self) -> Result<Holdings, PortError> {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let reads = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            if reads.is_multiple_of(3) {
                let (verb, reason) = ("read".to_owned(), "no".to_owned());
                return Err(PortError { verb, reason, fate: Fate::Unknown });
            }
            Ok(Holdings { unread: vec![reads.to_string()], ..Holdings::default() })
        }

        async fn launch(&self, _: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
            Ok(LaunchOutcome::Launched("i-1".into()))
        }

        async fn raise_group(&self, _: &GroupName, _: u32) -> Result<(), PortError> {
            Ok(())
        }

        async fn end_member(&self, _: &InstanceId) -> Result<(), PortError> {
            Ok(())
        }

        async fn terminate(&self, _: &InstanceId) -> Result<(), PortError> {
            Ok(())
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(work)
    }

    fn account(age_max: Duration) -> Account<Counting> {
        let read_every = Duration::from_millis(10);
        Account { read_every, age_max, ..Account::new(Arc::new(Counting::default())) }
    }

    #[test]
    fn what_was_read_is_shown_until_it_is_old_or_something_was_written() {
        run(async {
            let account = account(Duration::from_millis(200));
            let reads = || account.cloud.0.load(Ordering::Relaxed);
            account.holdings().await.expect("read");
            account.holdings().await.expect("at hand");
            assert_eq!(reads(), 1);
            account.terminate(&"i-1".into()).await.expect("ends");
            let (a, b) = tokio::join!(account.holdings(), account.holdings());
            assert_eq!(
                (a.expect("read").unread, b.expect("read").unread.len()),
                (vec!["2".to_owned()], 1)
            );
            assert_eq!(reads(), 2, "one read for both");
            tokio::time::sleep(Duration::from_millis(220)).await;
            assert!(account.holdings().await.is_err(), "too old, and what is new cannot be read");
            assert_eq!(account.holdings().await.expect("read").unread, ["4"], "never the old one");
        });
    }

    #[test]
    fn a_write_that_ends_while_a_read_is_under_way_has_it_read_again() {
        run(async {
            let account = account(AGE_MAX);
            let write = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                account.end_member(&"i-1".into()).await.expect("ends");
            };
            let (read, ()) = tokio::join!(account.holdings(), write);
            assert_eq!(read.expect("read").unread, ["1"]);
            assert_eq!(account.holdings().await.expect("read").unread, ["2"]);
        });
    }

    #[test]
    fn what_was_written_is_read_soon_before_anybody_looks() {
        run(async {
            let account = Account { read_every: AGE_MAX, ..account(AGE_MAX) };
            let looks = async {
                account.holdings().await.expect("read");
                account.terminate(&"i-1".into()).await.expect("ends");
                tokio::time::sleep(PROMPT_AFTER * 3).await;
                assert_eq!(account.cloud.0.load(Ordering::Relaxed), 2);
                assert_eq!(account.holdings().await.expect("at hand").unread, ["2"]);
            };
            tokio::select! {
                () = account.keep_fresh() => unreachable!("it goes on"),
                () = looks => {}
            }
        });
    }

    #[test]
    fn reading_goes_on_by_itself_so_that_a_look_finds_it_at_hand() {
        run(async {
            let account = account(AGE_MAX);
            let looks = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let reads = account.cloud.0.load(Ordering::Relaxed);
                account.holdings().await.expect("at hand");
                assert_eq!((reads, account.cloud.0.load(Ordering::Relaxed)), (1, 1));
            };
            tokio::select! {
                () = account.keep_fresh() => unreachable!("it goes on"),
                () = looks => {}
            }
        });
    }
}
