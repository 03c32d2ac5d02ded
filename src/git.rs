//! Reads the files of a repository, from a directory or from the objects of a commit.
//!
//! This adapter knows files, links, Git's objects and its ignore rules; it knows nothing of what
//! the files mean. It reads and never writes: no checkout, no index refresh, no hook, no filter.
//! Invariants: what could not be read is in the result with its reason, never left out in silence;
//! nothing outside the directory that was named is read; files are ascending by path, and the same
//! content gives the same digest, whether it is read from a directory or from a commit.
//!
//! From a work tree the files on disk are read except those that Git ignores, as a commit of that
//! moment would hold them. A directory that is itself ignored (rendered manifests, say) was named
//! on purpose, so its files are read all the same; they are in no commit, and the base says so.
//! Plans and worlds that this program wrote are no input, wherever they lie.

mod collect;
mod named;
mod output;
mod remote;
mod revision;
mod shelf;
mod signed;
mod worktree;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use git2::{ErrorCode, Repository};
use thiserror::Error;

use crate::manifest::{Skipped, Tree};

pub(crate) use collect::Limits;
pub use named::{NamedFile, read_named};
pub use remote::{CloneCache, Remote};
pub use shelf::Shelf;
pub use signed::{Parent, Proof, SignedCommit};

/// What was read, and where it comes from.
#[derive(Debug, Clone)]
pub struct TreeRead {
    /// The manifest files below the path.
    pub tree: Tree,
    /// Parts that were left out, with the reason: submodules, links, saved plans and worlds.
    pub skipped: Vec<Skipped>,
    /// Directories that are repositories of their own: what they hold is not known.
    pub submodules: Vec<String>,
    /// Every file, manifest or not.
    pub shelf: Arc<Shelf>,
    /// What tells who signed the commit; `None` where there is no commit.
    pub proof: Option<Proof>,
    /// Where the files come from.
    pub base: TreeBase,
}

/// Where files come from: what a plan records of its repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeBase {
    /// URL of the remote `origin` without credentials; `None` where there is none.
    pub repository: Option<String>,
    /// Commit in hex; `None` outside a Git work tree, and before the first commit.
    pub commit: Option<String>,
    /// SHA-256 over paths and contents of the files read: `sha256:` and 64 hex digits.
    pub tree: String,
    /// The path below the root of the repository, with `/`; empty for the root itself.
    pub below: String,
    /// Whether the manifest files below the path differ from those of the commit.
    pub dirty: bool,
}

/// Why there is no tree to plan from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot read `{path}`: {kind}")]
pub struct GitError {
    /// The path as it was given.
    pub path: String,
    /// What went wrong.
    pub kind: GitErrorKind,
}

/// What went wrong when a tree was read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GitErrorKind {
    /// The path does not exist.
    #[error("there is no such directory")]
    Missing,
    /// The path is something else than a directory.
    #[error("it is not a directory")]
    NotADirectory,
    /// A link leads out of the directory that is read.
    #[error("it leads out of the directory that is read")]
    Outside,
    /// The directory cannot be listed.
    #[error("it cannot be listed: {0}")]
    Unreadable(String),
    /// The directory holds nothing at all.
    #[error("the directory is empty")]
    Empty,
    /// The directory holds files, but none that could be a manifest.
    #[error("none of its {files} files is a manifest")]
    NoManifests {
        /// How many files there are.
        files: usize,
    },
    /// A revision was asked for outside a repository.
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
        /// What Git said.
        reason: String,
    },
    /// The commit has no such directory.
    #[error("commit `{revision}` has no such directory")]
    NotInRevision {
        /// The revision.
        revision: String,
    },
    /// There is more than this program is built for.
    #[error("it holds more than {limit} {what}")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// The most that is read.
        limit: u64,
    },
    /// Git refuses a repository that belongs to somebody else.
    #[error("the Git repository belongs to another user")]
    NotOurs,
    /// A URL of a kind that is not fetched from.
    #[error("scheme `{scheme}` is not fetched from")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A repository elsewhere cannot be fetched.
    #[error("it cannot be fetched: {0}")]
    Fetch(String),
    /// Git's own data cannot be read.
    #[error("the Git repository cannot be read: {0}")]
    Repository(String),
}

impl GitError {
    fn new(path: &Path, kind: GitErrorKind) -> Self {
        Self { path: path.display().to_string(), kind }
    }

