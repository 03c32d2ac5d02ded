//! Tells files that this program wrote (plans, worlds) from files that it is to read.
//!
//! `plan --world sim:world --out p.json` inside the repository is what everybody types first. Were
//! those files part of the tree, saving a plan would change the tree that the plan was made from.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// What every plan and every world has.
const MARK: &[u8] = b"\"format_version\"";

/// The keys that tell a plan and a world from every other JSON.
#[derive(Deserialize)]
struct Keys {
    format_version: IgnoredAny,
    resource_changes: Option<IgnoredAny>,
    capacity: Option<IgnoredAny>,
    taken_at: Option<IgnoredAny>,
    sources: Option<IgnoredAny>,
    kind: Option<IgnoredAny>,
}

/// Returns whether the file is a plan or a world; `path` is its name.
pub(super) fn is_output(path: &[u8], content: &[u8]) -> bool {
    // The mark is looked for first, as most JSON of a repository need not be parsed then.
    if !path.ends_with(b".json") || !content.windows(MARK.len()).any(|window| window == MARK) {
        return false;
    }
    let Ok(keys) = serde_json::from_slice::<Keys>(content) else { return false };
    let Keys { format_version: IgnoredAny, resource_changes, capacity, taken_at, sources, kind } =
        keys;
    let is_plan = resource_changes.is_some() && capacity.is_some();
    let is_world = taken_at.is_some() && sources.is_some();
    kind.is_none() && (is_plan || is_world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_worlds_are_output_and_everything_else_is_input() {
        let plan = br#"{"format_version":"1.0","resource_changes":[],"capacity":{}}"#;
        let world = br#"{"sources":{},"taken_at":"x","format_version":"1.0"}"#;
        assert!(is_output(b"p.json", plan) && is_output(b"w/world.json", world));
        assert!(!is_output(b"p.yaml", plan), "what is no JSON is never written");
        for input in [
            &br#"{"kind":"List","items":[]}"#[..],
            br#"{"format_version":"1.0"}"#,
            br#"{"format_version":"1.0","taken_at":"x","sources":{},"kind":"Pod"}"#,
            br#"{"a":{"format_version":"1.0","taken_at":"x","sources":{}}}"#,
            br#"[{"format_version":"1.0","taken_at":"x","sources":{}}]"#,
            br#""format_version""#,
            b"\"format_version\" \xff",
            b"",
        ] {
            assert!(!is_output(b"x.json", input), "{}", String::from_utf8_lossy(input));
        }
    }
}
