//! The files of a repository together with those of its external sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::SourceCache;
use super::archive::{ArchiveFiles, ArchiveLimits, unpack};
use crate::manifest::parse_remote_reference;
use crate::manifest::ports::RepositoryFiles;
use crate::model::desired::{
    ExternalSource, ExternalSources, LockedSource, SourceKind, SourceRequests, Tree, TreeFile,
    is_external,
};

/// Maximum bytes of all external sources of a tree.
const TOTAL_BYTES_MAX: u64 = 2 << 30;

/// A repository in which external sources appear as directories.
pub struct MountedFiles<'a> {
    repository: &'a (dyn RepositoryFiles + Sync),
    paths: BTreeSet<String>,
    files: ArchiveFiles,
    sources: ExternalSources,
    /// External sources that renderings need.
    requested: Mutex<SourceRequests>,
}

impl std::fmt::Debug for MountedFiles<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountedFiles").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl<'a> MountedFiles<'a> {
    /// Adds the content of `locked` that `cache` holds to the files of `repository`.
    pub fn new(
        repository: &'a (dyn RepositoryFiles + Sync),
        locked: &[LockedSource],
        cache: Option<&SourceCache>,
    ) -> Self {
        let (mut files, mut bytes) = (ArchiveFiles::new(), 0_u64);
        let mut states = BTreeMap::new();
        for locked in locked {
            let source = locked.source();
            let state = load(locked, cache).and_then(|content| {
                let size: usize = content.values().map(|content| content.len()).sum();
                bytes = bytes.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
                if bytes > TOTAL_BYTES_MAX {
                    return Err(format!("all sources have more than {TOTAL_BYTES_MAX} bytes"));
                }
                let directory = locked.directory();
                let inside = |(path, content)| (format!("{directory}/{path}"), content);
                files.extend(content.into_iter().map(inside));
                Ok(directory)
            });
            let state = state.map_err(|why| format!("{source} {why}"));
            states.insert(source, state);
        }
        let own = repository.paths().iter().filter(|path| !is_external(path));
        let paths = own.chain(files.keys()).cloned().collect();
        let sources = ExternalSources { states };
        Self { repository, paths, files, sources, requested: Mutex::default() }
    }

    /// Returns the external sources that are available, and why others are not.
    pub fn sources(&self) -> &ExternalSources {
        &self.sources
    }

    /// Returns `tree` with the manifests of the external sources.
    pub fn extend_tree(&self, tree: &Tree) -> Tree {
        let own = tree.files.iter().filter(|file| !is_external(&file.path)).cloned();
        let is_manifest = |path: &str| crate::adapters::git::is_manifest_name(path.as_bytes());
        let external = self.files.iter().filter(|(path, _)| is_manifest(path));
        let external = external.map(|(path, content)| TreeFile {
            path: path.as_str().into(),
            content: Ok(Arc::clone(content)),
        });
        let mut files: Vec<TreeFile> = own.chain(external).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { files }
    }

    /// Returns the external sources that renderings needed so far.
    pub fn requested(&self) -> SourceRequests {
        self.requested.lock().map(|all| all.clone()).unwrap_or_default()
    }
}

/// Returns the files of a source, relative to its directory.
fn load(locked: &LockedSource, cache: Option<&SourceCache>) -> Result<ArchiveFiles, String> {
    let cache = cache.ok_or("needs a cache directory; set HOME or XDG_CACHE_HOME")?;
    let content = cache.get(&locked.digest)?;
    if locked.kind != SourceKind::File {
        return unpack(&content, ArchiveLimits::DEFAULT);
    }
    let name = parse_remote_reference(&locked.url).map(|reference| reference.path);
    let name = name.filter(|name| !name.is_empty()).ok_or("is not the URL of a manifest")?;
    Ok([(name, content.into())].into())
}

impl RepositoryFiles for MountedFiles<'_> {
    fn paths(&self) -> &BTreeSet<String> {
        &self.paths
    }

    fn content(&self, path: &str) -> Result<Arc<[u8]>, String> {
        match self.files.get(path) {
            Some(content) => Ok(Arc::clone(content)),
            None if is_external(path) => Err("no such file".to_owned()),
            None => self.repository.content(path),
        }
    }

    fn is_changed(&self, path: &str) -> bool {
        !is_external(path) && self.repository.is_changed(path)
    }

    fn external_directory(&self, source: &ExternalSource) -> Result<String, String> {
        if let Ok(mut requested) = self.requested.lock() {
            requested.insert(source.clone());
        }
        self.sources.directory(source)
    }
}
