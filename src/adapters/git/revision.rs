//! Reads the files of a commit from the object database.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use git2::{Commit, ErrorCode, ObjectType, Oid, Repository};

use super::file_collector::FileCollector;
use super::file_store::FileLocation;
use super::{
    FileStore, GitError, GitErrorKind, RepositoryTree, TreeBase, TreeLimits, absolute_path,
    git_error, is_manifest_name, is_unsafe_name, open_repository, origin_url, revision_name,
    signatures, slash_path,
};

/// The mode of a symbolic link in a Git tree.
const LINK: i32 = 0o120_000;

/// Maximum number of links in a chain, as in the Linux kernel.
const LINK_HOPS_MAX: usize = 40;

/// Reads the files below `path` as of commit `revision`.
pub(super) fn read(
    path: &Path,
    revision: &str,
    limits: TreeLimits,
) -> Result<RepositoryTree, GitError> {
    let read = || -> Result<RepositoryTree, GitErrorKind> {
        let directory = CommitDirectory::open(path, revision)?;
        // The store outlives this read.
        let second = CommitDirectory::open(path, revision)?;
        directory.read(revision, limits, FileStore::from_commit(second.repository, limits))
    };
    read().map_err(|kind| GitError::new(path, kind))
}

/// Returns the origin of the files below `path` as of commit `revision`, without their digest. It
/// reads no file.
pub(super) fn read_base(path: &Path, revision: &str) -> Result<TreeBase, GitError> {
    let read = || -> Result<TreeBase, GitErrorKind> {
        let directory = CommitDirectory::open(path, revision)?;
        let commit = directory.commit(revision)?;
        Ok(directory.base(&commit))
    };
    read().map_err(|kind| GitError::new(path, kind))
}

/// Returns true if `commit` is `revision` or an ancestor of it.
pub(super) fn is_in_history(
    path: &Path,
    revision: &str,
    commit: &str,
) -> Result<bool, GitErrorKind> {
    let absolute = absolute_path(path).ok_or(GitErrorKind::Missing)?;
    let start = absolute.ancestors().find(|directory| directory.is_dir());
    let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
    let start = start.ok_or(GitErrorKind::Missing)?;
    let repository = open_repository(start)?.ok_or_else(no_repository)?;
    let head = revision_name::find_object(&repository, revision)?;
    let head = head.peel_to_commit().map_err(git_error)?.id();
    let Ok(commit) = Oid::from_str(commit) else { return Ok(false) };
    // The object may be missing.
    let is_below = || repository.graph_descendant_of(head, commit).unwrap_or(false);
    Ok(head == commit || is_below())
}

/// A directory of a repository. It may exist only in a commit.
struct CommitDirectory {
    repository: Repository,
    /// The directory, relative to the root of the repository.
    prefix: PathBuf,
}

impl CommitDirectory {
    /// Opens the repository that contains `path`. `revision` is for errors.
    fn open(path: &Path, revision: &str) -> Result<Self, GitErrorKind> {
        let absolute = absolute_path(path).ok_or(GitErrorKind::Missing)?;
        let start = absolute.ancestors().find(|directory| directory.is_dir());
        let start = start.ok_or(GitErrorKind::Missing)?;
        let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
        let repository = open_repository(start)?.ok_or_else(no_repository)?;
        let top = repository.workdir().unwrap_or(repository.path()).canonicalize();
        let prefix = top.ok().and_then(|top| absolute.strip_prefix(top).ok().map(Path::to_owned));
        let prefix = prefix.ok_or_else(no_repository)?;
        Ok(Self { repository, prefix })
    }

    fn commit(&self, revision: &str) -> Result<Commit<'_>, GitErrorKind> {
        let object = revision_name::find_object(&self.repository, revision)?;
        object.peel_to_commit().map_err(|error| {
            let (revision, reason) = (revision.to_owned(), error.message().to_owned());
            GitErrorKind::UnknownRevision { revision, reason }
        })
    }

    /// Returns the origin of the files of a commit, without their digest.
    fn base(&self, commit: &Commit<'_>) -> TreeBase {
        TreeBase {
            repository: origin_url(&self.repository),
            commit: Some(commit.id().to_string()),
            tree: String::new(),
            below: slash_path(&self.prefix),
            dirty: false,
            origin: Some(super::commit_origin(commit)),
        }
    }

    fn read(
        &self,
        revision: &str,
        limits: TreeLimits,
        store: FileStore,
    ) -> Result<RepositoryTree, GitErrorKind> {
        let Self { repository, prefix } = self;
        let commit = self.commit(revision)?;
        let root = directory_tree(repository, commit.tree_id(), prefix, revision)?;
        let objects = CommitObjects::new(repository, root);
        let mut walk = CommitWalk { objects, found: FileCollector::new(limits, store) };
        let mut pending = vec![(String::new(), root)];
        while let Some((path, tree)) = pending.pop() {
            walk.read_directory(&path, tree, &mut pending)?;
        }
        let mut read = walk.found.finish(self.base(&commit))?;
        read.has_unread_objects = walk.objects.has_unread.get();
        read.signed_history = signatures::signed_history(repository, commit.id(), prefix);
        Ok(read)
    }
}

