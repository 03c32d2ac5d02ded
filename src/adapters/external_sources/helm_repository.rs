//! Charts of Helm repositories: an `index.yaml` and archives over HTTP.

use super::cache::{SOURCE_BYTES_MAX, content_digest};
use super::download::{DownloadedSource, SourceDownloader, join_url};
use crate::manifest::{ChartVersion, chart_versions, newest_in_range};
use crate::model::desired::ExternalSource;

/// Maximum bytes of an index. The largest known ones have 30 MB.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Downloads a chart at `version`, or else the newest one of the requested range.
pub(super) fn download(
    downloader: &SourceDownloader,
    source: &ExternalSource,
    version: Option<&str>,
) -> Result<DownloadedSource, String> {
    let base = downloader.mirror(&format!("{}/", source.url));
    let base = format!("{}/", base.trim_end_matches('/'));
    let index = join_url(&base, "index.yaml");
    let found = chart_versions(&read_index(downloader, &index)?, &source.name)?;
    let ChartVersion { version, url, digest } = select(&found, source, version)?;
    let url = downloader.mirror(&join_url(&index, url));
    let content = downloader.get(&url, SOURCE_BYTES_MAX)?;
    let actual = content_digest(&content);
    let listed = digest.as_deref().map(|digest| digest.trim_start_matches("sha256:"));
    if listed.is_some_and(|listed| format!("sha256:{listed}") != actual) {
        return Err("its content is not that of the index of the repository".to_owned());
    }
    Ok(DownloadedSource { version: version.clone(), content })
}

fn select<'v>(
    found: &'v [ChartVersion],
    source: &ExternalSource,
    version: Option<&str>,
) -> Result<&'v ChartVersion, String> {
    let versions = found.iter().map(|version| version.version.as_str());
    let selected = match version {
        Some(version) => versions.clone().find(|other| *other == version),
        None => newest_in_range(&source.version, versions)?,
    };
    let none = || {
        let wanted = version.unwrap_or(&source.version);
        format!("the repository has no version {wanted} of the chart")
    };
    let selected = selected.ok_or_else(none)?;
    found.iter().find(|version| version.version == selected).ok_or_else(none)
}

/// Returns the index at `url`. Charts of one repository share one download.
fn read_index(downloader: &SourceDownloader, url: &str) -> Result<Vec<u8>, String> {
    let closed = "the indexes are closed";
    if let Some(known) = downloader.indexes.lock().map_err(|_| closed)?.get(url) {
        return Ok(known.clone());
    }
    let index = downloader.get(url, INDEX_BYTES_MAX)?;
    downloader.indexes.lock().map_err(|_| closed)?.insert(url.to_owned(), index.clone());
    Ok(index)
}
