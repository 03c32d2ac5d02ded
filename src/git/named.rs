//! Reads files by the end of their names, from a directory or from a commit: policies, which are no
//! manifests.

use std::fs;
use std::path::Path;

use git2::{ObjectType, TreeWalkMode, TreeWalkResult};

use super::{GitError, GitErrorKind, absolute, open};

/// Most files that are read, and most bytes of all together.
const FILES_MAX: usize = 1_000;
const BYTES_MAX: usize = 8 << 20;

/// A file with its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedFile {
    /// Path below the directory that was named.
    pub path: String,
    /// Text.
    pub text: String,
}

/// Returns the files below `directory` whose names end in one of `ends`, ascending by path.
///
/// Links are not followed. With a revision, the files are those of that commit.
///
/// # Errors
/// When the directory is not there, a file is no text, or there is too much of it.
pub fn read_named(
    directory: &Path,
    revision: Option<&str>,
    ends: &[&str],
) -> Result<Vec<NamedFile>, GitError> {
    let fail = |kind| GitError::new(directory, kind);
    let mut files = match revision {
        None => from_disk(directory, ends),
        Some(revision) => from_commit(directory, revision, ends),
    }
    .map_err(fail)?;
    files.sort();
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    let (most, limit) = (u64::try_from(BYTES_MAX), u64::try_from(FILES_MAX));
    if bytes > BYTES_MAX {
        return Err(fail(GitErrorKind::TooMuch { what: "bytes", limit: most.unwrap_or(u64::MAX) }));
    }
    if files.len() > FILES_MAX {
        return Err(fail(GitErrorKind::TooMuch {
            what: "files",
            limit: limit.unwrap_or(u64::MAX),
        }));
    }
    Ok(files)
}

fn from_disk(directory: &Path, ends: &[&str]) -> Result<Vec<NamedFile>, GitErrorKind> {
    if !directory.is_dir() {
        return Err(GitErrorKind::Missing);
    }
    let unreadable = |error: std::io::Error| GitErrorKind::Unreadable(error.to_string());
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
            let name = entry.file_name().to_string_lossy().into_owned();
            if kind.is_dir() && !name.starts_with('.') && files.len() <= FILES_MAX {
                pending.push(path);
            } else if kind.is_file() && ends.iter().any(|end| name.ends_with(end)) {
                let size = entry.metadata().map_err(unreadable)?.len();
                if usize::try_from(size).map_or(true, |size| size > BYTES_MAX) {
                    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX);
                    return Err(GitErrorKind::TooMuch { what: "bytes", limit });
                }
                let text = fs::read_to_string(&path).map_err(unreadable)?;
                let below = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
                files.push(NamedFile { path: below, text });
            }
        }
    }
    Ok(files)
}

fn from_commit(
    directory: &Path,
    revision: &str,
    ends: &[&str],
) -> Result<Vec<NamedFile>, GitErrorKind> {
    let broken = |error: git2::Error| GitErrorKind::Repository(error.message().to_owned());
    let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
    let absolute = absolute(directory).ok_or(GitErrorKind::Missing)?;
    let start = absolute.ancestors().find(|found| found.is_dir()).ok_or(GitErrorKind::Missing)?;
    let repository = open(start)?.ok_or_else(no_repository)?;
    let top = repository.workdir().unwrap_or(repository.path()).canonicalize();
    let top = top.map_err(|error| GitErrorKind::Unreadable(error.to_string()))?;
    let below = absolute.strip_prefix(&top).map_err(|_| no_repository())?;
    let unknown = |error: git2::Error| GitErrorKind::UnknownRevision {
        revision: revision.to_owned(),
        reason: error.message().to_owned(),
    };
    let object = repository.revparse_single(revision).map_err(unknown)?;
    let root = object.peel_to_tree().map_err(unknown)?;
    let tree = if below.as_os_str().is_empty() {
        root
    } else {
        let missing = |_| GitErrorKind::NotInRevision { revision: revision.to_owned() };
        let entry = root.get_path(below).map_err(missing)?;
        repository.find_tree(entry.id()).map_err(broken)?
    };
    let mut found = Vec::new();
    tree.walk(TreeWalkMode::PreOrder, |path, entry| {
        let name = entry.name().unwrap_or_default();
        let is_file = entry.kind() == Some(ObjectType::Blob) && entry.filemode() != 0o120_000;
        if is_file && ends.iter().any(|end| name.ends_with(end)) {
            found.push((format!("{path}{name}"), entry.id()));
        }
        if found.len() > FILES_MAX { TreeWalkResult::Abort } else { TreeWalkResult::Ok }
    })
    .map_err(broken)?;
    let mut files = Vec::new();
    for (path, id) in found {
        let blob = repository.find_blob(id).map_err(broken)?;
        let text = String::from_utf8(blob.content().to_vec())
            .map_err(|_| GitErrorKind::Unreadable(format!("`{path}` is no text")))?;
        files.push(NamedFile { path, text });
    }
    Ok(files)
}
