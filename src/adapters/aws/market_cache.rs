//! A cache of EC2 answers that rarely change, between commands or for the life of a controller.
//!
//! Safety decisions never use the cache: instances, nodes and pods are read each time. The key
//! contains account, region and endpoint. Entries expire and contain no secret. An expired answer
//! replaces that of a failed request and is marked as stale. A broken cache only costs time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use crate::adapters::cache::ResultCache;
use crate::adapters::subprocess;

/// Maximum number of answers in memory. A repository needs about a dozen.
const ANSWERS_MAX: usize = 64;

/// Prefix of the variables that redirect AWS calls.
const ENDPOINT_PREFIX: &str = "AWS_ENDPOINT_URL";

/// The cached answers of one account.
pub(super) struct MarketCache<'m> {
    storage: CacheStorage<'m>,
    /// Version, account, region and endpoint, as part of each key.
    scope: Json,
    now: Timestamp,
}

enum CacheStorage<'m> {
    Directory(ResultCache),
    Memory(&'m MarketAnswers),
    Disabled,
}

/// Answers in memory, each with a sequence number.
#[derive(Debug, Default)]
pub struct MarketAnswers(Mutex<BTreeMap<String, (u64, Vec<u8>)>>);

impl CacheStorage<'_> {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self {
            Self::Directory(cache) => cache.get(key),
            Self::Memory(answers) => answers.lock().get(key).map(|(_, bytes)| bytes.clone()),
            Self::Disabled => None,
        }
    }

    fn put(&self, key: String, bytes: Vec<u8>) {
        match self {
            Self::Directory(cache) => {
                cache.put(&key, &bytes);
                cache.prune();
            }
            Self::Memory(answers) => answers.put(key, bytes),
            Self::Disabled => {}
        }
    }
}

impl MarketAnswers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (u64, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: String, bytes: Vec<u8>) {
        let mut answers = self.lock();
        // Questions name instance types, and those about removed pools do not recur.
        if answers.len() >= ANSWERS_MAX {
            let oldest = answers.iter().min_by_key(|(_, (number, _))| *number);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| answers.remove(&key));
        }
        let number = answers.values().map(|(number, _)| *number).max().map_or(0, |last| last + 1);
        answers.insert(key, (number, bytes));
    }
}

/// An answer with the time of its request.
#[derive(Serialize, Deserialize)]
struct CachedAnswer<T> {
    read_at: Timestamp,
    answer: T,
}

impl<T> CachedAnswer<T> {
    fn into_answer<E>(self, stale_because: Option<E>) -> MarketAnswer<T, E> {
        let Self { read_at, answer } = self;
        MarketAnswer { read_at, answer, stale_because }
    }
}

/// Time for which an answer is fresh, and for which it may replace that of a failed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freshness {
    pub(super) fresh_for: Duration,
    pub(super) usable_for: Duration,
}

/// An answer, fresh or expired.
#[derive(Debug)]
pub(super) struct MarketAnswer<T, E> {
    pub(super) read_at: Timestamp,
    pub(super) answer: T,
    /// Error of the failed request whose answer this expired answer replaces.
    pub(super) stale_because: Option<E>,
}

impl<'m> MarketCache<'m> {
    /// Returns the cache below the user's cache directory. Without that directory it stores
    /// nothing.
    pub(super) fn for_account(account: &str, region: &str, now: Timestamp) -> Self {
        let endpoints: Vec<(String, String)> =
            std::env::vars().filter(|(name, _)| name.starts_with(ENDPOINT_PREFIX)).collect();
        let cache =
            subprocess::cache_directory().map(|folder| ResultCache::new(folder.join("market")));
        let storage = cache.map_or(CacheStorage::Disabled, CacheStorage::Directory);
        Self::with_storage(storage, &[account, region, &format!("{endpoints:?}")], now)
    }

    /// Returns a cache in the memory of this process, for one account.
    pub(super) fn in_memory(answers: &'m MarketAnswers, now: Timestamp) -> Self {
        Self::with_storage(CacheStorage::Memory(answers), &[], now)
    }

    fn with_storage(storage: CacheStorage<'m>, scope: &[&str], now: Timestamp) -> Self {
        // The format may differ between versions.
        let scope = json!([env!("CARGO_PKG_VERSION"), scope]);
        Self { storage, scope, now }
    }

