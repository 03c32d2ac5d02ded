//! Reads the files on disk and compares them with the checked-out commit.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use git2::{IndexEntry, IndexEntryExtendedFlag, Oid, Repository, Status, StatusOptions};

use super::file_collector::FileCollector;
use super::file_store::FileLocation;
use super::generated_files::is_generated_file;
use super::{
    FileStore, GitErrorKind, RepositoryTree, TreeBase, TreeLimits, io_reason, is_manifest_name,
    origin_url, signatures, slash_path,
};
use crate::model::desired::SPARSE_REASON;

/// The mode of a submodule in Git's index.
const GITLINK: u32 = 0o160_000;

/// Reads the canonical directory `root`.
pub(super) fn read(
    root: &Path,
    repository: Option<&Repository>,
    limits: TreeLimits,
) -> Result<RepositoryTree, GitErrorKind> {
    let git = repository.map(|repository| GitStatus::read(repository, root)).transpose()?.flatten();
    let store =
        FileStore::from_disk(git.as_ref().map(GitStatus::changed).unwrap_or_default(), limits);
    let mut walk =
        WorktreeWalk { root, git: git.as_ref(), found: FileCollector::new(limits, store) };
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        walk.read_directory(&directory, &mut pending)?;
    }
    for path in git.iter().flat_map(|view| &view.sparse) {
        walk.add_sparse_file(path);
    }
    let base = git.as_ref().map_or_else(TreeBase::default, |view| view.base.clone());
    let commit = base.commit.as_deref().and_then(|commit| Oid::from_str(commit).ok());
    let mut read = walk.found.finish(base)?;
    if let (Some(repository), Some(view), Some(commit)) = (repository, &git, commit) {
        read.signed_history = signatures::signed_history(repository, commit, &view.prefix);
    }
    Ok(read)
}

/// The Git status of a directory in the work tree.
struct GitStatus {
    /// The directory, relative to the work tree.
    prefix: PathBuf,
    /// Ignored paths, or `None` if the directory itself is ignored and thus named on purpose.
    ignores: Option<IgnoredPaths>,
    /// Submodules, relative to the work tree.
    submodules: BTreeSet<Vec<u8>>,
    /// Committed files that Git need not have on disk, relative to the directory.
    sparse: Vec<String>,
    base: TreeBase,
}

/// Ignored paths, relative to the work tree.
struct IgnoredPaths {
    /// Ignored directories without committed files. They are skipped.
    directories: BTreeSet<Vec<u8>>,
    /// Files that are committed or would be. An ignore list is not sufficient: libgit2 omits files
    /// beside committed ones in an ignored directory.
    files: BTreeSet<Vec<u8>>,
    /// The files that differ from the commit.
    changed: BTreeSet<Vec<u8>>,
}

impl GitStatus {
    /// Returns `None` for a directory outside the work tree.
    fn read(repository: &Repository, root: &Path) -> Result<Option<Self>, GitErrorKind> {
        let broken = |error: git2::Error| GitErrorKind::Repository(error.message().to_owned());
        let work_tree = repository.workdir().and_then(|path| path.canonicalize().ok());
        let Some(prefix) =
            work_tree.and_then(|top| root.strip_prefix(top).ok().map(Path::to_owned))
        else {
            return Ok(None);
        };
        let commit = head_commit(repository).map_err(broken)?;
        let named_on_purpose = !prefix.as_os_str().is_empty()
            && repository.is_path_ignored(prefix.join("")).map_err(broken)?;
        let (ignores, differs) = if named_on_purpose {
            (None, true)
        } else {
            let (ignores, differs) = status(repository, &prefix).map_err(broken)?;
            (Some(ignores), differs)
        };
        let base = TreeBase {
            repository: origin_url(repository),
            dirty: differs || commit.is_none(),
            origin: commit.as_ref().map(super::commit_origin),
            commit: commit.map(|commit| commit.id().to_string()),
            below: slash_path(&prefix),
            tree: String::new(),
        };
        let submodules = submodules(repository).map_err(broken)?;
        let sparse = sparse_files(repository, &prefix).map_err(broken)?;
        Ok(Some(Self { prefix, ignores, submodules, sparse, base }))
    }

    fn ignores_directory(&self, relative: &Path) -> bool {
        let path = self.prefix.join(relative);
        let ignores = self.ignores.as_ref();
        ignores.is_some_and(|ignores| ignores.directories.contains(bytes(path.as_os_str())))
    }

    fn ignores_file(&self, relative: &Path) -> bool {
        let path = self.prefix.join(relative);
        let ignores = self.ignores.as_ref();
        ignores.is_some_and(|ignores| !ignores.files.contains(bytes(path.as_os_str())))
    }

