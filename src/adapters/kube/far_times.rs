//! Times beyond the range of this program. An API server accepts each time up to the year 9999.

use serde_json::Value as Json;

/// The time that replaces later ones, in the precision of the API.
const LATEST: &str = "9999-12-30T21:00:00Z";

/// Replaces each later time of an object. One of them would make the whole object unreadable.
pub(super) fn clamp_times(object: &mut Json) {
    let mut open = vec![object];
    while let Some(value) = open.pop() {
        match value {
            Json::String(text) if is_later(text) => LATEST.clone_into(text),
            Json::Array(items) => open.extend(items),
            Json::Object(entries) => open.extend(entries.values_mut()),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
    }
}

/// Returns true for a time in UTC after [`LATEST`], with or without a fraction of a second.
fn is_later(text: &str) -> bool {
    text.starts_with("9999-12-3")
        && text.ends_with('Z')
        && text.as_bytes().get(10) == Some(&b'T')
        && text > LATEST
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn late_times_are_clamped_and_text_stays() {
        let mut object = json!({ "status": { "startTime": "9999-12-31T23:59:59Z", "all": [
            "9999-12-31T23:59:59.999999Z", "9999-12-30T20:59:59Z", "9999-12-31", "9999-12-3x",
        ] } });
        clamp_times(&mut object);
        let status = &object["status"];
        assert_eq!(status["startTime"], LATEST);
        assert_eq!(
            status["all"],
            json!([LATEST, "9999-12-30T20:59:59Z", "9999-12-31", "9999-12-3x"])
        );
        assert!(LATEST.parse::<Timestamp>().is_ok());
    }
}
