//! Reads the files of a repository, from a directory or from the objects of a commit.
//!
//! This adapter handles files, links, Git objects and ignore rules. It does not interpret the
//! files. It never writes: no checkout, no index refresh, no hook, no filter.
//!
//! Invariants: an unreadable file is in the result with its reason. Nothing outside the given
//! directory is read. Files are sorted by path. The same content has the same digest, from a
//! directory or from a commit.
//!
//! In a work tree, it reads all files on disk that Git does not ignore, as a commit would contain
//! them. Files that a sparse checkout lacks are unreadable. The files of an ignored directory, such
//! as rendered manifests, are read only if the path names that directory. They are in no commit, and
//! the base records that. Plans and worlds that this program wrote are never input.

mod clone_size;
mod file_collector;
mod file_store;
mod generated_files;
mod remote;
mod revision;
mod revision_name;
mod signatures;
mod text_files;
mod tree_limits;
mod worktree;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use git2::{ErrorCode, Repository};
use thiserror::Error;

use crate::model::commit::CommitOrigin;
use crate::model::desired::{Skipped, Tree};

pub use file_store::FileStore;
pub use remote::{CloneCache, RemoteRepository};
pub use signatures::{ParentCommit, SignedCommit, SignedHistory, names_signers};
pub use text_files::{TextFile, read_text_files};
pub(crate) use tree_limits::TreeLimits;

/// The files that were read, and their origin.
#[derive(Debug, Clone)]
pub struct RepositoryTree {
    /// The manifest files below the path.
    pub tree: Tree,
    /// Skipped parts with the reason: submodules, links, saved plans and worlds.
    pub skipped: Vec<Skipped>,
    /// Directories whose content is unknown, sorted by path.
    pub unread_directories: Vec<UnreadDirectory>,
    /// Every file, including files that are not manifests.
    pub files: Arc<FileStore>,
    /// Commits and signatures that prove the signer, or `None` without a commit.
    pub signed_history: Option<SignedHistory>,
    /// Origin of the files.
    pub base: TreeBase,
    /// True if the tree is the whole repository, and its settings are those of `base.below`.
    pub is_whole_repository: bool,
    /// Settings of a directory above, relative to the path that was read, if it has none of its
    /// own.
    pub outer_settings: Option<String>,
    /// True if an object of the commit could not be read, so that a later read may find more.
    pub has_unread_objects: bool,
}

/// A directory whose content is unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadDirectory {
    /// Path below the directory that is read.
    pub path: String,
    /// Reason for the unknown content.
    pub reason: UnreadReason,
}

/// Reason that the content of a directory is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreadReason {
    /// It is a separate repository.
    Submodule,
    /// It is a symbolic link that is broken, or that points out of the directory that is read.
    Link,
}

impl RepositoryTree {
    /// Returns the path of the tree below the root of the repository.
    pub fn root_in_repository(&self) -> &str {
        if self.is_whole_repository { "" } else { &self.base.below }
    }
}

/// Origin of the files, as recorded in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeBase {
    /// URL of the remote `origin` without credentials, if there is one.
    pub repository: Option<String>,
    /// Commit in hex, or `None` outside a Git work tree and before the first commit.
    pub commit: Option<String>,
    /// SHA-256 over paths and contents of the files read: `sha256:` and 64 hex digits.
    pub tree: String,
    /// Path below the root of the repository, with `/`. Empty for the root.
    pub below: String,
    /// True if the manifest files below the path differ from those of the commit.
    pub dirty: bool,
    /// Author and pull request of the commit.
    pub origin: Option<CommitOrigin>,
}

impl TreeBase {
    /// Returns true if this base of a commit is `known`. It needs no digest of the files: the other
    /// fields determine the files.
    fn is_known(&self, known: &Self) -> bool {
        Self { tree: known.tree.clone(), ..self.clone() } == *known
    }
}

/// Returns what a commit says about its origin.
fn commit_origin(commit: &git2::Commit<'_>) -> CommitOrigin {
    let author = commit.author();
    CommitOrigin::new(
        &String::from_utf8_lossy(author.name_bytes()),
        &String::from_utf8_lossy(commit.message_bytes()),
    )
}

/// The reason that no tree could be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot read `{path}`: {kind}")]
pub struct GitError {
    /// The path as given.
    pub path: String,
    /// The kind of error.
    pub kind: GitErrorKind,
}

