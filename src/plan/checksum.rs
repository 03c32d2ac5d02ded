//! The checksum of a plan's file: one flipped bit in it is found, wherever it is.
//!
//! Digest and identity hold what is decided; the rest of a file is there to be read by people and
//! policies, who must be able to trust it as well. The checksum is the SHA-256 of the file in its
//! canonical spelling, less the line of the checksum itself; a file that was spelled anew by another
//! tool keeps it.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::canonical;
use crate::ids::hex;

/// The line begins so; it stands before the line of the key that comes next in canonical order.
const LINE: &str = "\n  \"checksum\": \"";
const NEXT: &str = "\n  \"complete\":";

/// Returns the canonical spelling of a plan with its checksum.
pub(super) fn with_checksum(mut pretty: String) -> String {
    let line = format!("{LINE}{}\",", checksum(&[&pretty]));
    if let Some(at) = pretty.find(NEXT) {
        pretty.insert_str(at, &line);
    }
    pretty
}

/// Returns whether `stated` is the checksum of the plan that `text` spells.
pub(super) fn holds(text: &str, stated: &str) -> bool {
    is_of_lines(text, stated) || is_of_contents(text, stated)
}

/// Whether it is, for a file as this program writes it: nothing has to be spelled anew.
fn is_of_lines(text: &str, stated: &str) -> bool {
    let line = format!("{LINE}{stated}\",");
    text.split_once(&line).is_some_and(|(head, tail)| checksum(&[head, tail]) == stated)
}

fn is_of_contents(text: &str, stated: &str) -> bool {
    let Ok(Value::Object(mut plan)) = serde_json::from_str(text) else { return false };
    plan.remove("checksum");
    canonical::pretty(&plan).is_ok_and(|pretty| checksum(&[&pretty]) == stated)
}

fn checksum(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    format!("sha256:{}", hex(&hash.finalize()))
}
