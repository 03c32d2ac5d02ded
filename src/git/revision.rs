//! Reads the files of a commit from the object database.

use std::path::Path;

use git2::{ErrorCode, ObjectType, Oid, Repository};

use super::collect::Collector;
use super::shelf::Place;
use super::{
    GitError, GitErrorKind, Limits, Shelf, TreeBase, TreeRead, absolute, is_manifest_name, open,
    origin_url, signed, slashed,
};

/// The mode of a symbolic link in a Git tree.
const LINK: i32 = 0o120_000;

/// Links followed one after the other before they count as a circle, as the kernel counts.
const LINK_HOPS_MAX: usize = 40;

/// Reads the files below `path` as commit `revision` has them.
pub(super) fn read(path: &Path, revision: &str, limits: Limits) -> Result<TreeRead, GitError> {
    let fail = |kind| GitError::new(path, kind);
    let absolute = absolute(path).ok_or_else(|| fail(GitErrorKind::Missing))?;
    let start = absolute.ancestors().find(|directory| directory.is_dir());
    let start = start.ok_or_else(|| fail(GitErrorKind::Missing))?;
    let no_repository = || GitErrorKind::NoRepository { revision: revision.to_owned() };
    let repository = open(start).map_err(fail)?.ok_or_else(|| fail(no_repository()))?;
    let top = repository.workdir().unwrap_or(repository.path()).canonicalize();
    let prefix = top.ok().and_then(|top| absolute.strip_prefix(top).ok().map(Path::to_owned));
    let prefix = prefix.ok_or_else(|| fail(no_repository()))?;
    let again = open(start).map_err(fail)?.ok_or_else(|| fail(no_repository()))?;
    let shelf = Shelf::of_commit(again, limits);
    read_prefix(&repository, &prefix, revision, (limits, shelf)).map_err(fail)
}

fn read_prefix(
    repository: &Repository,
    prefix: &Path,
    revision: &str,
    (limits, shelf): (Limits, Shelf),
) -> Result<TreeRead, GitErrorKind> {
    let unknown = |error: git2::Error| {
        if error.code() == ErrorCode::GenericError {
            // Whether there is one it cannot tell.
            return broken(error);
        }
        let (revision, reason) = (revision.to_owned(), error.message().to_owned());
        GitErrorKind::UnknownRevision { revision, reason }
    };
    let object = repository.revparse_single(revision).map_err(unknown)?;
    let commit = object.peel_to_commit().map_err(unknown)?;
    let root = directory(repository, commit.tree_id(), prefix, revision)?;
    let mut walk = Walk { repository, root, found: Collector::new(limits, shelf) };
    let mut pending = vec![(String::new(), root)];
    while let Some((path, tree)) = pending.pop() {
        walk.directory(&path, tree, &mut pending)?;
    }
    let mut read = walk.found.finish(TreeBase {
        repository: origin_url(repository),
        commit: Some(commit.id().to_string()),
        tree: String::new(),
        below: slashed(prefix),
        dirty: false,
    })?;
    read.proof = signed::proof(repository, commit.id(), prefix);
    Ok(read)
}

