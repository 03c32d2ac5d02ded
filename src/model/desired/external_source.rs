//! Sources of manifests outside of the repository, and the lock file that pins them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::printable_url::printable_url;

/// File at the root of the repository that pins external sources.
pub const SOURCE_LOCK_FILE: &str = "fleetwright.lock.json";

/// Format of the lock file that this version reads and writes.
pub const SOURCE_LOCK_FORMAT: u32 = 1;

/// Directory of the tree below which the files of external sources appear.
pub const EXTERNAL_DIRECTORY: &str = ".fleetwright/sources";

/// Beginning of a revision that is a range of tags, as `ref.semver` of a Flux `GitRepository`.
pub const TAG_RANGE_PREFIX: &str = "semver:";

/// Number of digits of a digest in the directory of a source.
const DIRECTORY_DIGITS: usize = 12;

/// Kind of an external source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Chart of a Helm repository with an `index.yaml`.
    Helm,
    /// Chart or artifact of an OCI registry.
    Oci,
    /// Files of a Git repository.
    Git,
    /// One file at a URL.
    File,
}

/// A source outside of the repository, as an object of the repository names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExternalSource {
    /// Kind.
    pub kind: SourceKind,
    /// URL without credentials.
    pub url: String,
    /// Name of the chart in a Helm repository; empty for other kinds.
    pub name: String,
    /// Requested version: a version or range of a chart, a tag, or a revision; empty for a file.
    pub version: String,
}

impl fmt::Display for ExternalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, url, name, version } = self;
        let url = printable_url(url);
        match kind {
            SourceKind::Helm => write!(f, "chart {name} {version} of {url}"),
            SourceKind::Oci => write!(f, "{url} {version}"),
            SourceKind::Git => write!(f, "revision {version} of {url}"),
            SourceKind::File => write!(f, "{url}"),
        }
    }
}

/// A pinned external source: one entry of the lock file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedSource {
    /// Kind.
    pub kind: SourceKind,
    /// URL without credentials.
    pub url: String,
    /// Name of the chart in a Helm repository; empty for other kinds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Version as the repository requests it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub requested: String,
    /// Version of a chart, tag of an artifact, or commit; empty for a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// SHA-256 of the content, as `sha256:` and 64 hex digits.
    pub digest: String,
}

impl LockedSource {
    /// Returns the entry of `source` at `version` with the content of `digest`.
    pub fn new(source: ExternalSource, version: String, digest: String) -> Self {
        let ExternalSource { kind, url, name, version: requested } = source;
        Self { kind, url, name, requested, version, digest }
    }

    /// Returns the source as the repository names it.
    pub fn source(&self) -> ExternalSource {
        let Self { kind, url, name, requested, .. } = self;
        let (url, name, version) = (url.clone(), name.clone(), requested.clone());
        ExternalSource { kind: *kind, url, name, version }
    }

    /// Returns the directory of the tree in which its files appear.
    pub fn directory(&self) -> String {
        let last = self.url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let name = if self.name.is_empty() { last } else { &self.name };
        let name = name.rsplit(':').next().unwrap_or_default().trim_end_matches(".git");
        let version = match self.kind {
            SourceKind::Git => self.version.get(..DIRECTORY_DIGITS).unwrap_or(&self.version),
            SourceKind::Helm | SourceKind::Oci | SourceKind::File => &self.version,
        };
        let digits = self.digest.trim_start_matches("sha256:");
        let digits = digits.get(..DIRECTORY_DIGITS).unwrap_or(digits);
        let parts = [name, version, digits].map(plain_name);
        let parts: Vec<&str> =
            parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        format!("{EXTERNAL_DIRECTORY}/{}", parts.join("-"))
    }
}

/// Returns `text` with letters that are plain in a path. It never begins with a dot.
fn plain_name(text: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' }
    };
    text.chars().map(plain).collect::<String>().trim_matches(['.', '-']).to_owned()
}

/// The lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceLock {
    /// Format of the file.
    pub format_version: u32,
    /// Pinned sources, sorted.
    pub sources: Vec<LockedSource>,
}

impl SourceLock {
    /// Returns the lock of `sources`.
    pub fn new(mut sources: Vec<LockedSource>) -> Self {
        sources.sort();
        Self { format_version: SOURCE_LOCK_FORMAT, sources }
    }
}

/// The external sources of a tree: the directory of each, or the reason why it is not available.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExternalSources {
    /// Directory or reason, by source.
    pub states: BTreeMap<ExternalSource, Result<String, String>>,
}

impl ExternalSources {
    /// Returns the directory of the tree that contains the files of `source`.
    ///
    /// # Errors
    /// Returns the reason why it is not available, with the remedy.
    pub fn directory(&self, source: &ExternalSource) -> Result<String, String> {
        self.states.get(source).cloned().unwrap_or_else(|| {
            Err(format!("{source} is not in {SOURCE_LOCK_FILE}; run `fleetwright sources update`"))
        })
    }
}

/// External sources that a tree requests.
pub type SourceRequests = BTreeSet<ExternalSource>;

/// Returns whether `path` belongs to an external source.
pub fn is_external(path: &str) -> bool {
    path.strip_prefix(EXTERNAL_DIRECTORY).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(kind: SourceKind, url: &str, name: &str, version: &str) -> LockedSource {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        LockedSource {
            kind,
            url: url.to_owned(),
            name: name.to_owned(),
            requested: String::new(),
            version: version.to_owned(),
            digest,
        }
    }

    #[test]
    fn directories_are_plain_names_below_their_parent() {
        for (source, expected) in [
            (locked(SourceKind::Helm, "https://c.io/x", "redis", "1.2.3+b"), "redis-1.2.3-b"),
            (locked(SourceKind::Oci, "oci://r.io/charts/app", "", "v1"), "app-v1"),
            (locked(SourceKind::Git, "git@h:o/base.git", "", &"f".repeat(40)), "base-ffffffffffff"),
            (locked(SourceKind::Helm, "https://c.io", "../../x", ".."), "x"),
            (locked(SourceKind::File, "https://h/a/install.yaml", "", ""), "install.yaml"),
        ] {
            let directory = source.directory();
            assert_eq!(directory, format!("{EXTERNAL_DIRECTORY}/{expected}-0123456789ab"));
            assert!(is_external(&format!("{directory}/Chart.yaml")));
        }
        assert!(!is_external("apps/.fleetwright/sources/x") && !is_external(EXTERNAL_DIRECTORY));
    }
}
