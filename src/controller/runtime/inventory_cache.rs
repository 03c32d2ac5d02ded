//! A cache of the EC2 inventory, so that a pending pod does not wait for EC2 list calls.
//!
//! The cache answers from the last read, which it refreshes every few seconds.
//!
//! Invariants:
//! - A read that began before one of our writes ended is not used after that write.
//! - A read that is too old is repeated.
//! - A failed read is an error, and an older read does not stand in for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::apply::ports::{Cloud, CloudInventory, LaunchOutcome, LaunchRequest, PortError};
use crate::model::ids::{GroupName, InstanceId};
use crate::model::observed::Instance;

/// Time between two reads. A slow account is read less often: reading takes at most a tenth of the
/// time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
const REFRESH_SHARE: u32 = 10;

/// Delay of the read after a write, because other writes may follow. It is longer where reading is
/// slow.
const WRITE_REFRESH_DELAY: Duration = Duration::from_millis(50);
const WRITE_REFRESH_SHARE: u32 = 2;

/// The oldest read that the cache returns.
const AGE_MAX: Duration = Duration::from_secs(30);

/// A `Cloud` with a cached inventory.
#[derive(Debug)]
pub(super) struct InventoryCache<C> {
    cloud: Arc<C>,
    cached: Mutex<CachedInventory>,
    /// Serializes reads: callers that wait for a read share its result.
    read_lock: tokio::sync::Mutex<()>,
    /// Notified when a write ended.
    write_ended: Notify,
    refresh_interval: Duration,
    age_max: Duration,
}

#[derive(Debug, Default)]
struct CachedInventory {
    /// Start and result of the last read.
    read: Option<(Instant, CloudInventory)>,
    /// End of the last write, or arrival of the last message that earlier reads do not reflect.
    invalidated_at: Option<Instant>,
    /// Duration of the last read.
    read_duration: Duration,
}

impl CachedInventory {
    /// Returns the last read if it began no earlier than `oldest` and is not invalidated.
    fn fresh_since(&self, oldest: Instant) -> Option<&CloudInventory> {
        let (started_at, inventory) = self.read.as_ref()?;
        let counts = self.invalidated_at.is_none_or(|invalidated_at| *started_at > invalidated_at);
        (counts && *started_at >= oldest).then_some(inventory)
    }
}

/// Replaces each unchanged instance with the one of the previous read. Observations and plans of
/// the previous read then share its tags with the new ones.
fn share_unchanged_instances(inventory: &mut CloudInventory, previous: &CloudInventory) {
    let previous: BTreeMap<&InstanceId, &Instance> =
        previous.instances.iter().map(|instance| (&instance.id, instance)).collect();
    for instance in &mut inventory.instances {
        if let Some(known) = previous.get(&instance.id).filter(|known| ***known == *instance) {
            instance.clone_from(known);
        }
    }
}

