//! Every file of a tree, read when somebody asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use git2::{Oid, Repository};

use super::collect::{LFS, is_lfs_pointer};
use super::{Limits, io_reason};
use crate::port::Repo;

/// Where the content of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A file on disk, resolved, inside the root.
    Disk(PathBuf),
    /// An object of the repository.
    Object(Oid),
    /// Nowhere, with the reason.
    Nowhere(String),
}

/// The files of a tree, manifests or not.
pub struct Shelf {
    paths: BTreeSet<String>,
    places: BTreeMap<String, Place>,
    /// Paths that differ from the commit.
    changed: BTreeSet<String>,
    /// Where objects are; none for files on disk.
    repository: Option<Mutex<Repository>>,
    /// The most bytes that one file may have.
    file_bytes_max: u64,
}

impl Shelf {
    pub(super) fn on_disk(changed: BTreeSet<String>, limits: Limits) -> Self {
        Self::new(None, changed, limits)
    }

    pub(super) fn of_commit(repository: Repository, limits: Limits) -> Self {
        Self::new(Some(Mutex::new(repository)), BTreeSet::new(), limits)
    }

    fn new(
        repository: Option<Mutex<Repository>>,
        changed: BTreeSet<String>,
        limits: Limits,
    ) -> Self {
        let file_bytes_max = limits.file_bytes;
        let (paths, places) = (BTreeSet::new(), BTreeMap::new());
        Self { paths, places, changed, repository, file_bytes_max }
    }

    pub(super) fn put(&mut self, path: &str, place: Place) {
        self.paths.insert(path.to_owned());
        self.places.insert(path.to_owned(), place);
    }

    fn too_large(&self, bytes: u64) -> Result<(), String> {
        let most = self.file_bytes_max;
        if bytes <= most {
            return Ok(());
        }
        Err(format!("it has {bytes} bytes, and at most {most} are read"))
    }

    fn object(&self, id: Oid) -> Result<Vec<u8>, String> {
        let repository = self.repository.as_ref().ok_or("its repository is closed")?;
        let repository = repository.lock().map_err(|_| "its repository is closed")?;
        let said = |error: git2::Error| error.message().to_owned();
        let (size, _) = repository.odb().and_then(|odb| odb.read_header(id)).map_err(said)?;
        self.too_large(u64::try_from(size).unwrap_or(u64::MAX))?;
        Ok(repository.find_blob(id).map_err(said)?.content().to_vec())
    }
}

impl Repo for Shelf {
    fn paths(&self) -> &BTreeSet<String> {
        &self.paths
    }

    fn content(&self, path: &str) -> Result<Arc<[u8]>, String> {
        let place = self.places.get(path).ok_or("no such file")?;
        let content = match place {
            Place::Disk(file) => {
                let said = |error: std::io::Error| io_reason(&error);
                let found = fs::symlink_metadata(file).map_err(said)?;
                if !found.is_file() {
                    return Err("it is not a regular file".to_owned());
                }
                self.too_large(found.len())?;
                let mut content = Vec::new();
                let file = File::open(file).map_err(said)?;
                file.take(self.file_bytes_max).read_to_end(&mut content).map_err(said)?;
                content
            }
            Place::Object(id) => self.object(*id)?,
            Place::Nowhere(reason) => return Err(reason.clone()),
        };
        if is_lfs_pointer(&content) {
            return Err(LFS.to_owned());
        }
        Ok(content.into())
    }

    fn is_changed(&self, path: &str) -> bool {
        self.changed.contains(path)
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("paths", &self.paths.len()).finish_non_exhaustive()
    }
}