    /// Returns the files below the directory that differ from the commit.
    fn changed(&self) -> BTreeSet<String> {
        let changed = self.ignores.iter().flat_map(|ignores| &ignores.changed);
        let prefix = slash_path(&self.prefix);
        let below = |path: &Vec<u8>| {
            let path = String::from_utf8_lossy(path);
            let rest = path.strip_prefix(prefix.as_str())?;
            Some(rest.trim_start_matches('/').to_owned())
        };
        changed.filter_map(below).collect()
    }

    fn is_submodule(&self, relative: &Path) -> bool {
        self.submodules.contains(bytes(self.prefix.join(relative).as_os_str()))
    }
}

fn bytes(text: &OsStr) -> &[u8] {
    text.as_encoded_bytes()
}

/// Returns the checked-out commit, or `None` before the first one.
fn head_commit(repository: &Repository) -> Result<Option<git2::Commit<'_>>, git2::Error> {
    match repository.head() {
        Ok(head) => Ok(Some(head.peel_to_commit()?)),
        Err(error) if error.code() == git2::ErrorCode::UnbornBranch => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the ignored paths below `prefix`, and whether a manifest there differs from the commit.
fn status(repository: &Repository, prefix: &Path) -> Result<(IgnoredPaths, bool), git2::Error> {
    let mut options = StatusOptions::new();
    options.include_untracked(true).recurse_untracked_dirs(true).include_ignored(true);
    // The index stays unchanged, even if a refresh would speed up the next run.
    options.exclude_submodules(true).update_index(false);
    if !prefix.as_os_str().is_empty() {
        options.pathspec(prefix).disable_pathspec_match(true);
    }
    let committed = repository.index()?.iter().map(|entry| entry.path).collect::<BTreeSet<_>>();
    let mut ignores =
        IgnoredPaths { directories: BTreeSet::new(), files: committed, changed: BTreeSet::new() };
    let mut differs = false;
    for entry in repository.statuses(Some(&mut options))?.iter() {
        let path = entry.path_bytes();
        if entry.status().contains(Status::IGNORED) {
            ignores.directories.extend(path.strip_suffix(b"/").map(<[u8]>::to_vec));
        } else if entry.status() != Status::CURRENT {
            ignores.files.insert(path.to_vec());
            ignores.changed.insert(path.to_vec());
            differs |= is_manifest_name(path) && !is_generated_on_disk(repository, path);
        }
    }
    Ok((ignores, differs))
}

/// Returns whether a path of the work tree contains a plan or a world.
fn is_generated_on_disk(repository: &Repository, path: &[u8]) -> bool {
    let file =
        std::str::from_utf8(path).ok().and_then(|path| Some(repository.workdir()?.join(path)));
    let small = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() <= TreeLimits::DEFAULT.file_bytes)
    };
    let content = file.filter(|_| path.ends_with(b".json")).filter(small).map(fs::read);
    content.is_some_and(|content| content.is_ok_and(|content| is_generated_file(path, &content)))
}

fn submodules(repository: &Repository) -> Result<BTreeSet<Vec<u8>>, git2::Error> {
    let index = repository.index()?;
    Ok(index.iter().filter(|entry| entry.mode == GITLINK).map(|entry| entry.path).collect())
}

/// Returns the files below `prefix` that the index marks as outside of a sparse checkout.
fn sparse_files(repository: &Repository, prefix: &Path) -> Result<Vec<String>, git2::Error> {
    let is_sparse = |entry: &IndexEntry| {
        IndexEntryExtendedFlag::from_bits_truncate(entry.flags_extended).is_skip_worktree()
    };
    let relative = |entry: IndexEntry| {
        let path = PathBuf::from(String::from_utf8_lossy(&entry.path).into_owned());
        path.strip_prefix(prefix).ok().map(slash_path)
    };
    let index = repository.index()?;
    Ok(index.iter().filter(is_sparse).filter_map(relative).collect())
}

struct WorktreeWalk<'a> {
    root: &'a Path,
    git: Option<&'a GitStatus>,
    found: FileCollector,
}

