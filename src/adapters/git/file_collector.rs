//! Collects files within limits and computes their digest.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::file_store::{FileLocation, FileStore, LFS_REASON, is_lfs_pointer};
use super::generated_files::is_generated_file;
use super::tree_limits::TreeLimits;
use super::{GitErrorKind, RepositoryTree, TreeBase, UnreadDirectory, UnreadReason, skipped};
use crate::model::desired::{Skipped, Tree, TreeFile};

/// Extensions of files that are no manifests. The name of a directory may have a dot too.
const FILE_EXTENSIONS: [&str; 14] =
    ["gif", "go", "html", "jpg", "js", "lock", "md", "pdf", "png", "py", "sh", "svg", "tf", "txt"];

pub(super) struct FileCollector {
    limits: TreeLimits,
    entries: u64,
    other_files: usize,
    bytes: u64,
    files: Vec<TreeFile>,
    skipped: Vec<Skipped>,
    unread_directories: Vec<UnreadDirectory>,
    store: FileStore,
}

impl FileCollector {
    pub(super) fn new(limits: TreeLimits, store: FileStore) -> Self {
        Self {
            limits,
            entries: 0,
            other_files: 0,
            bytes: 0,
            files: Vec::new(),
            skipped: Vec::new(),
            unread_directories: Vec::new(),
            store,
        }
    }

    /// Stores the location of a file for the renderers.
    pub(super) fn store_location(&mut self, path: &str, location: FileLocation) {
        self.store.insert(path, location);
    }

    /// Records a directory that is a separate repository.
    pub(super) fn add_submodule(&mut self, path: &str) {
        self.add_skipped(path, "a Git repository of its own");
        self.add_unread_directory(path, UnreadReason::Submodule);
    }

    /// Records a link that cannot be resolved, unless its name is that of a file which is no manifest.
    pub(super) fn add_broken_link(&mut self, path: &str) {
        let extension = std::path::Path::new(path).extension().and_then(|found| found.to_str());
        if !extension.is_some_and(|found| FILE_EXTENSIONS.contains(&found)) {
            self.add_unread_directory(path, UnreadReason::Link);
        }
    }

    fn add_unread_directory(&mut self, path: &str, reason: UnreadReason) {
        self.unread_directories.push(UnreadDirectory { path: path.to_owned(), reason });
    }

    pub(super) fn count_entry(&mut self) -> Result<(), GitErrorKind> {
        self.entries += 1;
        check_limit(self.entries, self.limits.entries, "files and directories")
    }

    /// Returns whether the directory at `path` may be entered. If not, the tree gets an error
    /// entry.
    pub(super) fn may_descend(&mut self, path: &str) -> Result<bool, GitErrorKind> {
        let most = self.limits.depth;
        if path.split('/').count() <= most {
            return Ok(true);
        }
        let reason = format!("directories nest deeper than {most} levels");
        self.add_file(path, Err(reason)).map(|()| false)
    }

    /// Counts a file that is not a manifest.
    pub(super) fn count_other_file(&mut self) {
        self.other_files += 1;
    }

    pub(super) fn add_skipped(&mut self, path: &str, reason: &str) {
        self.skipped.push(skipped(path, reason));
    }

    /// Counts a file of `size` bytes. The inner `Err` is the reason that its content must not be
    /// read.
    pub(super) fn admit_size(&mut self, size: u64) -> Result<Result<(), String>, GitErrorKind> {
        if size > self.limits.file_bytes {
            let (is, most) = (size, self.limits.file_bytes);
            return Ok(Err(format!("it has {is} bytes, and at most {most} are read")));
        }
        self.bytes += size;
        check_limit(self.bytes, self.limits.total_bytes, "bytes of manifests")?;
        Ok(Ok(()))
    }

    /// Adds a manifest file, or the reason that it cannot be read.
    pub(super) fn add_file(
        &mut self,
        path: &str,
        content: Result<Vec<u8>, String>,
    ) -> Result<(), GitErrorKind> {
        if content.as_ref().is_ok_and(|content| is_generated_file(path.as_bytes(), content)) {
            self.other_files += 1;
            self.add_skipped(path, "plan or world");
            return Ok(());
        }
        let content = content.and_then(|content| {
            if is_lfs_pointer(&content) {
                Err(LFS_REASON.to_owned())
            } else {
                Ok(Arc::from(content))
            }
        });
        self.files.push(TreeFile { path: path.into(), content });
        check_limit(
            u64::try_from(self.files.len()).unwrap_or(u64::MAX),
            self.limits.files,
            "manifests",
        )
    }

    /// Adds a manifest file that is not on disk. It counts toward no limit: a sparse checkout
    /// makes a large repository small enough to be read.
    pub(super) fn add_absent_file(&mut self, path: &str, reason: &str) {
        self.files.push(TreeFile { path: path.into(), content: Err(reason.to_owned()) });
    }

    pub(super) fn file_bytes_max(&self) -> u64 {
        self.limits.file_bytes
    }

    /// Sorts the files and computes their digest. An empty tree is an error.
    pub(super) fn finish(mut self, base: TreeBase) -> Result<RepositoryTree, GitErrorKind> {
        if self.files.is_empty() {
            return Err(match self.entries {
                0 => GitErrorKind::Empty,
                _ => GitErrorKind::NoManifests { files: self.other_files },
            });
        }
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.sort();
        let base = TreeBase { tree: tree_digest(&self.files), ..base };
        self.unread_directories.sort();
        Ok(RepositoryTree {
            is_whole_repository: false,
            outer_settings: None,
            has_unread_objects: false,
            tree: Tree { files: self.files },
            skipped: self.skipped,
            unread_directories: self.unread_directories,
            files: Arc::new(self.store),
            signed_history: None,
            base,
        })
    }
}

fn check_limit(amount: u64, limit: u64, unit: &'static str) -> Result<(), GitErrorKind> {
    if amount > limit { Err(GitErrorKind::TooMuch { unit, limit }) } else { Ok(()) }
}

/// Hashes paths and contents with their lengths, so that different trees never hash the same bytes.
fn tree_digest(files: &[TreeFile]) -> String {
    let mut hash = Sha256::new();
    let mut part = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(bytes);
    };
    for file in files {
        part(b'p', file.path.as_bytes());
        match &file.content {
            Ok(bytes) => part(b'c', bytes),
            // The reason is excluded, because its text depends on the platform.
            Err(_) => part(b'x', b""),
        }
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}
