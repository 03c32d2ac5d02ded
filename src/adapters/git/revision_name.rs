//! Names of revisions. A branch and a tag may have the same name, and Git prefers the tag.
//!
//! Branches can be protected while anybody with write access may create tags. So the name of a
//! protected branch must not find a tag.

use git2::{Object, Oid, Repository};

use super::{GitErrorKind, git_error};

/// Namespaces in which Git looks for a short name, in its order.
const NAMESPACES: [&str; 4] = ["refs/", "refs/tags/", "refs/heads/", "refs/remotes/"];

/// Shortest abbreviated commit ID.
const ABBREVIATED_MIN: usize = 4;

/// Length of a whole commit ID.
const COMMIT_ID_LENGTH: usize = 40;

/// Returns the object that `revision` names in a local repository.
///
/// # Errors
/// Returns an error if nothing has the name, or if it names two different objects.
pub(super) fn find_object<'r>(
    repository: &'r Repository,
    revision: &str,
) -> Result<Object<'r>, GitErrorKind> {
    let name = revision.split("@{").next().unwrap_or_default();
    let name = name.split(['~', '^', ':']).next().unwrap_or_default();
    let found = named_objects(repository, name)?;
    if let [(first, object), rest @ ..] = found.as_slice()
        && let Some((second, _)) = rest.iter().find(|(_, other)| other != object)
    {
        let (revision, first, second) = (revision.to_owned(), first.clone(), second.clone());
        return Err(GitErrorKind::AmbiguousRevision { revision, first, second });
    }
    repository.revparse_single(revision).map_err(|error| {
        if error.code() == git2::ErrorCode::GenericError {
            // A generic error does not reveal whether the commit exists.
            return git_error(error);
        }
        let (revision, reason) = (revision.to_owned(), error.message().to_owned());
        GitErrorKind::UnknownRevision { revision, reason }
    })
}

/// Returns the references, and the abbreviated object, that a short name may mean.
fn named_objects(repository: &Repository, name: &str) -> Result<Vec<(String, Oid)>, GitErrorKind> {
    // Git reads a whole ID, `HEAD` and a full name as such, whatever else has the name.
    let is_hex = name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_whole = name.starts_with("refs/") || is_hex && name.len() == COMMIT_ID_LENGTH;
    if name.is_empty() || name == "HEAD" || is_whole {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for namespace in NAMESPACES {
        let full = format!("{namespace}{name}");
        if let Ok(reference) = repository.find_reference(&full) {
            let commit = reference.peel_to_commit().map_err(git_error)?;
            found.push((full, commit.id()));
        }
    }
    if is_hex && (ABBREVIATED_MIN..COMMIT_ID_LENGTH).contains(&name.len()) {
        let objects = repository.odb().map_err(git_error)?;
        let short = Oid::from_str(name).map_err(git_error)?;
        if let Ok(object) = objects.exists_prefix(short, name.len()) {
            found.push((object.to_string(), object));
        }
    }
    Ok(found)
}

/// Returns the full names that `revision` may have in a remote repository, in the order in which
/// they are tried. A branch is preferred to a tag.
pub(super) fn remote_names(revision: &str) -> Vec<String> {
    let is_commit = matches!(revision.len(), COMMIT_ID_LENGTH | 64)
        && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if revision == "HEAD" || revision.starts_with("refs/") || is_commit {
        return vec![revision.to_owned()];
    }
    if revision.starts_with("heads/") || revision.starts_with("tags/") {
        return vec![format!("refs/{revision}")];
    }
    vec![format!("refs/heads/{revision}"), format!("refs/tags/{revision}")]
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRepository;
    use super::*;

    fn repository_of(directory: &TestRepository) -> Repository {
        Repository::open(directory.path("")).expect("a repository")
    }

    #[test]
    fn tag_never_replaces_a_branch_of_its_name() {
        let directory = TestRepository::new();
        let first = directory.write("a.yaml", "1").commit();
        let second = directory.write("a.yaml", "2").commit();
        let repository = repository_of(&directory);
        let set = |name: &str, commit: &str| {
            let commit = commit.parse().expect("an id");
            repository.reference(name, commit, true, "set").expect("set");
        };
        let found = |revision: &str| find_object(&repository, revision).map(|o| o.id().to_string());
        set("refs/remotes/origin/main", &first);
        set("refs/tags/v1", &first);
        for revision in ["origin/main", "v1", "main~1", "main^", "HEAD~1", "tags/v1", &first] {
            assert_eq!(found(revision).ok().as_ref(), Some(&first), "{revision}");
        }
        let short = first[..7].to_owned();
        assert_eq!(found(&short).ok().as_ref(), Some(&first), "{short}");
        set("refs/tags/origin/main", &second);
        set("refs/tags/main", &first);
        set(&format!("refs/tags/{short}"), &second);
        for revision in ["origin/main", "main", "main~1", &short] {
            let error = found(revision).expect_err(revision);
            assert!(matches!(error, GitErrorKind::AmbiguousRevision { .. }), "{error}");
        }
        for (revision, expected) in [
            ("refs/remotes/origin/main", &first),
            ("refs/heads/main", &second),
            ("refs/heads/main~1", &first),
            ("HEAD", &second),
            (&first, &first),
        ] {
            assert_eq!(found(revision).ok().as_ref(), Some(expected), "{revision}");
        }
    }

    #[test]
    fn remote_branch_is_tried_before_a_tag() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        for (revision, expected) in [
            ("main", &["refs/heads/main", "refs/tags/main"][..]),
            ("HEAD", &["HEAD"]),
            ("refs/pull/1/head", &["refs/pull/1/head"]),
            ("tags/v1", &["refs/tags/v1"]),
            (id, &[id]),
        ] {
            assert_eq!(remote_names(revision), expected, "{revision}");
        }
    }
}
