//! Authentication of the persisted state, which is an annotation of a lease that every apply may
//! write. See ADR 19.
//!
//! The seal is an HMAC over the state without the mark of CI applies, which have no key. Invariants:
//! decisions of a state without a valid seal do not count, and its restrictions do; keys are in no
//! output.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value as Json;
use sha2::Sha256;

use super::apply_record::read_persisted_state;
use super::persisted_state::PersistedState;
use crate::plan::canonical;

/// Key of the record that holds the seal.
const SEAL: &str = "seal";

/// Key of the record that applies write, see [`super::apply_record::with_applied`].
const APPLIED: &str = "applied";

/// Minimum number of characters of a key.
const KEY_CHARS_MIN: usize = 32;

/// Maximum number of keys: the current one, and its predecessor.
const KEYS_MAX: usize = 2;

/// The keys that seal the state. The first one seals, and each one is accepted. `Debug` hides them.
#[derive(Clone)]
pub struct StateKeys(Arc<[Vec<u8>]>);

impl fmt::Debug for StateKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateKeys({})", self.0.len())
    }
}

impl StateKeys {
    /// Parses keys, one per line. During a rotation, the new key is before the old one.
    ///
    /// # Errors
    /// If there is no key, there are too many, or one is too short.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().to_vec()).collect();
        if keys.is_empty() || keys.len() > KEYS_MAX {
            let count = keys.len();
            return Err(format!(
                "the file has {count} keys, one per line, and needs 1 or {KEYS_MAX}"
            ));
        }
        if keys.iter().any(|key| key.len() < KEY_CHARS_MIN) {
            return Err(format!("a key has fewer than {KEY_CHARS_MIN} characters"));
        }
        Ok(Self(keys.into()))
    }

    /// Returns the state with a seal, as text.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn seal(&self, state: &PersistedState) -> Result<String, String> {
        let mut record = serde_json::to_value(state).map_err(|error| error.to_string())?;
        let first = self.0.first().ok_or("there is no key")?;
        let seal = mac(first, &record)?.finalize().into_bytes();
        record[SEAL] = hex::encode(seal).into();
        Ok(record.to_string())
    }

    /// Reads a state, and returns whether its seal is valid. Without a valid seal, its decisions
    /// are removed.
    ///
    /// # Errors
    /// If the text is not a state.
    pub fn open(&self, text: Option<&str>) -> Result<(PersistedState, bool), String> {
        let state = read_persisted_state(text)?;
        let Some(text) = text else { return Ok((state, true)) };
        let record: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if self.is_sealed(&record) {
            Ok((state, true))
        } else {
            Ok((state.without_decisions(), false))
        }
    }

    fn is_sealed(&self, record: &Json) -> bool {
        let digits = record.get(SEAL).and_then(Json::as_str).unwrap_or_default();
        let Ok(seal) = hex::decode(digits) else { return false };
        let verifies =
            |key: &Vec<u8>| mac(key, record).is_ok_and(|mac| mac.verify_slice(&seal).is_ok());
        self.0.iter().any(verifies)
    }
}

fn mac(key: &[u8], record: &Json) -> Result<Hmac<Sha256>, String> {
    let mut sealed = record.clone();
    if let Some(object) = sealed.as_object_mut() {
        object.remove(SEAL);
        object.remove(APPLIED);
    }
    let bytes = canonical::compact(&sealed).map_err(|error| error.to_string())?;
    let mac = Hmac::<Sha256>::new_from_slice(key).map_err(|error| error.to_string())?;
    Ok(mac.chain_update(b"fleetwright controller state 1\0").chain_update(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::apply_record::with_applied;
    use crate::controller::mass_removal::FleetBaseline;
    use crate::controller::persisted_state::ApprovalRecord;
    use crate::controller::status::Suspension;
    use crate::testing::controller::at;

    fn keys(text: &str) -> StateKeys {
        StateKeys::parse(text).expect("keys")
    }

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";

    fn suspension(until: i64) -> Suspension {
        Suspension { reason: "r".into(), until: Some(at(until)), since: at(0), by: "eve".into() }
    }

    #[test]
    fn forged_decisions_do_not_count_and_restrictions_do() {
        let mut state = PersistedState { suspended: Some(suspension(60)), ..Default::default() };
        state.latch("mass-removal", "much".to_owned(), Some(3), at(0));
        let keys = keys(OLD);
        let sealed = keys.seal(&state).expect("sealed");
        assert_eq!(keys.open(Some(&sealed)), Ok((state.clone(), true)));
        let forged = |change: fn(&mut PersistedState)| {
            let mut record: Json = serde_json::from_str(&sealed).expect("JSON");
            let mut state = state.clone();
            change(&mut state);
            let seal = record[SEAL].take();
            record = serde_json::to_value(&state).expect("JSON");
            record[SEAL] = seal;
            keys.open(Some(&record.to_string())).expect("read")
        };
        let (read, is_sealed) = forged(|state| state.break_glass = Some(suspension(9_000)));
        assert_eq!((read.break_glass, is_sealed), (None, false));
        let (read, _) = forged(|state| {
            state.approvals.push(ApprovalRecord::new("sha256:ab".into(), "eve".into(), at(0)));
        });
        assert!(read.approvals.is_empty());
        let (read, _) = forged(|state| state.confirmed_removals.push("i-1".into()));
        assert!(read.confirmed_removals.is_empty());
        assert!(read.suspended.is_some() && read.breakers.len() == 1, "restrictions count");
        let (read, _) = forged(|state| state.served_commit = Some("a".into()));
        assert_eq!(read.served_commit, None);
        // With it, a commit would explain a mass removal.
        let (read, _) = forged(|state| {
            let commit = "another".to_owned();
            state.baseline = Some(FleetBaseline { commit, pods: 900, is_delivered: true });
        });
        assert_eq!(read.baseline, None);
        // A state without a seal is a state of anyone.
        let plain = serde_json::to_string(&state).expect("JSON");
        assert!(keys.open(Some(&plain)).is_ok_and(|(_, is_sealed)| !is_sealed));
        assert_eq!(keys.open(None), Ok((PersistedState::default(), true)));
    }

    #[test]
    fn apply_without_a_key_keeps_the_seal_valid() {
        let state = PersistedState { break_glass: Some(suspension(60)), ..Default::default() };
        let keys = keys(OLD);
        let sealed = keys.seal(&state).expect("sealed");
        let plan = crate::testing::sample_plan::nothing();
        let marked = with_applied(Some(&sealed), &plan, at(1), true);
        let (read, is_sealed) = keys.open(Some(&marked)).expect("read");
        assert!(is_sealed && read.break_glass.is_some() && read.ci_apply.is_some());
    }

    #[test]
    fn keys_rotate_and_are_hidden() {
        let state = PersistedState { break_glass: Some(suspension(60)), ..Default::default() };
        let sealed = keys(OLD).seal(&state).expect("sealed");
        assert!(keys(&format!("{NEW}\n{OLD}\n")).open(Some(&sealed)).is_ok_and(|(_, ok)| ok));
        assert!(keys(NEW).open(Some(&sealed)).is_ok_and(|(_, ok)| !ok));
        assert!(!format!("{:?}", keys(OLD)).contains("0123"));
        for text in ["", "short", &format!("{OLD}\n{NEW}\n{OLD}")] {
            let error = StateKeys::parse(text).expect_err("refused");
            assert!(!error.contains("0123"), "{error}");
        }
    }
}
