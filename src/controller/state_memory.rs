//! The newest sealed state that this process knows. It protects against older states.
//!
//! Every user who may write the lease can put back an older state, whose seal is valid: one with an
//! approval that was used, or without a suspension that came later.
//!
//! Invariants:
//! - Times of seals increase.
//! - A state that is older than a known one never counts.
//! - A process that knows none accepts only decisions whose seal is at most [`SEAL_VALID_FOR`] old.
//!
//! A leader seals its state anew every [`RESEAL_EVERY`], so the state of a running leader is never
//! that old. See ADR 19.

use jiff::{SignedDuration, Timestamp};

use super::persisted_state::{CLOCK_DIFFERENCE_MAX, PersistedState};
use super::state_seal::StateKeys;
use crate::model::saturating_time::later;

/// A process that knows no state accepts decisions of a seal that is at most this old. That is the
/// time in which all replicas may be down, or an apply may hold the lease, without new approvals.
const SEAL_VALID_FOR: SignedDuration = SignedDuration::from_mins(15);

/// A leader seals its state anew after this time.
const RESEAL_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// A reason why a state that was read does not count as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateProblem {
    /// It has no valid seal.
    Unsealed,
    /// It is older than a known one, or was removed. The known one counts.
    RolledBack,
    /// It is too old for a process that knows no other.
    Outdated,
}

impl StateProblem {
    /// Returns the consequence, for the log.
    pub(in crate::controller) fn consequence(self) -> &'static str {
        match self {
            Self::Unsealed => "persisted state has no valid seal; its decisions are dropped",
            Self::RolledBack => "persisted state was rolled back; the newest known one is restored",
            Self::Outdated => "persisted state has an old seal; its approvals are dropped",
        }
    }
}

/// The newest sealed state that this process has read or written.
#[derive(Debug, Default)]
pub(crate) struct StateMemory {
    /// Time of its seal. The first write of a process has none before it.
    newest: Option<Timestamp>,
    state: Option<PersistedState>,
    /// Time of the last seal of this process, whether or not its write succeeded.
    issued: Option<Timestamp>,
    /// True if the state was read or written since the lease was acquired.
    is_loaded: bool,
    /// True if the stored state has to be replaced.
    differs: bool,
}

impl StateMemory {
    /// Records that the lease was acquired. Another process may have written the state before.
    pub(in crate::controller) fn begin_tenure(&mut self) {
        self.is_loaded = false;
    }

    /// Returns the state that counts for the one that was read.
    ///
    /// # Errors
    /// If the text is not a state, and no state is known.
    pub(in crate::controller) fn load(
        &mut self,
        text: Option<&str>,
        keys: &StateKeys,
        lease: &str,
        now: Timestamp,
    ) -> Result<(PersistedState, Option<StateProblem>), String> {
        let known = self.state.clone().filter(|_| self.newest.is_some());
        let opened = text.map(|text| keys.open(text, lease)).transpose();
        let (state, sealed_at, problem) = match (opened, known) {
            (Err(why), None) => return Err(why),
            (Ok(None), None) => (PersistedState::default(), None, None),
            (Ok(None) | Err(_), Some(known)) => (known, None, Some(StateProblem::RolledBack)),
            (Ok(Some((read, None))), known) => {
                (read.unsealed(known), None, Some(StateProblem::Unsealed))
            }
            (Ok(Some((read, Some(at)))), Some(known)) if Some(at) < self.newest => {
                // Applies, which have no key, write this mark.
                let known = PersistedState { ci_apply: read.ci_apply, ..known };
                (known, None, Some(StateProblem::RolledBack))
            }
            (Ok(Some((read, Some(at)))), _) if Some(at) == self.newest || is_valid(at, now) => {
                (read, Some(at), None)
            }
            (Ok(Some((read, Some(at)))), _) => {
                (read.outdated(), Some(at), Some(StateProblem::Outdated))
            }
        };
        self.newest = self.newest.max(sealed_at);
        self.state = Some(state.clone());
        (self.is_loaded, self.differs) = (true, problem.is_some());
        Ok((state, problem))
    }

    /// Remembers the state of another leader, if it is newer than the known one.
    pub(in crate::controller) fn remember_leader_state(
        &mut self,
        text: &str,
        keys: &StateKeys,
        lease: &str,
        now: Timestamp,
    ) {
        let Ok((state, Some(at))) = keys.open(text, lease) else { return };
        if Some(at) > self.newest && is_valid(at, now) {
            (self.newest, self.state) = (Some(at), Some(state));
        }
    }

