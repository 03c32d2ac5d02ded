//! What EC2 was asked lately and changes seldom, kept between commands, or for as long as a loop lives.
//!
//! Nothing that decides safety is kept: instances, nodes and pods are read anew each time. What is kept
//! is told apart by account, region and endpoint, counts for a while, and holds no secret. An answer that
//! counts no more stands in for one that cannot be had, and says that it does. A cache that cannot be
//! read or written costs time and nothing else.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use crate::cache::Cache;
use crate::ids::hex;
use crate::program;

/// Most answers that a process keeps; a repository asks a dozen questions.
const ANSWERS_MAX: usize = 64;

/// How the variables begin that lead calls elsewhere.
const ENDPOINTS: &str = "AWS_ENDPOINT_URL";

/// A shelf of answers of one account.
pub(super) struct Shelf<'m> {
    place: Place<'m>,
    /// Whose answers these are.
    scope: Json,
    now: Timestamp,
}

/// Where answers are kept.
enum Place<'m> {
    Folder(Cache),
    Memory(&'m Answers),
    Nowhere,
}

/// Answers that are kept for as long as a process lives, each with the number of its writing.
#[derive(Debug, Default)]
pub(in crate::cli) struct Answers(Mutex<BTreeMap<String, (u64, Vec<u8>)>>);

impl Place<'_> {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self {
            Self::Folder(cache) => cache.get(key),
            Self::Memory(answers) => answers.lock().get(key).map(|(_, bytes)| bytes.clone()),
            Self::Nowhere => None,
        }
    }

    fn put(&self, key: String, bytes: Vec<u8>) {
        match self {
            Self::Folder(cache) => {
                cache.put(&key, &bytes);
                cache.prune();
            }
            Self::Memory(answers) => answers.put(key, bytes),
            Self::Nowhere => {}
        }
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (u64, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: String, bytes: Vec<u8>) {
        let mut answers = self.lock();
        // Questions name types: those of pools that are gone are asked no more.
        if answers.len() >= ANSWERS_MAX {
            let oldest = answers.iter().min_by_key(|(_, (number, _))| *number);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| answers.remove(&key));
        }
        let number = answers.values().map(|(number, _)| *number).max().map_or(0, |last| last + 1);
        answers.insert(key, (number, bytes));
    }
}

/// An answer, and when it was given.
#[derive(Serialize, Deserialize)]
struct Answer<T> {
    read_at: Timestamp,
    answer: T,
}

impl<T> Answer<T> {
    fn given<E>(self, lapsed: Option<E>) -> Given<T, E> {
        let Self { read_at, answer } = self;
        Given { read_at, answer, lapsed }
    }
}

/// How long an answer counts, and how long it stands in where no newer one can be had.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) counts_for: Duration,
    pub(super) stands_in_for: Duration,
}

/// An answer to be used.
#[derive(Debug)]
pub(super) struct Given<T, E> {
    /// When it was given.
    pub(super) read_at: Timestamp,
    pub(super) answer: T,
    /// Why there is none that still counts, where this one stands in.
    pub(super) lapsed: Option<E>,
}

impl<'m> Shelf<'m> {
    /// Returns the shelf below the user's cache folder; one that keeps nothing for a user without.
    pub(super) fn of(account: &str, region: &str, now: Timestamp) -> Self {
        let endpoints: Vec<(String, String)> =
            std::env::vars().filter(|(name, _)| name.starts_with(ENDPOINTS)).collect();
        let cache = program::cache().map(|folder| Cache::in_directory(folder.join("market")));
        let place = cache.map_or(Place::Nowhere, Place::Folder);
        Self::within(place, &[account, region, &format!("{endpoints:?}")], now)
    }

    /// Returns one of answers that this process keeps, all of one account.
    pub(super) fn in_memory(answers: &'m Answers, now: Timestamp) -> Self {
        Self::within(Place::Memory(answers), &[], now)
    }

    fn within(place: Place<'m>, scope: &[&str], now: Timestamp) -> Self {
        // What another version kept may mean something else.
        let scope = json!([env!("CARGO_PKG_VERSION"), scope]);
        Self { place, scope, now }
    }