    /// Returns a fresh cached answer to `question`, or sends the request and caches its answer. If
    /// the request fails, returns an expired answer. Ignores an answer from the future.
    ///
    /// # Errors
    /// Returns the error of the request if no answer is cached.
    pub(super) async fn get_or_ask<T: Serialize + DeserializeOwned, E>(
        &self,
        question: Json,
        freshness: Freshness,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<MarketAnswer<T, E>, E> {
        let key = hex::encode(Sha256::digest(json!([self.scope, question]).to_string()));
        let stale_because = match self.stored(&key) {
            Some((age, stored)) if age < freshness.fresh_for => return Ok(stored.into_answer(None)),
            stored => stored.filter(|(age, _)| *age < freshness.usable_for),
        };
        let answer = match (ask.await, stale_because) {
            (Ok(answer), _) => CachedAnswer { read_at: self.now, answer },
            (Err(error), Some((_, stale_because))) => {
                return Ok(stale_because.into_answer(Some(error)));
            }
            (Err(error), None) => return Err(error),
        };
        if let Ok(bytes) = serde_json::to_vec(&answer) {
            self.storage.put(key, bytes);
        }
        Ok(answer.into_answer(None))
    }

    /// Returns the answer stored under `key`, with its age.
    fn stored<T: DeserializeOwned>(&self, key: &str) -> Option<(Duration, CachedAnswer<T>)> {
        let stored: CachedAnswer<T> = serde_json::from_slice(&self.storage.get(key)?).ok()?;
        let age = self.now.duration_since(stored.read_at);
        (!age.is_negative()).then_some((age.unsigned_abs(), stored))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use jiff::SignedDuration;

    use super::*;

    const FRESHNESS: Freshness =
        Freshness { fresh_for: Duration::from_hours(1), usable_for: Duration::from_hours(2) };

    /// A cache whose request returns an increasing number.
    struct CacheHarness<'d> {
        folder: &'d Path,
        answers: Option<MarketAnswers>,
        count: Cell<u32>,
    }

    impl CacheHarness<'_> {
        fn ask(&self, account: &str, now: Timestamp) -> u32 {
            self.answer(account, now, true).expect("answered").answer
        }

        /// Sends a request that succeeds if `works`.
        fn answer(
            &self,
            account: &str,
            now: Timestamp,
            works: bool,
        ) -> Result<MarketAnswer<u32, ()>, ()> {
            let storage = match &self.answers {
                Some(answers) => CacheStorage::Memory(answers),
                None => CacheStorage::Directory(ResultCache::new(self.folder.to_path_buf())),
            };
            let cache = MarketCache::with_storage(storage, &[account], now);
            let ask = async {
                self.count.set(self.count.get() + 1);
                if works { Ok(self.count.get()) } else { Err(()) }
            };
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(cache.get_or_ask(json!("types"), FRESHNESS, ask))
        }
    }

    #[test]
    fn answers_are_cached_per_account_and_broken_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("market");
        let harness = CacheHarness { folder: &folder, answers: None, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(600 + minutes);
        assert_eq!([harness.ask("a", at(0)), harness.ask("a", at(59))], [1, 1], "cached");
        assert_eq!(harness.ask("b", at(0)), 2, "another account");
        assert_eq!(harness.ask("a", at(60)), 3, "too old");
        assert_eq!(harness.ask("a", at(30)), 4, "from a clock that was ahead");
        for entry in std::fs::read_dir(&folder).expect("entries") {
            std::fs::write(entry.expect("an entry").path(), "broken").expect("written");
        }
        assert_eq!(harness.ask("a", at(30)), 5, "a broken entry is ignored");
        std::fs::remove_dir_all(&folder).expect("removed");
        std::fs::write(&folder, "no folder").expect("written");
        let uncached = [harness.ask("a", at(30)), harness.ask("a", at(30))];
        assert_eq!(uncached, [6, 7], "answers that cannot be cached are requested again");
    }

    #[test]
    fn in_memory_answers_expire() {
        let answers = Some(MarketAnswers::default());
        let harness = CacheHarness { folder: Path::new("/none"), answers, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let seen = [0, 59, 60, 61].map(|minutes| harness.ask("a", at(minutes)));
        assert_eq!(seen, [1, 1, 2, 2]);
    }

    #[test]
    fn expired_answer_stands_in_for_a_limited_time() {
        let answers = Some(MarketAnswers::default());
        let harness = CacheHarness { folder: Path::new("/none"), answers, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let given = |minutes: i64, works: bool| {
            let given = harness.answer("a", at(minutes), works).ok();
            given.map(|given| (given.answer, given.read_at, given.stale_because.is_some()))
        };
        assert_eq!(given(0, false), None, "nothing is kept");
        assert_eq!(given(0, true), Some((2, at(0), false)));
        assert_eq!(given(59, false), Some((2, at(0), false)), "it still counts");
        assert_eq!(given(60, false), Some((2, at(0), true)), "it stands in");
        assert_eq!(given(119, false), Some((2, at(0), true)), "and is no younger for that");
        assert_eq!(given(120, false), None, "it is too old");
        assert_eq!(given(121, true), Some((6, at(121), false)));
    }

    #[test]
    fn oldest_answer_is_evicted() {
        let answers = MarketAnswers::default();
        for n in 0..=ANSWERS_MAX {
            // The order of keys differs from the order of writes.
            answers.put(format!("{}", 1_000 - n), Vec::new());
        }
        let held = answers.lock();
        assert_eq!((held.len(), held.contains_key("1000")), (ANSWERS_MAX, false));
    }
}
