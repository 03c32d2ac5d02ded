//! Reads text files by suffix, from a directory or from a commit. Policies are read this way.

use std::fs;
use std::io::Read;
use std::path::Path;

use git2::{ObjectType, Repository, TreeWalkMode, TreeWalkResult};

use super::{
    GitError, GitErrorKind, absolute_path, git_error, is_unsafe_name, open_repository,
    revision_name,
};

/// Limits on the number and total size of files.
const FILES_MAX: usize = 1_000;
const BYTES_MAX: u64 = 8 << 20;

/// Maximum number of visited directory entries.
const ENTRIES_MAX: usize = 100_000;

/// The mode of a symbolic link in a Git tree.
const LINK: i32 = 0o120_000;

/// A text file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextFile {
    /// Path below the given directory.
    pub path: String,
    /// Content.
    pub text: String,
}

/// Returns the files below `directory` whose names end with one of `ends`, sorted by path.
///
/// A symbolic link is an error, because it is not followed. With a revision, the files are read
/// from that commit. With `root`, a directory outside it is refused, even if a link leads there.
///
/// # Errors
/// Returns an error if the directory is missing or outside the root, a file is a link or is not
/// text, or a limit is exceeded.
pub fn read_text_files(
    directory: &Path,
    root: Option<&Path>,
    revision: Option<&str>,
    suffixes: &[&str],
) -> Result<Vec<TextFile>, GitError> {
    let mut found = TextFileReader { suffixes, bytes: 0, files: Vec::new() };
    match revision {
        None => check_inside(directory, root).and_then(|()| found.read_disk(directory)),
        Some(revision) => found.read_commit(directory, revision),
    }
    .map_err(|kind| GitError::new(directory, kind))?;
    found.files.sort();
    Ok(found.files)
}

/// Checks that the resolved `directory` is below `root`.
fn check_inside(directory: &Path, root: Option<&Path>) -> Result<(), GitErrorKind> {
    let Some(root) = root else { return Ok(()) };
    let real = |path: &Path| path.canonicalize().map_err(|_| GitErrorKind::Missing);
    if real(directory)?.starts_with(real(root)?) {
        return Ok(());
    }
    Err(GitErrorKind::Outside)
}

struct TextFileReader<'a> {
    suffixes: &'a [&'a str],
    bytes: u64,
    files: Vec<TextFile>,
}

impl TextFileReader<'_> {
    fn matches_suffix(&self, name: &str) -> bool {
        self.suffixes.iter().any(|end| name.ends_with(end))
    }

    /// Counts a file of `bytes` against the limits before it is read.
    fn reserve_bytes(&mut self, bytes: u64) -> Result<(), GitErrorKind> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES_MAX {
            return Err(GitErrorKind::TooMuch { unit: "bytes", limit: BYTES_MAX });
        }
        if self.files.len() >= FILES_MAX {
            let limit = u64::try_from(FILES_MAX).unwrap_or(u64::MAX);
            return Err(GitErrorKind::TooMuch { unit: "files", limit });
        }
        Ok(())
    }

    fn read_disk(&mut self, directory: &Path) -> Result<(), GitErrorKind> {
        if !directory.is_dir() {
            return Err(GitErrorKind::Missing);
        }
        let unreadable = |error: std::io::Error| GitErrorKind::Unreadable(error.to_string());
        let mut pending = vec![directory.to_owned()];
        let mut entries = 0;
        while let Some(next) = pending.pop() {
            for entry in fs::read_dir(&next).map_err(unreadable)? {
                entries += 1;
                if entries > ENTRIES_MAX {
                    let limit = u64::try_from(ENTRIES_MAX).unwrap_or(u64::MAX);
                    return Err(GitErrorKind::TooMuch { unit: "names", limit });
                }
                let entry = entry.map_err(unreadable)?;
                let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
                let name = entry.file_name().to_string_lossy().into_owned();
                if kind.is_symlink() {
                    let path = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
                    return Err(GitErrorKind::Link { path });
                }
                if kind.is_dir() && !name.starts_with('.') {
                    pending.push(path);
                } else if kind.is_file() && self.matches_suffix(&name) {
                    let below = path.strip_prefix(directory).unwrap_or(&path);
                    let below = below.display().to_string();
                    self.reserve_bytes(entry.metadata().map_err(unreadable)?.len())?;
                    // Limited again, because a file may grow after it was counted.
                    let mut text = String::new();
                    let file = fs::File::open(&path).map_err(unreadable)?;
                    file.take(BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
                    self.files.push(TextFile { path: below, text });
                }
            }
        }
        Ok(())
    }

    fn read_commit(&mut self, directory: &Path, revision: &str) -> Result<(), GitErrorKind> {
        let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
        let absolute = absolute_path(directory).ok_or(GitErrorKind::Missing)?;
        let start =
            absolute.ancestors().find(|found| found.is_dir()).ok_or(GitErrorKind::Missing)?;
        let repository = open_repository(start)?.ok_or_else(no_repository)?;
        let top = repository.workdir().unwrap_or(repository.path()).canonicalize();
        let top = top.map_err(|error| GitErrorKind::Unreadable(error.to_string()))?;
        let below = absolute.strip_prefix(&top).map_err(|_| no_repository())?;
        let tree = revision_tree(&repository, below, revision)?;
        let found = self.matching_blobs(&tree)?;
        let store = repository.odb().map_err(git_error)?;
        for (path, id) in found {
            let (bytes, _) = store.read_header(id).map_err(git_error)?;
            self.reserve_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))?;
            let blob = repository.find_blob(id).map_err(git_error)?;
            let text = String::from_utf8(blob.content().to_vec())
                .map_err(|_| GitErrorKind::Unreadable(format!("`{path}` is not text")))?;
            self.files.push(TextFile { path, text });
        }
        Ok(())
    }

    /// Returns the matching files of a tree, by path.
    fn matching_blobs(
        &self,
        tree: &git2::Tree<'_>,
    ) -> Result<Vec<(String, git2::Oid)>, GitErrorKind> {
        let mut found = Vec::new();
        let (mut entries, mut unsafe_name, mut link) = (0, None, None);
        let walked = tree.walk(TreeWalkMode::PreOrder, |path, entry| {
            entries += 1;
            let name = entry.name().unwrap_or_default();
            if is_unsafe_name(entry.name_bytes()) {
                unsafe_name = Some(entry.name_bytes().escape_ascii().to_string());
                return TreeWalkResult::Abort;
            }
            if entry.kind() == Some(ObjectType::Tree) && name.starts_with('.') {
                return TreeWalkResult::Skip;
            }
            if entry.filemode() == LINK {
                link = Some(format!("{path}{name}"));
                return TreeWalkResult::Abort;
            }
            if entry.kind() == Some(ObjectType::Blob) && self.matches_suffix(name) {
                found.push((format!("{path}{name}"), entry.id()));
            }
            let is_enough = found.len() > FILES_MAX || entries > ENTRIES_MAX;
            if is_enough { TreeWalkResult::Abort } else { TreeWalkResult::Ok }
        });
        if let Some(name) = unsafe_name {
            return Err(GitErrorKind::UnsafeName { name });
        }
        if let Some(path) = link {
            return Err(GitErrorKind::Link { path });
        }
        // Git also reports an aborted walk as an error. The exceeded limit is more specific.
        for (unit, count, most) in
            [("files", found.len(), FILES_MAX), ("names", entries, ENTRIES_MAX)]
        {
            if count > most {
                let limit = u64::try_from(most).unwrap_or(u64::MAX);
                return Err(GitErrorKind::TooMuch { unit, limit });
            }
        }
        walked.map_err(git_error)?;
        Ok(found)
    }
}

