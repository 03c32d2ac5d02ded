//! Reads files by the end of their names, from a directory or from a commit: policies, which are no
//! manifests.

use std::fs;
use std::io::Read;
use std::path::Path;

use git2::{ObjectType, Repository, TreeWalkMode, TreeWalkResult};

use super::{GitError, GitErrorKind, absolute, open};

/// Most files that are read, and most bytes of all together.
const FILES_MAX: usize = 1_000;
const BYTES_MAX: u64 = 8 << 20;

/// Most names that are looked at on the way.
const ENTRIES_MAX: usize = 100_000;

/// The mode of a symbolic link in a Git tree.
const LINK: i32 = 0o120_000;

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
/// Links are not followed. With a revision, the files are those of that commit. With `root`, a
/// directory that is reached by a link out of it is refused.
///
/// # Errors
/// When the directory is not there or outside the root, a file is no text, or there is too much of it.
pub fn read_named(
    directory: &Path,
    root: Option<&Path>,
    revision: Option<&str>,
    ends: &[&str],
) -> Result<Vec<NamedFile>, GitError> {
    let mut found = Found { ends, bytes: 0, files: Vec::new() };
    match revision {
        None => is_inside(directory, root).and_then(|()| found.read_disk(directory)),
        Some(revision) => found.read_commit(directory, revision),
    }
    .map_err(|kind| GitError::new(directory, kind))?;
    found.files.sort();
    Ok(found.files)
}

/// Checks that `directory` is below `root`, whatever links lead to it.
fn is_inside(directory: &Path, root: Option<&Path>) -> Result<(), GitErrorKind> {
    let Some(root) = root else { return Ok(()) };
    let real = |path: &Path| path.canonicalize().map_err(|_| GitErrorKind::Missing);
    if real(directory)?.starts_with(real(root)?) {
        return Ok(());
    }
    Err(GitErrorKind::Outside)
}

/// The files found so far.
struct Found<'a> {
    ends: &'a [&'a str],
    bytes: u64,
    files: Vec<NamedFile>,
}

impl Found<'_> {
    fn is_wanted(&self, name: &str) -> bool {
        self.ends.iter().any(|end| name.ends_with(end))
    }

    /// Makes room for a file of `bytes`, before it is read.
    fn make_room(&mut self, bytes: u64) -> Result<(), GitErrorKind> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES_MAX {
            return Err(GitErrorKind::TooMuch { what: "bytes", limit: BYTES_MAX });
        }
        if self.files.len() >= FILES_MAX {
            let limit = u64::try_from(FILES_MAX).unwrap_or(u64::MAX);
            return Err(GitErrorKind::TooMuch { what: "files", limit });
        }
        Ok(())
    }

    fn read_disk(&mut self, directory: &Path) -> Result<(), GitErrorKind> {
        if !directory.is_dir() {
            return Err(GitErrorKind::Missing);
        }
        let unreadable = |error: std::io::Error| GitErrorKind::Unreadable(error.to_string());
        let mut pending = vec![directory.to_owned()];
        let mut looked = 0;
        while let Some(next) = pending.pop() {
            for entry in fs::read_dir(&next).map_err(unreadable)? {
                looked += 1;
                if looked > ENTRIES_MAX {
                    let limit = u64::try_from(ENTRIES_MAX).unwrap_or(u64::MAX);
                    return Err(GitErrorKind::TooMuch { what: "names", limit });
                }
                let entry = entry.map_err(unreadable)?;
                let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
                let name = entry.file_name().to_string_lossy().into_owned();
                if kind.is_dir() && !name.starts_with('.') {
                    pending.push(path);
                } else if kind.is_file() && self.is_wanted(&name) {
                    let below = path.strip_prefix(directory).unwrap_or(&path);
                    let below = below.display().to_string();
                    self.make_room(entry.metadata().map_err(unreadable)?.len())?;
                    // No more than was found room for: a file may grow meanwhile.
                    let mut text = String::new();
                    let file = fs::File::open(&path).map_err(unreadable)?;
                    file.take(BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
                    self.files.push(NamedFile { path: below, text });
                }
            }
        }
        Ok(())
    }

    fn read_commit(&mut self, directory: &Path, revision: &str) -> Result<(), GitErrorKind> {
        let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
        let absolute = absolute(directory).ok_or(GitErrorKind::Missing)?;
        let start =
            absolute.ancestors().find(|found| found.is_dir()).ok_or(GitErrorKind::Missing)?;
        let repository = open(start)?.ok_or_else(no_repository)?;
        let top = repository.workdir().unwrap_or(repository.path()).canonicalize();
        let top = top.map_err(|error| GitErrorKind::Unreadable(error.to_string()))?;
        let below = absolute.strip_prefix(&top).map_err(|_| no_repository())?;
        let tree = tree_of(&repository, below, revision)?;
        let found = self.named_in(&tree)?;
        let store = repository.odb().map_err(broken)?;
        for (path, id) in found {
            let (bytes, _) = store.read_header(id).map_err(broken)?;
            self.make_room(u64::try_from(bytes).unwrap_or(u64::MAX))?;
            let blob = repository.find_blob(id).map_err(broken)?;
            let text = String::from_utf8(blob.content().to_vec())
                .map_err(|_| GitErrorKind::Unreadable(format!("`{path}` is no text")))?;
            self.files.push(NamedFile { path, text });
        }
        Ok(())
    }

    /// Returns the wanted files of a tree, by path.
    fn named_in(&self, tree: &git2::Tree<'_>) -> Result<Vec<(String, git2::Oid)>, GitErrorKind> {
        let mut found = Vec::new();
        let mut looked = 0;
        let walked = tree.walk(TreeWalkMode::PreOrder, |path, entry| {
            looked += 1;
            let name = entry.name().unwrap_or_default();
            let is_file = entry.kind() == Some(ObjectType::Blob) && entry.filemode() != LINK;
            if is_file && self.is_wanted(name) {
                found.push((format!("{path}{name}"), entry.id()));
            }
            let is_enough = found.len() > FILES_MAX || looked > ENTRIES_MAX;
            if is_enough { TreeWalkResult::Abort } else { TreeWalkResult::Ok }
        });
        // A walk that was given up is an error to Git as well; what there is too much of says more.
        for (what, count, most) in
            [("files", found.len(), FILES_MAX), ("names", looked, ENTRIES_MAX)]
        {
            if count > most {
                let limit = u64::try_from(most).unwrap_or(u64::MAX);
                return Err(GitErrorKind::TooMuch { what, limit });
            }
        }
        walked.map_err(broken)?;
        Ok(found)
    }
}