/// The kind of a [`GitError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GitErrorKind {
    /// The path does not exist.
    #[error("no such directory")]
    Missing,
    /// The path is not a directory.
    #[error("it is not a directory")]
    NotADirectory,
    /// A link leads out of the root directory.
    #[error("it leads outside the directory that is read")]
    Outside,
    /// A file is a symbolic link.
    #[error("`{path}` is a symbolic link, and links are not followed")]
    Link {
        /// The path.
        path: String,
    },
    /// The directory cannot be listed.
    #[error("it cannot be listed: {0}")]
    Unreadable(String),
    /// The directory is empty.
    #[error("the directory is empty")]
    Empty,
    /// The directory contains no manifest.
    #[error("none of its {files} files is a manifest")]
    NoManifests {
        /// Number of files.
        files: usize,
    },
    /// A revision was requested outside a repository.
    #[error("it is not in a Git repository, so it has no revision `{revision}`")]
    NoRepository {
        /// The revision.
        revision: String,
    },
    /// The repository has no such commit.
    #[error("the repository has no commit `{revision}`: {reason}")]
    UnknownRevision {
        /// The revision.
        revision: String,
        /// The Git message.
        reason: String,
    },
    /// A name means two different objects.
    #[error("`{revision}` is ambiguous: {first} and {second} differ")]
    AmbiguousRevision {
        /// The revision.
        revision: String,
        /// The full name of one object.
        first: String,
        /// The full name of the other one.
        second: String,
    },
    /// The commit has no such directory.
    #[error("commit `{revision}` has no such directory")]
    NotInRevision {
        /// The revision.
        revision: String,
    },
    /// A crafted tree has a name that leads elsewhere.
    #[error("the commit has the name `{name}`, which is not a name of a file")]
    UnsafeName {
        /// The name, escaped.
        name: String,
    },
    /// A limit is exceeded.
    #[error("it holds more than {limit} {unit}")]
    TooMuch {
        /// The limited quantity.
        unit: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The repository belongs to another user, and Git refuses to read it.
    #[error("the Git repository belongs to another user")]
    OtherOwner,
    /// The URL scheme is not allowed.
    #[error("scheme `{scheme}` is not fetched from")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A remote repository cannot be fetched.
    #[error("it cannot be fetched: {0}")]
    Fetch(String),
    /// The Git data cannot be read.
    #[error("the Git repository cannot be read: {0}")]
    Repository(String),
}

impl GitError {
    fn new(path: &Path, kind: GitErrorKind) -> Self {
        Self { path: path.display().to_string(), kind }
    }

    /// Returns a hint for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match &self.kind {
            GitErrorKind::Outside => "name a directory of the repository, not a link".to_owned(),
            GitErrorKind::Missing | GitErrorKind::NotADirectory => {
                "name a directory of manifests, or run the command inside one".to_owned()
            }
            GitErrorKind::Empty | GitErrorKind::NoManifests { .. } => {
                "manifests are files that end in .yaml, .yml or .json; files that Git ignores are \
                 not read"
                    .to_owned()
            }
            GitErrorKind::Link { .. } => "replace the link by its file".to_owned(),
            GitErrorKind::NoRepository { .. } => {
                "only a Git repository has revisions: leave the revision out, or run `git init`"
                    .to_owned()
            }
            GitErrorKind::UnknownRevision { .. } => {
                "`git fetch` it first; a shallow clone holds only the newest commits".to_owned()
            }
            GitErrorKind::AmbiguousRevision { .. } => {
                "write the full name, such as refs/heads/main or refs/remotes/origin/main"
                    .to_owned()
            }
            GitErrorKind::NotInRevision { .. } => {
                "the directory may have had another name in that commit".to_owned()
            }
            GitErrorKind::TooMuch { .. } => {
                "name a smaller directory, such as the one of this cluster".to_owned()
            }
            GitErrorKind::OtherOwner => {
                "run `git config --global --add safe.directory DIRECTORY` if you trust it"
                    .to_owned()
            }
            GitErrorKind::UnsafeName { .. } => {
                "do not trust this repository; `git fsck` reports the object".to_owned()
            }
            GitErrorKind::Scheme { .. } => "use an https or ssh URL, or a path".to_owned(),
            GitErrorKind::Fetch(_) => "run `git ls-remote URL` to test the credentials".to_owned(),
            GitErrorKind::Unreadable(_) | GitErrorKind::Repository(_) => return None,
        };
        Some(hint)
    }
}

/// Reads the manifest files below the directory `path` from disk.
///
/// # Errors
/// Returns an error if the directory or its repository cannot be read, or contains no manifest. A
/// single unreadable file is no error: it is in the tree with its reason.
pub fn read_tree(path: &Path) -> Result<RepositoryTree, GitError> {
    read_tree_within(path, TreeLimits::DEFAULT)
}

/// Reads the manifest files below the directory `path` as of commit `revision`.
///
/// The work tree is neither read nor changed, and the directory need not exist in it.
///
/// # Errors
/// Returns an error if the repository, the commit or the directory does not exist, or if there is
/// no manifest.
pub fn read_revision(path: &Path, revision: &str) -> Result<RepositoryTree, GitError> {
    revision::read(path, revision, TreeLimits::DEFAULT)
}

