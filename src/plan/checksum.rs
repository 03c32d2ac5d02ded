//! Checksum of a plan file, which detects any flipped bit.
//!
//! Digest and identity cover the decisions. Users and policies also rely on the rest of the file.
//! The checksum is the SHA-256 of the canonical file without the line of the checksum itself. The
//! checksum therefore stays valid if another tool reformats the file.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::canonical;

/// Start of the checksum line, which precedes the next key in canonical order.
const LINE: &str = "\n  \"checksum\": \"";
const NEXT: &str = "\n  \"complete\":";

/// Adds the checksum line to the canonical spelling of a plan.
pub(super) fn with_checksum(mut pretty: String) -> String {
    let line = format!("{LINE}{}\",", checksum(&[&pretty]));
    if let Some(at) = pretty.find(NEXT) {
        pretty.insert_str(at, &line);
    }
    pretty
}

/// Returns whether `stated` is the checksum of the plan in `text`.
pub(super) fn matches(text: &str, stated: &str) -> bool {
    matches_as_written(text, stated) || matches_contents(text, stated)
}

/// Checks a file in the canonical spelling without parsing it.
fn matches_as_written(text: &str, stated: &str) -> bool {
    let line = format!("{LINE}{stated}\",");
    text.split_once(&line).is_some_and(|(head, tail)| checksum(&[head, tail]) == stated)
}

fn matches_contents(text: &str, stated: &str) -> bool {
    let Ok(Value::Object(mut plan)) = serde_json::from_str(text) else { return false };
    plan.remove("checksum");
    canonical::pretty(&plan).is_ok_and(|pretty| checksum(&[&pretty]) == stated)
}

fn checksum(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}
