//! All files of a tree, read on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use git2::{Oid, Repository};

use super::io_reason;
use super::tree_limits::TreeLimits;
use crate::manifest::ports::RepositoryFiles;
use crate::model::desired::{ExternalSource, ExternalSources};

/// First line of a Git LFS pointer file.
const LFS_MARKER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Reason for an unreadable Git LFS pointer.
pub(super) const LFS_REASON: &str = "it is a pointer of Git LFS, and its content is elsewhere: run `git lfs pull`, or keep manifests out of LFS";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileLocation {
    /// A resolved file on disk below the root.
    Disk(PathBuf),
    /// An object of the repository.
    Object(Oid),
    /// The file cannot be read, with the reason.
    Unreadable(String),
}

/// The files of a tree, including files that are not manifests.
pub struct FileStore {
    paths: BTreeSet<String>,
    locations: BTreeMap<String, FileLocation>,
    /// Paths that differ from the commit.
    changed: BTreeSet<String>,
    /// The repository with the objects, or `None` for files on disk.
    repository: Option<Mutex<Repository>>,
    /// Maximum size of one file in bytes.
    file_bytes_max: u64,
}

impl FileStore {
    pub(super) fn from_disk(changed: BTreeSet<String>, limits: TreeLimits) -> Self {
        Self::new(None, changed, limits)
    }

    pub(super) fn from_commit(repository: Repository, limits: TreeLimits) -> Self {
        Self::new(Some(Mutex::new(repository)), BTreeSet::new(), limits)
    }

    fn new(
        repository: Option<Mutex<Repository>>,
        changed: BTreeSet<String>,
        limits: TreeLimits,
    ) -> Self {
        let file_bytes_max = limits.file_bytes;
        let (paths, locations) = (BTreeSet::new(), BTreeMap::new());
        Self { paths, locations, changed, repository, file_bytes_max }
    }

    pub(super) fn insert(&mut self, path: &str, location: FileLocation) {
        self.paths.insert(path.to_owned());
        self.locations.insert(path.to_owned(), location);
    }

    fn check_size(&self, bytes: u64) -> Result<(), String> {
        let most = self.file_bytes_max;
        if bytes <= most {
            return Ok(());
        }
        Err(format!("it has {bytes} bytes, and at most {most} are read"))
    }

    fn read_object(&self, id: Oid) -> Result<Vec<u8>, String> {
        let repository = self.repository.as_ref().ok_or("its repository is closed")?;
        let repository = repository.lock().map_err(|_| "its repository is closed")?;
        let git_message = |error: git2::Error| error.message().to_owned();
        let (size, _) =
            repository.odb().and_then(|odb| odb.read_header(id)).map_err(git_message)?;
        self.check_size(u64::try_from(size).unwrap_or(u64::MAX))?;
        Ok(repository.find_blob(id).map_err(git_message)?.content().to_vec())
    }
}

impl RepositoryFiles for FileStore {
    fn paths(&self) -> &BTreeSet<String> {
        &self.paths
    }

    fn content(&self, path: &str) -> Result<Arc<[u8]>, String> {
        let location = self.locations.get(path).ok_or("no such file")?;
        let content = match location {
            FileLocation::Disk(file) => {
                let git_message = |error: std::io::Error| io_reason(&error);
                let found = fs::symlink_metadata(file).map_err(git_message)?;
                if !found.is_file() {
                    return Err("it is not a regular file".to_owned());
                }
                self.check_size(found.len())?;
                let mut content = Vec::new();
                let file = File::open(file).map_err(git_message)?;
                file.take(self.file_bytes_max).read_to_end(&mut content).map_err(git_message)?;
                content
            }
            FileLocation::Object(id) => self.read_object(*id)?,
            FileLocation::Unreadable(reason) => return Err(reason.clone()),
        };
        if is_lfs_pointer(&content) {
            return Err(LFS_REASON.to_owned());
        }
        Ok(content.into())
    }

    fn is_changed(&self, path: &str) -> bool {
        self.changed.contains(path)
    }

    fn external_directory(&self, source: &ExternalSource) -> Result<String, String> {
        ExternalSources::default().directory(source)
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("paths", &self.paths.len()).finish_non_exhaustive()
    }
}

pub(super) fn is_lfs_pointer(content: &[u8]) -> bool {
    content.starts_with(LFS_MARKER)
}
