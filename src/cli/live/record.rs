//! What the loop keeps with the lock of applies, as those write it who are not the loop.

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::plan::Plan;
use crate::reconcile::{Applied, Kept};

/// Returns what is kept, with the mark of an apply that ended then, and did everything or not. What else
/// is kept stays, whether or not this version knows it; what cannot be read gives way.
pub(super) fn applied(kept: Option<&str>, plan: &Plan, (at, whole): (Timestamp, bool)) -> String {
    let kept = kept.and_then(|text| serde_json::from_str(text).ok());
    let mut kept: Json = kept.filter(Json::is_object).unwrap_or_else(|| json!({}));
    let base = &plan.capacity.base;
    // As the loop names what it reads.
    let commit = base.commit.clone().filter(|_| !base.dirty).unwrap_or_else(|| base.tree.clone());
    kept["applied"] = json!(Applied { commit, at, whole });
    kept.to_string()
}

/// Reads what is kept; where nothing was, it is nothing.
pub(in crate::cli) fn read_kept(text: Option<&str>) -> Result<Kept, String> {
    let Some(text) = text else { return Ok(Kept::default()) };
    serde_json::from_str(text).map_err(|error| {
        format!("what the loop kept cannot be read ({error}); remove the annotation to begin anew")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_an_apply_leaves_everything_else_as_it_is() {
        let plan = crate::render::fixture::nothing();
        let at = Timestamp::UNIX_EPOCH;
        let of_later = r#"{"served":"a1","newerThanThis":{"x":1},"applied":null}"#;
        let text = applied(Some(of_later), &plan, (at, true));
        let kept: Json = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&kept["served"], &kept["newerThanThis"]["x"]), (&json!("a1"), &json!(1)));
        let kept = read_kept(Some(&text)).expect("reads");
        assert!(kept.applied.is_some_and(|applied| applied.whole));
        for broken in [None, Some("["), Some("[]")] {
            let text = applied(broken, &plan, (at, false));
            assert!(read_kept(Some(&text)).expect("reads").applied.is_some(), "{broken:?}");
        }
        assert!(read_kept(Some("{")).is_err_and(|why| why.contains("annotation")));
    }
}
