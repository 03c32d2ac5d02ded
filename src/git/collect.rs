//! Gathers files within limits, and computes the digest over them.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::output::is_output;
use super::shelf::{Place, Shelf};
use super::{GitErrorKind, TreeBase, TreeRead, skipped};
use crate::ids::hex;
use crate::manifest::{Skipped, Tree, TreeFile};

/// How much is read at most: a repository is input of strangers, and memory is finite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Manifest files; the largest trees known to us hold 20,000.
    pub(crate) files: u64,
    /// Files and directories of any name, each counted as often as it is met.
    pub(crate) entries: u64,
    /// Bytes of one file; a larger one counts as unreadable.
    pub(crate) file_bytes: u64,
    /// Directories inside each other; manifests further down count as unreadable.
    pub(crate) depth: usize,
    /// Bytes of all manifest files together.
    pub(crate) total_bytes: u64,
}

impl Limits {
    /// What is read at most unless a test says otherwise.
    pub(crate) const DEFAULT: Self = Self {
        files: 100_000,
        entries: 1_000_000,
        file_bytes: 16 << 20,
        depth: 64,
        total_bytes: 1 << 30,
    };
}

/// The files gathered so far.
pub(super) struct Collector {
    limits: Limits,
    entries: u64,
    others: usize,
    bytes: u64,
    files: Vec<TreeFile>,
    skipped: Vec<Skipped>,
    submodules: Vec<String>,
    shelf: Shelf,
}

impl Collector {
    pub(super) fn new(limits: Limits, shelf: Shelf) -> Self {
        Self {
            limits,
            entries: 0,
            others: 0,
            bytes: 0,
            files: Vec::new(),
            skipped: Vec::new(),
            submodules: Vec::new(),
            shelf,
        }
    }

    /// Notes where the content of a file is, should a tool need it.
    pub(super) fn shelve(&mut self, path: &str, place: Place) {
        self.shelf.put(path, place);
    }

    /// Records a directory that is a repository of its own.
    pub(super) fn submodule(&mut self, path: &str) {
        self.skip(path, "a Git repository of its own");
        self.submodules.push(path.to_owned());
    }

    /// Counts one file or directory of any name.
    pub(super) fn enter(&mut self) -> Result<(), GitErrorKind> {
        self.entries += 1;
        check(self.entries, self.limits.entries, "files and directories")
    }

    /// Returns whether the directory at `path` may be entered; else that is an error in the tree.
    pub(super) fn descend(&mut self, path: &str) -> Result<bool, GitErrorKind> {
        let most = self.limits.depth;
        if path.split('/').count() <= most {
            return Ok(true);
        }
        let reason = format!("directories nest deeper than {most} levels");
        self.file(path, Err(reason)).map(|()| false)
    }

    /// Counts a file that is no manifest.
    pub(super) fn pass_over(&mut self) {
        self.others += 1;
    }

    /// Records a part that is left out.
    pub(super) fn skip(&mut self, path: &str, reason: &str) {
        self.skipped.push(skipped(path, reason));
    }

    /// Admits a file of `size` bytes: `Err` inside says why its content must not be read.
    pub(super) fn admit(&mut self, size: u64) -> Result<Result<(), String>, GitErrorKind> {
        if size > self.limits.file_bytes {
            let (is, most) = (size, self.limits.file_bytes);
            return Ok(Err(format!("it has {is} bytes, and at most {most} are read")));
        }
        self.bytes += size;
        check(self.bytes, self.limits.total_bytes, "bytes of manifests")?;
        Ok(Ok(()))
    }

    /// Records a manifest file, or why it cannot be read.
    pub(super) fn file(
        &mut self,
        path: &str,
        content: Result<Vec<u8>, String>,
    ) -> Result<(), GitErrorKind> {
        if content.as_ref().is_ok_and(|content| is_output(path.as_bytes(), content)) {
            self.others += 1;
            self.skip(path, "a plan or world that fleetwright wrote");
            return Ok(());
        }
        let content = content.and_then(|content| {
            if is_lfs_pointer(&content) { Err(LFS.to_owned()) } else { Ok(Arc::from(content)) }
        });
        self.files.push(TreeFile { path: path.into(), content });
        check(u64::try_from(self.files.len()).unwrap_or(u64::MAX), self.limits.files, "manifests")
    }

    /// Returns how large one file may be.
    pub(super) fn file_bytes_max(&self) -> u64 {
        self.limits.file_bytes
    }

    /// Sorts what was gathered and takes its digest; nothing gathered is an error.
    pub(super) fn finish(mut self, base: TreeBase) -> Result<TreeRead, GitErrorKind> {
        if self.files.is_empty() {
            return Err(match self.entries {
                0 => GitErrorKind::Empty,
                _ => GitErrorKind::NoManifests { files: self.others },
            });
        }
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.sort();
        let base = TreeBase { tree: digest(&self.files), ..base };
        self.submodules.sort();
        Ok(TreeRead {
            tree: Tree { files: self.files },
            skipped: self.skipped,
            submodules: self.submodules,
            shelf: Arc::new(self.shelf),
            proof: None,
            base,
        })
    }
}

/// What the first line of a file says whose content Git LFS keeps elsewhere.
const LFS_MARK: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Why such a file cannot be read.
pub(super) const LFS: &str = "it is a pointer of Git LFS, and its content is elsewhere: run `git lfs pull`, or keep manifests out of LFS";

/// Returns whether a file only says where Git LFS keeps its content.
pub(super) fn is_lfs_pointer(content: &[u8]) -> bool {
    content.starts_with(LFS_MARK)
}

fn check(amount: u64, limit: u64, what: &'static str) -> Result<(), GitErrorKind> {
    if amount > limit { Err(GitErrorKind::TooMuch { what, limit }) } else { Ok(()) }
}

/// Hashes paths and contents with their lengths, so that no two trees share the bytes hashed.
fn digest(files: &[TreeFile]) -> String {
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
            // The reason is left out: its words depend on the platform.
            Err(_) => part(b'x', b""),
        }
    }
    format!("sha256:{}", hex(&hash.finalize()))
}
