//! Authentication of the persisted state, which is an annotation of a lease that every apply may
//! write. See ADR 19.
//!
//! The seal is an HMAC over the state, the time of the seal and the lease. The mark of CI applies is
//! left out, because they have no key. Invariants: a sealed state counts in its own lease only; keys
//! are in no output. [`super::state_memory`] decides what a state without a valid seal, or with an
//! old one, may do.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use sha2::Sha256;

use super::apply_record::read_persisted_state;
use super::persisted_state::PersistedState;
use crate::plan::canonical;

/// Key of the record that holds the seal.
const SEAL: &str = "seal";

/// Keys of the seal: its time, and the authentication code.
const AT: &str = "at";
const CODE: &str = "code";

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

    /// Returns the state with a seal of `at` for the lease with the UID `lease`, as text.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn seal(
        &self,
        state: &PersistedState,
        at: Timestamp,
        lease: &str,
    ) -> Result<String, String> {
        let mut record = serde_json::to_value(state).map_err(|error| error.to_string())?;
        let first = self.0.first().ok_or("there is no key")?;
        record[SEAL] = json!({ AT: at });
        let code = mac(first, &record, lease)?.finalize().into_bytes();
        record[SEAL][CODE] = hex::encode(code).into();
        Ok(record.to_string())
    }

    /// Reads a state of the lease with the UID `lease`, and the time of its seal if that is valid.
    ///
    /// # Errors
    /// If the text is not a state.
    pub fn open(
        &self,
        text: &str,
        lease: &str,
    ) -> Result<(PersistedState, Option<Timestamp>), String> {
        let state = read_persisted_state(Some(text))?;
        let record: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let at = record[SEAL][AT].as_str().and_then(|at| at.parse().ok());
        Ok((state, at.filter(|_| self.is_sealed(&record, lease))))
    }

    fn is_sealed(&self, record: &Json, lease: &str) -> bool {
        let digits = record[SEAL][CODE].as_str().unwrap_or_default();
        let Ok(code) = hex::decode(digits) else { return false };
        let verifies = |key: &Vec<u8>| {
            mac(key, record, lease).is_ok_and(|mac| mac.verify_slice(&code).is_ok())
        };
        self.0.iter().any(verifies)
    }
}

fn mac(key: &[u8], record: &Json, lease: &str) -> Result<Hmac<Sha256>, String> {
    let mut sealed = record.clone();
    if let Some(object) = sealed.as_object_mut() {
        object.remove(APPLIED);
        if let Some(seal) = object.get_mut(SEAL).and_then(Json::as_object_mut) {
            seal.remove(CODE);
        }
    }
    let sealed = json!({ "lease": lease, "state": sealed });
    let bytes = canonical::compact(&sealed).map_err(|error| error.to_string())?;
    let mac = Hmac::<Sha256>::new_from_slice(key).map_err(|error| error.to_string())?;
    Ok(mac.chain_update(b"fleetwright controller state 2\0").chain_update(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::apply_record::with_applied;
    use crate::controller::status::Suspension;
    use crate::testing::controller::at;

    fn keys(text: &str) -> StateKeys {
        StateKeys::parse(text).expect("keys")
    }

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";

    fn state() -> PersistedState {
        let (reason, by) = ("r".to_owned(), "eve".to_owned());
        let break_glass = Suspension { reason, until: Some(at(60)), since: at(0), by };
        PersistedState { break_glass: Some(break_glass), ..Default::default() }
    }

    #[test]
    fn seal_covers_state_time_and_lease() {
        let keys = keys(OLD);
        let sealed = keys.seal(&state(), at(7), "u-1").expect("sealed");
        assert_eq!(keys.open(&sealed, "u-1"), Ok((state(), Some(at(7)))));
        // The lease of another cluster, or of an earlier lease with the same name.
        assert_eq!(keys.open(&sealed, "u-2"), Ok((state(), None)));
        for (path, value) in [
            ("/breakGlass/until", json!(at(9_000))),
            ("/seal/at", json!(at(8))),
            ("/seal/code", json!("00")),
            ("/seal", Json::Null),
            ("/served", json!("a")),
        ] {
            let mut record: Json = serde_json::from_str(&sealed).expect("JSON");
            *record.pointer_mut(path).expect(path) = value;
            let (_, at) = keys.open(&record.to_string(), "u-1").expect("read");
            assert_eq!(at, None, "{path}");
        }
        // A state without a seal is a state of anyone.
        let plain = serde_json::to_string(&state()).expect("JSON");
        assert_eq!(keys.open(&plain, "u-1"), Ok((state(), None)));
    }

    #[test]
    fn apply_without_a_key_keeps_the_seal_valid() {
        let keys = keys(OLD);
        let sealed = keys.seal(&state(), at(7), "u-1").expect("sealed");
        let plan = crate::testing::sample_plan::nothing();
        let marked = with_applied(Some(&sealed), &plan, at(1), true);
        let (read, sealed_at) = keys.open(&marked, "u-1").expect("read");
        assert!(sealed_at.is_some() && read.break_glass.is_some() && read.ci_apply.is_some());
    }

    #[test]
    fn keys_rotate_and_are_hidden() {
        let sealed = keys(OLD).seal(&state(), at(7), "").expect("sealed");
        let is_sealed = |keys: StateKeys| keys.open(&sealed, "").is_ok_and(|(_, at)| at.is_some());
        assert!(is_sealed(keys(&format!("{NEW}\n{OLD}\n"))));
        assert!(!is_sealed(keys(NEW)));
        assert!(!format!("{:?}", keys(OLD)).contains("0123"));
        for text in ["", "short", &format!("{OLD}\n{NEW}\n{OLD}")] {
            let error = StateKeys::parse(text).expect_err("refused");
            assert!(!error.contains("0123"), "{error}");
        }
    }
}
