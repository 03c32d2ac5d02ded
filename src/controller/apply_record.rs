//! The controller state in the lease record, as applies outside the controller update it.

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::persisted_state::{CiApply, PersistedState};
use crate::plan::Plan;

/// Returns the record with the mark of an apply that ended at `at`. Other keys stay, including
/// unknown ones; an unreadable record is replaced.
pub fn with_applied(record: Option<&str>, plan: &Plan, at: Timestamp, complete: bool) -> String {
    let record = record.and_then(|text| serde_json::from_str(text).ok());
    let mut record: Json = record.filter(Json::is_object).unwrap_or_else(|| json!({}));
    let base = &plan.capacity.base;
    // The controller names uncommitted files the same way.
    let commit = base.commit.clone().filter(|_| !base.dirty).unwrap_or_else(|| base.tree.clone());
    record["applied"] = json!(CiApply { commit, at, complete });
    record.to_string()
}

/// Reads the persisted controller state; without a record it is empty.
///
/// # Errors
/// With the reason and the remedy, if the record is not a state.
pub fn read_persisted_state(text: Option<&str>) -> Result<PersistedState, String> {
    let Some(text) = text else { return Ok(PersistedState::default()) };
    serde_json::from_str(text).map_err(|error| {
        format!("cannot read the persisted controller state ({error}); to start over, remove the annotation and restart all replicas")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_mark_keeps_other_keys_of_the_record() {
        let plan = crate::testing::sample_plan::nothing();
        let at = Timestamp::UNIX_EPOCH;
        let of_later = r#"{"served":"a1","newerThanThis":{"x":1},"applied":null}"#;
        let text = with_applied(Some(of_later), &plan, at, true);
        let record: Json = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&record["served"], &record["newerThanThis"]["x"]), (&json!("a1"), &json!(1)));
        let record = read_persisted_state(Some(&text)).expect("reads");
        assert!(record.ci_apply.is_some_and(|applied| applied.complete));
        for broken in [None, Some("["), Some("[]")] {
            let text = with_applied(broken, &plan, at, false);
            assert!(
                read_persisted_state(Some(&text)).expect("reads").ci_apply.is_some(),
                "{broken:?}"
            );
        }
        assert!(read_persisted_state(Some("{")).is_err_and(|why| why.contains("annotation")));
    }
}