    /// Returns what to do about the error, where something can be said.
    #[must_use]
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
            GitErrorKind::NoRepository { .. } => "leave --ref out, or run `git init`".to_owned(),
            GitErrorKind::UnknownRevision { .. } => {
                "`git fetch` it first; a shallow clone holds only the newest commits".to_owned()
            }
            GitErrorKind::NotInRevision { .. } => {
                "the directory may have had another name in that commit".to_owned()
            }
            GitErrorKind::TooMuch { .. } => {
                "name a smaller directory, such as the one of this cluster".to_owned()
            }
            GitErrorKind::NotOurs => {
                "run `git config --global --add safe.directory DIRECTORY` if you trust it"
                    .to_owned()
            }
            GitErrorKind::Scheme { .. } => "use an https or ssh URL, or a path".to_owned(),
            GitErrorKind::Fetch(_) => {
                "`git ls-remote URL` says whether the credentials at hand reach it".to_owned()
            }
            GitErrorKind::Unreadable(_) | GitErrorKind::Repository(_) => return None,
        };
        Some(hint)
    }
}

/// Reads the manifest files below the directory `path` as they are on disk.
///
/// # Errors
/// When the directory or its repository cannot be read, or holds no manifest. A single file that
/// cannot be read is no error here; it is in the tree with its reason.
pub fn read_tree(path: &Path) -> Result<TreeRead, GitError> {
    read_tree_within(path, Limits::DEFAULT)
}

/// Reads the manifest files below the directory `path` as commit `revision` has them.
///
/// The work tree is neither read nor changed; the directory need not exist any more.
///
/// # Errors
/// When there is no repository, no such commit, no such directory in it, or no manifest.
pub fn read_revision(path: &Path, revision: &str) -> Result<TreeRead, GitError> {
    revision::read(path, revision, Limits::DEFAULT)
}

fn read_tree_within(path: &Path, limits: Limits) -> Result<TreeRead, GitError> {
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
    let repository = open(&root).map_err(fail)?;
    worktree::read(&root, repository.as_ref(), limits).map_err(fail)
}

/// Opens the repository that `directory` is in; `None` where it is in none.
fn open(directory: &Path) -> Result<Option<Repository>, GitErrorKind> {
    match Repository::discover(directory) {
        Ok(repository) => Ok(Some(repository)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) if error.code() == ErrorCode::Owner => Err(GitErrorKind::NotOurs),
        Err(error) => Err(GitErrorKind::Repository(error.message().to_owned())),
    }
}

/// Returns `path` made absolute, where only its beginning needs to exist.
fn absolute(path: &Path) -> Option<PathBuf> {
    let start = std::path::absolute(path).ok()?;
    let existing = start.ancestors().find_map(|a| Some((a, a.canonicalize().ok()?)));
    let (ancestor, resolved) = existing?;
    let rest = start.strip_prefix(ancestor).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| if rest.as_os_str().is_empty() { resolved } else { resolved.join(rest) })
}

/// Returns the URL of the remote `origin` without what may be a credential.
fn origin_url(repository: &Repository) -> Option<String> {
    let remote = repository.find_remote("origin").ok()?;
    let url = String::from_utf8_lossy(remote.url_bytes()).into_owned();
    (!url.is_empty()).then(|| without_credentials(&url))
}

/// Removes user, password, query and fragment of a URL, and the user of an scp-like address.
fn without_credentials(url: &str) -> String {
    if let Some((scheme, rest)) = url.split_once("://") {
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        return format!("{scheme}://{host}{path}");
    }
    let (address, path) = url.split_at(url.find(['/', ':']).unwrap_or(url.len()));
    match (address.rsplit_once('@'), url.split_once('@')) {
        (Some((_, host)), _) => format!("{host}{path}"),
        // `user:password@host:path` is no address that Git documents, yet some tools write it.
        (None, Some((user, rest))) if !user.contains('/') => rest.to_owned(),
        (None, _) => url.to_owned(),
    }
}

/// Returns whether a file of that name may hold manifests, as `kubectl apply -R` decides it.
fn is_manifest_name(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let ends = [&b".yaml"[..], b".yml", b".json"].iter().any(|suffix| path.ends_with(suffix));
    ends || name == b"Kustomization"
}

/// Says why in words that do not depend on the platform where they need not.
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

/// Writes a relative path with `/` between its parts; bytes that are not UTF-8 are replaced.
fn slashed(path: &Path) -> String {
    path.iter().map(std::ffi::OsStr::to_string_lossy).collect::<Vec<_>>().join("/")
}

fn skipped(path: &str, reason: &str) -> Skipped {
    Skipped {
        origin: crate::ids::Origin { file: Arc::from(path), line: 0 },
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