/// Returns the content of the file `name` in the directory `prefix` of a commit, as a plan of the
/// commit reads it: links are followed.
pub(super) fn file_content(
    repository: &Repository,
    commit: Oid,
    prefix: &Path,
    name: &str,
) -> Option<Vec<u8>> {
    let tree = repository.find_commit(commit).ok()?.tree_id();
    let root = directory_tree(repository, tree, prefix, "").ok()?;
    let objects = CommitObjects::new(repository, root);
    let mut found = objects.lookup(&[name.to_owned()]).ok()?;
    if let CommitEntry::Link(id) = found {
        found = objects.resolve_link("", id).ok()?;
    }
    let CommitEntry::File(id) = found else { return None };
    repository.find_blob(id).ok().map(|blob| blob.content().to_vec())
}

fn directory_tree(
    repository: &Repository,
    root: Oid,
    prefix: &Path,
    revision: &str,
) -> Result<Oid, GitErrorKind> {
    if prefix.as_os_str().is_empty() {
        return Ok(root);
    }
    let tree = repository.find_tree(root).map_err(git_error)?;
    match tree.get_path(prefix) {
        Ok(entry) if entry.kind() == Some(ObjectType::Tree) => Ok(entry.id()),
        Ok(_) => Err(GitErrorKind::NotADirectory),
        Err(error) if error.code() == ErrorCode::NotFound => {
            Err(GitErrorKind::NotInRevision { revision: revision.to_owned() })
        }
        Err(error) => Err(git_error(error)),
    }
}

struct CommitWalk<'a> {
    objects: CommitObjects<'a>,
    found: FileCollector,
}

/// The objects of a commit below a directory.
struct CommitObjects<'a> {
    repository: &'a Repository,
    root: Oid,
    /// True if an object could not be read.
    has_unread: Cell<bool>,
}

/// The kind of a tree entry.
enum CommitEntry {
    Directory(Oid),
    File(Oid),
    Link(Oid),
    /// A submodule, or an object of an unexpected kind.
    Other,
}

impl CommitWalk<'_> {
    fn read_directory(
        &mut self,
        path: &str,
        tree: Oid,
        pending: &mut Vec<(String, Oid)>,
    ) -> Result<(), GitErrorKind> {
        let tree = self.objects.repository.find_tree(tree).map_err(git_error)?;
        for item in &tree {
            self.found.count_entry()?;
            let name = item.name_bytes();
            if is_unsafe_name(name) {
                let name = name.escape_ascii().to_string();
                return Err(GitErrorKind::UnsafeName { name });
            }
            let full_path = join_path(path, &String::from_utf8_lossy(name));
            match classify(&item) {
                CommitEntry::Directory(id) => {
                    if self.found.may_descend(&full_path)? {
                        pending.push((full_path, id));
                    }
                }
                CommitEntry::Other => self.found.add_submodule(&full_path),
                CommitEntry::Link(id) if !is_manifest_name(name) => {
                    self.found.count_other_file();
                    match self.objects.resolve_link(path, id) {
                        Ok(CommitEntry::Directory(_)) => {
                            let reason = "a link to a directory, which is not followed";
                            self.found.add_skipped(&full_path, reason);
                        }
                        found => {
                            if found.is_err() {
                                self.found.add_broken_link(&full_path);
                            }
                            self.store_location(&full_path, &found);
                        }
                    }
                }
                CommitEntry::File(id) if !is_manifest_name(name) => {
                    self.found.count_other_file();
                    self.store_location(&full_path, &Ok(CommitEntry::File(id)));
                }
                CommitEntry::File(_) | CommitEntry::Link(_) if full_path.contains('\u{fffd}') => {
                    self.found.add_file(&full_path, Err("its path is not UTF-8".to_owned()))?;
                }
                CommitEntry::File(id) => {
                    self.store_location(&full_path, &Ok(CommitEntry::File(id)));
                    let content = self.read_blob(id)?;
                    self.found.add_file(&full_path, content)?;
                }
                CommitEntry::Link(id) => {
                    let found = self.objects.resolve_link(path, id);
                    self.store_location(&full_path, &found);
                    let content = match found {
                        Ok(CommitEntry::File(id)) => self.read_blob(id)?,
                        Ok(_) => Err("it is not a regular file".to_owned()),
                        Err(reason) => Err(reason),
                    };
                    self.found.add_file(&full_path, content)?;
                }
            }
        }
        Ok(())
    }

    fn store_location(&mut self, path: &str, found: &Result<CommitEntry, String>) {
        let location = match found {
            Ok(CommitEntry::File(id)) => FileLocation::Object(*id),
            Ok(_) => FileLocation::Unreadable("it is not a regular file".to_owned()),
            Err(reason) => FileLocation::Unreadable(reason.clone()),
        };
        self.found.store_location(path, location);
    }

    /// Reads a file. An object missing from a partial clone is unreadable, not empty.
    fn read_blob(&mut self, id: Oid) -> Result<Result<Vec<u8>, String>, GitErrorKind> {
        let repository = self.objects.repository;
        let size = match repository.odb().and_then(|objects| objects.read_header(id)) {
            Ok((size, _)) => u64::try_from(size).unwrap_or(u64::MAX),
            Err(error) => return Ok(Err(self.objects.unread_reason(&error))),
        };
        if let Err(reason) = self.found.admit_size(size)? {
            return Ok(Err(reason));
        }
        let blob = repository.find_blob(id);
        Ok(blob.map(|b| b.content().to_vec()).map_err(|error| self.objects.unread_reason(&error)))
    }
}

