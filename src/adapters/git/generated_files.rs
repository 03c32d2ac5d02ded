//! Detects files that this program wrote: plans, worlds, approvals, receipts and records.
//!
//! Users often run `plan --world sim:world --out p.json` inside the repository. If those files were
//! input, saving a plan would change the tree that it was made from.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Keys that every plan and world contains, and that every approval and receipt contains.
const MARKERS: [&[u8]; 2] = [b"\"format_version\"", b"\"plan_id\""];

/// The keys that distinguish our files from other JSON.
#[derive(Deserialize)]
struct GeneratedFileKeys {
    format_version: Option<IgnoredAny>,
    plan_id: Option<IgnoredAny>,
    approvals: Option<IgnoredAny>,
    outcomes: Option<IgnoredAny>,
    verdict: Option<IgnoredAny>,
    resource_changes: Option<IgnoredAny>,
    capacity: Option<IgnoredAny>,
    taken_at: Option<IgnoredAny>,
    sources: Option<IgnoredAny>,
    kind: Option<IgnoredAny>,
    kept: Option<IgnoredAny>,
}

/// Returns whether the file at `path` is a plan, a world, approvals, a receipt or a controller
/// record.
pub(super) fn is_generated_file(path: &[u8], content: &[u8]) -> bool {
    // The markers are searched first, so that most JSON need not be parsed.
    let has = |mark: &&[u8]| content.windows(mark.len()).any(|window| window == *mark);
    if !path.ends_with(b".json") || !MARKERS.iter().any(has) {
        return false;
    }
    let Ok(keys) = serde_json::from_slice::<GeneratedFileKeys>(content) else { return false };
    let GeneratedFileKeys {
        format_version,
        plan_id,
        approvals,
        outcomes,
        verdict,
        resource_changes,
        capacity,
        taken_at,
        sources,
        kind,
        kept,
    } = keys;
    let is_versioned = format_version.is_some();
    let is_plan = is_versioned && resource_changes.is_some() && capacity.is_some();
    let is_world = is_versioned && taken_at.is_some() && sources.is_some();
    let is_receipt = plan_id.is_some() && outcomes.is_some() && verdict.is_some();
    let is_record = is_versioned && kept.is_some();
    kind.is_none() && (is_plan || is_world || is_receipt || is_record || approvals.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_worlds_are_generated_files() {
        let plan = br#"{"format_version":"1.0","resource_changes":[],"capacity":{}}"#;
        let world = br#"{"sources":{},"taken_at":"x","format_version":"1.0"}"#;
        assert!(is_generated_file(b"p.json", plan) && is_generated_file(b"w/world.json", world));
        let approvals = br#"{"approvals":[{"plan_id":"x"}]}"#;
        let receipt = br#"{"plan_id":"x","outcomes":[],"verdict":"applied"}"#;
        assert!(is_generated_file(b"a.json", approvals) && is_generated_file(b"r.json", receipt));
        assert!(is_generated_file(
            b"world/controller.json",
            br#"{"format_version":"1.0","kept":{}}"#
        ));
        assert!(!is_generated_file(b"p.yaml", plan), "what is no JSON is never written");
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
            assert!(!is_generated_file(b"x.json", input), "{}", String::from_utf8_lossy(input));
        }
    }
}