    /// Returns the answer to `question` that still counts, else asks, and keeps what was answered. Where
    /// that fails, what was answered before stands in. An answer from the future counts as none.
    ///
    /// # Errors
    /// When asking fails, and nothing stands in.
    pub(super) async fn or<T: Serialize + DeserializeOwned, E>(
        &self,
        (question, terms): (Json, Terms),
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<Given<T, E>, E> {
        let key = hex(&Sha256::digest(json!([self.scope, question]).to_string()));
        let lapsed = match self.kept(&key) {
            Some((age, kept)) if age < terms.counts_for => return Ok(kept.given(None)),
            kept => kept.filter(|(age, _)| *age < terms.stands_in_for),
        };
        let answer = match (ask.await, lapsed) {
            (Ok(answer), _) => Answer { read_at: self.now, answer },
            (Err(error), Some((_, lapsed))) => return Ok(lapsed.given(Some(error))),
            (Err(error), None) => return Err(error),
        };
        if let Ok(bytes) = serde_json::to_vec(&answer) {
            self.place.put(key, bytes);
        }
        Ok(answer.given(None))
    }

    /// Returns what is kept under `key`, with its age.
    fn kept<T: DeserializeOwned>(&self, key: &str) -> Option<(Duration, Answer<T>)> {
        let kept: Answer<T> = serde_json::from_slice(&self.place.get(key)?).ok()?;
        let age = self.now.duration_since(kept.read_at);
        (!age.is_negative()).then_some((age.unsigned_abs(), kept))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use jiff::SignedDuration;

    use super::*;

    const TERMS: Terms =
        Terms { counts_for: Duration::from_hours(1), stands_in_for: Duration::from_hours(2) };

    /// Asks for a number that rises with every question; returns what was shown.
    struct Asked<'d> {
        folder: &'d Path,
        answers: Option<Answers>,
        count: Cell<u32>,
    }

    impl Asked<'_> {
        fn ask(&self, account: &str, now: Timestamp) -> u32 {
            self.answer(account, now, true).expect("answered").answer
        }

        /// Asks; whoever is asked answers, if it `works`.
        fn answer(&self, account: &str, now: Timestamp, works: bool) -> Result<Given<u32, ()>, ()> {
            let place = match &self.answers {
                Some(answers) => Place::Memory(answers),
                None => Place::Folder(Cache::in_directory(self.folder.to_path_buf())),
            };
            let answers = Shelf::within(place, &[account], now);
            let ask = async {
                self.count.set(self.count.get() + 1);
                if works { Ok(self.count.get()) } else { Err(()) }
            };
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(answers.or((json!("types"), TERMS), ask))
        }
    }

    #[test]
    fn what_was_answered_counts_for_a_while_for_the_same_account_and_broken_entries_never() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("market");
        let asked = Asked { folder: &folder, answers: None, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(600 + minutes);
        assert_eq!([asked.ask("a", at(0)), asked.ask("a", at(59))], [1, 1], "kept");
        assert_eq!(asked.ask("b", at(0)), 2, "another account");
        assert_eq!(asked.ask("a", at(60)), 3, "too old");
        assert_eq!(asked.ask("a", at(30)), 4, "given by a clock that was ahead");
        for entry in std::fs::read_dir(&folder).expect("entries") {
            std::fs::write(entry.expect("an entry").path(), "broken").expect("written");
        }
        assert_eq!(asked.ask("a", at(30)), 5, "a broken entry is none");
        std::fs::remove_dir_all(&folder).expect("removed");
        std::fs::write(&folder, "no folder").expect("written");
        let unkept = [asked.ask("a", at(30)), asked.ask("a", at(30))];
        assert_eq!(unkept, [6, 7], "what cannot be kept is asked again");
    }

    #[test]
    fn a_process_keeps_answers_as_long_as_they_count() {
        let answers = Some(Answers::default());
        let asked = Asked { folder: Path::new("/none"), answers, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let seen = [0, 59, 60, 61].map(|minutes| asked.ask("a", at(minutes)));
        assert_eq!(seen, [1, 1, 2, 2]);
    }
    #[test]
    fn what_counts_no_more_stands_in_where_nobody_answers_and_not_for_ever() {
        let answers = Some(Answers::default());
        let asked = Asked { folder: Path::new("/none"), answers, count: Cell::new(0) };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let given = |minutes: i64, works: bool| {
            let given = asked.answer("a", at(minutes), works).ok();
            given.map(|given| (given.answer, given.read_at, given.lapsed.is_some()))
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
    fn the_oldest_answer_goes_where_there_are_too_many() {
        let answers = Answers::default();
        for n in 0..=ANSWERS_MAX {
            // The order of keys is not that of time.
            answers.put(format!("{}", 1_000 - n), Vec::new());
        }
        let held = answers.lock();
        assert_eq!((held.len(), held.contains_key("1000")), (ANSWERS_MAX, false));
    }
}