/// Reads as [`read_revision`] does. Returns `None` without reading a file if the files have the base
/// `known`.
///
/// # Errors
/// As [`read_revision`].
pub fn read_changed_revision(
    path: &Path,
    revision: &str,
    known: &TreeBase,
) -> Result<Option<RepositoryTree>, GitError> {
    if revision::read_base(path, revision)?.is_known(known) {
        return Ok(None);
    }
    read_revision(path, revision).map(Some)
}

/// Returns true if `commit` is `revision` or an ancestor of it, in the repository that contains
/// `path`. The directory itself need not exist.
///
/// # Errors
/// Returns an error if the repository or the revision does not exist.
pub fn is_in_history(path: &Path, revision: &str, commit: &str) -> Result<bool, GitError> {
    revision::is_in_history(path, revision, commit).map_err(|kind| GitError::new(path, kind))
}

fn read_tree_within(path: &Path, limits: TreeLimits) -> Result<RepositoryTree, GitError> {
    let fail = |kind| GitError::new(path, kind);
    let unreadable = |error: &std::io::Error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            GitErrorKind::Missing
        } else {
            GitErrorKind::Unreadable(io_reason(error))
        }
    };
    let root = path.canonicalize().map_err(|error| fail(unreadable(&error)))?;
    if !root.is_dir() {
        return Err(fail(GitErrorKind::NotADirectory));
    }
    let repository = open_repository(&root).map_err(fail)?;
    worktree::read(&root, repository.as_ref(), limits).map_err(fail)
}

/// Opens the repository that contains `directory`, or returns `None` if there is none.
fn open_repository(directory: &Path) -> Result<Option<Repository>, GitErrorKind> {
    match Repository::discover(directory) {
        Ok(repository) => Ok(Some(repository)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) if error.code() == ErrorCode::Owner => Err(GitErrorKind::OtherOwner),
        Err(error) => Err(GitErrorKind::Repository(error.message().to_owned())),
    }
}

/// Returns the absolute `path`. Only its beginning needs to exist.
pub(crate) fn absolute_path(path: &Path) -> Option<PathBuf> {
    let start = std::path::absolute(path).ok()?;
    let existing = start.ancestors().find_map(|a| Some((a, a.canonicalize().ok()?)));
    let (ancestor, resolved) = existing?;
    let rest = start.strip_prefix(ancestor).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| if rest.as_os_str().is_empty() { resolved } else { resolved.join(rest) })
}

/// Returns the URL of the remote `origin` without credentials.
fn origin_url(repository: &Repository) -> Option<String> {
    let remote = repository.find_remote("origin").ok()?;
    let url = String::from_utf8_lossy(remote.url_bytes()).into_owned();
    (!url.is_empty()).then(|| strip_credentials(&url))
}

/// Removes user, password, query and fragment of a URL, and the user of an scp-like address.
fn strip_credentials(url: &str) -> String {
    if let Some((scheme, rest)) = url.split_once("://") {
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        return format!("{scheme}://{host}{path}");
    }
    let (address, path) = url.split_at(url.find(['/', ':']).unwrap_or(url.len()));
    match (address.rsplit_once('@'), url.split_once('@')) {
        (Some((_, host)), _) => format!("{host}{path}"),
        // `user:password@host:path` is not documented by Git, but some tools write it.
        (None, Some((user, rest))) if !user.contains('/') => rest.to_owned(),
        (None, _) => url.to_owned(),
    }
}

/// Returns whether a name in a tree leads elsewhere when it is used as a path. Git never writes such
/// names, but a crafted repository may contain them.
fn is_unsafe_name(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..")
        || name.eq_ignore_ascii_case(b".git")
        || name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Returns whether a file name may hold manifests, by the rules of `kubectl apply -R`, or says which
/// of them Flux leaves out.
pub(crate) fn is_manifest_name(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let ends = [&b".yaml"[..], b".yml", b".json"].iter().any(|suffix| path.ends_with(suffix));
    ends || name == b"Kustomization" || name == crate::manifest::SOURCE_IGNORE.as_bytes()
}

/// Returns the reason, in a platform-independent form for common errors.
fn io_reason(error: &std::io::Error) -> String {
    let kind = error.kind();
    if kind == std::io::ErrorKind::NotFound {
        "no such file".to_owned()
    } else if kind == std::io::ErrorKind::PermissionDenied {
        "permission denied".to_owned()
    } else {
        error.to_string()
    }
}

/// Formats a relative path with `/` separators. Bytes that are not UTF-8 are replaced.
fn slash_path(path: &Path) -> String {
    path.iter().map(std::ffi::OsStr::to_string_lossy).collect::<Vec<_>>().join("/")
}

fn skipped(path: &str, reason: &str) -> Skipped {
    Skipped {
        origin: crate::model::ids::Origin { file: Arc::from(path), line: 0 },
        reason: reason.to_owned(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err by name")]
fn git_error(error: git2::Error) -> GitErrorKind {
    GitErrorKind::Repository(error.message().to_owned())
}

#[cfg(test)]
mod tests;