fn tree_of<'r>(
    repository: &'r Repository,
    below: &Path,
    revision: &str,
) -> Result<git2::Tree<'r>, GitErrorKind> {
    let unknown = |error: git2::Error| GitErrorKind::UnknownRevision {
        revision: revision.to_owned(),
        reason: error.message().to_owned(),
    };
    let object = repository.revparse_single(revision).map_err(unknown)?;
    let root = object.peel_to_tree().map_err(unknown)?;
    if below.as_os_str().is_empty() {
        return Ok(root);
    }
    let missing = |_| GitErrorKind::NotInRevision { revision: revision.to_owned() };
    let entry = root.get_path(below).map_err(missing)?;
    if entry.kind() != Some(ObjectType::Tree) {
        return Err(GitErrorKind::NotADirectory);
    }
    repository.find_tree(entry.id()).map_err(broken)
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err by name")]
fn broken(error: git2::Error) -> GitErrorKind {
    GitErrorKind::Repository(error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Place;
    use super::*;

    fn read(place: &Place, revision: Option<&str>) -> Result<usize, GitErrorKind> {
        let found =
            read_named(&place.path("policies"), Some(&place.path("")), revision, &[".rego"]);
        found.map(|files| files.len()).map_err(|error| error.kind)
    }

    #[test]
    fn too_many_files_or_bytes_are_said_to_be_that_from_disk_and_from_a_commit() {
        let place = Place::new();
        let half = "x".repeat(5 << 20);
        place.write("policies/a.rego", &half).write("policies/b.txt", &half).commit();
        assert_eq!((read(&place, None), read(&place, Some("HEAD"))), (Ok(1), Ok(1)));
        place.write("policies/c.rego", &half).commit();
        let too_much = |what, limit| Err(GitErrorKind::TooMuch { what, limit });
        for revision in [None, Some("HEAD")] {
            assert_eq!(read(&place, revision), too_much("bytes", 8 << 20));
        }
        let place = Place::new();
        for n in 0..=FILES_MAX {
            place.write(&format!("policies/{n}.rego"), "");
        }
        place.commit();
        for revision in [None, Some("HEAD")] {
            assert_eq!(read(&place, revision), too_much("files", 1_000));
        }
    }

    #[test]
    fn a_link_out_of_the_repository_is_not_followed() {
        let place = Place::new();
        let elsewhere = tempfile::tempdir().expect("a folder");
        fs::write(elsewhere.path().join("a.rego"), "").expect("written");
        place.write("b.yaml", "");
        std::os::unix::fs::symlink(elsewhere.path(), place.path("policies")).expect("linked");
        place.commit();
        assert_eq!(read(&place, None), Err(GitErrorKind::Outside));
        assert!(read(&place, Some("HEAD")).is_err());
    }
}
