//! What EC2 was asked lately and changes seldom, kept between commands, or for as long as a loop lives.
//!
//! Nothing that decides safety is kept: instances, nodes and pods are read anew each time. What is kept
//! is told apart by account, region and endpoint, counts for a while, and holds no secret. A cache that
//! cannot be read or written costs time and nothing else.

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

/// Most answers that a process keeps; a repository asks half a dozen questions.
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

/// Answers that are kept for as long as a process lives.
#[derive(Debug, Default)]
pub(in crate::cli) struct Answers(Mutex<BTreeMap<String, Vec<u8>>>);

impl Place<'_> {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self {
            Self::Folder(cache) => cache.get(key),
            Self::Memory(answers) => answers.lock().get(key).cloned(),
            Self::Nowhere => None,
        }
    }

    fn put(&self, key: String, bytes: Vec<u8>) {
        match self {
            Self::Folder(cache) => {
                cache.put(&key, &bytes);
                cache.prune();
            }
            Self::Memory(answers) => {
                let mut answers = answers.lock();
                // Questions name types: those of pools that are gone are asked no more.
                if answers.len() >= ANSWERS_MAX {
                    answers.clear();
                }
                answers.insert(key, bytes);
            }
            Self::Nowhere => {}
        }
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer, and when it was given.
#[derive(Serialize, Deserialize)]
struct Answer<T> {
    read_at: Timestamp,
    answer: T,
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

    /// Returns the answer to `question` that was given less than `most` ago, else asks, and keeps what
    /// was answered; with it, when it was given. An answer from the future counts as none.
    pub(super) async fn or<T: Serialize + DeserializeOwned, E>(
        &self,
        (question, most): (Json, Duration),
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<(Timestamp, T), E> {
        let key = hex(&Sha256::digest(json!([self.scope, question]).to_string()));
        let kept = self.place.get(&key);
        let kept = kept.and_then(|bytes| serde_json::from_slice::<Answer<T>>(&bytes).ok());
        let counts = |kept: &Answer<T>| {
            let age = self.now.duration_since(kept.read_at);
            !age.is_negative() && age.unsigned_abs() < most
        };
        if let Some(kept) = kept.filter(counts) {
            return Ok((kept.read_at, kept.answer));
        }
        let answer = Answer { read_at: self.now, answer: ask.await? };
        if let Ok(bytes) = serde_json::to_vec(&answer) {
            self.place.put(key, bytes);
        }
        Ok((answer.read_at, answer.answer))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use jiff::SignedDuration;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    /// Asks for a number that rises with every question; returns what was shown.
    struct Asked<'d> {
        folder: &'d Path,
        answers: Option<Answers>,
        count: Cell<u32>,
    }

    impl Asked<'_> {
        fn ask(&self, account: &str, now: Timestamp) -> u32 {
            let place = match &self.answers {
                Some(answers) => Place::Memory(answers),
                None => Place::Folder(Cache::in_directory(self.folder.to_path_buf())),
            };
            let answers = Shelf::within(place, &[account], now);
            let ask = async {
                self.count.set(self.count.get() + 1);
                Ok::<u32, ()>(self.count.get())
            };
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            let answered = runtime.block_on(answers.or((json!("types"), HOUR), ask));
            answered.expect("answered").1
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
}
