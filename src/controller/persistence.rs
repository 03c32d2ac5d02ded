//! Loading and saving of the persisted state.

use jiff::Timestamp;

use super::persisted_state::PersistedState;
use super::retry::Retry;
use super::status::PersistedStateSize;

/// Largest persisted state in bytes: the API server accepts 256 KiB of annotations.
pub(super) const PERSISTED_BYTES_MAX: usize = 200 << 10;

/// Number of failed loads after which a single run ends: about half a minute of retries.
pub(super) const LOADS_MAX: u32 = 5;

/// The persisted state, and the writes of it.
#[derive(Debug, Clone)]
pub(super) struct Persistence {
    /// The current state; absent until it is loaded.
    pub(super) loaded: Option<PersistedState>,
    is_loading: bool,
    /// The state as it was last written.
    pub(super) saved: Option<PersistedState>,
    saving: Option<PersistedState>,
    pub(super) retry: Retry,
    /// Size of the last persisted state.
    pub(super) size: PersistedStateSize,
}

impl Persistence {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            loaded: None,
            is_loading: false,
            saved: None,
            saving: None,
            retry: Retry::new(now),
            size: PersistedStateSize::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn is_loading(&self) -> bool {
        self.is_loading
    }

    pub(super) fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Starts to load the state if that is due; returns whether it started.
    pub(super) fn start_load_if_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.loaded.is_none() && !self.is_loading && now >= self.retry.at;
        self.is_loading |= is_due;
        is_due
    }

    /// Returns true if the state could not be read so often that a single run does not wait longer.
    pub(super) fn has_given_up_loading(&self) -> bool {
        self.loaded.is_none() && self.retry.failures() >= LOADS_MAX
    }

    /// Records the end of a load.
    pub(super) fn finish_load(&mut self, persisted: Option<&PersistedState>, now: Timestamp) {
        self.is_loading = false;
        match persisted {
            Some(persisted) => {
                self.retry.record_success(now);
                self.saved = Some(persisted.clone());
            }
            None => self.retry.record_failure(now),
        }
    }

    /// Returns the state to save now, in at most [`PERSISTED_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Returns the size of a state that does not fit.
    pub(super) fn start_save(&mut self) -> Result<Option<Box<PersistedState>>, usize> {
        let Some(persisted) = self.loaded.as_ref().filter(|now| self.saved.as_ref() != Some(now))
        else {
            return Ok(None);
        };
        let fitted = persisted.fit_within(PERSISTED_BYTES_MAX);
        let bytes = fitted.size();
        self.size = PersistedStateSize {
            bytes,
            max_bytes: PERSISTED_BYTES_MAX,
            dropped_entries: fitted.dropped_entries,
        };
        if bytes > PERSISTED_BYTES_MAX {
            return Err(bytes);
        }
        self.saving = Some(persisted.clone());
        Ok(Some(Box::new(fitted)))
    }

    /// Records the end of a save.
    pub(super) fn finish_save(&mut self, is_saved: bool, now: Timestamp) {
        let saved = self.saving.take();
        if is_saved {
            self.retry.record_success(now);
            self.saved = saved;
        } else {
            self.retry.record_failure(now);
        }
    }

    /// Returns when the state is loaded or saved again, if that waits.
    pub(super) fn next_try(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = (self.loaded.is_none() && !self.is_loading) || self.retry.at > now;
        waits.then_some(self.retry.at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ControllerState, Effect, Event, StartOptions, step};
    use super::*;
    use crate::apply::ports::{CallEffect, PortError};
    use crate::model::observed::ClusterIdentity;
    use crate::testing::controller::at;

    #[test]
    fn changed_state_is_saved_once() {
        let mut persistence = Persistence::new(at(0));
        assert!(persistence.start_load_if_due(at(0)) && !persistence.start_load_if_due(at(0)));
        persistence.finish_load(Some(&PersistedState::default()), at(1));
        let served_commit = Some("1".to_owned());
        persistence.loaded = Some(PersistedState { served_commit, ..PersistedState::default() });
        for is_saved in [false, true] {
            assert!(matches!(persistence.start_save(), Ok(Some(_))), "it differs");
            persistence.finish_save(is_saved, at(2));
        }
        assert_eq!(persistence.start_save(), Ok(None));
        assert_eq!(persistence.next_try(at(2)), None);
    }

    #[test]
    fn single_run_ends_if_the_state_stays_unreadable() {
        for once in [true, false] {
            let mut state = ControllerState::new(StartOptions {
                started_at: at(0),
                identity: "a".to_owned(),
                cluster: ClusterIdentity::default(),
                mode: None,
                once,
            });
            let (mut loads, mut has_exited) = (0, false);
            for seconds in 0..600 {
                let (next, effects) = step(state, Event::Timer, at(seconds));
                state = next;
                if !effects.iter().any(|effect| matches!(effect, Effect::LoadState)) {
                    continue;
                }
                loads += 1;
                let (verb, reason) = ("read".to_owned(), "it is truncated".to_owned());
                let failure = PortError { verb, reason, effect: CallEffect::Unknown };
                let (next, effects) = step(state, Event::StateLoaded(Err(failure)), at(seconds));
                state = next;
                has_exited |= effects.iter().any(|effect| matches!(effect, Effect::Exit));
            }
            assert_eq!((has_exited, loads == LOADS_MAX), (once, once), "after {loads} loads");
        }
    }
}
