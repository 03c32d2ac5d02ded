//! References of kustomize to files outside of the repository.
//!
//! The forms are those of `kubectl kustomize`: a URL of a file, or a Git repository with a directory
//! and a revision (`https://HOST/ORG/REPO//DIRECTORY?ref=REVISION`).

use super::chart_index::ChartDependency;
use crate::model::desired::{ExternalSource, SourceKind};
use crate::model::printable_url::printable_url;

/// A file or directory outside of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteReference {
    /// The source that contains it.
    pub source: ExternalSource,
    /// Path in the source; empty for its root.
    pub path: String,
}

/// Parameters of the URL of a file that choose its content.
const FILE_PARAMETERS: [&str; 5] = ["", "ref", "ref_type", "version", "raw"];

/// Returns the reference that `text` denotes; `None` if kustomize would fetch it in another way.
pub fn parse_remote_reference(text: &str) -> Option<RemoteReference> {
    let text = text.strip_prefix("git::").unwrap_or(text);
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let is_http = address.starts_with("https://") || address.starts_with("http://");
    let after_scheme = address.split_once("://").map_or(address, |(_, rest)| rest);
    let is_manifest = [".yaml", ".yml", ".json"].iter().any(|end| address.ends_with(end));
    let is_repository = after_scheme.contains("//") || address.contains(".git/");
    if is_http && is_manifest && !is_repository {
        let path = address.rsplit('/').next().unwrap_or_default().to_owned();
        let version = String::new();
        // Any other parameter may be a token, which the lock file must not hold.
        let is_known = |pair: &str| {
            FILE_PARAMETERS.contains(&pair.split_once('=').map_or(pair, |(name, _)| name))
        };
        let query = query.split('#').next().unwrap_or_default();
        if !query.split('&').all(is_known) {
            return None;
        }
        let separator = if query.is_empty() { "" } else { "?" };
        let url = format!("{}{separator}{query}", printable_url(address));
        let source = ExternalSource { kind: SourceKind::File, url, name: String::new(), version };
        return Some(RemoteReference { source, path });
    }
    let value = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, value)| *name == key && !value.is_empty()).map(|(_, value)| value)
    };
    let revision = value("ref").or_else(|| value("version")).unwrap_or("HEAD");
    let (url, path) = split_repository(address)?;
    let path = path.trim_matches('/').to_owned();
    Some(RemoteReference { source: git_source(&url, revision), path })
}

/// Returns the source of a Git repository at `revision`.
pub(super) fn git_source(url: &str, revision: &str) -> ExternalSource {
    ExternalSource {
        kind: SourceKind::Git,
        url: printable_url(url),
        name: String::new(),
        version: if revision.is_empty() { "HEAD" } else { revision }.to_owned(),
    }
}

/// Returns the source of a chart in a repository. URLs that begin with `oci://` are registries.
pub(super) fn chart_source(repository: &str, chart: &str, version: &str) -> ExternalSource {
    let version = if version.is_empty() { "*" } else { version }.to_owned();
    let url = printable_url(repository);
    let url = url.trim_end_matches('/').to_owned();
    if url.starts_with("oci://") {
        let url = if chart.is_empty() { url } else { format!("{url}/{chart}") };
        return ExternalSource { kind: SourceKind::Oci, url, name: String::new(), version };
    }
    ExternalSource { kind: SourceKind::Helm, url, name: chart.to_owned(), version }
}

/// Returns the source of a dependency of a chart; `None` if its repository is no URL.
pub fn dependency_source(dependency: &ChartDependency) -> Option<ExternalSource> {
    let ChartDependency { name, repository, version } = dependency;
    let is_url = ["https://", "http://", "oci://"].iter().any(|s| repository.starts_with(s));
    is_url.then(|| chart_source(repository, name, version))
}

/// Splits an address into the URL of a repository and a path in it.
fn split_repository(address: &str) -> Option<(String, &str)> {
    let address = if let Some(rest) = address.strip_prefix("github.com:") {
        return split_repository_path("git@github.com:", rest);
    } else if address.starts_with("github.com/") {
        return split_repository_path("https://github.com/", address.strip_prefix("github.com/")?);
    } else {
        address
    };
    if let Some((scheme, rest)) = address.split_once("://") {
        let known = ["https", "http", "ssh"].contains(&scheme);
        let (host, path) = rest.split_once('/')?;
        return known
            .then(|| split_repository_path(&format!("{scheme}://{host}/"), path))
            .flatten();
    }
    // `git@host:path` is short for `ssh://git@host/path`.
    let (host, path) = address.split_once(':')?;
    let is_scp = host.contains('@') && !host.contains('/');
    is_scp.then(|| split_repository_path(&format!("{host}:"), path)).flatten()
}

