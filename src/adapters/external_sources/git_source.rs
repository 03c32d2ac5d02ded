//! Files of Git repositories, fetched by the installed `git` with the user's credentials.

use super::archive::{ArchiveFiles, ArchiveLimits, pack};
use super::cache::SOURCE_BYTES_MAX;
use super::download::{DownloadedSource, SourceDownloader, authority};
use crate::adapters::git::{CloneCache, RemoteRepository, RepositoryTree};
use crate::manifest::newest_in_range;
use crate::manifest::ports::RepositoryFiles;
use crate::model::desired::{ExternalSource, TAG_RANGE_PREFIX};

/// Default ports of schemes.
const PORTS: [(&str, u16); 3] = [("https", 443), ("http", 80), ("ssh", 22)];

/// Downloads the files of the commit `version`, or else of the requested revision.
pub(super) fn download(
    downloader: &SourceDownloader,
    source: &ExternalSource,
    version: Option<&str>,
) -> Result<DownloadedSource, String> {
    let url = downloader.mirror(&source.url);
    check_host(downloader, &url)?;
    let remote = RemoteRepository::parse(&url).ok_or("its URL names no Git repository")?;
    let cache = CloneCache::from_environment().map_err(|error| error.kind.to_string())?;
    let requested = version.unwrap_or(&source.version);
    let revision = match requested.strip_prefix(TAG_RANGE_PREFIX) {
        None => requested.to_owned(),
        Some(range) => {
            let tags = remote.source_tags().map_err(|error| error.kind.to_string())?;
            let newest = newest_in_range(range, tags.iter().map(String::as_str))?;
            format!("refs/tags/{}", newest.ok_or_else(|| format!("it has no tag in {range}"))?)
        }
    };
    let tree = remote.read_source(&revision, &cache).map_err(|error| error.kind.to_string())?;
    let commit = tree.base.commit.clone().ok_or("it has no commit")?;
    let content = pack(&files(&tree)?).map_err(|error| format!("it cannot be packed: {error}"))?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > SOURCE_BYTES_MAX {
        return Err(format!("its files have more than {SOURCE_BYTES_MAX} bytes"));
    }
    Ok(DownloadedSource { version: commit, content })
}

/// Checks the host: `git` connects by itself.
fn check_host(downloader: &SourceDownloader, url: &str) -> Result<(), String> {
    let (scheme, host) = match url.split_once("://") {
        Some(("file", _)) => return Err("scheme `file` is not downloaded from".to_owned()),
        Some((scheme, _)) => (scheme, authority(url)),
        None => ("ssh", url.split(':').next().unwrap_or_default()),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if scheme != "ssh" {
        downloader.rules.check_url(url)?;
    }
    // A proxy of the environment resolves names by itself.
    let is_proxied = ["https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy", "ALL_PROXY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if is_proxied && scheme != "ssh" {
        return Ok(());
    }
    let port = PORTS.iter().find(|(name, _)| *name == scheme).map_or(443, |(_, port)| *port);
    downloader.rules.check_host(host, port)
}

/// Returns all readable files. A manifest that cannot be read is an error; other files may be
/// pointers to content elsewhere.
fn files(tree: &RepositoryTree) -> Result<ArchiveFiles, String> {
    if let Some(file) = tree.tree.files.iter().find(|file| file.content.is_err()) {
        let why = file.content.as_ref().err().map_or("", String::as_str);
        return Err(format!("its file {} cannot be read: {why}", file.path));
    }
    let (mut files, mut bytes) = (ArchiveFiles::new(), 0_u64);
    let ArchiveLimits { entries, bytes: bytes_max } = ArchiveLimits::DEFAULT;
    for path in tree.files.paths() {
        let Ok(content) = tree.files.content(path) else { continue };
        bytes = bytes.saturating_add(u64::try_from(content.len()).unwrap_or(u64::MAX));
        files.insert(path.clone(), content);
        if bytes > bytes_max || files.len() > entries {
            return Err(format!("it has more than {entries} files or {bytes_max} bytes"));
        }
    }
    Ok(files)
}