impl<'a> CommitObjects<'a> {
    fn new(repository: &'a Repository, root: Oid) -> Self {
        Self { repository, root, has_unread: Cell::new(false) }
    }

    /// Returns the reason of an unread object, and records that there is one.
    fn unread_reason(&self, error: &git2::Error) -> String {
        self.has_unread.set(true);
        error.message().to_owned()
    }

    /// Resolves the link `id` in `directory`, one path component at a time, within the root.
    fn resolve_link(&self, directory: &str, id: Oid) -> Result<CommitEntry, String> {
        let mut names: Vec<String> = path_parts(directory).collect();
        let mut found = CommitEntry::Link(id);
        let mut ahead: Vec<String> = Vec::new();
        for _ in 0..LINK_HOPS_MAX {
            if let CommitEntry::Link(id) = found {
                let target = self.link_target(id)?;
                ahead.extend(path_parts(&target).collect::<Vec<_>>().into_iter().rev());
                found = self.lookup(&names)?;
            }
            while matches!(found, CommitEntry::Directory(_)) {
                let Some(name) = ahead.pop() else { break };
                if name != ".." {
                    names.push(name);
                } else if names.pop().is_none() {
                    return Err(OUTSIDE_LINK.to_owned());
                }
                found = self.lookup(&names)?;
            }
            match found {
                // A link is relative to its directory.
                CommitEntry::Link(_) => drop(names.pop()),
                CommitEntry::File(_) | CommitEntry::Other if !ahead.is_empty() => {
                    return Err(BROKEN_LINK.to_owned());
                }
                CommitEntry::Directory(_) | CommitEntry::File(_) | CommitEntry::Other => {
                    return Ok(found);
                }
            }
        }
        Err("it is a circular link".to_owned())
    }

    /// Returns the target of a link. Absolute targets are refused.
    fn link_target(&self, link: Oid) -> Result<String, String> {
        let blob = self.repository.find_blob(link).map_err(|error| self.unread_reason(&error))?;
        let target = std::str::from_utf8(blob.content()).map_err(|_| BROKEN_LINK.to_owned())?;
        if target.starts_with('/') { Err(OUTSIDE_LINK.to_owned()) } else { Ok(target.to_owned()) }
    }

    /// Returns the entry at the path `names` below the root.
    fn lookup(&self, names: &[String]) -> Result<CommitEntry, String> {
        let mut found = CommitEntry::Directory(self.root);
        for name in names {
            let CommitEntry::Directory(id) = found else { return Err(BROKEN_LINK.to_owned()) };
            let tree = self.repository.find_tree(id).map_err(|error| self.unread_reason(&error))?;
            let item = tree.get_name(name).ok_or_else(|| BROKEN_LINK.to_owned())?;
            found = classify(&item);
        }
        Ok(found)
    }
}

const OUTSIDE_LINK: &str = "it is a link to a file outside the directory that is read";
const BROKEN_LINK: &str = "it is a broken link: no such file";

fn classify(item: &git2::TreeEntry<'_>) -> CommitEntry {
    match item.kind() {
        Some(ObjectType::Tree) => CommitEntry::Directory(item.id()),
        Some(ObjectType::Blob) if item.filemode() == LINK => CommitEntry::Link(item.id()),
        Some(ObjectType::Blob) => CommitEntry::File(item.id()),
        Some(ObjectType::Commit | ObjectType::Any | ObjectType::Tag) | None => CommitEntry::Other,
    }
}

fn join_path(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn path_parts(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}