fn split_repository_path<'a>(host: &str, path: &'a str) -> Option<(String, &'a str)> {
    let url = |repository: &str| format!("{host}{repository}");
    if let Some((repository, directory)) = path.split_once("//") {
        return Some((url(repository), directory));
    }
    if let Some(end) = path.find(".git/").map(|at| at + 4) {
        return Some((url(&path[..end]), &path[end..]));
    }
    if path.strip_suffix(".git").is_some() {
        return Some((url(path), ""));
    }
    // Azure DevOps has the name of the repository after `_git`; others after the organization.
    let azure = path.split('/').position(|part| part == "_git").map(|at| at + 2);
    let parts = azure.unwrap_or(2);
    let end = path.match_indices('/').nth(parts - 1).map_or(path.len(), |(at, _)| at);
    let repository = &path[..end];
    let is_complete = repository.split('/').filter(|part| !part.is_empty()).count() >= parts;
    is_complete.then(|| (url(repository), &path[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_kustomize_are_parsed() {
        for (text, url, version, path) in [
            ("https://github.com/o/r//a/b?ref=v1", "https://github.com/o/r", "v1", "a/b"),
            ("github.com/o/r/a/b?ref=v1", "https://github.com/o/r", "v1", "a/b"),
            ("github.com/o/r?timeout=90s&ref=v1", "https://github.com/o/r", "v1", ""),
            ("https://h/o/r.git/a?version=1", "https://h/o/r.git", "1", "a"),
            ("git::https://h/o/r.git", "https://h/o/r.git", "HEAD", ""),
            ("git@github.com:o/r.git//a?ref=x", "git@github.com:o/r.git", "x", "a"),
            ("ssh://git@h:22/o/r//a", "ssh://git@h:22/o/r", "HEAD", "a"),
            ("https://me:secret@h/o/r//a", "https://h/o/r", "HEAD", "a"),
            (
                "https://dev.azure.com/o/p/_git/r/a?ref=v",
                "https://dev.azure.com/o/p/_git/r",
                "v",
                "a",
            ),
        ] {
            let found = parse_remote_reference(text).expect(text);
            assert_eq!((found.source.url.as_str(), found.path.as_str()), (url, path), "{text}");
            assert_eq!((found.source.kind, &*found.source.version), (SourceKind::Git, version));
        }
        let file = parse_remote_reference("https://h/o/r/v1/install.yaml").expect("a file");
        assert_eq!((file.source.kind, &*file.path), (SourceKind::File, "install.yaml"));
        for text in
            ["gh:o/r", "s3::https", "ftp://h/o/r", "https://h", "base", "https://h/a.yaml?token=x"]
        {
            assert_eq!(parse_remote_reference(text), None, "{text}");
        }
    }

    #[test]
    fn sources_hold_no_credentials() {
        let reference = |text: &str| parse_remote_reference(text).expect(text).source;
        for source in [
            reference("https://me:SECRET@h/o/r//a?token=SECRET"),
            reference("https://me:SECRET@h/a.yaml?ref=v1#SECRET"),
            git_source("https://me:SECRET@h/r?token=SECRET", "v1"),
            chart_source("https://me:SECRET@h/c/?token=SECRET", "redis", "1"),
            chart_source("oci://me:SECRET@h/c?token=SECRET", "redis", "1"),
        ] {
            assert!(!format!("{source:?}").contains("SECRET"), "{source:?}");
        }
        let file = reference("https://h/a.yaml?ref=v1&raw");
        assert_eq!(file.url, "https://h/a.yaml?ref=v1&raw", "they choose the content");
        assert_eq!(file.to_string(), "https://h/a.yaml");
    }

    #[test]
    fn charts_of_registries_are_oci_sources() {
        let chart = chart_source("oci://h/charts/", "redis", "");
        assert_eq!((&*chart.url, &*chart.name, &*chart.version), ("oci://h/charts/redis", "", "*"));
        let chart = chart_source("https://me:x@h/charts/", "redis", "1.x");
        assert_eq!((&*chart.url, &*chart.name), ("https://h/charts", "redis"));
    }
}