fn revision_tree<'r>(
    repository: &'r Repository,
    below: &Path,
    revision: &str,
) -> Result<git2::Tree<'r>, GitErrorKind> {
    let unknown = |error: git2::Error| GitErrorKind::UnknownRevision {
        revision: revision.to_owned(),
        reason: error.message().to_owned(),
    };
    let root = revision_name::find_object(repository, revision)?.peel_to_tree().map_err(unknown)?;
    if below.as_os_str().is_empty() {
        return Ok(root);
    }
    let missing = |_| GitErrorKind::NotInRevision { revision: revision.to_owned() };
    let entry = root.get_path(below).map_err(missing)?;
    if entry.kind() != Some(ObjectType::Tree) {
        return Err(GitErrorKind::NotADirectory);
    }
    repository.find_tree(entry.id()).map_err(git_error)
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRepository;
    use super::*;

    fn read(repo: &TestRepository, revision: Option<&str>) -> Result<usize, GitErrorKind> {
        let found =
            read_text_files(&repo.path("policies"), Some(&repo.path("")), revision, &[".rego"]);
        found.map(|files| files.len()).map_err(|error| error.kind)
    }

    #[test]
    fn text_file_limits_apply_to_disk_and_commit() {
        let repo = TestRepository::new();
        let half = "x".repeat(5 << 20);
        repo.write("policies/a.rego", &half).write("policies/b.txt", &half).commit();
        assert_eq!((read(&repo, None), read(&repo, Some("HEAD"))), (Ok(1), Ok(1)));
        repo.write("policies/c.rego", &half).commit();
        let too_much = |unit, limit| Err(GitErrorKind::TooMuch { unit, limit });
        for revision in [None, Some("HEAD")] {
            assert_eq!(read(&repo, revision), too_much("bytes", 8 << 20));
        }
        let repo = TestRepository::new();
        for n in 0..=FILES_MAX {
            repo.write(&format!("policies/{n}.rego"), "");
        }
        repo.commit();
        for revision in [None, Some("HEAD")] {
            assert_eq!(read(&repo, revision), too_much("files", 1_000));
        }
    }

    #[test]
    fn tag_of_a_tree_is_read() {
        let repo = TestRepository::new();
        repo.write("policies/a.rego", "").commit();
        let repository = Repository::open(repo.path("")).expect("a repository");
        let tree = repository.revparse_single("HEAD^{tree}").expect("a tree").id();
        repo.tag("rules", &tree.to_string());
        assert_eq!(read(&repo, Some("rules")), Ok(1));
    }

    #[test]
    fn link_out_of_the_repository_is_refused() {
        let repo = TestRepository::new();
        let elsewhere = tempfile::tempdir().expect("a folder");
        fs::write(elsewhere.path().join("a.rego"), "").expect("written");
        repo.write("b.yaml", "");
        std::os::unix::fs::symlink(elsewhere.path(), repo.path("policies")).expect("linked");
        repo.commit();
        assert_eq!(read(&repo, None), Err(GitErrorKind::Outside));
        assert!(read(&repo, Some("HEAD")).is_err());
    }
}