impl WorktreeWalk<'_> {
    /// Reads one directory. Its subdirectories are added to `pending`.
    fn read_directory(
        &mut self,
        relative: &Path,
        pending: &mut Vec<PathBuf>,
    ) -> Result<(), GitErrorKind> {
        let entries = match fs::read_dir(self.root.join(relative)) {
            Ok(entries) => entries,
            Err(error) if relative.as_os_str().is_empty() => {
                return Err(GitErrorKind::Unreadable(io_reason(&error)));
            }
            Err(error) => {
                let reason = format!("the directory cannot be listed: {}", io_reason(&error));
                return self.found.add_file(&slash_path(relative), Err(reason));
            }
        };
        for entry in entries {
            let Ok(entry) = entry else {
                let reason = "the directory cannot be listed to its end".to_owned();
                self.found.add_file(&slash_path(relative), Err(reason))?;
                continue;
            };
            if entry.file_name() == ".git" {
                continue;
            }
            self.found.count_entry()?;
            let path = relative.join(entry.file_name());
            self.read_entry(path, entry.file_type().ok(), pending)?;
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        path: PathBuf,
        kind: Option<fs::FileType>,
        pending: &mut Vec<PathBuf>,
    ) -> Result<(), GitErrorKind> {
        let full_path = slash_path(&path);
        if kind.is_some_and(|kind| kind.is_dir()) {
            if self.git.is_some_and(|git| git.ignores_directory(&path)) {
                return Ok(());
            }
            let nested = self.root.join(&path).join(".git").symlink_metadata().is_ok();
            if nested || self.git.is_some_and(|git| git.is_submodule(&path)) {
                self.found.add_submodule(&full_path);
            } else if self.found.may_descend(&full_path)? {
                pending.push(path);
            }
            return Ok(());
        }
        let is_link = kind.is_some_and(|kind| kind.is_symlink());
        if !is_manifest_name(bytes(path.as_os_str())) {
            self.found.count_other_file();
            if is_link && self.link_target(&path).is_ok_and(|target| target.is_dir()) {
                self.found.add_skipped(&full_path, "a link to a directory, which is not followed");
            } else if path.to_str().is_some()
                && !self.git.is_some_and(|git| git.ignores_file(&path))
            {
                let location = self.location(&path, is_link);
                if matches!(location, FileLocation::Unreadable(_)) {
                    self.found.add_broken_link(&full_path);
                }
                self.found.store_location(&full_path, location);
            }
            return Ok(());
        }
        if self.git.is_some_and(|git| git.ignores_file(&path)) {
            return Ok(());
        }
        if path.to_str().is_none() {
            return self.found.add_file(&full_path, Err("its path is not UTF-8".to_owned()));
        }
        let location = self.location(&path, is_link);
        self.found.store_location(&full_path, location.clone());
        let content = match location {
            FileLocation::Disk(file) => Ok(file),
            FileLocation::Unreadable(reason) => Err(reason),
            FileLocation::Object(_) => Err("it is not on disk".to_owned()),
        };
        let content = match content {
            Ok(file) => self.read_content(&file)?,
            Err(reason) => Err(reason),
        };
        self.found.add_file(&full_path, content)
    }

    /// Adds a file of a sparse checkout as unreadable, unless it is on disk all the same.
    fn add_sparse_file(&mut self, path: &str) {
        if self.root.join(path).symlink_metadata().is_ok() {
            return;
        }
        self.found.store_location(path, FileLocation::Unreadable(SPARSE_REASON.to_owned()));
        if is_manifest_name(path.as_bytes()) {
            self.found.add_absent_file(path, SPARSE_REASON);
        }
    }

    fn location(&self, path: &Path, is_link: bool) -> FileLocation {
        let file = if is_link { self.link_target(path) } else { Ok(self.root.join(path)) };
        file.map_or_else(FileLocation::Unreadable, FileLocation::Disk)
    }

    /// Returns the target of the link `path`, which must be below the root.
    fn link_target(&self, path: &Path) -> Result<PathBuf, String> {
        let target = self
            .root
            .join(path)
            .canonicalize()
            .map_err(|error| format!("it is a broken link: {}", io_reason(&error)))?;
        match target.strip_prefix(self.root) {
            Ok(inside) if inside.iter().all(|part| part != ".git") => Ok(target),
            _ => Err("it is a link to a file outside the directory that is read".to_owned()),
        }
    }

    fn read_content(&mut self, file: &Path) -> Result<Result<Vec<u8>, String>, GitErrorKind> {
        // Checked before the file is opened: opening a named pipe would block.
        let size = match fs::metadata(file) {
            Ok(found) if found.is_file() => found.len(),
            Ok(_) => return Ok(Err("it is not a regular file".to_owned())),
            Err(error) => return Ok(Err(io_reason(&error))),
        };
        if let Err(reason) = self.found.admit_size(size)? {
            return Ok(Err(reason));
        }
        let mut content = Vec::new();
        // A file that grows during the read must not exceed the limit by much.
        let limit = self.found.file_bytes_max();
        let read = File::open(file).and_then(|file| file.take(limit).read_to_end(&mut content));
        Ok(read.map(|_| content).map_err(|error| io_reason(&error)))
    }
}