impl<C: Cloud> InventoryCache<C> {
    pub(super) fn new(cloud: Arc<C>) -> Self {
        Self {
            cloud,
            cached: Mutex::default(),
            read_lock: tokio::sync::Mutex::default(),
            write_ended: Notify::new(),
            refresh_interval: REFRESH_INTERVAL,
            age_max: AGE_MAX,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CachedInventory> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next call read again.
    pub(super) fn invalidate(&self) {
        self.lock().invalidated_at = Some(Instant::now());
    }

    /// Returns a read that began no earlier than `oldest`.
    async fn holdings_since(&self, oldest: Instant) -> Result<CloudInventory, PortError> {
        if let Some(inventory) = self.lock().fresh_since(oldest) {
            return Ok(inventory.clone());
        }
        let _guard = self.read_lock.lock().await;
        if let Some(inventory) = self.lock().fresh_since(oldest) {
            return Ok(inventory.clone());
        }
        let started_at = Instant::now();
        let mut read = self.cloud.inventory().await;
        let mut cached = self.lock();
        cached.read_duration = started_at.elapsed();
        if let (Ok(inventory), Some((_, previous))) = (&mut read, &cached.read) {
            share_unchanged_instances(inventory, previous);
        }
        cached.read = read.as_ref().ok().map(|inventory| (started_at, inventory.clone()));
        read
    }

    /// Refreshes the cache for as long as it is polled.
    pub(super) async fn refresh_periodically(&self) {
        loop {
            let read_duration = self.lock().read_duration;
            tokio::select! {
                () = tokio::time::sleep(self.refresh_interval.max(read_duration.saturating_mul(REFRESH_SHARE))) => {}
                () = self.write_ended.notified() => {
                    let rest = WRITE_REFRESH_DELAY.max(read_duration.saturating_mul(WRITE_REFRESH_SHARE));
                    tokio::time::sleep(rest).await;
                    // A caller may have read it meanwhile.
                    let now = Instant::now();
                    let known = now.checked_sub(self.age_max).unwrap_or(now);
                    if self.lock().fresh_since(known).is_some() {
                        continue;
                    }
                }
            }
            // After a failure the next caller reads again and gets the error.
            if let Err(error) = self.holdings_since(Instant::now()).await {
                tracing::warn!(%error, "cannot read the EC2 inventory");
            }
        }
    }

    /// Records that a write ended, with any result. The inventory is read again soon even without
    /// a request: the next pod must not wait for that read.
    fn invalidate_after<T>(&self, end: T) -> T {
        self.invalidate();
        self.write_ended.notify_one();
        end
    }
}

impl<C: Cloud> Cloud for InventoryCache<C> {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        let now = Instant::now();
        self.holdings_since(now.checked_sub(self.age_max).unwrap_or(now)).await
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        self.cloud.find_instances(ids).await
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        self.invalidate_after(self.cloud.launch(request).await)
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.invalidate_after(self.cloud.raise_group(group, desired).await)
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.invalidate_after(self.cloud.terminate_member(id).await)
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.invalidate_after(self.cloud.terminate(id).await)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::apply::ports::CallEffect;
    use crate::testing::world::{instance, managed_instance};

    /// A cloud that counts its reads and fails every third. It lists an instance that never
    /// changes, and one with the count in a tag.
    #[derive(Default)]
    struct FlakyCloud(AtomicU32);

    impl Cloud for FlakyCloud {
        async fn inventory(&self) -> Result<CloudInventory, PortError> {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let reads = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            if reads.is_multiple_of(3) {
                let (verb, reason) = ("read".to_owned(), "no".to_owned());
                return Err(PortError { verb, reason, effect: CallEffect::Unknown });
            }
            let count = reads.to_string();
            let changing = instance("i-2").with_tags(&[("reads", count.as_str())]);
            let instances = vec![managed_instance("i-1", "prod"), changing];
            Ok(CloudInventory { instances, unread: vec![count], ..CloudInventory::default() })
        }

        async fn find_instances(
            &self,
            _: &BTreeSet<InstanceId>,
        ) -> Result<Vec<Instance>, PortError> {
            Ok(Vec::new())
        }

        async fn launch(&self, _: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
            Ok(LaunchOutcome::Launched(InstanceId::from("i-1").into()))
        }

        async fn raise_group(&self, _: &GroupName, _: u32) -> Result<(), PortError> {
            Ok(())
        }

        async fn terminate_member(&self, _: &InstanceId) -> Result<(), PortError> {
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

    fn cache(age_max: Duration) -> InventoryCache<FlakyCloud> {
        let refresh_interval = Duration::from_millis(10);
        InventoryCache {
            refresh_interval,
            age_max,
            ..InventoryCache::new(Arc::new(FlakyCloud::default()))
        }
    }

    #[test]
    fn cached_inventory_expires_by_age_or_write() {
        run(async {
            let cache = cache(Duration::from_millis(200));
            let reads = || cache.cloud.0.load(Ordering::Relaxed);
            cache.inventory().await.expect("read");
            cache.inventory().await.expect("at hand");
            assert_eq!(reads(), 1);
            cache.terminate(&"i-1".into()).await.expect("ends");
            let (a, b) = tokio::join!(cache.inventory(), cache.inventory());
            assert_eq!(
                (a.expect("read").unread, b.expect("read").unread.len()),
                (vec!["2".to_owned()], 1)
            );
            assert_eq!(reads(), 2, "one read for both");
            tokio::time::sleep(Duration::from_millis(220)).await;
            assert!(cache.inventory().await.is_err(), "too old, and what is new cannot be read");
            assert_eq!(cache.inventory().await.expect("read").unread, ["4"], "never the old one");
        });
    }

    #[test]
    fn unchanged_instances_share_their_tags_between_reads() {
        run(async {
            let cache = cache(Duration::ZERO);
            let first = cache.inventory().await.expect("read");
            let second = cache.inventory().await.expect("read");
            let [first, second] = [first, second].map(|read| read.instances);
            let tags = [&first, &second].map(|read| std::ptr::from_ref(&*read[0].tags));
            assert_eq!(tags[0], tags[1], "one copy");
            assert_eq!((first[1].tags["reads"].as_str(), &*second[1].tags["reads"]), ("1", "2"));
        });
    }

    #[test]
    fn write_during_a_read_causes_another_read() {
        run(async {
            let cache = cache(AGE_MAX);
            let write = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                cache.terminate_member(&"i-1".into()).await.expect("ends");
            };
            let (read, ()) = tokio::join!(cache.inventory(), write);
            assert_eq!(read.expect("read").unread, ["1"]);
            assert_eq!(cache.inventory().await.expect("read").unread, ["2"]);
        });
    }

    #[test]
    fn write_is_followed_by_an_early_refresh() {
        run(async {
            let cache = InventoryCache { refresh_interval: AGE_MAX, ..cache(AGE_MAX) };
            let reader = async {
                cache.inventory().await.expect("read");
                cache.terminate(&"i-1".into()).await.expect("ends");
                tokio::time::sleep(WRITE_REFRESH_DELAY * 3).await;
                assert_eq!(cache.cloud.0.load(Ordering::Relaxed), 2);
                assert_eq!(cache.inventory().await.expect("at hand").unread, ["2"]);
            };
            tokio::select! {
                () = cache.refresh_periodically() => unreachable!("it never ends"),
                () = reader => {}
            }
        });
    }

    #[test]
    fn periodic_refresh_serves_later_calls() {
        run(async {
            let cache = cache(AGE_MAX);
            let reader = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let reads = cache.cloud.0.load(Ordering::Relaxed);
                cache.inventory().await.expect("at hand");
                assert_eq!((reads, cache.cloud.0.load(Ordering::Relaxed)), (1, 1));
            };
            tokio::select! {
                () = cache.refresh_periodically() => unreachable!("it never ends"),
                () = reader => {}
            }
        });
    }
}
