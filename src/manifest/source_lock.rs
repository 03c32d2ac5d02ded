//! The lock file of external sources. `sources update` writes it, and plans read it.

use std::collections::BTreeSet;

use crate::model::desired::{
    LockedSource, Problem, SOURCE_LOCK_FILE, SOURCE_LOCK_FORMAT, SourceLock, Tree,
};
use crate::model::ids::Origin;

/// Reads the lock file at the root of `tree`; empty if there is none.
///
/// An unreadable file is an error, because the plan would not use the sources that were reviewed.
pub fn read_source_lock(tree: &Tree) -> (Vec<LockedSource>, Option<Problem>) {
    let Some(file) = tree.files.iter().find(|file| &*file.path == SOURCE_LOCK_FILE) else {
        return (Vec::new(), None);
    };
    let error = |line, message| {
        let problem = Problem::error(Origin { file: file.path.clone(), line }, "Lock", message)
            .hint("restore it from Git, or remove it and run `fleetwright sources update`");
        (Vec::new(), Some(problem))
    };
    let bytes = match &file.content {
        Ok(bytes) => bytes,
        Err(why) => return error(0, format!("cannot be read: {why}")),
    };
    let lock: SourceLock = match serde_json::from_slice(bytes) {
        Ok(lock) => lock,
        Err(why) => {
            let line = u32::try_from(why.line()).unwrap_or(0);
            return error(line, format!("is not a file that `sources update` writes: {why}"));
        }
    };
    if lock.format_version != SOURCE_LOCK_FORMAT {
        let found = lock.format_version;
        let message = format!("has format {found}, but this version reads {SOURCE_LOCK_FORMAT}");
        return error(1, message);
    }
    let mut seen = BTreeSet::new();
    for locked in &lock.sources {
        let source = locked.source();
        if !is_digest(&locked.digest) {
            return error(0, format!("{source} has no SHA-256 digest"));
        }
        if !seen.insert(source.clone()) {
            return error(0, format!("names {source} twice"));
        }
    }
    (lock.sources, None)
}

fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    digits.len() == 64 && digits.chars().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{ExternalSource, SourceKind, TreeFile};

    fn read_from(text: &str) -> (Vec<LockedSource>, Option<Problem>) {
        let content = Ok(text.as_bytes().into());
        let files = vec![TreeFile { path: SOURCE_LOCK_FILE.into(), content }];
        read_source_lock(&Tree { files })
    }

    #[test]
    fn a_written_lock_is_read_and_a_broken_one_is_an_error() {
        let source = ExternalSource {
            kind: SourceKind::Helm,
            url: "https://charts.example.com".to_owned(),
            name: "redis".to_owned(),
            version: "19.x".to_owned(),
        };
        let digest = format!("sha256:{}", "0a".repeat(32));
        let locked = LockedSource::new(source, "19.5.2".to_owned(), digest.clone());
        let lock = SourceLock::new(vec![locked.clone()]);
        let text = serde_json::to_string_pretty(&lock).expect("JSON");
        assert_eq!(read_from(&text), (vec![locked.clone()], None));
        let twice = SourceLock::new(vec![locked.clone(), locked]);
        let twice = serde_json::to_string(&twice).expect("JSON");
        for (text, expected) in [
            (text.replace("\"format_version\": 1", "\"format_version\": 2"), "has format 2"),
            (text.replace(&digest, "sha256:../../x"), "has no SHA-256 digest"),
            (twice, "names chart redis 19.x of https://charts.example.com twice"),
            ("{".to_owned(), "is not a file that `sources update` writes"),
        ] {
            let (sources, problem) = read_from(&text);
            let message = problem.expect("a problem").message;
            assert!(sources.is_empty() && message.contains(expected), "{message}");
        }
    }
}