    /// Returns the time of the next seal. It is later than that of each known one.
    pub(in crate::controller) fn next_seal(&mut self, now: Timestamp) -> Timestamp {
        let last = self.newest.max(self.issued);
        let next = last.map(|last| later(last, SignedDuration::from_millis(1)));
        let next = next.map_or(now, |next| next.max(now));
        self.issued = Some(next);
        next
    }

    /// Returns the state that the leader has to seal anew now, if it is time.
    pub(in crate::controller) fn due(&self, now: Timestamp) -> Option<&PersistedState> {
        let is_old = self.newest.is_none_or(|at| now.duration_since(at).abs() >= RESEAL_EVERY);
        self.state.as_ref().filter(|_| self.is_loaded && (is_old || self.differs))
    }

    /// Records that a state was written with the seal of `at`.
    pub(in crate::controller) fn record_written(&mut self, state: PersistedState, at: Timestamp) {
        (self.newest, self.state) = (self.newest.max(Some(at)), Some(state));
        (self.is_loaded, self.differs) = (true, false);
    }
}

fn is_valid(sealed_at: Timestamp, now: Timestamp) -> bool {
    sealed_at <= later(now, CLOCK_DIFFERENCE_MAX) && now <= later(sealed_at, SEAL_VALID_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::mass_removal::FleetBaseline;
    use crate::controller::persisted_state::{ApprovalRecord, CiApply, VerifiedCommit};
    use crate::controller::status::Suspension;
    use crate::testing::controller::at;

    const LEASE: &str = "u-1";

    fn keys() -> StateKeys {
        StateKeys::parse("0123456789abcdef0123456789abcdef").expect("keys")
    }

    fn request(until: i64) -> Suspension {
        let (reason, by) = ("r".into(), "eve".into());
        Suspension { reason, until: Some(at(until)), since: at(0), by }
    }

    /// A state with every decision that permits a change.
    fn permissive() -> PersistedState {
        let commit = "a".to_owned();
        PersistedState {
            break_glass: Some(request(9_000)),
            approvals: vec![ApprovalRecord::new("sha256:ab".into(), "eve".into(), at(0))],
            confirmed_removals: vec!["i-1".into()],
            forgiven_before: Some(at(0)),
            served_commit: Some(commit.clone()),
            verified: Some(VerifiedCommit { commit: commit.clone(), guard_ref: None }),
            // With it, a commit would explain a mass removal.
            baseline: Some(FleetBaseline { commit, pods: 900, is_delivered: true }),
            ..PersistedState::default()
        }
    }

    fn is_permissive(state: &PersistedState) -> bool {
        state.break_glass.is_some()
            || !state.approvals.is_empty()
            || !state.confirmed_removals.is_empty()
            || state.forgiven_before.is_some()
            || state.baseline.is_some()
    }

    /// A state with a suspension and a breaker.
    fn restrictive() -> PersistedState {
        let mut state =
            PersistedState { suspended: Some(request(60)), ..PersistedState::default() };
        state.latch("mass-removal", "much".to_owned(), Some(3), at(0));
        state
    }

    fn sealed(state: &PersistedState, seconds: i64) -> String {
        keys().seal(state, at(seconds), LEASE).expect("sealed")
    }

    fn load(
        memory: &mut StateMemory,
        text: Option<&str>,
        seconds: i64,
    ) -> (PersistedState, Option<StateProblem>) {
        memory.load(text, &keys(), LEASE, at(seconds)).expect("a state")
    }

    #[test]
    fn forged_decisions_do_not_count_and_restrictions_do() {
        let mut forged = PersistedState { suspended: Some(request(60)), ..permissive() };
        forged.latch("mass-removal", "much".to_owned(), Some(3), at(0));
        let text = serde_json::to_string(&forged).expect("JSON");
        let (read, problem) = load(&mut StateMemory::default(), Some(&text), 1);
        assert_eq!(problem, Some(StateProblem::Unsealed));
        assert!(!is_permissive(&read), "{read:?}");
        assert_eq!((&read.served_commit, &read.verified), (&None, &None));
        assert!(read.suspended.is_some() && read.breakers.len() == 1, "restrictions count");
        let (none, problem) = load(&mut StateMemory::default(), None, 1);
        assert_eq!((none, problem), (PersistedState::default(), None), "the first start");
    }

    #[test]
    fn unsealed_state_lifts_no_restriction_that_is_known() {
        let mut memory = StateMemory::default();
        load(&mut memory, Some(&sealed(&restrictive(), 1)), 2);
        let plain = serde_json::to_string(&permissive()).expect("JSON");
        let (read, problem) = load(&mut memory, Some(&plain), 3);
        assert_eq!(problem, Some(StateProblem::Unsealed));
        assert!(!is_permissive(&read) && read.suspended.is_some() && read.breakers.len() == 1);
    }

    #[test]
    fn older_sealed_state_is_replaced_by_the_newest_known() {
        let old = sealed(&permissive(), 1);
        let newer = PersistedState { served_commit: Some("b".into()), ..restrictive() };
        let mut memory = StateMemory::default();
        assert_eq!(load(&mut memory, Some(&old), 2), (permissive(), None));
        let seal = memory.next_seal(at(2));
        memory.record_written(newer.clone(), seal);
        // The attack, in a process that has led, and in a standby that has observed the lease.
        let mut standby = StateMemory::default();
        standby.remember_leader_state(&sealed(&newer, 2), &keys(), LEASE, at(3));
        for memory in [&mut memory, &mut standby] {
            memory.begin_tenure();
            assert_eq!(memory.due(at(9_000)), None, "it was not read since");
            for text in [Some(old.as_str()), None, Some("{")] {
                let restored = (newer.clone(), Some(StateProblem::RolledBack));
                assert_eq!(load(memory, text, 3), restored, "{text:?}");
                assert_eq!(memory.due(at(3)), Some(&newer), "it is written at once");
            }
        }
        // A CI apply writes its mark without a key.
        let applied = CiApply { commit: "b".into(), at: at(3), complete: true };
        let marked = PersistedState { ci_apply: Some(applied.clone()), ..permissive() };
        let (read, _) = load(&mut memory, Some(&sealed(&marked, 1)), 4);
        assert_eq!(read, PersistedState { ci_apply: Some(applied), ..newer });
    }

    #[test]
    fn restarted_process_accepts_decisions_of_a_recent_seal_only() {
        let text = sealed(&permissive(), 0);
        let minutes = |minutes: i64| minutes * 60;
        for (seconds, problem) in [
            (minutes(15), None),
            (minutes(15) + 1, Some(StateProblem::Outdated)),
            (minutes(-10), None),
            // Nobody seals in the future.
            (minutes(-10) - 1, Some(StateProblem::Outdated)),
        ] {
            let mut memory = StateMemory::default();
            let (read, found) = load(&mut memory, Some(&text), seconds);
            assert_eq!((found, is_permissive(&read)), (problem, problem.is_none()), "{seconds}");
            // They are facts, and without them less would be checked.
            assert_eq!(read.served_commit, permissive().served_commit);
            assert_eq!(read.verified, permissive().verified);
        }
        // A process that knows it accepts it at any age, and never as outdated afterwards.
        let mut memory = StateMemory::default();
        load(&mut memory, Some(&text), 1);
        memory.begin_tenure();
        assert_eq!(load(&mut memory, Some(&text), minutes(600)), (permissive(), None));
        // A standby does not learn from an old seal.
        let mut standby = StateMemory::default();
        standby.remember_leader_state(&text, &keys(), LEASE, at(minutes(16)));
        let (_, problem) = load(&mut standby, Some(&text), minutes(16));
        assert_eq!(problem, Some(StateProblem::Outdated));
    }

    #[test]
    fn leader_seals_anew_each_minute_with_increasing_times() {
        let mut memory = StateMemory::default();
        assert_eq!(memory.due(at(0)), None);
        load(&mut memory, Some(&sealed(&restrictive(), 0)), 1);
        assert_eq!((memory.due(at(59)), memory.due(at(60))), (None, Some(&restrictive())));
        // Writes whose reply was lost, and a clock that was set back.
        let first = memory.next_seal(at(60));
        let second = memory.next_seal(at(60));
        let third = memory.next_seal(at(-500));
        assert!(at(60) <= first && first < second && second < third);
        memory.record_written(restrictive(), third);
        assert_eq!(memory.due(at(61)), None);
        assert_eq!(memory.due(at(-500)), Some(&restrictive()), "its seal is far ahead");
    }
}
