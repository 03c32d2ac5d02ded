//! Parsers of option values. An error names the expected form.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::cli::error::CliError;
use crate::model::ids::{Digest, PlanId};

/// Parses the time of `option`, if given.
pub(super) fn moment(option: &str, text: Option<&str>) -> Result<Option<Timestamp>, CliError> {
    let read = |text: &str| {
        text.parse().map_err(|error: jiff::Error| {
            CliError::new(error)
                .context(format!("{option} `{text}` is not a time"))
                .hint("write it as RFC 3339 does, with an offset: 2026-09-01T10:00:00Z")
        })
    };
    text.map(read).transpose()
}

/// Parses a non-negative duration such as `30s` or `1h 30m`.
pub(super) fn duration(option: &str, text: &str) -> Result<std::time::Duration, CliError> {
    let read = text.parse::<jiff::SignedDuration>().ok();
    read.and_then(|duration| std::time::Duration::try_from(duration).ok()).ok_or_else(|| {
        CliError::text(format!("{option} is `{text}`, not a duration"))
            .hint("write it as 30s, 5m or 1h30m")
    })
}

pub(super) fn digest(text: &str) -> Result<Digest, CliError> {
    if text.strip_prefix("sha256:").is_some_and(is_hash) {
        return Ok(text.into());
    }
    Err(CliError::text(format!("`{text}` is not the digest of a plan"))
        .hint("write sha256: and all 64 hex digits, as `show --format json` has them"))
}

pub(super) fn plan_id(text: &str) -> Result<PlanId, CliError> {
    if is_hash(text) {
        return Ok(text.into());
    }
    Err(CliError::text(format!("`{text}` is not the ID of a plan"))
        .hint("write all 64 hex digits of `plan_id`, as `show --format json` has them"))
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Parses `NAME=FILE`.
pub(super) fn named_file(text: &str) -> Result<(String, PathBuf), CliError> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(file)))
        }
        _ => Err(CliError::text(format!("--key `{text}` is not NAME=FILE"))
            .hint("name the approver and the file of the public key: --key alice=alice.pub")),
    }
}