/// Returns the tree object of the directory `prefix` below the tree `root`.
fn directory(
    repository: &Repository,
    root: Oid,
    prefix: &Path,
    revision: &str,
) -> Result<Oid, GitErrorKind> {
    if prefix.as_os_str().is_empty() {
        return Ok(root);
    }
    let tree = repository.find_tree(root).map_err(broken)?;
    match tree.get_path(prefix) {
        Ok(entry) if entry.kind() == Some(ObjectType::Tree) => Ok(entry.id()),
        Ok(_) => Err(GitErrorKind::NotADirectory),
        Err(error) if error.code() == ErrorCode::NotFound => {
            Err(GitErrorKind::NotInRevision { revision: revision.to_owned() })
        }
        Err(error) => Err(broken(error)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err by name")]
fn broken(error: git2::Error) -> GitErrorKind {
    GitErrorKind::Repository(error.message().to_owned())
}

/// One walk over the tree of a commit.
struct Walk<'a> {
    repository: &'a Repository,
    root: Oid,
    found: Collector,
}

/// What a name of a tree stands for.
enum Entry {
    Directory(Oid),
    File(Oid),
    Link(Oid),
    /// A submodule, or an object of a kind that no tree should hold.
    Other,
}

impl Walk<'_> {
    fn directory(
        &mut self,
        path: &str,
        tree: Oid,
        pending: &mut Vec<(String, Oid)>,
    ) -> Result<(), GitErrorKind> {
        let tree = self.repository.find_tree(tree).map_err(broken)?;
        for item in &tree {
            self.found.enter()?;
            let name = item.name_bytes();
            if name == b".git" {
                continue;
            }
            let shown = join(path, &String::from_utf8_lossy(name));
            match entry(&item) {
                Entry::Directory(id) => {
                    if self.found.descend(&shown)? {
                        pending.push((shown, id));
                    }
                }
                Entry::Other => self.found.submodule(&shown),
                Entry::Link(id) if !is_manifest_name(name) => {
                    self.found.pass_over();
                    match self.follow(path, id) {
                        Ok(Entry::Directory(_)) => {
                            let reason = "a link to a directory, which is not followed";
                            self.found.skip(&shown, reason);
                        }
                        found => self.shelve(&shown, &found),
                    }
                }
                Entry::File(id) if !is_manifest_name(name) => {
                    self.found.pass_over();
                    self.shelve(&shown, &Ok(Entry::File(id)));
                }
                Entry::File(_) | Entry::Link(_) if shown.contains('\u{fffd}') => {
                    self.found.file(&shown, Err("its path is not UTF-8".to_owned()))?;
                }
                Entry::File(id) => {
                    self.shelve(&shown, &Ok(Entry::File(id)));
                    let content = self.blob(id)?;
                    self.found.file(&shown, content)?;
                }
                Entry::Link(id) => {
                    let found = self.follow(path, id);
                    self.shelve(&shown, &found);
                    let content = match found {
                        Ok(Entry::File(id)) => self.blob(id)?,
                        Ok(_) => Err("it is not a regular file".to_owned()),
                        Err(reason) => Err(reason),
                    };
                    self.found.file(&shown, content)?;
                }
            }
        }
        Ok(())
    }

    /// Notes where the content of the file at `path` is.
    fn shelve(&mut self, path: &str, found: &Result<Entry, String>) {
        let place = match found {
            Ok(Entry::File(id)) => Place::Object(*id),
            Ok(_) => Place::Nowhere("it is not a regular file".to_owned()),
            Err(reason) => Place::Nowhere(reason.clone()),
        };
        self.found.shelve(path, place);
    }

    /// Reads a file; what the clone does not hold (a partial clone, say) is unreadable, not empty.
    fn blob(&mut self, id: Oid) -> Result<Result<Vec<u8>, String>, GitErrorKind> {
        let size = match self.repository.odb().and_then(|objects| objects.read_header(id)) {
            Ok((size, _)) => u64::try_from(size).unwrap_or(u64::MAX),
            Err(error) => return Ok(Err(error.message().to_owned())),
        };
        if let Err(reason) = self.found.admit(size)? {
            return Ok(Err(reason));
        }
        let blob = self.repository.find_blob(id);
        Ok(blob.map(|b| b.content().to_vec()).map_err(|error| error.message().to_owned()))
    }

    /// Follows the link `id` that stands in `directory`, one name at a time, within the root.
    fn follow(&self, directory: &str, id: Oid) -> Result<Entry, String> {
        let mut names: Vec<String> = parts(directory).collect();
        let mut found = Entry::Link(id);
        let mut ahead: Vec<String> = Vec::new();
        for _ in 0..LINK_HOPS_MAX {
            if let Entry::Link(id) = found {
                let target = self.target(id)?;
                ahead.extend(parts(&target).collect::<Vec<_>>().into_iter().rev());
                found = self.lookup(&names)?;
            }
            while matches!(found, Entry::Directory(_)) {
                let Some(name) = ahead.pop() else { break };
                if name != ".." {
                    names.push(name);
                } else if names.pop().is_none() {
                    return Err(OUTSIDE.to_owned());
                }
                found = self.lookup(&names)?;
            }
            match found {
                // The text of a link is relative to the directory that holds it.
                Entry::Link(_) => drop(names.pop()),
                Entry::File(_) | Entry::Other if !ahead.is_empty() => {
                    return Err(NOWHERE.to_owned());
                }
                Entry::Directory(_) | Entry::File(_) | Entry::Other => return Ok(found),
            }
        }
        Err("it is a link in a circle".to_owned())
    }

    /// Returns what a link says, unless it is absolute.
    fn target(&self, link: Oid) -> Result<String, String> {
        let blob = self.repository.find_blob(link).map_err(|error| error.message().to_owned())?;
        let target = std::str::from_utf8(blob.content()).map_err(|_| NOWHERE.to_owned())?;
        if target.starts_with('/') { Err(OUTSIDE.to_owned()) } else { Ok(target.to_owned()) }
    }

    /// Returns what stands at `names` below the root.
    fn lookup(&self, names: &[String]) -> Result<Entry, String> {
        let mut found = Entry::Directory(self.root);
        for name in names {
            let Entry::Directory(id) = found else { return Err(NOWHERE.to_owned()) };
            let tree = self.repository.find_tree(id).map_err(|e| e.message().to_owned())?;
            let item = tree.get_name(name).ok_or_else(|| NOWHERE.to_owned())?;
            found = entry(&item);
        }
        Ok(found)
    }
}

const OUTSIDE: &str = "it is a link to a file outside the directory that is read";
const NOWHERE: &str = "it is a link that leads nowhere: no such file";

fn entry(item: &git2::TreeEntry<'_>) -> Entry {
    match item.kind() {
        Some(ObjectType::Tree) => Entry::Directory(item.id()),
        Some(ObjectType::Blob) if item.filemode() == LINK => Entry::Link(item.id()),
        Some(ObjectType::Blob) => Entry::File(item.id()),
        Some(ObjectType::Commit | ObjectType::Any | ObjectType::Tag) | None => Entry::Other,
    }
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn parts(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}
